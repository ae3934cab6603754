"""Reading files that somebody else names: regular ones alone, without waiting, and never more than asked for.

A FIFO would wait for its writer, a device may never end, and opening some devices does something.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
}


def kind_of(mode: int) -> str:
    """``a FIFO``, ``a socket``, ...; empty for a regular file. `mode` is `st_mode`."""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "a special file")


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, to read. Raises OSError, whose strerror says what is there instead of one."""
    _check(os.stat(path), path)  # before it is opened, and again after: it may be another one by then
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")  # noqa: SIM115
    try:
        _check(os.fstat(file.fileno()), path)
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: str | Path, most: int) -> bytes:
    """Up to `most` bytes of it. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read(most)


def _check(found: os.stat_result, path: str | Path) -> None:
    if kind := kind_of(found.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(code, f"{kind}, not a regular file", str(path))
