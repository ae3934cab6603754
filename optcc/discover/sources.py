"""The files that stand for a cluster's hosts: one each, those of a folder or of a pattern, ``name=FILE``."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path

from optcc.discover.sysfs_tree import COPY
from optcc.errors import InputError
from optcc.machine.rdma import natural

MOST_SOURCES = 65536
"""As many as a list of hosts may have."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,254}")


@dataclass(frozen=True)
class Source:
    """A file, or a folder with a sysfs.

    name : the server's, from ``name=`` (then `given`), else the file's up to its first dot; empty where the source is
    the only one, so that nothing has to tell servers apart
    """

    path: str
    name: str = ""
    given: bool = False


def sources_of(texts: list[str]) -> list[Source]:
    """All files that `texts` stand for. Raises InputError for a folder or a pattern without any."""
    found = [one for text in texts for one in _expanded(text)]
    if len(found) > MOST_SOURCES:
        raise InputError("too many files", where=texts[0], expected=f"at most {MOST_SOURCES}", got=len(found))
    if len(found) == 1:
        return found
    return [one if one.name else Source(one.path, Path(one.path).name.partition(".")[0]) for one in found]


def _expanded(text: str) -> list[Source]:
    name, equals, path = text.partition("=")
    if equals and NAME.fullmatch(name) and not os.path.exists(text):
        return [Source(path, name, True)]
    if os.path.isdir(text) and not is_tree(text):
        paths = sorted((e.path for e in os.scandir(text) if not e.name.startswith(".")), key=natural)
        files = [path for path in paths if os.path.isfile(path) or is_tree(path)]
    elif glob.has_magic(text) and not os.path.exists(text):
        files = sorted(glob.glob(text), key=natural)
    else:
        return [Source(text)]
    if not files:
        hint = f"Or a copy of one server's sysfs. {COPY}"
        raise InputError("no file", where=text, expected="one for each host", got="none", hint=hint)
    return [Source(path) for path in files]


def is_tree(path: str) -> bool:
    """Whether a folder has one server's sysfs: ``class`` at its top, in sys/, or in the sys/ of its only folder."""
    if any(os.path.isdir(os.path.join(path, below, "class")) for below in ("", "sys")):
        return True
    try:
        folders = [entry.path for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        return False
    return len(folders) == 1 and os.path.isdir(os.path.join(folders[0], "sys/class"))
