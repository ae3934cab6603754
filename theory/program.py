"""The optimum of AllReduce by pairs of trees on any network, as a linear program with cuts made on demand.

A capacitated digraph on the ranks supports AllReduce at rate R by tree pairs (an in-tree and an out-tree with one root
per element) under this condition. Its capacity splits into a broadcast part and a reduce part, and there are root
weights r >= 0 of sum R. For every set S of ranks, r(S) plus the broadcast capacity into S is at least R, and so is r(S)
plus the reduce capacity out of S. The condition is necessary and sufficient (Edmonds, "Edge-disjoint branchings", 1973;
max-flow min-cut makes cuts of flows). What the ways between ranks use of NICs, rails, NVLink ports and uplinks is
linear, so the largest R is a linear program, and T = n / R. Proof id linear-program in proofs/README.md. Where
capacities are equal both ways (id bidirected) or only ranks have limits (id attained), no protocol is faster, coded or
not. This holds for sums over a finite abelian group. In general, optimality over schedules that forward and add rests
on id tree-pairs, checked for P <= 6 and conjectured beyond; nothing is known of coded protocols.

Only violated cuts are generated. Solve, round to whole numbers, find each rank's flow from the roots, add the least cut
where a flow falls short; repeat. The solver is HiGHS' interior-point method without crossover. It ends in the middle of
the optimal face, where far fewer cuts are violated than at a vertex (48 servers, 4 rails: 1 round instead of 32). One
last solve with crossover gives sparse duals.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack
from scipy.sparse.csgraph import connected_components

from optcc.errors import InfeasibleError, OptccError
from optcc.theory.collectives import ALLREDUCE, BROADCAST_SIDE, REDUCE_SIDE, CollectiveKind
from optcc.theory.cuts import view_from
from optcc.theory.highs import LIMIT_S, maximised
from optcc.theory.maxflow import COARSE_BITS, FINE_BITS, flow_into
from optcc.theory.network import Network

MARGINS = (1e-7, 3e-7, 6e-7)
"""Cuts are asked to carry this part of R more than they need, so that after rounding flows of exactly R are still
there. It costs about as much of R, and stays inside the gap of 1e-6 that certificates allow. The next one is taken
where the solver's tolerance has eaten up the one before.
"""
MAX_ROUNDS = 60
"""After these the program gives up: no cluster of docs/bench-program.md takes more than 2."""


class ProgramError(OptccError):
    """The solver failed, or the cuts did not settle."""


@dataclass(frozen=True, eq=False)
class Cut:
    """r(S) + capacity into S (broadcast) or out of S (reduce) >= R, for a non-empty set S of nodes of a view."""

    view: int
    inside: NDArray[np.bool_]
    reduce: bool


@dataclass(frozen=True, eq=False)
class Primal:
    """A way to reach a rate. Integer arrays count in `unit` bytes per second.

    broadcast, reduce : (ways,) capacity of every pair of the way's orbit; roots : (types,) root weight of every rank
    flows : (view, reduce?) -> (nodes + 1, nodes + 1), followed from the roots (last row) to the view's rank (column 0);
    for reduce that is backwards
    """

    unit: Fraction
    broadcast: NDArray[np.int64]
    reduce: NDArray[np.int64]
    roots: NDArray[np.int64]
    flows: dict[tuple[int, bool], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Solution:
    """The program's answer: an exact primal, and the floating-point duals that `optcc.theory.certify` makes exact.

    cuts, cut_prices : the generated cuts and their duals; prices : float64 (resources,)
    rounds : how often cuts were added
    """

    primal: Primal
    cuts: tuple[Cut, ...]
    cut_prices: NDArray[np.float64]
    prices: NDArray[np.float64]
    rounds: int


@dataclass(frozen=True, eq=False)
class _Point:
    """One solve, in bytes per second."""

    rate: float
    broadcast: NDArray[np.float64]
    reduce: NDArray[np.float64]
    roots: NDArray[np.float64]
    cut_prices: NDArray[np.float64]
    prices: NDArray[np.float64]


class BoundProgram:
    """Solves one network for one collective, rooted at rank type `root` where it has one root.

    `views` holds the network as each rank type sees it.
    """

    def __init__(self, network: Network, collective: CollectiveKind = ALLREDUCE, root: int = 0) -> None:
        self.network, self.collective, self.root = network, collective, root
        self.weights = collective.weights(network, root)
        self.views = [view_from(network, t) for t in range(len(network.rank_types))]
        self.rates = np.array([float(r.rate) for r in network.resources])
        # With rates in and out equal, reduce can be broadcast backwards: one set of capacities serves both.
        self.mirror = network.reverse if len(collective.sides) == 2 else None
        self.sides = collective.sides if self.mirror is None else (BROADCAST_SIDE,)
        self._cuts: list[Cut] = []
        self._seen: set[tuple[int, bool, bytes]] = set()
        self._rows: list[csr_array] = []
        self._margins = list(MARGINS)

    def solve(self) -> Solution:
        """The optimum. Raises InfeasibleError when ranks are cut off, ProgramError when the solver fails."""
        self._check_connected()
        for index, view in enumerate(self.views):
            alone = np.arange(view.nodes) == 0
            for side in self.sides:
                self._add(Cut(index, alone, side))
                self._add(Cut(index, ~alone, side))
        for rounds in range(1, MAX_ROUNDS + 1):
            point = self._solve_once(vertex=False)
            primal, short = self._round(point)
            if not short:
                vertex = self._solve_once(vertex=True)
                return Solution(primal, tuple(self._cuts), vertex.cut_prices, vertex.prices, rounds)
            if not sum(self._add(cut) for cut in short):
                self._margins.pop(0)
                if not self._margins:
                    raise ProgramError("a cut that the solver was given is violated")
        raise ProgramError(f"cuts did not settle in {MAX_ROUNDS} rounds")

    def _add(self, cut: Cut) -> bool:
        """Add a cut unless it is there already; True when it is new."""
        key = (cut.view, cut.reduce, cut.inside.tobytes())
        if key in self._seen or not cut.inside.any():
            return False
        if self.weights is not None:
            outside = self.views[cut.view].members(~cut.inside, len(self.network.rank_types))
            if not outside @ self.weights:  # all roots are inside: nothing need enter, and the margin would demand it
                return False
        self._seen.add(key)
        self._cuts.append(cut)
        view, network = self.views[cut.view], self.network
        crossing = view.leaving(cut.inside) if cut.reduce else view.entering(cut.inside)
        ways = crossing[network.way_orbit].astype(np.float64)
        halves = [ways if side == cut.reduce else np.zeros(len(ways)) for side in self.sides]
        roots = view.members(cut.inside, len(network.rank_types))
        self._rows.append(csr_array(np.concatenate(([-1.0], roots, *halves))[None, :]))
        return True

    def _solve_once(self, *, vertex: bool) -> _Point:
        """The program over (R, roots, broadcast ways[, reduce ways]) with the cuts so far."""
        network, types, ways = self.network, len(self.network.rank_types), len(self.network.way_orbit)
        use = network.use.astype(np.float64)
        parts = [use] * len(self.sides) if self.mirror is None else [use + use[:, self.mirror]]
        load = hstack([csr_array((len(network.resources), 1 + types)), *parts])
        cuts = vstack(self._rows).tocsr()
        cuts.data[cuts.indices == 0] -= 0.0 if vertex else self._margins[0]
        roots = np.zeros((1 if self.weights is None else types, load.shape[1]))  # what they are of R
        if self.weights is None:
            roots[0, : 1 + types] = -1.0, *network.multiplicity
        else:
            roots[:, 0] = -self.weights / (network.multiplicity @ self.weights)
            roots[:, 1 : 1 + types] = np.eye(types)
        scale = self.rates.min()  # the solver's tolerances are absolute: make the smallest rate 1
        low = np.concatenate([np.zeros(len(self._cuts)), np.full(len(self.rates), -np.inf), np.zeros(len(roots))])
        high = np.concatenate([np.full(len(self._cuts), np.inf), self.rates / scale, np.zeros(len(roots))])
        rows = vstack([cuts, load, csr_array(roots)]).tocsr()
        found = maximised(np.eye(1, load.shape[1])[0], rows, low, high, vertex=vertex)
        if found is None:
            raise ProgramError(f"the solver found no optimum within {LIMIT_S:g} s: are the rates many orders apart?")
        value, prices = np.maximum(found[0], 0) * scale, np.abs(found[1])
        halves = dict(zip(self.sides, value[1 + types :].reshape(len(self.sides), ways), strict=True))
        if self.mirror is not None:
            halves[REDUCE_SIDE] = halves[BROADCAST_SIDE][self.mirror]
        return _Point(
            rate=float(value[0]),
            broadcast=halves.get(BROADCAST_SIDE, np.zeros(ways)),
            reduce=halves.get(REDUCE_SIDE, np.zeros(ways)),
            roots=value[1 : 1 + types],
            cut_prices=prices[: len(self._cuts)],
            prices=prices[len(self._cuts) :][: len(self.rates)],
        )

    def _round(self, point: _Point) -> tuple[Primal, list[Cut]]:
        """The point in whole numbers, within every resource, and the cuts that keep a rank from its flow of R."""
        unit = Fraction(point.rate) / 2 ** (COARSE_BITS + FINE_BITS)
        load = np.asarray(self.network.use @ (point.broadcast + point.reduce)) / self.rates
        shrink = (1 - 1e-12) / max(1.0, float(load.max())) / float(unit)
        # No pair needs more than R, and whole numbers should stay far from overflow.
        broadcast, reduce, roots = (
            np.floor(np.minimum(part, point.rate) * shrink).astype(np.int64)
            for part in (point.broadcast, point.reduce, point.roots)
        )
        if self.weights is not None:  # equal in whole numbers too
            roots = self.weights * int(roots[self.weights > 0].min())
        total, flows, short = int(self.network.multiplicity @ roots), {}, []
        for index, view in enumerate(self.views):
            for side in self.sides:
                capacity = view.capacity(self.network, reduce if side else broadcast)
                flow, inside = flow_into(capacity.T if side else capacity, roots[view.node_type] * view.size)
                flows[index, side] = flow
                if flow[:, 0].sum() < total:
                    short.append(Cut(index, inside, side))
            if self.mirror is not None:
                flows[index, REDUCE_SIDE] = flows[index, BROADCAST_SIDE]
        return Primal(unit, broadcast, reduce, roots, flows), short

    def _check_connected(self) -> None:
        """Raise InfeasibleError unless every rank reaches every other (or the root reaches, or is reached by, all).

        Capacities are all positive, so that this is enough for a rate above 0.
        """
        view = self.views[self.root]
        there = (view.capacity(self.network, np.ones(len(self.network.way_orbit), np.int64)) > 0).astype(np.int64)
        if self.collective.roots == "one":
            # Node 0 is the root: a way back to it from everywhere makes reachable and strongly connected the same.
            if self.sides == (BROADCAST_SIDE,):
                there[1:, 0] = 1
            else:
                there[0, 1:] = 1
        parts, part = connected_components(there, connection="strong")
        if parts > 1:
            smallest = int(np.argmin(np.bincount(part, view.size)))
            names = sorted({self.network.rank_types[t].name for t in view.node_type[part == smallest]})
            raise InfeasibleError(
                "no AllReduce is possible",
                where=", ".join(names[:4]) + (", ..." if len(names) > 4 else ""),
                expected="ways both to and from all other ranks",
                got="none one way",
                hint="Repair a NIC on a rail that others share, join the rails by a spine, or leave these servers out.",
            )
