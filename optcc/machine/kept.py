"""Where compiled code is kept: files of this user, in folders that no other user can write, for they are executed.

The first folder that can be written takes a file; all are looked at when one is wanted. So a home that is full, or
cannot be written, costs nothing but another folder. A file begins with a digest: one that is damaged, cut short or of
other sources is no file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

VARIABLE = "NUMBA_CACHE_DIR"
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


class CacheFolder(NamedTuple):
    """A folder; mode : it is made with; asked : by its user, who answers for the folders above it."""

    folder: Path
    mode: int = 0o700
    asked: bool = False


def candidates(environ: Mapping[str, str], user: int) -> Iterator[CacheFolder]:
    """NUMBA_CACHE_DIR, the user's cache, a private folder among temporary ones: in this order."""
    if environ.get(VARIABLE):
        yield CacheFolder(Path(environ[VARIABLE]).absolute() / "optcc", 0o755, asked=True)
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    shared = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    if shared.is_absolute() and (environ.get("XDG_CACHE_HOME") or home.is_dir()):
        yield CacheFolder(shared / "optcc")
    for folder in (environ.get("TMPDIR"), *TEMPORARY):
        if folder and Path(folder).is_absolute() and Path(folder).is_dir():
            yield CacheFolder(Path(folder) / f"optcc-{user}")


def places() -> tuple[Path, ...]:
    """Folders that are there, or could be made, and that nobody but this user or root can write."""
    said = tuple((name, os.environ.get(name, "")) for name in (VARIABLE, "XDG_CACHE_HOME", "HOME", "TMPDIR"))
    return _places(said, os.geteuid())


@cache
def _places(said: tuple[tuple[str, str], ...], user: int) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(one.folder for one in candidates(dict(said), user) if _ours(one, user)))


def _ours(one: CacheFolder, user: int) -> bool:
    """Whether the folder is there, or has been made, and its files are this user's or root's to change."""
    try:
        missing = [folder for folder in (one.folder, *one.folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):  # by another process of the job
                folder.mkdir(one.mode)
        found = one.folder.lstat()
        return (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid in (0, user)
            and not found.st_mode & 0o022
            and (one.asked or all(_stays(folder) for folder in one.folder.resolve().parents))
        )
    except (OSError, RuntimeError):  # a loop of links
        return False


def _stays(folder: Path) -> bool:
    """Whether others cannot put another folder in the place of one that is in here."""
    mode = folder.stat().st_mode
    return not mode & 0o022 or bool(mode & stat.S_ISVTX)


def found(name: str, stamp: bytes) -> bytes | None:
    """What was kept under this name for these sources; None: nothing, or it is damaged."""
    for place in places():
        with suppress(OSError):
            data = (place / name).read_bytes()
            if data[:32] == sha256(stamp + data[32:]).digest():
                return data[32:]
    return None


def keep(name: str, stamp: bytes, data: bytes) -> None:
    """Keep it, whole or not at all. Raises OSError where no folder takes it."""
    refused: OSError = OSError("no folder can be written")
    for place in places():
        unfinished = place / f"{name}.{token_hex(8)}"
        try:
            unfinished.write_bytes(sha256(stamp + data).digest() + data)
            unfinished.replace(place / name)
            return
        except OSError as error:
            refused = error
            with suppress(OSError):
                unfinished.unlink()
    raise refused


def lock_file(name: str) -> int | None:
    """A descriptor of a file for processes of this user to lock, in the first folder that has it; None: none has."""
    for place in places():
        with suppress(OSError):
            return os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return None
