"""Which family and how many segments: candidates are run in virtual time, and the fastest is the plan.

A model of each family would have to be right about fill, latency and chunk costs on every cluster; the simulator
already is. A `CandidateFamily` is one family with its number of segments left open. It names the numbers that are worth
a try. Or they are searched. Times fall and then rise with the segments. From a first guess the number is doubled, up
and down, until the plan gets slower. Then the numbers halfway between the best and its neighbours are tried. Families
come in the order of what they take at least. What cannot be faster than what was tried, a family or a recipe of a
shortlist, is left out.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.schedule.baselines import BASELINES
from optcc.schedule.columns import Schedule
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import MAX_SEGMENTS, CandidateFamily, Costs, Recipe, default_segments
from optcc.schedule.tuned import DEFAULT_SEGMENTS, LARGE, MAX_STRIPES, MIN_CHUNK, NEARLY
from optcc.simulation.simulator import seconds, simulate
from optcc.values.bound import LARGEST_GAP, Bound
from optcc.values.cluster import Cluster, Nic

# The schedule of the fastest candidate so far.


class Kept:
    """The schedule that the fastest candidate lowers to, so that nobody has to lower it again."""

    def __init__(self) -> None:
        self._fastest: tuple[float, Recipe, Schedule] | None = None

    def offer(self, time_s: float, recipe: Recipe, schedule: Schedule) -> None:
        """Keep it, if none that is kept is as fast."""
        if self._fastest is None or time_s < self._fastest[0]:
            self._fastest = time_s, recipe, schedule

    def schedule(self, recipe: Recipe) -> Schedule | None:
        """That of `recipe`, if it is kept."""
        return self._fastest[2] if self._fastest is not None and self._fastest[1] == recipe else None


@dataclass(frozen=True)
class Candidate:
    """A recipe that was tried, its time by `slower_s`, its number of transfers; merged : of NICs merged into one."""

    recipe: Recipe
    time_s: float
    transfers: int
    merged: bool = False


def candidate_families(
    cluster: Cluster,
    bound: Bound,
    *,
    alpha: Fraction = Fraction(0),
    per_chunk: Fraction = Fraction(0),
    family: str | None = None,
    in_place: bool = False,
) -> Iterator[CandidateFamily]:
    """What the families, or one of them, offer for the cluster, the default one first; a family is asked when it is its
    turn. Making a recipe may find that there is none. in_place : leave out those that need receive buffers."""
    for name, kind in FAMILIES.items():
        if family in (None, name) and not (in_place and kind.beside):
            yield from kind.candidates(cluster, bound, Costs(alpha, per_chunk))


def merged_nics(cluster: Cluster) -> Cluster:
    """The cluster with each server's live NICs as one of their total rate; striped by rate they act as one."""
    servers = tuple(
        replace(server, nics=(Nic("all", server.out_rate, server.in_rate, rail=0),)) for server in cluster.servers
    )
    return replace(cluster, servers=servers, pristine=None)


