"""Reading what a person or another program hands over: of bounded size, and never a wait for a device or a FIFO.

``-`` (and ``/dev/stdin``) is standard input, ``/dev/fd/N`` what the shell has opened for us; both are read as streams.
Everything else must be a regular file: a FIFO would wait for its writer, a device may never end. What a text is, is
told by its content: marks of an encoding, comments, declarations and banners may stand before it. What is taken away
leaves its line ends, so that messages about a line name the line of the file.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import stat
import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO
from weakref import WeakKeyDictionary

from optcc.errors import InputError

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


ZIP = b"PK\3\4"
"""What a zip begins with, and so a plan file."""
_TAR_SUM = re.compile(rb" *[0-7]{1,7}[ \0]*")
"""Of a header of a tarball, at its place there."""


def may_be_tree(path: str | Path) -> bool:
    """Whether `path` is a folder, or a file that is no text, as tarballs are."""
    head = b"" if is_stdin(path) else beginning(path, 512)
    packed = head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")) or _TAR_SUM.fullmatch(head[148:156]) is not None
    return os.path.isdir(path) or b"\0" in head or packed


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


MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
MOST_TRIES = 64
"""Lines that begin with a brace and are looked at for a JSON object."""
HEAD = 4096
"""Characters in which an object of many lines says what it is."""
_COMMENT = re.compile(r"<!--.*?-->|/\*.*?\*/", re.DOTALL)
_BRACE = re.compile(r'^[ \t]*\{(?=\s*")', re.MULTILINE)


def text_of(data: bytes) -> str:
    """The text, in UTF-8, or as its mark says. Raises UnicodeDecodeError."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding)
    return data.decode()


def from_first(pattern: str, text: str) -> str | None:
    """The text from the line on in which `pattern` stands first, outside of comments; None where it does not."""
    bare = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = re.search(rf"^[ \t]*(?:<[?!][^>]*>\s*)*({pattern})", bare, re.MULTILINE)
    return None if found is None else _after(bare, found.start(1))


def json_object(text: str, *names: str) -> str | None:
    """The text from the first JSON object on that has these names; None where there is none.

    Where an object cannot be parsed that has them somewhere, from there on: its reader says what is wrong with it.
    """
    if not all(f'"{name}"' in text for name in names):
        return None
    starts = [found.end() - 1 for found, _ in zip(_BRACE.finditer(text), range(MOST_TRIES), strict=False)]
    end = 0
    for start in (each for each in starts if each >= end):
        if not _is_line(text, start) and all(f'"{name}"' in text[start : start + HEAD] for name in names):
            return _after(text, start)
        try:
            found, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if set(names) <= found.keys():
            return _after(text, start)
    return _after(text, starts[0]) if starts else None


def _is_line(text: str, start: int) -> bool:
    """Whether the line may be an object of its own, as in a log."""
    return text[start : text.find("\n", start)].rstrip().endswith("}")


def _after(text: str, start: int) -> str:
    return "\n" * text.count("\n", 0, start) + text[start:]
