"""What an unfinished computation has done: an SQLite file beside its output, a row per result, so that it can go on.

A result is with the operating system before `add` returns, whole or not at all, whenever the process is killed. Results
that are no longer needed do no harm.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Generic, Self, TypeVar

from optcc.errors import InputError

R = TypeVar("R")


class Journal(Generic[R]):
    """The journal of what writes `output`; a context. One process at a time.

    what : whose, in one word; kind : the dataclass of results; code : of what computes, if that is part of what results
    depend on
    results : what is done, by key
    Raises InputError when the journal cannot be used, or another process is at it.
    """

    def __init__(self, output: Path, what: str, kind: Callable[..., R], *, code: str = "") -> None:
        self.path = journal_path(output)
        self.results: dict[str, R] = {}
        self._what, self._output = what, output
        is_new = not self.path.exists()
        with self._refusing():
            self._rows = sqlite3.connect(self.path, timeout=0, isolation_level="EXCLUSIVE")
        try:
            with self._refusing():
                self._begin(code)
                for key, fields in self._rows.execute("SELECT key, fields FROM results"):
                    self.results[key] = kind(**json.loads(fields))
        except InputError:
            self._rows.close()
            if is_new:
                self.path.unlink(missing_ok=True)
            raise

    def _begin(self, code: str) -> None:
        """Lock the file, and make it where it is empty. A file that is no journal is left as it is."""
        self._rows.execute("PRAGMA locking_mode = EXCLUSIVE")
        with self._rows:
            self._rows.execute("BEGIN EXCLUSIVE")
            tables = {name for (name,) in self._rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                self._rows.execute("CREATE TABLE journal (what TEXT, code TEXT)")
                self._rows.execute("CREATE TABLE results (key TEXT PRIMARY KEY, fields TEXT)")
                self._rows.execute("INSERT INTO journal VALUES (?, ?)", (self._what, code))
            elif tables != {"journal", "results"}:
                raise self._not_a_journal()
            ((what, begun_by),) = self._rows.execute("SELECT what, code FROM journal")
        if what != self._what:
            raise self._not_a_journal()
        if begun_by != code:
            raise InputError(
                "begun by another version",
                where=str(self.path),
                expected="one that this code has begun, since results of other code may differ",
                hint="Move it out of the way.",
            )
        self._rows.execute("PRAGMA journal_mode = WAL")  # rows reach the operating system without a wait for the disk
        self._rows.execute("PRAGMA synchronous = NORMAL")

    def add(self, results: Mapping[str, R]) -> None:
        """Keep results by their keys. Raises InputError where they cannot be written; the file then holds what it
        held."""
        rows = [(key, json.dumps(asdict(result))) for key, result in results.items()]  # type: ignore[call-overload]
        with self._refusing(), self._rows:
            self._rows.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", rows)
        self.results |= results

    def remove(self) -> None:
        """All is done: the journal has done its work."""
        self._rows.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        if not self.results:  # nothing to go on from
            self.remove()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            kind = error.sqlite_errorcode & 0xFF
            if kind == sqlite3.SQLITE_BUSY:
                what, expected = f"another {self._what} writes it", f"one {self._what} at a time"
                raise InputError(what, where=str(self._output), expected=expected) from None
            if kind in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise self._not_a_journal() from None
            expected = "room on the disk, and a limit (ulimit -f) that takes files of this size"
            raise InputError("cannot be written", where=str(self.path), expected=expected, got=str(error)) from None

    def _not_a_journal(self) -> InputError:
        expected = f"a journal of an unfinished {self._what}, or no such file"
        return InputError("not a journal", where=str(self.path), expected=expected, hint="Move it out of the way.")


def journal_path(output: Path) -> Path:
    """Where the journal of `output` is."""
    return output.with_name(output.name + ".journal")
