"""The table of a sweep as a file, CSV or Parquet, whole or not at all."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from optcc.errors import InputError
from optcc.files.writing import check_place, refusing, written
from optcc.study.cells import COLUMNS, Row

BATCH = 50_000
"""Rows of one Parquet row group; so many are in memory at a time."""


def check_output(path: Path) -> None:
    """Raise InputError unless `write_table` can make `path`, as far as its name, place and packages go."""
    if path.suffix not in (".csv", ".parquet"):
        raise InputError("unknown kind of table", where=str(path), expected="a name ending in .csv or .parquet")
    check_place(path)
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(
            "pyarrow is not installed",
            where=str(path),
            expected="the extra `parquet`",
            hint="In a checkout of optcc: pip install '.[parquet]', or write CSV.",
        )


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Write `rows` to `path`; what was there before stays until all of it is written. Raises InputError when it fails.

    CSV has a header, empty fields for None, and numbers that read back the same. Parquet has typed columns.
    """
    check_output(path)
    with written(path) as file:
        (_write_csv if path.suffix == ".csv" else _write_parquet)(file, rows)


def is_table(path: Path, rows: Iterable[Row]) -> bool:
    """Whether `path` holds what `write_table` would write there."""
    whole = io.BytesIO()
    (_write_csv if path.suffix == ".csv" else _write_parquet)(whole, rows)
    with refusing(path):
        return path.stat().st_size == len(whole.getbuffer()) and path.read_bytes() == whole.getvalue()


def _write_csv(file: BinaryIO, rows: Iterable[Row]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    text.detach()  # which flushes, and leaves the file open


def _write_parquet(file: BinaryIO, rows: Iterable[Row]) -> None:
    import pyarrow
    import pyarrow.parquet

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for batch in _batches(rows):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rest = iter(rows)
    while batch := list(islice(rest, BATCH)):
        yield batch
