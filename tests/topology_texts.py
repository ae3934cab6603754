"""Topologies of one text alone; texts that readers are given, what breaks them, and what they must survive."""

from __future__ import annotations

import random
from collections.abc import Callable

from optcc.discover.given import Given
from optcc.discover.nccl_xml import nccl_servers
from optcc.discover.rails import on_rails
from optcc.discover.smi_text import smi_server
from optcc.discover.topology import Topology
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError

# A topology of one text alone, with its NICs on rails.


def read_nccl_xml(data: bytes, path: str, given: Given) -> Topology:
    """The servers of a dump."""
    return on_rails(lambda given: nccl_servers(data, path, given), given)


def read_smi(text: str, path: str, given: Given) -> Topology:
    """The server of a matrix."""
    return on_rails(lambda given: smi_server(text, path, given), given)


# Files that are broken at random.


TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b":", b": ", b",", b"\n", b"\t", b"\0", b"\xff", b"# ", b"&a ", b"*a"),
    *(b"<", b"</", b"/>", b">", b"&a;", b"<!DOCTYPE"),
    *(b"-1", b"0", b"9" * 24, b"nan", b"1e999", b"null", b"server0", b"server1", b"NCCL INFO "),
]


def changed(data: bytes, rng: random.Random) -> bytes:
    """One change: cut, delete, repeat, overwrite or insert, at a random place."""
    i, length = rng.randrange(len(data) + 1), rng.randint(0, 60)
    new = rng.choice(TOKENS) if rng.random() < 0.8 else rng.randbytes(rng.randint(0, 8))
    kind = rng.choice(("cut", "delete", "repeat", "overwrite", "insert", "digit"))
    if kind == "digit" and (digits := [k for k, byte in enumerate(data) if 48 <= byte <= 57]):
        i, new = rng.choice(digits), str(rng.randrange(10)).encode()
    return {
        "cut": data[:i],
        "delete": data[:i] + data[i + length :],
        "repeat": data[: i + length] + data[i:],
        "insert": data[:i] + new + data[i:],
    }.get(kind, data[:i] + new + data[i + len(new) :])


def mutated(text: str, rng: random.Random) -> str:
    """One to four changes."""
    data = text.encode()
    for _ in range(rng.randint(1, 4)):
        data = changed(data, rng)
    return data.decode("utf-8", "replace")


# Texts that readers of topologies are given, nvidia-smi's matrix for one, and what they must survive.


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


def survives(read: Callable[[], Topology], named: str = "") -> None:
    """Only a cluster or an InputError that can be read, and which `named`, where the fault is, comes first in; anything
    else is a traceback that a person would see."""
    try:
        found = read()
    except InputError as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 2000
    if message:
        assert message.startswith(named)
        return
    assert found.cluster.servers
    assert found.read
    assert all(len(note) < 2000 for note in found.notes)
    read_yaml(write_yaml(found.cluster, comments=found.notes).encode(), "again", Given())
