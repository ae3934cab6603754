"""A bound as JSON values, as `optcc bound` and `optcc plan` tell it; `optcc.theory.bound_file` adds what proves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from optcc.values.bound import Bound, Certificate, ProgramCertificate
from optcc.values.bound_with_costs import BoundWithCosts, CutCosts, PairCosts
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.theory.sensitivity import JointRepair, Repair

GBPS = 125_000_000  # bytes per second


def bound_json(bound: Bound, cluster: Cluster) -> dict[str, Any]:
    """Seconds, what limits `cluster`, and the certificate. Names that end in _exact are of exact numbers, as text."""
    return {
        "bound_s": float(bound.seconds),
        "fault_free_s": float(bound.fault_free_s),
        "overhead": float(bound.overhead),
        "bottleneck": bound.bottleneck,
        "certificate": certificate_json(bound.certificate, cluster),
        "size": bound.nbytes,
        "ranks": len(cluster.ranks),
    }


def certificate_json(cert: Certificate | ProgramCertificate, cluster: Cluster) -> dict[str, Any]:
    """The certificate, without the network and the primal of a program's; its ranks by their names in `cluster`."""
    if isinstance(cert, ProgramCertificate):
        return {
            "kind": "program",
            "collective": cert.collective,
            "root": cert.root,
            "gap": float(cert.gap),
            "rate": float(cert.rate),
            "rate_exact": str(cert.rate),
            "reached_exact": str(cert.reached),
            "prices": [
                {
                    "what": p.what,
                    "count": p.count,
                    "share": float(p.share),
                    "share_exact": str(p.share),
                    "gain_exact": str(p.gain),
                    "nics": list(p.nics),
                }
                for p in cert.prices
            ],
            "cuts": [{**asdict(cut), "inside": list(cut.inside)} for cut in cert.cuts],
            "resource_prices": list(cert.resource_prices),
            "denominator": cert.denominator,
            "bound_s_exact": str(cert.seconds),
        }
    return {
        "kind": cert.kind,
        "direction": cert.direction,
        "ranks": [cluster.ranks[r].name for r in cert.ranks],
        "bytes": cert.nbytes,
        "rate": float(cert.rate),
        "rate_exact": str(cert.rate),
        "bound_s_exact": str(cert.seconds),
    }


def costs_json(found: BoundWithCosts, cluster: Cluster) -> dict[str, Any]:
    """What `optcc bound --alpha --per-chunk` adds to its JSON value. Times in seconds; exact ones are fractions."""
    cert = found.certificate
    certificate: dict[str, Any] = {"kind": cert.kind}
    if isinstance(cert, CutCosts):
        certificate["server"] = cluster.servers[cert.server].name
        certificate["direction"] = cert.direction
        certificate["losses_s_exact"] = [str(loss) for loss in cert.losses]
    elif isinstance(cert, PairCosts):
        certificate["servers"] = [cluster.servers[s].name for s in cert.servers]
        certificate["direct"] = str(cert.direct)
    return {
        "bound_with_costs_s": float(found.seconds),
        "costs": {
            "alpha_s": float(found.alpha),
            "alpha_s_exact": str(found.alpha),
            "per_chunk_s": float(found.per_chunk),
            "per_chunk_s_exact": str(found.per_chunk),
            "extra_s": float(found.extra_s),
            "parts": [{"what": part.what, "seconds": float(part.seconds)} for part in found.parts],
            "certificate": {**certificate, "bound_with_costs_s_exact": str(found.seconds)},
        },
    }


def repairs_json(repairs: Sequence[Repair]) -> list[dict[str, Any]]:
    """The JSON value of `optcc bound --repair-first`: seconds, and seconds saved per Gb/s restored."""
    return [
        {
            "nic": r.nic,
            "repaired_s": float(r.repaired_s),
            "saved_s": float(r.saved_s),
            "saved_s_per_gbps": float(r.gain_s_per_rate * GBPS),
        }
        for r in repairs
    ]


def together_json(steps: Sequence[JointRepair]) -> list[dict[str, Any]]:
    """The JSON value of joint repairs, one step after the other; times in seconds."""
    return [
        {"nics": list(step.nics), "repaired_s": float(step.repaired_s), "saved_s": float(step.saved_s)}
        for step in steps
    ]
