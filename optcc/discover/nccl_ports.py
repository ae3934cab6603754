"""The NICs of NCCL's and RCCL's XML: which of them NCCL would use, and at what rate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lxml import etree

from optcc.discover.bonds import note_by_name
from optcc.discover.given import Given
from optcc.discover.nccl_document import DUMP, at, number
from optcc.discover.nccl_gpus import check_device_count
from optcc.discover.nic_choice import ETHERNET, INFINIBAND, LISTED, NicCandidate
from optcc.discover.pci import card_of, pci_of, slot_of
from optcc.discover.topology import UNUSED_NIC_RATE, Assumed
from optcc.errors import InputError
from optcc.values.units import format_rate

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
