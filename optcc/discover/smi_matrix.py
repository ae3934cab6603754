"""The matrix of ``nvidia-smi topo -m`` as cells, once header, rows and legend agree.

A terminal that wraps lines, a copy that lost some, or two outputs in one file leave something that looks like a smaller
matrix. Whatever does not fit is refused: overlooked NICs would make a lower bound too high.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from optcc.discover.nccl_gpus import MAX_DEVICES
from optcc.discover.pasted import without_colours
from optcc.discover.topology import listed
from optcc.errors import InputError

GPU = re.compile(r"GPU[0-9]{1,4}")
_NIC = re.compile(r"NIC[0-9]{1,4}")
_CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A|-|C2C|DIS")
_LINK = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}):\s*(\S+)\s*")
_AFFINITIES = ("CPU", "NUMA", "GPU")  # CPU Affinity, NUMA Affinity, GPU NUMA ID
WRAPPED = "Was it wrapped by a narrow terminal, or cut? Write one server's to a file: nvidia-smi topo -m > topo.txt."


@dataclass(frozen=True)
class Matrix:
    """Names of `gpus` and `nics` in the columns' order; `cells` by row and column; `legend`: NIC0 -> mlx5_0, if any.

    line : of the header
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cells: dict[str, dict[str, str]]
    legend: dict[str, str]
    line: int


def parse_matrix(text: str, path: str) -> Matrix:
    """The only matrix of `text`. Raises InputError naming `path` and line where anything does not fit."""
    lines = without_colours(text).splitlines()
    head, columns = _header(lines, path)
    end = next((i for i in range(head + 1, len(lines)) if _ends(lines[i])), len(lines))
    cells: dict[str, dict[str, str]] = {}
    for i in range(head + 1, end):
        name, row = _row(lines[i].split(), columns, f"{path}:{i + 1}")
        if name in cells:
            raise InputError(
                "a row twice", where=f"{path}:{i + 1}", expected="each device once", got=name, hint=WRAPPED
            )
        cells[name] = row
    for i in (*range(head), *range(end, len(lines))):
        if _is_matrix(lines[i].split(), columns):
            what = "a line of a matrix outside of it: two outputs, or one in parts"
            got = " ".join(lines[i].split())[:60]
            raise InputError(what, where=f"{path}:{i + 1}", expected="one matrix", got=got, hint=WRAPPED)
    if missing := [name for name in columns if name not in cells]:
        expected = "a row for each GPU and each NIC of the header"
        raise InputError(
            "rows are missing", where=path, expected=expected, got=f"none of {listed(missing)}", hint=WRAPPED
        )
    _check_symmetry(cells, path)
    nics = tuple(name for name in columns if not GPU.fullmatch(name))
    gpus = tuple(name for name in columns if GPU.fullmatch(name))
    return Matrix(gpus, nics, cells, _legend(lines, nics, path), head + 1)


def _header(lines: Sequence[str], path: str) -> tuple[int, list[str]]:
    """Which line has the columns, and their names up to the affinities."""
    for i, line in enumerate(lines):
        words = line.split()
        if _is_header(words):
            ends = [words.index(end) for end in _AFFINITIES if end in words]
            columns = words[: min(ends, default=len(words))]
            if len(columns) > 2 * MAX_DEVICES or len(set(columns)) < len(columns):
                raise InputError("columns twice, or too many", where=f"{path}:{i + 1}", expected="each device once")
            return i, columns
    raise InputError("no line with the columns", where=path, expected="GPU0 GPU1 ..., as nvidia-smi topo -m prints")


def _is_header(words: Sequence[str]) -> bool:
    return bool(words) and bool(GPU.fullmatch(words[0])) and (len(words) == 1 or not _CELL.fullmatch(words[1]))


def _ends(line: str) -> bool:
    """Whether the matrix has ended: an empty line, the title of a legend, or the header of another matrix."""
    words = line.split()
    return not words or words[-1] == "Legend:" or (len(words) > 1 and _is_header(words))


def _row(words: Sequence[str], columns: Sequence[str], where: str) -> tuple[str, dict[str, str]]:
    """A row's name, and its cells by column."""
    if words[0] not in columns:
        got = " ".join(words)[:60]
        raise InputError(
            "a line that is not a row of the matrix",
            where=where,
            expected=f"one of {listed(list(columns))} first",
            got=got,
            hint=WRAPPED,
        )
    cells, rest = words[1 : 1 + len(columns)], words[1 + len(columns) :]
    wrong = next((cell for cell in cells if not _CELL.fullmatch(cell)), None)
    more = next((word for word in rest if _LINK.fullmatch(word)), None)
    if wrong is not None or more is not None or len(cells) < len(columns):
        raise InputError(
            f"a row of {words[0]} that does not fill its columns",
            where=where,
            expected=f"{len(columns)} cells such as X, NV18, PIX, SYS",
            got=wrong[:40] if wrong else "more" if more else f"{len(cells)} cells",
            hint=WRAPPED,
        )
    return words[0], dict(zip(columns, cells, strict=True))


def _is_matrix(words: Sequence[str], columns: Sequence[str]) -> bool:
    """A header or a row, or a part of one."""
    if not words:
        return False
    device = words[0] in columns or bool(GPU.fullmatch(words[0])) or bool(_NIC.fullmatch(words[0]))
    return device or (len(words) > 1 and all(_LINK.fullmatch(word) or _NIC.fullmatch(word) for word in words[:2]))


def _check_symmetry(cells: dict[str, dict[str, str]], path: str) -> None:
    """Raise InputError unless X is on the diagonal alone and both rows say the same of every two devices."""
    for row, across in cells.items():
        for column, cell in across.items():
            if (cell == "X") != (row == column) or cell != cells[column][row]:
                got = f"{cell} in the row of {row}, {cells[column][row]} in that of {column}"
                expected = "X where a row meets its own column, and the same in both rows elsewhere"
                raise InputError(
                    "cells that do not fit each other", where=path, expected=expected, got=got, hint=WRAPPED
                )


def _legend(lines: Sequence[str], nics: Sequence[str], path: str) -> dict[str, str]:
    """The names of NIC0, NIC1, ...; drivers that name NICs in the columns have none."""
    legend: dict[str, str] = {}
    for i, line in enumerate(lines):
        if match := _LEGEND.fullmatch(line):
            if match[1] in legend or match[2] in legend.values():
                raise InputError(
                    "a NIC twice in the legend", where=f"{path}:{i + 1}", expected="each NIC once", got=match[0].strip()
                )
            legend[match[1]] = match[2]
    numbered = [nic for nic in nics if _NIC.fullmatch(nic)]
    if legend and set(legend) != set(numbered):
        odd = [name for name in (*legend, *numbered) if (name in legend) != (name in numbered)]
        raise InputError(
            "the NIC legend and the header name different NICs",
            where=path,
            expected="a column for each NIC of the legend, and a line of the legend for each NIC",
            got=f"only one of the two has {listed(odd)}",
            hint=WRAPPED,
        )
    return legend
