"""The ports of a sysfs that may be NICs for training: RDMA devices, and without any, network interfaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from optcc.discover.bonds import Bond, bond_of
from optcc.discover.interface_names import Standing, standing
from optcc.discover.nccl_ports import MIN_SPEED
from optcc.discover.nic_choice import ETHERNET, INFINIBAND, LISTED
from optcc.discover.parts import port_identity
from optcc.discover.pci import without_function
from optcc.discover.topology import Assumed, listed
from optcc.errors import InputError
from optcc.machine.rdma import RdmaPort, natural, rdma_ports
from optcc.machine.sysfs import Sysfs, pci_place
from optcc.values.units import format_rate

_LINK_TYPES = {"1": ETHERNET, "32": INFINIBAND}
"""ARPHRD_ETHER and ARPHRD_INFINIBAND; tunnels and others have no other use here."""

_MOST_INTERFACES = 4096


@dataclass(frozen=True)
class SysfsPort:
    """A port.

    rate : bytes per second, None where the driver does not tell; up : has a link, or does not tell
    place : of its PCI device, empty for none; owner : of the device whose virtual function it is, empty for none
    fabric : INFINIBAND, ETHERNET, or empty for unknown
    identity : what another function of the same physical port has, too; empty for unknown
    """

    name: str
    rate: Fraction | None
    up: bool
    place: str
    owner: str = ""
    fabric: str = ""
    identity: str = ""


def sysfs_ports(
    tree: Sysfs, path: str, asked: Callable[[str], bool], assumed: Assumed, copy_hint: str
) -> tuple[list[SysfsPort], str]:
    """All ports of hardware, and what --nics has `asked` for; and what they are, ``RDMA`` or ``network``.

    Raises InputError where there is none.
    """
    found = _rdma(tree, path, assumed)
    names = [name for name in tree.names("class/net")[:_MOST_INTERFACES] if not _is_file(tree, f"class/net/{name}")]
    if found:
        on_cards = [port for port in found if port.place or asked(port.name)]
        if on_cards and len(on_cards) < len(found):
            soft = [port.name for port in found if port not in on_cards]
            assumed.add(path, f"RDMA devices on no PCI card are left out: {listed(soft)}", LISTED)
        cards = {port.place for port in found}
        interfaces = [_interface(tree, name) for name in names if not _what_else(tree, name, names)]
        if others := [port.name for port in interfaces if port.place not in cards]:
            assumed.add(path, f"network interfaces without RDMA are left out ({listed(others)})")
        return on_cards or found, "RDMA"
    left_out: dict[str, list[str]] = {}
    ports = []
    for name in sorted(names, key=natural):
        reason = _what_else(tree, name, names)
        if reason and not asked(name):
            left_out.setdefault(reason, []).append(name)
        else:
            ports.append(_interface(tree, name))
    on_cards = [port for port in ports if port.place or asked(port.name)]
    if on_cards and len(on_cards) < len(ports):
        left_out["on no PCI card, where others are"] = [port.name for port in ports if port not in on_cards]
    for reason, each in left_out.items():
        if each != ["lo"]:
            assumed.add(path, f"network interfaces are left out, {reason}: {listed(each, 16)}", LISTED)
    if not ports:
        raise InputError(
            "no NIC: neither an RDMA device nor a network interface of hardware",
            where=path,
            expected="class/infiniband/DEVICE/ports, or class/net/NAME/device",
            got=listed([*tree.names("class/infiniband"), *names]) or "nothing",
            hint="Containers hide them; on the host, or: " + copy_hint,
        )
    assumed.add(path, "no RDMA device; network interfaces on PCI cards are taken")
    return on_cards or ports, "network"


def _rdma(tree: Sysfs, path: str, assumed: Assumed) -> list[SysfsPort]:
    rdma = rdma_ports(tree)
    several = {p.device for p in rdma if p.port > 1}
    found = []
    for port in rdma:
        name = f"{port.device}:{port.port}" if port.device in several and port.port > 1 else port.device
        place = tree.real(f"class/infiniband/{port.device}/device")
        fabric = port.link if port.link in (INFINIBAND, ETHERNET) else ""
        bond = bond_of(tree, port.interface)
        if bond is not None:
            _note_bond(name, bond, path, assumed)
        rate = port.rate if bond is None else bond.rate
        found.append(
            SysfsPort(name, rate, port.active, pci_place(place), _owner(tree, place), fabric, _identity(tree, port))
        )
    return found


def _identity(tree: Sysfs, port: RdmaPort) -> str:
    """See `port_identity`; a driver that says phys_port_id, or the port's name, says it itself."""
    device = f"class/infiniband/{port.device}"
    image, node = (tree.text(f"{device}/{guid}") for guid in ("sys_image_guid", "node_guid"))
    interface = port.interface or next(iter(tree.names(f"{device}/device/net")), "")
    said = _said_of_port(tree, interface) if interface else ""
    return f"{image}/{said}/{port.port}" if said else port_identity(port.device, image, node, str(port.port))


