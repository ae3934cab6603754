"""Lower bounds on AllReduce time on one non-blocking fabric, exact.

Sources: cut (every contribution leaves its server, every result enters; entropy argument), traffic (2(P-1)
transfers per element: the one-way gossip bound, Harary and Schwenk, "The communication problem on graphs and
digraphs", 1974). Statements and proofs: proofs/README.md, ids cut and traffic. Tight on a non-blocking fabric
(id nested-rings).
"""

from __future__ import annotations

from fractions import Fraction

from optcc.bound import Bound, Certificate, Direction
from optcc.cluster import Cluster, Rank
from optcc.errors import InfeasibleError, InputError
from optcc.units import MAX_BYTES, format_rate


def lower_bound(cluster: Cluster, nbytes: int) -> Bound:
    """The least time of an AllReduce of `nbytes` bytes per rank on `cluster`, with its certificate.

    T = n max(1/min B_out, 1/min B_in, 2(P-1)/sum B_out, 2(P-1)/sum B_in); seconds, exact, latency ignored.
    Raises InfeasibleError when a rank has no live NIC one way, InputError for a size out of range.
    """
    if not 0 <= nbytes <= MAX_BYTES:
        raise InputError("size out of range", where="size", expected="0 to 2**60 bytes", got=nbytes)
    certificate = _tightest(cluster.ranks, nbytes)
    return Bound(
        nbytes=nbytes,
        seconds=certificate.seconds,
        fault_free_s=_tightest(cluster.fault_free.ranks, nbytes).seconds,
        bottleneck=_in_words(cluster, certificate),
        certificate=certificate,
    )


def certificates(ranks: tuple[Rank, ...], nbytes: int) -> list[Certificate]:
    """Every cut of one rank and both traffic sums, as certificates (each a valid lower bound)."""
    found = []
    directions: tuple[Direction, ...] = ("out", "in")
    for direction in directions:
        rates = [r.out_rate if direction == "out" else r.in_rate for r in ranks]
        for rank, rate in zip(ranks, rates, strict=True):
            if not rate:
                raise InfeasibleError(
                    "no AllReduce is possible",
                    where=rank.name,
                    expected=f"at least one live NIC {'out of' if direction == 'out' else 'into'} every server",
                    got="none",
                    hint="Repair a NIC of this server or leave the server out of the job.",
                )
            found.append(Certificate("cut", direction, (rank.index,), nbytes, rate))
        everyone = tuple(r.index for r in ranks)
        found.append(
            Certificate("traffic", direction, everyone, 2 * (len(ranks) - 1) * nbytes, sum(rates, Fraction(0)))
        )
    return found


def _tightest(ranks: tuple[Rank, ...], nbytes: int) -> Certificate:
    if len(ranks) == 1:
        return Certificate("trivial", "out", (0,), 0, ranks[0].out_rate)
    # At a tie the sum is named first: repairing one server alone would not help.
    return max(certificates(ranks, nbytes), key=lambda c: (c.seconds, c.kind == "traffic"))


def _in_words(cluster: Cluster, cert: Certificate) -> str:
    if cert.kind == "trivial":
        return "nothing: a single rank has nothing to send"
    way = "send" if cert.direction == "out" else "receive"
    if cert.kind == "traffic":
        return f"the traffic of all {len(cert.ranks)} servers, whose NICs together {way} {format_rate(cert.rate)}"
    server = cluster.servers[cluster.ranks[cert.ranks[0]].server]
    live = sum(nic.alive for nic in server.nics)
    return f"{server.name}, which can {way} {format_rate(cert.rate)} on {live} of {len(server.nics)} NICs"
