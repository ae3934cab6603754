"""NCCL's log as evidence: NICs on which transfers failed, ports that reported errors or another speed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, Observation, Sign, port
from optcc.discover.nccl_log import FLUSHED, STATUS, FailedCompletion, Log, parse_log

GRAVE = ("port error", "port_err", "device fatal", "fatal", "catastrophic", "ibv_", "lid change", "lost, by optcc")
MOST_SIGNS = 64


def read_log(text: str, source: str, ports: NicDirections) -> Evidence:
    """Failures as observations of the two NICs' ports; where one is not named, of all that it may be: its server's, or
    those of the peer's that are on the same rail."""
    log = parse_log(text)
    seen: dict[tuple[int, ...], Observation] = {}
    signs: list[Sign] = []
    speeds: dict[int, dict[str, tuple[float, str]]] = {}
    unplaced: Counter[str] = Counter()
    for failure in log.failures:
        if failure.status == FLUSHED:
            continue
        own = _own(failure, log, ports)
        if not own:
            unplaced[_who(failure.host, failure.nic or "")] += 1
            continue
        what = STATUS.get(failure.status, f"status {failure.status}")
        used = tuple(port(n, way) for n in (*own, *_peers(failure, own, log, ports)) for way in (OUT, IN))
        seen.setdefault(used, Observation("failure", f"{source}:{failure.line}", dict.fromkeys(used, NOTHING)))
        server = ports.names[own[0]].partition("/")[0]
        signs.append(Sign(f"{source}:{failure.line}", what, server, own[0] if len(own) == 1 else None))
    for event in log.events:
        server_or_none = ports.server(event.host)
        name = ports.facts.interfaces.get((server_or_none or "", event.nic), event.nic)
        nic = ports.nic(server_or_none, name) if server_or_none is not None and event.nic else None
        if server_or_none is None or (event.nic and nic is None):
            unplaced[_who(event.host, event.nic)] += 1
            continue
        grave = any(word in event.what.lower() for word in GRAVE)
        what = f"event: {event.what}" if event.nic else f"event of a NIC that is not named: {event.what}"
        signs.append(Sign(f"{source}:{event.line}", what, server_or_none, nic, grave))
        if event.speed is not None and nic is not None:
            speeds.setdefault(nic, {})[event.nic] = (event.speed * 1e6 / 8, f"{source}:{event.line}")
    links = [link for nic, each in speeds.items() for link in _links(nic, list(each.values()), ports)]
    read = (
        f"{source}: a log, {log.lines} lines of NCCL's, {len(log.failures)} failed transfers, {len(log.events)} events"
    )
    unused = [f"{source}: {count} failures or events of {who}" for who, count in unplaced.items()][:8]
    unused += [*_timed_out(log, source), *_unknown(log, source)]
    return Evidence((*seen.values(), *links), _once(signs), (read,), tuple(unused))


def _once(signs: Sequence[Sign]) -> tuple[Sign, ...]:
    """Each of those that say the same once, where it was said first, with how often."""
    times = Counter((sign.what, sign.server, sign.nic) for sign in signs)
    first: dict[tuple[str, str, int | None], Sign] = {}
    for sign in signs:
        first.setdefault((sign.what, sign.server, sign.nic), sign)
    found = [replace(s, what=f"{s.what}, {times[key]} times") if times[key] > 1 else s for key, s in first.items()]
    return tuple(found[:MOST_SIGNS])


def _who(host: str, nic: str) -> str:
    if not host:
        return "a line without a host: give its file as SERVER=FILE"
    return f"{host} {nic}".strip() + ", which the topology does not have"


def _timed_out(log: Log, source: str) -> tuple[str, ...]:
    if not log.timeouts:
        return ()
    count = f"{len(log.timeouts)} timeouts of collectives, the first" if len(log.timeouts) > 1 else "a timeout"
    return (f"{source}: {count} in line {log.timeouts[0]}, where no NIC is named",)


