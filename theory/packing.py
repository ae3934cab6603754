"""Packed trees: weighted tree pairs that together reach the exact program's optimum, on any fabric.

The program over all tree pairs, max sum x_t with every resource's load within its rate, has more columns than can be
written down. Its dual has one price per resource: a pair whose resources cost less than 1 in all is a column that would
help. The cheapest pair is a cheapest tree away from a root and one towards it (`optcc.theory.pricing`). So columns are
found when needed: solve over the known ones, price, add, until the gap is closed. At prices at which the cheapest pair
costs c, no packing exceeds the worth of all resources over c; that limit and the rate reached close in on the optimum,
which is the exact program's (proof id packed-trees).

Then the same rate is given to the pairs with the fewest hops. A corner of that last program has no more pairs than
there are resources, and one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from optcc.errors import CertificateError, InfeasibleError, InputError, OptccError
from optcc.schedule.packed import Arc, PackedTrees, TreePair
from optcc.theory.bounds import lower_bound
from optcc.theory.hubs import hub_trees
from optcc.theory.interior import most_weight
from optcc.theory.network import Network
from optcc.theory.pricing import PricedPair, WayTable, cheapest_pairs, spread_pairs, ways_of
from optcc.theory.ways import build_network
from optcc.values.cluster import Cluster

GAP = 1e-7
"""Between the rate reached and the limit proved, as a part of the rate."""
MAX_RESOURCES = 1100
"""Ports and links, both ways counted. docs/bench-packed.md has the time that this many take."""
MAX_RANKS = 256
"""Their ordered pairs, 65,280, are priced in every round."""
MAX_ROUNDS = 60
"""After these the search gives up: four times the 15 of the hardest cluster of docs/bench-packed.md."""

_ANY, _SOME = 1e9, 0.1  # how much dearer than the mean arc one may be that makes a tree shallower
# How the search begins decides its time, and nothing of its result, whose gap is proved.
_START = 3  # pairs per resource to begin with
_RISE = 0.5  # of a price's logarithm, by one pair
_GIVEN_UP = 2e-8  # of the rate, so that the last program has room for the solver's tolerances
_SHARE_UNIT = 2**40


class PackingError(OptccError):
    """The solver failed, or the rounds ran out before the gap was closed."""


@dataclass(frozen=True)
class Packing:
    """Tree pairs with shares of sum 1, and what they reach.

    rate : bytes per second, exactly: an AllReduce of n bytes takes n / rate in the fluid limit; 0 for a single rank
    limit : bytes per second that no tree pairs exceed, to floating-point accuracy
    rounds, columns : how often the program was solved, and how many pairs it had in the end; 0 where there is a closed
    form
    """

    trees: tuple[TreePair, ...]
    rate: Fraction
    limit: float
    rounds: int
    columns: int

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the pairs are a schedule on `cluster`, CertificateError unless they reach `rate`."""
        recipe = PackedTrees(self.trees, segments=1)
        recipe.check(cluster)
        seconds = recipe.fluid_s(cluster, 1)
        if self.trees and seconds * self.rate > 1:
            raise CertificateError(f"the trees reach {float(1 / seconds)} B/s of {float(self.rate)}")


def pack_trees(cluster: Cluster, gap: float = GAP) -> Packing:
    """The packing of `cluster`, within `gap` of the best; no trees for a single rank. Deterministic.

    In closed form, exactly, where only the rates of servers limit (`optcc.theory.hubs`). Raises InfeasibleError if
    ranks are cut off, InputError for more ranks than `MAX_RANKS`, and PackingError if the gap does not close. Without a
    closed form it also raises InputError for more ports and links than `MAX_RESOURCES`, or GPUs without NVLink.
    """
    if len(cluster.ranks) == 1:
        return Packing((), Fraction(0), 0.0, 0, 0)
    closed = cluster.fabric.flat and not cluster.gpu_ranks
    _check_size(cluster, closed)
    if closed:
        rate = 1 / lower_bound(cluster, 1).seconds
        packing = Packing(hub_trees(cluster), rate, float(rate), 0, 0)
        packing.check(cluster)
        return packing
    network = build_network(cluster, merge=False)
    ways = ways_of(network)
    _check_connected(network, ways)
    search = _Search(ways)
    weight = search.run(gap)
    pairs, weights = search.fewest_hops(weight * (1 - _GIVEN_UP))
    shares, rate = _exact_shares(network, pairs, weights)
    trees = tuple(_tree(network, ways, pair, share) for pair, share in zip(pairs, shares, strict=True) if share)
    packing = Packing(trees, rate, search.limit * ways.unit, search.rounds, len(search.pool))
    packing.check(cluster)
    return packing


