"""What an unfinished computation has done: JSON lines beside its output, one per result, so that it can go on.

A line is with the operating system as soon as its result is there. A line that was cut off by the end of the process
or of the disk is dropped when the journal is opened again. Results that are no longer needed do no harm.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

from optcc.errors import InputError
from optcc.files.writing import refusing

R = TypeVar("R")


class Journal(Generic[R]):
    """The journal of what writes `output`; a context. One process at a time.

    what : whose, in one word; read : a result out of the fields of its line; code : of what computes, if that is part
    of what results depend on
    results : what is done, by key; damaged : lines that were no use
    Raises InputError when the journal cannot be used, or another process is at it.
    """

    def __init__(self, output: Path, what: str, read: Callable[[dict[str, Any]], R], *, code: str = "") -> None:
        self.path = journal_path(output)
        self.what, self._read = what, read
        self._header = {f"optcc-{what}-journal": 1} | ({"code": code} if code else {})
        self._results: dict[str, R] = {}
        self.damaged = 0
        with ExitStack() as undo:
            with refusing(self.path):
                self._file = undo.enter_context(self.path.open("a+b", buffering=0))
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    expected = f"one {what} at a time"
                    raise InputError(f"another {what} writes it", where=str(output), expected=expected) from None
                self._load()
            undo.pop_all()

    @property
    def results(self) -> Mapping[str, R]:
        """What is done so far."""
        return MappingProxyType(self._results)

    def add(self, results: Mapping[str, R]) -> None:
        """Keep results by their keys, and have them with the operating system before this returns.

        Raises InputError where they cannot be written; the file then holds what it held.
        """
        self._results |= results
        lines = [_line({"key": key, **self.fields(result)}) for key, result in results.items()]
        with refusing(self.path):
            self._write(b"".join(lines))

    def fields(self, result: R) -> dict[str, Any]:
        """What the line of a result, a dataclass, holds besides its key."""
        return asdict(result)  # type: ignore[call-overload, no-any-return]

    def remove(self) -> None:
        """All is done: the journal has done its work."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._results:  # nothing to go on from
            self.remove()

    def _load(self) -> None:
        self._file.seek(0)
        lines = self._file.readall().split(b"\n")
        torn = lines.pop()  # what follows the last newline: nothing, or a line that was cut off
        self._check_header(lines, torn)
        for line in lines[1:]:
            record = _value(line)
            try:
                key = str(record.pop("key"))
                self._results[key] = self._read(record)
            except (AttributeError, KeyError, TypeError):
                self.damaged += 1
        if torn:
            self.damaged += 1
            os.ftruncate(self._file.fileno(), self._file.tell() - len(torn))
        if not lines:
            try:
                self._write(_line(self._header))
            except OSError:
                self.remove()  # it holds nothing
                raise

    def _write(self, data: bytes) -> None:
        end = self._file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.ftruncate(self._file.fileno(), end)
            raise

    def _check_header(self, lines: list[bytes], torn: bytes) -> None:
        if _value(lines[0]) == self._header if lines else _line(self._header).startswith(torn):
            return
        found, hint = _value(lines[0]) if lines else None, "Move it out of the way."
        if isinstance(found, dict) and {**found, "code": None} == {**self._header, "code": None}:
            expected = "one that this code has begun, since results of other code may differ"
            raise InputError("begun by another version", where=str(self.path), expected=expected, hint=hint)
        expected = f"a journal of an unfinished {self.what}, or no such file"
        raise InputError("not a journal", where=str(self.path), expected=expected, hint=hint)


def journal_path(output: Path) -> Path:
    """Where the journal of `output` is."""
    return output.with_name(output.name + ".journal")


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
