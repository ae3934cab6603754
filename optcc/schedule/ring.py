"""One ring over all ranks in cluster order, as collective libraries build it, and three ways to load its NICs.

The data is cut into segments, each into one section per rank (`optcc.schedule.assemble`). How a transfer is spread over
the NICs of its two servers tells the baselines apart, see `NicSpread`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import ClassVar

import numpy as np

from optcc.errors import InputError
from optcc.schedule.assemble import (
    Way,
    assemble,
    channel_rates,
    cuts_by,
    even_cuts,
    on_single_nics,
    require_memory,
    ring_template,
    segment_bounds,
)
from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import Recipe, Segments
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster, Nic, Server


class NicSpread(StrEnum):
    """What part of every transfer each NIC of a server carries.

    EQUAL : every live NIC carries the same, whatever its rate, so a slow NIC sets the pace. This is a library that
        deals equal channels to the NICs it finds
    RATE : each live NIC in proportion to its rate: R2CC-Balance
    REPAIRED : one equal channel per NIC that the server was built with, and the channel of a dead NIC moves to one
        backup NIC: hot repair
    CHANNELS : whole segments on single NICs, segment i in channel i modulo their number. Channel c joins the c-th
        fastest NICs of all servers, and its part of the data follows the slowest of them
    """

    EQUAL = "equal"
    RATE = "rate"
    REPAIRED = "repaired"
    CHANNELS = "channels"


def spread_ways(cluster: Cluster, routes: Routes, spread: NicSpread) -> Way:
    """The routes of `cluster` with transfers spread over NICs as `spread` says."""
    if spread is NicSpread.REPAIRED:
        return cache(lambda src, dst: routes.pinned(src, dst, _repaired(cluster, routes, src, dst)))
    if spread is not NicSpread.EQUAL:
        return routes

    # In proportion to rates that are all 1: as many lanes as rails and NICs need, and no NIC more than another.
    def alike_nics(server: Server) -> tuple[Nic, ...]:
        return tuple(
            replace(nic, out_rate=Fraction(nic.out_rate > 0), in_rate=Fraction(nic.in_rate > 0)) for nic in server.nics
        )

    servers = tuple(replace(server, nics=alike_nics(server)) for server in cluster.servers)
    alike = Routes(replace(cluster, servers=servers))

    @cache
    def way(src: int, dst: int) -> int:
        lanes = alike.table[alike(src, dst)].lanes
        return routes.pinned(src, dst, [(lane.out, lane.into, lane.share) for lane in lanes])

    return way


def channels(count: int, usable: Callable[[int], bool]) -> list[int] | None:
    """The NIC that carries each of `count` channels: its own, else its pair's (0 and 1, 2 and 3, ...), else the usable
    one that carries fewest, in order. None: no NIC is usable."""
    live = [nic for nic in range(count) if usable(nic)]
    if not live:
        return None
    found = [next((nic for nic in (c, c ^ 1) if nic in live), -1) for c in range(count)]
    for c in (c for c in range(count) if found[c] < 0):
        found[c] = min(live, key=lambda nic: (found.count(nic), nic))
    return found


def _repaired(cluster: Cluster, routes: Routes, src: int, dst: int) -> list[tuple[int, int, Fraction]]:
    """Channel c joins NIC c of both servers; where either end is dead, both ends move to the same backup NIC."""
    sender, receiver = cluster.ranks[src], cluster.ranks[dst]
    count = len(sender.nics)
    carried = channels(count, lambda i: bool(sender.nics[i].out_rate and receiver.nics[i].in_rate))
    if carried is None:
        raise InputError(
            "no backup NIC",
            where=f"{sender.name} to {receiver.name}",
            expected="a NIC that is live at both ends",
            got="none",
            hint="Hot repair moves a connection to another NIC; it makes no new plan.",
        )

    def port(rank: int, nic: int) -> int:
        server = cluster.servers[cluster.ranks[rank].server]
        return routes.port_index[f"{server.name}/{server.nics[nic].name}"]

    return [(port(src, nic), port(dst, nic), Fraction(n, count)) for nic, n in sorted(Counter(carried).items())]


@dataclass(frozen=True)
class PlainRing(Recipe):
    """One ring over all ranks in cluster order.

    segments : pipeline depth; spread : what each NIC carries
    """

    family: ClassVar[str] = "ring"
    segments: Segments
    spread: NicSpread = NicSpread.EQUAL

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        routes, ranks = Routes(cluster), len(cluster.ranks)
        require_memory(2 * ranks * (ranks - 1) * self.segments)
        template = ring_template(range(ranks), spread_ways(cluster, routes, self.spread))
        numbers, bounds = np.arange(self.segments), segment_bounds(0, nbytes, self.segments, ranks)
        if self.spread is NicSpread.CHANNELS:
            rates = channel_rates(cluster)
            sizes = [rates[i % len(rates)] for i in range(self.segments)]
            cuts = cuts_by(0, nbytes, [size / sum(sizes) for size in sizes]).tolist()
            bounds, numbers = np.stack([even_cuts(a, b, ranks) for a, b in pairwise(cuts)]), numbers // len(rates)
        schedule = assemble(cluster, nbytes, routes, [(template, numbers, bounds)] if template else [])
        if self.spread is NicSpread.CHANNELS:
            return on_single_nics(schedule, cluster, len(rates), [bounds], fastest=True)
        return schedule

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless segments are in range and every channel has a NIC."""
        super().check(cluster)
        if self.spread is NicSpread.CHANNELS:
            channel_rates(cluster)
        if self.spread is not NicSpread.REPAIRED:
            return
        counts = sorted({len(rank.nics) for rank in cluster.ranks})
        if cluster.gpu_ranks or len(counts) > 1:
            raise InputError(
                "hot repair has no channels here",
                where="cluster",
                expected="servers as ranks, each with the same number of NICs",
                got="GPUs as ranks" if cluster.gpu_ranks else f"{counts} NICs",
            )
        ranks, way = len(cluster.ranks), spread_ways(cluster, Routes(cluster), self.spread)
        for rank in range(ranks if ranks > 1 else 0):
            way(rank, (rank + 1) % ranks)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        carries = {
            NicSpread.EQUAL: "equal parts on every live NIC",
            NicSpread.RATE: "parts by rate on every live NIC",
            NicSpread.REPAIRED: "one part per NIC, a dead one's on its backup",
            NicSpread.CHANNELS: "every segment on one NIC of each",
        }
        return [("ring", f"all {len(cluster.ranks)}, {carries[self.spread]}"), ("segments", f"{self.segments}")]
