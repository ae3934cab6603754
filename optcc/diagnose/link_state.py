"""The links of a server as sysfs has them: ports that are down or run below their rate, PCI slots that trained down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from optcc.diagnose.evidence import NOTHING, Evidence, Observation, Sign
from optcc.diagnose.ports import IN, OUT, NicDirections, port
from optcc.discover.bonds import bond_of
from optcc.discover.sysfs_slots import nic_slot
from optcc.discover.topology import listed
from optcc.machine.rdma import RdmaPort, rdma_ports
from optcc.machine.sysfs import Sysfs, pci_place
from optcc.values.units import format_rate

SAME = Fraction(98, 100)
"""A slot or link that carries this part of the healthy rate is as good: 400 Gb/s are 99 % of what 32 GT/s x16 carry."""


def read_links(tree: Sysfs, server: str, where: str, ports: NicDirections) -> Evidence:
    """What each port's driver and slot say, for the NICs that the topology has. The ports of a fused NIC add up."""
    known = dict[int, list[RdmaPort]]()
    for found in rdma_ports(tree):
        if (nic := ports.nic(server, found.device if found.port == 1 else f"{found.device}:{found.port}")) is not None:
            known.setdefault(nic, []).append(found)
    limits = {nic: [(found.device, *_limit(tree, found)) for found in each] for nic, each in known.items()}
    seen, signs = link_evidence(limits, server, where, ports)
    if not known:
        unused = f"{where}: no RDMA port by a name that {server} has in the topology"
        return Evidence(unused=(unused,))
    read = f"{where}: links of {len(known)} NICs of {server}, {len(seen) // 2} of them slow"
    return Evidence(tuple(seen), tuple(signs), (read,))


def link_evidence(
    limits: Mapping[int, Sequence[tuple[str, Fraction | None, str]]], server: str, where: str, ports: NicDirections
) -> tuple[list[Observation], list[Sign]]:
    """Observations of NICs whose links are slow, and signs that say what limits them.

    limits : NIC -> of each of its ports the name, bytes per second (0 without a link, None for unknown), the limit in
        words
    """
    seen, signs = list[Observation](), list[Sign]()
    for nic, each in limits.items():
        place = f"{where}: {', '.join(name for name, _, _ in each)}"
        healthy = Fraction(ports.rates[port(nic, OUT)])
        missing = ports.parts(nic) - len(each)
        total = Fraction(0)
        for name, rate, what in each:
            share = healthy / ports.parts(nic)
            if rate is not None and rate < share * SAME:
                signs.append(Sign(place, f"{name}: {what}" if len(each) > 1 else what, server, nic, True))
            total += share if rate is None else min(rate, share)
        if missing > 0:
            signs.append(Sign(place, f"{missing} of its {ports.parts(nic)} ports are not there", server, nic, True))
        if total < healthy * SAME:
            left = max(float(total / healthy), NOTHING)
            seen += [Observation("link", place, {port(nic, way): left}) for way in (OUT, IN)]
    return seen, signs


def _limit(tree: Sysfs, found: RdmaPort) -> tuple[Fraction | None, str]:
    """The least of what port, bond and slot carry, None where none of them tells; and which it is, in words."""
    if not found.active:
        return Fraction(0), f"the port is {found.state or 'in no state'}"
    limits: list[tuple[Fraction, str]] = []
    bond = bond_of(tree, found.interface)
    if bond is not None:
        down = f", {listed(bond.down)} without a link" if bond.down else ""
        what = f"{len(bond.ports)} ports of {found.interface} run at {format_rate(bond.rate)} together{down}"
        limits.append((bond.rate, what))
    elif found.rate is not None:
        limits.append((found.rate, f"the port runs at {format_rate(found.rate)}"))
    place = pci_place(tree.real(f"class/infiniband/{found.device}/device"))
    slot = nic_slot(tree, place, []) if place else None
    if slot is not None and slot.best is not None and slot.rate < slot.best:
        limits.append((slot.rate, f"its PCI slot runs at {slot.said}, where {slot.best_said} is possible"))
    return min(limits, default=(None, ""))
