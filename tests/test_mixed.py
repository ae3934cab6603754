"""Direct exchange by some NICs and in two levels by the others: right, as fast as it says, near the bound in pods."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.ladder import Ladder
from optcc.ladders import ladders
from optcc.ladders_mixed import FULL, mixed_ladders
from optcc.planner import climb
from optcc.schedule import Schedule
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.mixed import MixedExchange, divided
from optcc.schedule.routes import fluid_seconds
from optcc.simulator import simulate
from tests.effort import examples
from tests.fabrics import pods_of
from tests.test_families import in_crowded_pods

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
COSTS = {"alpha": ALPHA, "per_chunk": PER_CHUNK}
RATE = 50 * 10**9


def crowded(servers: int = 8, dead: int = 1, nics: int = 8) -> Cluster:
    """Two pods whose uplinks carry half of their NICs' rates, NICs dead in one server."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return pods_of(cluster, servers // 2)


def of(cluster: Cluster, nbytes: int = 2**28) -> list[Ladder]:
    return mixed_ladders(cluster, optcc.lower_bound(cluster, nbytes), PER_CHUNK)


def offered(cluster: Cluster, segments: int = 8) -> MixedExchange:
    recipe = of(cluster)[0].make(segments)
    assert isinstance(recipe, MixedExchange)
    return recipe


@examples(40)
@given(in_crowded_pods(), st.integers(1, 2**20), st.integers(1, 9))
def test_the_sum_is_everywhere(cluster: Cluster, nbytes: int, segments: int) -> None:
    for ladder in of(cluster)[:1]:
        recipe = ladder.make(segments)
        recipe.check(cluster)
        schedule = recipe.lower(cluster, nbytes)
        optcc.verify(schedule)
        assert recipe.read(recipe.content()) == recipe
        # In one level everybody sends its data and each hub results; in two as much.
        assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes


def test_both_parts_keep_to_their_nics() -> None:
    cluster = crowded()
    recipe = offered(cluster)
    schedule = recipe.lower(cluster, 2**24)
    cut = recipe.parts(cluster, 2**24)[0][2]
    for row, route in enumerate(schedule.route.tolist()):
        mine = schedule.offset[row] >= cut
        for lane in schedule.routes[route].lanes:
            names = (schedule.ports[end].name for end in (lane.out, lane.into))
            assert all((int(name.rpartition("nic")[2]) in recipe.nics) == mine for name in names)


def test_its_fluid_time_is_that_of_its_schedule() -> None:
    """With many rounds, and with data that is cut evenly; where uplinks are the limit as well as where NICs are."""
    for factor in (2, 6):
        cluster = pods_of(replace(crowded(), pristine=None), 4, factor=factor)
        recipe = offered(crowded(), 64)
        recipe = replace(recipe, direct=replace(recipe.direct, segments=32))
        nbytes = 2**30
        told, found = recipe.fluid_s(cluster, nbytes), fluid_seconds(recipe.lower(cluster, nbytes), cluster)
        assert float(found) == pytest.approx(float(told), rel=2e-3)
        assert (recipe.uplink_s(cluster, nbytes) == told) == (factor == 6)


def test_uplinks_keep_their_rate_when_nics_are_divided() -> None:
    cluster = crowded()
    for part in divided(cluster, (6, 7)):
        assert part.uplinks == cluster.uplinks
        assert sum(nic.alive for server in part.servers for nic in server.nics) in (47, 16)


def test_as_many_nics_as_leave_uplinks_room() -> None:
    cluster, nbytes = crowded(), 2**28
    bound = optcc.lower_bound(cluster, nbytes)
    full = [recipe for ladder in of(cluster) if isinstance(recipe := ladder.make(4), MixedExchange)]
    counts = sorted({len(recipe.nics) for recipe in full})
    assert counts == [2, 3]
    assert all(recipe.uplink_s(cluster, nbytes) <= FULL * bound.seconds for recipe in full)
    one = replace(full[0], nics=(7,), part=full[0].part / 2)
    one.check(cluster)
    assert one.uplink_s(cluster, nbytes) > FULL * bound.seconds


@pytest.mark.parametrize(("cluster", "why"), [
    (crowded(dead=4), "a server that starves"),
    (pods_of(crowded(dead=0), 4, factor=1), "room for direct exchange alone"),
    (replace(crowded(), fabric=replace(crowded().fabric, pod_oversubscription=None)), "no pods"),
    (crowded(nics=1, dead=0), "one NIC"),
])  # fmt: skip
def test_where_it_is_not_offered(cluster: Cluster, why: str) -> None:
    here = ladders(cluster, optcc.lower_bound(cluster, 2**28), **COSTS)
    assert MixedExchange.family not in {ladder.name for ladder in here}, why


@pytest.mark.parametrize("broken", [
    {"nics": ()}, {"nics": (7, 6)}, {"nics": (0, 8)}, {"nics": tuple(range(8))}, {"nics": (True, 2)},
    {"part": Fraction(0)}, {"part": Fraction(1)},
])  # fmt: skip
def test_what_does_not_fit_is_refused(broken: dict[str, object]) -> None:
    cluster = crowded()
    recipe = offered(cluster)
    recipe.check(cluster)
    with pytest.raises(InputError, match=next(iter(broken))):
        replace(recipe, **broken).check(cluster)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="groups"):
        replace(recipe, grouped=replace(recipe.grouped, groups=(0, 1) * 4)).check(cluster)


