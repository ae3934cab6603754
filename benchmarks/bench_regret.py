"""The planner's regret: its choice against a wide search by hand, on a grid of clusters and on random ones.

By hand: every family of the planner at all depths; on random clusters, of unequal servers and at costs that nothing was
tuned for, direct exchange also in every number of lanes, by every way to find steps. Prints a line for each case. Exit
status 1 when the plan of one is more than 2 % slower, or random ones are more than 0.5 % in the mean.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from random import Random

import optcc
from optcc.errors import InputError
from optcc.planner.search import candidate_families
from optcc.schedule.direct import FINDERS, DirectExchange
from optcc.schedule.nics import MAX_LANES, in_lanes
from optcc.schedule.recipe import Costs, Recipe
from optcc.values.cluster import Cluster, Fabric, Nic
from optcc.values.units import format_seconds, format_size

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96)
STEPS = (*range(2, 64), *range(64, 200, 3))
MOST_STRIPES = 3_000_000
"""Deeper ones are not tried by hand."""
LIMIT, MEAN_LIMIT = 0.02, 0.005


@dataclass(frozen=True)
class Case:
    """`servers` of `nics` NICs of `400 / nics` GB/s; `dead[i]` NICs of server i are dead. With `gpus` a GPU beside
    each NIC is a rank. `pods`: so many servers are one, whose uplink has half of their NICs' rate."""

    servers: int
    dead: tuple[int, ...]
    nbytes: int
    nics: int = 2
    rails: bool = False
    gpus: bool = False
    pods: int = 0

    def __str__(self) -> str:
        pods = f", pods of {self.pods}" if self.pods else ""
        shape = f"{self.nics} NICs{', GPUs as ranks' * self.gpus}{', rails' * self.rails}{pods}"
        return f"{self.servers} servers, {shape}, dead {self.dead}, {format_size(self.nbytes)}"

    @property
    def alpha(self) -> Fraction:
        """Seconds from NIC to NIC."""
        return ALPHA

    @property
    def per_chunk(self) -> Fraction:
        """Seconds."""
        return PER_CHUNK

    @property
    def cluster(self) -> Cluster:
        """With its failures."""
        gpus, rate = self.nics if self.gpus else 1, Fraction(400 * 10**9, self.nics)
        whole = Cluster.uniform(servers=self.servers, nics=self.nics, rate=rate, gpus=gpus, nvlink_rate=450 * 10**9)
        servers = tuple(replace(s, pod=f"pod{i // self.pods}") if self.pods else s for i, s in enumerate(whole.servers))
        fabric = Fabric(rails=self.rails, pod_oversubscription=Fraction(2) if self.pods else None)
        cluster = Cluster(servers, fabric=fabric, gpu_ranks=self.gpus)
        for server, count in enumerate(self.dead):
            for nic in range(count):
                cluster = cluster.degrade(f"server{server}/nic{nic}")
        return cluster


GRID = [
    Case(servers, dead, nbytes)
    for servers in (4, 8, 16, 32, 64)
    for dead in ((), (1,), (1, 1))
    for nbytes in (2**20, 2**26, 2**30)
]
"""Servers of two NICs on one fabric. The tests hold those of up to 16 servers."""
MORE = [
    *(Case(p, dead, n, nics=8) for p in (8, 16) for dead in ((1,), (4,), (1, 1), (4, 4)) for n in (2**24, 2**30)),
    *(Case(servers, (1,) * 4, 2**30, nics=8) for servers in (8, 16, 32)),
    *(Case(8, dead, nbytes, nics=8) for dead in ((3, 3), (4, 4, 4)) for nbytes in (2**24, 2**28, 2**30)),
    *(
        Case(p, dead, n, nics=8, pods=pods)
        for p, pods in ((8, 4), (16, 8), (16, 4))
        for dead in ((), (1,), (4,))
        for n in (2**28, 2**30)
    ),
    *(Case(8, dead, nbytes, rails=True) for dead in ((1,), (1, 1)) for nbytes in (2**26, 2**30)),
    *(Case(8, (1,), nbytes, nics=8, gpus=True) for nbytes in (2**24, 2**30)),
    *(Case(4, (1,), 2**28, nics=8, rails=rails, gpus=True) for rails in (False, True)),
]

RATE = Fraction(50 * 10**9)
COSTS = [tuple(Fraction(ns, 10**9) for ns in pair) for pair in ((5000, 1000), (2000, 200), (10000, 500), (3000, 2000))]
COSTS.append((Fraction(25, 10**6), Fraction(25, 10**6)))
"""(alpha, per chunk) of random clusters; the last are what processes that send from Python pay."""
PARTS = [Fraction(n, d) for n, d in ((0, 1), (0, 1), (0, 1), (1, 4), (1, 3), (37, 100), (1, 2), (2, 3), (4, 5))]
"""What may be left of a NIC; dead is as likely as any three others."""


@dataclass(frozen=True)
class Uneven:
    """A random cluster, the bytes of its AllReduce, and seconds from NIC to NIC and per chunk."""

    number: int
    cluster: Cluster
    nbytes: int
    alpha: Fraction
    per_chunk: Fraction

    def __str__(self) -> str:
        costs = f"{format_seconds(self.alpha)}, {format_seconds(self.per_chunk)}"
        return f"random cluster {self.number}; {format_size(self.nbytes)}; {costs}"


