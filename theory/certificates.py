"""Certificates of the exact program, checked without a solver: the primal reaches a rate, the dual excludes more.

The primal shows that R is reached. It consists of capacities of routes, root weights of sum R, and a flow of R from the
roots to every rank (broadcast) and back (reduce). The dual says that no more is possible by trees: prices on resources
and weights on cuts. For any capacities c, root weights r and rate R, adding up the weighted cuts bounds R by the price
of the resources (weak duality), provided that

* each way's weighted cuts cost no more than the resources it uses, for broadcast and reduce alike, and
* each rank is left out by cuts of total weight at least 1.

Everything is integers times one unit. Proof id linear-program. This module knows the network, and nothing of how a
solution is found (`optcc.theory.bound_program` does that).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from optcc.errors import CertificateError, InputError, some
from optcc.theory.program_network import (
    ALLREDUCE,
    CollectiveKind,
    Network,
    View,
    build_network,
    collective_named,
    view_from,
)
from optcc.values.bound import LARGEST_GAP, DualCut, Price, ProgramCertificate, ProgramPrimal
from optcc.values.cluster import Cluster

NEGLIGIBLE = Fraction(1, 10**6)
"""A share of the price below this is rounding, not a bottleneck."""


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
class Dual:
    """Why no rate above is possible: `weights` of `cuts` and `prices` of resources, both over `denominator`."""

    cuts: tuple[Cut, ...]
    weights: tuple[int, ...]
    prices: tuple[int, ...]
    denominator: int


def views_of(network: Network) -> list[View]:
    """The network as each rank type sees it, in the order in which cuts and flows refer to it."""
    return [view_from(network, t) for t in range(len(network.rank_types))]


def check_primal(network: Network, primal: Primal, collective: CollectiveKind = ALLREDUCE, root: int = 0) -> Fraction:
    """The rate in bytes per second that `primal` proves reachable. Raises CertificateError when it proves none."""
    views = views_of(network)
    if min(primal.broadcast.min(initial=0), primal.reduce.min(initial=0), primal.roots.min(initial=0)) < 0:
        raise CertificateError("a capacity or a root weight is negative")
    _demand_small(network, views[0], primal)
    load = network.use @ (primal.broadcast + primal.reduce)
    for resource, units in zip(network.resources, load.tolist(), strict=True):
        if units * primal.unit > resource.rate:
            raise CertificateError(f"{resource.what}: {float(units * primal.unit)} B/s of {float(resource.rate)}")
    total = int(network.multiplicity @ primal.roots)
    weights = collective.weights(network, root)
    if weights is not None and (primal.roots * (network.multiplicity @ weights) != weights * total).any():
        raise CertificateError("the roots are not where the collective has its data")
    for index, view in enumerate(views):
        for reduce in collective.sides:
            flow = primal.flows.get((index, reduce))
            if flow is None:
                raise CertificateError(f"no flow for {network.rank_types[view.rank_type].name}")
            _check_flow(network, view, primal, reduce, flow, total)
    return total * primal.unit


def _demand_small(network: Network, view: View, primal: Primal) -> None:
    """Raise CertificateError for numbers so large that their sums, in 64 bits, might come round to small ones."""
    units = primal.broadcast.astype(float) + primal.reduce
    pairs = view.pairs.sum(axis=0)  # of each orbit; the same in every view
    sums = (*(network.use @ units), units @ pairs[network.way_orbit], primal.roots.astype(float) @ network.multiplicity)
    if max(sums) >= 2.0**62:
        raise CertificateError("a capacity or a root weight is too large")


def _check_flow(
    network: Network, view: View, primal: Primal, reduce: bool, flow: NDArray[np.int64], total: int
) -> None:
    n, name = view.nodes, network.rank_types[view.rank_type].name
    capacity = view.capacity(network, primal.reduce if reduce else primal.broadcast)
    if reduce:
        capacity = capacity.T  # followed backwards, from the roots to the rank
    supply = primal.roots[view.node_type] * view.size
    if flow.min() < 0 or (flow[:n, :n] > capacity).any() or (flow[n, :n] > supply).any():
        raise CertificateError(f"the flow of {name} exceeds a capacity")
    through = flow[:, :n].sum(axis=0) - flow[:n, :n].sum(axis=1)
    if through[1:].any():
        raise CertificateError(f"the flow of {name} is not conserved")
    if through[0] != total:
        raise CertificateError(f"the flow of {name} is {through[0]} units of {total}")


def check_dual(network: Network, dual: Dual, collective: CollectiveKind = ALLREDUCE, root: int = 0) -> Fraction:
    """The rate in bytes per second that no schedule made of trees exceeds, by `dual`. Raises CertificateError when
    it proves none.
    """
    if dual.denominator <= 0 or min((*dual.weights, *dual.prices), default=0) < 0:
        raise CertificateError("a weight or a price is negative")
    if len(dual.weights) != len(dual.cuts) or len(dual.prices) != len(network.resources):
        raise CertificateError("the dual does not fit the network")
    if not {cut.reduce for cut in dual.cuts} <= set(collective.sides):
        raise CertificateError(f"a cut of a half that {collective.name} does not have")
    left_out, costs = add_up_cuts(network, dual.cuts, dual.weights)
    if least_left_out(network, left_out, collective, root) < dual.denominator:
        raise CertificateError("some root is left out by cuts of weight less than 1")
    paid = payments(network, dual.prices)
    for side, cost in zip(("broadcast", "reduce"), costs, strict=True):
        if (cost > paid).any():
            way = int(np.argmax(cost > paid))
            raise CertificateError(f"way {way} pays {paid[way]} for {side} cuts that cost {cost[way]}")
    price = sum((p * r.rate for p, r in zip(dual.prices, network.resources, strict=True)), Fraction(0))
    return price / dual.denominator


def add_up_cuts(
    network: Network, cuts: tuple[Cut, ...], weights: tuple[int, ...]
) -> tuple[list[Fraction], list[NDArray[np.object_]]]:
    """(per rank type, weight of the cuts that leave out one such rank, on average; [broadcast, reduce] cost per
    way).
    """
    views, types = views_of(network), len(network.rank_types)
    inside = np.zeros(types, object)
    crossing = [np.zeros(len(network.orbits), object) for _ in range(2)]
    for cut, weight in zip(cuts, weights, strict=True):
        view = views[cut.view]
        if cut.inside.shape != (view.nodes,) or not cut.inside.any():
            raise CertificateError("a cut is not a set of the network's ranks")
        inside += weight * view.members(cut.inside, types).astype(object)
        crossed = view.leaving(cut.inside) if cut.reduce else view.entering(cut.inside)
        crossing[cut.reduce] += weight * crossed.astype(object)
    everything = sum(weights)
    left_out = [everything - Fraction(int(i), int(m)) for i, m in zip(inside, network.multiplicity, strict=True)]
    return left_out, [c[network.way_orbit] for c in crossing]


def least_left_out(network: Network, left_out: list[Fraction], collective: CollectiveKind, root: int) -> Fraction:
    """Weight of the cuts that leave out a root: the least over ranks, or the mean where the roots are given."""
    weights = collective.weights(network, root)
    if weights is None:
        return min(left_out)
    shares = [int(w * m) for w, m in zip(weights, network.multiplicity, strict=True)]
    return sum((share * out for share, out in zip(shares, left_out, strict=True)), Fraction(0)) / sum(shares)


def holds_for_every_protocol(network: Network, cuts: Sequence[DualCut]) -> bool:
    """Whether an AllReduce's dual has only cuts that hold for every protocol that sums over a finite abelian group.

    All broadcast cuts do, and reduce cuts around one rank. So does a reduce cut of no more weight than the broadcast
    cut around all other ranks: both together say that n bytes enter those ranks. Proof id half-program.
    """
    everybody = [frozenset(range(view.nodes)) for view in views_of(network)]
    spare: Counter[tuple[int, frozenset[int]]] = Counter()
    for cut in cuts:
        inside = frozenset(cut.inside)
        if cut.side == "broadcast":
            spare[cut.seen_from, inside] += cut.weight
        elif inside != {0}:  # node 0 of a view is one rank
            spare[cut.seen_from, everybody[cut.seen_from] - inside] -= cut.weight
    return min(spare.values(), default=0) >= 0


def payments(network: Network, prices: Sequence[int]) -> NDArray[np.object_]:
    """What each way pays for the resources it uses; Python integers, which scipy's products do not take."""
    use, paid = network.use.tocoo(), np.zeros(len(network.way_orbit), object)
    np.add.at(paid, use.col, use.data.astype(object) * np.array(prices, object)[use.row])
    return paid


