"""NCCL's and RCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE=topo.xml`` makes a job write it: one server, or several.

Elements read: ``<net name dev speed port gdr rail plane>`` under ``<cpu>`` and ``<pci>`` (speed in Mb/s), ``<gpu>``,
``<nvlink count tclass>`` and ``<xgmi count>``. Attributes read: ``link_speed`` and ``link_width`` of a NIC's slot,
``host_hash``. NICs that training does not use are left out; what the report assumes says which and why. A file that was
made for ``NCCL_TOPO_FILE``, as clouds ship them, has PCI devices alone: its NICs and GPUs are told by their PCI class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lxml import etree

from optcc.discover.given import Given
from optcc.discover.nic_choice import (
    ETHERNET,
    INFINIBAND,
    LISTED,
    MAX_DEVICES,
    NicCandidate,
    Standing,
    card_of,
    for_training,
    is_virtual,
    note_by_name,
    one_per_port,
    pci_of,
    slot_of,
    standing,
    within_slots,
    without_surplus,
)
from optcc.discover.pasted import as_utf8
from optcc.discover.rails import Clue, Clues
from optcc.discover.topology import UNUSED_NIC_RATE, Assumed, Topology, deal, describe, listed, located
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server
from optcc.values.units import format_rate

WANTED = "NCCL's topology XML"
DUMP = "Set NCCL_TOPO_DUMP_FILE in a job's environment to get the topology."
MAX_ID = 2**15 - 1
"""Of a rail or plane: NCCL holds them in 16 bits (ncclNetProperties_v12_t)."""
_DECLARATION = re.compile(rb"\A\s*<\?xml\b[^>]{0,400}\?>")
"""Nothing may stand before it, not even an empty line; the encoding that it says is not what counts."""


def parse(data: bytes, path: str) -> etree._Element:
    """The <system> of a dump. Raises InputError naming `path`, the line, and what the file is instead."""
    data = _DECLARATION.sub(lambda found: b"\n" * found[0].count(b"\n"), as_utf8(data))
    if re.match(rb"\s*(<\?xml[^>]*>\s*)?(<!--.{0,2000}?-->\s*)*<(!doctype\s+html|html)\b", data, re.I | re.S):
        hint = "The page around a file was saved; download the raw file."
        raise InputError("a web page, not a topology", where=path, expected="a root element <system>", hint=hint)
    if b"<!DOCTYPE" in data:
        hint = "lstopo's XML is hwloc's. " + DUMP if b"hwloc" in data[:1000] else "Delete it."
        raise InputError("a DOCTYPE", where=path, expected="none, as in NCCL's dumps", hint=hint)
    # The encoding is fixed, so that no declared one can hide a DOCTYPE from the search above.
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        place = f"{path}:{error.lineno or 1}"
        cut = data.lstrip().startswith(b"<") and not data.rstrip(b"\0 \t\r\n").endswith(b">")
        whole = "The file ends in the middle: was it copied whole?" if cut else None
        raise InputError("not well-formed XML", where=place, expected=WANTED, got=error.msg, hint=whole) from None
    if root.tag != "system":
        is_graph = root.tag == "graphs"
        raise InputError(
            "an NCCL graph dump, not a topology" if is_graph else "not an NCCL topology",
            where=f"{path}:{root.sourceline}",
            expected="a root element <system>",
            got=f"<{str(root.tag)[:80]}>",
            hint=DUMP,
        )
    return root


def at(element: etree._Element, path: str) -> str:
    """``topo.xml:12: <net mlx5_0>``."""
    name = (element.get("name") or element.get("busid") or "")[:80]
    return f"{path}:{element.sourceline}: <{element.tag}{f' {name}' if name else ''}>"


def number(element: etree._Element, key: str, path: str) -> int:
    """The whole number in attribute `key`. Raises InputError where there is none."""
    text = element.get(key)
    if text is None or not re.fullmatch("[0-9]{1,9}", text):
        got = "nothing" if text is None else text[:40]
        raise InputError(f"no usable {key}", where=at(element, path), expected=f"{key} a whole number", got=got)
    return int(text)


def optional_number(element: etree._Element, key: str, path: str) -> int | None:
    """The whole number in attribute `key`; None where there is none, or NCCL's -1 for undefined. Raises InputError."""
    text = element.get(key)
    if text is None or text.strip() == "-1":
        return None
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > MAX_ID:
        raise InputError(f"not a {key}", where=at(element, path), expected=f"{key} 0 to {MAX_ID}", got=text[:40])
    return int(text)


