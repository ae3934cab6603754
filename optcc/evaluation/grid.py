"""What the evaluation computes: the full grid, and the quick one that CI runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from optcc.evaluation import rig
from optcc.evaluation.cells import FAULT_FREE, OPTCC, PER_CHUNK, PER_CHUNKS, EvaluationCell
from optcc.evaluation.rig import Rig
from optcc.evaluation.studies import Cost, Rails, Star

MIB, GIB = 2**20, 2**30
PUBLISHED = "optcc-published"
RIVALS = (PUBLISHED, "r2cc", "balance", "hot-repair")
SCHEMES = (OPTCC, *RIVALS)
TARGET = 0.01
"""Overhead over the fault-free ring above the unavoidable overhead, as a share, that a cell may have."""
TARGET_BYTES = 256 * MIB
"""Least size for which the target stands."""


@dataclass(frozen=True)
class FailurePattern:
    """`dead[i]` NICs of the i-th of `servers` servers are dead, or at `left` of their rate.

    staggered : see `EvaluationCell`
    """

    servers: int
    dead: tuple[int, ...]
    staggered: bool = False
    left: Fraction = Fraction(0)

    def cells(self, sizes: Iterable[int]) -> list[EvaluationCell]:
        """Our plan at these sizes."""
        return [
            EvaluationCell(self.servers, self.dead, n, OPTCC, staggered=self.staggered, left=self.left) for n in sizes
        ]


@dataclass(frozen=True)
class Fleet:
    """A job of `gpus` GPUs whose AllReduces are each among `servers` servers."""

    gpus: int
    servers: int


@dataclass(frozen=True)
class EvaluationGrid:
    """servers, dead, sizes : of the overhead and target tables; size : of those that have one; the rest belongs to
    one table each.

    per_chunks : seconds for a chunk in these two, the page's among them; up to `most_servers` all of them, with more
        servers the page's alone, since deep pipelines of many servers take long to simulate
    fleets : jobs of the training table
    """

    servers: tuple[int, ...]
    dead: tuple[int, ...]
    sizes: tuple[int, ...]
    size: int
    failures: tuple[FailurePattern, ...]
    message_sizes: tuple[int, ...]
    message_servers: int
    rails: tuple[Rails, ...]
    stars: tuple[Star, ...]
    costs: tuple[Cost, ...]
    fleets: tuple[Fleet, ...]
    most_servers: int
    per_chunks: tuple[Fraction, ...] = PER_CHUNKS

    def has(self, cell: EvaluationCell) -> bool:
        """Whether the tables of one straggler have its servers at its cost of a chunk."""
        return cell.per_chunk == PER_CHUNK or cell.servers <= self.most_servers

    def at_costs(self, servers: int, dead: int, nbytes: int, scheme: str) -> list[EvaluationCell]:
        """A straggler under one scheme at each of `per_chunks`."""
        return [EvaluationCell(servers, (dead,), nbytes, scheme, per_chunk=per_chunk) for per_chunk in self.per_chunks]

    def overheads(self) -> list[EvaluationCell]:
        """Every scheme on every straggler, at `size` and each cost."""
        kinds = product(self.servers, self.dead, (FAULT_FREE, *SCHEMES))
        return [c for p, d, s in kinds for c in self.at_costs(p, d, self.size, s) if self.has(c)]

    def targets(self) -> list[EvaluationCell]:
        """Our plan for every straggler, size and cost."""
        kinds = product(self.servers, self.dead, self.sizes)
        return [c for p, d, n in kinds for c in self.at_costs(p, d, n, OPTCC) if self.has(c)]

    def several(self) -> list[EvaluationCell]:
        """Our plan for every failure at every size, and the others at `size`."""
        found = []
        for f in self.failures:
            ours = f.cells(self.sizes)
            found += [*ours, *(replace(ours[0], nbytes=self.size, scheme=scheme) for scheme in RIVALS)]
        return found

    def chain(self, servers: int, scheme: str) -> list[EvaluationCell]:
        """1, 2, 3, ... servers with a dead NIC each, as far as section 3 has them, at `size`."""
        plain = [f for f in self.failures if f.servers == servers and not f.staggered and not f.left]
        counts = [len(f.dead) for f in plain if set(f.dead) == {1}]
        return [EvaluationCell(servers, (1,) * k, self.size, scheme) for k in sorted(counts)]

    def messages(self) -> list[EvaluationCell]:
        """Half a server's NICs dead, every message size."""
        schemes = (FAULT_FREE, *SCHEMES)
        return [EvaluationCell(self.message_servers, (4,), n, s) for n in self.message_sizes for s in schemes]

    def rigs(self) -> list[Rig]:
        """The rig's row at every cost."""
        return [Rig(scheme, per_chunk) for scheme in rig.SCHEMES for per_chunk in self.per_chunks]

    def cells(self) -> list[EvaluationCell]:
        """All cells, with the fault-free ring that each is held against."""
        found = [*self.overheads(), *self.targets(), *self.several(), *self.messages()]
        return list(dict.fromkeys([*found, *(cell.of(FAULT_FREE) for cell in found)]))


