"""From the name of a transport to a rank's wires."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from optcc.errors import InputError, some
from optcc.machine.rdma import LIBRARY, PLAYED_FABRIC, NicAddress, can_load, natural, rdma_ports
from optcc.runtime.control.rendezvous import addresses_of
from optcc.runtime.native.layout import Layout
from optcc.runtime.native.lent import Arena
from optcc.runtime.native.wires import (
    NativeWires,
    NetworkNics,
    Opening,
    QueuePairNics,
    QueuePairWires,
    RealNics,
    ShmWires,
    TcpWires,
)
from optcc.schedule import Port

TRANSPORTS = ("local", "tcp", "verbs")
"""Emulated NICs between processes of one machine; network interfaces; RDMA devices."""


LAB = "OPTCC_LAB"
"""Set in the environment inside the lab."""


def this_machine() -> str:
    """Names this machine, as far as its processes can reach each other by Unix sockets: not into another container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def demand_one_machine(transport: str, machines: Sequence[str], where: str) -> None:
    """Raise InputError when ranks of the local transport are not all where the first one is. `machines` : by rank."""
    other = next((rank for rank, machine in enumerate(machines) if machine != machines[0]), None)
    if transport == "local" and other is not None:
        raise InputError(
            "local is for one machine",
            where=where,
            expected="tcp or verbs for ranks on several machines, or in containers with networks of their own",
            got=f"local, with rank {other} on another machine than rank 0",
            hint="With verbs, NICs are called as their RDMA devices; `optcc doctor` lists them.",
        )


def arena_for(transport: str) -> Arena | None:
    """Of a rank whose callers may allocate in it; None: over this transport nothing is lent.

    It is limited to half of the machine's memory, as Linux limits a tmpfs.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Arena(memory // 2) if transport == "local" else None


def open_wires(transport: str, opening: Opening) -> NativeWires:
    """Wires to the other ranks, on all of them at the same time."""
    if transport == "local":
        return ShmWires(opening)
    layout, mine = opening.layout, opening.layout.of_rank[opening.rank]
    if transport == "tcp":
        return TcpWires(opening, [interface_of(layout.nics[number]) for number in mine])
    found = nics_of(layout, opening.rank)
    devices = {place: found[number] for place, number in enumerate(mine) if number in found}
    network = _network()
    nics: RealNics = QueuePairNics()
    if network:
        numbers = {number: natural(found[number].device)[-1][0] for number in mine if number in found}
        nics = NetworkNics(network, numbers, {number: 8 * layout.nics[number].out_rate for number in mine})
    return QueuePairWires(opening, devices, nics)


def _network() -> Any:
    """What spoils links and packets, in the lab and in a played fabric; elsewhere nothing."""
    if PLAYED_FABRIC in os.environ:
        from optcc.fabric.played import PlayedNetwork

        return PlayedNetwork()
    return importlib.import_module("lab.network") if LAB in os.environ else None


def interface_of(port: Port) -> tuple[IPv4Address | IPv6Address, int]:
    """The address of a NIC that is called by its interface, ``server1/eth2``, or by an address, ``server1/10.0.0.3``;
    and the interface's number where the address is of its link alone. InputError for neither."""
    name = device_of(port)
    try:
        return ip_address(name), 0
    except ValueError:
        pass
    found = addresses_of(name)
    if not found:
        here = ", ".join(name for _, name in socket.if_nameindex())
        what = "a NIC that is no interface of this machine with an address, nor an address"
        raise InputError(what, where="--transport tcp", expected=f"NICs called as one of {here}", got=port.name)
    best = min(found, key=lambda address: (address.is_link_local, address.version))
    return best, socket.if_nametoindex(name) if best.is_link_local else 0


def nics_of(layout: Layout, rank: int) -> dict[int, NicAddress]:
    """The rank's NICs that are here, by index, and how to open them."""
    found = _devices()
    names = {i: device_of(nic) for i, nic in enumerate(layout.nics) if nic.rank == rank}
    return {i: found[name] for i, name in names.items() if name in found}


def check_devices(transport: str, ports: Sequence[Port]) -> None:
    """Raise InputError when the NICs of these ports are not RDMA devices of this machine, or libibverbs is missing."""
    if transport == "local":
        return
    if transport == "tcp":
        for port in ports:
            interface_of(port)
        return
    if not can_load():
        raise InputError(
            f"{LIBRARY} cannot be loaded",
            where="--transport verbs",
            hint="apt install libibverbs1 ibverbs-providers; `optcc doctor` tells more.",
        )
    found = _devices()
    missing = [port.name for port in ports if device_of(port) not in found]
    if missing:
        here = ", ".join(sorted(found)) or "none"
        raise InputError(
            "no such RDMA devices on this machine",
            where="--transport verbs",
            expected=f"NICs called as devices with an address: {here}",
            got=some(missing, 4),
            hint="`optcc doctor` lists the devices; soft-RoCE (rdma_rxe) makes some out of any network card.",
        )


def device_of(port: Port) -> str:
    """The device a NIC is called by: ``server1/mlx5_3`` is mlx5_3, its second port ``server1/mlx5_3:2``."""
    return port.name.partition("/")[2]


def _devices() -> dict[str, NicAddress]:
    """Device, or device:port, -> how to open it, of all that have an address."""
    found = {}
    for port in rdma_ports():
        address = port.address()
        if address is not None:
            found[f"{port.device}:{port.port}"] = address
            if port.port == 1:
                found[port.device] = address
    return found