def demand_gap(rate: Fraction, reached: Fraction) -> None:
    """Raise CertificateError where the rate that is proved and the one that is reached are further apart."""
    if rate > reached * (1 + LARGEST_GAP):
        raise CertificateError(f"the gap between {float(rate)} and {float(reached)} B/s is over {float(LARGEST_GAP)}")


def _in_arrays(network: Network, views: list[View], plain: ProgramPrimal) -> Primal:
    """The primal for `check_primal`. Raises CertificateError where it does not fit the network."""
    ways, types = len(network.way_orbit), len(network.rank_types)
    if (len(plain.broadcast), len(plain.reduce), len(plain.roots)) != (ways, ways, types):
        raise CertificateError("the primal does not fit the network")
    flows = {}
    for flow in plain.flows:
        if not 0 <= flow.seen_from < types:
            raise CertificateError(f"a flow is seen from rank type {flow.seen_from}, there are {types}")
        nodes, columns = views[flow.seen_from].nodes, (flow.source, flow.target, flow.units)
        if len({*map(len, columns)}) > 1:
            raise CertificateError("a flow whose columns differ in length")
        matrix = np.zeros((nodes + 1, nodes + 1), np.int64)
        for source, target, units in zip(*columns, strict=True):
            if not (0 <= source <= nodes and 0 <= target < nodes and 0 <= units < 2**62):
                raise CertificateError(f"no flow of {units} from node {source} to {target} of {nodes}")
            matrix[source, target] = units
        flows[flow.seen_from, flow.side == "reduce"] = matrix
    columns = (plain.broadcast, plain.reduce, plain.roots)
    if max(max(column, default=0) for column in columns) >= 2**62:
        raise CertificateError("a capacity or a root weight is too large")
    broadcast, reduce, roots = (np.array(column, np.int64) for column in columns)
    return Primal(plain.unit, broadcast, reduce, roots, flows)


