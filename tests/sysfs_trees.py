"""sysfs of machines that the tests put together: GPUs, cards and network interfaces on PCI buses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from optcc.discover import Topology, load_topology
from tests.conftest import GBPS

GEN5, GEN4, GEN1 = "32.0 GT/s PCIe", "16.0 GT/s PCIe", "2.5 GT/s PCIe"
ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
ROOT = "pci0000:{0:02x}/0000:{0:02x}:01.0"


def write(path: Path, **attributes: str) -> Path:
    """Attributes of `path`, with zeros at their end, as tar pads a copy of sysfs."""
    path.mkdir(parents=True, exist_ok=True)
    for name, text in attributes.items():
        (path / name).write_text(text + "\n" + "\0" * 100)
    return path


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


class Machine:
    """A sysfs in the making under `root`. A `bus` is a root port, behind which are a GPU, if any, and cards."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pci(self, bus: int, slot: str, now: tuple[str, str] | None = None, **attributes: str) -> Path:
        speed, width = now or (GEN5, "16")
        links = dict(zip(("current_link_speed", "current_link_width"), (speed, width), strict=True))
        links |= {"max_link_speed": GEN5, "max_link_width": "16"}
        address = f"0000:{bus + 1:02x}:{slot}"
        path = write(self.root / "devices" / ROOT.format(bus) / address, **(links | attributes))
        link(self.root / "bus/pci/devices" / address, path)
        return path

    def gpu(self, bus: int, slot: str = "00.0", **attributes: str) -> Path:
        return self.pci(bus, slot, **{"class": "0x030200", "vendor": "0x10de"} | attributes)

    def rdma(
        self,
        bus: int,
        name: str,
        gbps: float | str = 400,
        *,
        slot: str = "01.0",
        fabric: str = "InfiniBand",
        state: str = ACTIVE,
        now: tuple[str, str] | None = None,
        ports: int = 1,
        below: str = "",
        **attributes: str,
    ) -> Path:
        ids = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700"}
        card = self.pci(bus, slot, now, **(ids | attributes)) if not below else self.root / below
        device = card / "infiniband" / name
        for port in range(1, ports + 1):
            write(device / f"ports/{port}", rate=f"{gbps} Gb/sec (4X)", state=state, link_layer=fabric)
        link(device / "device", card)
        link(self.root / "class/infiniband" / name, device)
        return card

    def net(self, name: str, place: str | Path, speed: str = "100000", **attributes: str) -> Path:
        """An interface below the device at `place`; without a device where that is devices/virtual."""
        device = self.root / "devices" / place
        path = write(device / "net" / name, speed=speed, **({"operstate": "up", "type": "1"} | attributes))
        if place != "virtual":
            link(path / "device", device)
        link(self.root / "class/net" / name, path)
        return path

    def read(self, nics: str | None = None, nic_rate: str | None = None) -> Topology:
        return load_topology(str(self.root), nics=nics, nic_rate=nic_rate)

    def rates(self, nics: str | None = None) -> dict[str, Fraction]:
        """Gb/s of the NICs that count."""
        (server,) = self.read(nics).cluster.servers
        return {nic.name: nic.out_rate / GBPS for nic in server.nics}

    def notes(self) -> str:
        return "\n".join(self.read().notes)


def two_gpus(folder: Path) -> Machine:
    """Two GPUs, each with a 400 Gb/s NIC behind its switch."""
    made = Machine(folder / "sys")
    for i, bus in enumerate((0x10, 0x20)):
        made.gpu(bus)
        made.rdma(bus, f"mlx5_{i}")
    return made


def bonded(root: Path, speeds: Mapping[str, str], mode: str = "802.3ad 4") -> Path:
    """A sysfs with mlx5_bond_0, whose driver tells the rate of one port, over bond0 of these interfaces."""
    made = Machine(root)
    made.gpu(0x20)
    port = made.rdma(0x10, "mlx5_bond_0", 200) / "infiniband/mlx5_bond_0/ports/1"
    for folder, text in (("gids", "fe80::1"), ("gid_attrs/ndevs", "bond0"), ("gid_attrs/types", "RoCE v2")):
        write(port / folder, **{"0": text})
    for bus, (name, speed) in enumerate(speeds.items(), 0x30):
        made.net(name, made.pci(bus, "00.0"), speed, operstate="down" if speed == "-1" else "up")
    write(made.net("bond0", "virtual") / "bonding", slaves=" ".join(speeds), mode=mode)
    return root
