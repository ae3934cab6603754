"""A server from its sysfs: this machine's ``/sys``, a copy of one in a directory, or a tarball of a copy.

RDMA devices with a link are NICs (`optcc.rdma` reads them). Without any, network interfaces on PCI cards are. GPUs are
told by their PCI class and vendor; a NIC sits beside the GPUs with which it shares the most PCI bridges. Files are
those of Linux' Documentation/ABI: stable/sysfs-class-infiniband, testing/sysfs-class-net, testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath

from optcc.cluster import Cluster, Nic, Server
from optcc.discover.given import Given
from optcc.discover.nccl_gpus import MAX_DEVICES
from optcc.discover.nccl_ports import LISTED, MANAGEMENT_RATIO, MIN_SPEED
from optcc.discover.nearness import deal
from optcc.discover.rails import Clue, Clues, on_rails
from optcc.discover.topology import Assumed, Topology, counted, describe, listed, located
from optcc.errors import InputError
from optcc.rdma import natural, rdma_ports, read_text
from optcc.units import format_rate

MAX_MEMBERS = 200_000
MAX_TOTAL = 2**30
MAX_FILE = 4096  # a page: no attribute is longer, and what is (a card's memory) is not needed
MAX_NAME = 512  # characters of 4 bytes at most: far from PATH_MAX, beyond which `tarfile` loses track of links
MAX_HEADER = 65536
COPY = (
    "Copy it with: cp -r --no-dereference --parents /sys/class/infiniband /sys/class/net /sys/bus/pci/devices "
    "/sys/devices/pci* DIR (errors about unreadable files do not matter)."
)
_NVIDIA, _AMD = "0x10de", "0x1002"
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.I)


@dataclass(frozen=True)
class _Port:
    name: str
    rate: Fraction | None
    up: bool
    pci: str  # the card's address


class _Member(tarfile.TarInfo):
    """Refuses by the header alone what `tarfile` reads whole before there is a member: long names, maps of holes."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        made = super().frombuf(buf, encoding, errors)
        if made.type in (b"x", b"g", b"L", b"K", b"X") and not 0 <= made.size <= MAX_HEADER:  # below 0: all
            raise tarfile.ReadError("a name too long")
        if made.type == b"S":
            raise tarfile.ReadError("a file with holes")
        return made

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a file with holes")


def is_sysfs(path: str) -> bool:
    """A directory, or a tarball."""
    with suppress(OSError, ValueError, tarfile.TarError, EOFError, RecursionError):
        if not Path(path).is_file():
            return Path(path).is_dir()
        with tarfile.open(path, "r:*", tarinfo=_Member):
            return True
    return False


def read_sysfs(path: str, given: Given) -> Topology:
    """The one server of a tree or tarball, server0. Raises InputError naming what is missing, and how to copy it."""
    if Path(path).is_dir():
        return on_rails(lambda given: _read_tree(Path(path), path, given), given)
    with tempfile.TemporaryDirectory(prefix="optcc-sysfs-") as folder:
        _unpack(path, Path(folder))
        return on_rails(lambda given: _read_tree(Path(folder), path, given), given)


def _unpack(path: str, folder: Path) -> None:
    """Attributes and links alone: nothing larger than a page, nothing that leads out of `folder`, nothing through a
    link."""
    links: set[PurePosixPath] = set()
    try:
        with tarfile.open(path, "r:*", tarinfo=_Member) as archive:
            for count, member in enumerate(archive):
                end = member.offset_data + member.size  # which has to be unfolded to come to the next
                if count >= MAX_MEMBERS or end > MAX_TOTAL:
                    raise InputError("too large", where=path, expected=f"{MAX_MEMBERS} files, 1 GiB at most", hint=COPY)
                if member.size < 0:
                    raise tarfile.ReadError("a size below 0")
                archive.pax_headers = {}
                archive.members.clear()  # type: ignore[attr-defined]  # all that were read, with their attributes
                name = PurePosixPath(member.name.lstrip("/"))  # as `tarfile` takes it
                if len(member.name) > MAX_NAME or ".." in name.parts or links.intersection((name, *name.parents)):
                    continue
                if member.issym():
                    links.add(name)
                small = member.isfile() and member.size <= MAX_FILE
                if small or member.issym() or member.isdir():
                    with suppress(tarfile.FilterError, OSError):  # a link that leads out: as if it were not there
                        archive.extract(member, folder, filter="data", set_attrs=False)
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
        raise InputError("not a tarball that can be read", where=path, got=str(error)[:120], hint=COPY) from None