IN_YAML = "optcc topo ... -o FILE.yaml, and nvlink: in that file"

LOST_NVLINK = "has no NVLink or xGMI link, where other GPUs have: a fault; the others' rate is taken for all"

# Least compute capability -> GB/s of a link each way. NCCL's figures, src/graph/topo.h (SM60_NVLINK_BW and so on, and
# the order of the comparisons in ncclTopoNVLinkBw).
_NVLINK_RATE = ((100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (70, "20"), (60, "18"), (0, "20"))
_CPU_CLASS = "0x068001"  # POWER9: NVLinks to the CPU do not join GPUs

# GB/s each way of one xGMI link: RCCL's figures, src/graph/topo.h (VEGA_XGMI_WIDTH and so on, ncclTopoXGMISpeed).
# Early dumps write the number alone: 906, 908, and 910 for gfx90a.
_XGMI_RATE = (("gfx90a", 36), ("910", 36), ("gfx94", 48), ("94", 48), ("gfx95", 48), ("gfx90", 24), ("90", 24))
_XGMI_OTHER = 24

_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes: VGA, 3D controller, other display (AMD), processing accelerator (AMD)."""


def gpus_of(scope: Sequence[etree._Element], path: str) -> list[etree._Element]:
    """The <gpu>s that take part (all, where no rank is given), in the order of dev."""
    found = [gpu for part in scope for gpu in part.iter("gpu")]
    check_device_count(found, path)
    ranked = [gpu for gpu in found if gpu.get("rank") is not None]
    return sorted(ranked or found, key=lambda gpu: number(gpu, "dev", path))


def bare_gpus(scope: Sequence[etree._Element]) -> list[etree._Element]:
    """The <pci>s that are GPUs by their class, of a file that was made for NCCL rather than by it."""
    return [pci for part in scope for pci in part.iter("pci") if (pci.get("class") or "")[:6] in _GPU_CLASSES]


def check_device_count(elements: Sequence[etree._Element], path: str) -> None:
    """Raise InputError for more than any server has."""
    if len(elements) > MAX_DEVICES:
        where = f"{path}:{elements[MAX_DEVICES].sourceline}"
        raise InputError(
            f"too many <{elements[0].tag}>", where=where, expected=f"at most {MAX_DEVICES}", got=len(elements)
        )


def link_rate(gpus: Sequence[etree._Element], path: str, assumed: Assumed) -> Fraction:
    """Bytes per second each way over all NVLinks or xGMI links of one GPU: of those that have any, the GPU with the
    least. 0 where none has any."""
    each = [_nvlink(gpu, path) + _xgmi(gpu, path, assumed) for gpu in gpus]
    rates = set(each) - {0}
    for gpu in (gpu for gpu, rate in zip(gpus, each, strict=True) if rates and not rate):
        assumed.add(f"{path}:{gpu.sourceline}: GPU{gpu.get('dev', '')[:9]}", LOST_NVLINK, IN_YAML)
    if len(rates) > 1:
        assumed.add(path, "GPUs differ in NVLink rate; the least is taken for all", IN_YAML)
    if any(gpu.find("xgmi") is not None for gpu in gpus):
        pairs = "xGMI joins GPUs in pairs, not through a switch; a GPU's links together count as its one port"
        assumed.add(path, pairs, IN_YAML)
    return min(rates, default=Fraction(0))


def _nvlink(gpu: etree._Element, path: str) -> Fraction:
    links = [link for link in gpu.iter("nvlink") if link.get("tclass") != _CPU_CLASS]
    count = sum(number(link, "count", path) for link in links)
    sm = number(gpu, "sm", path) if links else 0
    each = next(rate for least, rate in _NVLINK_RATE if sm >= least)
    return count * Fraction(each) * 10**9


def _xgmi(gpu: etree._Element, path: str, assumed: Assumed) -> Fraction:
    count = sum(number(link, "count", path) for link in gpu.iter("xgmi"))
    gcn = gpu.get("gcn", "")
    each = next((rate for start, rate in _XGMI_RATE if gcn.startswith(start)), None)
    if each is None and count:
        unknown = f"no xGMI rate is known for gcn {gcn[:40]!r}; RCCL's default, {_XGMI_OTHER} GB/s a link, is taken"
        assumed.add(at(gpu, path), unknown, IN_YAML)
    return Fraction(count * (each or _XGMI_OTHER) * 10**9)


MAX_SPEED = 10_000_000
"""Mb/s: ports are at 0.8 Tb/s, so that more than 10 Tb/s is an error in the file."""

MIN_SPEED = 1000
"""Mb/s: nobody trains over less than 1 Gb/s. Virtual NICs report 10, and files by hand have Gb/s here."""

UNKNOWN_SPEED = 10_000
"""Mb/s: what NCCL takes, and the socket transport writes, where a NIC does not tell (src/transport/net_socket.cc)."""

_PORT_SPEEDS = (10, 25, 40, 50, 100, 200, 400, 800, 1600)  # Gb/s
_NEVER_MBPS = (25, 40, 50, 200, 400, 800)
"""Of these, the ones that no port has in Mb/s, as it may have 10 and 100."""

_INFINIBAND, _ETHERNET = "0x0207", "0x0200"


@dataclass(frozen=True, eq=False)
class NcclPort:
    """A <net>, or the <pci> of a NIC in a file without any; the name it goes by; whether --nics asks for it."""

    element: etree._Element
    name: str
    dev: int
    asked: bool = False


def ports_in_use(scope: Sequence[etree._Element], path: str, given: Given, assumed: Assumed) -> list[NcclPort]:
    """The <net>s that NCCL would use, in the order of dev, each by a name of its own."""
    elements = [net for part in scope for net in part.iter("net")]
    if not elements:
        return _bare_ports(scope, path, given, assumed)
    check_device_count(elements, path)
    names = Counter(element.get("name", "") for element in elements)
    ports: list[NcclPort] = []
    for element in elements:
        name, port = element.get("name", ""), element.get("port", "1")
        if names[name] > 1 and port not in ("0", "1"):
            name = f"{name}:{port}"
        wanted = given.wanted(name)
        if wanted is False:
            continue
        if element.get("dev") is None or element.get("keep") == "0" or element.get("net") == "0":
            reason = "part of a fused NIC" if element.get("net") == "0" else "not in use by NCCL"
            assumed.add(at(element, path), f"skipped, {reason}")
        else:
            ports.append(NcclPort(element, name, number(element, "dev", path), wanted is True))
    if not ports:
        given.check_seen()
        expected = "a <net> with dev" + (", among those that --nics leaves" if given.nics else "")
        raise InputError("no NIC in use", where=path, expected=expected, got=f"{len(elements)} without")
    return _named_apart(sorted(ports, key=lambda port: port.dev), path, assumed)


def _named_apart(ports: list[NcclPort], path: str, assumed: Assumed) -> list[NcclPort]:
    seen: set[str] = set()
    apart = []
    for port in ports:
        name = port.name or f"net{port.dev}"
        if name in seen or not port.name:
            name = f"{name}.{port.dev}" if name in seen else name
            assumed.add(at(port.element, path), "a name twice, or none; the number of the device tells such NICs apart")
        seen.add(name)
        apart.append(NcclPort(port.element, name, port.dev, port.asked))
    return apart


def _bare_ports(scope: Sequence[etree._Element], path: str, given: Given, assumed: Assumed) -> list[NcclPort]:
    """The <pci>s that are NICs by their class, of a file that was made for NCCL rather than by it."""
    devices = [pci for part in scope for pci in part.iter("pci") if pci.find("pci") is None]
    found = [pci for kind in (_INFINIBAND, _ETHERNET) for pci in devices if pci.get("class", "").startswith(kind)]
    infiniband = [pci for pci in found if pci.get("class", "").startswith(_INFINIBAND)]
    nics = infiniband or found
    if not nics:
        raise InputError(
            "no <net>: the file names no NIC",
            where=path,
            expected="at least one <net>",
            hint="A file made for NCCL_TOPO_FILE has none: let a job write one, with NCCL_TOPO_DUMP_FILE.",
        )
    check_device_count(nics, path)
    if given.nic_rate is None and not given.rates:
        raise InputError(
            f"no <net>, but {len(nics)} NICs by their PCI class: no rates, as in files made for NCCL_TOPO_FILE",
            where=path,
            expected="--nic-rate, such as --nic-rate 400Gb/s",
            got="neither rates nor names",
            hint=DUMP,
        )
    assumed.add(
        path, f"no <net>; the {len(nics)} NICs and the GPUs are told by their PCI class", "a dump of a job instead"
    )
    if infiniband and len(found) > len(nics):
        assumed.add(path, f"{len(found) - len(nics)} Ethernet devices beside InfiniBand ones are skipped", "--nics")
    named = [(pci.get("busid", f"pci{i}"), pci) for i, pci in enumerate(nics)]
    ports = [NcclPort(p, n, i, bool(given.wanted(n))) for i, (n, p) in enumerate(named) if given.wanted(n) is not False]
    if not ports:
        given.check_seen()
        raise InputError("no NIC is left", where=f"--nics: {path}", expected="at least one")
    return _named_apart(ports, path, assumed)


def with_gpu_direct(ports: list[NcclPort], path: str, assumed: Assumed) -> list[NcclPort]:
    """The ports with GPU-direct, and those that --nics asks for; all, where none has it."""
    direct = [port for port in ports if port.element.get("gdr", "0") != "0"]
    if not direct:
        if any(port.element.tag == "net" for port in ports):
            assumed.add(path, "no NIC has GPU-direct (gdr); all are kept")
        return ports
    for port in ports:
        if port not in direct and not port.asked:
            reason = "skipped, no GPU-direct (gdr) though other NICs have it"
            assumed.add(at(port.element, path), reason, LISTED)
    return [port for port in ports if port in direct or port.asked]


def rates_of(ports: list[NcclPort], given: Given, path: str, assumed: Assumed) -> dict[NcclPort, Fraction]:
    """Bytes per second each way of every port: said for it by name, else the file's, else --nic-rate, else guessed."""
    speeds = {port: _speed(port.element) for port in ports}
    rates = {}
    for port, speed in speeds.items():
        rate = given.rate_of(port.name) or speed or given.nic_rate
        if rate is None:
            rate = _guessed(port, speeds, path, assumed)
        elif given.rate_of(port.name) is None and speed is None and port.element.tag == "net":
            assumed.add(at(port.element, path), "no usable speed, the rate given with --nic-rate is taken")
        if given.rate_of(port.name) is None:
            note_by_name(port.name, path, assumed)
        rates[port] = rate
    if given.nic_rate and all(speeds.values()):
        assumed.add("", UNUSED_NIC_RATE)
    if all(port.element.get("speed") == str(UNKNOWN_SPEED) and not given.rate_of(port.name) for port in ports):
        unknown = "10Gb/s everywhere, which is also what NCCL writes where a NIC does not tell its speed"
        assumed.add(path, unknown, "--nic-rate '*=100Gb/s', say")
    return rates


def _guessed(port: NcclPort, speeds: dict[NcclPort, Fraction | None], path: str, assumed: Assumed) -> Fraction:
    """From a speed in another unit, or from a card of the same kind. Raises InputError where there is neither."""
    text, fix = port.element.get("speed", ""), "--nic-rate NAME=RATE"
    units = (("kb/s", 10**6, _PORT_SPEEDS), ("b/s", 10**9, _PORT_SPEEDS), ("Gb/s", 1, _NEVER_MBPS))
    for unit, factor, speeds_of_ports in units:
        if re.fullmatch("[0-9]{2,13}", text) and int(text) in [speed * factor for speed in speeds_of_ports]:
            gbps = int(text) // factor
            assumed.add(at(port.element, path), f"speed {text} is no rate in Mb/s; as {unit} it is {gbps}Gb/s", fix)
            return Fraction(gbps * 10**9, 8)
    kind = model_of(port)
    alike = {speed for other, speed in speeds.items() if speed and kind and model_of(other) == kind}
    if len(alike) == 1:
        rate = alike.pop()
        same = f"no usable speed; {format_rate(rate)} is taken, as of the other cards of the same model"
        assumed.add(at(port.element, path), same, fix)
        return rate
    raise InputError(
        "no usable speed",
        where=at(port.element, path),
        expected=f"speed in Mb/s, {MIN_SPEED} to {MAX_SPEED}",
        got=port.element.get("speed", "nothing")[:40],
        hint=f"Give the rate of such NICs with --nic-rate 400Gb/s, or leave this one out with --nics ^{port.name}.",
    )


def model_of(port: NcclPort) -> tuple[str, str] | None:
    """PCI vendor and device of its card, where the file has both."""
    card = pci_of(port.element)
    vendor, device = (None, None) if card is None else (card.get("vendor"), card.get("device"))
    return (vendor, device) if vendor and device else None


def candidate(port: NcclPort, rate: Fraction, beside: bool, given: Given, path: str) -> NicCandidate:
    """The port with all that decides whether it counts."""
    card = pci_of(port.element)
    kind = "" if card is None else card.get("class", "")
    fabrics = {_INFINIBAND: INFINIBAND, _ETHERNET: ETHERNET}
    return NicCandidate(
        name=port.name,
        where=at(port.element, path),
        rate=rate,
        beside=beside,
        fabric=fabrics.get(kind[:6], ""),
        card=card_of(port.element) or "",
        # NCCL takes a virtual machine's functions together under an address that may be another device's.
        model=(model_of(port) or ("", "")) if kind.startswith("0x02") else None,
        slot=slot_of(port.element),
        asked=port.asked,
        fixed=given.rate_of(port.name) is not None,
        port=_identity(port.element),
        elsewhere=port.name in given.elsewhere,
    )


def _identity(net: etree._Element) -> str:
    """NCCL's guid is that of the card's system image, its port counts functions as ports: of two functions of one
    physical port both are the same. Planes are apart."""
    guid = net.get("guid", "")
    if not re.fullmatch("0x[0-9a-fA-F]{1,16}", guid) or int(guid, 16) in (0, 2**64 - 1) or net.get("port") is None:
        return ""
    return "/".join((guid, *(net.get(key, "") for key in ("port", "rail", "plane"))))


def _speed(element: etree._Element) -> Fraction | None:
    text = element.get("speed", "")
    if not re.fullmatch("[0-9]{1,9}", text) or not MIN_SPEED <= int(text) <= MAX_SPEED:
        return None
    return Fraction(int(text) * 10**6, 8)


_WIRELESS = "0x0280"  # the PCI class of networks that are none of the known ones


def without_virtual(ports: list[NcclPort], path: str, assumed: Assumed) -> list[NcclPort]:
    """Without interfaces that are no hardware, or stand for hardware that is here, too; and without virtual functions
    of cards that are here."""
    names = {_name(port) for port in ports}
    real = {port: standing(_name(port), names, _on_card(port)) for port in ports}
    best = min(real.values(), default=Standing.CARD)
    apart = [port for port in ports if real[port] > min(best, Standing.STAND_IN) and not port.asked]
    if apart:
        kind = "virtual interfaces, or on no PCI card of a wired network where other NICs are"
        assumed.add(path, f"{kind}: skipped {listed([port.name for port in apart], 16)}", LISTED)
    if apart and len(apart) == len(ports):
        got = listed([port.name for port in ports])
        hint = "If one of them is the NIC to use, name it in --nics."
        raise InputError("no NIC but virtual interfaces", where=path, expected="a card's", got=got, hint=hint)
    ports = [port for port in ports if port not in apart]
    cards = {_bus(port) for port in ports if not is_virtual(model_of(port))} - {None}
    functions = [port for port in ports if is_virtual(model_of(port)) and _bus(port) in cards and not port.asked]
    if functions:
        others = listed([port.name for port in functions], 16)
        assumed.add(path, f"virtual functions of cards that count themselves: skipped {others}", LISTED)
    return [port for port in ports if port not in functions]


def _on_card(port: NcclPort) -> bool:
    card = pci_of(port.element)
    if card is None:
        return port.element.get("gdr", "0") != "0"  # what a GPU reads and writes is on PCI
    return not card.get("class", "").startswith(_WIRELESS)


def _bus(port: NcclPort) -> tuple[str, str] | None:
    """Of a card at 0000:13:00.0, ``0000:13`` and its vendor: its virtual functions are on the same bus."""
    card, model = card_of(port.element), model_of(port)
    return (card.rpartition(":")[0], model[0]) if card and model else None


def _name(port: NcclPort) -> str:
    return port.element.get("name") or port.name


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
