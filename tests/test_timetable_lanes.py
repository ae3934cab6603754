"""Timetables of lanes: every NIC at the pace has several, a slow one as many as it can carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster, Fabric
from optcc.errors import InputError
from optcc.ladders import ladders
from optcc.planner import baseline
from optcc.schedule.timetable import Timetable, growing
from optcc.schedule.timetable_lanes import MOST_LANES, Lanes, in_lanes, nics_of
from optcc.schedule.timetable_nics import applies, live_nics, nic_rate
from optcc.schedule.timetable_slots import Slot
from optcc.simulator import simulate
from optcc.theory.hubs import hub_split
from tests.effort import examples
from tests.timetables import RATE, check_allreduce, timetable

COSTS = {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}
HALF = Fraction(1, 2)


def uniform(servers: int, *, rails: bool = True, nics: int = 8) -> Cluster:
    return replace(Cluster.uniform(servers=servers, nics=nics, rate=RATE), fabric=Fabric(rails=rails))


def slowed(cluster: Cluster, nics: int, left: Fraction = HALF, server: int = 1) -> Cluster:
    for i in range(nics):
        cluster = cluster.degrade(f"server{server}/nic{i}", left)
    return cluster


def laned(cluster: Cluster, count: int = 2, segments: int = 1) -> Timetable:
    return replace(timetable(in_lanes(cluster, count), segments), lanes=count)


def test_a_nic_has_as_many_lanes_as_it_can_carry() -> None:
    hit = uniform(4, nics=4)
    for i, left in enumerate(("1/2", "3/4", "1/4")):
        hit = hit.degrade(f"server1/nic{i}", Fraction(left))
    on = in_lanes(hit, 4)
    assert nic_rate(on) == RATE / Fraction(4)
    assert live_nics(on)[1] == {lane: (lane,) for lane in (0, 1, 4, 5, 6, 8, 12, 13, 14, 15)}
    assert live_nics(on)[0] == {lane: (lane,) for lane in range(16)}
    assert nics_of(live_nics(on), 4)[1][6] == (1,)
    assert in_lanes(hit, 1) is hit


def test_rates_that_differ_a_little_have_as_many_lanes() -> None:
    """Lanes are those of the slower ones: another pace would cost a lane."""
    hit = slowed(uniform(4).degrade("server2/nic3", Fraction(99, 100)), 4)
    on = in_lanes(hit, 2)
    assert nic_rate(on) == RATE * Fraction(99, 200)
    assert [len(mine) for mine in live_nics(on)] == [16, 12, 16, 16]


def test_a_server_without_nics_has_no_lanes() -> None:
    hit = slowed(uniform(4), 8, Fraction(0))
    assert not live_nics(in_lanes(hit, 2))[1]
    assert not applies(in_lanes(hit, 2))


def test_where_a_server_has_only_slow_nics_others_have_more_lanes() -> None:
    """Without lanes the others would be half idle."""
    hit = slowed(uniform(4), 8)
    assert nic_rate(hit) == RATE * HALF
    on = in_lanes(hit, 2)
    assert nic_rate(on) == RATE * HALF
    assert [len(mine) for mine in live_nics(on)] == [16, 8, 16, 16]


@examples(40)
@given(st.integers(3, 8), st.integers(1, 4), st.integers(2, MOST_LANES), st.booleans(), st.integers(1, 3), st.data())
def test_the_sum_is_everywhere(
    servers: int, nics: int, count: int, rails: bool, segments: int, data: st.DataObject
) -> None:
    hit = uniform(servers, rails=rails, nics=nics)
    for s in data.draw(st.sets(st.integers(0, servers - 1), min_size=1, max_size=servers - 2)):
        for i in data.draw(st.sets(st.integers(0, nics - 1), min_size=1)):
            left = Fraction(data.draw(st.integers(1, 2 * count - 1)), 2 * count)
            hit = hit.degrade(f"server{s}/nic{i}", max(left, Fraction(1, count)))
    assert applies(in_lanes(hit, count))
    check_allreduce(hit, laned(hit, count, segments), 2**16)


def test_each_lane_carries_as_much() -> None:
    """A NIC at half of the rate half as much as others, but for what it leaves to NICs that nobody is late on."""
    hit = slowed(uniform(8), 1)
    schedule = laned(hit).lower(hit, 2**26)
    sent: Counter[str] = Counter()
    for route, length in zip(schedule.route.tolist(), schedule.length.tolist(), strict=True):
        ((lane,), rank) = schedule.routes[route].lanes, schedule.routes[route].src
        sent[f"{rank}/{schedule.ports[lane.out].name.split('/')[1]}"] += length
    assert 0.93 < 2 * sent["1/nic0"] / sent["1/nic1"] < 0.99
    assert 0.95 < sent["2/nic0"] / sent["2/nic1"] < 0.99
    assert sent["2/nic1"] == pytest.approx(sent["2/nic7"], rel=1e-3)


def over_bound(hit: Cluster) -> float:
    nbytes = 2**30
    schedule = laned(hit).lower(hit, nbytes)
    return simulate(schedule, receivers="packets").time_s / float(optcc.lower_bound(hit, nbytes).seconds)


def test_a_nic_serves_its_lanes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the beginning is lost, and what falls on slow NICs' rails is shared by all. Without either it is more."""
    one, four = slowed(uniform(8), 1), slowed(uniform(16), 4)
    assert over_bound(one) < 1.008
    assert over_bound(four) < 1.0085

    def shared(cls: type[Lanes], cluster: Cluster, count: int, steps: int) -> Lanes:
        return plain(cluster, count, 0)

    def at_once(self: Lanes, slots: Sequence[Slot]) -> list[Slot]:
        return [slot._replace(weight=slot.weight) for slot in slots]

    plain = Lanes.of
    with monkeypatch.context() as broken:
        broken.setattr(Lanes, "of", classmethod(shared))
        assert over_bound(one) > 1.02
        assert over_bound(four) > 1.011
    with monkeypatch.context() as broken:
        broken.setattr(Lanes, "serve", at_once)
        assert over_bound(one) > 1.02
        assert over_bound(four) > 1.015


