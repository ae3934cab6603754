"""The check of a bound that knows costs: against the cluster, exactly, without knowing how the bound was found.

What a server loses is not computed again. A claimed loss stands if no number of chunks with a smaller loss can fill the
time available. This is tried for every number, chunk by chunk from the last. Proof ids chunk-costs, starving-pair.
"""

from __future__ import annotations

from fractions import Fraction

from optcc.errors import CertificateError
from optcc.theory.bounds import check_bound
from optcc.theory.costs import growth, live_rates, outside_ranks
from optcc.theory.starving_pair import nic_rate, pair_s
from optcc.values.bound import BoundWithCosts, CutCosts, FluidCosts, PairCosts
from optcc.values.cluster import Cluster


def check_bound_with_costs(cluster: Cluster, found: BoundWithCosts) -> None:
    """Raise CertificateError unless `found` and the bound without costs in it are proved on `cluster`, exactly."""
    check_bound(cluster, found.bound)
    if min(found.alpha, found.per_chunk) < 0:
        raise CertificateError("a cost is negative")
    cert, collective = found.certificate, getattr(found.bound.certificate, "collective", "allreduce")
    if not isinstance(cert, FluidCosts) and collective != "allreduce":
        raise CertificateError(f"a {cert.kind} certificate is about AllReduce alone, not {collective}")
    if isinstance(cert, CutCosts):
        proved = _cut_s(cluster, found, cert)
    elif isinstance(cert, PairCosts):
        proved = _pair_s(cluster, found, cert)
    else:
        base = found.bound.seconds
        proved = base + found.alpha + found.per_chunk if base else Fraction(0)
    if found.seconds != proved:
        raise CertificateError(f"bound is {found.seconds} s, the certificate proves {proved} s")
    if sum((part.seconds for part in found.parts), Fraction(0)) != found.seconds:
        raise CertificateError("the parts do not sum to the bound")


def _cut_s(cluster: Cluster, found: BoundWithCosts, cert: CutCosts) -> Fraction:
    """The seconds that the certificate about one server proves."""
    if not 0 <= cert.server < len(cluster.servers) or len(cluster.servers) < 2:
        raise CertificateError(f"certificate names server {cert.server}, the cluster has {len(cluster.servers)}")
    rates, q = live_rates(cluster.servers[cert.server], cert.direction), outside_ranks(cluster, cert.server)
    if len(cert.losses) != len(rates) or not rates:
        raise CertificateError(f"certificate has the losses of {len(cert.losses)} NICs, the server has {len(rates)}")
    others = max(_rate(cluster, r, cert) for r, rank in enumerate(cluster.ranks) if rank.server != cert.server)
    work = found.bound.nbytes / sum(rates, Fraction(0))
    span, kept = max(Fraction(0), work - found.alpha / q), 1 - Fraction(1, q)
    for rate, loss in zip(rates, cert.losses, strict=True):
        check_loss(loss, span, found.per_chunk, growth(rate, others), kept)
    lost = sum((r * loss for r, loss in zip(rates, cert.losses, strict=True)), Fraction(0)) / sum(rates, Fraction(0))
    return found.alpha + found.per_chunk + min(q * work, work + kept * found.alpha) + lost


def _rate(cluster: Cluster, rank: int, cert: CutCosts) -> Fraction:
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
    if not 0 <= cert.direct <= 1:
        raise CertificateError(f"a direct fraction of {cert.direct}")
    rates = pair[0].out_rate, pair[1].out_rate
    return pair_s(rates, found.bound.nbytes, cert.direct, found.alpha, found.per_chunk)
