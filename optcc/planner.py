"""Which family and how many segments: candidates are run in virtual time, and the fastest is the plan.

A model per family would have to be right about fill, latency and chunk costs of every family on every cluster; the
simulator already is. A *ladder* is one family with its number of segments left open. Its times fall and then rise with
the segments, so a ladder is climbed by doubling until two steps in a row are slower, then tried between the two best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from optcc.bound import Bound
from optcc.cluster import Cluster, Nic
from optcc.errors import InfeasibleError, InputError
from optcc.plans import DEFAULT_SEGMENTS, MIN_CHUNK, nested_rings
from optcc.schedule.recipe import MAX_SEGMENTS, Recipe
from optcc.simulator import simulate

MAX_STRIPES = 1_000_000
"""Longest simulation that is tried, about a second: pipelines that deep pay for chunks."""
LARGE = 32
"""Above so many ranks a server's NICs are simulated as one, which is eight times less work for eight NICs."""


@dataclass(frozen=True)
class Ladder:
    """One family on one cluster: `make(segments)` is its recipe; `name` says which, for people.

    by_rate : transfers are striped over NICs by their rates, so that a server's NICs may be simulated as one
    """

    name: str
    make: Callable[[int], Recipe]
    by_rate: bool = True


def ladders(cluster: Cluster, bound: Bound) -> list[Ladder]:
    """The families that `cluster` may want, the default one first. Lowering may still find that one has no ways."""
    from optcc.theory import nested_shares

    shares = nested_shares([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks])
    return [Ladder("nested-rings", lambda segments: nested_rings(cluster, shares, segments))]


def default_segments(nbytes: int, ranks: int) -> int:
    """64 (the pipeline's fill costs about 1/64), fewer when sections would fall under 16 KiB."""
    return max(1, min(DEFAULT_SEGMENTS, nbytes // (MIN_CHUNK * ranks)))


@dataclass(frozen=True)
class Candidate:
    """A recipe that was tried, and its simulated time (of merged NICs above `LARGE` ranks)."""

    ladder: str
    recipe: Recipe
    time_s: float


def merged_nics(cluster: Cluster) -> Cluster:
    """The cluster with each server's live NICs as one of their total rate; striped by rate they act as one."""
    servers = tuple(
        replace(server, nics=(Nic("all", server.out_rate, server.in_rate, rail=0),)) for server in cluster.servers
    )
    return replace(cluster, servers=servers, pristine=None)


def climb(
    ladder: Ladder, cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction
) -> Iterator[Candidate]:
    """Try a ladder's numbers of segments. Raises InfeasibleError where the family has no way between some ranks."""
    on = (
        merged_nics(cluster)
        if cluster.fabric.flat and len(cluster.ranks) > LARGE and not cluster.gpu_ranks
        else cluster
    )
    tried: dict[int, Candidate] = {}

    def attempt(segments: int) -> Candidate | None:
        recipe = ladder.make(segments)
        schedule = recipe.lower(on, nbytes)
        lanes = max((len(route.lanes) for route in schedule.routes), default=1)
        if tried and len(schedule) * lanes > MAX_STRIPES:
            return None
        time_s = simulate(schedule, alpha=alpha, per_chunk=per_chunk).time_s
        tried[segments] = Candidate(ladder.name, recipe, time_s)
        return tried[segments]

    segments, best, worse = 1, float("inf"), 0
    most = max(1, min(MAX_SEGMENTS, nbytes // (MIN_CHUNK * len(cluster.ranks))))
    while segments <= most and worse < 2:
        found = attempt(segments)
        if found is None:
            break
        yield found
        worse = 0 if found.time_s < best else worse + 1
        best, segments = min(best, found.time_s), segments * 2
    top = min(tried, key=lambda k: tried[k].time_s)
    for low, high in pairwise(sorted({max(1, top // 2), top, min(2 * top, most)})):
        between = (low + high) // 2
        if between not in tried and (found := attempt(between)):
            yield found


def candidates(
    ladders: list[Ladder], cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction
) -> list[Candidate]:
    """Everything that was tried, the fastest first; ties go to the earlier ladder.

    Raises InfeasibleError when no family has a schedule here.
    """
    found: list[Candidate] = []
    refused: InfeasibleError | None = None
    for ladder in ladders:
        try:
            found += climb(ladder, cluster, nbytes, alpha=alpha, per_chunk=per_chunk)
        except InfeasibleError as error:
            refused = refused or error
    if not found and refused:
        raise refused
    return sorted(found, key=lambda candidate: candidate.time_s)


def choose(
    cluster: Cluster,
    bound: Bound,
    *,
    family: str | None = None,
    segments: int | None = None,
    alpha: Fraction = Fraction(0),
    per_chunk: Fraction = Fraction(0),
) -> Recipe:
    """The recipe for an AllReduce of `bound.nbytes` bytes. Raises InputError or InfeasibleError where there is none.

    Without latency and chunk costs deeper is never slower, and the family with the least fluid time wins.
    """
    offered = ladders(cluster, bound)
    if family is not None:
        offered = [ladder for ladder in offered if ladder.name == family]
        if not offered:
            names = ", ".join(dict.fromkeys(ladder.name for ladder in ladders(cluster, bound)))
            raise InputError("no such family here", where="--family", expected=f"one of {names}", got=family)
    if segments is None and (alpha or per_chunk) and len(cluster.ranks) > 1 and bound.nbytes:
        return candidates(offered, cluster, bound.nbytes, alpha=alpha, per_chunk=per_chunk)[0].recipe
    depth = segments or default_segments(bound.nbytes, len(cluster.ranks))
    best: tuple[Fraction, Recipe] | None = None
    refused: InfeasibleError | None = None
    for ladder in offered:
        recipe = ladder.make(depth)
        try:
            fluid_s = recipe.fluid_s(cluster, bound.nbytes)
        except InfeasibleError as error:
            refused = refused or error
            continue
        if best is None or fluid_s < best[0]:
            best = (fluid_s, recipe)
        if best[0] <= bound.seconds:
            break
    if best is None:
        raise refused or InputError("no family has a schedule", where="cluster", expected="one that has")
    return best[1]