def _read_tree(folder: Path, path: str, given: Given) -> tuple[Topology, Clues]:
    root = next((r for r in (folder, folder / "sys", *folder.glob("*/sys")) if (r / "class").is_dir()), None)
    if root is None:
        kind = "directory" if Path(path).is_dir() else "tarball"
        expected = "class/infiniband or class/net in it"
        raise InputError(
            f"a {kind} that cannot be read as sysfs", where=path, expected=expected, got="neither", hint=COPY
        )
    assumed = Assumed()
    try:
        ports, kind = _ports(root, path, assumed)
        places = _pci_places(root)
        gpus = _gpus(root, places)
    except OSError as error:
        raise InputError("cannot be read", where=path, got=str(error)[:120], hint=COPY) from None
    chosen = _for_training(ports, kind, path, given, assumed)
    if not gpus:
        assumed.add(path, "no GPU among the PCI devices; one per NIC is assumed", "gpus: in YAML from optcc topo -o")
    near = [_near(places.get(port.pci, ()), [places[gpu] for gpu in gpus]) for port in chosen]
    if gpus and not any(near):
        flat = "no GPU shares a PCI switch with a NIC, as on virtual machines; NICs are dealt out to the GPUs in order"
        assumed.add(path, flat, "gpu: of each NIC in YAML from optcc topo -o")
    if gpus:
        assumed.add(path, "what joins the GPUs is not in sysfs; NVLink counts as unknown", "nvlink: in that YAML")
    with located(path):
        nics = tuple(
            Nic(port.name, rate, rate, gpu=gpu)
            for port, gpu in zip(chosen, deal(near), strict=True)
            for rate in [port.rate or Fraction(0)]
        )
        cluster = Cluster((Server("server0", nics, len(gpus) or len(nics)),))
    found = f"{counted(len(ports), f'{kind} port')} ({listed([p.name for p in ports])}), {counted(len(gpus), 'GPU')}"
    read = f"{path}: sysfs: {found}"
    clues = {("server0", port.name): Clue(tuple(gpus_near)) for port, gpus_near in zip(chosen, near, strict=True)}
    return Topology(cluster, assumed.all(), (read, *describe(cluster))), clues


def _ports(root: Path, path: str, assumed: Assumed) -> tuple[list[_Port], str]:
    rdma = rdma_ports(root / "class/infiniband")
    several = {p.device for p in rdma if p.port > 1}
    found = [
        _Port(f"{p.device}:{p.port}" if p.device in several and p.port > 1 else p.device, p.rate, p.active, p.pci)
        for p in rdma
    ]
    interfaces = [_interface(each) for each in sorted(root.glob("class/net/*"), key=lambda p: natural(p.name))]
    on_cards = [port for port in interfaces if port is not None]
    if found:
        cards = {port.pci for port in found}
        if others := [port.name for port in on_cards if port.pci not in cards]:
            assumed.add(path, f"network interfaces without RDMA are left out ({listed(others)})")
        return found[:MAX_DEVICES], "RDMA"
    if not on_cards:
        raise InputError(
            "no NIC: neither an RDMA device nor a network interface on a PCI card",
            where=path,
            expected="class/infiniband/DEVICE/ports, or class/net/NAME/device",
            got=listed([p.name for p in root.glob("class/net/*")]) or "nothing",
            hint="Containers hide them; on the host, or: " + COPY,
        )
    assumed.add(path, "no RDMA device; network interfaces on PCI cards are taken")
    return on_cards[:MAX_DEVICES], "network"


