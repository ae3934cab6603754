"""A lower bound on AllReduce time that knows latency and the cost of a chunk, for every cluster; exact.

The largest of six, each a theorem about schedules of whole chunks in the simulator's model:

* any bound on bytes, and alpha and one chunk beside it, since no port works in the first or the last alpha;
* one server, whose bytes leave (or enter) it in chunks that another rank passes on once whole: its last chunks must be
  small, hence many;
* one server's NICs together, whose last chunks need the ports of all others together;
* two starving servers: A and B, which need nearly all the time for their own bytes. What A sends for B by way of others
  waits for whole chunks twice; what A sends to B directly uses ports of both once more;
* chunks of no bytes, which tell all servers of one, or one of all: what few bytes cost;
* chunks of one hop: where there is no time for two, they carry all data of all others to a server.

Statements and proofs: proofs/written/chunk-costs.md, starving-pair.md, postal.md and one-hop.md, proof ids chunk-costs,
starving-pair, postal and one-hop.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from optcc.errors import InputError
from optcc.simulation.faults import LONGEST_S
from optcc.values.bound import (
    Bound,
    BoundWithCosts,
    CutCosts,
    Direction,
    FluidCosts,
    OneHopCosts,
    PairCosts,
    Part,
    PostalCosts,
    TogetherCosts,
)
from optcc.values.cluster import Cluster, Server

TICKS_PER_S = 10**12
"""The simulator's clock counts picoseconds; costs are rounded to them as it does, so that both mean the same."""
THIRDS = 60
"""Steps of a search, each of which leaves two thirds: to 1e-10 of what is searched. Any place gives a bound."""


def bound_with_costs(
    cluster: Cluster, bound: Bound, alpha: Fraction | int, per_chunk: Fraction | int, collective: str = "allreduce"
) -> BoundWithCosts:
    """The least time at `alpha` per hop and `per_chunk` per chunk and port, in seconds; `bound` is that without costs.

    Other collectives have the first of these bounds only. Raises InputError for costs out of range.
    """
    for name, seconds in (("--alpha", alpha), ("--per-chunk", per_chunk)):
        if not 0 <= seconds <= LONGEST_S:
            raise InputError("time out of range", where=name, expected=f"0 to {LONGEST_S} s", got=str(seconds)[:60])
    a, o = (Fraction(round(Fraction(cost) * TICKS_PER_S), TICKS_PER_S) for cost in (alpha, per_chunk))
    found = [_fluid(bound, a, o)]
    if bound.seconds and collective == "allreduce":
        found += _cuts(cluster, bound, a, o)
        found += _pairs(cluster, bound, a, o)
        found += _postal(cluster, bound, a, o)
        least = max(one.seconds for one in found)
        found += _one_hop(cluster, bound, a, o) if 2 * (a + o) > least else ()
    return max(found, key=lambda one: one.seconds)  # at a tie the simplest, which comes first


def _fluid(bound: Bound, alpha: Fraction, per_chunk: Fraction) -> BoundWithCosts:
    chunks = int(bound.seconds > 0)  # none if there is nothing to send
    parts = (
        Part("for the bytes", bound.seconds),
        Part("until the last chunk of a port has arrived", chunks * alpha),
        Part("for one chunk at every port", chunks * per_chunk),
    )
    seconds = bound.seconds + chunks * (alpha + per_chunk)
    return BoundWithCosts(seconds, bound, alpha, per_chunk, FluidCosts(), parts)


# One server, whose bytes others pass on


def outside_ranks(cluster: Cluster, server: int) -> int:
    """Q, how many ranks are not in the server."""
    return len(cluster.ranks) - (cluster.servers[server].gpus if cluster.gpu_ranks else 1)


def fastest_ranks(cluster: Cluster, direction: Direction) -> list[Fraction]:
    """For each server, the rate of its fastest rank, one way, over NICs and NVLink; bytes per second."""
    rates = [Fraction(0)] * len(cluster.servers)
    for rank in cluster.ranks:
        nvlink = cluster.servers[rank.server].nvlink_rate if cluster.gpu_ranks else Fraction(0)
        rate = (rank.out_rate if direction == "out" else rank.in_rate) + nvlink
        rates[rank.server] = max(rates[rank.server], rate)
    return rates


def live_rates(server: Server, direction: Direction) -> tuple[Fraction, ...]:
    """Rates of the NICs that carry anything in that direction, in order; bytes per second."""
    rates = (nic.out_rate if direction == "out" else nic.in_rate for nic in server.nics)
    return tuple(rate for rate in rates if rate)


