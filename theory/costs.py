"""A lower bound on AllReduce time that knows latency and the cost of a chunk, for every cluster; exact.

The largest of three, each a theorem about schedules of whole chunks in the simulator's model:

* any bound on bytes, and alpha and one chunk beside it, since no port works in the first or the last alpha;
* one server, whose bytes leave (or enter) it in chunks that another rank passes on once whole: its last chunks must be
  small, hence many;
* two starving servers (theory/starving_pair.py).

Statements and proofs: proofs/written/chunk-costs.md and starving-pair.md, proof ids chunk-costs and starving-pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from optcc.errors import InputError
from optcc.simulation.faults import LONGEST_S
from optcc.theory.starving_pair import direct_fraction, pair_s, slowest_pairs
from optcc.values.bound import Bound, BoundWithCosts, CutCosts, Direction, FluidCosts, PairCosts, Part
from optcc.values.cluster import Cluster, Server

TICKS_PER_S = 10**12
"""The simulator's clock counts picoseconds; costs are rounded to them as it does, so that both mean the same."""


def bound_with_costs(
    cluster: Cluster, bound: Bound, alpha: Fraction | int, per_chunk: Fraction | int, collective: str = "allreduce"
) -> BoundWithCosts:
    """The least time at `alpha` per hop and `per_chunk` per chunk and port, in seconds; `bound` is that without costs.

    Other collectives have the first of the three bounds only. Raises InputError for costs out of range.
    """
    for name, seconds in (("--alpha", alpha), ("--per-chunk", per_chunk)):
        if not 0 <= seconds <= LONGEST_S:
            raise InputError("time out of range", where=name, expected=f"0 to {LONGEST_S} s", got=str(seconds)[:60])
    a, o = (Fraction(round(Fraction(cost) * TICKS_PER_S), TICKS_PER_S) for cost in (alpha, per_chunk))
    found = [_fluid(bound, a, o)]
    if bound.seconds and collective == "allreduce":
        found += _cuts(cluster, bound, a, o)
        found += _pairs(cluster, bound, a, o)
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
            rates = live_rates(server, direction)
            if rates and (rates, others, q) not in seen:
                seen.add((rates, others, q))
                yield _cut(cluster, bound, (s, direction), others, alpha, per_chunk)


def _cut(
    cluster: Cluster,
    bound: Bound,
    where: tuple[int, Direction],
    others: Fraction,
    alpha: Fraction,
    per_chunk: Fraction,
) -> BoundWithCosts:
    (s, direction), q = where, outside_ranks(cluster, where[0])
    rates, server = live_rates(cluster.servers[s], direction), cluster.servers[s].name
    total = sum(rates, Fraction(0))
    work, kept = bound.nbytes / total, 1 - Fraction(1, q)
    losses = {r: least_loss(work - alpha / q, per_chunk, growth(r, others), kept) for r in set(rates)}
    lost = sum((r * losses[r] for r in rates), Fraction(0)) / total
    way = "leave" if direction == "out" else "enter"
    hops = f"until its {'last' if direction == 'out' else 'first'} chunk has gone two hops, or all copies of it one"
    parts = (
        Part(f"for the bytes that must {way} {server}", work),
        Part(hops, alpha + min((q - 1) * work, kept * alpha)),
        Part("for a chunk at the rank that passes it on", per_chunk),
        Part(f"for chunks at {server}, the {'last' if direction == 'out' else 'first'} of them small", lost),
    )
    seconds = sum((part.seconds for part in parts), Fraction(0))
    certificate = CutCosts(s, direction, tuple(losses[r] for r in rates))
    return BoundWithCosts(seconds, bound, alpha, per_chunk, certificate, parts)


# Two starving servers


def _pairs(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> Iterator[BoundWithCosts]:
    if cluster.gpu_ranks or len(cluster.servers) < 3:
        return
    index = {server.name: s for s, server in enumerate(cluster.servers)}
    for a, b in slowest_pairs(cluster):
        rates = a.out_rate, b.out_rate
        direct = direct_fraction(rates, bound.nbytes, alpha, per_chunk)
        seconds = pair_s(rates, bound.nbytes, direct, alpha, per_chunk)
        fluid = 2 * bound.nbytes / sum(rates, Fraction(0))
        parts = (
            Part(f"for the bytes of {a.name} and {b.name}", fluid),
            Part("for waiting until chunks between them are whole, or for sending more directly", seconds - fluid),
        )
        certificate = PairCosts((index[a.name], index[b.name]), direct)
        yield BoundWithCosts(seconds, bound, alpha, per_chunk, certificate, parts)
