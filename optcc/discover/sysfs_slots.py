"""What the PCI slots of a sysfs carry now, and what they could: links that have trained down are degraded NICs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optcc.discover.pci import PciSlot, link
from optcc.machine.sysfs import Sysfs, pci_bridges


def nic_slot(tree: Sysfs, place: str, near: Sequence[str]) -> PciSlot | None:
    """The narrowest link of the NIC at `place` on its way to the GPUs at `near`, or out of PCI where there is none.

    None where the card does not tell its own: then what the bridges say is a virtual machine's. The way ends below the
    bridge that it shares with a GPU, for what is above carries nothing between the two.
    """
    own = _link(tree, place, "current")
    if own is None:
        return None
    above = pci_bridges(place)
    shared = {bridge for gpu in near for bridge in pci_bridges(gpu)}
    best = _best(tree, place, above[-1:])
    slots = [own if best is None else replace(own, best=best.rate, best_said=best.said)]
    for bridge in above:
        if bridge in shared and bridge != above[-1]:
            continue
        now, most = _link(tree, bridge, "current"), _link(tree, bridge, "max")
        if now is not None and now.rate < own.rate:
            said = f"{now.said} at the bridge {bridge.rpartition('/')[2]}"
            slots.append(replace(now, said=said, best=most.rate if most else None, best_said=most.said if most else ""))
    return min(slots, key=lambda slot: slot.rate)


def gpu_slot(tree: Sysfs, place: str) -> PciSlot | None:
    """What the slot of a GPU can carry: those that are idle run slower, to save power, but on all of their lanes."""
    now, best = _link(tree, place, "current"), _best(tree, place, pci_bridges(place)[-1:])
    if now is None or best is None:
        return now or best
    return now if now.lanes < best.lanes else best


def _best(tree: Sysfs, place: str, bridges: Sequence[str]) -> PciSlot | None:
    """The most that a card can do in its slot, whose other end are `bridges`: of both the lesser speed and width."""
    ends = [end for end in (place, *bridges) if _link(tree, end, "max")]
    texts = [(tree.text(f"{end}/max_link_speed"), tree.text(f"{end}/max_link_width")) for end in ends]
    both = [slot for speed, _ in texts for _, width in texts if (slot := link(speed, width))]
    return min(both, key=lambda slot: slot.rate, default=None)


def _link(tree: Sysfs, place: str, which: str) -> PciSlot | None:
    return link(tree.text(f"{place}/{which}_link_speed"), tree.text(f"{place}/{which}_link_width"))
