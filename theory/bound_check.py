"""The checks of bounds: against the cluster, exactly, without knowing how the bound was found.

Of a bound with costs, what a server loses is not computed again. A claimed loss stands if no number of chunks with a
smaller loss can fill the time available. This is tried for every number, chunk by chunk from the last. Of times by
which servers can have been told, what ports can have sent before each is counted. Proof ids chunk-costs, starving-pair,
postal, one-hop.
"""

from __future__ import annotations

import math
from fractions import Fraction

from optcc.errors import CertificateError
from optcc.theory.bound_costs import (
    growth,
    live_nics,
    live_rates,
    multiple,
    nic_rate,
    one_hop_bytes,
    outside_ranks,
    pair_s,
)
from optcc.theory.bounds import dearest, program_bound
from optcc.values.bound import (
    LARGEST_GAP,
    Bound,
    BoundWithCosts,
    CutCosts,
    FluidCosts,
    OneHopCosts,
    PairCosts,
    PostalCosts,
    ProgramCertificate,
    TogetherCosts,
    check_certificate,
    closed_form_s,
    in_words,
)
from optcc.values.cluster import Cluster


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
        from optcc.theory.certificates import check_prices

        if len(cluster.ranks) == 1:
            raise CertificateError("a single rank has no program")
        check_prices(cluster, cert)
        _check_words(bound, dearest(cert.prices))
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
    from optcc.theory.certificates import check_program_certificate

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


def check_bound_with_costs(cluster: Cluster, found: BoundWithCosts) -> None:
    """Raise CertificateError unless `found` and the bound without costs in it are proved on `cluster`, exactly."""
    check_bound(cluster, found.bound)
    if min(found.alpha, found.per_chunk) < 0:
        raise CertificateError("a cost is negative")
    cert, collective = found.certificate, getattr(found.bound.certificate, "collective", "allreduce")
    if not isinstance(cert, FluidCosts) and collective != "allreduce":
        raise CertificateError(f"a {cert.kind} certificate is about AllReduce alone, not {collective}")
    if isinstance(cert, CutCosts | TogetherCosts):
        proved = _cut_s(cluster, found, cert)
    elif isinstance(cert, PairCosts):
        proved = _pair_s(cluster, found, cert)
    elif isinstance(cert, PostalCosts):
        proved = _postal_s(cluster, found, cert)
    elif isinstance(cert, OneHopCosts):
        proved = _one_hop_s(cluster, found, cert)
    else:
        base = found.bound.seconds
        proved = base + found.alpha + found.per_chunk if base else Fraction(0)
    if found.seconds != proved:
        raise CertificateError(f"bound is {found.seconds} s, the certificate proves {proved} s")
    if sum((part.seconds for part in found.parts), Fraction(0)) != found.seconds:
        raise CertificateError("the parts do not sum to the bound")


def _cut_s(cluster: Cluster, found: BoundWithCosts, cert: CutCosts | TogetherCosts) -> Fraction:
    """The seconds that a certificate about one server proves."""
    if not 0 <= cert.server < len(cluster.servers) or len(cluster.servers) < 2:
        raise CertificateError(f"certificate names server {cert.server}, the cluster has {len(cluster.servers)}")
    rates, q = live_rates(cluster.servers[cert.server], cert.direction), outside_ranks(cluster, cert.server)
    outside = [_rate(cluster, r, cert) for r, rank in enumerate(cluster.ranks) if rank.server != cert.server]
    total, o = sum(rates, Fraction(0)), found.per_chunk
    if not rates:
        raise CertificateError(f"server {cert.server} has no NIC in this direction")
    work = found.bound.nbytes / total
    span, kept = max(Fraction(0), work - found.alpha / q), 1 - Fraction(1, q)
    if isinstance(cert, TogetherCosts):
        if len(set(rates)) > 1:
            raise CertificateError(f"the NICs of server {cert.server} are not all of one rate")
        if q == 1:
            raise CertificateError("nobody passes on what the server sends to the only other rank")
        lost, kappa = cert.loss, multiple(total, sum(outside, Fraction(0)), q)
        check_loss_together(lost, span, o, len(rates), kappa, kept)
    else:
        if len(cert.losses) != len(rates):
            raise CertificateError(
                f"certificate has the losses of {len(cert.losses)} NICs, the server has {len(rates)}"
            )
        for rate, loss in zip(rates, cert.losses, strict=True):
            check_loss(loss, span, o, growth(rate, max(outside)), kept)
        lost = sum((r * loss for r, loss in zip(rates, cert.losses, strict=True)), Fraction(0)) / total
    return found.alpha + o + min(q * work, work + kept * found.alpha) + lost


def _rate(cluster: Cluster, rank: int, cert: CutCosts | TogetherCosts) -> Fraction:
    """What a rank passes on in that direction, over NICs and NVLink."""
    own = cluster.ranks[rank]
    nvlink = cluster.servers[own.server].nvlink_rate if cluster.gpu_ranks else Fraction(0)
    return (own.out_rate if cert.direction == "out" else own.in_rate) + nvlink


def check_loss(loss: Fraction, span: Fraction, per_chunk: Fraction, c: Fraction, kept: Fraction) -> None:
    """Raise CertificateError if so many chunks fill `span` seconds and lose less than `loss`; arguments in seconds.

    With M chunks (loss - o M) / kept is left after the last of them, c times that and o before it, and so on.
    """
    if loss < 0:
        raise CertificateError(f"a loss of {loss} s")
    if loss and not (kept and per_chunk):
        raise CertificateError(f"a loss of {loss} s where chunks cost nothing, or nothing must be passed on")
    count = 0
    while per_chunk * count < loss:
        left = (loss - per_chunk * count) / kept
        for _ in range(count):
            left = c * left + per_chunk
        if left > span:
            raise CertificateError(f"{count} chunks lose less than {loss} s")
        count += 1


