"""The GPU groups that take part in the schedule between servers, and the shares with which their GPUs gather and carry.

A *group* (`groups` in plan files) is the GPUs of a server. Where NVLink is too slow to join all of them, it is one of
several equal teams of them. Teams share the live NICs as evenly as they can.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from optcc.errors import InfeasibleError
from optcc.values.cluster import Cluster, Fabric, Nic, Rank, Server
from optcc.values.json_records import As, FieldError, Index

Shares = tuple[tuple[Fraction, ...], ...]
"""For each group the shares of its GPUs, of sum 1."""


@dataclass(frozen=True)
class RowsOfShares:
    """Shares as plan files have them, each different row once.

    rows : the shares of a group's GPUs; crews : the row of each group
    """

    rows: tuple[tuple[Fraction, ...], ...]
    crews: tuple[Index, ...]

    @classmethod
    def of(cls, shares: Shares) -> RowsOfShares:
        """The same, by rows."""
        rows = tuple(dict.fromkeys(shares))
        return cls(rows, tuple(rows.index(row) for row in shares))

    def shares(self) -> Shares:
        """The same, by groups. FieldError for a row that is not there."""
        if self.crews and max(self.crews) >= len(self.rows):
            raise FieldError(f"rows below {len(self.rows)}", max(self.crews)).inside("crews")
        return tuple(self.rows[row] for row in self.crews)


SharesInRows = Annotated[Shares, As(RowsOfShares, RowsOfShares.of, RowsOfShares.shares)]


@dataclass(frozen=True)
class GpuGroup:
    """GPUs, as ranks, of one server (by number), in places 0, 1, ..."""

    name: str
    server: int
    gpus: tuple[Rank, ...]


def usable(rank: Rank) -> Fraction:
    """Bytes per second that a GPU's NICs can take both in and out."""
    return min(rank.out_rate, rank.in_rate)


def gpu_groups(cluster: Cluster, teams: int = 1) -> tuple[GpuGroup, ...]:
    """Every server's GPUs as `teams` groups, which divides their number: the first of every server, then the second...

    In this order neighbours in a ring over the groups are on different servers.
    """
    own: list[list[Rank]] = [[] for _ in cluster.servers]
    for rank in cluster.ranks:
        own[rank.server].append(rank)
    if teams > 1:  # deal from the slowest on, so that no team is left without a NIC while another has two
        own = [sorted(gpus, key=usable) for gpus in own]
    return tuple(
        GpuGroup(server.name if teams == 1 else f"{server.name}.{team}", s, tuple(gpus[team::teams]))
        for team in range(teams)
        for s, (server, gpus) in enumerate(zip(cluster.servers, own, strict=True))
    )


def even_shares(groups: Sequence[GpuGroup]) -> Shares:
    """All GPUs of a group alike."""
    return tuple((Fraction(1, len(group.gpus)),) * len(group.gpus) for group in groups)


def shares_by_rate(groups: Sequence[GpuGroup]) -> Shares:
    """GPUs in proportion to the rates of their live NICs. Raises InfeasibleError for a group without any."""
    shares = []
    for group in groups:
        rates = [usable(gpu) for gpu in group.gpus]
        if not any(rates):
            raise InfeasibleError(
                "no GPU can both send to other servers and receive from them",
                where=group.name,
                expected="a GPU with live NICs each way",
                got="none",
                hint="Repair a NIC of this server, or take packed trees, which may send and receive by different GPUs.",
            )
        shares.append(tuple(rate / sum(rates, Fraction(0)) for rate in rates))
    return tuple(shares)


def shares_of_slot(groups: Sequence[GpuGroup], slot: int, guests: Collection[int]) -> Shares:
    """Shares of the GPU in place `slot` of each group. Guests (by number) use all GPUs with NICs, by rate, in places
    where all others have a live NIC.

    Raises InfeasibleError where a group is left without.
    """
    hosts = [group for i, group in enumerate(groups) if i not in guests]
    width = min(len(group.gpus) for group in groups)
    met = [all(usable(group.gpus[place]) for group in hosts) for place in range(width)]
    shares = []
    for i, group in enumerate(groups):
        serves = met if i in guests else [place == slot for place in range(width)]
        rates = [usable(gpu) * (place < width and serves[place]) for place, gpu in enumerate(group.gpus)]
        if not any(rates):
            raise InfeasibleError(
                "no rail by which a server meets all others",
                where=group.name,
                expected=f"a live NIC in place {slot}, or in one where all others have one",
                got="none",
                hint="Join the rails by a spine, or take packed trees, which may use a different rail for each pair.",
            )
        shares.append(tuple(rate / sum(rates, Fraction(0)) for rate in rates))
    return tuple(shares)


def view(cluster: Cluster, groups: Sequence[GpuGroup], carry: Shares) -> Cluster:
    """The cluster on which the groups schedule: each is a server with one NIC, as fast as `carry` allows for its GPUs'
    NICs."""
    servers = []
    for group, shares in zip(groups, carry, strict=True):
        limits = [usable(gpu) / share for gpu, share in zip(group.gpus, shares, strict=True) if share]
        rate = min(limits, default=Fraction(0))
        servers.append(Server(group.name, (Nic("all", rate, rate),), pod=cluster.servers[group.server].pod))
    return Cluster(tuple(servers), fabric=Fabric(pod_oversubscription=cluster.fabric.pod_oversubscription))
