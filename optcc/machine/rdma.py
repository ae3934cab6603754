"""RDMA devices as sysfs shows them: ports, state, rate, GIDs; and which GID to use.

Nothing here opens a device. Files are those of Linux' Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from optcc.errors import InputError
from optcc.machine.sysfs import Folder, Sysfs, pci_place

LIBRARY = "libibverbs.so.1"
"""Of rdma-core; opens devices, with the library of the device's provider."""

PLAYED_FABRIC, PLAYED_HOST = "PLAYED_FABRIC", "PLAYED_HOST"
"""Environment: the folder of a fabric that is played (docs/fabric.md), and which of its hosts this process is on."""

_DEVICES = "class/infiniband"
_MOST_GIDS = 4096
_HOLE = 16
"""So many empty places in a row are taken to be the end of a table of GIDs."""


@dataclass(frozen=True)
class NicAddress:
    """What it takes to open a NIC: device, port (from 1), and the index of the GID that it speaks as.

    `gid_index` is None on InfiniBand, where ports are addressed by LID.
    """

    device: str
    port: int = 1
    gid_index: int | None = None


@dataclass(frozen=True)
class Gid:
    """An entry of a port's table: its index, 16 bytes as IPv6 text, `IB/RoCE v1` or `RoCE v2`, the interface."""

    index: int
    address: str
    kind: str
    interface: str

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address that it maps, where it does."""
        mapped = ipaddress.IPv6Address(self.address).ipv4_mapped
        return None if mapped is None else str(mapped)


@dataclass(frozen=True)
class RdmaPort:
    """One port of one device.

    rate : bytes per second, None where sysfs does not tell
    state : ACTIVE, DOWN, INIT, ...; link : `Ethernet` or `InfiniBand`
    interface : the network device of its first GID, empty on InfiniBand; numa : node, -1 where unknown
    pci : the card's address, empty where it is on none; played : no NIC, but one of a played fabric
    """

    device: str
    port: int
    state: str
    link: str
    rate: Fraction | None
    lid: int
    interface: str
    pci: str
    numa: int
    gids: tuple[Gid, ...]
    played: bool = False

    @property
    def active(self) -> bool:
        """Whether it has a link."""
        return self.state == "ACTIVE"

    @property
    def gid(self) -> Gid | None:
        """The GID to use: RoCE v2 with an IPv4 address before RoCE v2 with a routable IPv6 before link-local ones.

        RoCE v2 is what routers and congestion control understand; its GIDs are made of the interface's addresses.
        None on InfiniBand, which needs none inside a subnet, and where a RoCE port has no RoCE v2 entry.
        """
        if self.link == "InfiniBand":
            return None
        return min((g for g in self.gids if g.kind == "RoCE v2"), key=_preference, default=None)

    def address(self) -> NicAddress | None:
        """How to open it; None when it cannot be used."""
        if self.link == "InfiniBand":
            return NicAddress(self.device, self.port)
        return None if self.gid is None else NicAddress(self.device, self.port, self.gid.index)


def played_host() -> int | None:
    """The number of this process' host on a played fabric; None where NICs are real. Raises InputError."""
    if PLAYED_FABRIC not in os.environ:
        return None
    number = os.environ.get(PLAYED_HOST, "")
    if not re.fullmatch("[0-9]{1,4}", number):
        raise InputError("not a host", where=PLAYED_HOST, expected="its number, from 0", got=number or "nothing")
    return int(number)


def own_sysfs() -> Path:
    """The sysfs that shows this process' NICs: /sys, or what a played fabric has in its place."""
    host = played_host()
    return Path("/sys") if host is None else Path(os.environ[PLAYED_FABRIC]) / f"host{host}" / "sys"


def can_load() -> bool:
    """Whether `LIBRARY` is on this machine."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def rdma_ports(sysfs: Sysfs | None = None) -> list[RdmaPort]:
    """All ports of all devices of this machine, or of another `sysfs`, by device name (numbers in it by value) and
    port. Empty where there are none. Raises InputError where a copy has something else in place of an attribute."""
    tree = sysfs or Folder(own_sysfs())
    found = [
        _port(tree, device, int(port))
        for device in tree.names(_DEVICES)
        for port in tree.names(f"{_DEVICES}/{device}/ports")
        if re.fullmatch("[0-9]{1,4}", port)
    ]
    return sorted(found, key=lambda p: (natural(p.device), p.port))


def natural(name: str) -> list[tuple[int, str]]:
    """A sorting key by which numbers in a name count by value: mlx5_2 before mlx5_10."""
    return [(int(digits or 0), text) for digits, text in re.findall(r"([0-9]{1,18})|(\D+|\d+)", name)]


def _port(tree: Sysfs, device: str, number: int) -> RdmaPort:
    path = f"{_DEVICES}/{device}/ports/{number}"
    gids = tuple(_gids(tree, path))
    lid, numa = tree.text(f"{path}/lid"), tree.text(f"{_DEVICES}/{device}/device/numa_node")
    return RdmaPort(
        device=device,
        port=number,
        state=tree.text(f"{path}/state").partition(":")[2].strip(),  # "4: ACTIVE"
        link=tree.text(f"{path}/link_layer"),
        rate=_rate(tree.text(f"{path}/rate")),
        lid=int(lid, 16) if re.fullmatch("(0x)?[0-9a-fA-F]{1,8}", lid) else 0,
        interface=gids[0].interface if gids else "",
        pci=pci_place(tree.real(f"{_DEVICES}/{device}/device")).rpartition("/")[2],
        numa=int(numa) if re.fullmatch("-?[0-9]{1,6}", numa) else -1,
        gids=gids,
        played=tree.text(f"{_DEVICES}/{device}/board_id") == "played",
    )


def _gids(tree: Sysfs, port: str) -> list[Gid]:
    """The table's entries. The kernel takes the first free place, and tables of hundreds are nearly empty."""
    found: list[Gid] = []
    for index in range(_MOST_GIDS):
        address = tree.text(f"{port}/gids/{index}")
        if _is_gid(address):
            kind, interface = (tree.text(f"{port}/gid_attrs/{what}/{index}") for what in ("types", "ndevs"))
            found.append(Gid(index, address, kind, interface))
        elif index > _HOLE + max((g.index for g in found), default=0):
            break
    return found


def _is_gid(text: str) -> bool:
    try:
        return int(ipaddress.IPv6Address(text)) != 0
    except ValueError:
        return False


def _preference(gid: Gid) -> tuple[int, int]:
    address = ipaddress.IPv6Address(gid.address)
    return (0 if address.ipv4_mapped else 2 if address.is_link_local else 1), gid.index


def _rate(text: str) -> Fraction | None:
    """sysfs writes `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`."""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", text)
    return Fraction(match[1]) * 10**9 / 8 or None if match else None
