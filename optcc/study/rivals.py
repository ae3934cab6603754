"""Baselines at their best: each in the way of using NICs, and with the segments, that suit it best."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from optcc.errors import InputError
from optcc.schedule.assemble import channel_count
from optcc.schedule.baselines import BASELINES, optcc_published, r2cc
from optcc.schedule.recipe import Recipe
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.values.cluster import Cluster

R2CC_CHUNKS = 4
"""Chunks of R2CC's stage 2 for each segment of its rings: rings pay for every segment and are hardly quicker with more,
stage 2 gets quicker with its K. 2 and 8 are slower by 0 to 2 points of the fault-free ring, 1 by up to 10, with 8 and
16 servers, 1 GiB, and 0 or 1 us for a chunk."""
CHANNELS, STRIPES = "channels", "stripes"


def in_stripes(name: str, cluster: Cluster, depth: int) -> Recipe:
    """A rival with every transfer on all NICs."""
    if name == "r2cc":
        return replace(r2cc(cluster, depth), chunks=depth * R2CC_CHUNKS)
    return BASELINES[name](cluster, depth)


def in_channels(name: str, cluster: Cluster, depth: int) -> Recipe:
    """A rival with `depth` whole segments on each of a server's NICs. Raises InputError where it has no such way."""
    count = channel_count(cluster)
    if name == "balance":
        live = min(sum(nic.out_rate > 0 and nic.in_rate > 0 for nic in rank.nics) for rank in cluster.ranks)
        return PlainRing(depth * live, NicSpread.CHANNELS)
    if name == "r2cc":
        return replace(r2cc(cluster, depth * count), chunks=depth * R2CC_CHUNKS, channels=count)
    if name == "optcc-published":
        return replace(optcc_published(cluster, depth * count), channels=count)
    raise InputError("no channels to choose", where=name, expected="balance, r2cc or optcc-published", got=name)


def way_of(recipe: Recipe) -> str:
    """Channels or stripes."""
    if isinstance(recipe, PlainRing):
        return CHANNELS if recipe.spread is NicSpread.CHANNELS else STRIPES
    return STRIPES if getattr(recipe, "channels", None) is None else CHANNELS


DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Segments that are tried on each NIC. Between two of them, at a factor of 1.22, filling the pipeline and paying for
chunks, as a/k + b k, take 2 % more than at the best k."""
SLOWER = 1.1
"""Two numbers in a row that are slower than the best by so much end the search: times have bumps, but small ones."""
FLAT = 1.0001
"""Three numbers in a row within so much of the best end it, too: deeper pipelines have nothing left to gain."""
MOST_STRIPES = 3_000_000
"""Longest simulation, some ten seconds. With 32 servers that is 64 to 96 segments on each NIC, with 128 from 4 to 6."""


def best(name: str, cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction) -> Recipe:
    """A rival in the way and with the number of segments that are fastest, simulated with packets. Raises InputError
    where it does not apply."""
    from optcc.simulation.simulator import simulate

    ways = [in_stripes]
    alike = len({(nic.out_rate, nic.in_rate) for server in cluster.servers for nic in server.nics}) == 1
    # Where all NICs are alike, each meets its like in either way, and costs the same.
    if name not in ("hot-repair", "ring") and not (name == "balance" and alike):
        ways.append(in_channels)
    tried: list[tuple[float, Recipe]] = []
    for make in ways:
        mine: list[float] = []
        for depth in DEPTHS:
            recipe = make(name, cluster, depth)
            recipe.check(cluster)
            schedule = recipe.lower(cluster, nbytes)
            if mine and len(schedule) * max(len(route.lanes) for route in schedule.routes) > MOST_STRIPES:
                break
            mine.append(simulate(schedule, alpha=alpha, per_chunk=per_chunk, receivers="packets").time_s)
            tried.append((mine[-1], recipe))
            if min(mine[-2:]) > SLOWER * min(mine) or (len(mine) > 2 and max(mine[-3:]) < FLAT * min(mine)):
                break
    return min(tried, key=lambda one: one[0])[1]
