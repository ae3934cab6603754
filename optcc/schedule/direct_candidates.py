"""Direct exchange as the planner tries it: numbers of steps for which chunks cost about as much as waiting.

Let o be a chunk's cost on a NIC and X the bound, in seconds. Then s steps cost s o for chunks, and lose about one step,
X/s, to data under way; the sum is least near s = sqrt(X/o). The time of even steps is known beforehand: their number as
found, times the length in which chunks fit (`chunks_of`). So it is computed, and only the first few are simulated. The
loss of other steps varies with their number, so several numbers are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil, log, sqrt
from operator import itemgetter

from optcc.schedule.candidates import LARGE, MANY, CandidateFamily, Costs
from optcc.schedule.direct import FINDERS, MAX_CHUNK, MAX_STEPS, DirectExchange
from optcc.schedule.lanes import MOST_LANES, differ, in_lanes
from optcc.schedule.slots import ONE
from optcc.schedule.steps_none import NoneStarves, joined_by, rounds_needed
from optcc.schedule.steps_one import LEAST, OneStarves, fitted
from optcc.schedule.steps_one_slots import step_ends
from optcc.schedule.steps_several import SeveralStarve
from optcc.schedule.steps_several_slots import quiet_rails
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster

PARTS = 2**20
"""Denominator of parts of a half and of growths, so that plan files hold short numbers."""
FREE = 64
"""Number of steps where chunks cost nothing: about 1/64 of the time is lost, and with more steps hardly less."""
KINDS = 4
"""Combinations of a way to find steps and a number of lanes that are tried where NICs differ."""
TRIES, TRIED_CHUNKS = 10, 100_000
"""Numbers of steps simulated where some server starves: so many, or as many as have this number of chunks in all, about
two seconds; at least one. The loss of steps varies by a point or two, so half as many tries lose half a point."""
FEWEST_TRIES = 4
"""At least so many tries, up to `LARGE` servers; where chunks cost little, with fewer steps than best. One try instead:
half a point to a point worse (8 and 16 servers, 4 GiB)."""
FEW_STEPS = 16
"""Up to so many steps per half, equal steps are tried, too, where several servers starve."""
PARTS_TRIED = [2 ** (quarter / 4) for quarter in range(-2, 5)]
"""Numbers of rounds over the number that is needed: quarter octaves, half an octave down and one up."""
GOLDEN = (1 + sqrt(5)) / 2


@dataclass(frozen=True)
class Form:
    """recipe : one kind of steps, their number open; numbers : candidates, the most promising first"""

    recipe: DirectExchange
    numbers: Sequence[int]
    shortlist: Callable[[], Sequence[DirectExchange]]


def direct_candidates(cluster: Cluster, bound: Bound, costs: Costs) -> list[CandidateFamily]:
    """A candidate for each suitable way to find steps and, where NICs differ, each number of lanes; the first `KINDS`
    by the formula above."""
    found = list[tuple[float, int, CandidateFamily]]()
    for lanes in range(1, MOST_LANES + 1 if differ(cluster) else 2):
        laned, own = in_lanes(cluster, lanes), Costs(costs.alpha, lanes * costs.per_chunk)
        for name, finder in FINDERS.items():
            if not finder.applies(laned):
                continue
            form = FORMS[name](laned, bound, own)
            about_s = float(form.recipe.fluid_s(laned, bound.nbytes)) + 2 * float(bound.seconds) / _root(bound, own)
            offer = CandidateFamily(
                DirectExchange.family,
                partial(_with_steps, form, laned, lanes),
                shortlist=partial(_listed, form, lanes),
                by_rate=False,
                least_s=_least_s(form, laned, bound, own),
            )
            found.append((about_s, len(found), offer))
    return [offer for _, _, offer in sorted(found, key=itemgetter(0, 1))[:KINDS]]


def by_formula(cluster: Cluster, bound: Bound, costs: Costs) -> DirectExchange | None:
    """The recipe that the formulas put first, without a trial; None where direct exchange does not apply.

    The starving server has nothing to receive until hubs have heard from each other, a turn of the first steps.
    """
    for name, finder in FINDERS.items():
        if not finder.applies(cluster):
            continue
        form = FORMS[name](cluster, bound, costs)
        recipe = replace(form.recipe, segments=form.numbers[0])
        if name != OneStarves.name:
            return recipe
        turn = -(-(len(cluster.ranks) - 1) // max(map(len, finder.used(cluster))))
        idle = Fraction(step_ends(recipe.segments, recipe.growth)[min(turn, recipe.segments) - 1], ONE) + recipe.margin
        last = max(LEAST, (1 - idle) / (2 - idle))
        return replace(recipe, last=last.limit_denominator(PARTS))
    return None


def _with_steps(form: Form, laned: Cluster, lanes: int, segments: int) -> DirectExchange:
    made = replace(form.recipe, segments=segments)
    made = replace(made, last=fitted(made, laned)) if made.steps == OneStarves.name else made
    return replace(made, lanes=lanes)


def _listed(form: Form, lanes: int) -> list[DirectExchange]:
    return [replace(recipe, lanes=lanes) for recipe in form.shortlist()]


def _root(bound: Bound, costs: Costs) -> float:
    """Number of steps whose chunks cost as much as one step lasts."""
    return max(1.0, sqrt(bound.seconds / costs.per_chunk)) if costs.per_chunk else FREE


def _tried(parts: Sequence[float], chunks: float) -> Sequence[float]:
    """The first candidates. chunks : of one schedule, about"""
    return parts[: max(1, min(TRIES, int(TRIED_CHUNKS / chunks)))]


def _least_s(form: Form, cluster: Cluster, bound: Bound, costs: Costs) -> float:
    """Lower estimate in seconds: every NIC's bytes, a chunk for each peer, and the two hops of the first and the last
    chunk. For rounds of many servers, where one try takes ten seconds, an estimate: the chunks of the rounds."""
    used = FINDERS[form.recipe.steps].used(cluster)
    chunks = Fraction(len(used) - 1, max(map(len, used)))
    if form.recipe.steps == NoneStarves.name and len(used) > MANY:
        chunks *= form.numbers[0]
    return float(form.recipe.fluid_s(cluster, bound.nbytes) + chunks * costs.per_chunk + 2 * costs.alpha)


def _part(bound: Bound, seconds: Fraction, most: Fraction) -> Fraction:
    """`seconds` as part of half of the bound, at most `most`, rounded."""
    halves = min(2 * seconds / bound.seconds, most) if bound.seconds else most
    return Fraction(round(halves * PARTS), PARTS)


def _none(cluster: Cluster, bound: Bound, costs: Costs) -> Form:
    """About the rounds that are needed; fewer where so many chunks would cost more than waiting."""
    finder = FINDERS[NoneStarves.name]
    used = [tuple(mine) for mine in finder.used(cluster)]
    chunks = min(Fraction(len(ranks) - 1, len(rails)) for ranks, rails in joined_by(used).items())  # in a round
    about = min(float(rounds_needed(finder.shares(cluster))), _root(bound, costs) / float(chunks))
    most = min(MAX_STEPS, finder.most_steps(cluster), TRIED_CHUNKS // (len(used) * (len(used) - 1)))
    numbers = sorted({max(1, min(most, round(about * part))) for part in PARTS_TRIED})
    recipe = DirectExchange(1)
    return Form(recipe, [ceil(about)], lambda: [replace(recipe, segments=n) for n in numbers])


def _one(cluster: Cluster, bound: Bound, costs: Costs) -> Form:
    finder = FINDERS[OneStarves.name]
    ends = sum(map(len, finder.used(cluster)))
    root = _root(bound, costs)
    if len(cluster.ranks) <= LARGE:
        root = min(root, TRIED_CHUNKS / (FEWEST_TRIES * 2 * ends))
    growth = 1 + Fraction(max(1, round(100 * min(0.15, 0.6 / sqrt(root)))), 100)
    most = min(MAX_STEPS, finder.most_steps(cluster))
    order = (*(0.8 + 0.8 * turn / 7 for turn in (4, 7, 5, 2, 3, 6, 1, 0)), 2.2, 2.8)  # more where servers have few NICs
    if len(cluster.ranks) > LARGE:  # hubs need longer to hear from each other
        order = (1.5, 1.25, 1.6, 1.4)
    parts = _tried(order, 2 * root * ends)
    numbers = list(dict.fromkeys(max(2, min(most, round(root * part))) for part in parts))
    margin, chunk = _part(bound, costs.alpha, Fraction(1, 10)), _part(bound, costs.per_chunk, MAX_CHUNK)
    recipe = DirectExchange(1, OneStarves.name, growth=growth, margin=margin, chunk=chunk, last=LEAST)

    def shortlist() -> list[DirectExchange]:
        # The parts that ranks add last to depend little on the number of steps.
        last = fitted(replace(recipe, segments=numbers[0]), cluster)
        return [replace(recipe, segments=steps, last=last) for steps in numbers]

    return Form(recipe, numbers, shortlist)


def _several(cluster: Cluster, bound: Bound, costs: Costs) -> Form:
    """Hubs have heard from each other after a turn, while the slow servers wait. Hubs are twice as fast, so after one
    more turn they have gathered as much as after the last two. So steps may grow by the golden ratio in a turn."""
    finder = FINDERS[SeveralStarve.name]
    used, shares = [list(mine) for mine in finder.used(cluster)], finder.shares(cluster)
    slow = [rank for rank, share in enumerate(shares) if not share]
    hubs, fewer, full = len(used) - len(slow), len(used[slow[0]]), max(map(len, used))
    quiet, turn = bool(quiet_rails(used, slow)), (hubs - 1) / full
    growth = Fraction(round(PARTS * min(2.0, GOLDEN ** (0.5 / turn))), PARTS)
    first = 1 / (turn * (2.5 if quiet else 1) + 2)
    growing = round(log(1 / first) / log(growth))
    more = growing - (1 - first) / log(growth)  # steps than if all were alike
    most = min(finder.most_steps(cluster), MAX_STEPS)
    order = (0.6, 0.5, 0.7) if quiet else (0.75, 0.65, 0.9, 0.7, 0.8, 0.6)
    parts = _tried(order, 2 * _root(bound, costs) * sum(map(len, used)))
    numbers = list(dict.fromkeys(max(2, round(min(part * _root(bound, costs) + more, most))) for part in parts))
    waits = quiet or 2 * fewer == full
    margin = _part(bound, costs.alpha / 2, Fraction(1, 2)) if waits else Fraction(0)
    chunk = _part(bound, costs.per_chunk, MAX_CHUNK)
    recipe = DirectExchange(1, SeveralStarve.name, growth=growth, growing=growing, margin=margin, chunk=chunk)
    listed = [replace(recipe, segments=steps) for steps in numbers]
    if _root(bound, costs) <= FEW_STEPS:  # too few to grow
        alike = replace(recipe, growth=Fraction(1), growing=0)
        some = {max(2, round(part * _root(bound, costs))) for part in (0.6, 0.75, 0.9, 1.1, 1.4, 1.8)}
        root = _root(bound, costs)  # where latency is all, any number may be the one
        listed += [
            replace(recipe, segments=round(steps + more))
            for steps in range(round(2 * root), round(7 * root), max(1, round(root / 4)))
        ]
        listed += [
            replace(each, segments=steps) for each in (alike, replace(alike, margin=Fraction(0))) for steps in some
        ]
    return Form(recipe, numbers, lambda: list(dict.fromkeys(listed)))


FORMS: dict[str, Callable[[Cluster, Bound, Costs], Form]] = {
    NoneStarves.name: _none,
    OneStarves.name: _one,
    SeveralStarve.name: _several,
}
