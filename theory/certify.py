"""Exact certificates for the program: what the solver found, rounded to rationals and checked without it.

The solver's answer is rounded to rationals here; `duality` checks both sides exactly. A certificate holds them as plain
values, from which the check makes them again. Proof id linear-program.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import zip_longest
from typing import Literal

import numpy as np

from optcc.errors import CertificateError, InputError
from optcc.theory.collectives import ALLREDUCE, CollectiveKind, collective_named
from optcc.theory.cuts import View
from optcc.theory.duality import Dual, add_up_cuts, check_dual, check_primal, least_left_out, payments, views_of
from optcc.theory.network import Network
from optcc.theory.program import BoundProgram, Cut, Primal, Solution
from optcc.theory.ways import build_network
from optcc.values.bound import LARGEST_GAP, DualCut, Price, PrimalFlow, ProgramCertificate, ProgramPrimal
from optcc.values.cluster import Cluster

NEGLIGIBLE = Fraction(1, 10**6)
"""A share of the price below this is rounding, not a bottleneck."""
KEPT = 8
"""Last certificates that are kept, for other sizes: of a cluster, its fault-free one, and theirs after an event."""
_WEIGHT_UNIT = 2**40  # dual weights are whole parts of 1 / this


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
    _demand_gap(rate, reached)
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


def _demand_gap(rate: Fraction, reached: Fraction) -> None:
    if rate > reached * (1 + LARGEST_GAP):
        raise CertificateError(f"the gap between {float(rate)} and {float(reached)} B/s is over {float(LARGEST_GAP)}")


def _plain(primal: Primal) -> ProgramPrimal:
    flows = []
    for (view, reduce), flow in sorted(primal.flows.items()):
        source, target = np.nonzero(flow)
        units = flow[source, target]
        side: Literal["broadcast", "reduce"] = "reduce" if reduce else "broadcast"
        flows.append(PrimalFlow(side, view, tuple(source.tolist()), tuple(target.tolist()), tuple(units.tolist())))
    broadcast, reduce_, roots = (tuple(column.tolist()) for column in (primal.broadcast, primal.reduce, primal.roots))
    return ProgramPrimal(primal.unit, broadcast, reduce_, roots, tuple(flows))


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
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise InputError("no such root", where="--root", expected=f"one of {shown}", got=root)
    server, _, gpu = root.partition("/gpu")
    network = build_network(cluster, apart=server)
    called = f"GPU {gpu} of {server}" if gpu else server
    return network, [t.name for t in network.rank_types].index(called)


def check_rate(cluster: Cluster, certificate: ProgramCertificate) -> tuple[Network, Dual]:
    """The network and the certificate's dual, which proves its rate on `cluster`, exactly, without a solver.

    Raises CertificateError where it does not.
    """
    collective = collective_named(certificate.collective)
    network, at = rooted_network(cluster, collective, certificate.root)
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
    dual = Dual(tuple(cuts), weights, certificate.resource_prices, certificate.denominator)
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
    _demand_gap(certificate.rate, certificate.reached)


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
