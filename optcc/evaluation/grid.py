"""What the evaluation computes: the full grid, and the quick one that CI runs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from optcc.evaluation.cells import FAULT_FREE, OPTCC, Cell
from optcc.evaluation.studies import Cost, Rails, Star

MIB, GIB = 2**20, 2**30
RIVALS = ("optcc-published", "r2cc", "balance", "hot-repair")
SCHEMES = (OPTCC, *RIVALS)
TARGET = 0.01
"""Overhead over the fault-free ring above the unavoidable overhead, as a share, that a cell may have."""


@dataclass(frozen=True)
class Grid:
    """servers, dead, sizes : of the overhead and target tables; the rest belongs to one table each."""

    servers: tuple[int, ...]
    dead: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int
    failures: int
    failures_servers: int
    message_sizes: tuple[int, ...]
    message_servers: int
    rails: tuple[Rails, ...]
    stars: tuple[Star, ...]
    costs: tuple[Cost, ...]

    def overheads(self) -> list[Cell]:
        """Every scheme on every straggler, at `size`."""
        return [Cell(p, (d,), self.size, s) for p in self.servers for d in self.dead for s in (FAULT_FREE, *SCHEMES)]

    def targets(self) -> list[Cell]:
        """Our plan for every straggler and size."""
        return [Cell(p, (d,), n, OPTCC) for p in self.servers for d in self.dead for n in self.sizes]

    def several(self) -> list[Cell]:
        """1 to `failures` dead NICs, on one server and on as many servers."""
        counts = range(1, self.failures + 1)
        dead = [(k,) for k in counts if k < 8] + [(1,) * k for k in counts]
        schemes = (OPTCC, "balance")
        return [Cell(self.failures_servers, d, self.size, s) for d in dict.fromkeys(dead) for s in schemes]

    def messages(self) -> list[Cell]:
        """Half a server's NICs dead, every message size."""
        schemes = (FAULT_FREE, *SCHEMES)
        return [Cell(self.message_servers, (4,), n, s) for n in self.message_sizes for s in schemes]

    def claimed(self) -> Cell:
        """The case that R2CC's paper states a figure for."""
        return Cell(8, (4,), self.size, "r2cc")

    def cells(self) -> list[Cell]:
        """All cells, with the fault-free ring that each is held against."""
        found = [*self.overheads(), *self.targets(), *self.several(), *self.messages(), self.claimed()]
        return list(dict.fromkeys([*found, *(cell.of(FAULT_FREE) for cell in found)]))


def _left(*parts: str) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, parts))


STARS = (
    *(Star(p, _left("1/2")) for p in (4, 8, 16, 32, 64)),
    *(Star(p, _left(*left)) for left in (("3/4",), ("7/8",), ("1/2",) * 2, ("1/2",) * 4, ("3/4",) * 2, ("7/8",) * 2)
      for p in (8, 16)),
)  # fmt: skip
RAILS = (
    Rails(8, 4, ((1, 0),), None, GIB),
    Rails(8, 4, ((1, 0), (1, 1)), None, GIB),
    Rails(8, 4, ((1, 0), (2, 1)), None, GIB),
    Rails(8, 4, ((1, 0), (2, 1), (3, 2), (4, 3)), None, GIB),
    Rails(8, 4, ((1, 0), (1, 1)), 2, GIB),
    Rails(8, 4, ((1, 0), (2, 1), (3, 2), (4, 3)), 2, GIB),
)
FULL = Grid(
    servers=(8, 16, 32, 64, 128),
    dead=(1, 2, 3, 4, 6),
    sizes=(256 * MIB, GIB, 4 * GIB),
    size=GIB,
    failures=8,
    failures_servers=16,
    message_sizes=tuple(2**i * MIB for i in range(0, 13, 2)),
    message_servers=16,
    rails=RAILS,
    stars=STARS,
    costs=(*(Cost(p, False) for p in (8, 32, 128)), *(Cost(p, True) for p in (8, 32, 128))),
)
QUICK = Grid(
    servers=(8, 16),
    dead=(1, 4),
    sizes=(256 * MIB, GIB),
    size=GIB,
    failures=3,
    failures_servers=8,
    message_sizes=(MIB, 64 * MIB, GIB),
    message_servers=8,
    rails=RAILS[:1],
    stars=STARS[:2],
    costs=(Cost(8, False), Cost(8, True)),
)
