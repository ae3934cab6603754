"""Lower bounds on AllReduce time, exact: in closed form where that is the optimum, by the program elsewhere.

On one non-blocking fabric with one rank per server the largest of four terms. Sources: cut (every contribution leaves
its server, every result enters; entropy argument), traffic (2(P-1) n are sent in all: for schedules that forward and
add the one-way gossip bound, Harary and Schwenk, "The communication problem on graphs and digraphs", 1974; for any
protocol id coding). Statements and proofs: proofs/README.md, ids cut and traffic. Reached on a non-blocking fabric for
any rates (id attained), by nested rings where rates in and out agree (id nested-rings).
"""

from __future__ import annotations

from fractions import Fraction

from optcc.bound import Bound, Certificate, Direction, ProgramCertificate, check_certificate
from optcc.cluster import Cluster, Rank
from optcc.errors import CertificateError, InfeasibleError, InputError
from optcc.units import MAX_BYTES, format_rate


def lower_bound(cluster: Cluster, nbytes: int) -> Bound:
    """The least time of an AllReduce of `nbytes` bytes per rank on `cluster`, with its certificate.

    On a non-blocking fabric with servers as ranks, T = n max(1/min B_out, 1/min B_in, 2(P-1)/sum B_out,
    2(P-1)/sum B_in), exact. With rails, pods or GPUs as ranks, the program's optimum (over tree pairs, see program.py),
    to a gap below 1e-6. Seconds; latency is ignored. Raises InfeasibleError when a rank is cut off one way, InputError
    for a size out of range.
    """
    _check_size(nbytes)
    if len(cluster.ranks) > 1 and (cluster.gpu_ranks or not cluster.fabric.flat):
        return program_bound(cluster, nbytes)
    certificate = _tightest(cluster.ranks, nbytes)
    return Bound(
        nbytes=nbytes,
        seconds=certificate.seconds,
        fault_free_s=_tightest(cluster.fault_free.ranks, nbytes).seconds,
        bottleneck=in_words(cluster, certificate),
        certificate=certificate,
    )


def _check_size(nbytes: int) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 0 <= nbytes <= MAX_BYTES:
        expected = "whole bytes, 0 to 2**60"
        raise InputError("size out of range", where="size", expected=expected, got=str(nbytes)[:60])


def program_bound(cluster: Cluster, nbytes: int, collective: str = "allreduce", root: str | None = None) -> Bound:
    """The bound by the program, whatever the fabric, for any of `optcc.theory.collectives`.

    `nbytes` is the whole buffer in bytes: an allgather's result, a reduce-scatter's input. `root` names the rank of a
    broadcast or reduce. Raises as `lower_bound` does.
    """
    from optcc.theory.certify import certify  # SciPy and HiGHS take a while to load, and most bounds need neither
    from optcc.theory.collectives import collective_named

    kind = collective_named(collective)
    _check_size(nbytes)
    if len(cluster.ranks) == 1:
        alone = _tightest(cluster.ranks, nbytes)
        return Bound(nbytes, Fraction(0), Fraction(0), in_words(cluster, alone), alone)
    certificate = certify(cluster, nbytes, kind, root)
    whole = cluster.fault_free
    fault_free_s = certificate.seconds if whole == cluster else certify(whole, nbytes, kind, root).seconds
    dearest = certificate.prices[0]
    return Bound(
        nbytes=nbytes,
        seconds=certificate.seconds,
        fault_free_s=fault_free_s,
        bottleneck=f"{dearest.what}: {100 * float(dearest.share):.3g} % of the limit",
        certificate=certificate,
    )


def check_bound(cluster: Cluster, bound: Bound) -> None:
    """Raise CertificateError unless the bound's certificate, of either kind, proves it on `cluster`, exactly."""
    if not isinstance(bound.certificate, ProgramCertificate):
        check_certificate(cluster, bound)
        return
    from optcc.theory.certify import check_program_certificate

    check_program_certificate(cluster, bound.certificate)
    if (bound.seconds, bound.nbytes) != (bound.certificate.seconds, bound.certificate.nbytes):
        raise CertificateError(f"bound is {bound.seconds} s, the certificate proves {bound.certificate.seconds} s")


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


def in_words(cluster: Cluster, cert: Certificate) -> str:
    """What the certificate says limits `cluster`, for people."""
    if cert.kind == "trivial":
        return "nothing: a single rank has nothing to send"
    way = "send" if cert.direction == "out" else "receive"
    if cert.kind == "traffic":
        return f"the traffic of all {len(cert.ranks)} servers, whose NICs together {way} {format_rate(cert.rate)}"
    server = cluster.servers[cluster.ranks[cert.ranks[0]].server]
    live = sum(nic.alive for nic in server.nics)
    return f"{server.name}, which can {way} {format_rate(cert.rate)} on {live} of {len(server.nics)} NICs"