def rooted_network(cluster: Cluster, collective: CollectiveKind, root: str | None) -> tuple[Network, int]:
    """The network, and the rank type of the root (0 where the collective has none)."""
    if collective.roots != "one":
        if root is not None:
            raise InputError(f"{collective.name} has no root", where="--root", expected="no --root", got=root)
        return build_network(cluster), 0
    names = [rank.name for rank in cluster.ranks]
    if root not in names:
        raise InputError("no such root", where="--root", expected=f"one of {some(names)}", got=root)
    server, _, gpu = root.partition("/gpu")
    network = build_network(cluster, apart=server)
    called = f"GPU {gpu} of {server}" if gpu else server
    return network, [t.name for t in network.rank_types].index(called)


def dual_in_arrays(network: Network, certificate: ProgramCertificate) -> Dual:
    """The certificate's dual, for `check_dual`. Raises CertificateError where it does not fit the network."""
    views = views_of(network)
    cuts = []
    for cut in certificate.cuts:
        if not 0 <= cut.seen_from < len(views):
            raise CertificateError(f"a cut is seen from rank type {cut.seen_from}, there are {len(views)}")
        inside = np.zeros(views[cut.seen_from].nodes, np.bool_)
        if not cut.inside or not 0 <= min(cut.inside) <= max(cut.inside) < len(inside):
            raise CertificateError("a cut is not a set of the network's ranks")
        inside[list(cut.inside)] = True
        cuts.append(Cut(cut.seen_from, inside, cut.side == "reduce"))
    weights = tuple(cut.weight for cut in certificate.cuts)
    return Dual(tuple(cuts), weights, certificate.resource_prices, certificate.denominator)


def is_an_allreduces(network: Network, dual: Dual) -> bool:
    """Whether the dual of another collective proves its rate for AllReduce, too: wherever its roots may be."""
    left_out, _ = add_up_cuts(network, dual.cuts, dual.weights)
    return least_left_out(network, left_out, ALLREDUCE, 0) >= dual.denominator


def check_rate(cluster: Cluster, certificate: ProgramCertificate) -> tuple[Network, Dual]:
    """The network and the certificate's dual, which proves its rate on `cluster`, exactly, without a solver.

    Raises CertificateError where it does not.
    """
    collective = collective_named(certificate.collective)
    network, at = rooted_network(cluster, collective, certificate.root)
    dual = dual_in_arrays(network, certificate)
    proved = check_dual(network, dual, collective, at)
    if proved != certificate.rate:
        raise CertificateError(f"the dual proves {float(proved)} B/s, the certificate says {float(certificate.rate)}")
    return network, dual


def check_prices(cluster: Cluster, certificate: ProgramCertificate) -> Network:
    """Raise CertificateError unless `check_rate` passes and `prices` follow from the dual. Returns the network."""
    network, dual = check_rate(cluster, certificate)
    for said, right in zip_longest(certificate.prices, price_list(network, dual, certificate.rate)):
        if said != right:
            raise CertificateError(f"the prices list {_shown(said)}, the dual says {_shown(right)}")
    return network


def check_program_certificate(cluster: Cluster, certificate: ProgramCertificate) -> None:
    """Raise CertificateError unless `check_prices` passes. The primal, if present, must prove `reached`, within
    `LARGEST_GAP`.
    """
    network = check_prices(cluster, certificate)
    if certificate.primal is not None:
        collective = collective_named(certificate.collective)
        _, at = rooted_network(cluster, collective, certificate.root)
        reached = check_primal(network, _in_arrays(network, views_of(network), certificate.primal), collective, at)
        if reached != certificate.reached:
            raise CertificateError(
                f"the primal reaches {float(reached)} B/s, the certificate says {float(certificate.reached)}"
            )
    demand_gap(certificate.rate, certificate.reached)


def _shown(price: Price | None) -> str:
    return "no more" if price is None else f"{price.what!r} with a share of {float(price.share)}"


def price_list(network: Network, dual: Dual, rate: Fraction) -> tuple[Price, ...]:
    """What the bound pays for, dearest first. By complementary slackness these are the bottlenecks."""
    prices = []
    for resource, price in zip(network.resources, dual.prices, strict=True):
        gain = Fraction(price, dual.denominator)
        share = gain * resource.rate / rate
        if share > NEGLIGIBLE:
            prices.append(Price(resource.what, share, resource.count, gain, resource.nics))
    return tuple(sorted(prices, key=lambda p: (-p.share, p.what)))
