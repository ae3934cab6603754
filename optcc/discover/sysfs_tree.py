"""A server from its sysfs: this machine's ``/sys``, a copy of one in a directory, or a tarball of a copy.

RDMA devices with a link are NICs (`optcc.machine.rdma` reads them). Without any, network interfaces on PCI cards are.
GPUs are told by their PCI class and vendor; a NIC sits beside the GPUs with which it shares the most PCI bridges.
Files are those of Linux' Documentation/ABI: stable/sysfs-class-infiniband, testing/sysfs-class-net,
testing/sysfs-bus-pci.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.discover.given import Given
from optcc.discover.nccl_xml import MIN_SPEED
from optcc.discover.nic_choice import (
    ETHERNET,
    INFINIBAND,
    LISTED,
    MAX_DEVICES,
    NicCandidate,
    PciSlot,
    Standing,
    for_training,
    link,
    one_per_port,
    standing,
    within_slots,
    without_function,
    without_surplus,
)
from optcc.discover.port_lists import port_identity
from optcc.discover.rails import Clue, Clues, on_rails
from optcc.discover.topology import Assumed, Topology, counted, deal, describe, listed, located
from optcc.errors import InputError
from optcc.machine.rdma import RdmaPort, natural, rdma_ports
from optcc.machine.sysfs import Folder, Sysfs, is_tarball, pci_bridges, pci_place, read_tarball
from optcc.values.cluster import Cluster, Nic, Server
from optcc.values.units import format_rate

MOST_PORTS = 16
"""Of one bond: mlx5 joins 2 or 4."""
_ONE_AT_A_TIME = ("active-backup", "broadcast")
"""Modes in which a second port adds nothing."""


@dataclass(frozen=True)
class Bond:
    """`rate` : bytes per second of its ports with a link together; `whole` : of all of its ports, a port without a link
    counting as the fastest of the others; `down` : names of those without."""

    rate: Fraction
    whole: Fraction
    ports: tuple[str, ...]
    down: tuple[str, ...]


def bond_of(tree: Sysfs, interface: str) -> Bond | None:
    """The bond that `interface` is; None where it is none, where its ports do not add up, or tell no speed."""
    path = f"class/net/{interface}/bonding"
    names = tree.text(f"{path}/slaves").split()
    if not interface or not 1 < len(names) <= MOST_PORTS or tree.text(f"{path}/mode").startswith(_ONE_AT_A_TIME):
        return None
    speeds = {name: _speed(tree, name) for name in names if re.fullmatch(r"[\w.@-]{1,32}", name)}
    fastest = max(speeds.values(), default=0)
    if not fastest or len(speeds) < len(names):
        return None
    down = tuple(name for name, speed in speeds.items() if not speed)
    mbps = Fraction(10**6, 8)
    return Bond(sum(speeds.values()) * mbps, (sum(speeds.values()) + len(down) * fastest) * mbps, tuple(names), down)


def _speed(tree: Sysfs, interface: str) -> int:
    """Mb/s; 0 without a link."""
    text = tree.text(f"class/net/{interface}/speed")  # -1, or an error, without a link
    up = tree.text(f"class/net/{interface}/operstate") == "up"
    return int(text) if up and re.fullmatch("[0-9]{1,8}", text) else 0


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


COPY = (
    "Copy it with: cp -r --no-dereference --parents /sys/class/infiniband /sys/class/net /sys/bus/pci/devices "
    "/sys/devices/pci* /sys/devices/LNXSYSTM* DIR (errors about unreadable or missing files do not matter)."
)
_NVIDIA, _AMD = "0x10de", "0x1002"


def is_sysfs(path: str) -> bool:
    """A directory, or a tarball."""
    with suppress(OSError, ValueError):
        return os.path.isdir(path) or is_tarball(path)
    return False


def read_sysfs(path: str, given: Given) -> Topology:
    """The one server of a tree or tarball, server0. Raises InputError naming what is missing, and how to copy it."""
    tree = open_sysfs(path)
    return on_rails(lambda given: _read_tree(tree, path, given), given)


def sysfs_server(path: str, given: Given) -> tuple[Topology, Clues]:
    """The same before NICs get rails."""
    return _read_tree(open_sysfs(path), path, given)


def open_sysfs(path: str) -> Sysfs:
    """The tree at `path`, or at its ``sys``: a directory, or a tarball. Raises InputError where there is none."""
    whole = Folder(path) if os.path.isdir(path) else read_tarball(path, COPY)
    below = next((r for r in ("", "sys", *(f"{n}/sys" for n in whole.names(""))) if _is_root(whole, r)), None)
    if below is None:
        kind = "directory" if os.path.isdir(path) else "tarball"
        expected = "class/infiniband or class/net in it"
        raise InputError(
            f"a {kind} that cannot be read as sysfs", where=path, expected=expected, got="neither", hint=COPY
        )
    return whole.below(below) if below else whole


def _is_root(tree: Sysfs, folder: str) -> bool:
    return tree.real(f"{folder}/class") is not None


def _read_tree(tree: Sysfs, path: str, given: Given) -> tuple[Topology, Clues]:
    assumed = Assumed()
    ports, kind = sysfs_ports(tree, path, lambda name: given.wanted(name) is True, assumed, COPY)
    gpus = _gpus(tree)
    chosen = _for_training(tree, ports[:MAX_DEVICES], gpus, kind, path, given, assumed)
    if not gpus:
        assumed.add(path, "no GPU among the PCI devices; one per NIC is assumed", "gpus: in YAML from optcc topo -o")
    places = {port.name: port.place for port in ports}
    near = [_near(places[nic.name], gpus) for nic in chosen]
    if gpus and not any(near):
        flat = "no GPU shares a PCI switch with a NIC, as on virtual machines; NICs are dealt out to the GPUs in order"
        assumed.add(path, flat, "gpu: of each NIC in YAML from optcc topo -o")
    if gpus:
        assumed.add(path, "what joins the GPUs is not in sysfs; NVLink counts as unknown", "nvlink: in that YAML")
    with located(path):
        nics = tuple(Nic(nic.name, nic.rate, nic.rate, gpu=gpu) for nic, gpu in zip(chosen, deal(near), strict=True))
        cluster = Cluster((Server("server0", nics, len(gpus) or len(nics)),))
    found = f"{counted(len(ports), f'{kind} port')} ({listed([p.name for p in ports])}), {counted(len(gpus), 'GPU')}"
    read = f"{path}: sysfs: {found}"
    clues = {("server0", port.name): Clue(tuple(gpus_near)) for port, gpus_near in zip(chosen, near, strict=True)}
    return Topology(cluster, assumed.all(), (read, *describe(cluster))), clues


def _for_training(
    tree: Sysfs, ports: Sequence[SysfsPort], gpus: Sequence[str], kind: str, path: str, given: Given, assumed: Assumed
) -> list[NicCandidate]:
    """Without ports that are down, virtual functions and management ports; with what their slots carry."""
    up: list[SysfsPort] = []
    for port in ports:
        wanted = given.wanted(port.name)
        if wanted is False:
            continue
        if not port.up and wanted is None:
            fix = f"--nics with it, and --fail server0/{port.name} if it has failed"
            assumed.add(f"{path}: {port.name}", "skipped, its link is down", fix)
            continue
        up.append(port)
    if not up:
        given.check_seen()
        raise InputError(
            f"no {kind} port with a link", where=path, expected="one that is up", got=listed([p.name for p in ports])
        )
    own = without_functions(up, path, lambda name: given.wanted(name) is True, assumed)
    found = [_candidate(tree, port, gpus, path, given) for port in own]
    single = one_per_port(without_surplus(found, path, assumed), path, assumed)
    chosen = for_training(single, assumed)
    slots: list[PciSlot] = [slot for gpu in gpus if (slot := gpu_slot(tree, gpu))]
    return within_slots(chosen, slots, assumed)


def _candidate(tree: Sysfs, port: SysfsPort, gpus: Sequence[str], path: str, given: Given) -> NicCandidate:
    rate = given.rate_of(port.name) or port.rate or given.nic_rate
    if rate is None:
        hint = f"Give it with --nic-rate {port.name}=RATE, or leave it out with --nics ^{port.name}."
        raise InputError("no rate", where=f"{path}: {port.name}", expected="what its driver tells", hint=hint)
    near = _near(port.place, gpus)
    card = port.owner or port.place
    return NicCandidate(
        name=port.name,
        where=f"{path}: {port.name}",
        rate=rate,
        beside=bool(near),
        fabric=port.fabric,
        card=without_function(card.rpartition("/")[2]),
        model=(tree.text(f"{port.place}/vendor"), tree.text(f"{port.place}/device")) if port.place else None,
        slot=nic_slot(tree, port.place, [gpus[g] for g in near]) if port.place else None,
        asked=given.wanted(port.name) is True,
        fixed=given.rate_of(port.name) is not None,
        port=port.identity,
        elsewhere=port.name in given.elsewhere,
    )


def _gpus(tree: Sysfs) -> list[str]:
    """Places of NVIDIA's display controllers and of AMD's accelerators, in the order of their addresses."""
    gpus = []
    for address in tree.names("bus/pci/devices"):
        place = pci_place(tree.real(f"bus/pci/devices/{address}"))
        if not place:
            continue
        kind, vendor = tree.text(f"{place}/class")[:6], tree.text(f"{place}/vendor")
        if (kind in ("0x0300", "0x0302") and vendor == _NVIDIA) or (kind in ("0x1200", "0x0380") and vendor == _AMD):
            gpus.append(place)
    return gpus[:MAX_DEVICES]


def _near(nic: str, gpus: Sequence[str]) -> list[int]:
    """The GPUs with which a NIC shares the most bridges; none where it shares none."""
    bridges = set(pci_bridges(nic))
    shared = [len(bridges.intersection(pci_bridges(gpu))) for gpu in gpus]
    most = max(shared, default=0)
    return [g for g, count in enumerate(shared) if count == most] if most else []
