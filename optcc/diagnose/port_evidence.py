"""What operators' tools say of a server's ports, as evidence: links that are down or slow, and errors that are counted.

Lists of ports are those that topologies are read from (`optcc.discover.readers.PARTS`); a link is held against the
healthy rate as sysfs's is. ``perfquery`` and ``ethtool -S`` count errors of one port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.diagnose.counters import Reading, counted_between
from optcc.diagnose.evidence import Evidence, Sign
from optcc.diagnose.link_state import link_evidence
from optcc.diagnose.ports import NicDirections
from optcc.discover.parts import PartNic
from optcc.discover.port_tools import looks_like_mlxlink, port_of_command, read_mlxlink, unnamed
from optcc.discover.readers import PARTS, PartReader
from optcc.errors import InputError
from optcc.values.units import format_rate

_LID = re.compile(r"counters: Lid (\d{1,6}) port (\d{1,3})")
_PERFQUERY = re.compile(r"^([A-Z]\w{2,40}):\.{2,40}(\d{1,20})\s*$", re.M)
_ETHTOOL = re.compile(r"^\s*([a-z]\w{2,60}): (\d{1,20})\s*$", re.M)
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


def is_of_ports(text: str) -> bool:
    """Whether a tool's list of ports, or its counters of one, is in a text."""
    return part_of(text) is not None or looks_like_counters(text) is not None


def read_ports(document: EvidenceText, before: EvidenceText | None, ports: NicDirections) -> Evidence:
    """All that a tool says. before : the same tool's counters of the same port, read earlier."""
    text, source = document.text, document.source
    if (tool := looks_like_counters(text)) is not None:
        return _counted(document, before, tool, ports)
    reader = part_of(text)
    assert reader is not None
    if looks_like_mlxlink(text):
        told = {"": read_mlxlink(text, source, document.nic)}
    else:
        told = dict(reader.read(text, source))
    found, strangers = [], 0
    for host, part in told.items():
        server = ports.server(host) if host else document.server
        if server is None and host:
            strangers += 1  # of a whole fabric, hosts of other clusters
        else:
            found.append(_links(part.nics, reader.name, source, _need(server, reader.name, source, ports), ports))
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


def _counted(document: EvidenceText, before: EvidenceText | None, tool: str, ports: NicDirections) -> Evidence:
    server, nic = owner(document, tool, ports)
    after, earlier = (Reading({nic: counters_in(one.text)}) if one is not None else None for one in (document, before))
    assert after is not None
    found = counted_between(earlier, after, None, server, document.source, ports)
    if tool == "perfquery":  # narrow counters stop at their largest value
        full = "65535"
        signs = tuple(replace(s, what=s.what.replace(f" {full} ", f" {full} or more ")) for s in found.signs)
        found = replace(found, signs=signs)
    return found


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


def recommended(text: str, document: EvidenceText) -> Sign | None:
    """What mlxlink advises, where it is anything."""
    found = re.search(r"^Recommendation\s*:\s*(\S.{0,160})$", text, re.M)
    if found is None or "No issue was observed" in found[1] or document.server is None:
        return None
    return Sign(document.source, f"mlxlink: {found[1]}", document.server)