def growth(rate: Fraction, others: Fraction) -> Fraction:
    """c: by how much the time left before a chunk exceeds the one left after it, at most.

    rate : of the NIC; others : of the fastest rank that passes on what it carries. At least 2, so that few counts of
    chunks need trying: a larger c gives a lower bound.
    """
    return max(Fraction(2), 1 + others / rate)


def least_loss(span: Fraction, per_chunk: Fraction, c: Fraction, kept: Fraction) -> Fraction:
    """E: the least of o M + kept s over M = 0, 1, ... chunks and s >= 0 with c^M s + o (1 + c + ... + c^(M-1)) >= span.

    span : seconds; per_chunk : o, seconds; kept : 1 - 1/Q, from 0 to 1. Seconds. Proof id chunk-costs.
    """
    if span <= 0 or not per_chunk:
        return Fraction(0)
    least, count, power, chunks = kept * span, 0, Fraction(1), Fraction(0)
    while per_chunk * (count + 1) < least:
        count, power, chunks = count + 1, power * c, chunks * c + 1
        least = min(least, per_chunk * count + kept * max(Fraction(0), span - per_chunk * chunks) / power)
    return least


GRAIN = 1024
"""Parts of 1 in which a multiple is rounded up, so that fractions stay short; at 1, bounds are 0.1 us lower."""


def multiple(rate: Fraction, others: Fraction, ranks: int) -> Fraction:
    """kappa: for how much more time a server may still have to send than is left to pass it on, on average over NICs.

    rate : of all the server's NICs; others : of all NICs and NVLink of the `ranks` ranks that are not in it. Rounded up
    to `GRAIN`, and at least 2, as a larger one gives a lower bound: so few counts of chunks need trying.
    """
    return max(Fraction(2), Fraction(math.ceil(GRAIN * others / (rate * (ranks - 1))), GRAIN))


def least_loss_together(span: Fraction, per_chunk: Fraction, nics: int, kappa: Fraction, kept: Fraction) -> Fraction:
    """E: the least of kept s + o G/K over G = 0, 1, ... chunks and s >= 0 that fill `span`, seconds.

    per_chunk : o, seconds; nics : K; kept : 1 - 1/Q, from 0 to 1
    G chunks fill at most sum w_i (K s + o i)/W, i = 0..G: each weight is the mean of the K before it over `kappa`, and
    W counts the last K weights, the last one K times, the one before it K-1 times, and so on. Proof id chunk-costs.
    """
    if span <= 0 or not per_chunk:
        return Fraction(0)
    least, weights, step = kept * span, [Fraction(1)], per_chunk / nics
    total, numbered = Fraction(1), Fraction(0)  # sums of w_i, of i w_i
    while step * len(weights) < least:
        weights.append(sum(weights[-nics:], Fraction(0)) / (nics * kappa))
        count = len(weights) - 1
        total, numbered = total + weights[-1], numbered + count * weights[-1]
        last = sum((times * w for times, w in zip(range(nics, 0, -1), reversed(weights), strict=False)), Fraction(0))
        least = min(least, step * count + kept * max(Fraction(0), (span * last / nics - step * numbered) / total))
    return least