def _left(*parts: str) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, parts))


STARS = (
    *(Star(p, _left("1/2")) for p in (4, 8, 16, 32, 64)),
    *(Star(p, _left(*left)) for left in (("3/4",), ("7/8",), ("1/2",) * 2, ("1/2",) * 4, ("3/4",) * 2, ("7/8",) * 2)
      for p in (8, 16)),
)  # fmt: skip
ONE, FOUR = ((1, 0),), tuple((1, rail) for rail in range(4))
NONE, HALF = Fraction(0), Fraction(1, 2)
RAILS = tuple(
    Rails(8, 4, dead, spine, nbytes)
    for dead, spine in (
        (((1, 0),), None),
        (((1, 0), (1, 1)), None),
        (((1, 0), (2, 1)), None),
        (((1, 0), (1, 1), (2, 2), (2, 3)), None),
        (((1, 0), (2, 1), (3, 2), (4, 3)), None),
        (((1, 0), (1, 1)), 2),
        (((1, 0), (1, 1), (2, 2), (2, 3)), 2),
        (((1, 0), (2, 1), (3, 2), (4, 3)), 2),
    )
    for nbytes in (256 * MIB, GIB)
) + tuple(
    Rails(servers, 8, failed, None, nbytes, left)
    for servers, failed, left in (
        *((servers, ONE, NONE) for servers in (16, 64, 128)),
        (16, FOUR, NONE),
        *((servers, ONE, HALF) for servers in (8, 16, 64, 128)),
        (8, ((1, 0), (2, 1)), HALF),
        (16, FOUR, HALF),
    )
    for nbytes in (256 * MIB, GIB)
) + tuple(
    Rails(servers, 8, failed, factor, nbytes, pod=pod)
    for servers, pod, factor, failed in (
        (8, 4, 2, ONE), (16, 8, 2, ONE), (16, 8, 2, FOUR), (32, 8, 4, ONE), (64, 8, 4, ONE), (64, 8, 4, FOUR),
    )
    for nbytes in (256 * MIB, GIB)
)  # fmt: skip
SEVERE = ((4, 4), (4, 3), (4, 4, 4), (4, 1), (4, 2, 1), (3, 3), (5, 4), (6, 6))
FAILURES = (
    *(FailurePattern(16, (k,)) for k in range(1, 8)),
    *(FailurePattern(8, (1,) * k) for k in (2, 4, 8)),
    *(FailurePattern(16, (1,) * k) for k in range(2, 9)),
    *(FailurePattern(32, (1,) * k) for k in (2, 4, 8)),
    *(FailurePattern(128, (1,) * k) for k in (1, 2, 3, 4)),
    *(FailurePattern(p, (1,) * 4, staggered=True) for p in (8, 16, 32)),
    *(FailurePattern(p, dead) for dead in SEVERE for p in (8, 16, 32, 64)),
    *(FailurePattern(p, dead, left=HALF) for dead in ((1,), (1, 1), (4,)) for p in (8, 16, 64)),
)
FULL = EvaluationGrid(
    servers=(8, 16, 32, 64, 128),
    dead=(1, 2, 3, 4, 6),
    sizes=(256 * MIB, GIB, 4 * GIB),
    size=GIB,
    failures=FAILURES,
    message_sizes=tuple(2**i * MIB for i in range(0, 13, 2)),
    message_servers=16,
    rails=RAILS,
    stars=STARS,
    costs=(*(Cost(p, False) for p in (8, 32, 128)), *(Cost(p, True) for p in (8, 32, 128))),
    fleets=(Fleet(128, 16), Fleet(1024, 128), Fleet(16384, 128)),
    most_servers=32,
)
QUICK = EvaluationGrid(
    servers=(8, 16),
    dead=(1, 4),
    sizes=(256 * MIB, GIB),
    size=GIB,
    failures=(
        *(FailurePattern(8, (1,) * k) for k in (1, 2, 3)),
        FailurePattern(8, (4, 4)),
        FailurePattern(8, (1,), left=HALF),
    ),
    message_sizes=(MIB, 64 * MIB, GIB),
    message_servers=8,
    rails=RAILS[:1],
    stars=STARS[:2],
    costs=(Cost(8, False), Cost(8, True)),
    fleets=(Fleet(64, 8), Fleet(16384, 8)),
    most_servers=8,
)
