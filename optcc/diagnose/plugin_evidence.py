"""Files of the plugin for NCCL as evidence (``OPTCC_METRICS``, docs/nccl.md): NICs whose wires do not carry, and what
wires between the same two processes carried beside each other.

A NIC that is free takes the next segment. So while more waits than all wires of two processes take, their shares are
their rates; the fastest of them, for its healthy rate, stands for a healthy one. What slows all wires of a server alike
does not show here.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, Observation, Sign, port

LEAST_FULL = 32 << 20
"""Bytes of the fastest wire from which on shares count: hundreds of segments, so that ends of windows are few."""
SPREAD = 0.08
"""Of shares: those of an emulated NIC at half its rate were 0.38 to 0.50."""

_LINE = re.compile(r"^(optcc_nccl_\w{1,60})\{([^}\n]{1,1000})\}\s+([0-9.eE+-]{1,30})\s*$", re.M)
_LABEL = re.compile(r'(\w{1,40})="([^"\n]{0,255})"')

Wire = tuple[str, str, str, str, str]
"""Host, NIC, the peer's host, its process, its NIC."""


@dataclass
class _Process:
    """What one process says. nics : NIC -> metric -> value; up, full : of its wires"""

    host: str
    line: int
    nics: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    up: dict[Wire, float] = field(default_factory=dict)
    full: dict[Wire, float] = field(default_factory=dict)


def looks_like_plugin(text: str) -> bool:
    """Its first metric."""
    return "optcc_nccl_nic_up{" in text


def read_plugin(text: str, source: str, ports: NicDirections) -> Evidence:
    """What files of any number of processes say, one after the other. Raises InputError for a host that the topology
    does not have."""
    seen, signs, unused = list[Observation](), list[Sign](), list[str]()
    processes = _processes(text)
    for name, process in processes.items():
        where = f"{source}:{process.line}"
        server = ports.here or ports.need_server(process.host, where)
        for nic, values in process.nics.items():
            number = _number(server, nic, ports)
            if number is None:
                unused.append(f"{where}: NIC {nic} of {server}, which the topology does not have")
                continue
            signs += _signs(values, number, server, where)
        unknown = _wires(process, name, server, where, ports, seen)
        if unknown:
            unused.append(f"{where}: {unknown} wires to hosts or NICs that the topology does not have")
    read = f"{source}: the plugin for NCCL, {len(processes)} processes, {len(seen)} measurements"
    return Evidence(tuple(seen), tuple(signs), (read,), tuple(unused))


def _processes(text: str) -> dict[str, _Process]:
    found: dict[str, _Process] = {}
    for match in _LINE.finditer(text):
        labels = dict(_LABEL.findall(match[2]))
        name, host = labels.get("process", ""), labels.get("host", "")
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not 0 <= value < math.inf:
            continue
        if name not in found:
            found[name] = _Process(host, text.count("\n", 0, match.start()) + 1)
        process = found[name]
        wire = (host, labels.get("nic", ""), labels.get("peer", ""), labels.get("peer_process", ""),
                labels.get("peer_nic", ""))  # fmt: skip
        if match[1] == "optcc_nccl_wire_up":
            process.up[wire] = value
        elif match[1] == "optcc_nccl_wire_full_bytes_total":
            process.full[wire] = value
        elif "nic" in labels:
            process.nics[labels["nic"]][match[1]] = value
    return found


def _number(server: str, nic: str, ports: NicDirections) -> int | None:
    """An interface is the NIC that another file says it is."""
    return ports.nic(server, ports.facts.interfaces.get((server, nic), nic))


def _signs(values: Mapping[str, float], nic: int, server: str, where: str) -> list[Sign]:
    found = []
    if values.get("optcc_nccl_nic_up") == 0:
        found.append(Sign(where, "the plugin for NCCL: lost, none of its wires carries", server, nic, True))
    if times := int(values.get("optcc_nccl_nic_lost_total", 0)):
        found.append(Sign(where, f"the plugin for NCCL: lost {times} {'time' if times == 1 else 'times'}", server, nic))
    return found


def _wires(process: _Process, name: str, server: str, where: str, ports: NicDirections, seen: list[Observation]) -> int:
    """Adds what its wires say to `seen`; returns how many are not known."""
    ends: dict[Wire, tuple[int, int]] = {}
    for wire in process.up:
        own, peer = _number(server, wire[1], ports), ports.server(wire[2])
        far = None if peer is None else _number(peer, wire[4], ports)
        if own is not None and far is not None:
            ends[wire] = own, far
    links: dict[tuple[str, str], list[Wire]] = defaultdict(list)
    for wire in ends:
        links[wire[2], wire[3]].append(wire)
    for (peer_host, _), wires in links.items():
        parts = {}
        for wire in wires:
            own, far = ends[wire]
            place = f"{where}: {wire[1]} to {peer_host} {wire[4]}"
            if process.up[wire] == 0 and any(process.up[other] for other in wires):
                used = {port(nic, way): NOTHING for nic in (own, far) for way in (OUT, IN)}
                seen.append(Observation("failure", place, used))
            elif process.up[wire]:
                healthy = min(ports.rates[port(own, OUT)], ports.rates[port(far, IN)])
                parts[wire] = process.full.get(wire, 0.0) / healthy if healthy else 0.0
        best = max(parts.values(), default=0.0)
        if len(parts) < 2 or max(process.full.get(wire, 0.0) for wire in parts) < LEAST_FULL:
            continue
        for wire, part in parts.items():
            own, far = ends[wire]
            share = max(part / best, NOTHING)
            place = f"{where}: {wire[1]} to {peer_host} {wire[4]}"
            seen.append(Observation("wires", place, {port(own, OUT): share, port(far, IN): share}, spread=SPREAD,
                                    run=f"{name} to {wire[3]}, {wire[1]}"))  # fmt: skip
    return len(process.up) - len(ends)
