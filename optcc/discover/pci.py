"""PCI slots as NCCL's XML and sysfs have them: which card a NIC is on, and what the slot carries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from lxml import etree

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
