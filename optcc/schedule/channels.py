"""Channels: whole segments on single NICs, as collective libraries run a scheme.

A transfer striped over all NICs of two servers costs a chunk on each NIC, and more where the servers have unequally
many. In channels it costs one chunk on one NIC at either end, and the NICs work on different segments at the same time.
So k segments on c NICs fill the pipeline as k/c striped segments would.

A segment of channel c uses the c-th NIC of a server whose NICs are all alike. A server with fewer or unequal NICs deals
the sections of all segments to its NICs in turn, by their rates.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from optcc.errors import InputError
from optcc.schedule.assemble import TemplateRow
from optcc.schedule.recipe import MAX_SEGMENTS, require
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster

Way = Callable[[int, int], int]
"""(source rank, destination rank) -> index of the route."""


def channel_count(cluster: Cluster) -> int:
    """The number of channels: of NICs that work both ways at the server with most of them. Raises InputError as
    `Channels` does."""
    _demand_flat(cluster)
    return max(len(_live(cluster, rank)) for rank in range(len(cluster.ranks)))


def require_channels(channels: object, cluster: Cluster) -> None:
    """Raise InputError unless `channels` is None, all transfers striped, or a number of channels for the cluster."""
    if channels is not None:
        whole = type(channels) is int and 1 <= channels <= MAX_SEGMENTS
        require(whole, "channels", f"1 to {MAX_SEGMENTS}, or none", channels)
        _demand_flat(cluster)


def in_channels(channels: int | None) -> str:
    """In channels or striped, as text for people."""
    return "striped over all NICs" if channels is None else f"on single NICs, {channels} channels"


def turns(channel: int, count: int, lap: int = 0, sections: int = 0) -> Callable[[int], int]:
    """Section -> turn in one of `count` channels; `lap` templates of `sections` sections were dealt before it."""
    return lambda section: (lap * sections + section) * count + channel


class Channels:
    """The routes of `count` channels on `cluster`, added to `routes`.

    Raises InputError for GPUs as ranks, for rails, and for a rank without a NIC that works both ways.
    """

    def __init__(self, cluster: Cluster, routes: Routes, count: int) -> None:
        _demand_flat(cluster)
        self.count = count
        self._routes, self._ranks = routes, len(cluster.ranks)
        self._nics: list[list[tuple[int, Fraction]]] = []
        for rank in range(self._ranks):
            server = cluster.servers[cluster.ranks[rank].server].name
            live = _live(cluster, rank)
            self._nics.append([(routes.port_index[f"{server}/{name}"], rate) for name, rate in live])
        self._between: dict[tuple[int, int], int] = {}
        self._alike = [len({rate for _, rate in nics}) == 1 for nics in self._nics]
        self._turns: list[list[int]] = [[] for _ in range(self._ranks)]
        self._given = [[0] * len(nics) for nics in self._nics]

    def template(self, make: Callable[[Way], list[TemplateRow]], turn: Callable[[int], int]) -> list[TemplateRow]:
        """The rows that `make` gives for its way between ranks, moved to single NICs.

        turn : section -> turn. A row's channel is the turn modulo `count`; NICs dealt in turn follow the turn
        """
        found = []
        for row in make(lambda src, dst: src * self._ranks + dst):
            src, dst = divmod(row.route, self._ranks)
            mine = turn(row.section)
            ports = self._nic(src, mine), self._nic(dst, mine)
            if ports not in self._between:
                self._between[ports] = self._routes.pinned(src, dst, [(*ports, Fraction(1))])
            found.append(row._replace(route=self._between[ports]))
        return found

    def _nic(self, rank: int, turn: int) -> int:
        """The port that a rank uses in its `turn`-th turn: by rate, the port that would finish its turns first."""
        nics = self._nics[rank]
        if self._alike[rank]:
            return nics[turn % len(nics)][0]
        turns, given = self._turns[rank], self._given[rank]
        while len(turns) <= turn:
            nic = min(range(len(nics)), key=lambda i: ((given[i] + 1) / nics[i][1], i))
            given[nic] += 1
            turns.append(nic)
        return nics[turns[turn]][0]


def fastest_nics(cluster: Cluster, routes: Routes) -> tuple[list[Fraction], list[list[int]]]:
    """Channels, as many as the server with fewest NICs has:

    Raises InputError as `Channels` does.
    """
    _demand_flat(cluster)
    ranked = []
    for rank in range(len(cluster.ranks)):
        live = _live(cluster, rank)
        ranked.append(sorted(live, key=lambda nic: -nic[1]))  # stable: alike ones in their order
    count = min(map(len, ranked))
    rates = [min(nics[c][1] for nics in ranked) for c in range(count)]
    servers = [cluster.servers[rank.server].name for rank in cluster.ranks]
    names = [[f"{server}/{nics[c][0]}" for server, nics in zip(servers, ranked, strict=True)] for c in range(count)]
    return rates, [[routes.port_index[name] for name in channel] for channel in names]


def _live(cluster: Cluster, rank: int) -> list[tuple[str, Fraction]]:
    """Name and rate of a rank's NICs that work both ways; the rate is the slower way's."""
    nics = cluster.ranks[rank].nics
    live = [(nic.name, min(nic.out_rate, nic.in_rate)) for nic in nics if nic.out_rate and nic.in_rate]
    if not live:
        raise InputError(
            "no channels here", where=cluster.ranks[rank].name, expected="a NIC that works both ways", got="none"
        )
    return live


def _demand_flat(cluster: Cluster) -> None:
    if cluster.gpu_ranks or not cluster.fabric.flat:
        raise InputError(
            "no channels here",
            where="cluster",
            expected="servers as ranks, and NICs that all reach each other",
            got="GPUs as ranks" if cluster.gpu_ranks else "rails or pods",
            hint="Transfers can be striped there.",
        )
