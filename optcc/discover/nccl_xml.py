"""NCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE=topo.xml`` makes a job write it: one server.

What is read: ``<net name dev speed port gdr>`` under ``<cpu>`` and ``<pci>`` (speed in Mb/s), ``<gpu dev rank sm>``
and ``<nvlink count tclass>``. NICs that training does not use are left out, and the notes say which and why.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from lxml import etree

from optcc.cluster import Cluster, Nic, Server
from optcc.discover.topology import UNUSED_NIC_RATE, Topology, located
from optcc.errors import InputError
from optcc.units import format_rate

MANAGEMENT_RATIO = 8
"""A NIC slower than the fastest by more than this is for management, not training: port rates within one training
fabric differ by at most 4 (100 beside 400 Gb/s), management ports are 1 to 25 Gb/s beside 200 and more."""

MAX_SPEED = 10_000_000
"""Mb/s: ports are at 0.8 Tb/s, so that more than 10 Tb/s is an error in the file."""

MAX_DEVICES = 1024
"""GPUs, and NICs, of one server; NCCL itself stops at 256 or 576, depending on its version."""

# Compute capability from which on a link carries so many GB/s each way: NCCL's figures, src/graph/topo.h
# (SM60_NVLINK_BW and so on, and the order of the comparisons in ncclTopoNVLinkBw).
_LINK_RATE = ((100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (70, "20"), (60, "18"), (0, "20"))
_CPU_CLASS = "0x068001"  # POWER9: NVLinks to the CPU do not join GPUs


@dataclass(frozen=True)
class _Port:
    element: etree._Element
    name: str
    dev: int


def read_nccl_xml(data: bytes, path: str, nic_rate: Fraction | None) -> Topology:
    """The one server of an NCCL dump, named server0. Raises InputError naming `path`, line and element."""
    root = _parse(data, path)
    hosts = {cpu.get("host_hash") for cpu in root.iter("cpu")} - {None}
    if len(hosts) > 1:
        raise InputError(
            "several hosts in one file",
            where=path,
            expected="one host_hash",
            got=f"{len(hosts)} of them",
            hint="Dump the topology from a job on one server, then give the number of servers with --servers.",
        )
    notes: list[str] = []
    ports = _with_gpu_direct(_ports_in_use(root, path, notes), path, notes)
    rates = _without_management(_rates(ports, nic_rate, path, notes), path, notes)
    gpus = _gpus(root, path)
    if not gpus:
        notes.append(f"{path}: no <gpu>; one GPU per NIC is assumed.")
    beside = _gpus_beside(list(rates), gpus)
    nics = []
    for rail, (port, rate) in enumerate(rates.items()):
        with located(_at(port.element, path)):
            nics.append(Nic(port.name, rate, rate, rail=rail, gpu=beside.get(port)))
    nvlink_rate = _nvlink_rate(gpus, path, notes)
    with located(path):
        server = Server("server0", tuple(nics), len(gpus) or len(nics), nvlink_rate)
    return Topology(Cluster((server,)), tuple(notes))


def _parse(data: bytes, path: str) -> etree._Element:
    if b"<!DOCTYPE" in data:
        raise InputError("a DOCTYPE", where=path, expected="none, as in NCCL's dumps", hint="Delete it.")
    # The encoding is fixed, so that no declared one can hide a DOCTYPE from the search above.
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        place = f"{path}:{error.lineno or 1}"
        raise InputError("not well-formed XML", where=place, expected="NCCL's topology XML", got=error.msg) from None
    if root.tag != "system":
        is_graph = root.tag == "graphs"
        raise InputError(
            "an NCCL graph dump, not a topology" if is_graph else "not an NCCL topology",
            where=f"{path}:{root.sourceline}",
            expected="a root element <system>",
            got=f"<{str(root.tag)[:80]}>",
            hint="Set NCCL_TOPO_DUMP_FILE in a job's environment to get the topology.",
        )
    return root


def _at(element: etree._Element, path: str) -> str:
    name = element.get("name", "")[:80]
    return f"{path}:{element.sourceline}: <{element.tag}{f' {name}' if name else ''}>"


def _number(element: etree._Element, key: str, path: str) -> int:
    text = element.get(key)
    if text is None or not re.fullmatch("[0-9]{1,9}", text):
        got = "nothing" if text is None else text[:40]
        raise InputError(f"no usable {key}", where=_at(element, path), expected=f"{key} a whole number", got=got)
    return int(text)


def _ports_in_use(root: etree._Element, path: str, notes: list[str]) -> list[_Port]:
    """The <net>s that NCCL would use, in the order of dev, each by a name of its own."""
    elements = list(root.iter("net"))
    if not elements:
        raise InputError(
            "no <net>: the file names no NIC",
            where=path,
            expected="at least one <net>",
            hint="A file made for NCCL_TOPO_FILE has none: let a job write one, with NCCL_TOPO_DUMP_FILE.",
        )
    _check_device_count(elements, path)
    names = Counter(element.get("name", "") for element in elements)
    ports = []
    for element in elements:
        name, port = element.get("name", ""), element.get("port", "1")
        if names[name] > 1 and port != "1":
            name = f"{name}:{port}"
        if element.get("dev") is None or element.get("keep") == "0" or element.get("net") == "0":
            reason = "part of a fused NIC" if element.get("net") == "0" else "not in use by NCCL"
            notes.append(f"{_at(element, path)}: skipped, {reason}.")
        else:
            ports.append(_Port(element, name, _number(element, "dev", path)))
    if not ports:
        raise InputError("no NIC in use", where=path, expected="a <net> with dev", got=f"{len(elements)} without")
    return sorted(ports, key=lambda port: port.dev)


def _with_gpu_direct(ports: list[_Port], path: str, notes: list[str]) -> list[_Port]:
    direct = [port for port in ports if port.element.get("gdr", "0") != "0"]
    if not direct:
        notes.append(f"{path}: no NIC has GPU-direct (gdr); all are kept.")
        return ports
    for port in ports:
        if port not in direct:
            notes.append(f"{_at(port.element, path)}: skipped, no GPU-direct (gdr) though other NICs have it.")
    return direct


def _rates(ports: list[_Port], nic_rate: Fraction | None, path: str, notes: list[str]) -> dict[_Port, Fraction]:
    """Bytes per second each way of every port; `nic_rate` where the file gives none that can be meant."""
    speeds = {port: _speed(port.element) for port in ports}
    rates = {}
    for port, speed in speeds.items():
        rate = speed or nic_rate
        if rate is None:
            raise InputError(
                "no usable speed",
                where=_at(port.element, path),
                expected=f"speed in Mb/s, 1 to {MAX_SPEED}",
                got=port.element.get("speed", "nothing")[:40],
                hint="Give the rate of such NICs with --nic-rate 400Gb/s.",
            )
        if speed is None:
            notes.append(f"{_at(port.element, path)}: no usable speed, the rate given with --nic-rate is taken.")
        rates[port] = rate
    if nic_rate and all(speeds.values()):
        notes.append(UNUSED_NIC_RATE)
    return rates


def _speed(element: etree._Element) -> Fraction | None:
    text = element.get("speed", "")
    if not re.fullmatch("[0-9]{1,9}", text) or not 0 < int(text) <= MAX_SPEED:
        return None
    return Fraction(int(text) * 10**6, 8)


def _without_management(rates: dict[_Port, Fraction], path: str, notes: list[str]) -> dict[_Port, Fraction]:
    fastest = max(rates.values())
    kept = {port: rate for port, rate in rates.items() if rate * MANAGEMENT_RATIO >= fastest}
    for port, rate in rates.items():
        if port not in kept:
            slow = f"{format_rate(rate)} is under 1/{MANAGEMENT_RATIO} of the fastest NIC's {format_rate(fastest)}"
            notes.append(f"{_at(port.element, path)}: skipped as a management port, {slow}.")
    return kept


def _check_device_count(elements: list[etree._Element], path: str) -> None:
    if len(elements) > MAX_DEVICES:
        where = f"{path}:{elements[MAX_DEVICES].sourceline}"
        raise InputError(
            f"too many <{elements[0].tag}>", where=where, expected=f"at most {MAX_DEVICES}", got=len(elements)
        )


def _gpus(root: etree._Element, path: str) -> list[etree._Element]:
    """The <gpu>s that take part (all, where no rank is given), in the order of dev."""
    found = list(root.iter("gpu"))
    _check_device_count(found, path)
    ranked = [gpu for gpu in found if gpu.get("rank") is not None]
    return sorted(ranked or found, key=lambda gpu: _number(gpu, "dev", path))


def _gpus_beside(ports: list[_Port], gpus: list[etree._Element]) -> dict[_Port, int]:
    """For each port the GPU under its nearest PCI switch that has one; several ports share several GPUs out."""
    index = {gpu: i for i, gpu in enumerate(gpus)}
    load = Counter[int]()
    beside = {}
    for port in ports:
        for switch in port.element.iterancestors("pci"):
            near = [index[gpu] for gpu in switch.iter("gpu") if gpu in index]
            if near:
                beside[port] = min(near, key=lambda i: (load[i], i))
                load[beside[port]] += 1
                break
    return beside


def _nvlink_rate(gpus: list[etree._Element], path: str, notes: list[str]) -> Fraction:
    """Bytes per second each way over all NVLinks of one GPU, the GPU with the least; 0 without NVLink."""
    if any(gpu.find("xgmi") is not None for gpu in gpus):
        notes.append(f"{path}: xGMI links between GPUs are not read; their rate counts as unknown.")
    rates = set()
    for gpu in gpus:
        links = [link for link in gpu.iter("nvlink") if link.get("tclass") != _CPU_CLASS]
        count = sum(_number(link, "count", path) for link in links)
        sm = _number(gpu, "sm", path) if links else 0
        each = next(rate for least, rate in _LINK_RATE if sm >= least)
        rates.add(count * Fraction(each) * 10**9)
    if len(rates) > 1:
        notes.append(f"{path}: GPUs differ in NVLink rate; the least is taken for all.")
    return min(rates, default=Fraction(0))
