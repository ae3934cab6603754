"""Reading what a person or another program hands over: of bounded size, and never a wait for a device or a FIFO.

``-`` (and ``/dev/stdin``) is standard input, ``/dev/fd/N`` what the shell has opened for us; both are read as streams.
Everything else must be a regular file.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO
from weakref import WeakKeyDictionary

from optcc.errors import InputError
from optcc.files.regular import read_regular

STDIN = "-"
_STDIN_NAMES = (STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_DESCRIPTOR = re.compile(r"(?:/dev|/proc/self)/fd/([0-9]{1,9})")
_read: WeakKeyDictionary[BinaryIO, tuple[bytes, bool]] = WeakKeyDictionary()
"""What has been read of each stream, and whether that was all: a command may look at one twice (a plan? a grid?)."""


def is_stdin(path: str | Path) -> bool:
    """Whether `path` stands for standard input."""
    return str(path) in _STDIN_NAMES


def shown(path: str | Path) -> str:
    """How messages call `path`."""
    return "standard input" if is_stdin(path) else str(path)


def read_file(path: str | Path, most: int, *, what: str, expected: str, hint: str | None = None) -> bytes:
    """All bytes of `path`.

    most : bytes that it may have; no more than one beyond is ever read
    what, expected, hint : for messages, such as ``plan``, ``a plan file``, and where to get one
    Raises InputError for more bytes, for what is neither a regular file nor an open stream, or cannot be read.
    """
    where = shown(path)
    try:
        data = _bytes_of(path, most + 1)
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise InputError("cannot be read", where=where, expected=expected, got=got, hint=hint) from None
    if len(data) > most:
        raise InputError(f"too large for a {what}", where=where, expected=f"at most {most} bytes", got="more")
    return data


def beginning(path: str | Path, most: int) -> bytes:
    """The first `most` bytes of `path`; none where it cannot be read, which `read_file` then tells."""
    try:
        return _bytes_of(path, most)
    except (OSError, ValueError):
        return b""


def _bytes_of(path: str | Path, most: int) -> bytes:
    """Up to `most` bytes from the beginning. OSError or ValueError says why there are none."""
    if is_stdin(path):
        if sys.stdin is None:
            raise OSError(None, "it is closed")
        return _of_stream(sys.stdin.buffer, most)
    if descriptor := _DESCRIPTOR.fullmatch(str(path)):
        return _of_stream(_descriptor(int(descriptor[1])), most)
    return read_regular(path, most)


def _of_stream(stream: BinaryIO, most: int) -> bytes:
    data, whole = _read.get(stream, (b"", False))
    if not whole and len(data) < most:
        wanted = most - len(data)
        more = stream.read(wanted)
        data, whole = data + more, len(more) < wanted
        _read[stream] = data, whole
    return data[:most]


@cache
def _descriptor(number: int) -> BinaryIO:
    return open(number, "rb", closefd=False)