def _unknown(log: Log, source: str) -> tuple[str, ...]:
    """That lines speak of trouble which is not understood, with the one that comes most often."""
    if not log.unknown:
        return ()
    alike = Counter(re.sub(r"0x[0-9a-f]+|\d+", "0", said) for said in log.unknown.values())
    often = alike.most_common(1)[0][0]
    line = next(line for line, said in log.unknown.items() if re.sub(r"0x[0-9a-f]+|\d+", "0", said) == often)
    count = len(log.unknown)
    lines = "1 line speaks" if count == 1 else f"{count} lines speak"
    sample = " ".join(log.unknown[line].split())[:160]
    return (f"{source}: {lines} of trouble in words that are not known, such as line {line}: {sample}",)


def _links(nic: int, speeds: Sequence[tuple[float, str]], ports: NicDirections) -> list[Observation]:
    """The NIC at the speeds that its ports came to, (bytes per second, where) each; nothing where it is well."""
    found = []
    for way in (OUT, IN):
        healthy = ports.rates[port(nic, way)] / ports.parts(nic)
        lost = sum(max(0.0, 1 - speed / healthy) for speed, _ in speeds if healthy) / ports.parts(nic)
        if lost > 0:
            found.append(Observation("link", speeds[-1][1], {port(nic, way): max(1 - lost, NOTHING)}))
    return found


def _own(failure: FailedCompletion, log: Log, ports: NicDirections) -> list[int]:
    """The NICs on which a transfer may have failed: the one that is named, or that has its GID, else its server's; none
    where the topology has not what the log names."""
    by_gid = ports.nic_of_gid(failure.gid)
    server = ports.server(failure.host)
    if by_gid is not None and (server is None or by_gid in ports.nics_of(server)):
        return [by_gid]
    if server is None:
        return []
    if failure.nic is None:
        return _by_channel(log.ends_of((failure.host, failure.pid))[0], log, ports) or list(ports.nics_of(server))
    nic = ports.nic(server, failure.nic)
    return [] if nic is None else [nic]


def _by_channel(ends: Iterable[tuple[str, int]], log: Log, ports: NicDirections) -> list[int]:
    """The NICs at ends of channels, (host, NCCL's number) each; none where the topology lacks one of them."""
    found = set[int]()
    for host, number in ends:
        server, name = ports.server(host), log.cards.get(host, {}).get(number)
        nics = (
            [None] if server is None or name is None else [ports.nic(server, part) for part in [name, *name.split("+")]]
        )
        known = [nic for nic in nics if nic is not None]
        if not known:
            return []
        found.update(known[:1] if nics[0] is not None else known)
    return sorted(found)


def _peers(failure: FailedCompletion, own: Sequence[int], log: Log, ports: NicDirections) -> list[int]:
    """The NICs that may have been at the other end."""
    by_gid = ports.nic_of_gid(failure.peer_gid)
    if by_gid is not None and by_gid not in own:
        return [by_gid]
    server = ports.names[own[0]].partition("/")[0]
    peer = ports.server(failure.address) if failure.address else None
    if peer and failure.peer_nic and (named := ports.nic(peer, failure.peer_nic)) is not None:
        return [named] if named not in own else []
    own_way, far = log.ends_of((failure.host, failure.pid))
    if not peer and own_way and (at_ends := _by_channel(far, log, ports)):
        rails = {ports.rail(nic) for nic in own}
        return [
            nic for nic in at_ends if nic not in own and (ports.rail(nic) in rails or failure.nic is None)
        ] or at_ends
    hosts = log.jobs[failure.job] if failure.job >= 0 else ()
    job = {name for host in hosts if (name := ports.server(host))} or {s.name for s in ports.cluster.servers}
    rails = {ports.rail(nic) for nic in own}
    others = [nic for each in ([peer] if peer else sorted(job - {server})) for nic in ports.nics_of(each)]
    same = [nic for nic in others if ports.rail(nic) in rails and nic not in own]
    return same or (others if peer and peer != server else [])


