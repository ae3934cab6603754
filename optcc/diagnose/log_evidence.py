"""NCCL's log as evidence: NICs on which transfers failed, ports that reported errors or another speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from optcc.diagnose.evidence import NOTHING, Evidence, Observation, Sign
from optcc.diagnose.ports import IN, OUT, NicDirections, port
from optcc.discover.nccl_log import FLUSHED, STATUS, FailedCompletion, Log, parse_log

GRAVE = ("port error", "port_err", "device fatal", "fatal", "lid change")
MOST_SIGNS = 64


def read_log(text: str, source: str, ports: NicDirections) -> Evidence:
    """Failures as observations of the two NICs' ports, of the peer's whole rail where the peer's NIC is not named."""
    log = parse_log(text)
    seen: dict[tuple[int, ...], Observation] = {}
    signs: list[Sign] = []
    speeds: dict[int, dict[str, tuple[float, str]]] = {}
    unplaced: Counter[str] = Counter()
    for failure in log.failures:
        if failure.status == FLUSHED:
            continue
        used = _between(failure, log, ports)
        if used is None:
            unplaced[failure.host or "a line without a host"] += 1
            continue
        what = STATUS.get(failure.status, f"status {failure.status}")
        seen.setdefault(used, Observation("failure", f"{source}:{failure.line}", dict.fromkeys(used, NOTHING)))
        server = ports.names[used[0] // 2].partition("/")[0]
        signs.append(Sign(f"{source}:{failure.line}", what, server, used[0] // 2))
    for event in log.events:
        server_or_none = ports.server(event.host)
        nic = None if server_or_none is None else ports.nic(server_or_none, event.nic)
        if server_or_none is None or nic is None:
            unplaced[f"{event.host} {event.nic}".strip()] += 1
            continue
        grave = any(word in event.what.lower() for word in GRAVE)
        signs.append(Sign(f"{source}:{event.line}", f"event: {event.what}", server_or_none, nic, grave))
        if event.speed is not None:
            speeds.setdefault(nic, {})[event.nic] = (event.speed * 1e6 / 8, f"{source}:{event.line}")
    links = [link for nic, each in speeds.items() for link in _links(nic, list(each.values()), ports)]
    read = f"{source}: NCCL's log, {log.lines} lines, {len(log.failures)} failed transfers, {len(log.events)} events"
    unused = tuple(f"{source}: {count} failures or events of {who}, which the topology does not have"
                   for who, count in unplaced.items())[:8]  # fmt: skip
    return Evidence((*seen.values(), *links), tuple(signs[:MOST_SIGNS]), (read,), unused)


def _links(nic: int, speeds: Sequence[tuple[float, str]], ports: NicDirections) -> list[Observation]:
    """The NIC at the speeds that its ports came to, (bytes per second, where) each; nothing where it is well."""
    found = []
    for way in (OUT, IN):
        healthy = ports.rates[port(nic, way)] / ports.parts(nic)
        lost = sum(max(0.0, 1 - speed / healthy) for speed, _ in speeds if healthy) / ports.parts(nic)
        if lost > 0:
            found.append(Observation("link", speeds[-1][1], {port(nic, way): max(1 - lost, NOTHING)}))
    return found


def _between(failure: FailedCompletion, log: Log, ports: NicDirections) -> tuple[int, ...] | None:
    """The ports that a failed transfer may have used; None where the log does not say enough."""
    server = ports.server(failure.host)
    nic = None if server is None or failure.nic is None else ports.nic(server, failure.nic)
    if server is None or nic is None:
        return None
    peer = ports.server(log.addresses.get(failure.address, ""))
    hosts = log.jobs[failure.job] if failure.job >= 0 else ()
    job = {name for host in hosts if (name := ports.server(host))} or {s.name for s in ports.cluster.servers}
    peers = [peer] if peer else sorted(job - {server})
    same = [other for each in peers for other in ports.nics_of(each) if ports.rail(other) == ports.rail(nic)]
    if not same and peer:
        same = list(ports.nics_of(peer))
    nics = [nic, *(other for other in same if other != nic)]
    return tuple(port(n, way) for n in nics for way in (OUT, IN))
