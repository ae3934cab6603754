"""Writing files whole or not at all, and standard output; what cannot be written is told before long work begins.

A file is written beside its place under another name, brought to the disk, and only then gets its own: what was there
before stays until then. Whatever ends the writing deletes it; only a process that is killed leaves a .optcc-*.part. A
symbolic link stays a link, and the file that it leads to is replaced. ``-`` (and ``/dev/stdout``) is standard output;
that, devices, FIFOs and sockets are written to plainly, once all of it is there.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from optcc.errors import InputError

STDOUT = "-"
_STDOUT_NAMES = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
CLOSED_PIPE = 141
"""The exit status of programs that write to a pipe that is closed, as shells tell it."""
READER_WAIT_S = 10.0
"""How long a FIFO is waited for that nobody reads: its reader may be starting."""
_PROBE_BYTES = 4096
"""Written and deleted again, to see whether the disk is full."""
_EXPECTED = {
    errno.ENOENT: "a folder that exists",
    errno.ENOTDIR: "a folder that exists",
    errno.EISDIR: "the name of a file, not of a folder",
    errno.EACCES: "permission to write the file, and into its folder",
    errno.EPERM: "permission to write the file, and into its folder",
    errno.EROFS: "a file system that can be written to",
    errno.ENOSPC: "room on the disk",
    errno.EDQUOT: "room within the disk quota",
    errno.EFBIG: "a file system, and a limit (ulimit -f), that take files of this size",
    errno.EMFILE: "more file descriptors (ulimit -n)",
    errno.ENFILE: "more file descriptors in the whole system",
    errno.ENXIO: f"somebody who reads it within {READER_WAIT_S:g} s",
}


def is_stdout(path: Path | None) -> bool:
    """Whether `path` stands for standard output."""
    return path is not None and str(path) in _STDOUT_NAMES


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write to; `path` is that file once the context ends without an error.

    Raises InputError where it cannot be written; then nothing is left behind, and what was at `path` is unchanged.
    """
    with refusing(path):
        if is_plain(path):
            whole = io.BytesIO()
            yield whole
            _write_plainly(path, whole.getvalue())
            return
        number, part, target = _part(path)
        try:
            with open(number, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        finally:
            with suppress(OSError):
                os.unlink(part)


def write_file(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`, as `written` does."""
    with written(path) as file:
        file.write(data)


@contextmanager
def staged(files: dict[Path, bytes]) -> Iterator[list[Path]]:
    """The contents of `files` under other names, to be looked at; they get their own names when the context ends
    without an error. No path of `files` is one that `is_plain`. Raises InputError as `written` does.
    """
    parts: list[tuple[Path, Path, Path]] = []
    try:
        for path, data in files.items():
            with refusing(path):
                number, part, target = _part(path)
                parts.append((path, part, target))
                with open(number, "wb") as file:  # closed again: there may be a file for every rank
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
        yield [part for _, part, _ in parts]
        for path, part, target in parts:
            with refusing(path):
                os.replace(part, target)
    finally:
        for _, part, _ in parts:
            with suppress(OSError):
                os.unlink(part)


def _part(path: Path) -> tuple[int, Path, Path]:
    """A new file beside the one that `path` leads to, with its permissions: (descriptor, its name, the name to get)."""
    target = Path(os.path.realpath(path))
    found = _stat(target)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if found is not None and not os.access(target, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    part = target.with_name(f".optcc-{secrets.token_hex(6)}.part")
    number = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    if found is not None:
        with suppress(OSError):  # some file systems have no modes
            os.fchmod(number, stat.S_IMODE(found.st_mode))
    return number, part, target


def check_place(path: Path, make_folder: bool = False) -> None:
    """Raise InputError unless `path` can be written, before long work, so that a bad place costs nothing.

    make_folder : its folder is made where there is none. Leaves no file there, for the work may be interrupted.
    """
    if is_stdout(path):
        return  # that it is open is seen before any command begins
    with refusing(path):
        if is_plain(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        number, part, _ = _part(path)
        try:
            with open(number, "wb", buffering=0) as file:
                file.write(bytes(_PROBE_BYTES))
        finally:
            with suppress(OSError):
                os.unlink(part)


def is_plain(path: Path) -> bool:
    """Whether `path` is written to as it is: standard output, a device, a FIFO, or a descriptor under /dev/fd."""
    if is_stdout(path) or os.path.realpath(path.parent) == os.path.realpath("/proc/self/fd"):
        return True
    try:
        found = _stat(path)
    except OSError:
        return False
    return found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))


@contextmanager
def to_stdout() -> Iterator[None]:
    """For everything that goes to standard output: flushes it, and tells why it could not be written.

    Raises InputError for that; a pipe that nobody reads ends the process with `CLOSED_PIPE`, silently.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  else the interpreter complains once more on its way out
        if error.errno == errno.EPIPE:
            raise SystemExit(CLOSED_PIPE) from None  # whoever reads has read enough, which is no error
        raise _refusal("standard output", error) from None


def _write_plainly(path: Path, data: bytes) -> None:
    if is_stdout(path):
        with to_stdout():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        return
    with open(_open_plainly(path), "wb") as file:
        file.write(data)


def _open_plainly(path: Path) -> int:
    """A descriptor to write to; a FIFO that nobody reads raises ENXIO after a while, where opening it would hang."""
    deadline = time.monotonic() + READER_WAIT_S
    while True:
        try:
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
        else:
            os.set_blocking(number, True)
            return number


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Raises InputError, with what is short, for an error of writing `path`."""
    try:
        yield
    except OSError as error:
        raise _refusal(str(path), error) from None
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise InputError("cannot be written", where=str(path), expected="a path", got="a null byte in it") from None


def _refusal(where: str, error: OSError) -> InputError:
    expected = _EXPECTED.get(error.errno or 0, "a place that may be written to")
    return InputError("cannot be written", where=where, expected=expected, got=error.strerror or str(error))
