"""NCCL's and RCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE=topo.xml`` makes a job write it: one server, or several.

Elements read: ``<net name dev speed port gdr rail plane>`` under ``<cpu>`` and ``<pci>`` (speed in Mb/s), ``<gpu>``,
``<nvlink count tclass>`` and ``<xgmi count>``. Attributes read: ``link_speed`` and ``link_width`` of a NIC's slot,
``host_hash``. NICs that training does not use are left out; what the report assumes says which and why. A file that was
made for ``NCCL_TOPO_FILE``, as clouds ship them, has PCI devices alone: its NICs and GPUs are told by their PCI class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from lxml import etree

from optcc.discover.card_ports import one_per_port, within_slots, without_surplus
from optcc.discover.given import Given
from optcc.discover.nccl_document import at, optional_number, parse
from optcc.discover.nccl_gpus import bare_gpus, gpus_of, link_rate
from optcc.discover.nccl_interfaces import without_virtual
from optcc.discover.nccl_ports import NcclPort, candidate, ports_in_use, rates_of, with_gpu_direct
from optcc.discover.nearness import deal
from optcc.discover.nic_choice import for_training
from optcc.discover.pci import slot_of
from optcc.discover.rails import Clue, Clues
from optcc.discover.topology import Assumed, Topology, describe, located
from optcc.values.cluster import Cluster, Nic, Server

MAX_HOSTS = 256
"""Hosts of one file: those of one NVLink domain, of which the largest has 18 to 144."""


def nccl_servers(data: bytes, path: str, given: Given) -> tuple[Topology, Clues]:
    """The servers of a dump, server0 and so on, before NICs that the file gives no rail get one, and what tells it.

    Raises InputError naming `path`, line and element.
    """
    return _servers(parse(data, path), path, given)


def _servers(root: etree._Element, path: str, given: Given) -> tuple[Topology, Clues]:
    """The servers, NICs on the rails that the file says, and what it tells of the others' rails."""
    assumed = Assumed()
    hosts = _hosts(root)
    if len(hosts) > 1:
        text = "several hosts in one file; NVLink between them is not counted"
        assumed.add(path, f"{text}, so that they meet over their NICs alone")
    clues: dict[tuple[str, str], Clue] = {}
    servers = [_server(scope, f"server{i}", path, given, assumed, clues) for i, scope in enumerate(hosts)]
    cluster = Cluster(tuple(servers))
    return Topology(cluster, assumed.all(), (_seen(root, path), *describe(cluster))), clues


def _hosts(root: etree._Element) -> list[list[etree._Element]]:
    """What belongs to each host: the file as a whole, or the <cpu>s of each of several host_hashes."""
    by_hash: dict[str, list[etree._Element]] = {}
    for cpu in root.iter("cpu"):
        if cpu.get("host_hash") is not None:
            by_hash.setdefault(cpu.get("host_hash", ""), []).append(cpu)
    # A host without a NIC is none: NCCL fuses what it knows of the GPUs of an NVLink domain, not always the NICs.
    with_nics = [cpus for cpus in by_hash.values() if any(next(cpu.iter("net"), None) is not None for cpu in cpus)]
    return with_nics if 1 < len(with_nics) <= MAX_HOSTS else [[root]]


def _seen(root: etree._Element, path: str) -> str:
    counts = [(tag, sum(1 for _ in root.iter(tag))) for tag in ("cpu", "gpu", "net", "nvlink", "xgmi", "c2c")]
    kind = "RCCL" if any(gpu.get("gcn") is not None for gpu in root.iter("gpu")) else "NCCL"
    found = ", ".join(f"{n} <{tag}>" for tag, n in counts if n)
    return (
        f"{path}: {kind}'s topology XML, version {root.get('version', 'unknown')[:20]}: {found or 'PCI devices alone'}"
    )


def _server(
    scope: Sequence[etree._Element],
    name: str,
    path: str,
    given: Given,
    assumed: Assumed,
    clues: dict[tuple[str, str], Clue],
) -> Server:
    ports = without_virtual(ports_in_use(scope, path, given, assumed), path, assumed)
    ports = with_gpu_direct(ports, path, assumed)
    gpus = gpus_of(scope, path)
    if not gpus and all(port.element.tag == "pci" for port in ports):
        gpus = bare_gpus(scope)
    if not gpus:
        assumed.add(path, "no <gpu>; one GPU per NIC is assumed", "optcc topo ... -o FILE.yaml, and gpus: in that file")
    near = _near(ports, gpus)
    rates = rates_of(ports, given, path, assumed)
    found = [candidate(port, rates[port], bool(near[port]), given, path) for port in ports]
    own = one_per_port(without_surplus(found, path, assumed), path, assumed)
    chosen = for_training(own, assumed)
    slots = [slot for part in scope for pci in part.iter("pci") if (slot := slot_of(pci))]
    limited = {nic.name: nic.rate for nic in within_slots(chosen, slots, assumed)}
    kept = [port for port in ports if port.name in limited]
    if gpus and not any(near[port] for port in kept):
        near = _near(kept, gpus, "cpu")
        flat = "no GPU shares a PCI switch with a NIC, as on virtual machines"
        if any(near.values()):
            how = "GPUs and NICs of one <cpu> are taken to be beside each other, in order"
        else:
            how = "NICs are dealt out to the GPUs in order"
        assumed.add(path, f"{flat}; {how}", "optcc topo ... -o FILE.yaml, and gpu: of each NIC in that file")
    beside = deal([near[port] for port in kept])
    numbers = _gpu_numbers(gpus)
    nics = []
    for port, gpu in zip(kept, beside, strict=True):
        with located(at(port.element, path)):
            rail = optional_number(port.element, "rail", path)
            nics.append(Nic(port.name, limited[port.name], limited[port.name], rail=rail, gpu=gpu))
        plane = optional_number(port.element, "plane", path)
        clues[name, port.name] = Clue(tuple(numbers[i] for i in near[port]), plane)
    links: Fraction = link_rate([gpu for gpu in gpus if gpu.tag == "gpu"], path, assumed)
    with located(path):
        return Server(name, tuple(nics), len(gpus) or len(nics), links)


def _gpu_numbers(gpus: Sequence[etree._Element]) -> list[int]:
    """By which GPUs are the same on other hosts, where some of them take no part: dev, where each has its own."""
    devs = [gpu.get("dev", "") for gpu in gpus]
    plain = all(re.fullmatch("[0-9]{1,4}", dev) for dev in devs) and len(set(devs)) == len(devs)
    return [int(dev) for dev in devs] if plain else list(range(len(gpus)))


def _near(ports: Sequence[NcclPort], gpus: Sequence[etree._Element], below: str = "pci") -> dict[NcclPort, list[int]]:
    """For each port the GPUs under its nearest PCI switch that has one, or, `below` cpu, those of its NUMA node."""
    index = {gpu: i for i, gpu in enumerate(gpus)}
    near: dict[NcclPort, list[int]] = {port: [] for port in ports}
    for port in ports:
        for above in port.element.iterancestors(below):
            found = [index[element] for element in above.iter("gpu", "pci") if element in index]
            if found:
                near[port] = found
                break
    return near
