"""Direct exchange as the planner tries it: numbers of steps near the one that a formula names.

Let o be a chunk's cost on a NIC and X the bound, in seconds. Then s steps cost s o for chunks, and lose about one step,
X/s, to data under way; the sum is least near s = sqrt(X/o), the *root*. What else a way to find steps loses is added
before the least is taken. The loss varies by a point or two with the number, so several around it are simulated. Where
no server starves, nothing is lost from a certain number of rounds on (`rounds_needed`); fewer would lose about a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil, log, sqrt
from operator import itemgetter

import numpy as np

from optcc.schedule.candidates import CandidateFamily, Costs
from optcc.schedule.direct import FINDERS, MAX_CHUNK, MAX_STEPS, DirectExchange
from optcc.schedule.effort import DEFAULT_SEGMENTS, KINDS, MANY, TRIED_CHUNKS, TRIES
from optcc.schedule.lanes import MAX_LANES, differ, in_lanes
from optcc.schedule.slots import ONE
from optcc.schedule.steps_none import NoneStarves, joined_by, rounds_needed
from optcc.schedule.steps_one import OneStarves, fitted
from optcc.schedule.steps_one_slots import step_ends
from optcc.schedule.steps_several import SeveralStarve
from optcc.schedule.steps_several_slots import quiet_rails
from optcc.schedule.tuned import GROWS, MOST_LOST, UP
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster

PARTS = 2**20
"""Denominator of parts of a half and of growths, so that plan files hold short numbers."""
GOLDEN = (1 + sqrt(5)) / 2


@dataclass(frozen=True)
class Form:
    """recipe : one kind of steps, their number open; numbers : candidates, nearest to the formula's first"""

    recipe: DirectExchange
    numbers: Sequence[int]

    def at(self, cluster: Cluster, segments: int) -> DirectExchange:
        """The recipe with so many steps."""
        made = replace(self.recipe, segments=segments)
        return replace(made, last=fitted(made, cluster)) if made.steps == OneStarves.name else made

    def tried(self, cluster: Cluster) -> list[DirectExchange]:
        """A recipe of each number."""
        return [self.at(cluster, number) for number in self.numbers]


def direct_candidates(cluster: Cluster, bound: Bound, costs: Costs) -> list[CandidateFamily]:
    """A candidate for each suitable way to find steps and, where NICs differ, each number of lanes; the first `KINDS`
    by the formula above."""
    found = list[tuple[float, int, CandidateFamily]]()
    for lanes in range(1, MAX_LANES + 1 if differ(cluster) else 2):
        laned, own = in_lanes(cluster, lanes), Costs(costs.alpha, lanes * costs.per_chunk)
        for name, finder in FINDERS.items():
            if not finder.applies(laned):
                continue
            form = FORMS[name](laned, bound, own)
            about_s = float(form.recipe.fluid_s(laned, bound.nbytes)) + 2 * float(bound.seconds) / _root(bound, own)
            offer = CandidateFamily(
                DirectExchange.family,
                partial(_made, form, laned, lanes),
                shortlist=partial(_listed, form, laned, lanes),
                by_rate=False,
                deepest=max(form.numbers) if name == NoneStarves.name else None,
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
        last = max(Fraction(0), (1 - idle) / (2 - idle))
        return replace(recipe, last=last.limit_denominator(PARTS))
    return None


def _made(form: Form, laned: Cluster, lanes: int, segments: int) -> DirectExchange:
    return replace(form.at(laned, segments), lanes=lanes)


def _listed(form: Form, laned: Cluster, lanes: int) -> list[DirectExchange]:
    return [replace(recipe, lanes=lanes) for recipe in form.tried(laned)]


def _root(bound: Bound, costs: Costs) -> float:
    """Number of steps whose chunks cost as much as one step lasts."""
    return max(1.0, sqrt(bound.seconds / costs.per_chunk)) if costs.per_chunk else DEFAULT_SEGMENTS


def _near(about: float, least: int, most: int, chunks: float) -> list[int]:
    """Numbers of steps from half to double of `about`, the nearest first, from `least` to `most`: so many that they
    have `TRIED_CHUNKS` in all, at most `TRIES`, at least one. Rounded up: to wait for a step is more than a chunk.
    chunks : of one step, about"""
    tries = max(1, min(TRIES, int(TRIED_CHUNKS / (chunks * about))))
    places = sorted(range(-tries, tries + 1), key=lambda place: (abs(place), -place))
    numbers = dict.fromkeys(max(least, min(most, ceil(about * 4 ** (place / tries)))) for place in places)
    return list(numbers)[:tries]


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
    """The rounds that are needed and one more, as a turn takes part of a round; fewer where so many chunks would cost
    more than waiting."""
    finder = FINDERS[NoneStarves.name]
    used = [tuple(mine) for mine in finder.used(cluster)]
    chunks = min(Fraction(len(ranks) - 1, len(rails)) for ranks, rails in joined_by(used).items())  # in a round
    about = min(float(rounds_needed(finder.shares(cluster))) + 1, _root(bound, costs) / sqrt(chunks))
    most = min(MAX_STEPS, finder.most_steps(cluster))
    recipe = DirectExchange(1, chunk=_part(bound, costs.per_chunk, MAX_CHUNK))
    return Form(recipe, _near(about, 1, most, len(used) * (len(used) - 1)))


def _one(cluster: Cluster, bound: Bound, costs: Costs) -> Form:
    """The starving server has nothing to receive during the first turn of the others: half of that part of a half is
    lost, beside a step and the cost of chunks."""
    finder = FINDERS[OneStarves.name]
    used, root = finder.used(cluster), _root(bound, costs)
    chunks, most = 2 * sum(map(len, used)), min(MAX_STEPS, finder.most_steps(cluster))

    steps = np.arange(2, most + 1)
    growth, turn = 1 + GROWS / np.sqrt(steps), (len(used) - 1) / max(map(len, used))
    longest = growth ** (float(UP) * steps)
    first = (growth**turn - 1) / (longest - 1 + longest * (growth - 1) * (1 - float(UP)) * steps)
    about = float(steps[np.argmin(steps / root**2 + 1 / steps + first / 2)])
    margin, chunk = _part(bound, costs.alpha, Fraction(1, 10)), _part(bound, costs.per_chunk, MOST_LOST)
    grows = 1 + Fraction(round(100 * GROWS / sqrt(about)), 100)
    recipe = DirectExchange(1, OneStarves.name, growth=grows, margin=margin, chunk=chunk)
    return Form(recipe, _near(about, 2, most, chunks))


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
    margin = _part(bound, costs.alpha / 2, Fraction(1, 2)) if quiet or 2 * fewer == full else Fraction(0)
    chunk = _part(bound, costs.per_chunk, MOST_LOST)
    recipe = DirectExchange(1, SeveralStarve.name, growth=growth, growing=growing, margin=margin, chunk=chunk)
    return Form(
        recipe,
        _near(_root(bound, costs) + more, 2, min(MAX_STEPS, finder.most_steps(cluster)), 2 * sum(map(len, used))),
    )


FORMS: dict[str, Callable[[Cluster, Bound, Costs], Form]] = {
    NoneStarves.name: _none,
    OneStarves.name: _one,
    SeveralStarve.name: _several,
}
