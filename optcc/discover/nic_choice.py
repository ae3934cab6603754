"""Which NICs train, and how many one card is: rules by rate, nearness, fabric, slot and name, the same for all sources.

PCI slots are as NCCL's XML and sysfs have them. Virtual functions are no more ports, and all ports of a card share its
slot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction

from lxml import etree

from optcc.discover.topology import Assumed, listed
from optcc.machine.rdma import natural
from optcc.values.units import format_rate

_STEP = Fraction(12_500_000)  # 0.1 Gb/s, to which what a slot carries is rounded down
_LANES = (1, 2, 4, 8, 12, 16, 32)


@dataclass(frozen=True)
class PciSlot:
    """What a PCI slot carries.

    rate : bytes per second each way; said : the same as ``32.0 GT/s x16``; lanes : 16 of these
    best : what it could carry; None where the source does not tell; best_said : likewise
    """

    rate: Fraction
    said: str
    lanes: int
    best: Fraction | None = None
    best_said: str = ""


def link(speed: str, width: str) -> PciSlot | None:
    """The slot of ``32.0 GT/s PCIe`` and ``16``: lanes times transfers, without what encoding takes.

    Rounded down to 0.1 Gb/s. None where the texts do not tell, as on virtual machines. PCI Express Base
    Specification: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 242 of 256 bytes of a flit at 64 GT/s.
    """
    found = re.match(r"([0-9]{1,3}(?:\.[0-9])?) ?GT/s", speed)
    if found is None or not re.fullmatch("[0-9]{1,2}", width) or int(width) not in _LANES:
        return None
    transfers = Fraction(found[1])
    if not transfers:
        return None
    coding = Fraction(8, 10) if transfers <= 5 else Fraction(128, 130) if transfers <= 32 else Fraction(242, 256)
    rate = _STEP * (transfers * 10**9 * coding * int(width) / 8 // _STEP)
    return PciSlot(rate, f"{found[1]} GT/s x{int(width)}", int(width))


def card_of(element: etree._Element) -> str | None:
    """The PCI address of the card without its function, as functions share the slot; None where there is no address."""
    card = pci_of(element)
    address = None if card is None else card.get("busid")
    return without_function(address) if address else None


def without_function(address: str) -> str:
    """``0000:13:00.1`` to ``0000:13:00``."""
    return address.rpartition(".")[0] or address


def pci_of(element: etree._Element) -> etree._Element | None:
    """The <pci> of a NIC in XML; None where it is on none."""
    return element if element.tag == "pci" else next(element.iterancestors("pci"), None)


def slot_of(element: etree._Element) -> PciSlot | None:
    """The slot of a NIC or another device in XML, which has the most that card and slot can do."""
    card = pci_of(element)
    return None if card is None else link(card.get("link_speed", ""), card.get("link_width", ""))


class Standing(IntEnum):
    """What an interface is, the most real first. Those of a virtual machine without PCI (hv_netvsc) are PLAIN."""

    CARD = 0
    PLAIN = 1
    STAND_IN = 2  # a bond, a bridge, a VLAN: it has the address, and may be all that NCCL lists, of a card below it
    VIRTUAL = 3


_VIRTUAL_NAME = re.compile(
    r"lo|(veth|virbr|docker|br-|cni|cali|cilium|flannel|kube|lxc|lxd|podman|nerdctl|weave|vnet|vmnet|tap|tun|utun|"
    r"tailscale|wg|zt|vxlan|genev|gre|gretap|erspan|sit|ip6tnl|ipip|tunl|ip_vti|ip6_vti|dummy|ifb|macvtap|macvlan|"
    r"ipvlan|ovs|teql|nodelocaldns|wl|ww|usb|tmfifo)[\w.@-]*",
)
_STAND_IN = re.compile(r"(bond|team|br|vmbr|bridge|vlan)[0-9][\w.@-]*")


def standing(name: str, names: Collection[str], on_card: bool) -> Standing:
    """What the interface `name` is among `names`; `on_card` where the source has a PCI card for it."""
    below = name.split("@")[0].rpartition(".")[0]
    if below and (below in names or not on_card):  # eth0.100, ib0.8001
        return Standing.VIRTUAL if below in names else Standing.STAND_IN
    if on_card:
        return Standing.CARD
    if _VIRTUAL_NAME.fullmatch(name):
        return Standing.VIRTUAL
    return Standing.STAND_IN if _STAND_IN.fullmatch(name) else Standing.PLAIN


MANAGEMENT_RATIO = 8
"""Factor: a NIC slower than the fastest by more than this is for management, not training. Port rates within one
training fabric differ by at most 4 (100 beside 400 Gb/s); management ports are 1 to 25 Gb/s beside 200 and more."""

MAX_DEVICES = 1024
"""GPUs, and NICs, of one server; NCCL itself stops at 256 or 576, depending on its version."""

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


def note_by_name(nic: str, where: str, assumed: Assumed) -> None:
    """That a source other than sysfs may tell too little of a NIC, where its name says that it is a bond."""
    if "bond" in nic:
        what = "a bond by its name, whose driver may tell the rate of one of its ports"
        assumed.add(f"{where}: {nic}", what, f"--nic-rate {nic}=RATE, that of its ports together")


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
    for group in (group for group in ports.values() if len(group) > 1):
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
