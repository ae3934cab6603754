"""What operators' tools say of a server's ports, as evidence: links that are down or slow, and errors that are counted.

Lists of ports are those that topologies are read from (`optcc.discover.several.PARTS`); a link is held against the
healthy rate as sysfs's is. ``perfquery`` and ``ethtool -S`` count errors of one port.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, Observation, Sign, port
from optcc.discover.port_lists import COMMAND, LISTS, PartNic, PartReader, port_of_command, read_mlxlink, unnamed
from optcc.discover.sysfs_tree import bond_of, nic_slot
from optcc.discover.topology import listed
from optcc.errors import InputError
from optcc.machine.rdma import RdmaPort, rdma_ports
from optcc.machine.sysfs import Sysfs, pci_place
from optcc.values.units import format_rate

WORD = 4
DATA = {"port_xmit_data": OUT, "port_rcv_data": IN}
ERRORS = {
    "link_downed": ("the link went down", True),
    "symbol_error": ("symbol errors: cable or transceiver", False),
    "link_error_recovery": ("the link recovered from errors: cable or transceiver", True),
    "local_link_integrity_errors": ("link integrity errors: cable or transceiver", True),
    "port_xmit_discards": ("packets that were not sent: the fabric was busy or down", False),
    "port_rcv_remote_physical_errors": ("packets that the other end had marked bad", False),
    "excessive_buffer_overrun_errors": ("buffers that overran: cable or transceiver", False),
    "port_rcv_errors": ("received packets with errors", False),
    "local_ack_timeout_err": ("acknowledgements that did not come in time", False),
    "packet_seq_err": ("packets out of sequence: some were lost", False),
    "out_of_buffer": ("messages without a buffer", False),
    "rnr_nak_retry_err": ("retries of a receiver that was not ready", False),
    "roce_adp_retrans_to": ("retransmissions after a time-out", False),
}
"""Counter -> what it counts, and whether it stays 0 on a port that is well. counters/ and hw_counters/ both."""
MOST_PART = 1.1
"""Of a port's rate: a tenth more is headers and the clock, what is beyond is a counter that was set back."""
_VALUE = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True)
class Reading:
    """Counters of one server: NIC's name -> counter -> value."""

    values: Mapping[str, Mapping[str, int]]


def read_counters(tree: Sysfs) -> Reading:
    """All known counters of all ports."""
    found: dict[str, dict[str, int]] = {}
    for device in tree.names("class/infiniband"):
        for number in tree.names(f"class/infiniband/{device}/ports"):
            name = device if number == "1" else f"{device}:{number}"
            below = f"class/infiniband/{device}/ports/{number}"
            values = {}
            for counter in (*DATA, *ERRORS):
                for folder in ("counters", "hw_counters"):
                    text = tree.text(f"{below}/{folder}/{counter}")
                    if _VALUE.fullmatch(text):
                        values[counter] = int(text)
            if values:
                found[name] = values
    return Reading(found)


def counted_between(
    before: Reading | None, after: Reading, seconds: float | None, server: str, where: str, ports: NicDirections
) -> Evidence:
    """What was counted between two readings `seconds` apart, or, of one, what it has. Rates show what ports can do."""
    signs, known, carried = list[Sign](), set[int](), Counter[int]()
    for name, values in after.values.items():
        nic = ports.nic(server, name)
        if nic is None:
            continue
        known.add(nic)
        was = {} if before is None else before.values.get(name, {})
        for counter, value in values.items():
            more = value - was.get(counter, 0)
            if counter in DATA:
                carried[port(nic, DATA[counter])] += max(0, more)
            elif more > 0:
                what, grave = ERRORS[counter]
                when = "since the driver was loaded" if before is None else "in between"
                signs.append(Sign(f"{where}: {name}", f"{counter} {more} {when} ({what})", server, nic,
                                  grave and before is not None))  # fmt: skip
    seen = []
    for number, words in carried.items():
        part = words * WORD / seconds / ports.rates[number] if before and seconds and ports.rates[number] else 0.0
        if 0 < part <= MOST_PART:
            place = f"{where}: {ports.names[number // 2].partition('/')[2]}"
            seen.append(Observation("counters", place, {number: min(part, 1.0)}, least=True))
    if not known:
        return Evidence()
    how = "once" if before is None else f"twice, {seconds:g} s apart" if seconds else "twice"
    return Evidence(tuple(seen), tuple(signs), (f"{where}: counters of {len(known)} NICs of {server}, read {how}",))


SAME = Fraction(98, 100)
"""A slot or link that carries this part of the healthy rate is as good: 400 Gb/s are 99 % of what 32 GT/s x16 carry."""