def try_depths(
    offer: CandidateFamily,
    cluster: Cluster,
    nbytes: int,
    costs: Costs,
    *,
    kept: Kept | None = None,
    best_s: float = inf,
) -> list[Candidate]:
    """Try an offer's numbers of segments; `kept` is offered what they lower to. best_s : time of the fastest one of
    other offers. Raises InputError where the family has no recipe for the cluster."""
    on = merged_nics(cluster) if offer.by_rate and _merges(cluster) else cluster
    tried: dict[int, Candidate] = {}

    def attempt(segments: int, recipe: Recipe) -> float:
        """Its time; infinite when it is not worth a try."""
        schedule = recipe.lower(on, nbytes)
        if tried and stripes(schedule) > MAX_STRIPES:
            return inf
        # Where times lead to the next number, those of other offers do not matter.
        others_s = inf if offer.shortlist is None else best_s
        time_s = slower_s(schedule, costs, min((one.time_s for one in tried.values()), default=others_s))
        tried[segments] = Candidate(recipe, time_s, len(schedule), on is not cluster)
        if kept is not None and on is cluster:
            kept.offer(time_s, recipe, schedule)
        return time_s

    most = max(1, min(offer.deepest or MAX_SEGMENTS, nbytes // (MIN_CHUNK * len(cluster.ranks))))
    if offer.shortlist is not None:
        for place, recipe in enumerate(offer.shortlist()):
            fastest_s = min((one.time_s for one in tried.values()), default=inf)
            if offer.least_of is None or offer.least_of(recipe) < min(fastest_s, best_s):
                attempt(place, recipe)
        seen = {one.recipe for one in tried.values()}
        for change in [*offer.near, *offer.near]:  # what one finds may lead another on
            fastest = min(tried.values(), key=lambda one: one.time_s, default=None)
            if fastest is None or fastest.time_s > best_s:
                break
            for way in change(fastest.recipe):
                time_s = fastest.time_s
                for recipe in way:
                    if recipe in seen:
                        break
                    seen.add(recipe)
                    made_s = attempt(max(tried) + 1, recipe)
                    if made_s >= time_s:
                        break
                    time_s = made_s
                if time_s < fastest.time_s:
                    break
        return list(tried.values())
    if not costs.per_chunk:  # deeper is never slower, and hardly faster
        most = min(most, offer.guess or DEFAULT_SEGMENTS)
    # Without a formula times may rise once before they fall: one segment fills no pipeline.
    guess, slower_allowed = min(offer.guess or 1, most), 1 if offer.guess else 2
    start = attempt(guess, offer.make(guess))
    for up in (True, False):
        segments, best, worse = guess, start, 0
        while worse < slower_allowed:
            segments = min(2 * segments, most) if up else segments // 2
            if not segments or segments in tried:
                break
            time_s = attempt(segments, offer.make(segments))
            worse = 0 if time_s < best else worse + 1
            best = min(best, time_s)
    best_one = min(tried, key=lambda k: tried[k].time_s)
    for low, high in pairwise(sorted({max(1, best_one // 2), best_one, min(2 * best_one, most)})):
        if (low + high) // 2 not in tried:
            attempt((low + high) // 2, offer.make((low + high) // 2))
    return list(tried.values())


def baseline(plan: Plan, algorithm: str, *, alpha: Fraction, per_chunk: Fraction) -> Plan:
    """`Plan.baseline`, but of as many segments as suit it best at these seconds, as our own families get them.

    Without costs more are never slower, and it is as deep as the plan.
    """
    same = plan.baseline(algorithm)
    if algorithm == "optcc" or not (alpha or per_chunk) or len(plan.cluster.ranks) == 1 or not plan.bound.nbytes:
        return same
    return replace(same, recipe=suited(algorithm, plan.cluster, plan.bound, alpha=alpha, per_chunk=per_chunk))


def suited(name: str, cluster: Cluster, bound: Bound, *, alpha: Fraction, per_chunk: Fraction) -> Recipe:
    """A baseline with the number of segments that suits it best. Raises InputError where there is none."""
    rates = {(nic.out_rate, nic.in_rate) for server in cluster.servers for nic in server.nics}
    by_rate = len(rates) == 1 and name in ("ring", "balance")
    offer = CandidateFamily(name, lambda segments: BASELINES[name](cluster, segments), by_rate=by_rate)
    return candidates([offer], cluster, bound, Costs(alpha, per_chunk))[0].recipe


def candidates(
    offered: Iterable[CandidateFamily],
    cluster: Cluster,
    bound: Bound,
    costs: Costs,
    kept: Kept | None = None,
) -> list[Candidate]:
    """Everything that was tried, the fastest first. Raises InputError when no family has a schedule here."""
    found: list[Candidate] = []
    refused: InputError | None = None
    for offer in sorted(offered, key=lambda offer: (offer.costly, offer.least_s)):
        best = min(found, key=lambda one: one.time_s, default=None)
        if best is not None and offer.least_s >= best.time_s:
            continue
        if best is not None and offer.costly and best.recipe.fluid_s(cluster, bound.nbytes) <= NEARLY * bound.seconds:
            continue
        try:
            best_s = inf if best is None else best.time_s
            found += try_depths(offer, cluster, bound.nbytes, costs, kept=kept, best_s=best_s)
        except InputError as error:
            refused = refused or error
    if not found:
        raise refused or InputError("no family has a schedule", where="cluster", expected="one that has")
    found.sort(key=lambda candidate: candidate.time_s)
    while found[0].merged:
        # Unequal numbers of NICs cost more chunks than merged ones: what seems best is run once more as it is.
        insort(found, _as_is(found.pop(0), cluster, bound.nbytes, costs), key=lambda each: each.time_s)
    return found


def _merges(cluster: Cluster) -> bool:
    return cluster.fabric.flat and not cluster.gpu_ranks and len(cluster.ranks) > LARGE


def _as_is(candidate: Candidate, cluster: Cluster, nbytes: int, costs: Costs) -> Candidate:
    if candidate.transfers * max(len(rank.nics) for rank in cluster.ranks) > MAX_STRIPES:
        return replace(candidate, merged=False)
    return replace(candidate, time_s=slower_s(candidate.recipe.lower(cluster, nbytes), costs), merged=False)


def slower_s(schedule: Schedule, costs: Costs, best_s: float = inf) -> float:
    """Its time with the slower kind of receivers: whole stripes one after another, or packets as they come. One kind
    says enough where that is slower than `best_s`, or the other takes long to simulate. With jitter, which makes hardly
    any plan faster, by packets alone."""
    time_s = seconds(schedule, costs.alpha, costs.per_chunk)
    if time_s > best_s or stripes(schedule) > MAX_STRIPES:
        return time_s
    # Where links are shared it was packets.
    return time_s if schedule.shared_links and not costs.jitter else max(time_s, packets_s(schedule, costs))


def packets_s(schedule: Schedule, costs: Costs) -> float:
    """Its time where receivers serve packets; with jitter the mean of two draws that nothing is measured with."""
    how: dict[str, Any] = {"alpha": costs.alpha, "per_chunk": costs.per_chunk, "receivers": "packets"}
    seeds = (101, 102) if costs.jitter else (0,)
    return sum(simulate(schedule, **how, jitter=costs.jitter, seed=seed).time_s for seed in seeds) / len(seeds)


def stripes(schedule: Schedule) -> int:
    """Upper limit of the stripes that are simulated: every transfer on as many lanes as the widest route has."""
    return len(schedule) * schedule.widest


def _no_slower_than_larger(
    best: Candidate,
    cluster: Cluster,
    bound: Bound,
    costs: Costs,
    offers: Callable[[Bound], Iterable[CandidateFamily]],
    kept: Kept | None,
) -> Recipe:
    """The best recipe, or what is chosen for 2, 4, 8, ... times the bytes, if that is faster for these: so that a plan
    does not take longer than that of a larger size. A size whose bound is above the best time has no faster plan."""
    factor = 2
    while factor * bound.seconds + costs.alpha + costs.per_chunk < best.time_s:
        larger = replace(bound, nbytes=factor * bound.nbytes, seconds=factor * bound.seconds)
        recipe = candidates(offers(larger), cluster, larger, costs)[0].recipe
        schedule = recipe.lower(cluster, bound.nbytes)
        time_s = slower_s(schedule, costs, best.time_s)
        if time_s < best.time_s:
            best = Candidate(recipe, time_s, len(schedule))
            if kept is not None:
                kept.offer(time_s, recipe, schedule)
        factor *= 2
    return best.recipe


def _telling(offer: CandidateFamily, progress: Callable[[str], None]) -> CandidateFamily:
    """The offer, which says each number of segments before it is tried."""

    def told(recipe: Recipe) -> Recipe:
        progress(f"{offer.name}, {recipe.segments} segment{'s' * (recipe.segments != 1)}")
        return recipe

    listed = offer.shortlist
    shortlist = None if listed is None else lambda: [told(recipe) for recipe in listed()]
    return replace(offer, make=lambda segments: told(offer.make(segments)), shortlist=shortlist)


def choose(
    cluster: Cluster,
    bound: Bound,
    *,
    family: str | None = None,
    segments: int | None = None,
    alpha: Fraction = Fraction(0),
    per_chunk: Fraction = Fraction(0),
    jitter: float = 0.0,
    progress: Callable[[str], None] | None = None,
    kept: Kept | None = None,
    in_place: bool = False,
) -> Recipe:
    """The recipe for an AllReduce of `bound.nbytes` bytes. Raises InputError where there is none.

    Without latency and chunk costs deeper is never slower, and the family with the least fluid time wins. `progress` is
    told what is tried, such as "trees, 12 segments". in_place : none that needs receive buffers (`Schedule.beside`)
    jitter : the plan is the fastest with it
    """
    offers = partial(candidate_families, cluster, alpha=alpha, per_chunk=per_chunk, family=family, in_place=in_place)
    offered: Iterable[CandidateFamily] = offers(bound)
    if family is not None and not (offered := list(offered)):
        others = candidate_families(cluster, bound, alpha=alpha, per_chunk=per_chunk, in_place=in_place)
        names = ", ".join(dict.fromkeys(offer.name for offer in others))
        if family in BASELINES:
            what = "a rival's schedule, which is run beside a plan and is never one"
        else:
            what = "a family for other clusters" if family in FAMILIES else "no such family"
            if in_place and family in FAMILIES and FAMILIES[family].beside:
                what = "a family that needs receive buffers beside the result"
        raise InputError(what, where="--family", expected=f"one of {names}", got=family)
    if progress is not None:
        offered = (_telling(offer, progress) for offer in offered)
    costs = Costs(alpha, per_chunk, jitter)
    if segments is None and costs and len(cluster.ranks) > 1 and bound.nbytes:
        tried = candidates(offered, cluster, bound, costs, kept)
        return _no_slower_than_larger(tried[0], cluster, bound, costs, offers, kept)
    default = default_segments(bound.nbytes, len(cluster.ranks), gpus=cluster.gpu_ranks)
    best: tuple[Fraction, Recipe] | None = None
    refused: InputError | None = None
    for offer in offered:
        try:
            recipe = offer.make(segments or min(default, offer.deepest or MAX_SEGMENTS))
            fluid_s = recipe.fluid_s(cluster, bound.nbytes)
        except InputError as error:
            refused = refused or error
            continue
        if best is None or fluid_s < best[0]:
            best = (fluid_s, recipe)
        if best[0] <= (1 + LARGEST_GAP) * bound.seconds:
            break
    if best is None:
        raise refused or InputError("no family has a schedule", where="cluster", expected="one that has")
    return best[1]
