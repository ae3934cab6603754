"""Which NIC to repair first: what the bound gains by each failed NIC coming back, and per unit of rate at each NIC.

The gain of a repair is the difference of two bounds, exact. The gain per rate at a live NIC comes from the
certificate's prices: by linear-programming duality a resource's price is the first-order change of the reachable rate
R per unit of its rate, and T = n / R. Where several certificates hold at once (a tie) a price is the gain for raising
all that is tied together. A dead NIC has no price; its repair tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from optcc.bound import LARGEST_GAP, Bound, ProgramCertificate
from optcc.cluster import Cluster
from optcc.theory.bounds import lower_bound


@dataclass(frozen=True)
class Repair:
    """A degraded NIC: the bound once it alone is repaired.

    saved_s : seconds by which the repair lowers the bound; gain_s_per_rate : the same per byte per second restored
    """

    nic: str
    repaired_s: Fraction
    saved_s: Fraction
    gain_s_per_rate: Fraction


def repair_first(cluster: Cluster, nbytes: int) -> tuple[Repair, ...]:
    """Every degraded NIC, the one whose repair lowers the bound most first. Empty when nothing has failed."""
    bound = lower_bound(cluster, nbytes)
    # The program's bounds are known to the certificate's gap: what is closer than that is a tie, or saves nothing.
    noise = bound.seconds * LARGEST_GAP if isinstance(bound.certificate, ProgramCertificate) else Fraction(0)
    repairs = []
    for s, (now, before) in enumerate(zip(cluster.servers, cluster.fault_free.servers, strict=True)):
        for i, (nic, whole) in enumerate(zip(now.nics, before.nics, strict=True)):
            if nic != whole:
                after = lower_bound(cluster.with_nic(s, i, whole), nbytes).seconds
                saved = bound.seconds - after
                if abs(saved) <= noise:
                    after, saved = bound.seconds, Fraction(0)
                restored = max(whole.out_rate - nic.out_rate, whole.in_rate - nic.in_rate)
                repairs.append(Repair(f"{now.name}/{nic.name}", after, saved, saved / restored))
    return tuple(sorted(repairs, key=lambda r: (-_rounded(r.saved_s, noise), r.nic)))


def _rounded(seconds: Fraction, noise: Fraction) -> Fraction:
    return round(seconds / noise) * noise if noise else seconds


def gains_per_rate(cluster: Cluster, bound: Bound) -> dict[str, Fraction]:
    """SERVER/NIC -> seconds that the bound falls per byte per second more, out and in, to first order; zeros left
    out.
    """
    cert, gains = bound.certificate, dict[str, Fraction]()
    if isinstance(cert, ProgramCertificate):
        for price in cert.prices:
            # The price is that of all `count` equal resources together.
            gain = price.gain / price.count * bound.seconds / cert.rate
            for name in price.nics:
                gains[name] = gains.get(name, Fraction(0)) + gain
    elif cert.nbytes:
        for r in cert.ranks:
            for nic in cluster.ranks[r].nics:
                gains[f"{cluster.ranks[r].name}/{nic.name}"] = bound.seconds / cert.rate
    return gains