def _cuts(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> Iterator[BoundWithCosts]:
    """The bound of every server and direction; of equal ones the first."""
    if len(cluster.servers) < 2:
        return
    directions: tuple[Direction, ...] = ("out", "in")
    for direction in directions:
        fastest = fastest_ranks(cluster, direction)
        order = sorted(range(len(fastest)), key=lambda s: fastest[s], reverse=True)
        seen = set()
        for s, server in enumerate(cluster.servers):
            others, q = fastest[order[s == order[0]]], outside_ranks(cluster, s)
            rates, every = live_rates(server, direction), outside_rate(cluster, s, direction)
            if rates and (rates, others, every, q) not in seen:
                seen.add((rates, others, every, q))
                work = bound.nbytes / sum(rates, Fraction(0))
                span, kept = work - alpha / q, 1 - Fraction(1, q)
                each = {r: least_loss(span, per_chunk, growth(r, others), kept) for r in set(rates)}
                lost = sum((r * each[r] for r in rates), Fraction(0)) / sum(rates, Fraction(0))
                found: CutCosts | TogetherCosts = CutCosts(s, direction, tuple(each[r] for r in rates))
                if len(each) == 1 and kept:
                    kappa = multiple(sum(rates, Fraction(0)), every, q)
                    together = least_loss_together(span, per_chunk, len(rates), kappa, kept)
                    if together > lost:
                        lost, found = together, TogetherCosts(s, direction, together)
                yield _one_server(cluster, bound, found, work, lost, alpha, per_chunk)


def outside_rate(cluster: Cluster, server: int, direction: Direction) -> Fraction:
    """C, what all ranks that are not in the server carry one way, over NICs and NVLink; bytes per second."""
    total = Fraction(0)
    for rank in cluster.ranks:
        if rank.server != server:
            total += rank.out_rate if direction == "out" else rank.in_rate
            total += cluster.servers[rank.server].nvlink_rate if cluster.gpu_ranks else 0
    return total


def _one_server(
    cluster: Cluster,
    bound: Bound,
    certificate: CutCosts | TogetherCosts,
    work: Fraction,
    lost: Fraction,
    alpha: Fraction,
    per_chunk: Fraction,
) -> BoundWithCosts:
    """work, lost : seconds of the server's bytes, and of its chunks"""
    server, q = cluster.servers[certificate.server].name, outside_ranks(cluster, certificate.server)
    way, last = ("leave", "last") if certificate.direction == "out" else ("enter", "first")
    hops = f"until its {last} chunk has gone two hops, or all copies of it one"
    parts = (
        Part(f"for the bytes that must {way} {server}", work),
        Part(hops, alpha + min((q - 1) * work, (1 - Fraction(1, q)) * alpha)),
        Part("for a chunk at the rank that passes it on", per_chunk),
        Part(f"for chunks at {server}, the {last} of them small", lost),
    )
    seconds = sum((part.seconds for part in parts), Fraction(0))
    return BoundWithCosts(seconds, bound, alpha, per_chunk, certificate, parts)


# Two starving servers


def _pairs(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> Iterator[BoundWithCosts]:
    index = {server.name: s for s, server in enumerate(cluster.servers)}
    for a, b, (weight, levels), seconds in _pair_bounds(cluster, bound.nbytes, alpha, per_chunk):
        fluid = 2 * bound.nbytes / (a.out_rate + b.out_rate)
        parts = (
            Part(f"for the bytes of {a.name} and {b.name}", fluid),
            Part("for waiting until chunks between them are whole, or for sending more directly", seconds - fluid),
        )
        certificate = PairCosts((index[a.name], index[b.name]), weight, levels)
        yield BoundWithCosts(seconds, bound, alpha, per_chunk, certificate, parts)


def spared(level: Fraction, per_chunk: Fraction, price: Fraction) -> Fraction:
    """S: the sum over i = 1, 2, ... of (level - o i)^2/2 - price where level > o i and that is above 0; exact.

    level, per_chunk : seconds, above 0, or level is 0; price : seconds squared, 0 or more. Proof id starving-pair.
    """

    def gains(i: int) -> bool:
        return level > per_chunk * i and (level - per_chunk * i) ** 2 > 2 * price

    chunks = max(0, math.floor((float(level) - math.sqrt(2 * price)) / float(per_chunk))) if level else 0
    while chunks and not gains(chunks):
        chunks -= 1
    while level and gains(chunks + 1):
        chunks += 1
    squares = Fraction(chunks * (chunks + 1) * (2 * chunks + 1), 6)
    return (chunks * level**2 - level * per_chunk * chunks * (chunks + 1) + per_chunk**2 * squares) / 2 - price * chunks


def starving_pair_s(cluster: Cluster, nbytes: int, alpha: Fraction | int, per_chunk: Fraction | int) -> Fraction | None:
    """Seconds that no AllReduce of `nbytes` bytes per server undercuts if its transfers are whole chunks; exact.

    alpha : seconds from port to port; per_chunk : seconds for each chunk at each port, as in `optcc.simulate`
    None where the theorem has no pair: GPUs as ranks, fewer than three servers, no two servers whose live NICs are all
    of one rate both ways. Of the pairs there are, those with the largest cut times. Beside two servers that do not
    starve it is below `lower_bound`: take the larger of the two. Raises InputError for values below 0.
    """
    for name, value in (("size", nbytes), ("alpha", alpha), ("per_chunk", per_chunk)):
        if value < 0:
            raise InputError("value out of range", where=name, expected="0 or more", got=str(value))
    costs = Fraction(alpha), Fraction(per_chunk)
    return max((seconds for *_, seconds in _pair_bounds(cluster, nbytes, *costs)), default=None)


PairPrices = tuple[Fraction, tuple[Fraction, Fraction]]
"""`weight` and `levels` of a `PairCosts`."""


def _pair_bounds(
    cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction
) -> Iterator[tuple[Server, Server, PairPrices, Fraction]]:
    """(A, B, prices, seconds) of the slowest pairs; of none where the theorem has none."""
    if cluster.gpu_ranks or len(cluster.servers) < 3:
        return
    for a, b in slowest_pairs(cluster):
        rates = a.out_rate, b.out_rate
        prices = pair_prices(rates, nbytes, alpha, per_chunk)
        yield a, b, prices, pair_s(rates, nbytes, prices, alpha, per_chunk)


def nic_rate(server: Server) -> Fraction | None:
    """The rate of all live NICs of `server`, both ways, bytes per second; None if they have several."""
    live = [nic for nic in server.nics if nic.alive]
    each = {rate for nic in live for rate in (nic.out_rate, nic.in_rate)}
    return each.pop() if len(each) == 1 else None


def slowest_pairs(cluster: Cluster) -> list[tuple[Server, Server]]:
    """For each NIC rate that two servers have on all their live NICs, both ways: the slowest two of them."""
    of_rate: dict[Fraction, list[Server]] = {}
    for server in cluster.servers:
        rate = nic_rate(server)
        if rate is not None:
            of_rate.setdefault(rate, []).append(server)
    slowest = (sorted(servers, key=lambda s: s.out_rate) for servers in of_rate.values() if len(servers) > 1)
    return [(a, b) for a, b, *_ in slowest]


def pair_s(
    rates: tuple[Fraction, Fraction], nbytes: int, prices: PairPrices, alpha: Fraction, per_chunk: Fraction
) -> Fraction:
    """The bound at these prices, seconds. A bound whatever they are.

    rates : of A and of B in all, one way, bytes per second; nbytes : bytes per server
    """
    if not nbytes:
        return Fraction(0)
    (weight, levels), cuts = prices, [nbytes / rate for rate in rates]
    once = nbytes / (rates[0] + rates[1])
    price = weight / (1 - weight) * per_chunk * once
    saved = sum((spared(level, per_chunk, price) / cut for level, cut in zip(levels, cuts, strict=True)), Fraction(0))

    def at(direct: int) -> Fraction:
        """If all elements are direct, or none."""
        waits = (cuts[0] + cuts[1]) / 2 + (levels[0] + levels[1]) * (1 - direct) - saved + (2 - direct) * alpha
        return weight * (alpha + once * (2 + direct)) + (1 - weight) * waits

    return min(at(0), at(1))


def pair_prices(rates: tuple[Fraction, Fraction], nbytes: int, alpha: Fraction, per_chunk: Fraction) -> PairPrices:
    """About those at which the bound is best: at these, direct elements make no difference to it."""
    none = Fraction(0), Fraction(0)
    if not nbytes:
        return Fraction(0), none
    once = nbytes / (rates[0] + rates[1])
    least = alpha / (alpha + once)
    if not per_chunk:
        return least, none
    bound_at: Any = pair_s  # in floats, which is near enough for a search
    about, costs = (tuple(map(float, rates)), nbytes), (float(alpha), float(per_chunk))

    def levels_at(weight: float) -> tuple[float, float]:
        both = max(0.0, weight / (1 - weight) * float(once) - costs[0])
        one = both / 2
        if rates[0] != rates[1]:
            one = _highest(0.0, both, lambda x: float(bound_at(*about, (weight, (x, both - x)), *costs)))
        return one, both - one

    def value(weight: float) -> float:
        return float(bound_at(*about, (weight, levels_at(weight)), *costs))

    found = _highest(float(least), (1 + float(least)) / 2, value)
    weight = max(least, Fraction(round(found * 2**40), 2**40))
    both = weight / (1 - weight) * once - alpha
    one = min(both, Fraction(round(levels_at(found)[0] * SPANS_PER_S), SPANS_PER_S))
    return weight, (one, both - one)


def _highest(low: float, high: float, of: Callable[[float], float]) -> float:
    """About where a concave function is highest."""
    for _ in range(THIRDS):
        third = (high - low) / 3
        if of(low + third) < of(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


# Chunks of no bytes


def live_nics(cluster: Cluster, direction: Direction) -> list[int]:
    """For each server, how many NICs carry anything in that direction."""
    return [len(live_rates(server, direction)) for server in cluster.servers]


def earliest(own: int, others: list[int], alpha: Fraction, per_chunk: Fraction) -> tuple[tuple[Fraction, int], ...]:
    """(seconds, how many): when the other servers can hold something from one, soonest first; per_chunk > 0.

    own : ports of that server, 1 or more; others : ports of the others. All ports that can send do, and of the servers
    that are left the one with most ports is told next: proof id postal.
    """
    left, found = sorted(others), list[tuple[Fraction, int]]()
    landing, ports = [alpha + per_chunk], {alpha + per_chunk: own}  # when so many ports' next chunks land
    while left:
        now = heapq.heappop(landing)
        sending = ports.pop(now)
        told = [left.pop() for _ in range(min(sending, len(left)))]
        found.append((now, len(told)))
        for when, more in ((now + per_chunk, sending), (now + alpha + per_chunk, sum(told))):
            if when not in ports:
                heapq.heappush(landing, when)
            ports[when] = ports.get(when, 0) + more
    return tuple(found)


def _postal(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> Iterator[BoundWithCosts]:
    """For each direction the bound of a server with the fewest ports, which is the largest."""
    if not per_chunk or len(cluster.servers) < 2:
        return
    directions: tuple[Direction, ...] = ("out", "in")
    for direction in directions:
        nics = live_nics(cluster, direction)
        s = nics.index(min(nics))
        arrivals = earliest(nics[s], nics[:s] + nics[s + 1 :], alpha, per_chunk)
        name, seconds = cluster.servers[s].name, arrivals[-1][0]
        what = f"until {name} can have told all" if direction == "out" else f"until all can have told {name}"
        parts = (Part(f"{what}, {nics[s]} chunk{'s' * (nics[s] > 1)} at a time", seconds),)
        yield BoundWithCosts(seconds, bound, alpha, per_chunk, PostalCosts(s, direction, arrivals), parts)


# Chunks of one hop


SPANS_PER_S = 10**15
"""Spans of one hop are whole femtoseconds: a thousandth of what the simulator tells apart."""


def carried(rate: Fraction, nbytes: int, span: Fraction, per_chunk: Fraction) -> Fraction:
    """The most that c = 0, 1, ... chunks of `nbytes` bytes or less bring a NIC in `span` seconds: the least of c nbytes
    and of (span - c per_chunk) rate, for the best c. Bytes; proof id one-hop.

    rate : bytes per second; per_chunk : seconds of the NIC's for each chunk
    """
    chunks = math.floor(span * rate / (nbytes + per_chunk * rate))  # so many arrive whole
    return max(chunks * Fraction(nbytes), (span - (chunks + 1) * per_chunk) * rate)


def one_hop_bytes(
    cluster: Cluster, server: int, direction: Direction, nbytes: int, span: Fraction, o: Fraction
) -> Fraction:
    """What all NICs of a server carry that way in `span` seconds, `o` of them for each chunk; bytes."""
    rates = live_rates(cluster.servers[server], direction)
    return sum((rates.count(r) * carried(r, nbytes, span, o) for r in set(rates)), Fraction(0))


def _one_hop(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> Iterator[BoundWithCosts]:
    """The bound of every server and direction; of equal ones the first."""
    if len(cluster.servers) < 2:
        return
    need, most = (len(cluster.servers) - 1) * bound.nbytes, alpha + 2 * per_chunk
    directions: tuple[Direction, ...] = ("out", "in")
    for direction in directions:
        seen = set()
        for s, server in enumerate(cluster.servers):
            rates = live_rates(server, direction)
            if not rates or rates in seen:
                continue
            seen.add(rates)
            low, high = 0, math.floor(most * SPANS_PER_S)  # at `low` they cannot, at `high` they may
            while high - low > 1:
                middle = Fraction((low + high) // 2, SPANS_PER_S)
                if one_hop_bytes(cluster, s, direction, bound.nbytes, middle, per_chunk) < need:
                    low = (low + high) // 2
                else:
                    high = (low + high) // 2
            whole = one_hop_bytes(cluster, s, direction, bound.nbytes, most, per_chunk) < need
            span = most if whole else Fraction(low, SPANS_PER_S)
            what = f"for {server.name} to get" if direction == "in" else f"for all to get from {server.name}"
            parts = (
                Part("until the first chunk has arrived", alpha),
                Part(f"{what} all data in chunks of one hop, or for a second hop", span),
            )
            yield BoundWithCosts(alpha + span, bound, alpha, per_chunk, OneHopCosts(s, direction, span), parts)
