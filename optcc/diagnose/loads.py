"""What a collective makes each port carry: bytes, where its library gives every NIC that it uses an equal share.

Sizes are those of nccl-tests (its doc/PERFORMANCE.md). For an AllReduce or SendRecv this is the buffer, for an
AllGather the whole result. For a ReduceScatter it is the whole input, for an AllToAll one rank's data. A ring passes a
server's boundary once each way with what is counted here. NCCL's Tree are two trees of half the buffer each, and every
server is a leaf of one. On three servers or more it passes as much as a ring. On two servers it passes the buffer once
each way, where a ring passes it nearly twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optcc.diagnose.ports import IN, OUT, NicDirections, port

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