def _interface(path: Path) -> _Port | None:
    """An interface that a card has; None for bridges, tunnels, and what else has no device."""
    pci = next((part for part in reversed(path.resolve().parts) if _PCI.fullmatch(part)), "")
    if not pci and not (path / "device").exists():  # other buses, such as Hyper-V's, have the link alone
        return None
    speed = read_text(path / "speed")  # Mb/s, -1 where the driver does not tell
    rate = Fraction(int(speed) * 10**6, 8) if re.fullmatch("[0-9]{1,8}", speed) and int(speed) >= MIN_SPEED else None
    return _Port(path.name, rate, read_text(path / "operstate") in ("up", "unknown", ""), pci)


def _for_training(ports: Sequence[_Port], kind: str, path: str, given: Given, assumed: Assumed) -> list[_Port]:
    """Without ports that are down, and without management ports; with their rates."""
    rated: list[_Port] = []
    for port in ports:
        wanted = given.wanted(port.name)
        if wanted is False:
            continue
        if not port.up and wanted is None:
            down = "skipped, its link is down"
            assumed.add(
                f"{path}: {port.name}", down, f"--nics with it, and --fail server0/{port.name} if it has failed"
            )
            continue
        rate = given.rate_of(port.name) or port.rate or given.nic_rate
        if rate is None:
            hint = f"Give it with --nic-rate {port.name}=RATE, or leave it out with --nics ^{port.name}."
            raise InputError("no rate", where=f"{path}: {port.name}", expected="what its driver tells", hint=hint)
        rated.append(_Port(port.name, rate, port.up, port.pci))
    fastest = max((port.rate or Fraction(0) for port in rated), default=Fraction(0))
    chosen = []
    for port in rated:
        if (port.rate or 0) * MANAGEMENT_RATIO < fastest and given.wanted(port.name) is None:
            slow = (
                f"{format_rate(port.rate or 0)} is under 1/{MANAGEMENT_RATIO} of the fastest's {format_rate(fastest)}"
            )
            assumed.add(f"{path}: {port.name}", f"skipped as a management port, {slow}", LISTED)
        else:
            chosen.append(port)
    if not chosen:
        given.check_seen()
        raise InputError(
            f"no {kind} port with a link", where=path, expected="one that is up", got=listed([p.name for p in ports])
        )
    return chosen


def _pci_places(root: Path) -> dict[str, tuple[str, ...]]:
    """By address, the bridges above a device: its path below /sys/devices, without its own address."""
    found = {}
    for link in root.glob("bus/pci/devices/*"):
        parts = [part for part in link.resolve().parts if _PCI.fullmatch(part)]
        found[link.name] = tuple(parts[:-1])
    return found


def _gpus(root: Path, places: dict[str, tuple[str, ...]]) -> list[str]:
    """Addresses of NVIDIA's display controllers and of AMD's accelerators."""
    gpus = []
    for address in sorted(places):
        device = root / "bus/pci/devices" / address
        kind, vendor = read_text(device / "class")[:6], read_text(device / "vendor")
        if (kind in ("0x0300", "0x0302") and vendor == _NVIDIA) or (kind in ("0x1200", "0x0380") and vendor == _AMD):
            gpus.append(address)
    return gpus[:MAX_DEVICES]


def _near(nic: Sequence[str], gpus: Sequence[Sequence[str]]) -> list[int]:
    """The GPUs with which a NIC shares the most bridges; none where it shares none."""
    shared = [_common(nic, gpu) for gpu in gpus]
    most = max(shared, default=0)
    return [g for g, count in enumerate(shared) if count == most] if most else []


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
