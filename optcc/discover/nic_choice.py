"""Which NICs train: rules by rate, nearness and fabric, the same for every source that tells rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from optcc.discover.pci import PciSlot
from optcc.discover.topology import Assumed
from optcc.values.units import format_rate

MANAGEMENT_RATIO = 8
"""Factor: a NIC slower than the fastest by more than this is for management, not training. Port rates within one
training fabric differ by at most 4 (100 beside 400 Gb/s); management ports are 1 to 25 Gb/s beside 200 and more."""

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
LISTED = "list it in --nics"


@dataclass(frozen=True)
class NicCandidate:
    """A NIC that a source has, with its rate.

    name, where : the NIC's own, and the place that notes name
    rate : bytes per second each way of the port; fixed : said for it by name, so that no slot limits it
    beside : whether a GPU is behind the same PCI switch; fabric : INFINIBAND, ETHERNET, or empty for unknown
    card : the PCI address without the function, empty for none; model : its PCI vendor and device, where known
    slot : what the card's slot carries, where known
    asked : whether --nics names it, so that no rule leaves it out
    port : what it has in common with another function of the same physical port; empty for unknown
    elsewhere : whether a NIC of this name counts on most other servers
    """

    name: str
    where: str
    rate: Fraction
    beside: bool = False
    fabric: str = ""
    card: str = ""
    model: tuple[str, str] | None = None
    slot: PciSlot | None = None
    asked: bool = False
    fixed: bool = False
    port: str = ""
    elsewhere: bool = False


def for_training(nics: Sequence[NicCandidate], assumed: Assumed) -> list[NicCandidate]:
    """Without management and storage ports. A NIC that has a GPU beside it is none, however slow it is."""
    fastest = max(nic.rate for nic in nics)
    at_most = [nic.beside for nic in nics if nic.rate == fastest]
    near = 2 * sum(at_most) > len(at_most)
    kept = []
    for nic in nics:
        slowed = (nic.beside or not near) and _has_trained_slowly(nic, nics, fastest)
        reason = "" if nic.asked or nic.beside or nic.elsewhere else _reason(nic, fastest, near, _fabric(nics), slowed)
        if reason:
            assumed.add(nic.where, f"skipped as a {reason}", LISTED)
            continue
        kept.append(nic)
        if nic.asked or nic.fixed or nic.rate == fastest:
            continue
        rate, most = format_rate(nic.rate), format_rate(fastest)
        if nic.beside and nic.rate * MANAGEMENT_RATIO < fastest:
            slow = f"counts, although {rate} is far below {most}: a GPU is beside it"
            assumed.add(nic.where, slow, f"--nics ^{nic.name}")
        elif slowed or nic.elsewhere:
            kind = "on other servers" if nic.elsewhere else "for NICs of its kind"
            slow = f"slow: it counts, at {rate}, where {most} is usual {kind}; its link may have trained down"
            assumed.add(nic.where, slow, f"--nics ^{nic.name} where it is a management port")
    lonely = [nic for nic in kept if near and not nic.beside and not nic.asked]
    if lonely and len(lonely) < len(kept):
        names = ",".join(nic.name for nic in lonely[:8]) + (",..." if len(lonely) > 8 else "")
        for nic in lonely:
            assumed.add(nic.where, "counts for training, although no GPU is beside it", f"--nics ^{names}")
    return kept


def _has_trained_slowly(nic: NicCandidate, nics: Sequence[NicCandidate], fastest: Fraction) -> bool:
    """Whether a NIC is slower than the fastest of its own kind: cards of one model, or InfiniBand of an unknown one,
    which nobody uses for management."""
    alike = [other for other in nics if other.rate == fastest and other.fabric == nic.fabric]
    if nic.rate == fastest or not alike:
        return False
    if not nic.model or not all(nic.model):
        return nic.fabric == INFINIBAND
    return any(other.model == nic.model for other in alike)


def _reason(nic: NicCandidate, fastest: Fraction, near: bool, fabric: str, slowed: bool) -> str:
    """What a NIC without a GPU beside it is instead of one for training; empty where it may be one."""
    rate, most = format_rate(nic.rate), format_rate(fastest)
    if nic.rate * MANAGEMENT_RATIO < fastest and not slowed:
        return f"management port, {rate} is under 1/{MANAGEMENT_RATIO} of the fastest NIC's {most}"
    if near and nic.rate < fastest:
        return f"management or storage port, {rate} and no GPU beside it, where {most} NICs have one"
    if nic.fabric and nic.fabric != fabric:
        return f"management or storage port, {nic.fabric} and no GPU beside it, where training goes over {fabric}"
    return ""


def _fabric(nics: Sequence[NicCandidate]) -> str:
    """That of the fastest NICs; of several kinds, that of those with a GPU beside them; then InfiniBand."""
    known = [nic for nic in nics if nic.fabric]
    return max(known, key=lambda nic: (nic.rate, nic.beside, nic.fabric == INFINIBAND)).fabric if known else ""
