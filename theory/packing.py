"""Packed trees: weighted tree pairs that together reach the exact program's optimum, on any fabric.

The program over all tree pairs, max sum x_t with every resource's load within its rate, has more columns than can be
written down. Its dual has one price per resource: a pair whose resources cost less than 1 in all is a column that would
help. The cheapest pair is a cheapest tree away from a root and one towards it. So columns are
found when needed: solve over the known ones, price, add, until the gap is closed. At prices at which the cheapest pair
costs c, no packing exceeds the worth of all resources over c; that limit and the rate reached close in on the optimum,
which is the exact program's (proof id packed-trees).

Then the same rate is given to the pairs with the fewest hops. A corner of that last program has no more pairs than
there are resources, and one.

Solving is by an interior-point method that stops where it is told to: prices from the middle of the optimal face, not
from a corner, make column generation take few rounds. See Gondzio, Gonzalez-Brevis, Munari, "New developments in the
primal-dual column generation technique", EJOR 224, 2013. The start is by prices that rise with use, the fastest
approximation of packing problems known. See Garg and Koenemann, "Faster and simpler algorithms for multicommodity flow
and other fractional packing problems", SIAM J. Computing 37, 2007.

On one non-blocking fabric there is a closed form, for any rates out and in: stars around hubs (`hub_trees`). Every part
of the data has a hub that gathers it from all and a hub that spreads the sum to all. A rank that gathers receives P-2
times more than it must, one that spreads sends P-2 times more. A rank that in the bound's time can send b times its own
data can spread the part (b - 1) / (P - 2), and gather by its rate in (proof id attained). Where one rank does both, the
trees are two hops deep together; only what that leaves over goes by two hubs, in three hops, which are paired in order
of ranks. At most 2P trees; exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import linprog
from scipy.sparse import csr_array

from optcc.errors import CertificateError, InputError, OptccError
from optcc.machine.native import NativeCode, array, call, struct
from optcc.schedule.packed import Arc, PackedTrees, TreePair
from optcc.theory.bounds import lower_bound
from optcc.theory.program_network import Network, build_network, require_connected
from optcc.values.cluster import Cluster

GAP = 1e-7
"""Between the rate reached and the limit proved, as a part of the rate."""
MAX_RESOURCES = 1100
"""Ports and links, both ways counted: 32 x 8 GPUs as ranks have 1016, and take half a minute."""
MAX_RANKS = 256
"""Their ordered pairs, 65,280, are priced in every round."""
MAX_ROUNDS = 60
"""After these the search gives up: four times the 15 of the hardest cluster that was tried."""

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

    In closed form, exactly, where only the rates of servers limit. Raises InfeasibleError if
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
    require_connected(there, [rank_type.name for rank_type in network.rank_types])


def hub_trees(cluster: Cluster) -> tuple[TreePair, ...]:
    """Tree pairs that reach the bound of `cluster`, of two ranks or more, where only the rates of servers limit.

    Raises InfeasibleError where a server has no rate one way.
    """
    ranks, per_byte = len(cluster.ranks), lower_bound(cluster, 1).seconds
    if ranks == 2:
        return (_star(2, 0, 0, Fraction(1)),)  # a hub has nobody else to serve
    gather = [(rank.in_rate * per_byte - 1) / (ranks - 2) for rank in cluster.ranks]
    spread = [(rank.out_rate * per_byte - 1) / (ranks - 2) for rank in cluster.ranks]
    both = [min(parts) for parts in zip(gather, spread, strict=True)]
    # Nobody is busier than the bound allows; where that leaves room, all have some.
    total = max(Fraction(1), sum(both, Fraction(0)))
    trees = [_star(ranks, r, r, part / total) for r, part in enumerate(both) if part]
    apart = 1 - sum((tree.share for tree in trees), Fraction(0))
    gatherers, spreaders = (
        _scaled([a - b for a, b in zip(parts, both, strict=True)], apart) for parts in (gather, spread)
    )
    while gatherers:  # both lists have the same sum, and no rank is in both
        share = min(gatherers[0][1], spreaders[0][1])
        trees.append(_star(ranks, gatherers[0][0], spreaders[0][0], share))
        for hubs in (gatherers, spreaders):
            rank, part = hubs.pop(0)
            if part > share:
                hubs.insert(0, (rank, part - share))
    return tuple(trees)


def _scaled(parts: list[Fraction], total: Fraction) -> list[tuple[int, Fraction]]:
    """(rank, part) of the parts above 0, in proportion so that they add up to `total`."""
    added = sum(parts, Fraction(0))
    return [(rank, part * total / added) for rank, part in enumerate(parts) if part and total]


def _star(ranks: int, gather: int, spread: int, share: Fraction) -> TreePair:
    up = tuple(Arc(r, gather) for r in range(ranks) if r != gather)
    first = (Arc(gather, spread),) if spread != gather else ()
    return TreePair(share, gather, up, (*first, *(Arc(spread, r) for r in range(ranks) if r not in (gather, spread))))


@dataclass(frozen=True, eq=False)
class WayTable:
    """The ways of an unmerged network: rank (ways,) at either end, and `uses` (ways, most), resources, -1 for none.

    ranks : how many; rates : float64 (resources,), in units of `unit` bytes per second, their mean
    """

    ranks: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    uses: NDArray[np.int64]
    rates: NDArray[np.float64]
    unit: float


def ways_of(network: Network) -> WayTable:
    """The ways of a network in which every rank is its own type, so that every orbit is one ordered pair."""
    use = network.use.T.tocsr()
    counts = np.diff(use.indptr)
    uses = np.full((len(counts), int(counts.max(initial=1))), -1, np.int64)
    uses[np.arange(uses.shape[1]) < counts[:, None]] = use.indices
    ends = np.array([(orbit.x, orbit.y) for orbit in network.orbits], np.int64)[network.way_orbit]
    rates = np.array([float(resource.rate) for resource in network.resources])
    unit = float(rates.mean())
    return WayTable(len(network.rank_types), ends[:, 0].copy(), ends[:, 1].copy(), uses, rates / unit, unit)


@dataclass(frozen=True, eq=False)
class PricedPair:
    """A tree pair: up, down : int64 (ranks,), the way by which a rank sends up and receives from above, -1 at the root.

    load : float64 (resources,), how often each is used; hops : the depths of both trees together
    """

    root: int
    up: NDArray[np.int64]
    down: NDArray[np.int64]
    load: NDArray[np.float64]
    hops: int


def cheapest_pairs(ways: WayTable, prices: NDArray[np.float64], slack: float = 0.0) -> tuple[list[PricedPair], float]:
    """(for every root a tree pair, least cost of any pair). `prices` : (resources,), of one unit of use.

    An arc may cost up to twice `slack` times the mean arc more than it need if that makes its tree shallower. Two roots
    may give one pair.
    """
    return _priced(ways, prices, slack, False)


def spread_pairs(ways: WayTable, steps: int, rise: float, slack: float) -> tuple[list[PricedPair], float]:
    """(`steps` pairs, each the cheapest when it was found, while prices rise with use; a limit on the packing's rate).

    rise : in the logarithm of a price, when a pair is given as much weight as its busiest resource can carry
    """
    pairs, limit, prices = list[PricedPair](), np.inf, 1 / ways.rates
    for _ in range(steps):
        prices = prices / (prices @ ways.rates)
        found, least = _priced(ways, prices, slack, True)
        limit = min(limit, 1 / least)
        pairs += found
        busy = found[0].load / ways.rates
        prices = prices * np.exp(rise * busy / busy.max())
    return pairs, limit


def _priced(
    ways: WayTable, prices: NDArray[np.float64], slack: float, only_best: bool
) -> tuple[list[PricedPair], float]:
    """For every root a tree pair, or of the cheapest alone."""
    pairs, ranks, resources = 1 if only_best else ways.ranks, ways.ranks, len(ways.rates)
    roots, hops = np.empty((2, pairs), np.int64)
    up, down = np.empty((2, pairs, ranks), np.int64)
    load = np.empty((pairs, resources))
    count, most = ways.uses.shape
    sizes = {"ways": count, "most": most, "ranks": ranks, "resources": resources, "pairs": pairs}
    given = {"source": ways.source, "target": ways.target, "uses": ways.uses, "prices": prices, "slack": slack}
    priced = _Priced(**sizes, **given, roots=roots, hops=hops, up=up, down=down, load=load)
    if call("planning_price_pairs", priced) is NativeCode.NO_TREE:
        raise PackingError("no tree joins all ranks")
    found = [PricedPair(int(roots[i]), up[i], down[i], load[i], int(hops[i])) for i in range(pairs)]
    return found, float(priced.least)


_Priced = struct(
    "priced_ways",
    {
        **dict.fromkeys(("ways", "most", "ranks", "resources", "pairs"), int),
        **dict.fromkeys(("source", "target"), array(np.int64, "ways")),
        "uses": array(np.int64, "ways", "most"),
        "prices": array(np.float64, "resources"),
        "slack": float,
        **dict.fromkeys(("roots", "hops"), array(np.int64, "pairs", written=True)),
        **dict.fromkeys(("up", "down"), array(np.int64, "pairs", "ranks", written=True)),
        "load": array(np.float64, "pairs", "resources", written=True),
        "least": float,
    },
)


Vector = NDArray[np.float64]

MAX_STEPS = 80
"""Several times the 10 to 40 that interior-point methods take for linear programs of any size."""
_TO_THE_EDGE = 0.99  # of the way to the nearest limit: short of it, as x and prices must stay positive
_LEAST_CENTRING = 1e-3  # keeps products of x and prices alike where Mehrotra's rule would ask for none
_STUCK = 1e-3  # a step so short that rounding has taken over


def most_weight(columns: NDArray[np.float64], gap: float) -> tuple[Vector, Vector]:
    """(weights of the columns, prices of the rows) with sum prices <= (1 + `gap`) sum weights, as far as that goes.

    columns : (rows, columns) >= 0, every row and every column with an entry above 0

    Weights may load a row beyond 1, and a column may cost less than 1, by rounding. Callers check what they need.
    """
    rows, count = columns.shape
    x = np.full(count, 0.5 / columns.sum(axis=1).max())
    prices = np.full(rows, 2 / columns.sum(axis=0).min())
    room, dear = 1 - columns @ x, columns.T @ prices - 1
    for _ in range(MAX_STEPS):
        if prices.sum() - x.sum() <= gap * x.sum():
            break
        direction = _newton(columns, x, room, prices, dear)
        mean = (x @ dear + room @ prices) / (rows + count)
        dx, dr, dp, dd = direction(-x * dear, -room * prices)
        primal, dual = min(_reach(x, dx), _reach(room, dr)), min(_reach(prices, dp), _reach(dear, dd))
        after = (x + primal * dx) @ (dear + dual * dd) + (room + primal * dr) @ (prices + dual * dp)
        centre = max((after / (rows + count) / mean) ** 3, _LEAST_CENTRING) * mean
        dx, dr, dp, dd = direction(centre - x * dear - dx * dd, centre - room * prices - dr * dp)
        primal = _TO_THE_EDGE * min(_reach(x, dx), _reach(room, dr))
        dual = _TO_THE_EDGE * min(_reach(prices, dp), _reach(dear, dd))
        if max(primal, dual) < _STUCK:
            break
        x, room = x + primal * dx, room + primal * dr
        prices, dear = prices + dual * dp, dear + dual * dd
    return x, prices


def _newton(
    columns: NDArray[np.float64], x: Vector, room: Vector, prices: Vector, dear: Vector
) -> Callable[[Vector, Vector], tuple[Vector, Vector, Vector, Vector]]:
    """Changes of (x, room, prices, dear) that meet all equations and change x dear and room prices as demanded."""
    normal = (columns * (x / dear)) @ columns.T
    normal[np.diag_indices(len(normal))] += room / prices
    scale = 1 / np.sqrt(normal.diagonal())
    scaled = normal * scale * scale[:, None]
    scaled[np.diag_indices(len(normal))] += 1e-14
    factor = cho_factor(scaled, lower=True, check_finite=False)
    short, paid = 1 - columns @ x - room, 1 - columns.T @ prices + dear

    def direction(xs: Vector, rs: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        right = columns @ ((xs + x * paid) / dear) + rs / prices - short
        change = scale * cho_solve(factor, scale * right)
        change += scale * cho_solve(factor, scale * (right - normal @ change))
        dearer = columns.T @ change - paid
        return (xs - x * dearer) / dear, (rs - room * change) / prices, change, dearer

    return direction


def _reach(value: Vector, change: Vector) -> float:
    """How far, at most 1, `value` can go along `change` and stay >= 0."""
    falling = change < 0
    return float(min(1.0, (value[falling] / -change[falling]).min(initial=np.inf)))
