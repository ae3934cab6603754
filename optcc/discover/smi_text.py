"""The matrix that ``nvidia-smi topo -m`` prints: one server's GPUs and NICs, and how near they are to each other.

Columns and rows are GPUs, then NICs. Drivers up to about 450 use the NICs' own names; later ones use NIC0, NIC1, ...
with a legend at the end. A cell names the path: NV# that many NVLinks, PIX one PCIe bridge, PXB several, PHB a host
bridge. NODE is the host bridges of one NUMA node, SYS (SOC at first) the link between sockets. Rates are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from optcc.discover.given import Given
from optcc.discover.nccl_xml import IN_YAML, LOST_NVLINK
from optcc.discover.nic_choice import LISTED, MAX_DEVICES
from optcc.discover.pasted import without_colours
from optcc.discover.rails import Clue, Clues
from optcc.discover.topology import Assumed, Topology, counted, deal, describe, listed, located
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server

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


_NEARNESS = ("PIX", "PSB", "PXB", "PHB", "NODE", "SYS", "SOC")
_SWITCHED = 3  # so many of them cross PCIe switches alone
_LINK_GBPS = {18: "20.6"}
_LINK_OTHER = "20"
"""GB/s each way of an NVLink, NCCL's figures (src/graph/topo.h): 18 are Hopper's, or Blackwell's at twice that."""


_MOST_LINKS = 18
"""NVLinks of one GPU: 6 of V100, 12 of A100, 18 of H100 and B200."""


def looks_like_smi(text: str) -> bool:
    """A line that begins with GPU0 or so, and no line that begins a YAML topology."""
    lines = [line.split() for line in text.splitlines()[:2000]]
    rows = any(words and GPU.fullmatch(words[0]) for words in lines)
    return rows and not any(words and words[0].startswith("optcc:") for words in lines)


def smi_server(text: str, path: str, given: Given) -> tuple[Topology, Clues]:
    """The one server of the matrix, server0, and the GPUs nearest to its NICs, which tell their rails.

    Raises InputError naming `path` and line, or asking for --nic-rate.
    """
    matrix = parse_matrix(text, path)
    gpus, cards, rows = matrix.gpus, matrix.nics, matrix.cells
    assumed = Assumed()
    names = {card: matrix.legend.get(card, card) for card in cards}
    if any(re.fullmatch("NIC[0-9]+", name) for name in names.values()):
        assumed.add(path, "no NIC legend; NICs go by their numbers", "the output with its legend")
    kept = [card for card in cards if given.wanted(names[card]) is not False]
    if not kept:
        if cards:
            given.check_seen()
        raise InputError(
            "no NIC in the matrix",
            where=f"{path}:{matrix.line}",
            expected="columns NIC0, NIC1, ... or mlx5_0, ...",
            got=listed(gpus),
            hint="nvidia-smi shows RDMA devices only where their driver is loaded; or give optcc's YAML.",
        )
    near, level = _near(kept, gpus, rows)
    chosen = _for_training(kept, level, names, given, path, assumed)
    rates = {card: given.rate_of(names[card]) or given.nic_rate for card in chosen}
    if missing := [names[card] for card, rate in rates.items() if rate is None]:
        raise InputError(
            "nvidia-smi does not tell the rates of NICs",
            where=path,
            expected="--nic-rate, such as --nic-rate 400Gb/s",
            got=f"none for {listed(missing)}",
        )
    if min(level[card] for card in chosen) >= _SWITCHED:
        how = "no NIC shares a PCIe switch with a GPU, as on virtual machines; the nearest GPUs are taken in order"
        assumed.add(path, how, "optcc topo ... -o FILE.yaml, and gpu: of each NIC in that file")
    beside = deal([near[card] for card in chosen])
    with located(path):
        nics = tuple(
            Nic(names[card], rates[card] or Fraction(0), rates[card] or Fraction(0), gpu=beside[i])
            for i, card in enumerate(chosen)
        )
        server = Server("server0", nics, len(gpus), _nvlink_rate(gpus, rows, path, assumed))
    found = f"{counted(len(gpus), 'GPU')}, {counted(len(cards), 'NIC')} ({listed(list(names.values()))})"
    read = f"{path}: nvidia-smi topo -m: {found}"
    cluster = Cluster((server,))
    numbers = [int(gpu[3:]) for gpu in gpus]
    clues = {("server0", names[card]): Clue(tuple(numbers[g] for g in near[card])) for card in chosen}
    return Topology(cluster, assumed.all(), (read, *describe(cluster))), clues


def _near(
    cards: Sequence[str], gpus: Sequence[str], rows: dict[str, dict[str, str]]
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """For each NIC its nearest GPUs, and how near those are: a position in _NEARNESS, its length for unknown."""
    near, level = {}, {}
    for card in cards:
        cells = [rows[gpu][card] for gpu in gpus]
        places = [_NEARNESS.index(cell) if cell in _NEARNESS else len(_NEARNESS) for cell in cells]
        level[card] = min(places)
        near[card] = [g for g, place in enumerate(places) if place == level[card]]
    return near, level


def _for_training(
    cards: list[str], level: dict[str, int], names: dict[str, str], given: Given, path: str, assumed: Assumed
) -> list[str]:
    """NICs that share a PCIe switch with a GPU, where there are such; the others are for management or storage."""
    if min(level.values()) >= _SWITCHED:
        return cards
    chosen = []
    for card in cards:
        if level[card] < _SWITCHED or given.wanted(names[card]):
            chosen.append(card)
        else:
            reason = "skipped as a management or storage port: no GPU behind its PCIe switch, where other NICs have one"
            assumed.add(f"{path}: {names[card]}", reason, LISTED)
    return chosen


def _nvlink_rate(gpus: Sequence[str], rows: dict[str, dict[str, str]], path: str, assumed: Assumed) -> Fraction:
    """Bytes per second each way over all NVLinks of one GPU; of those that have any, the GPU with the least."""
    links: dict[str, int] = {}
    paired = False
    for gpu in gpus:
        counts = [int(rows[gpu][other][2:]) for other in gpus if rows[gpu][other].startswith("NV")]
        # More links than a GPU has: each cell is all of them, which lead to a switch. Else each has links of its own.
        switched = sum(counts) > _MOST_LINKS
        paired |= not switched and len(counts) > 1
        links[gpu] = max(counts) if switched else sum(counts)
    least = min((count for count in links.values() if count), default=0)
    if not least:
        return Fraction(0)
    each = _LINK_GBPS.get(max(links.values()), _LINK_OTHER)
    kind = f"{least} NVLinks per GPU at {each} GB/s each way; the text does not name the generation"
    pairs = "; they join GPUs in pairs, and a GPU's links together count as its one port" if paired else ""
    differ = "; GPUs differ, the least is taken for all" if len(set(links.values()) - {0}) > 1 else ""
    assumed.add(path, kind + pairs + differ, IN_YAML)
    for gpu in (gpu for gpu, count in links.items() if not count):
        assumed.add(f"{path}: {gpu}", LOST_NVLINK, IN_YAML)
    return least * Fraction(each) * 10**9