_DISABLED = re.compile(r"GPU Direct RDMA Disabled for ", re.I)
_CHANNEL = re.compile(
    r"Channel \d{1,4}(?:/\d{1,4})? : .{1,80}? via NET/(\w{1,20})/\d{1,4}(/GDRDMA\S{0,20}|/GDR\S{0,20})?"
)
_SOCKET = re.compile(r"NET/Socket : Using|Using network Socket", re.I)
_BOND = re.compile(r"NET/IB[P ]? ?: Using.{0,200}?\b(\w{0,40}bond\w{0,40}):\d")
_PER_CONNECTION = re.compile(r"NCCL_IB_QPS_PER_CONNECTION(?:=| set (?:by environment )?to )\s?(\d{1,4})")
_MTU = re.compile(r"\bqpn \d{1,10} mtu (\d)\b|active_mtu:\s{0,8}\d{3,4} \((\d)\)")
_ACS = re.compile(r"ACSCtl:.{0,80}?(?:SrcValid\+|ReqRedir\+)")
_OFF = re.compile(r"(?:NCCL_IB_DISABLE(?:=| set (?:by environment )?to )1|"
                  r"NCCL_NET_GDR_LEVEL(?:=| set (?:by environment )?to )(?:LOC|0))\b")  # fmt: skip
_MAYBE = re.compile(r"NET/|GPU Direct|ACSCtl|mtu|NCCL_(?:IB_DISABLE|IB_QPS|NET_GDR)|network Socket", re.I)
"""What a line has that is looked at: most lines have nothing of it."""
LEAST_MTU = 4
"""As verbs number them, 2048 bytes: of less, headers take 5 % and more."""
NO_DIRECT = "no GPU-direct RDMA: data goes through the host's memory; load nvidia-peermem, or use DMA-BUF"
DISABLED = "GPU-direct RDMA is disabled for NICs: load nvidia-peermem, or use DMA-BUF"
SOCKETS = "TCP sockets in place of InfiniBand or RoCE"
BOND = "a bond: a connection of one queue pair uses one of its ports; NCCL_IB_QPS_PER_CONNECTION=2 uses both"
MTU = "an MTU below 2048 bytes"
ACS = "ACS is on for a PCI bridge: what GPU and NIC exchange goes by the root complex"
OFF = "GPU-direct RDMA or InfiniBand is switched off in the environment"


def causes_in(text: str, source: str) -> tuple[str, ...]:
    """A sentence for each cause, with the first line that shows it."""
    lines: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not _MAYBE.search(line):
            continue
        for what in _in_line(line):
            lines.setdefault(what, []).append(number)
        channel, pairs = _CHANNEL.search(line), _PER_CONNECTION.search(line)
        if channel and channel[2]:  # some NICs have it; what is slow on the others is no cause for all
            lines.setdefault("direct", []).append(number)
        if pairs and int(pairs[1]) > 1:
            lines.setdefault("several", []).append(number)
    for cleared, by in ((NO_DIRECT, "direct"), (BOND, "several")):
        if by in lines:
            del lines[by]
            lines.pop(cleared, None)
    return tuple(f"{what} ({source}:{found[0]}, lines: {len(found)})" for what, found in lines.items())


def _in_line(line: str) -> Iterator[str]:
    """The causes that a line shows."""
    if channel := _CHANNEL.search(line):
        if not channel[2]:
            yield SOCKETS if channel[1] == "Socket" else NO_DIRECT
    elif _DISABLED.search(line):
        yield DISABLED
    elif _SOCKET.search(line):
        yield SOCKETS
    elif _BOND.search(line):
        yield BOND
    if _OFF.search(line):
        yield OFF
    if (mtu := _MTU.search(line)) and int(mtu[1] or mtu[2]) < LEAST_MTU:
        yield MTU
    if _ACS.search(line):
        yield ACS
