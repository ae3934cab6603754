"""What an unfinished sweep has done: JSON lines beside its output, one per job, so that it can go on after any end.

A line is written and flushed as soon as its job is done. A line that was cut off by the end of the process or of the
disk is dropped when the journal is opened again. Results of jobs that a changed grid no longer needs do no harm.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optcc.errors import InputError, OptccError
from optcc.sweep.cells import Job, Result

_HEADER = {"optcc-sweep-journal": 1}


class Journal:
    """The journal of the sweep that writes `output`; a context. One process at a time.

    results : what is done, by `Job.key`; damaged : lines that were no use
    Raises InputError when the journal cannot be used, or another sweep is at it.
    """

    def __init__(self, output: Path) -> None:
        self.path = journal_path(output)
        self._results: dict[str, Result] = {}
        self.damaged = 0
        with ExitStack() as undo:
            try:
                self._file = undo.enter_context(self.path.open("a+b"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError("another sweep writes it", where=str(output), expected="one sweep at a time") from None
            except OSError as error:
                place, expected = str(self.path), "a folder that exists and may be written to"
                raise InputError("cannot be written", where=place, expected=expected, got=error.strerror) from None
            self._load()
            undo.pop_all()

    @property
    def results(self) -> Mapping[str, Result]:
        """What is done so far."""
        return MappingProxyType(self._results)

    def add(self, jobs: Iterable[Job], results: Iterable[Result]) -> None:
        """Keep the results of `jobs`, and have them with the operating system before this returns."""
        lines = []
        for job, result in zip(jobs, results, strict=True):
            self._results[job.key] = result
            lines.append(_line({"key": job.key, **asdict(result)}))
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError as error:
            raise OptccError(
                f"{self.path}: cannot be written: {error.strerror}; what it holds so far is kept"
            ) from None

    def remove(self) -> None:
        """The sweep is complete: the journal has done its work."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._results:  # nothing to go on from
            self.remove()

    def _load(self) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        torn = lines.pop()  # what follows the last newline: nothing, or a line that was cut off
        if _value(lines[0]) != _HEADER if lines else not _line(_HEADER).startswith(torn):
            expected = "a journal of an unfinished sweep, or no such file"
            raise InputError("not a journal", where=str(self.path), expected=expected, hint="Move it out of the way.")
        for line in lines[1:]:
            record = _value(line)
            try:
                key = str(record.pop("key"))
                self._results[key] = Result(**record)
            except (AttributeError, KeyError, TypeError):
                self.damaged += 1
        if torn:
            self.damaged += 1
            os.ftruncate(self._file.fileno(), self._file.tell() - len(torn))
        if not lines:
            self._file.write(_line(_HEADER))
            self._file.flush()


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
