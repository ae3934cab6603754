"""Lower bounds on AllReduce time, exact: in closed form where that is the optimum, by the program elsewhere.

On one non-blocking fabric with one rank per server the largest of four terms. Sources: cut (every contribution leaves
its server, every result enters; entropy argument), traffic (2(P-1) n are sent in all: for schedules that forward and
add the one-way gossip bound, Harary and Schwenk, "The communication problem on graphs and digraphs", 1974; for any
protocol id coding). Statements and proofs: proofs/README.md, ids cut and traffic. Reached on a non-blocking fabric for
any rates (id attained), by nested rings where rates in and out agree (id nested-rings).
"""

from __future__ import annotations

from fractions import Fraction

from optcc.errors import CertificateError, InfeasibleError, InputError
from optcc.values.bound import (
    LARGEST_GAP,
    Bound,
    Certificate,
    Direction,
    Price,
    ProgramCertificate,
    check_certificate,
    closed_form_s,
    in_words,
)
from optcc.values.cluster import Cluster, Rank
from optcc.values.units import MAX_BYTES


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
    fault_free = certificate if whole == cluster else certify(whole, nbytes, kind, root)
    return Bound(
        nbytes=nbytes,
        seconds=certificate.seconds,
        fault_free_s=fault_free.seconds,
        bottleneck=_dearest(certificate.prices),
        certificate=certificate,
        fault_free=fault_free,
    )


def _dearest(prices: tuple[Price, ...]) -> str:
    return f"{prices[0].what}: {100 * float(prices[0].share):.3g} % of the limit"


def check_bound(cluster: Cluster, bound: Bound) -> None:
    """Raise CertificateError unless every field of `bound` is right for `cluster`, exactly, by what proves it.

    A closed form: the certificate proves `seconds`, and no term of the formula is larger; `fault_free_s` is the formula
    on the fault-free cluster. The program: the dual proves the rate and the primal that it is reached to `LARGEST_GAP`,
    here and on the fault-free cluster. `bottleneck` and `prices` must be what follows from the certificate. No solver
    is used, with one exception: a bound of the program without its primals, as in plan files. For these the program is
    solved anew, and must agree to `LARGEST_GAP`.
    """
    cert = bound.certificate
    check_seconds(cluster, bound, cert.collective if isinstance(cert, ProgramCertificate) else "allreduce")
    if isinstance(cert, ProgramCertificate):
        _check_rest(cluster, bound, cert)


def check_seconds(cluster: Cluster, bound: Bound, collective: str = "allreduce") -> None:
    """Raise CertificateError unless the certificate proves `bound.seconds` for `collective`, exactly, and `bottleneck`
    says what it says; without a solver.

    Of the program, nothing else is checked: not that no bound is higher, nor `fault_free_s`. A closed form is checked
    whole.
    """
    cert = bound.certificate
    if isinstance(cert, ProgramCertificate):
        from optcc.theory.certify import check_prices

        if len(cluster.ranks) == 1:
            raise CertificateError("a single rank has no program")
        check_prices(cluster, cert)
        _check_words(bound, _dearest(cert.prices))
        if (bound.seconds, bound.nbytes, collective) != (cert.seconds, cert.nbytes, cert.collective):
            proved = f"{cert.seconds} s for {cert.collective} of {cert.nbytes} bytes"
            raise CertificateError(f"the bound is {bound.seconds} s, the certificate proves {proved}")
        return
    if len(cluster.ranks) > 1 and (cluster.gpu_ranks or not cluster.fabric.flat):
        raise CertificateError("a closed form is for servers as ranks on one non-blocking fabric")
    check_certificate(cluster, bound)
    for name, said, ranks in (
        ("bound", bound.seconds, cluster.ranks),
        ("fault-free bound", bound.fault_free_s, cluster.fault_free.ranks),
    ):
        if said != (right := closed_form_s(ranks, bound.nbytes)):
            raise CertificateError(f"the {name} is {said} s, the closed form says {right} s")
    _check_words(bound, in_words(cluster, cert))


def _check_words(bound: Bound, words: str) -> None:
    if bound.bottleneck != words:
        raise CertificateError(f"the bottleneck is {bound.bottleneck!r}, the certificate says {words!r}")


def _check_rest(cluster: Cluster, bound: Bound, cert: ProgramCertificate) -> None:
    from optcc.theory.certify import check_program_certificate

    check_program_certificate(cluster, cert)
    whole = bound.fault_free
    if cert.primal is None or whole is None or whole.primal is None:
        anew = program_bound(cluster, cert.nbytes, cert.collective, cert.root)
        assert isinstance(anew.certificate, ProgramCertificate)  # as for any two ranks or more
        _demand_near("rate that is reached", cert.reached, anew.certificate.reached, "B/s")
        _demand_near("fault-free bound", bound.fault_free_s, anew.fault_free_s, "s")
        return
    check_program_certificate(cluster.fault_free, whole)
    if (whole.nbytes, whole.collective, whole.root) != (cert.nbytes, cert.collective, cert.root):
        raise CertificateError("the fault-free certificate is for another size, collective or root")
    if bound.fault_free_s != whole.seconds:
        raise CertificateError(
            f"the fault-free bound is {bound.fault_free_s} s, its certificate proves {whole.seconds} s"
        )


def _demand_near(what: str, said: Fraction, found: Fraction, unit: str) -> None:
    if abs(said - found) > LARGEST_GAP * found:
        raise CertificateError(f"the {what} is {float(said)} {unit}, solved anew {float(found)} {unit}")


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
