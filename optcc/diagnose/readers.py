"""The kinds of evidence: how each is told by its content, and what reads it. A new kind is a file and a line here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, Facts, NicDirections, Observation, port
from optcc.diagnose.fit import LEAST_NOISE
from optcc.diagnose.inspector import looks_like_inspector, looks_like_metrics, read_inspector, read_metrics
from optcc.diagnose.log_evidence import causes_in, read_log
from optcc.diagnose.lost_ranks import looks_like_lost_ranks, read_lost_ranks
from optcc.diagnose.nccl_tests import looks_like_tests, read_tests
from optcc.diagnose.plugin_evidence import looks_like_plugin, read_plugin
from optcc.diagnose.port_evidence import (
    EvidenceText,
    Reading,
    counted_between,
    looks_like_counters,
    part_of,
    read_counted,
    read_counters,
    read_links,
    read_ports,
)
from optcc.diagnose.ras import looks_like_ras, read_ras
from optcc.discover.calibration import MOST_TOLERANCE
from optcc.discover.given import Given
from optcc.discover.nccl_log import looks_like_log
from optcc.discover.pasted import as_utf8, by_host, cleaned, dicts, from_json, parsed, plain, tool_of, unwrapped
from optcc.discover.sysfs_tree import is_sysfs, open_sysfs
from optcc.discover.yaml_file import read_yaml
from optcc.errors import InputError
from optcc.files.reading import is_stdin, read_file, shown
from optcc.machine.sysfs import Sysfs


def looks_like_calibration(text: str) -> bool:
    """optcc's YAML with measured rates, or the object of --json."""
    return "\nmeasured:" in text or text.startswith("measured:") or _is_json(text)


def _is_json(text: str) -> bool:
    return '"alone_over_together"' in text


def read_calibration(text: str, source: str, ports: NicDirections) -> Evidence:
    """Observations of pairs, or of NICs. Raises InputError where the file cannot be read."""
    return _of_pairs(text, source, ports) if _is_json(text) else _of_nics(text, source, ports)


def _of_nics(text: str, source: str, ports: NicDirections) -> Evidence:
    found = read_yaml(unwrapped(text, source)[0].encode(), source, Given())
    if found.measured is None:
        raise InputError("nothing measured", where=source, expected="what optcc calibrate -o writes")
    spread = max(LEAST_NOISE, float(found.measured.spread))
    parts: dict[int, float] = {}
    unknown = 0
    for server in found.cluster.servers:
        name = ports.server(server.name)
        for nic in server.nics:
            number = None if name is None else ports.nic(name, nic.name)
            if number is None:
                unknown += 1
            elif f"{server.name}/{nic.name}" in found.measured.nameplate:
                for way, rate in ((OUT, nic.out_rate), (IN, nic.in_rate)):
                    healthy = ports.rates[port(number, way)]
                    parts[port(number, way)] = max(float(rate) / healthy, NOTHING) if healthy else NOTHING
    seen = [
        Observation(
            "calibrate", f"{source}: {ports.names[number // 2]}", _held_back(number, parts, ports), spread=spread
        )
        for number in parts
    ]
    unused = (f"{source}: {unknown} NICs that the topology does not have",) if unknown else ()
    read = f"{source}: optcc calibrate of {found.measured.date}, {len(seen)} ports"
    return Evidence(tuple(seen), (), (read,), unused)


