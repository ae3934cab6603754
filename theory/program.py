"""The exact optimum of AllReduce on any network, as a linear program with cuts made on demand.

A capacitated digraph on the ranks supports AllReduce at rate R iff its capacity splits into a broadcast part and a
reduce part and there are root weights r >= 0 of sum R such that every set S of ranks has r(S) plus the broadcast
capacity into S at least R, and r(S) plus the reduce capacity out of S at least R (Edmonds, "Edge-disjoint branchings",
1973; max-flow min-cut makes cuts of flows). What the ways between ranks use of NICs, rails, NVLink ports and uplinks
is linear, so the largest R is a linear program. T = n / R. Proof id linear-program in proofs/README.md.

Only violated cuts are generated: solve, find each rank's least cut by maximum flow, add those below R, repeat. The
solver is HiGHS' interior-point method without crossover: it ends in the middle of the optimal face, where far fewer
cuts are violated than at a vertex (48 servers, 4 rails: 1 round instead of 32). One last solve with crossover gives
sparse duals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from optcc.errors import InfeasibleError, OptccError
from optcc.theory.cuts import View, view_from
from optcc.theory.network import Network

TOLERANCE = 1e-8
"""A cut counts as violated below (1 - TOLERANCE) R; HiGHS itself works to 1e-7 of the scaled right-hand side or
better.
"""
MAX_ROUNDS = 60
_FLOW_UNITS = 2**30
"""Capacities are rounded to whole parts of R / _FLOW_UNITS for scipy's maximum flow, which counts in 32 bits."""


class ProgramError(OptccError):
    """The solver failed, or the cuts did not settle."""


@dataclass(frozen=True, eq=False)
class Cut:
    """r(S) + capacity into S (broadcast) or out of S (reduce) >= R, for a non-empty set S of nodes of a view."""

    view: int
    inside: NDArray[np.bool_]
    reduce: bool


@dataclass(frozen=True, eq=False)
class Solution:
    """The program's answer in bytes per second, floating point; `optcc.theory.certify` makes it exact.

    rate : R; broadcast, reduce : float64 (ways,), capacity of each pair of the way's orbit; roots : float64 (types,),
    root weight of each rank of the type
    cuts, cut_prices : the generated cuts and their duals; prices : float64 (resources,), duals of the resources
    rounds : how often the program was solved
    """

    rate: float
    broadcast: NDArray[np.float64]
    reduce: NDArray[np.float64]
    roots: NDArray[np.float64]
    cuts: tuple[Cut, ...]
    cut_prices: NDArray[np.float64]
    prices: NDArray[np.float64]
    rounds: int


