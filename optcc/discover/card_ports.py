"""How many NICs one card is: virtual functions are no more ports, and all ports of a card share its slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from optcc.discover.nic_choice import NicCandidate
from optcc.discover.pci import PciSlot
from optcc.discover.topology import Assumed, listed
from optcc.machine.rdma import natural
from optcc.values.units import format_rate

MOST_PORTS = 4
"""Ports that a card has at most, of those that train."""

_NVIDIA, _BROADCOM, _INTEL = "0x15b3", "0x14e4", "0x8086"
_CARD_GBPS = {
    (_NVIDIA, "0x1013"): 200,  # ConnectX-4
    (_NVIDIA, "0x1015"): 100,  # ConnectX-4 Lx
    (_NVIDIA, "0x1017"): 200,  # ConnectX-5
    (_NVIDIA, "0x1019"): 200,  # ConnectX-5 Ex
    (_NVIDIA, "0x101b"): 400,  # ConnectX-6
    (_NVIDIA, "0x101d"): 200,  # ConnectX-6 Dx
    (_NVIDIA, "0x101f"): 100,  # ConnectX-6 Lx
    (_NVIDIA, "0x1021"): 400,  # ConnectX-7
    (_NVIDIA, "0x1023"): 800,  # ConnectX-8
    (_NVIDIA, "0xa2d6"): 200,  # BlueField-2
    (_NVIDIA, "0xa2dc"): 400,  # BlueField-3
    (_BROADCOM, "0x1750"): 200,  # BCM57508
    (_BROADCOM, "0x1760"): 400,  # BCM57608
}
"""By PCI vendor and device, Gb/s of all ports together of the largest card with that chip (vendors' data sheets)."""

_VIRTUAL = {
    *((_NVIDIA, f"0x{device}") for device in ("1004", "1014", "1016", "1018", "101a", "101c", "101e", "a2d3")),
    *((_BROADCOM, f"0x{device}") for device in ("1606", "1609", "16dc", "16e1", "1806", "1807", "1819")),
    *((_INTEL, f"0x{device}") for device in ("10ed", "1515", "154c", "1565", "1889", "37cd")),
}
"""PCI vendor and device of virtual functions (pci.ids)."""

_BELIEVED = 4
"""A PCI slot said to carry less than this part of its ports' rate may be what a virtual machine makes up."""

_TO_COUNT = "list those that count in --nics"


def is_virtual(model: tuple[str, str] | None) -> bool:
    """Whether a PCI vendor and device are those of a virtual function."""
    return model in _VIRTUAL


def without_surplus(nics: Sequence[NicCandidate], path: str, assumed: Assumed) -> list[NicCandidate]:
    """Of a card with more NICs than it has ports the first; the others are virtual functions.

    Unless the card is a virtual function itself: then a virtual machine sees nothing else, and they all count.
    """
    cards: dict[str, list[NicCandidate]] = {}
    for nic in nics:
        if nic.card and nic.model is not None and not is_virtual(nic.model):
            cards.setdefault(nic.card, []).append(nic)
    left_out = set()
    for card, group in cards.items():
        total, most = sum((nic.rate for nic in group), Fraction(0)), _card_rate(group[0])
        if len(group) == 1 or all(nic.asked for nic in group):
            continue
        if len(group) <= MOST_PORTS and (most is None or total <= most):
            continue
        others = [nic.name for nic in group[1:] if not nic.asked]
        has = f"{format_rate(most)} in all" if most is not None else f"{MOST_PORTS} ports at most"
        more = f"a card that has {has} has {len(group)} NICs of {format_rate(total)}, virtual functions among them"
        counts = f"{group[0].name} counts, skipped {listed(others, 16)}"
        assumed.add(f"{path}: card {card}", f"{more}; {counts}", _TO_COUNT)
        left_out.update(others)
    return [nic for nic in nics if nic.name not in left_out]


def one_per_port(nics: Sequence[NicCandidate], path: str, assumed: Assumed) -> list[NicCandidate]:
    """Each physical port once: a card with two PCI connections shows it as a function on each, and the slots of both
    carry what the port does. Those that --nics asks for all count."""
    ports: dict[str, list[NicCandidate]] = {}
    for nic in nics:
        if nic.port:
            ports.setdefault(nic.port, []).append(nic)
    kept = {nic.name: nic for nic in nics}
    for group in ports.values():
        group = sorted(group, key=lambda nic: natural(nic.name.lower()))  # rocep1s0f0 before roceP2p1s0f0
        first = next((nic for nic in group if nic.asked), group[0])
        others = [nic for nic in group if nic is not first and not nic.asked]
        if not others:
            continue
        names = listed([nic.name for nic in others])
        what = f"one port of {format_rate(first.rate)} that shows as {len(others) + 1} functions: {first.name} counts"
        assumed.add(f"{path}: {first.name}", f"{what}, skipped {names}", _TO_COUNT)
        slots = [nic.slot for nic in (first, *others) if nic.slot is not None]
        if len(slots) == len(others) + 1:
            rate = sum((slot.rate for slot in slots), Fraction(0))
            best = sum((slot.best or slot.rate for slot in slots), Fraction(0))
            said = " and ".join(slot.said for slot in slots)
            kept[first.name] = replace(first, slot=replace(slots[0], rate=rate, best=best, said=said))
        for nic in others:
            del kept[nic.name]
    return list(kept.values())


def _card_rate(nic: NicCandidate) -> Fraction | None:
    gbps = _CARD_GBPS.get(nic.model) if nic.model else None
    return None if gbps is None else Fraction(gbps * 10**9, 8)


def within_slots(nics: Sequence[NicCandidate], others: Iterable[PciSlot], assumed: Assumed) -> list[NicCandidate]:
    """Ports of one card share its PCI slot: where that carries less than they do together, each gets its part.

    others : the slots of GPUs and whatever else the source tells. A slot that carries far less than its ports is not
        believed if these ports, and those of all NICs, say the same: virtual machines invent such values.
    """
    cards: dict[str, list[NicCandidate]] = {}
    for nic in nics:
        cards.setdefault(nic.card or nic.name, []).append(nic)
    own = {nic.slot.rate for nic in nics if nic.slot}
    everywhere = own | {slot.rate for slot in others}
    limited = {nic.name: nic for nic in nics}
    for ports in cards.values():
        slot, total = ports[0].slot, sum((nic.rate for nic in ports), Fraction(0))
        if slot is None or any(nic.fixed for nic in ports):
            continue
        if slot.rate >= total:
            if slot.best and slot.rate < slot.best:
                enough = f"the PCI slot runs at {slot.said}, where {slot.best_said} is possible; it carries the port"
                assumed.add(ports[0].where, enough)
            continue
        capable = slot.best is None or slot.best * _BELIEVED < total  # of no more at its best: no card is made so
        if slot.rate * _BELIEVED < total and (len(everywhere) == 1 or (len(own) == 1 and slot.best and capable)):
            made_up = f"a PCI slot of {format_rate(slot.rate, 3)} for {format_rate(total)} of ports is not believed"
            assumed.add(ports[0].where, f"{made_up}, as all slots are said to be so", "--nic-rate NAME=RATE")
            continue
        for nic in ports:
            limited[nic.name] = replace(nic, rate=nic.rate * slot.rate / total)
        kind = (
            "port"
            if len(ports) == 1
            else f"{len(ports)} ports, each of which gets its part, also while others are down"
        )
        said = (
            f"the PCI slot ({slot.said}) carries {format_rate(slot.rate, 4)} of the {format_rate(total)} of its {kind}"
        )
        worse = f"; a degraded slot: {slot.best_said} is possible" if slot.best and slot.rate < slot.best else ""
        assumed.add(ports[0].where, said + worse, "--nic-rate NAME=RATE")
    return [limited[nic.name] for nic in nics]