def _held_back(number: int, parts: Mapping[int, float], ports: NicDirections) -> dict[int, float]:
    """The port, and those of other servers that were as slow the other way: any of them may have set its pace."""
    part = parts[number]
    server = ports.names[number // 2].partition("/")[0]
    others = {
        other: part
        for other, its in parts.items()
        if other % 2 != number % 2
        and its <= part * (1 + MOST_TOLERANCE)
        and part < 1 - MOST_TOLERANCE
        and ports.names[other // 2].partition("/")[0] != server
    }
    return {number: part, **others}


def _of_pairs(text: str, source: str, ports: NicDirections) -> Evidence:
    values = parsed(text, source, "what optcc calibrate --json prints", "pairs", "alone_over_together")
    seen, unknown = list[Observation](), 0
    for pair in (pair for _, value in values for pair in dicts(value.get("pairs"))):
        ends = [_nic(pair.get(way), ports) for way in ("out", "in")]
        rates = pair.get("bytes_per_s")
        if ends[0] is None or ends[1] is None or not isinstance(rates, list):
            unknown += 1
            continue
        out, into = port(ends[0], OUT), port(ends[1], IN)
        kind = "calibrate" if pair.get("all_busy") is True else "calibrate, alone"
        where = f"{source}: {ports.names[out // 2]} to {ports.names[into // 2]}"
        for rate in rates:
            plain = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e15
            used = {end: max(rate / ports.rates[end], NOTHING) if plain else NOTHING for end in (out, into)}
            seen.append(Observation(kind, where, used, run=where))
    unused = (f"{source}: {unknown} pairs of NICs that the topology does not have",) if unknown else ()
    return Evidence(tuple(seen), (), (f"{source}: optcc calibrate, {len(seen)} measurements of pairs",), unused)


def _nic(name: Any, ports: NicDirections) -> int | None:
    host, _, nic = name.partition("/") if isinstance(name, str) else ("", "", "")
    server = ports.server(host)
    return None if server is None else ports.nic(server, nic)


MOST_BYTES = 2**28
"""Of one file: an hour of NCCL's log at INFO from a thousand ranks has some 100 MB."""
EXPECTED = (
    "nccl-tests' output, NCCL's log, NCCL Inspector's files, what ncclras prints, errors and logs of optcc's own jobs, "
    "a file of optcc calibrate, "
    "files of the plugin for NCCL (OPTCC_METRICS), "
    "SERVER=DIR with a copy of its sysfs, or what a tool prints of its ports (ibstat, rdma link, perfquery, ...)"
)


@dataclass(frozen=True)
class Reader:
    """`fits` : whether a text is of this kind; `read` : (text, source, ports) -> what it says."""

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str, str, NicDirections], Evidence]


READERS = (
    Reader("nccl-tests", looks_like_tests, read_tests),
    Reader("NCCL's log", looks_like_log, read_log),
    Reader("RAS", looks_like_ras, read_ras),
    Reader("a rank that optcc lost", looks_like_lost_ranks, read_lost_ranks),
    Reader("optcc calibrate", looks_like_calibration, read_calibration),
    Reader("the plugin for NCCL", looks_like_plugin, read_plugin),
)
"""Every one that fits reads: a log may hold a test's table. NCCL Inspector's files are read together, below."""


def gather(sources: Sequence[str], ports: NicDirections, interval_s: float | None = None) -> Evidence:
    """All that `sources` say: paths, ``SERVER=DIR`` for a server's sysfs; the same server twice gives counters between.

    interval_s : seconds between the two
    Raises InputError for what is none of the kinds, and for hosts that the topology does not have.
    """
    texts, trees = _opened(sources, ports)
    ports = replace(ports, facts=_facts(texts, trees, ports))
    inspected = [text for text in texts if looks_like_inspector(text.text)]
    metrics = [text for text in texts if looks_like_metrics(text.text)]
    counted = [text for text in texts if looks_like_counters(text.text)]
    found = read_counted(counted, ports)
    for text in texts:
        if not (text in inspected or text in metrics or (text in counted and not _says_more(text.text))):
            found.append(_read(text, ports))
    if inspected:
        found.append(read_inspector([(text.source, from_json(text.text)) for text in inspected], ports))
    if metrics:
        found.append(read_metrics([(text.source, text.text) for text in metrics], ports))
    for server, copies in trees.items():
        found.append(of_trees(server, copies, interval_s, ports))
    return Evidence.together(found)


def _opened(
    sources: Sequence[str], ports: NicDirections
) -> tuple[list[EvidenceText], dict[str, list[tuple[str, Sysfs]]]]:
    """All texts, those of several hosts apart, and by server its trees."""
    texts, trees = list[EvidenceText](), dict[str, list[tuple[str, Sysfs]]]()
    for source in sources:
        server, nic, path = _owner(source, ports)
        if not is_stdin(path) and (is_sysfs(path) or (server and not nic and not Path(path).exists())):
            server = _whose(server, source, ports)
            trees.setdefault(server, []).append((path, open_sysfs(path)))
        else:
            texts += _texts(path, server, nic, ports)
    return texts, trees


def _texts(path: str, server: str | None, nic: str | None, ports: NicDirections) -> list[EvidenceText]:
    """A file without prefixes, or of a file in which several hosts show their ports, the lines of each."""
    whole = plain(_text(path))
    hosts = None if server or looks_like_log(whole) else by_host(whole)
    if hosts and any(ports.server(host) is not None for host in hosts):
        return [EvidenceText(cleaned(lines), f"{shown(path)}: {host}", ports.need_server(host, shown(path)))
                for host, lines in hosts.items()]  # fmt: skip
    named = None if is_stdin(path) else ports.server(Path(path).name.partition(".")[0])
    return [EvidenceText(cleaned(whole), shown(path), server or named, nic)]


