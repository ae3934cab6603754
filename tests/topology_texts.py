"""Texts that readers of topologies are given, nvidia-smi's matrix for one, and what they must survive."""

from __future__ import annotations

from collections.abc import Callable

from optcc.discover import Topology
from optcc.discover.given import Given
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError

RATE = Given.parse("400Gb/s")
UNDERLINED, PLAIN = "\x1b[4m", "\x1b[0m"


def matrix(gpus: int, nics: list[str], cell: Callable[[str, str], str], *, tail: str = "0-47\t0\t\tN/A") -> str:
    """As the tool prints it, with tabs, and the header underlined."""
    columns = [f"GPU{i}" for i in range(gpus)] + nics
    head = "\t" + "\t".join(columns) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    lines = [UNDERLINED + head + PLAIN]
    for row in columns:
        cells = ["X" if row == column else cell(row, column) for column in columns]
        lines.append("\t".join([row, *(f" {c} " for c in cells)]) + (f"\t{tail}" if row.startswith("GPU") else "\t\t"))
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def legend(names: list[str]) -> str:
    return "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: {name}\n" for i, name in enumerate(names))


def hopper(row: str, column: str) -> str:
    """Eight GPUs, each with a NIC of its number behind its switch; NIC8 by itself."""
    if row[:3] == column[:3]:
        return "NV18" if row.startswith("GPU") else "SYS"
    return "PIX" if row[3:] == column[3:] else "NODE" if (int(row[3:]) < 4) == (int(column[3:]) < 4) else "SYS"


HOPPER = matrix(8, [f"NIC{i}" for i in range(9)], hopper) + legend([f"mlx5_{i}" for i in range(8)] + ["mlx5_bond_0"])


def survives(read: Callable[[], Topology]) -> None:
    """Only a cluster or an InputError that can be read; anything else is a traceback that a person would see."""
    try:
        found = read()
    except InputError as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 2000
    if message:
        return
    assert found.cluster.servers
    assert found.read
    assert all(len(note) < 2000 for note in found.notes)
    read_yaml(write_yaml(found.cluster, comments=found.notes).encode(), "again", Given())
