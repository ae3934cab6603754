"""What `optcc calibrate` measured, as evidence: pairs of NICs from ``--json``, rates of NICs from the file of ``-o``.

For each NIC the file keeps the best rate that a peer has measured, but not the peer. Where NICs of other servers are as
slow the other way, any of them may have limited the rate. The pairs tell more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optcc.diagnose.evidence import NOTHING, Evidence, Observation
from optcc.diagnose.json_text import dicts, parsed
from optcc.diagnose.noise import LEAST_NOISE
from optcc.diagnose.ports import IN, OUT, NicDirections, port
from optcc.discover.calibration import MOST_TOLERANCE
from optcc.discover.given import Given
from optcc.discover.pasted import unwrapped
from optcc.discover.yaml_file import read_yaml
from optcc.errors import InputError


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