def _facts(
    texts: Sequence[EvidenceText], trees: Mapping[str, Sequence[tuple[str, Sysfs]]], ports: NicDirections
) -> Facts:
    facts = Facts()
    alone = ports.cluster.servers[0].name if len(ports.cluster.servers) == 1 else None
    for text in texts:
        facts.add_text(text.text, text.server or alone)
    for server, copies in trees.items():
        facts.add_tree(copies[-1][1], server)
    return facts


def watched(sources: Sequence[str], ports: NicDirections, seconds: float, wait: Callable[[float], None]) -> Evidence:
    """As `gather`, but each server's sysfs is read twice, `seconds` apart, which `wait` lets pass. Raises InputError
    where no source is one."""
    live, rest = [], []
    for source in sources:
        server, nic, path = _owner(source, ports)
        if not nic and not is_stdin(path) and is_sysfs(path):
            live.append((_whose(server, source, ports), path))
        else:
            rest.append(source)
    if not live:
        raise InputError("nothing to watch", where="--watch", expected="SERVER=/sys among the evidence", got="none")
    before = {server: read_counters(open_sysfs(path)) for server, path in live}
    started = time.monotonic()
    wait(seconds)
    found = []
    for server, path in live:
        tree = open_sysfs(path)
        took = time.monotonic() - started
        found.append(counted_between(before[server], read_counters(tree), took, server, path, ports))
        found.append(read_links(tree, server, path, ports))
    return Evidence.together([*found, gather(rest, ports)])


def read_text(text: str, source: str, ports: NicDirections) -> Evidence:
    """What one file says, by every reader that it fits. Raises InputError where none does."""
    document = EvidenceText(text, source)
    return _read(document, replace(ports, facts=_facts([document], {}, ports)))


def _says_more(text: str) -> bool:
    """Whether something is in a text beside counters."""
    return part_of(text) is not None or any(reader.fits(text) for reader in READERS)


def _read(document: EvidenceText, ports: NicDirections) -> Evidence:
    here = replace(ports, here=document.server)
    found = [reader.read(document.text, document.source, here) for reader in READERS if reader.fits(document.text)]
    if not found and (lists := part_of(document.text)) is not None:
        found = [read_ports(document, lists, ports)]
    if causes := causes_in(document.text, document.source):
        found.append(Evidence(causes=causes))
    if not found:
        tool = tool_of(document.text)
        got = tool.name if tool else document.text.strip()[:40] or "nothing"
        hint = tool.evidence if tool else None
        raise InputError("no evidence that is known", where=document.source, expected=EXPECTED, got=got, hint=hint)
    return Evidence.together(found)


def of_trees(
    server: str, copies: Sequence[tuple[str, Sysfs]], interval_s: float | None, ports: NicDirections
) -> Evidence:
    """Links as the last copy has them, and what was counted between the first and the last."""
    if len(copies) > 2:
        raise InputError("too many copies of one server", where=server, expected="one or two", got=len(copies))
    path, last = copies[-1]
    before: Reading | None = read_counters(copies[0][1]) if len(copies) == 2 else None
    counted = counted_between(before, read_counters(last), interval_s, server, path, ports)
    return Evidence.together([read_links(last, server, path, ports), counted])


def _owner(source: str, ports: NicDirections) -> tuple[str | None, str | None, str]:
    """``server1=PATH`` and ``server1/mlx5_0=PATH`` as server, NIC and path; a path alone has neither."""
    name, equals, path = source.partition("=")
    if equals and not Path(source).exists():
        host, _, nic = name.partition("/")
        if (server := ports.server(host)) is not None and host:
            if nic and ports.nic(server, nic) is None:
                raise InputError("no such NIC", where=source, expected=f"a NIC of {server}", got=nic[:80])
            return server, nic or None, path
    return None, None, source


def _whose(server: str | None, source: str, ports: NicDirections) -> str:
    """The server of a sysfs; without a name, the only one."""
    servers = [server.name for server in ports.cluster.servers]
    if server is None and len(servers) > 1:
        raise InputError("whose sysfs?", where=source, expected=f"SERVER={source}", got=f"{len(servers)} servers")
    return server or servers[0]


def _text(path: str) -> str:
    data = read_file(path, MOST_BYTES, what="file of evidence", expected=EXPECTED)
    return as_utf8(data).decode("utf-8", "replace")
