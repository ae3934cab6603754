"""The planner's regret on random clusters of unequal servers, at costs that nothing was tuned for.

For each case prints how much slower the plan is than the best of a wide search by hand: every family that applies, at
all depths, direct exchange in every number of lanes, by every way to find steps. Exit status 1 when the plan of one is
more than 2 % slower, or all are more than 0.5 % in the mean.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from uneven_clusters import Uneven, uneven

import optcc
from optcc.errors import InputError
from optcc.planner.search import candidate_families
from optcc.schedule.direct import FINDERS, DirectExchange
from optcc.schedule.nics import MAX_LANES, in_lanes
from optcc.schedule.recipe import Costs, Recipe

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96)
STEPS = (*range(2, 16), *(round(16 * 1.12**k) for k in range(25)))
MOST_STRIPES = 600_000
"""Deeper ones are not tried by hand."""
LIMIT, MEAN_LIMIT = 0.02, 0.005


def by_hand(case: Uneven) -> Iterator[Recipe]:
    """The recipes of a wide search, families in turn, each ever deeper."""
    bound = optcc.lower_bound(case.cluster, case.nbytes)
    for offer in candidate_families(case.cluster, bound, alpha=case.alpha, per_chunk=case.per_chunk):
        if offer.name != DirectExchange.family and not (offer.costly and len(case.cluster.ranks) > 16):
            yield from (offer.make(depth) for depth in DEPTHS)
    for lanes in range(1, MAX_LANES + 1):
        laned, costs = in_lanes(case.cluster, lanes), Costs(case.alpha, lanes * case.per_chunk)
        for finder in FINDERS.values():
            if not finder.applies(laned):
                continue
            form = finder.form(laned, lanes, bound, costs)
            yield from form.tried()
            for steps in STEPS:
                yield form.at(steps)


def seconds(case: Uneven, recipe: Recipe) -> float:
    """Simulated; infinite for what does not fit the cluster or is too deep."""
    try:
        recipe.check(case.cluster)
        schedule = recipe.lower(case.cluster, case.nbytes)
    except InputError:
        return float("inf")
    if len(schedule) * max((len(route.lanes) for route in schedule.routes), default=1) > MOST_STRIPES:
        return float("inf")
    return optcc.simulate(schedule, alpha=case.alpha, per_chunk=case.per_chunk).time_s


def regret(case: Uneven) -> tuple[float, str]:
    """How much slower the plan is than the best by hand, and a line about it."""
    best_s, best = min(((seconds(case, recipe), recipe) for recipe in by_hand(case)), key=lambda one: one[0])
    plan = optcc.plan(case.cluster, case.nbytes, alpha=case.alpha, per_chunk=case.per_chunk)
    schedule = plan.schedule()
    time_s = optcc.simulate(schedule, alpha=case.alpha, per_chunk=case.per_chunk).time_s
    named = [f"{each.family}, {each.segments}" for each in (best, plan.recipe)]
    return time_s / best_s - 1, f"{case.number}: {case}: {100 * (time_s / best_s - 1):+.2f} %, {named[0]} | {named[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--most", type=int, default=32, help="servers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    asked = parser.parse_args()
    cases = [uneven(number, most=asked.most) for number in range(asked.first, asked.first + asked.count)]
    found = []
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        for lost, line in pool.map(regret, cases):
            found.append(max(lost, 0.0))
            print(line, flush=True)
    mean = sum(found) / len(found)
    print(f"largest {100 * max(found):.2f} % (limit {100 * LIMIT:.0f}), mean {100 * mean:.2f} % ({100 * MEAN_LIMIT})")
    return 1 if max(found) > LIMIT or mean > MEAN_LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