@pytest.mark.long
@pytest.mark.parametrize("hit", [slowed(slowed(uniform(8, rails=False), 1), 1, server=2), slowed(uniform(16), 4)])
def test_slow_nics_cost_hardly_more_than_they_must(hit: Cluster) -> None:
    """Of the fault-free ring's time: without lanes 1.6 and 5.4 points more."""
    nbytes, whole = 2**30, hit.fault_free
    ring = baseline(optcc.plan(whole, nbytes, **COSTS), "ring", **COSTS)
    plan = optcc.plan(hit, nbytes, **COSTS)
    fault_free_s, time_s = (simulate(p.schedule(), receivers="packets", **COSTS).time_s for p in (ring, plan))
    assert time_s / fault_free_s - float(plan.bound.seconds / ring.bound.seconds) < 0.0095
    assert isinstance(plan.recipe, Timetable)
    assert plan.recipe.lanes == 2
    told, slow = (
        dict(plan.recipe.describe(hit)),
        [f"{s.name}/{n.name} 1" for s in hit.servers for n in s.nics if n.out_rate < RATE],
    )
    assert (told["lanes of a NIC"], told["fewer of slower ones"]) == ("2", ", ".join(slow))
    assert "pace of every NIC" not in told


def test_a_server_of_slow_nics_that_sets_the_bound_alone() -> None:
    """Without lanes its NICs would have to keep a pace that they cannot, and plans were 11 % above the bound."""
    hit, nbytes = slowed(uniform(16), 8), 2**30
    on = in_lanes(hit, 2)
    recipe = replace(growing(on, hub_split(on)[0], Fraction(3, 2), 15), lanes=2)
    check_allreduce(hit, recipe, 2**16)
    schedule, bound_s = recipe.lower(hit, nbytes), float(optcc.lower_bound(hit, nbytes).seconds)
    assert simulate(schedule, receivers="packets", **COSTS).time_s / bound_s < 1.05


def lanes_tried(hit: Cluster) -> set[int]:
    offered = ladders(hit, optcc.lower_bound(hit, 2**28), **COSTS)
    made = (ladder.make(2) for ladder in offered if ladder.name == Timetable.family)
    return {recipe.lanes for recipe in made if isinstance(recipe, Timetable)}


def test_they_are_tried_where_they_save_something() -> None:
    assert lanes_tried(slowed(uniform(1, nics=2), 1, server=0)) == set()  # nothing is sent at all
    assert lanes_tried(uniform(8)) == {1}
    assert lanes_tried(uniform(8).degrade("server1/nic0")) == {1}
    assert lanes_tried(slowed(uniform(8), 1)) == {1, 2}
    assert lanes_tried(slowed(uniform(32), 1)) == {1}  # 1/512 of all that there is
    assert lanes_tried(slowed(uniform(8), 4, Fraction(1, 3))) == {1, 3}
    assert lanes_tried(slowed(uniform(8), 8, Fraction(1, 3))) == {3}
    assert lanes_tried(slowed(uniform(8, rails=False), 4)) == {1}  # two act as one


@pytest.mark.parametrize("lanes", [0, MOST_LANES + 1])
def test_lanes_out_of_range_are_refused(lanes: int) -> None:
    hit = slowed(uniform(4), 1)
    with pytest.raises(InputError, match=f"lanes: expected 1 to 4, got {lanes}|lanes.*1 to 4"):
        replace(laned(hit), lanes=lanes).check(hit)


def test_shares_are_those_of_lanes() -> None:
    """A server with a slow NIC is the hub of less; as a plan without lanes it would not be."""
    hit = slowed(uniform(4), 1)
    recipe = laned(hit)
    assert recipe.shares[1] < recipe.shares[0]
    assert Timetable.read(recipe.content()) == recipe
    assert recipe.fluid_s(hit, 2**30) == pytest.approx(optcc.lower_bound(hit, 2**30).seconds)
