"""What chunks cost two starving servers: a lower bound on AllReduce time that knows alpha and the cost of a chunk.

The other bounds are fluid. Here a chunk takes o seconds beside its bytes, at the sending and at the receiving port. It
can be sent on only when it has landed whole. Two servers A and B that need nearly all the time for their own bytes lose
time by this. What A sends for B by way of others waits for whole chunks twice; what A sends to B directly uses ports of
both once more. Statement and proof: proofs/written/starving-pair.md, proof id starving-pair.
"""

from __future__ import annotations

import math
from fractions import Fraction

from optcc.errors import InputError
from optcc.values.cluster import Cluster, Server

HALVINGS = 40
"""Steps of the search for the direct fraction at which both terms meet; each of them gives a bound."""


def chunked(work_s: Fraction, per_chunk: Fraction) -> Fraction:
    """G(X): the least of sum x_i^2/2 + o i x_i over chunks x_1, x_2, ... >= 0 of sum X; seconds squared, exact.

    work_s : X, seconds of sending that are cut into chunks; per_chunk : o, seconds for each chunk
    x_i = L - o i for the m chunks with m(m-1)/2 o < X <= m(m+1)/2 o, L = X/m + o(m+1)/2. Proof id starving-pair.
    """
    if not work_s or not per_chunk:
        return Fraction(0)
    # The least m with m(m+1) >= 2X/o.
    chunks = (math.isqrt(4 * math.ceil(2 * work_s / per_chunk)) + 1) // 2
    level = work_s / chunks + per_chunk * (chunks + 1) / 2
    squares = Fraction(chunks * (chunks + 1) * (2 * chunks + 1), 6)
    return (chunks * level**2 - per_chunk**2 * squares) / 2


def ports_s(rates: tuple[Fraction, Fraction], nbytes: int, direct: Fraction) -> Fraction:
    """Seconds that the ports of A and B need if at least `direct` of the elements are direct, each way.

    rates : of A and of B in all, one way, bytes per second; nbytes : bytes per server
    """
    return nbytes * (2 + direct) / sum(rates)


def waiting_s(
    rates: tuple[Fraction, Fraction], nbytes: int, direct: Fraction, alpha: Fraction, per_chunk: Fraction
) -> Fraction:
    """Seconds from A to B if at most `direct` of the elements are direct from A to B; arguments as in `ports_s`.

    alpha : seconds from port to port; per_chunk : seconds for each chunk at each port
    """
    cuts = [nbytes / rate for rate in rates]
    waits = sum((chunked((1 - direct) * cut, per_chunk) / cut for cut in cuts), Fraction(0))
    return sum(cuts, Fraction(0)) / 2 + waits + (2 - direct) * alpha


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
    if cluster.gpu_ranks or len(cluster.servers) < 3:
        return None
    costs = Fraction(alpha), Fraction(per_chunk)
    found = []
    for a, b in slowest_pairs(cluster):
        rates = a.out_rate, b.out_rate
        found.append(pair_s(rates, nbytes, direct_fraction(rates, nbytes, *costs), *costs))
    return max(found, default=None)


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
    rates: tuple[Fraction, Fraction], nbytes: int, direct: Fraction, alpha: Fraction, per_chunk: Fraction
) -> Fraction:
    """The bound at a direct fraction: the smaller of both terms. A bound whatever the fraction."""
    if not nbytes:
        return Fraction(0)
    return min(ports_s(rates, nbytes, direct), waiting_s(rates, nbytes, direct, alpha, per_chunk))


def direct_fraction(rates: tuple[Fraction, Fraction], nbytes: int, alpha: Fraction, per_chunk: Fraction) -> Fraction:
    """About where both terms meet and the bound is best, from below."""
    if not nbytes:
        return Fraction(0)
    low, high = Fraction(0), Fraction(1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if waiting_s(rates, nbytes, middle, alpha, per_chunk) >= ports_s(rates, nbytes, middle):
            low = middle
        else:
            high = middle
    return low
