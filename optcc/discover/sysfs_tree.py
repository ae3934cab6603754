"""A server from its sysfs: this machine's ``/sys``, a copy of one in a directory, or a tarball of a copy.

RDMA devices with a link are NICs (`optcc.machine.rdma` reads them). Without any, network interfaces on PCI cards are.
GPUs are told by their PCI class and vendor; a NIC sits beside the GPUs with which it shares the most PCI bridges.
Files are those of Linux' Documentation/ABI: stable/sysfs-class-infiniband, testing/sysfs-class-net,
testing/sysfs-bus-pci.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from optcc.discover.card_ports import one_per_port, within_slots, without_surplus
from optcc.discover.given import Given
from optcc.discover.nccl_gpus import MAX_DEVICES
from optcc.discover.nearness import deal
from optcc.discover.nic_choice import NicCandidate, for_training
from optcc.discover.pci import PciSlot, without_function
from optcc.discover.rails import Clue, Clues, on_rails
from optcc.discover.sysfs_ports import SysfsPort, sysfs_ports, without_functions
from optcc.discover.sysfs_slots import gpu_slot, nic_slot
from optcc.discover.sysfs_tarball import is_tarball, read_tarball
from optcc.discover.topology import Assumed, Topology, counted, describe, listed, located
from optcc.errors import InputError
from optcc.machine.sysfs import Folder, Sysfs, pci_bridges, pci_place
from optcc.values.cluster import Cluster, Nic, Server

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