class _Search:
    """Column generation. Weights and `limit` are in units of `ways.unit`.

    pool : the columns so far, by their loads; of several pairs with equal loads the one with the fewest hops
    """

    def __init__(self, ways: WayTable) -> None:
        self.ways, self.limit, self.rounds = ways, np.inf, 0
        self.pool: dict[bytes, PricedPair] = {}
        self._centre = np.full(len(ways.rates), 1 / len(ways.rates))  # prices with the best limit so far

    def run(self, gap: float) -> float:
        """The rate of a packing from the pool that is within `gap` of the best."""
        pairs, self.limit = spread_pairs(self.ways, _START * len(self.ways.rates), _RISE, _SOME)
        self._add([*cheapest_pairs(self.ways, 1 / self.ways.rates, _ANY)[0], *pairs])
        reached, now = 0.0, 1.0
        for self.rounds in range(1, MAX_ROUNDS + 1):
            columns = self._columns()
            x, prices = most_weight(columns, max(gap / 8, min(0.1 * now, 1e-2)))
            reached = max(reached, float(x.sum() / max(1.0, (columns @ x).max())))
            now = self.limit / reached - 1
            if now <= gap:
                return reached
            self._price(prices / prices.sum(), min(now, _SOME))
        raise PackingError(f"a packing within {now:.1e} of the limit after {MAX_ROUNDS} rounds, not {gap:.0e}")

    def _price(self, prices: NDArray[np.float64], slack: float) -> None:
        """Add what is cheapest at `prices`, between them and the centre, and there with prices that rise with use.

        Prices jump from round to round where many are optimal; the way between keeps the limit falling.
        """
        ways, rates = self.ways, self.ways.rates
        for turn in range(2 + len(rates) // ways.ranks):
            pairs, least = cheapest_pairs(ways, prices / rates, slack if turn or self.rounds % 2 else 0.0)
            costs = [pair.load @ (prices / rates) for pair in pairs]
            cheapest = [pairs[i] for i in np.argsort(costs, kind="stable")]
            self._add(cheapest[: max(1, ways.ranks // 4)] if turn else pairs)
            if prices.sum() / least < self.limit:
                self.limit, self._centre = float(prices.sum() / least), prices / prices.sum()
            if turn:
                busy = cheapest[0].load / rates
                prices = prices * np.exp(_RISE * slack * busy / busy.max())
            else:
                prices = (prices / prices.sum() + self._centre) / 2
                self._add(cheapest_pairs(ways, prices / rates, _ANY)[0])

    def _add(self, pairs: list[PricedPair]) -> int:
        """Add pairs to the pool; returns how many are new, or shallower than what they replace."""
        news = 0
        for pair in pairs:
            old = self.pool.get(pair.load.tobytes())
            if old is None or pair.hops < old.hops:
                self.pool[pair.load.tobytes()] = pair
                news += 1
        return news

    def _columns(self) -> NDArray[np.float64]:
        """(resources, pairs): the part of its rate that each resource needs for one unit of each pair."""
        return np.array([pair.load for pair in self.pool.values()]).T / self.ways.rates[:, None]

    def fewest_hops(self, weight: float) -> tuple[list[PricedPair], NDArray[np.float64]]:
        """Pairs of `weight` in all, and the weight of each, with the fewest hops in the mean that the pool allows."""
        pairs = list(self.pool.values())
        best = linprog(
            [float(pair.hops) for pair in pairs],
            A_ub=self._columns(),
            b_ub=np.ones(len(self.ways.rates)),
            A_eq=np.ones((1, len(pairs))),
            b_eq=[weight],
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
        )
        if best.status != 0:
            raise PackingError(f"the solver found no corner: {best.message}")
        weights = np.asarray(best.x)
        used = np.flatnonzero(weights > 0)
        return [pairs[i] for i in used], weights[used]


def _exact_shares(
    network: Network, pairs: list[PricedPair], weights: NDArray[np.float64]
) -> tuple[list[Fraction], Fraction]:
    """(shares of sum 1, the rate in bytes per second that they reach), exactly.

    Whole parts of 2**-40; or fractions of small denominators where those do no worse, as on fabrics of simple rates.
    """
    units = np.round(weights / weights.sum() * _SHARE_UNIT).astype(np.int64)
    units[units.argmax()] += _SHARE_UNIT - units.sum()
    shares = [Fraction(int(unit), _SHARE_UNIT) for unit in units]
    loads = np.array([pair.load for pair in pairs]).astype(np.int64)
    rate = _rate(network, loads, shares)
    for largest in (100, 10**4, 10**6):
        simple = [share.limit_denominator(largest) for share in shares]
        if sum(simple) == 1 and (reached := _rate(network, loads, simple)) >= rate:
            return simple, reached
    return shares, rate


def _rate(network: Network, loads: NDArray[np.int64], shares: list[Fraction]) -> Fraction:
    busiest = Fraction(0)
    for resource, row in zip(network.resources, loads.T, strict=True):
        load = sum((int(row[i]) * shares[i] for i in np.flatnonzero(row)), Fraction(0))
        busiest = max(busiest, load / resource.rate)
    return 1 / busiest


def _tree(network: Network, ways: WayTable, pair: PricedPair, share: Fraction) -> TreePair:
    def arc(way: int) -> Arc:
        orbit = network.orbits[network.way_orbit[way]]
        if orbit.same_server:
            return Arc(orbit.x, orbit.y)
        ends = zip((orbit.x, orbit.y), network.way_groups[way], strict=True)
        rails = [network.rank_types[rank].groups[group].rails for rank, group in ends]
        return Arc(orbit.x, orbit.y, *(rail[0] if rail else None for rail in rails))

    up, down = (tuple(arc(int(way)) for way in side if way >= 0) for side in (pair.up, pair.down))
    return TreePair(share, pair.root, up, down)


def _check_size(cluster: Cluster, closed: bool) -> None:
    nics = sum(nic.alive for server in cluster.servers for nic in server.nics)
    ranks = len(cluster.ranks)
    resources = 2 * (nics + (ranks if cluster.gpu_ranks else 0)) + len(cluster.uplinks)
    if ranks > MAX_RANKS or (resources > MAX_RESOURCES and not closed):
        raise InputError(
            "too large to pack trees on",
            where="cluster",
            expected=f"at most {MAX_RANKS} ranks, and {MAX_RESOURCES} ports and links, both ways counted",
            got=f"{ranks} ranks, {resources} ports and links",
            hint="Nested rings have no such limit.",
        )


def _check_connected(network: Network, ways: WayTable) -> None:
    there = csr_array((np.ones(len(ways.source)), (ways.source, ways.target)), shape=(ways.ranks, ways.ranks))
    parts, part = connected_components(there, connection="strong")
    if parts > 1:
        smallest = int(np.argmin(np.bincount(part)))
        names = [network.rank_types[rank].name for rank in np.flatnonzero(part == smallest)]
        raise InfeasibleError(
            "no AllReduce is possible",
            where=", ".join(names[:4]) + (", ..." if len(names) > 4 else ""),
            expected="ways both to and from all other ranks",
            got="none one way",
            hint="Repair a NIC on a rail that others share, join the rails by a spine, or leave these servers out.",
        )