class AllReduceProgram:
    """Solves one network. `views` holds the network as each rank type sees it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.views = [view_from(network, t) for t in range(len(network.rank_types))]
        self.scale = float(max(r.rate for r in network.resources))
        ways = len(network.way_orbit)
        self._orbit_of_way = csr_array(
            (np.ones(ways), (network.way_orbit, np.arange(ways))), shape=(len(network.orbits), ways)
        )
        self._cuts: list[Cut] = []
        self._seen: set[tuple[int, bool, bytes]] = set()
        self._rows: list[csr_array] = []

    @property
    def mirrored(self) -> bool:
        """Reduce is broadcast backwards: one set of capacities serves both."""
        return self.network.reverse is not None

    def solve(self) -> Solution:
        """The optimum. Raises ProgramError when the solver fails or the cuts do not settle."""
        for view in self.views:
            alone = np.arange(view.nodes) == 0
            self._add(view, alone)
            self._add(view, ~alone)
        for rounds in range(1, MAX_ROUNDS + 1):
            solution = self._solve_once(rounds)
            if solution.rate < TOLERANCE * self.scale:
                raise self._disconnected(solution)
            before = len(self._cuts)
            for view in self.views:
                for reduce in (False,) if self.mirrored else (False, True):
                    inside = self._violated(view, solution, reduce)
                    if inside is not None:
                        self._add(view, inside)
            if len(self._cuts) == before:
                vertex = self._solve_once(rounds, vertex=True)
                return replace(solution, cut_prices=vertex.cut_prices, prices=vertex.prices)
        raise ProgramError(f"cuts did not settle in {MAX_ROUNDS} rounds")

    def _disconnected(self, solution: Solution) -> InfeasibleError:
        """Nothing gets through: the dearest cut says between whom."""
        cut = solution.cuts[int(np.argmax(solution.cut_prices))]
        view = self.views[cut.view]
        inside = sorted({self.network.rank_types[t].name for t in view.node_type[cut.inside]})
        return InfeasibleError(
            "no AllReduce is possible",
            where=", ".join(inside[:4]) + (", ..." if len(inside) > 4 else ""),
            expected="ways both to and from all other ranks",
            got="none one way",
            hint="Repair a NIC on a rail that others share, join the rails by a spine, or leave these servers out.",
        )

    def _add(self, view: View, inside: NDArray[np.bool_]) -> None:
        """Both the broadcast and the reduce cut of a set: where one binds, the other mostly does."""
        index = self.views.index(view)
        for reduce in (False,) if self.mirrored else (False, True):
            key = (index, reduce, inside.tobytes())
            if key not in self._seen:
                self._seen.add(key)
                self._cuts.append(Cut(index, inside, reduce))
                self._rows.append(self.cut_row(self._cuts[-1]))

    def cut_row(self, cut: Cut) -> csr_array:
        """The cut as a row over (R, r, broadcast ways, reduce ways): row @ x >= 0. Mirrored: no reduce ways."""
        view, network = self.views[cut.view], self.network
        crossing = view.leaving(cut.inside) if cut.reduce else view.entering(cut.inside)
        ways = crossing[network.way_orbit].astype(np.float64)
        roots = view.members(cut.inside, len(network.rank_types)).astype(np.float64)
        blank = np.zeros(0) if self.mirrored else np.zeros(len(ways))
        sides = (blank, ways) if cut.reduce else (ways, blank)
        return csr_array(np.concatenate(([-1.0], roots, *sides))[None, :])

    def _solve_once(self, rounds: int, *, vertex: bool = False) -> Solution:
        network, types, ways = self.network, len(self.network.rank_types), len(self.network.way_orbit)
        x = cp.Variable(1 + types + ways * (1 if self.mirrored else 2), nonneg=True)
        use = network.use.astype(np.float64)
        both = hstack([use, use]) if network.reverse is None else use + use[:, network.reverse]
        load = hstack([csr_array((len(network.resources), 1 + types)), both]).tocsr()
        # Scaled so that the largest rate is 1: tolerances of the solver are absolute.
        capacity = np.array([float(r.rate) for r in network.resources]) / self.scale
        cuts = vstack(self._rows).tocsr() @ x >= 0
        resources = load @ x <= capacity
        roots = network.multiplicity @ x[1 : 1 + types] == x[0]
        problem = cp.Problem(cp.Maximize(x[0]), [cuts, resources, roots])
        try:
            problem.solve(solver=cp.HIGHS, highs_options={"solver": "ipm", "run_crossover": "on" if vertex else "off"})
        except cp.SolverError as error:
            raise ProgramError(f"the solver failed: {error}") from None
        if problem.status != cp.OPTIMAL or x.value is None:
            raise ProgramError(f"the solver ended {problem.status}")
        value = np.maximum(x.value, 0) * self.scale
        broadcast = value[1 + types : 1 + types + ways]
        return Solution(
            rate=float(value[0]),
            broadcast=broadcast,
            reduce=broadcast[network.reverse] if network.reverse is not None else value[1 + types + ways :],
            roots=value[1 : 1 + types],
            cuts=tuple(self._cuts),
            cut_prices=np.abs(cuts.dual_value),
            prices=np.abs(resources.dual_value),
            rounds=rounds,
        )

    def _violated(self, view: View, solution: Solution, reduce: bool) -> NDArray[np.bool_] | None:
        """The least cut around the view's rank, when it is below R; None otherwise."""
        ways = solution.reduce if reduce else solution.broadcast
        capacity = np.asarray(view.pairs @ (self._orbit_of_way @ ways)).reshape(view.nodes, view.nodes)
        if reduce:
            capacity = capacity.T
        flow, inside = least_cut(capacity, solution.roots[view.node_type] * view.size, solution.rate)
        return inside if flow < 1 - TOLERANCE else None


def least_cut(
    capacity: NDArray[np.float64], supply: NDArray[np.float64], rate: float
) -> tuple[float, NDArray[np.bool_]]:
    """Largest flow from the roots into node 0, as a part of `rate`, and the nodes on node 0's side of the least cut.

    capacity : (nodes, nodes) from row to column; supply : (nodes,) what the roots put into each node
    """
    n = len(capacity)
    units = np.zeros((n + 1, n + 1), np.int64)
    units[:n, :n] = np.rint(np.minimum(capacity / rate, 1.5) * _FLOW_UNITS)
    units[n, :n] = np.rint(np.minimum(supply / rate, 1.5) * _FLOW_UNITS)
    np.fill_diagonal(units, 0)
    found = maximum_flow(csr_array(units.astype(np.int32)), n, 0)
    # What node 0 can be reached from in the residual graph is on its side: the smallest least cut.
    residual = csr_array((units - found.flow.toarray()).T)
    inside = np.zeros(n + 1, np.bool_)
    inside[breadth_first_order(residual, 0, return_predecessors=False)] = True
    return found.flow_value / _FLOW_UNITS, inside[:n]