def read_links(tree: Sysfs, server: str, where: str, ports: NicDirections) -> Evidence:
    """What each port's driver and slot say, for the NICs that the topology has. The ports of a fused NIC add up."""
    known = dict[int, list[RdmaPort]]()
    for found in rdma_ports(tree):
        if (nic := ports.nic(server, found.device if found.port == 1 else f"{found.device}:{found.port}")) is not None:
            known.setdefault(nic, []).append(found)
    limits = {nic: [(found.device, *_limit(tree, found)) for found in each] for nic, each in known.items()}
    seen, signs = link_evidence(limits, server, where, ports)
    if not known:
        unused = f"{where}: no RDMA port by a name that {server} has in the topology"
        return Evidence(unused=(unused,))
    read = f"{where}: links of {len(known)} NICs of {server}, {len(seen) // 2} of them slow"
    return Evidence(tuple(seen), tuple(signs), (read,))


def link_evidence(
    limits: Mapping[int, Sequence[tuple[str, Fraction | None, str]]], server: str, where: str, ports: NicDirections
) -> tuple[list[Observation], list[Sign]]:
    """Observations of NICs whose links are slow, and signs that say what limits them.

    limits : NIC -> of each of its ports the name, bytes per second (0 without a link, None for unknown), the limit in
        words
    """
    seen, signs = list[Observation](), list[Sign]()
    for nic, each in limits.items():
        place = f"{where}: {', '.join(name for name, _, _ in each)}"
        healthy = Fraction(ports.rates[port(nic, OUT)])
        missing = ports.parts(nic) - len(each)
        total = Fraction(0)
        for name, rate, what in each:
            share = healthy / ports.parts(nic)
            if rate is not None and rate < share * SAME:
                signs.append(Sign(place, f"{name}: {what}" if len(each) > 1 else what, server, nic, True))
            total += share if rate is None else min(rate, share)
        if missing > 0:
            signs.append(Sign(place, f"{missing} of its {ports.parts(nic)} ports are not there", server, nic, True))
        if total < healthy * SAME:
            left = max(float(total / healthy), NOTHING)
            seen += [Observation("link", place, {port(nic, way): left}) for way in (OUT, IN)]
    return seen, signs


def _limit(tree: Sysfs, found: RdmaPort) -> tuple[Fraction | None, str]:
    """The least of what port, bond and slot carry, None where none of them tells; and which it is, in words."""
    if not found.active:
        return Fraction(0), f"the port is {found.state or 'in no state'}"
    limits: list[tuple[Fraction, str]] = []
    bond = bond_of(tree, found.interface)
    if bond is not None:
        down = f", {listed(bond.down)} without a link" if bond.down else ""
        what = f"{len(bond.ports)} ports of {found.interface} run at {format_rate(bond.rate)} together{down}"
        limits.append((bond.rate, what))
    elif found.rate is not None:
        limits.append((found.rate, f"the port runs at {format_rate(found.rate)}"))
    place = pci_place(tree.real(f"class/infiniband/{found.device}/device"))
    slot = nic_slot(tree, place, []) if place else None
    if slot is not None and slot.best is not None and slot.rate < slot.best:
        limits.append((slot.rate, f"its PCI slot runs at {slot.said}, where {slot.best_said} is possible"))
    return min(limits, default=(None, ""))


_LID = re.compile(r"counters: Lid (\d{1,6}) port (\d{1,3})")
_HEAD = re.compile(r"^.{0,20}[Pp]ort (?:extended )?counters: Lid |^NIC statistics:", re.M)
_PERFQUERY = re.compile(r"^([A-Z]\w{2,40}):\.{2,40}(\d{1,20})\s*$", re.M)
_ETHTOOL = re.compile(r"^\s*([a-z]\w{2,60}): (\d{1,20})\s*$", re.M)
_ADVICE = re.compile(r"^Recommendation\s*:\s*(?!No issue was observed)(\S.{0,160}?)\s*$", re.M)
_NAMES = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkRecovers": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "LinkDowned": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "PortXmitData": "port_xmit_data",
    "PortRcvData": "port_rcv_data",
    "link_down_events_phy": "link_downed",
    "rx_symbol_err_phy": "symbol_error",
    "rx_pcs_symbol_err_phy": "symbol_error",
    "rx_crc_errors_phy": "port_rcv_errors",
    "rx_out_of_buffer": "out_of_buffer",
    "tx_discards_phy": "port_xmit_discards",
    "roce_adp_retrans_to": "roce_adp_retrans_to",
}
"""What the tools call a counter -> what sysfs calls it."""


@dataclass(frozen=True)
class EvidenceText:
    """A file, or one host's lines of it, without prefixes.

    server, nic : whose it is, by SERVER=FILE or SERVER/NIC=FILE, by its lines or its name; None for unknown
    """

    text: str
    source: str
    server: str | None = None
    nic: str | None = None


def part_of(text: str) -> PartReader | None:
    """The reader of a list of ports."""
    return next((reader for reader in LISTS if reader.fits(text)), None)


def looks_like_counters(text: str) -> str | None:
    """The tool that counted."""
    if _LID.search(text) or (_PERFQUERY.search(text) and "PortSelect" in text):
        return "perfquery"
    return "ethtool -S" if "NIC statistics:" in text and _ETHTOOL.search(text) else None


