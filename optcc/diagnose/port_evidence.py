"""What operators' tools say of a server's ports, as evidence: links that are down or slow, and errors that are counted.

Lists of ports are those that topologies are read from (`optcc.discover.readers.PARTS`); a link is held against the
healthy rate as sysfs's is. ``perfquery`` and ``ethtool -S`` count errors of one port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from optcc.diagnose.counters import Reading, counted_between
from optcc.diagnose.evidence import Evidence, Sign
from optcc.diagnose.link_state import link_evidence
from optcc.diagnose.ports import NicDirections
from optcc.discover.parts import PartNic
from optcc.discover.port_tools import COMMAND, looks_like_mlxlink, port_of_command, read_mlxlink, unnamed
from optcc.discover.readers import PARTS, PartReader
from optcc.errors import InputError
from optcc.values.units import format_rate

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
    """The reader of a list of ports; NCCL's log, which is another kind of evidence, is none."""
    return next((reader for reader in PARTS if reader.name != "NCCL's log" and reader.fits(text)), None)


def looks_like_counters(text: str) -> str | None:
    """The tool that counted."""
    if _LID.search(text) or (_PERFQUERY.search(text) and "PortSelect" in text):
        return "perfquery"
    return "ethtool -S" if "NIC statistics:" in text and _ETHTOOL.search(text) else None


def read_ports(document: EvidenceText, reader: PartReader, ports: NicDirections) -> Evidence:
    """What a list of ports says of links."""
    text, source = document.text, document.source
    is_mlxlink = looks_like_mlxlink(text)
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
