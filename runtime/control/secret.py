"""The secret that all processes of a job share: from the environment, or from a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from optcc.errors import InputError
from optcc.runtime.control.interface import is_loopback

SECRETS = ("OPTCC_SECRET", "OPTCC_SECRET_FILE")
"""The variables of the environment that tell the secret, or where it is."""

SECRET_CHARACTERS = 16
"""The fewest of a secret: who has listened to a greeting can try out a shorter one."""


def secret_of(environ: Mapping[str, str], host: str) -> str:
    """The job's secret from OPTCC_SECRET, or from the file OPTCC_SECRET_FILE, which only its owner may read.

    Raises InputError when there is none although `host` is not loopback, when it is short, or when both are given.
    """
    text, path = environ.get("OPTCC_SECRET"), environ.get("OPTCC_SECRET_FILE")
    hint = "Make one with: openssl rand -hex 32"
    if text is not None and path is not None:
        raise InputError("two secrets", where="OPTCC_SECRET and OPTCC_SECRET_FILE", expected="one of them")
    if path is not None:
        text = _read(path)
    if text is None:
        if is_loopback(host):
            return ""
        raise InputError(
            "no secret, although other machines can reach the hub",
            where="OPTCC_SECRET or OPTCC_SECRET_FILE",
            expected="the same secret on all machines",
            hint=hint,
        )
    if len(text) < SECRET_CHARACTERS:
        where = "OPTCC_SECRET" if path is None else "OPTCC_SECRET_FILE"
        raise InputError(
            "too short a secret",
            where=where,
            expected=f"{SECRET_CHARACTERS} characters or more",
            got=len(text),
            hint=hint,
        )
    return text


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno())
            if not stat.S_ISREG(mode.st_mode) or mode.st_uid not in (0, os.getuid()) or mode.st_mode & 0o077:
                raise InputError(
                    "others may know what it holds",
                    where=f"OPTCC_SECRET_FILE, {path}",
                    expected="a file of your own that only you can read (chmod 600)",
                    got=stat.filemode(mode.st_mode),
                )
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=f"OPTCC_SECRET_FILE, {path}") from error
