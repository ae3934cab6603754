"""Which tree pair is cheapest when every resource has a price? One for every root, from two shrunk graphs.

The arcs between two ranks are ways through the fabric, and a way costs what its resources do; of several, the cheapest
counts. Tree pairs at given prices are the step of column generation (`optcc.theory.packing`). With prices that rise
with use they are its start, the fastest approximation of packing problems known. See Garg and Koenemann, "Faster and
simpler algorithms for multicommodity flow and other fractional packing problems", SIAM J. Computing 37, 2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optcc.theory.branchings import price_pairs
from optcc.theory.network import Network


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
    roots, up, down, load, hops, least = price_pairs(
        prices, ways.source, ways.target, ways.uses, ways.ranks, slack, only_best
    )
    pairs = [PricedPair(int(roots[i]), up[i], down[i], load[i], int(hops[i])) for i in range(len(roots))]
    return pairs, float(least)
