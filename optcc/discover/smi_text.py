"""The matrix that ``nvidia-smi topo -m`` prints: one server's GPUs and NICs, and how near they are to each other.

Columns and rows are GPUs, then NICs. Drivers up to about 450 use the NICs' own names; later ones use NIC0, NIC1, ...
with a legend at the end. A cell names the path: NV# that many NVLinks, PIX one PCIe bridge, PXB several, PHB a host
bridge. NODE is the host bridges of one NUMA node, SYS (SOC at first) the link between sockets. Rates are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from optcc.discover.given import Given
from optcc.discover.nccl_gpus import IN_YAML, LOST_NVLINK
from optcc.discover.nearness import deal
from optcc.discover.nic_choice import LISTED
from optcc.discover.rails import Clue, Clues
from optcc.discover.smi_matrix import GPU, parse_matrix
from optcc.discover.topology import Assumed, Topology, counted, describe, listed, located
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server

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
