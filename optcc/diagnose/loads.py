"""What a collective makes each port carry: bytes, where its library gives every NIC that it uses an equal share.

Sizes are those of nccl-tests (its doc/PERFORMANCE.md). For an AllReduce or SendRecv this is the buffer, for an
AllGather the whole result. For a ReduceScatter it is the whole input, for an AllToAll one rank's data. A ring passes a
server's boundary once each way with what is counted here. NCCL's Tree are two trees of half the buffer each, and every
server is a leaf of one. On three servers or more it passes as much as a ring. On two servers it passes the buffer once
each way, where a ring passes it nearly twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optcc.diagnose.evidence import IN, OUT, NicDirections, port
from optcc.discover.nccl_log import Log, wanted_by

RINGS = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}
KINDS = {*RINGS, "alltoall", "sendrecv", "gather", "scatter"}


@dataclass(frozen=True)
class RankPlace:
    """A rank: its server, and its GPU's number there."""

    server: str
    gpu: int


@dataclass(frozen=True)
class Use:
    """The NICs that a job uses on its servers: server -> way -> {NIC: weight}, weights being channels or 1."""

    nics: Mapping[str, Sequence[Mapping[int, float]]]

    @classmethod
    def equally(cls, nics: Mapping[str, Sequence[int]]) -> Use:
        """Every NIC alike, both ways."""
        return cls({server: [dict.fromkeys(each, 1.0)] * 2 for server, each in nics.items()})


def loads(
    kind: str,
    nbytes: int,
    members: Sequence[RankPlace],
    use: Use,
    ports: NicDirections,
    root: int = 0,
    tree: bool = False,
) -> dict[int, float]:
    """Port -> bytes. `kind` is one of `KINDS`; empty where all ranks are on one server.

    tree : the algorithm is known to be NCCL's Tree or NVLSTree
    """
    servers = list(dict.fromkeys(member.server for member in members))
    if len(servers) < 2:
        return {}
    ranks = len(members)
    on = {server: sum(member.server == server for member in members) for server in servers}
    if kind == "sendrecv":
        return _passed_on(nbytes, members, use, ports)
    share = (ranks - 1) / ranks
    twice = 1.0 if tree and len(servers) == 2 else 2 * share
    ring = {"all_reduce": twice, "all_gather": share, "reduce_scatter": share, "broadcast": 1.0, "reduce": 1.0}
    at_root = members[root % ranks].server
    found: dict[int, float] = {}
    for server in servers:
        others = (ranks - on[server]) / ranks
        out = into = ring.get(kind, 0.0)
        if kind == "alltoall":
            out = into = on[server] * others
        elif kind in ("gather", "scatter"):
            away, home = (others, 0.0) if server == at_root else (0.0, on[server] / ranks)
            out, into = (home, away) if kind == "gather" else (away, home)
        for way, part in ((OUT, out), (IN, into)):
            weights = use.nics[server][way]
            total = sum(weights.values())
            for nic, weight in weights.items():
                if part:
                    found[port(nic, way)] = part * nbytes * weight / total
    return found


def _passed_on(nbytes: int, members: Sequence[RankPlace], use: Use, ports: NicDirections) -> dict[int, float]:
    """Every rank sends to the next one; those on one server do not use a NIC."""
    found: dict[int, float] = {}
    for here, there in zip(members, [*members[1:], members[0]], strict=True):
        if here.server == there.server:
            continue
        for member, way in ((here, OUT), (there, IN)):
            used = use.nics[member.server][way]
            beside = [nic for nic in ports.beside(member.server, [member.gpu]) if nic in used] or list(used)
            for nic in beside:
                found[port(nic, way)] = found.get(port(nic, way), 0.0) + nbytes / len(beside)
    return found


def parts(carried: Mapping[int, float], seconds: float, ports: NicDirections) -> dict[int, float]:
    """Port -> the part of its healthy rate at which it ran."""
    return {number: nbytes / seconds / ports.rates[number] for number, nbytes in carried.items()
            if ports.rates[number]}  # fmt: skip


def use_of(members: Sequence[RankPlace], log: Log, ports: NicDirections) -> Use:
    """NICs of each server, with their channels as weights where the log has them for every server."""
    return _by_channels(members, log, ports) or Use.equally(
        {server: _allowed(server, members, log, ports) for server in dict.fromkeys(m.server for m in members)}
    )


def _by_channels(members: Sequence[RankPlace], log: Log, ports: NicDirections) -> Use | None:
    found: dict[str, list[dict[int, float]]] = {member.server: [{}, {}] for member in members}
    cards = {ports.server(host): names for host, names in log.cards.items()}
    for (told, way), numbers in log.channels.items():
        if told.ranks not in (None, len(members)):
            continue  # another communicator's
        if told.rank >= len(members):
            return None
        server = members[told.rank].server
        if ports.server(told.host) not in (None, server):
            continue
        for number, count in numbers.items():
            nics = _named(cards.get(server, {}).get(number), server, ports)
            if not nics:
                return None
            for nic in nics:
                weights = found[server][OUT if way == "send" else IN]
                weights[nic] = weights.get(nic, 0.0) + count / len(nics)
    return Use(found) if all(way for ways in found.values() for way in ways) else None


def _named(name: str | None, server: str, ports: NicDirections) -> list[int]:
    """The NIC of this name, or those that NCCL has fused under it; none where the topology lacks one of them."""
    if name is None:
        return []
    whole = ports.nic(server, name)
    parts = [whole] if whole is not None else [ports.nic(server, part) for part in name.split("+")]
    known = [nic for nic in parts if nic is not None]
    return known if len(known) == len(parts) == len(set(known)) else []


def _allowed(server: str, members: Sequence[RankPlace], log: Log, ports: NicDirections) -> list[int]:
    gpus = {member.gpu for member in members if member.server == server}
    nics = {nic: ports.names[nic].partition("/")[2] for nic in ports.nics_of(server)}
    listed: Iterable[str] | None = next(
        (names.values() for host, names in log.cards.items() if ports.server(host) == server), None
    )
    if listed is None and not log.hca:  # the log may be in files of its own
        listed = next((names for host, names in ports.facts.cards.items() if ports.server(host) == server), None)
    if listed is not None:
        given = [nic for name in listed if (nic := ports.nic(server, name)) is not None]
    elif log.hca:
        given = list(wanted_by(log.hca, nics))
    else:
        given = []
    allowed = given or list(nics)
    beside = [nic for nic in ports.beside(server, gpus) if nic in allowed]
    return beside or allowed