def _said_of_port(tree: Sysfs, interface: str) -> str:
    """phys_port_id, unique within a card at least; else the port's name where the card's switch tells the card."""
    path = f"class/net/{interface}"
    if port := tree.text(f"{path}/phys_port_id"):
        return port
    card, name = tree.text(f"{path}/phys_switch_id"), tree.text(f"{path}/phys_port_name")
    return f"{card} {name}" if card and re.fullmatch(r"p\d{1,3}", name) else ""


def _note_bond(name: str, bond: Bond, path: str, assumed: Assumed) -> None:
    whole = format_rate(bond.whole)
    fix = f"--nic-rate {name}=RATE"
    if not bond.down:
        assumed.add(f"{path}: {name}", f"a bond of {len(bond.ports)} ports, {whole} together", fix)
        return
    down = f"{listed(bond.down)} of its {len(bond.ports)} ports without a link"
    left = float(bond.rate / bond.whole)
    fix = f"--nic-rate {name}={whole}, and --fail SERVER/{name}={left:.3g}"
    assumed.add(f"{path}: {name}", f"degraded, a bond with {down}: {format_rate(bond.rate)} of {whole}", fix)


def _is_file(tree: Sysfs, path: str) -> bool:
    """As class/net/bonding_masters is one."""
    place = tree.real(path)
    entry = tree.look(place) if place else None
    return entry is not None and entry.kind == "file"


def _owner(tree: Sysfs, place: str | None) -> str:
    """The place of the PCI device of which the one at `place` is a virtual function, or a subfunction."""
    if place is None:
        return ""
    if "/mlx5_core.sf." in place:
        return pci_place(place)
    return pci_place(tree.real(f"{pci_place(place)}/physfn")) if pci_place(place) else ""


def _what_else(tree: Sysfs, name: str, names: Sequence[str]) -> str:
    """What an interface is instead of a NIC; empty for one."""
    path = f"class/net/{name}"
    place = tree.real(path)
    device = tree.real(f"{path}/device")
    if place is None or place.startswith("devices/virtual/") or device is None:
        return "virtual, for they have no device"
    if tree.text(f"{path}/parent") or standing(name, names, True) is not Standing.CARD:
        return "partitions of others"
    if re.search("^DEVTYPE=(wlan|wwan)$", tree.text(f"{path}/uevent"), re.M):
        return "wireless"
    if "pf" in tree.text(f"{path}/phys_port_name"):  # pf0vf1, c1pf0sf2, pf0hpf; p0 is the port itself
        return "representors of functions of a card"
    kind = tree.text(f"{path}/type")
    return "neither Ethernet nor InfiniBand" if kind and kind not in _LINK_TYPES else ""


def _interface(tree: Sysfs, name: str) -> SysfsPort:
    path = f"class/net/{name}"
    speed = tree.text(f"{path}/speed")  # Mb/s, -1 where the driver does not tell
    rate = Fraction(int(speed) * 10**6, 8) if re.fullmatch("[0-9]{1,8}", speed) and int(speed) >= MIN_SPEED else None
    place = tree.real(f"{path}/device")
    on_card = "" if "/usb" in (place or "") else pci_place(place)
    up = tree.text(f"{path}/operstate") in ("up", "unknown", "")
    fabric = _LINK_TYPES.get(tree.text(f"{path}/type"), "")
    return SysfsPort(name, rate, up, on_card, _owner(tree, place), fabric, _said_of_port(tree, name))


def without_functions(
    ports: Sequence[SysfsPort], path: str, asked: Callable[[str], bool], assumed: Assumed
) -> list[SysfsPort]:
    """Without virtual functions and subfunctions, whose rate is that of the port of the card that they share.

    Where `ports` lacks the card's own port, as in a container with some of its functions, the first function counts in
    its place. Those that --nics names all count.
    """
    cards = {without_function(port.place) for port in ports if not port.owner}  # a bond of both ports is on the first
    owners: set[str] = set()
    kept = []
    left_out: list[str] = []
    for port in ports:
        shared = port.owner in owners or without_function(port.owner) in cards
        if port.owner and shared and not asked(port.name):
            left_out.append(port.name)
            continue
        owners.add(port.owner)
        kept.append(port)
    if left_out:
        what = f"virtual functions of cards that count once: skipped {listed(left_out, 16)}"
        assumed.add(path, what, LISTED)
    return kept
