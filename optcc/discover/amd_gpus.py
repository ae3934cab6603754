"""AMD's GPUs as ``rocm-smi --showtopo`` and ``amd-smi topology`` print them: how many, and whether xGMI joins them.

Neither has NICs: they are given beside a text that has. Rates of xGMI are not in them.
"""

from __future__ import annotations

import re
from dataclasses import replace

from optcc.discover.nccl_gpus import MAX_DEVICES
from optcc.discover.parts import TopologyPart, told
from optcc.errors import InputError

_TYPES = re.compile(r"Link Type between two GPUs|LINK TYPE TABLE")
_ROCM_ROW = re.compile(r"^\s*GPU(\d{1,4})\s+(\S.*?)\s*$")
_BDF = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_AMD_ROW = re.compile(rf"^\s*({_BDF})\s+(\S.*?)\s*$")
_LINK = re.compile(r"XGMI|PCIE|SELF|0|N/A|UNKNOWN")


def looks_like_amd(text: str) -> bool:
    """The heading of the table of links."""
    return _TYPES.search(text) is not None


def read_amd(text: str, path: str) -> TopologyPart:
    """GPUs and their links. Raises InputError where the table is not whole."""
    start = _TYPES.search(text)
    rows: dict[str, list[str]] = {}
    for line in text[start.end() :].splitlines()[1:] if start else []:
        row = _ROCM_ROW.match(line) or _AMD_ROW.match(line)
        cells = row[2].split() if row else []
        if row and all(_LINK.fullmatch(cell) for cell in cells):
            rows[row[1]] = cells
        elif rows and line.strip():
            break
    count = len(rows)
    wrong = next((name for name, cells in rows.items() if len(cells) != count), None)
    if not rows or wrong is not None or count > MAX_DEVICES:
        raise InputError(
            "a table of links that is not whole",
            where=path,
            expected="a row and a column for each GPU",
            got=f"{count} rows" if wrong is None else f"{len(rows[wrong])} cells in the row of {wrong}, {count} rows",
            hint="Was it wrapped by a narrow terminal, or cut?",
        )
    kinds = {cell for cells in rows.values() for cell in cells} & {"XGMI", "PCIE"}
    kind = "rocm-smi --showtopo" if start and "between" in start[0] else "amd-smi topology"
    joined = "xGMI" if "XGMI" in kinds else "PCIe" if kinds else "nothing that it tells"
    part = told(path, kind, (), range(count))
    return replace(part, read=f"{part.read}, joined by {joined}")