def read_ports(document: EvidenceText, reader: PartReader, ports: NicDirections) -> Evidence:
    """What a list of ports says of links."""
    text, source = document.text, document.source
    is_mlxlink = reader.name == "mlxlink"
    told = {"": read_mlxlink(text, source, document.nic)} if is_mlxlink else dict(reader.read(text, source))
    found, strangers = [], 0
    for host, part in told.items():
        server = ports.server(host) if host else document.server
        if server is None and host:
            strangers += 1  # of a whole fabric, hosts of other clusters
        else:
            server = _need(server, reader.name, source, ports)
            found.append(_links(part.nics, reader.name, source, server, ports))
            if is_mlxlink and (advice := _ADVICE.search(text)):
                nic = ports.nic(server, part.nics[0].name)
                found.append(Evidence(signs=(Sign(source, f"mlxlink: {advice[1]}", server, nic),)))
    unused = (f"{source}: {strangers} hosts that the topology does not have",) if strangers else ()
    return Evidence.together([*found, Evidence(unused=unused)])


def _need(server: str | None, tool: str, source: str, ports: NicDirections) -> str:
    names = [server.name for server in ports.cluster.servers]
    if server is None and len(names) > 1:
        raise InputError(
            f"{tool}'s output, which does not name its server",
            where=source,
            expected=f"SERVER={source}, or a file's name that begins with the server's",
            got=f"{len(names)} servers in the topology",
        )
    return names[0] if server is None else server


def _links(nics: tuple[PartNic, ...], tool: str, source: str, server: str, ports: NicDirections) -> Evidence:
    limits: dict[int, list[tuple[str, Fraction | None, str]]] = {}
    for nic in nics:
        name = ports.facts.interfaces.get((server, nic.name), nic.name)
        if (number := ports.nic(server, name)) is not None:
            rate = nic.rate if nic.up else Fraction(0)
            what = f"the port runs at {format_rate(rate)}" if rate else "the port has no link"
            limits.setdefault(number, []).append((name, rate, what))
    seen, signs = link_evidence(limits, server, source, ports)
    if not limits:
        return Evidence(unused=(f"{source}: {tool}: no port by a name that {server} has in the topology",))
    read = f"{source}: {tool}, links of {len(limits)} NICs of {server}, {len(seen) // 2} of them slow"
    return Evidence(tuple(seen), tuple(signs), (read,))


def read_counted(documents: Sequence[EvidenceText], ports: NicDirections) -> list[Evidence]:
    """What was counted on each port: since the driver was loaded, or, of one that comes twice, in between."""
    earlier: dict[tuple[str, str], Reading] = {}
    found = []
    for document in (part for whole in documents for part in _sections(whole)):
        tool = looks_like_counters(document.text) or ""
        server, nic = place = owner(document, tool, ports)
        reading = Reading({nic: counters_in(document.text)})
        one = counted_between(earlier.get(place), reading, None, server, document.source, ports)
        earlier[place] = reading
        if tool == "perfquery":  # narrow counters stop at their largest value
            signs = tuple(replace(s, what=s.what.replace(" 65535 ", " 65535 or more ")) for s in one.signs)
            one = replace(one, signs=signs)
        found.append(one)
    return found


def _sections(whole: EvidenceText) -> list[EvidenceText]:
    """Each port's counters, with the command above them if there is one."""
    heads = [head.start() for head in _HEAD.finditer(whole.text)] or [0]
    begins = [0]
    for last, head in pairwise(heads):
        begins.append(next((c.start() for c in COMMAND.finditer(whole.text, last, head)), head))
    ends = [*begins[1:], len(whole.text)]
    return [replace(whole, text=whole.text[begin:end]) for begin, end in zip(begins, ends, strict=True)]


def owner(document: EvidenceText, tool: str, ports: NicDirections) -> tuple[str, str]:
    """Server and NIC of a tool's counters: by who gives them, by the LID, or by the command above them. Raises
    InputError where nothing tells them, or the topology has no such NIC."""
    server, nic = document.server, document.nic
    lid = _LID.search(document.text)
    if (lid is not None) and (place := ports.facts.lids.get(int(lid[1]))) is not None:
        server = server or ports.server(place[0])
        nic = nic or place[1]
    nic = nic or port_of_command(document.text)
    if server is None and len(ports.cluster.servers) == 1:
        server = ports.cluster.servers[0].name
    if server is None or nic is None:
        raise unnamed(tool, document.source)
    name = ports.facts.interfaces.get((server, nic), nic)
    if ports.nic(server, name) is None:
        expected = "a NIC of the topology"
        hint = "Give it as SERVER/NIC=FILE; ibdev2netdev's output tells which NIC an interface is."
        raise InputError(
            f"{tool}: no such NIC", where=document.source, expected=expected, got=f"{server}/{nic}"[:160], hint=hint
        )
    return server, name


def counters_in(text: str) -> Mapping[str, int]:
    """Counters by the names of sysfs."""
    found: dict[str, int] = {}
    for name, value in (*_PERFQUERY.findall(text), *_ETHTOOL.findall(text)):
        if known := _NAMES.get(name):
            found[known] = max(int(value), found.get(known, 0))
    return found