@pytest.mark.long
def test_parts_are_made_to_end_together() -> None:
    """What is left as it was made waits for the part that chunks cost more."""
    cluster, nbytes = crowded(16), 2**28
    cut = {}
    for settled in (True, False):
        recipe = climb(of(cluster)[0], cluster, nbytes, **COSTS)[-1 if settled else 1].recipe
        assert isinstance(recipe, MixedExchange)
        simulation = simulate(recipe.lower(cluster, nbytes), **COSTS)
        first = simulation.schedule.offset < recipe.parts(cluster, nbytes)[0][2]
        ends = [float(simulation.finish[rows].max()) for rows in (first, ~first)]
        cut[settled] = abs(ends[0] - ends[1]) / max(ends)
    assert cut[True] < 0.02 < 0.06 < cut[False]


def test_nothing_is_settled_that_gets_slower() -> None:
    cluster, nbytes = crowded(), 2**26
    ladder = of(cluster, nbytes)[0]
    assert ladder.settle is not None

    def time_of(schedule: Schedule) -> float:
        return float(simulate(schedule, **COSTS).time_s)

    for segments in (1, 4, 16):
        recipe = ladder.make(segments)
        best = ladder.settle(recipe, time_of)
        assert time_of(best.lower(cluster, nbytes)) <= time_of(recipe.lower(cluster, nbytes))


@pytest.mark.long
@pytest.mark.parametrize(("servers", "dead", "most"), [(8, 1, 1.03), (16, 1, 1.04), (16, 2, 1.05), (16, 0, 1.04)])
def test_near_the_bound_where_two_levels_alone_are_not(servers: int, dead: int, most: float) -> None:
    cluster = crowded(servers, dead)
    found = {}
    for family in (None, GroupedExchange.family):
        plan = optcc.plan(cluster, 2**28, family=family, **COSTS)
        found[plan.recipe.family] = simulate(plan.schedule(), **COSTS).time_s / float(plan.bound.seconds)
    assert found[MixedExchange.family] < most
    assert found[MixedExchange.family] < found[GroupedExchange.family] - 0.003


def test_a_nic_of_each_kind_more_or_less() -> None:
    """Servers whose dead NICs are at different places: those that most still have go in two levels."""
    cluster = crowded().degrade("server5/nic7")
    recipe = offered(cluster)
    assert 7 not in recipe.nics
    recipe.check(cluster)
    optcc.verify(recipe.lower(cluster, 2**20))
    assert np.array_equal(recipe.nics, (5, 6))


@pytest.mark.long
@pytest.mark.parametrize("lefts", [("999/1000",), ("0", "999/1000"), ("1/2", "0"), ("1/2",)])
def test_slow_nics_are_planned_for_as_they_are_used(lefts: tuple[str, ...]) -> None:
    """At the pace, or not at all: parts as hubs by their rates would not fit the timetable."""
    cluster = crowded(dead=0)
    for server, left in enumerate(lefts):
        cluster = cluster.degrade(f"server{server + 1}/nic0", Fraction(left))
    plan = optcc.plan(cluster, 2**28, **COSTS)
    assert plan.recipe.family == MixedExchange.family
    optcc.verify(plan.schedule())
    assert simulate(plan.schedule(), **COSTS).time_s < 1.05 * plan.bound.seconds


def test_nothing_to_send_is_no_transfer() -> None:
    """As in a plan file of 0 bytes."""
    recipe = offered(crowded())
    for each in (recipe, recipe.grouped):
        assert len(each.lower(crowded(), 0)) == 0


def by_hand(cluster: Cluster, nbytes: int) -> float:
    """The least time of far more numbers of NICs, rounds and windows than the planner tries."""
    own, times = offered(cluster), []
    groups, shares, finals = own.grouped.groups, own.grouped.shares, own.grouped.finals
    per_nic = own.part / len(own.nics)
    for count in range(5):
        nics = tuple(range(8 - count, 8))
        part = per_nic * count
        for rounds in (1, 2, 4):
            for windows in (2, 3, 4, 6, 8, 12, 16, 24, 32):
                grouped = GroupedExchange(windows, rounds, groups, shares, finals)
                for form in (1, 2, 3) if count else (1,):
                    direct = replace(own.direct, segments=form)
                    recipe = MixedExchange(windows, direct, grouped, nics, part) if count else grouped
                    recipe.check(cluster)
                    times.append(simulate(recipe.lower(cluster, nbytes), **COSTS).time_s)
    return float(min(times))


@pytest.mark.long
@pytest.mark.parametrize("dead", [0, 1])
def test_the_planner_is_hardly_slower_than_by_hand(dead: int) -> None:
    """Two levels alone are."""
    cluster, nbytes = crowded(8, dead), 2**28
    least = by_hand(cluster, nbytes)
    times = {
        family: simulate(optcc.plan(cluster, nbytes, family=family, **COSTS).schedule(), **COSTS).time_s
        for family in (None, GroupedExchange.family)
    }
    assert times[None] <= 1.02 * least < times[GroupedExchange.family]
