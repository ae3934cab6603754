"""The links of a server as sysfs has them: ports that are down or run below their rate, PCI slots that trained down."""

from __future__ import annotations

from fractions import Fraction

from optcc.diagnose.evidence import NOTHING, Evidence, Observation, Sign
from optcc.diagnose.ports import IN, OUT, Ports, port
from optcc.discover.sysfs_slots import nic_slot
from optcc.rdma import RdmaPort, rdma_ports
from optcc.sysfs import Sysfs, pci_place
from optcc.units import format_rate

SAME = Fraction(98, 100)
"""A slot or link that carries this part of the healthy rate is as good: 400 Gb/s are 99 % of what 32 GT/s x16 carry."""


def read_links(tree: Sysfs, server: str, where: str, ports: Ports) -> Evidence:
    """What each port's driver and slot say, for the NICs that the topology has."""
    seen, signs, known = list[Observation](), list[Sign](), 0
    for found in rdma_ports(tree):
        name = found.device if found.port == 1 else f"{found.device}:{found.port}"
        nic = ports.nic(server, name)
        if nic is None:
            continue
        known += 1
        place = f"{where}: {name}"
        healthy = Fraction(ports.rates[port(nic, OUT)])
        for rate, what in _limits(tree, found):
            if rate < healthy * SAME:
                left = max(float(rate / healthy), NOTHING) if healthy else NOTHING
                seen += [Observation("link", place, {port(nic, way): left}) for way in (OUT, IN)]
                signs.append(Sign(place, what, server, nic, True))
    if not known:
        unused = f"{where}: no RDMA port by a name that {server} has in the topology"
        return Evidence(unused=(unused,))
    return Evidence(
        tuple(seen), tuple(signs), (f"{where}: links of {known} NICs of {server}, {len(signs)} of them slow",)
    )


def _limits(tree: Sysfs, found: RdmaPort) -> list[tuple[Fraction, str]]:
    if not found.active:
        return [(Fraction(0), f"the port is {found.state or 'in no state'}")]
    limits = []
    if found.rate is not None:
        limits.append((found.rate, f"the port runs at {format_rate(found.rate)}"))
    place = pci_place(tree.real(f"class/infiniband/{found.device}/device"))
    slot = nic_slot(tree, place, []) if place else None
    if slot is not None and slot.best is not None and slot.rate < slot.best:
        limits.append((slot.rate, f"its PCI slot runs at {slot.said}, where {slot.best_said} is possible"))
    return limits