def uneven(number: int, *, least: int = 4, most: int = 32) -> Uneven:
    """The `number`-th case, the same everywhere: `least` to `most` servers, up to half of which differ from others."""
    random = Random(f"uneven {number}")
    count, nics = random.randint(least, most), random.choice([1, 2, 4, 8, 8])
    servers = list(Cluster.uniform(servers=count, nics=nics, rate=RATE).servers)
    kind = random.choice(["failures", "failures", "failures", "other servers", "one way"])
    for i in range(random.choice([1, 1, 2, 3, count // 2])):
        hurt = list(servers[i].nics)
        if kind == "other servers":  # bought in another year
            other = random.choice([Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2)])
            size = random.choice([1, 2, 4, 8])
            hurt = [Nic(f"nic{n}", RATE * other, RATE * other, rail=n) for n in range(size)]
        else:
            for n in range(random.randint(1, max(1, nics - 1))):
                part, back = random.choice(PARTS), random.choice(PARTS)
                if nics == 1:
                    part, back = max(part, Fraction(1, 4)), max(back, Fraction(1, 4))
                both = (part, back if part and back and kind == "one way" else part)
                hurt[n] = replace(hurt[n], out_rate=RATE * both[0], in_rate=RATE * both[1])
        servers[i] = replace(servers[i], nics=tuple(hurt))
    alpha, per_chunk = COSTS[number % len(COSTS)]
    return Uneven(number, Cluster(tuple(servers)), 2 ** random.randint(24, 30), alpha, per_chunk)


def by_hand(case: Case | Uneven) -> list[tuple[float, Recipe]]:
    """(simulated seconds, recipe) of all that is tried, the quickest first."""
    return sorted(((s, r) for row in tried(case) for s, r in times(case, row)), key=lambda one: one[0])


def tried(case: Case | Uneven) -> Iterator[Iterable[Callable[[], Recipe]]]:
    """What makes the recipes, family by family, each ever deeper. For random clusters direct exchange is tried in every
    number of lanes, too, and what takes long to find on few ranks."""
    wide, bound = isinstance(case, Uneven), optcc.lower_bound(case.cluster, case.nbytes)
    for offer in candidate_families(case.cluster, bound, alpha=case.alpha, per_chunk=case.per_chunk):
        if not offer.costly or (wide and len(case.cluster.ranks) <= 16):
            depths = STEPS if offer.name == DirectExchange.family else DEPTHS
            yield [partial(offer.make, depth) for depth in depths if depth <= (offer.deepest or max(depths))]
    for lanes in range(1, MAX_LANES + 1) if wide else ():
        laned, costs = in_lanes(case.cluster, lanes), Costs(case.alpha, lanes * case.per_chunk)
        for finder in (finder for finder in FINDERS.values() if finder.applies(laned)):
            form = finder.form(laned, lanes, bound, costs)
            yield [partial(lambda recipe: recipe, recipe) for recipe in form.tried()]
            yield [partial(form.at, steps) for steps in STEPS]


def times(case: Case | Uneven, row: Iterable[Callable[[], Recipe]]) -> Iterator[tuple[float, Recipe]]:
    """(simulated seconds, recipe) of ever deeper recipes, until there is none or it is too deep."""
    for make in row:
        try:
            recipe = make()
            recipe.check(case.cluster)
            schedule = recipe.lower(case.cluster, case.nbytes)
        except InputError:
            return
        if len(schedule) * max((len(route.lanes) for route in schedule.routes), default=1) > MOST_STRIPES:
            return
        yield optcc.simulate(schedule, alpha=case.alpha, per_chunk=case.per_chunk).time_s, recipe


def regret(case: Case | Uneven) -> tuple[float, str]:
    """How much slower the plan is than the best by hand, and a line about it."""
    best_s, best = by_hand(case)[0]
    plan = optcc.plan(case.cluster, case.nbytes, alpha=case.alpha, per_chunk=case.per_chunk)
    time_s = optcc.simulate(plan.schedule(), alpha=case.alpha, per_chunk=case.per_chunk).time_s
    named = " | ".join(f"{each.family}, {each.segments}" for each in (best, plan.recipe))
    return time_s / best_s - 1, f"{case}: {100 * (time_s / best_s - 1):+.2f} %, {named}"


def regrets(cases: Sequence[Case | Uneven], jobs: int) -> Iterator[tuple[float, str]]:
    """Of each case, by so many processes."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(regret, cases)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--random", type=int, default=60, help="how many random clusters")
    asked.add_argument("--most", type=int, default=32, help="servers of a random cluster")
    asked.add_argument("--only", default="", metavar="TEXT", help="only cases with this text in them")
    asked.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    given = asked.parse_args()
    cases = [*GRID, *MORE, *(uneven(number, most=given.most) for number in range(given.random))]
    cases = [case for case in cases if given.only in str(case)]
    found = []
    for lost, line in regrets(cases, given.jobs):
        found.append(max(lost, 0.0))
        print(line, flush=True)
    drawn = [lost for lost, case in zip(found, cases, strict=True) if isinstance(case, Uneven)]
    mean = sum(drawn) / len(drawn) if drawn else 0.0
    print(f"largest {100 * max(found):.2f} % (limit {100 * LIMIT:.0f}), random clusters in the mean {100 * mean:.2f} %")
    return 1 if max(found) > LIMIT or mean > MEAN_LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
