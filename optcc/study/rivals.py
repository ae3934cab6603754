"""Baselines at their best: each in the reading and the way of using NICs, and with the segments, that suit it best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import NamedTuple

from optcc.errors import InputError
from optcc.planner.search import packets_s, stripes
from optcc.schedule.assemble import channel_count
from optcc.schedule.baselines import BASELINES, OptccPaper, R2cc, nccl_tree, optcc_published, r2cc
from optcc.schedule.nccl_tree import NcclTree
from optcc.schedule.recipe import Costs, Recipe
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.values.cluster import Cluster

R2CC_CHUNKS = 4
"""Chunks of R2CC's stage 2 for each segment of its rings, to begin with: rings pay for every segment and are hardly
quicker with more, stage 2 gets quicker with its K."""
R2CC_OTHER_CHUNKS = (1, 2, 8, 16)
R2CC_OTHER_TAILS = (Fraction(9, 10), Fraction(19, 20), Fraction(21, 20))
"""What is tried beside R2CC's own choices, once it has its number of segments: other chunks for each segment, and other
parts of the share Y that only the healthy servers reduce. It gains 0.4 to 1.1 points by them, with 8 and 16 servers."""
CHANNELS, STRIPES = "channels", "stripes"
PLAIN = "plain patterns"
"""OptCC as published with nothing but its four patterns, which is our other reading of it."""

Make = Callable[[str, Cluster, int], Recipe]
"""(name, cluster, segments on each NIC) -> recipe."""


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
    if name == "nccl-tree":
        return replace(nccl_tree(cluster, depth * count), channels=count)
    expected = "balance, r2cc, optcc-published or nccl-tree"
    raise InputError("no channels to choose", where=name, expected=expected, got=name)


def patterns_alone(make: Make) -> Make:
    """OptCC as published, all data in its four patterns."""

    def made(name: str, cluster: Cluster, depth: int) -> Recipe:
        recipe = make(name, cluster, depth)
        assert isinstance(recipe, OptccPaper)
        return replace(recipe, nested=Fraction(1))

    return made


def ways_of(name: str, cluster: Cluster) -> list[Make]:
    """The ways and readings in which a rival may run on a cluster."""
    ways: list[Make] = [in_stripes]
    alike = len({(nic.out_rate, nic.in_rate) for server in cluster.servers for nic in server.nics}) == 1
    # Where all NICs are alike, each meets its like in either way, and costs the same. Channels need one fabric.
    one_way = name in ("hot-repair", "ring") or (name == "balance" and alike)
    if not one_way and cluster.fabric.flat and not cluster.gpu_ranks:
        ways.append(in_channels)
    if name == "optcc-published" and optcc_published(cluster, 1).nested < 1:
        ways += [patterns_alone(make) for make in ways]
    return ways


def way_of(recipe: Recipe) -> str:
    """Channels or stripes, and for OptCC as published with less than all data in its patterns, that too."""
    if isinstance(recipe, PlainRing):
        return CHANNELS if recipe.spread is NicSpread.CHANNELS else STRIPES
    way = STRIPES if getattr(recipe, "channels", None) is None else CHANNELS
    return f"{way}, {PLAIN}" if isinstance(recipe, OptccPaper) and recipe.nested == 1 else way


DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Segments that are tried on each NIC. Between two of them, at a factor of 1.22, filling the pipeline and paying for
chunks, as a/k + b k, take 2 % more than at the best k."""
SLOWER = 1.1
"""Two numbers in a row that are slower than the best by so much end the search: times have bumps, but small ones."""
FLAT = 1.0001
"""Three numbers in a row within so much of the best end it, too: deeper pipelines have nothing left to gain."""
MOST_STRIPES = 1_500_000
"""Longest simulation, some seconds. With 32 servers that is 32 to 48 segments on each NIC, with 128 from 2 to 3."""


class RivalWay(NamedTuple):
    """How a rival runs. place : of its segments on each NIC in `DEPTHS`"""

    time_s: float
    make: Make
    place: int
    recipe: Recipe


def best(name: str, cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction) -> list[RivalWay]:
    """A rival in each of its ways and readings with the number of segments that is fastest, simulated with packets; the
    fastest way first. Raises InputError where it does not apply."""
    found, costs = list[RivalWay](), Costs(alpha, per_chunk)
    for make in ways_of(name, cluster):
        tried = list[RivalWay]()
        for place, depth in enumerate(DEPTHS):
            recipe = make(name, cluster, depth)
            recipe.check(cluster)
            took = _time_s(recipe, cluster, nbytes, costs)
            if took == inf and tried:
                break
            tried.append(RivalWay(took, make, place, recipe))
            mine = [one.time_s for one in tried]
            if min(mine[-2:]) > SLOWER * min(mine) or (len(mine) > 2 and max(mine[-3:]) < FLAT * min(mine)):
                break
        found.append(_with_others(min(tried, key=lambda one: one.time_s), cluster, nbytes, costs))
    return sorted(found, key=lambda one: one.time_s)


def best_with_jitter(name: str, cluster: Cluster, nbytes: int, ways: Sequence[RivalWay], costs: Costs) -> Recipe:
    """What is fastest with the jitter of `costs`, by the draws that our plans are chosen by: from the best of each way
    without it on to more segments, and to fewer, as long as times fall."""
    found = list[RivalWay]()
    for way in ways:
        fastest = way._replace(time_s=_time_s(way.recipe, cluster, nbytes, costs))
        for step in (1, -1):
            while 0 <= (place := fastest.place + step) < len(DEPTHS):
                recipe = way.make(name, cluster, DEPTHS[place])
                took = _time_s(recipe, cluster, nbytes, costs)
                if took >= fastest.time_s:
                    break
                fastest = RivalWay(took, way.make, place, recipe)
        found.append(fastest if fastest.place == way.place else _with_others(fastest, cluster, nbytes, costs))
    return min(found, key=lambda one: one.time_s).recipe


def _time_s(recipe: Recipe, cluster: Cluster, nbytes: int, costs: Costs) -> float:
    """Seconds with packets; infinite for what takes too long to simulate."""
    schedule = recipe.lower(cluster, nbytes)
    return packets_s(schedule, costs) if stripes(schedule) <= MOST_STRIPES else inf


def _with_others(way: RivalWay, cluster: Cluster, nbytes: int, costs: Costs) -> RivalWay:
    """The same, or what is faster of `others`."""
    near = (
        way._replace(time_s=_time_s(each, cluster, nbytes, costs), recipe=each) for each in others(way.recipe, cluster)
    )
    return min((way, *near), key=lambda one: one.time_s)


def others(recipe: Recipe, cluster: Cluster) -> Iterator[Recipe]:
    """What else is tried near a rival's best number of segments: for R2CC other chunks and shares; for NCCL's Tree the
    slow servers where they stand."""
    if isinstance(recipe, R2cc):
        for factor in R2CC_OTHER_CHUNKS:
            other = replace(recipe, chunks=recipe.chunks * factor // R2CC_CHUNKS)
            if other.fits(cluster):
                yield other
        for part in R2CC_OTHER_TAILS:
            other = replace(recipe, tail=recipe.tail * part)
            if other.fits(cluster):
                yield other
    if isinstance(recipe, NcclTree):
        yield replace(recipe, order=tuple(range(len(cluster.ranks))))
