"""The optimum of AllReduce by pairs of trees on any network, as a linear program with cuts made on demand.

A capacitated digraph on the ranks supports AllReduce at rate R by tree pairs (an in-tree and an out-tree with one root
per element) under this condition. Its capacity splits into a broadcast part and a reduce part, and there are root
weights r >= 0 of sum R. For every set S of ranks, r(S) plus the broadcast capacity into S is at least R, and so is r(S)
plus the reduce capacity out of S. The condition is necessary and sufficient (Edmonds, "Edge-disjoint branchings", 1973;
max-flow min-cut makes cuts of flows). What the ways between ranks use of NICs, rails, NVLink ports and uplinks is
linear, so the largest R is a linear program, and T = n / R. Proof id linear-program in proofs/README.md.

For sums over a finite abelian group no protocol is faster, coded or not, where capacities are equal both ways (id
bidirected), where only ranks have limits (id attained), and where a dual has only cuts that hold for every protocol (id
half-program). So elsewhere the program is solved again with no other cuts, and where that gives the same rate, its dual
is the certificate: on all rails with unequal rates that were tried. In general, optimality over schedules that forward
and add rests on id tree-pairs, checked for P <= 6 and conjectured beyond.

Only violated cuts are generated. Solve, round to whole numbers, find each rank's flow from the roots, add the least cut
where a flow falls short; repeat. The solver is HiGHS' interior-point method without crossover. It ends in the middle of
the optimal face, where far fewer cuts are violated than at a vertex (48 servers, 4 rails: 1 round instead of 32). One
last solve with crossover gives sparse duals.

What the solver found is rounded to rationals, and both sides are checked exactly (`optcc.theory.certificates`).

HiGHS: Huangfu and Hall, "Parallelizing the dual revised simplex method", Math. Prog. Computation 10, 2018; its
interior-point method is by Schork and Gondzio (IPX, 2020). It is given the program as it is: cvxpy takes a second or
two to load, longer than most of these to solve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from optcc.errors import OptccError
from optcc.theory.certificates import (
    Cut,
    Dual,
    Primal,
    add_up_cuts,
    check_dual,
    check_primal,
    demand_gap,
    dual_in_arrays,
    least_left_out,
    payments,
    price_list,
    rooted_network,
    views_of,
)
from optcc.theory.program_network import (
    ALLREDUCE,
    BOTH_AT_ONCE,
    BROADCAST_SIDE,
    REDUCE_SIDE,
    CollectiveKind,
    Network,
    require_connected,
)
from optcc.values.bound import LARGEST_GAP, DualCut, PrimalFlow, ProgramCertificate, ProgramPrimal
from optcc.values.cluster import Cluster

MARGINS = (1e-7, 3e-7, 6e-7)
"""Cuts are asked to carry this part of R more than they need, so that after rounding flows of exactly R are still
there. It costs about as much of R, and stays inside the gap of 1e-6 that certificates allow. The next one is taken
where the solver's tolerance has eaten up the one before.
"""
ENOUGH = 1.001
"""Of R for one pair of ranks, whatever its capacity."""
MAX_ROUNDS = 60
"""After these the program gives up: no cluster of which docs/bounds.md tells the time takes more than 2."""
Floats = NDArray[np.float64]
WHOLE_CUT_FLOWS = 400
"""Flows that are tried for sets that too little enters, a millisecond or so each; larger programs keep to single ranks.
With half as many, fewer certificates of pods and GPUs bind every protocol."""
LIMIT_S = 60.0
"""Of one attempt; the largest of which docs/bounds.md tells the time takes two seconds."""
COARSE_BITS, FINE_BITS = 30, 12
"""Flows of up to 2**(30 + 12): found in steps of 2**12 first, then what that leaves in steps of 1."""
KEPT = 8
"""Last certificates that are kept, for other sizes: of a cluster, its fault-free one, and theirs after an event."""
_WEIGHT_UNIT = 2**40  # dual weights are whole parts of 1 / this


class ProgramError(OptccError):
    """The solver failed, or the cuts did not settle."""


def certify(
    cluster: Cluster, nbytes: int, collective: CollectiveKind = ALLREDUCE, root: str | None = None
) -> ProgramCertificate:
    """Solve the program for `cluster`, round both sides, check both exactly, and put the certificate together.

    `root` names the rank of a broadcast or reduce. Raises InputError for a root that is missing or unknown,
    InfeasibleError, ProgramError, or CertificateError when the gap is over `LARGEST_GAP`.
    """
    return replace(_of_a_byte(cluster, collective, root), nbytes=nbytes)


@lru_cache(maxsize=KEPT)
def _of_a_byte(cluster: Cluster, collective: CollectiveKind, root: str | None) -> ProgramCertificate:
    network, at = rooted_network(cluster, collective, root)
    solution = BoundProgram(network, collective, at).solve()
    dual = round_dual(network, solution, collective, at)
    rate = check_dual(network, dual, collective, at)
    reached = check_primal(network, solution.primal, collective, at)
    demand_gap(rate, reached)
    if collective is ALLREDUCE and network.reverse is None:
        universal, no_more = _every_protocol(network)
        if no_more <= reached * (1 + LARGEST_GAP):
            dual, rate = universal, no_more
    elif collective is BOTH_AT_ONCE:
        one = _of_a_byte(cluster, ALLREDUCE, None)
        if one.rate <= reached * (1 + LARGEST_GAP):  # its dual serves, and binds more: proof id both-at-once
            dual, rate = dual_in_arrays(network, one), one.rate
    return ProgramCertificate(
        rate=rate,
        reached=reached,
        nbytes=1,
        prices=price_list(network, dual, rate),
        cuts=tuple(
            DualCut("reduce" if c.reduce else "broadcast", c.view, tuple(np.flatnonzero(c.inside).tolist()), w)
            for c, w in zip(dual.cuts, dual.weights, strict=True)
        ),
        resource_prices=dual.prices,
        denominator=dual.denominator,
        collective=collective.name,
        root=root,
        primal=_plain(solution.primal),
    )


def _every_protocol(network: Network) -> tuple[Dual, Fraction]:
    """A dual of cuts that hold for every protocol, and the rate that it excludes more than."""
    dual = round_dual(network, BoundProgram(network, every_protocol=True).solve())
    return dual, check_dual(network, dual)


def gap_to_every_protocol(cluster: Cluster, collective: CollectiveKind = ALLREDUCE) -> Fraction:
    """By how much of it a protocol might be faster than the rate of `certify`, where that does not bind every protocol.

    For AllReduce, and for what its bounds hold for, `BOTH_AT_ONCE`; solved, and not part of any certificate.
    """
    network, _ = rooted_network(cluster, ALLREDUCE, None)
    one = _of_a_byte(cluster, ALLREDUCE, None)
    no_more = one.rate if network.reverse is not None else _every_protocol(network)[1]
    return no_more / _of_a_byte(cluster, collective, None).reached - 1


def _plain(primal: Primal) -> ProgramPrimal:
    flows = []
    for (view, reduce), flow in sorted(primal.flows.items()):
        source, target = np.nonzero(flow)
        units = flow[source, target]
        side: Literal["broadcast", "reduce"] = "reduce" if reduce else "broadcast"
        flows.append(PrimalFlow(side, view, tuple(source.tolist()), tuple(target.tolist()), tuple(units.tolist())))
    broadcast, reduce_, roots = (tuple(column.tolist()) for column in (primal.broadcast, primal.reduce, primal.roots))
    return ProgramPrimal(primal.unit, broadcast, reduce_, roots, tuple(flows))


def round_dual(network: Network, solution: Solution, collective: CollectiveKind = ALLREDUCE, root: int = 0) -> Dual:
    """A dual in integers near the solver's, mended so that every condition holds exactly."""
    if network.resource_reverse is None or len(collective.sides) == 1:
        cuts, floats, prices = solution.cuts, solution.cut_prices, solution.prices
    else:  # one set of capacities served both halves: the dual and its mirror image add up to one of twice the size
        cuts = tuple(Cut(c.view, c.inside, side) for side in (False, True) for c in solution.cuts)
        floats = np.concatenate([solution.cut_prices, solution.cut_prices])
        prices = solution.prices + solution.prices[network.resource_reverse]
    weights = [round(float(y) * _WEIGHT_UNIT) for y in floats]
    kept = [i for i, w in enumerate(weights) if w > 0]
    cuts, used = tuple(cuts[i] for i in kept), tuple(weights[i] for i in kept)
    left_out, costs = add_up_cuts(network, cuts, used)
    denominator = least_left_out(network, left_out, collective, root)
    integers = [int(w) for w in np.rint(prices * _WEIGHT_UNIT)]
    use = network.use.tocsc()
    short = np.maximum(costs[0], costs[1]) - payments(network, integers)
    for way in np.flatnonzero(short > 0):
        mine = slice(use.indptr[way], use.indptr[way + 1])
        used_by_way = list(zip(use.indices[mine].tolist(), use.data[mine].tolist(), strict=True))
        cost = max(costs[0][way], costs[1][way])
        missing = cost - sum(integers[k] * times for k, times in used_by_way)  # an earlier way may have paid already
        resource, times = used_by_way[0]
        integers[resource] += max(0, -(-missing // times))
    scale = denominator.denominator
    return Dual(cuts, tuple(w * scale for w in used), tuple(i * scale for i in integers), denominator.numerator)


@dataclass(frozen=True, eq=False)
class Solution:
    """The program's answer: an exact primal, and the floating-point duals that `certify` makes exact.

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

    every_protocol : only what holds for every protocol: all cuts of the broadcast half, of the reduce half those around
        single ranks, and that R or more enters each rank in both halves together. The reduce half has no flows then,
        and the primal reaches nothing
    `views` holds the network as each rank type sees it.
    """

    def __init__(
        self, network: Network, collective: CollectiveKind = ALLREDUCE, root: int = 0, *, every_protocol: bool = False
    ) -> None:
        self.network, self.collective, self.root = network, collective, root
        self.weights = collective.weights(network, root)
        self.views = views_of(network)
        self.rates = np.array([float(r.rate) for r in network.resources])
        # With rates in and out equal, reduce can be broadcast backwards: one set of capacities serves both.
        self.mirror = network.reverse if len(collective.sides) == 2 else None
        self.sides = collective.sides if self.mirror is None else (BROADCAST_SIDE,)
        self._every_protocol = every_protocol
        self._flow_sides = (BROADCAST_SIDE,) if every_protocol else self.sides
        self._cuts: list[tuple[Cut, ...]] = []  # of each row
        self._seen: set[tuple[tuple[int, bool, bytes], ...]] = set()
        self._rows: list[csr_array] = []
        self._margins = list(MARGINS)

    def solve(self) -> Solution:
        """The optimum. Raises InfeasibleError when ranks are cut off, ProgramError when the solver fails."""
        self._check_connected()
        for index, view in enumerate(self.views):
            alone = np.arange(view.nodes) == 0
            for side in self.sides:
                self._add(Cut(index, alone, side))
                if side in self._flow_sides:
                    self._add(Cut(index, ~alone, side))
            if self._every_protocol:
                self._add(Cut(index, alone, BROADCAST_SIDE), Cut(index, ~alone, REDUCE_SIDE))
        for rounds in range(1, MAX_ROUNDS + 1):
            point = self._solve_once(vertex=False)
            primal, short = self._round(point)
            if not short:
                vertex = self._solve_once(vertex=True)
                cuts = tuple(cut for together in self._cuts for cut in together)
                each = np.repeat(vertex.cut_prices, [len(together) for together in self._cuts])
                return Solution(primal, cuts, each, vertex.prices, rounds)
            if not sum(self._add(*together) for together in short):
                self._margins.pop(0)
                if not self._margins:
                    raise ProgramError("a cut that the solver was given is violated")
        raise ProgramError(f"cuts did not settle in {MAX_ROUNDS} rounds")

    def _add(self, *together: Cut) -> bool:
        """Add cuts, as one row that says that their sum holds, unless it is there already; True when it is new."""
        key = tuple((cut.view, cut.reduce, cut.inside.tobytes()) for cut in together)
        if key in self._seen or not all(cut.inside.any() for cut in together):
            return False
        types = len(self.network.rank_types)
        members = [self.views[cut.view].members(cut.inside, types) for cut in together]
        if self.weights is not None and not (self.network.multiplicity - members[0]) @ self.weights:
            return False  # all roots are inside: nothing need enter, and the margin would demand it
        self._seen.add(key)
        self._cuts.append(together)
        row = np.zeros(1 + types + len(self.sides) * len(self.network.way_orbit))
        for cut, inside in zip(together, members, strict=True):
            view = self.views[cut.view]
            crossing = view.leaving(cut.inside) if cut.reduce else view.entering(cut.inside)
            ways = crossing[self.network.way_orbit].astype(np.float64)
            halves = [ways if side == cut.reduce else np.zeros(len(ways)) for side in self.sides]
            row += np.concatenate(([-1.0], inside, *halves))
        self._rows.append(csr_array(row[None, :]))
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
        low = np.concatenate([np.zeros(len(self._rows)), np.full(len(self.rates), -np.inf), np.zeros(len(roots))])
        high = np.concatenate([np.full(len(self._rows), np.inf), self.rates / scale, np.zeros(len(roots))])
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
            cut_prices=prices[: len(self._rows)],
            prices=prices[len(self._rows) :][: len(self.rates)],
        )

    def _round(self, point: _Point) -> tuple[Primal, list[tuple[Cut, ...]]]:
        """The point in whole numbers, within every resource, and the rows that keep a rank from its flow of R."""
        unit = Fraction(point.rate) / 2 ** (COARSE_BITS + FINE_BITS)
        load = np.asarray(self.network.use @ (point.broadcast + point.reduce)) / self.rates
        shrink = (1 - 1e-12) / max(1.0, float(load.max())) / float(unit)
        # No pair needs more than R, and whole numbers should stay far from overflow. A little more: the solver's
        # roots may sum to a trifle over R, all of which may have to pass one pair.
        broadcast, reduce, roots = (
            np.floor(np.minimum(part, ENOUGH * point.rate) * shrink).astype(np.int64)
            for part in (point.broadcast, point.reduce, point.roots)
        )
        if self.weights is not None:  # equal in whole numbers too
            roots = self.weights * int(roots[self.weights > 0].min())
        total, flows = int(self.network.multiplicity @ roots), {}
        short: list[tuple[Cut, ...]] = []
        for index, view in enumerate(self.views):
            for side in self._flow_sides:
                capacity = view.capacity(self.network, reduce if side else broadcast)
                flow, inside = flow_into(capacity.T if side else capacity, roots[view.node_type] * view.size)
                flows[index, side] = flow
                if flow[:, 0].sum() < total:
                    short.append((Cut(index, inside, side),))
            if self.mirror is not None:
                flows[index, REDUCE_SIDE] = flows[index, BROADCAST_SIDE]
        if self._every_protocol and not short and len(self.views) * self.views[0].nodes <= WHOLE_CUT_FLOWS:
            short = list(self._whole_cuts(broadcast + reduce, total))
        return Primal(unit, broadcast, reduce, roots, flows), short

    def _whole_cuts(self, capacity: NDArray[np.int64], total: int) -> Iterator[tuple[Cut, Cut]]:
        """Sets that less than `total` enters from some node, of both halves' `capacity` of each way together."""
        for index, view in enumerate(self.views):
            between = view.capacity(self.network, capacity)
            for source in range(1, view.nodes):
                supply = np.zeros(view.nodes, np.int64)
                supply[source] = total
                flow, inside = flow_into(between, supply)
                if flow[:, 0].sum() < total and not inside.all():
                    yield Cut(index, inside, BROADCAST_SIDE), Cut(index, ~inside, REDUCE_SIDE)

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
        require_connected(there, [self.network.rank_types[t].name for t in view.node_type], view.size)


def maximised(
    gain: Floats, rows: csr_array, low: Floats, high: Floats, *, vertex: bool
) -> tuple[Floats, Floats] | None:
    """(x, the rows' prices) at the most of gain @ x with low <= rows @ x <= high and x >= 0; None if none was found.

    gain : (columns,); rows : (rows, columns); low, high : (rows,), may be infinite; prices : (rows,), of any sign
    vertex : a vertex of the optimal face, with sparse prices; else the middle of it, by the interior-point method
    without crossover. Simplex where that ends undecided, as it may with tiny degenerate programs.

    Raises OptccError where HiGHS no longer knows an option.
    """
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = rows.shape
    # As a minimum: told to maximise, the interior-point method ends at vertices, up to a tolerance outside (1.15).
    program.col_cost_ = -gain
    program.col_lower_, program.col_upper_ = np.zeros(len(gain)), np.full(len(gain), highspy.kHighsInf)
    program.row_lower_, program.row_upper_ = low, high
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.num_row_, program.a_matrix_.num_col_ = rows.shape
    program.a_matrix_.start_, program.a_matrix_.index_, program.a_matrix_.value_ = rows.indptr, rows.indices, rows.data
    for options in ({"solver": "ipm", "run_crossover": "on" if vertex else "off"}, {"solver": "simplex"}):
        highs = highspy.Highs()
        for option, value in {"output_flag": False, "time_limit": LIMIT_S, **options}.items():
            if highs.setOptionValue(option, value) != highspy.HighsStatus.kOk:
                raise OptccError(f"HiGHS {highs.version()} does not take {option}={value}")
        highs.passModel(program)
        highs.run()
        if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            found = highs.getSolution()
            return np.array(found.col_value), np.array(found.row_dual)
    return None


def flow_into(capacity: NDArray[np.int64], supply: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A maximum flow from the supplies into node 0, and the nodes on node 0's side of the least cut.

    capacity : (nodes, nodes) from row to column; supply : (nodes,), at most 2**42 in all.
    Returns (flow, inside): flow (nodes + 1, nodes + 1) >= 0 with the supplies as last row; inside (nodes,), the
    smallest set with that cut.
    """
    n = len(capacity)
    room = np.zeros((n + 1, n + 1), np.int64)
    room[:n, :n] = capacity
    room[n, :n] = supply
    np.fill_diagonal(room, 0)
    net = _maximum(room >> FINE_BITS) << FINE_BITS
    while True:
        # Node 0's side is what can still reach it in the residual graph. While the source is there, more can flow.
        inside = np.zeros(n + 1, np.bool_)
        inside[breadth_first_order(csr_array((room - net).T), 0, return_predecessors=False)] = True
        if not inside[n]:
            return np.maximum(net, 0), inside[:n]
        more = _maximum(room - net)
        if not more.any():
            raise ArithmeticError("a path was found along which no flow goes")
        net += more


def _maximum(room: NDArray[np.int64]) -> NDArray[np.int64]:
    """A maximum flow from the last node to the first within min(room, 2**31 - 1), antisymmetric."""
    limited = csr_array(np.minimum(room, 2**31 - 1).astype(np.int32))
    return np.asarray(maximum_flow(limited, len(room) - 1, 0).flow.toarray(), np.int64)
