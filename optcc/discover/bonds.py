"""Bonds of Linux in a sysfs: a bonded RDMA device is as fast as those of its ports that have a link.

Drivers report the rate of one port for the whole bond (mlx5 until recently), so the interfaces below it are read. Their
files are ``bonding/slaves`` and ``bonding/mode`` of Documentation/networking/bonding.rst, ``speed`` and ``operstate``
of each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from optcc.discover.topology import Assumed
from optcc.machine.sysfs import Sysfs

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


def note_by_name(nic: str, where: str, assumed: Assumed) -> None:
    """That a source other than sysfs may tell too little of a NIC, where its name says that it is a bond."""
    if "bond" in nic:
        what = "a bond by its name, whose driver may tell the rate of one of its ports"
        assumed.add(f"{where}: {nic}", what, f"--nic-rate {nic}=RATE, that of its ports together")
