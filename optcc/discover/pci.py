"""PCI slots as NCCL's XML has them: which card a NIC is on, and what the slot carries."""

from __future__ import annotations

import re
from fractions import Fraction

from lxml import etree

_STEP = Fraction(12_500_000)  # 0.1 Gb/s, to which what a slot carries is rounded down
_LANES = (1, 2, 4, 8, 16, 32)


def card_of(element: etree._Element) -> str | None:
    """The PCI address of the card without its function, as functions share the slot; None where there is no address."""
    card = element if element.tag == "pci" else next(element.iterancestors("pci"), None)
    address = None if card is None else card.get("busid")
    return address.rpartition(".")[0] or address if address else None


def slot_rate(element: etree._Element) -> Fraction | None:
    """Bytes per second each way that the slot of a NIC carries: lanes times transfers, without what encoding takes.

    Rounded down to 0.1 Gb/s. None where the file does not tell, as on virtual machines. PCI Express Base
    Specification: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 242 of 256 bytes of a flit at 64 GT/s.
    """
    card = element if element.tag == "pci" else next(element.iterancestors("pci"), None)
    if card is None:
        return None
    speed = re.match(r"([0-9]{1,3}(?:\.[0-9])?) ?GT/s", card.get("link_speed", ""))
    width = card.get("link_width", "")
    if speed is None or not re.fullmatch("[0-9]{1,2}", width) or int(width) not in _LANES:
        return None
    transfers = Fraction(speed[1])
    if not transfers:
        return None
    coding = Fraction(8, 10) if transfers <= 5 else Fraction(128, 130) if transfers <= 32 else Fraction(242, 256)
    return _STEP * (transfers * 10**9 * coding * int(width) / 8 // _STEP)