def check_loss_together(
    loss: Fraction, span: Fraction, per_chunk: Fraction, nics: int, kappa: Fraction, kept: Fraction
) -> None:
    """Raise CertificateError if so many chunks of `nics` NICs together fill `span` seconds and lose less than `loss`.

    Of G chunks, condition i = 0..G says that the K next greater of the times left, of which the last K are `span`, sum
    to at most K s + o i + K kappa times the i-th, s = (loss - o G/K)/kept. Weights that leave nothing of all but the
    last K times: those of condition i, from the last one back.
    """
    if loss < 0:
        raise CertificateError(f"a loss of {loss} s")
    if loss and not (kept and per_chunk):
        raise CertificateError(f"a loss of {loss} s where chunks cost nothing, or nothing must be passed on")
    count = 0
    while per_chunk * count < loss * nics:
        left = (loss - per_chunk * count / nics) / kept
        weights = [Fraction(1)]
        for time in range(1, count + 1):  # it stands on the left of conditions time - nics to time - 1
            weights.append(sum(weights[max(0, time - nics) : time], Fraction(0)) / (nics * kappa))
        room = sum((w * (nics * left + per_chunk * i) for i, w in enumerate(weights)), Fraction(0))
        # Of the times from the count-th on, condition i has those that are at most nics places after it.
        filled = sum((w * max(0, i + nics - count) for i, w in enumerate(weights)), Fraction(0)) * span
        if room > filled:
            raise CertificateError(f"{count} chunks of all NICs lose less than {loss} s")
        count += 1


def _pair_s(cluster: Cluster, found: BoundWithCosts, cert: PairCosts) -> Fraction:
    """The seconds that the certificate about two starving servers proves."""
    a, b = cert.servers
    if (
        cluster.gpu_ranks
        or len(cluster.servers) < 3
        or a == b
        or not 0 <= min(a, b) <= max(a, b) < len(cluster.servers)
    ):
        raise CertificateError(f"servers {a} and {b} are not two of three or more ranks")
    pair = cluster.servers[a], cluster.servers[b]
    if nic_rate(pair[0]) is None or nic_rate(pair[0]) != nic_rate(pair[1]):
        raise CertificateError(f"the live NICs of {pair[0].name} and {pair[1].name} are not all of one rate")
    if not 0 <= cert.weight < 1 or min(cert.levels) < 0 or (max(cert.levels) and not found.per_chunk):
        raise CertificateError(f"a weight of {cert.weight}, levels of {cert.levels} s")
    rates = pair[0].out_rate, pair[1].out_rate
    return pair_s(rates, found.bound.nbytes, (cert.weight, cert.levels), found.alpha, found.per_chunk)


def _postal_s(cluster: Cluster, found: BoundWithCosts, cert: PostalCosts) -> Fraction:
    """The seconds that the certificate about chunks of no bytes proves."""
    count = len(cluster.servers)
    if not 0 <= cert.server < count or count < 2:
        raise CertificateError(f"certificate names server {cert.server}, the cluster has {count}")
    if not found.bound.seconds:
        raise CertificateError("a certificate of chunks where nothing is sent")
    nics = live_nics(cluster, cert.direction)
    own = nics.pop(cert.server)
    check_arrivals(cert.arrivals, own, nics, found.alpha, found.per_chunk)
    return cert.arrivals[-1][0]


def _one_hop_s(cluster: Cluster, found: BoundWithCosts, cert: OneHopCosts) -> Fraction:
    """The seconds that the certificate about chunks of one hop proves."""
    count = len(cluster.servers)
    if not 0 <= cert.server < count or count < 2 or not found.bound.seconds:
        raise CertificateError(f"certificate names server {cert.server}, the cluster has {count}")
    if not 0 <= cert.span <= found.alpha + 2 * found.per_chunk:
        raise CertificateError(f"a span of {cert.span} s, in which there may be two hops")
    nbytes = found.bound.nbytes
    if one_hop_bytes(cluster, cert.server, cert.direction, nbytes, cert.span, found.per_chunk) >= (count - 1) * nbytes:
        raise CertificateError(f"all data can go one hop in {cert.span} s")
    return found.alpha + cert.span


def check_arrivals(
    arrivals: tuple[tuple[Fraction, int], ...], own: int, others: list[int], alpha: Fraction, per_chunk: Fraction
) -> None:
    """Raise CertificateError if more servers than said can hold something from one before one of the times.

    arrivals : (seconds, how many more hold it then); own, others : ports of that one server and of the others
    Ports are counted as if those with most were told first, each from the time claimed, one chunk every `per_chunk`.
    """
    if sum(many for _, many in arrivals) != len(others) or min((many for _, many in arrivals), default=0) < 1:
        raise CertificateError(f"certificate has the arrivals of not all {len(others)} other servers")
    best, told = sorted(others, reverse=True), 0
    senders = [(Fraction(0), own)]
    for when, many in arrivals:
        if when < senders[-1][0]:
            raise CertificateError("arrivals are not in the order of time")
        sent = sum(ports * _landed_before(when - start - alpha, per_chunk) for start, ports in senders if ports)
        if sent > told:
            raise CertificateError(f"{sent} servers, not {told}, can have been told before {when} s")
        senders.append((when, sum(best[told : told + many])))
        told += many


def _landed_before(span: Fraction, per_chunk: Fraction) -> int | float:
    """How many chunks one port can send so that they land in less than `span` seconds after `alpha`."""
    if span <= 0:
        return 0
    return math.ceil(span / per_chunk) - 1 if per_chunk else math.inf
