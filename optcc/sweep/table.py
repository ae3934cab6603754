"""The table of a sweep as a file, CSV or Parquet, whole or not at all."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from optcc.errors import InputError
from optcc.sweep.cells import COLUMNS, Row

BATCH = 50_000
"""Rows of one Parquet row group; so many are in memory at a time."""


def check_output(path: Path) -> None:
    """Raise InputError unless `write_table` can make `path`, as far as its name, folder and packages go."""
    if path.suffix not in (".csv", ".parquet"):
        raise InputError("unknown kind of table", where=str(path), expected="a name ending in .csv or .parquet")
    if not path.parent.is_dir():
        raise InputError("cannot be written", where=str(path), expected="a folder that exists", got=str(path.parent))
    if path.is_dir():
        raise InputError("cannot be written", where=str(path), expected="the name of a file", got="a folder")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(
            "pyarrow is not installed",
            where=str(path),
            expected="the extra `parquet`",
            hint="pip install 'optcc-toolkit[parquet]', or write CSV.",
        )


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Write `rows` to `path`; what was there before stays until all of it is written. Raises InputError when it fails.

    CSV has a header, empty fields for None, and numbers that read back the same. Parquet has typed columns.
    """
    check_output(path)
    partial = path.with_name(path.name + ".partial")
    try:
        (_write_csv if path.suffix == ".csv" else _write_parquet)(partial, rows)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        expected = "a folder that may be written to, with room"
        raise InputError("cannot be written", where=str(path), expected=expected, got=error.strerror) from None
    finally:
        partial.unlink(missing_ok=True)


def _write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, rows: Iterable[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for batch in _batches(rows):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rest = iter(rows)
    while batch := list(islice(rest, BATCH)):
        yield batch
