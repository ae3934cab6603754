"""Packed trees: parts of the data, each reduced up an in-tree to its root and broadcast down an out-tree from there.

A weighted set of such tree pairs reaches the optimum on every fabric that optcc knows (`optcc.theory.packing` finds
one; proof id ``packed-trees``). The buffer is cut into segments, each of them among the trees. A rank sends to its
parent once all its children's parts have been folded into its own.

Without a limit, leaves would send all their segments at once, and incoming ports would carry segments not needed yet
while results wait. So a leaf of an in-tree holds back a segment until it has results of the segment a `window` before.
It waits for those of its own tree and of the next, which keeps both halves together, and trees in step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import isqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np

from optcc.schedule.assemble import Block, TemplateRow, assemble, cuts_by, even_cuts
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.recipe import (
    CandidateFamily,
    Costs,
    Recipe,
    Segments,
    Window,
    default_segments,
    require,
)
from optcc.schedule.routes import Routes, busiest_seconds
from optcc.schedule.tuned import MOST_ROOTS
from optcc.values.cluster import Cluster
from optcc.values.json_records import Index, Text

if TYPE_CHECKING:
    from optcc.theory.packing import Packing
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

# Arcs of trees: from rank to rank, and as text, as plan files tell them.


class Arc(NamedTuple):
    """A route from rank to rank: out by the NICs of rail `out`, in by the NICs of rail `into`; None: by all NICs."""

    src: int
    dst: int
    out: int | None = None
    into: int | None = None

    def __str__(self) -> str:
        return f"{self.src}>{self.dst}" + ("" if self.out is None else f"@{self.out}:{self.into}")

    @classmethod
    def read(cls, text: str) -> Arc:
        """What `str` wrote."""
        ends, _, rails = text.partition("@")
        return cls(*map(int, ends.split(">")), *map(int, rails.split(":") if rails else ()))

    def route(self, routes: Routes) -> int:
        """Index of its route. Raises InfeasibleError where the fabric has none."""
        if self.out is None or self.into is None:
            return routes(self.src, self.dst)
        return routes.by_rail(self.src, self.dst, self.out, self.into)


Arcs = Annotated[
    tuple[Arc, ...],
    Text(
        r"([0-9]{1,9}>[0-9]{1,9}(@[0-9]{1,9}:[0-9]{1,9})?( |$))*",
        "SRC>DST or SRC>DST@RAIL:RAIL, with spaces between",
        lambda text: tuple(map(Arc.read, text.split())),
        lambda arcs: " ".join(map(str, arcs)),
    ),
]


@dataclass(frozen=True)
class TreePair:
    """A tree up to a root, and one down from it.

    share : of the data; root : the rank that has the sums
    up, down : an arc for every other rank, as SRC>DST or SRC>DST@RAIL:RAIL, with spaces between
    """

    share: Fraction
    root: Index
    up: Arcs
    down: Arcs

    @property
    def hops(self) -> int:
        """How many transfers follow one another from the first send to the last landing."""
        return max((step.hop for step in _steps(self)), default=-1) + 1


class _Step(NamedTuple):
    """One transfer of a tree; `deps` are places in the list of steps."""

    arc: Arc
    hop: int
    reduces: bool
    deps: tuple[int, ...]


def _steps(tree: TreePair) -> list[_Step]:
    """The transfers of a tree pair, each after those it waits for."""
    below, above = _by(tree.up, "dst"), _by(tree.down, "src")
    leaving = {arc.src: arc for arc in tree.up}
    steps: list[_Step] = []
    sent: dict[int, int] = {}

    def folded(rank: int) -> tuple[int, ...]:
        return tuple(sent[arc.src] for arc in below.get(rank, ()))

    def hop_after(deps: tuple[int, ...]) -> int:
        return max((steps[i].hop + 1 for i in deps), default=0)

    outwards = [tree.root]
    for rank in outwards:
        outwards += [arc.src for arc in below.get(rank, ())]
    for rank in reversed(outwards[1:]):
        sent[rank] = len(steps)
        steps.append(_Step(leaving[rank], hop_after(folded(rank)), True, folded(rank)))
    reached = [(tree.root, folded(tree.root))]
    for rank, landed in reached:
        for arc in above.get(rank, ()):
            steps.append(_Step(arc, hop_after(landed), False, landed))
            reached.append((arc.dst, (len(steps) - 1,)))
    return steps


def _shortest(routes: Routes, ranks: int, root: int, share: Fraction) -> TreePair | None:
    """A route of fewest hops for every rank, the same up and down; None if some cannot be reached both ways."""
    above = {root: root}
    left = set(range(ranks)) - {root}
    reached = [root]
    for rank in reached:
        near = sorted(other for other in left if routes.exist(rank, other) and routes.exist(other, rank))
        above |= dict.fromkeys(near, rank)
        reached += near
        left -= set(near)
    if left:
        return None
    up = tuple(Arc(rank, above[rank]) for rank in reached[1:])
    return TreePair(share, root, up, tuple(Arc(arc.dst, arc.src) for arc in up))


def _by(arcs: Sequence[Arc], end: str) -> dict[int, list[Arc]]:
    found: dict[int, list[Arc]] = {}
    for arc in arcs:
        found.setdefault(getattr(arc, end), []).append(arc)
    return found


def _template(trees: Sequence[TreePair], routes: Routes) -> list[TemplateRow]:
    """One segment of all trees, each a section."""
    rows: list[TemplateRow] = []
    result: list[dict[int, int]] = []  # per tree: rank -> place of the transfer by which it gets the result
    for section, tree in enumerate(trees):
        base = len(rows)
        for arc, hop, reduces, deps in _steps(tree):
            stage = Stage.REDUCE_SCATTER if reduces else Stage.ALLGATHER
            rows.append(TemplateRow(section, arc.route(routes), hop, reduces, stage, tuple(base + dep for dep in deps)))
        result.append({routes.table[row.route].dst: base + i for i, row in enumerate(rows[base:]) if not row.reduce})
    for place, row in enumerate(rows):
        if row.reduce and not row.deps:
            leaf, section = routes.table[row.route].src, row.section
            seen = {result[other].get(leaf) for other in (section, (section + 1) % len(trees))}
            rows[place] = row._replace(credits=tuple(sorted(known for known in seen if known is not None)))
    return rows


@dataclass(frozen=True)
class PackedTrees(Recipe):
    """Weighted tree pairs.

    Attributes
    ----------
    trees : the pairs, shares of sum 1, none for a single rank
    segments : number of parts into which the data is cut along time
    window : number of segments that may be under way at once; 0 for two more than the deepest tree has hops
    """

    family: ClassVar[str] = "packed-trees"
    trees: tuple[TreePair, ...]
    segments: Segments
    window: Window = 0

    @property
    def under_way(self) -> int:
        """How many segments may be under way at once: by default one for each hop of one tree, and two more. With fewer
        ports wait, with more they fill up with segments that nobody needs yet."""
        return self.window or 2 + max((tree.hops + 1 for tree in self.trees), default=0) // 2

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """Transfers are in order of (segment, hop)."""
        routes, shares, blocks = Routes(cluster), [tree.share for tree in self.trees], list[Block]()
        if shares:
            cuts = even_cuts(0, nbytes, self.segments)
            lengths = np.diff(cuts).tolist()
            inner = {length: cuts_by(0, length, shares) for length in set(lengths)}
            bounds = cuts[:-1, None] + np.stack([inner[length] for length in lengths])
            blocks.append((_template(self.trees, routes), np.arange(self.segments), bounds))
        return assemble(cluster, nbytes, routes, blocks, self.under_way)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """From the shares, exactly: bytes rounded to whole granules are left out of account."""
        routes = Routes(cluster)
        carried: dict[int, Fraction] = {}
        for tree in self.trees:
            for arc in (*tree.up, *tree.down):
                route = arc.route(routes)
                carried[route] = carried.get(route, Fraction(0)) + tree.share
        return nbytes * busiest_seconds(routes.table, [carried[i] for i in range(len(carried))], cluster)

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless every pair spans the ranks by ways of `cluster`, and shares sum to 1."""
        ranks, routes = len(cluster.ranks), Routes(cluster)
        super().check(cluster)
        if ranks == 1:
            require(not self.trees, "trees", "none, since one rank has nothing to send", len(self.trees))
            return
        require(all(tree.share > 0 for tree in self.trees), "share", "above 0", [str(t.share) for t in self.trees][:8])
        total = sum((tree.share for tree in self.trees), Fraction(0))
        require(total == 1, "share", "shares of sum 1", total)
        for number, tree in enumerate(self.trees):
            where = f"tree {number}"
            require(0 <= tree.root < ranks, f"{where}, root", f"0 to {ranks - 1}", tree.root)
            others = [rank for rank in range(ranks) if rank != tree.root]
            for side, own, far in (("up", "src", "dst"), ("down", "dst", "src")):
                arcs: tuple[Arc, ...] = getattr(tree, side)
                once = sorted(getattr(arc, own) for arc in arcs) == others
                require(once, f"{where}, {side}", "one arc for every rank but the root", ", ".join(map(str, arcs)))
                joined, found = _by(arcs, far), [tree.root]
                for rank in found:
                    found += [getattr(arc, own) for arc in joined.get(rank, ())]
                missing = sorted(set(others) - set(found))
                require(not missing, f"{where}, {side}", "every rank joined to the root", f"ranks {missing} apart")
                for arc in arcs:
                    arc.route(routes)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        if not self.trees:
            return [("trees", "none: a single rank has nothing to send")]
        hops = [tree.hops for tree in self.trees]
        deep = f"{min(hops)} to {max(hops)}" if min(hops) < max(hops) else f"{hops[0]}"
        rooted: dict[int, Fraction] = {}
        for tree in self.trees:
            rooted[tree.root] = rooted.get(tree.root, Fraction(0)) + tree.share
        most = sorted(rooted, key=lambda rank: (-rooted[rank], rank))
        names = [f"{cluster.ranks[rank].name} {float(rooted[rank]) * 100:.3g} %" for rank in most[:6]]
        more = f" and {len(most) - 6} more" if len(most) > 6 else ""
        return [
            ("trees", f"{len(self.trees)} pairs, {deep} hops up and down"),
            ("roots", ", ".join(names) + more),
            ("segments", f"{self.segments}, {self.under_way} under way at once"),
        ]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """For any fabric, tried where all other families stay away from the bound: finding the trees takes longest."""

        @cache
        def packing() -> Packing:
            from optcc.theory.packing import pack_trees  # SciPy takes a while to load, and few plans come to this

            return pack_trees(cluster)

        def make(segments: int) -> PackedTrees:
            return PackedTrees(packing().trees, segments)

        least_s = float(bound.seconds + 2 * costs.alpha)
        return [CandidateFamily(cls.family, make, by_rate=False, costly=True, least_s=least_s)]

    @classmethod
    def at_once(cls, cluster: Cluster, bound: Bound, costs: Costs) -> PackedTrees | None:
        """Equal parts, each by the fewest hops to a root of its own and back; None where ranks cannot reach others."""
        ranks = len(cluster.ranks)
        roots = range(0, ranks, -(-ranks // MOST_ROOTS))
        routes = Routes(cluster)
        trees = [_shortest(routes, ranks, root, Fraction(1, len(roots))) for root in roots]
        found = tuple(filter(None, trees))
        if len(found) < len(trees):
            return None
        # k segments are filled for h hops, X h/k, and cost a port about a chunk o of every tree each: k R o.
        segments = default_segments(bound.nbytes, ranks, gpus=cluster.gpu_ranks)
        if costs.per_chunk:
            hops = max(tree.hops for tree in found)
            segments = max(1, min(segments, isqrt(int(bound.seconds * hops / (costs.per_chunk * len(found))))))
        return PackedTrees(found, segments)

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> PackedTrees:
        """Every arc between the ranks that take its ends' parts."""

        def moved(arcs: tuple[Arc, ...]) -> tuple[Arc, ...]:
            return tuple(arc._replace(src=to[arc.src], dst=to[arc.dst]) for arc in arcs)

        pairs = (TreePair(tree.share, to[tree.root], moved(tree.up), moved(tree.down)) for tree in self.trees)
        return replace(self, trees=tuple(pairs))
