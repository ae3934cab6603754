"""Direct exchange in steps: AllReduce on every cluster that it fits, exactly the bound where steps suit, or near it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.schedule.direct import FINDERS, ROUND, DirectExchange, fitted, hub_shares, rail_parts, steps_of
from optcc.schedule.nics import applies
from optcc.schedule.routes import fluid_seconds
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster, Fabric
from tests.broken_schedules import without_waits
from tests.direct_cases import (
    COSTS,
    EXACTLY,
    check_allreduce,
    direct,
    hurt,
    kinds,
    lacking,
    loss,
    off_rails,
    starving,
)
from tests.effort import examples
from tests.fabrics import pods_of

GIB = 2**30
NONE = {
    "nothing dead": lacking(),
    "one slow server": lacking("", "0"),
    "three dead each": lacking("012", "012"),
    "three dead each, other ones": lacking("012", "567"),
    "half of three": lacking("0123", "0123", "0123"),
    "unlike": lacking("0", "12", "345"),
    "one each of all but two": lacking(*"012345"),
    "small": starving(4, 3, "0", "2"),
    "rails, other ones": starving(8, 8, "01", "67", "3", rails=True),
    "more peers than steps have NICs": starving(16, 2, *["0"] * 9),
    "nearly starving": starving(14, 8, *["01234"] * 7),
}
ONE = {
    "one of eight": lacking("0123"),
    "one of three": starving(3, 4, "012", ""),
    "on rails": starving(6, 4, "02", "", rails=True),
    "beside a slow one": lacking("0123", "0"),
    "beside two": lacking("01234", "0", "67"),
    "beside one that is hardly faster": lacking("0123", "012"),
    "beside another hub of nothing": lacking("01234", "0123"),
}
SEVERAL = {
    "one fabric": starving(8, 8, "0123", "2467"),
    "an odd number of hubs": starving(7, 8, "0123", "0123"),
    "rails": starving(6, 4, "02", "02", rails=True),
    "no NIC in common": starving(4, 2, "0", "1"),
    "more hubs than NICs": starving(12, 2, "0", "0"),
    "a quarter, one other NIC, rails": starving(8, 8, "012345", "123456", rails=True),
    "one NIC of eight": starving(7, 8, "0123456", "1234567"),
    "not alike": starving(8, 8, "0123", "567"),
    "rails, other NICs, half a step behind": starving(6, 8, "0123", "4567", rails=True),
    "three, rails": starving(9, 8, "0123", "2345", "0167", rails=True),
    "four of ten": starving(10, 4, *["01"] * 4),
    "beside some with most, rails": starving(9, 8, "0123", "1234", "5", "6", "67", rails=True),
}
FITTING = {f"{kind}: {name}": (kind, cluster) for kind, clusters in (
    ("none-starves", NONE), ("one-starves", ONE), ("several-starve", SEVERAL)
) for name, cluster in clusters.items()}  # fmt: skip
UNFIT = {
    "two ranks": Cluster.uniform(servers=2, nics=4, rate=1000),
    "no rail in common": starving(4, 4, "01", "23", rails=True),
    "a hub that slow ones cannot reach": starving(8, 4, "123", "123", "0", rails=True),
}


# What it computes


@examples(80)
@given(
    name=st.sampled_from(sorted(FITTING)),
    segments=st.integers(1, 30),
    growth=st.sampled_from([Fraction(1), Fraction(21, 20), Fraction(5, 4)]),
    margin=st.sampled_from([Fraction(0), Fraction(1, 100), Fraction(1, 5)]),
    nbytes=st.integers(0, 2**20),
)
def test_all_steps_compute_allreduce(name: str, segments: int, growth: Fraction, margin: Fraction, nbytes: int) -> None:
    kind, cluster = FITTING[name]
    other: dict[str, Any] = {} if kind == "none-starves" else {"growth": growth, "margin": margin}
    check_allreduce(cluster, direct(cluster, segments, kind, **other), nbytes)


@examples(60)
@given(cluster=hurt(), segments=st.integers(1, 20), data=st.data())
def test_random_clusters_have_it_on_the_rails_that_nics_name(
    cluster: Cluster, segments: int, data: st.DataObject
) -> None:
    """And with a spine, by which a transfer could leave them."""
    servers = []
    for server in cluster.servers:
        nics = [replace(nic, rail=rail) for rail, nic in enumerate(server.nics)]
        servers.append(replace(server, nics=tuple(data.draw(st.permutations(nics)))))
    fabric = Fabric(rails=True, spine=data.draw(st.sampled_from([None, Fraction(2)])))
    railed = replace(cluster, servers=tuple(servers), fabric=fabric, pristine=None)
    for on in (cluster, railed):
        for kind in kinds(on):
            check_allreduce(on, direct(on, segments, kind), 2**16)
    assume(applies(railed))


def test_a_transfer_that_leaves_its_rail_is_noticed() -> None:
    cluster = NONE["rails, other ones"]
    schedule = direct(cluster).lower(cluster, 2**16)
    assert not off_rails(schedule)
    (lane,) = schedule.routes[-1].lanes
    out = schedule.ports[lane.out]
    wrong = next(i for i, port in enumerate(schedule.ports) if port.rank == out.rank and port.rail != out.rail)
    astray = schedule.routes[-1]._replace(lanes=(lane._replace(out=wrong),))
    broken = schedule.replace(routes=(*schedule.routes[:-1], astray))
    assert off_rails(broken) == [(schedule.ports[wrong].name, schedule.ports[lane.into].name)]


@examples(60)
@given(name=st.sampled_from(sorted(FITTING)), seed=st.integers(0, 2**32 - 1))
def test_without_its_dependencies_a_transfer_is_noticed(name: str, seed: int) -> None:
    """Negative control of the verifier's approval: somewhere what a result needs is not waited for."""
    kind, cluster = FITTING[name]
    schedule = direct(cluster, 8, kind).lower(cluster, 2**16)
    waiting = np.flatnonzero(~schedule.reduce & (np.diff(schedule.dep_ptr) > 0))
    with pytest.raises(optcc.VerifyError):
        optcc.verify(without_waits(schedule, np.random.default_rng(seed).choice(waiting, 1)))


# How near the bound


@pytest.mark.parametrize(("name", "rounds"), [
    ("nothing dead", 2), ("one slow server", 3), ("unlike", 12), ("one each of all but two", 2), ("small", 8),
    ("three dead each", 8), ("rails, other ones", 4),
])  # fmt: skip
def test_with_enough_rounds_the_bound_is_reached(name: str, rounds: int) -> None:
    """Without costs, by packets as by stripes; nobody meets, nobody is late. With half as many rounds somebody is."""
    cluster, recipe = NONE[name], DirectExchange(rounds)
    assert abs(loss(cluster, recipe)) < EXACTLY
    bound_s = optcc.lower_bound(cluster, GIB).seconds
    by_packets = simulate(recipe.lower(cluster, GIB), receivers="packets").time_s
    assert by_packets == pytest.approx(float(bound_s), rel=EXACTLY)
    assert float(recipe.fluid_s(cluster, GIB) / bound_s) == pytest.approx(1, abs=1e-9)
    assert loss(cluster, DirectExchange(rounds // 2)) > 1 / 20


def test_one_chunk_earlier_or_later_is_noticed() -> None:
    """Negative control of the one above: one sender takes some of its peers in another order."""
    cluster, nbytes = NONE["one slow server"], 2**28
    schedule = DirectExchange(3).lower(cluster, nbytes)
    bound_s = float(optcc.lower_bound(cluster, nbytes).seconds)
    assert simulate(schedule).time_s < bound_s * (1 + EXACTLY)
    mine = np.flatnonzero((np.diff(schedule.dep_ptr) == 0) & (schedule.src == 3))[:16]
    order = np.arange(len(schedule))
    order[mine] = mine[::-1]
    columns = {name: getattr(schedule, name)[order] for name in ("route", "offset", "length", "reduce", "stage")}
    place = np.argsort(order)
    broken = schedule.replace(**columns, segment=schedule.segment[order], dep_idx=place[schedule.dep_idx])
    assert simulate(broken).time_s > bound_s * (1 + 10 * EXACTLY)


@pytest.mark.parametrize("lost", [("0", "0", "01"), ("", "0"), ("0", "12", "345")])
def test_steps_of_a_rail_are_all_that_its_ranks_need(lost: tuple[str, ...]) -> None:
    """And all NICs of a rank are equally busy with what its pairs have for each other."""
    cluster = replace(lacking(*lost), fabric=Fabric(rails=True))
    live = tuple(tuple(mine) for mine in FINDERS["none-starves"].used(cluster))
    parts = rail_parts(live)
    shares = hub_shares(list(map(len, live)))
    assert shares is not None
    for i, k in [(0, 1), (2, 7), (6, 7)]:
        have = sum(part[i, k] for part in parts.values()) / ROUND
        assert have == pytest.approx(float((shares[i] + shares[k]) / (shares[6] + shares[7])) * (
            sum(part[6, 7] for part in parts.values()) / ROUND), rel=1e-3)  # fmt: skip
    on = [rank for rank, mine in enumerate(live) if 7 in mine]
    needs = parts[7][np.ix_(on, on)]
    steps, lasts = steps_of(needs), np.zeros_like(needs)
    for receivers, last in steps:
        lasts[np.arange(len(on)), receivers] += last
    assert sum(last for _, last in steps) <= ROUND
    assert all(sorted(receivers) == list(range(len(on))) for receivers, _ in steps)
    assert np.abs(needs - lasts).max() < ROUND / 100
    # Negative control: without the first step somebody has less.
    receivers, last = steps[0]
    lasts[np.arange(len(on)), receivers] -= last
    assert np.abs(needs - lasts).max() >= last


@pytest.mark.long
@pytest.mark.parametrize(("cluster", "nbytes", "most"), [
    (lacking("0"), 2**24, 1.17), (lacking("0"), 2**28, 1.011), (lacking("0"), 2**30, 1.003),
    (lacking("012"), 2**28, 1.03), (lacking("0123"), 2**28, 1.045), (lacking("0123"), 2**30, 1.018),
    (lacking("012", "012"), 2**28, 1.025), (lacking("0123", "0123", "0123"), 2**28, 1.075),
    (lacking("0123", "0"), 2**28, 1.05), (lacking("0123", "0123"), 2**28, 1.1),
])  # fmt: skip
def test_planned_ones_are_near_the_bound(cluster: Cluster, nbytes: int, most: float) -> None:
    """5 us and 1 us per chunk, whichever kind of receivers."""
    plan = optcc.plan(cluster, nbytes, **COSTS)
    assert plan.family == DirectExchange.family
    optcc.verify(plan.schedule())
    slower = max(simulate(plan.schedule(), receivers=each, **COSTS).time_s for each in ("stripes", "packets"))
    assert slower <= most * float(plan.bound.seconds)
    if nbytes == 2**24:
        assert optcc.plan(cluster, nbytes, **COSTS) == plan, "made alike each time"


@pytest.mark.parametrize("kind", ["one-starves", "several-starve"])
def test_where_servers_starve_twice_the_steps_lose_less(kind: str) -> None:
    """Without costs: what is lost is what is under way."""
    cluster = {"one-starves": ONE["one of eight"], "several-starve": SEVERAL["one fabric"]}[kind]
    free = {"margin": Fraction(0), "chunk": Fraction(0), "growth": Fraction(21, 20)}
    made = [direct(cluster, steps, kind, **free) for steps in (24, 96)]
    if kind == "one-starves":
        made = [replace(recipe, last=fitted(recipe, cluster)) for recipe in made]
    few, many = (loss(cluster, recipe) for recipe in made)
    assert 0 < many < 0.7 * few < 0.1


@examples(20)
@given(name=st.sampled_from(sorted(FITTING)))
def test_the_fluid_time_is_that_of_the_busiest_nic(name: str) -> None:
    kind, cluster = FITTING[name]
    recipe, nbytes = direct(cluster, 60, kind), 2**34
    told_s = recipe.fluid_s(cluster, nbytes)
    assert told_s >= optcc.lower_bound(cluster, nbytes).seconds
    # Rails that few servers have carry less than their part where pairs have whole chunks.
    assert 0.999 < float(fluid_seconds(recipe.lower(cluster, nbytes), cluster) / told_s) < 1.15


def test_steps_are_the_same_whichever_servers_lack_nics() -> None:
    one, other = (
        simulate(DirectExchange(9).lower(cluster, GIB), **COSTS).time_s
        for cluster in (lacking("0", "01"), lacking("", "0", "", "", "", "", "01"))
    )
    assert one == pytest.approx(other, rel=EXACTLY)  # but for where cuts are rounded


def test_uplinks_take_their_time() -> None:
    """A fifth of what the pod's NICs have: every server sends half of the others its data by them."""
    cluster, recipe = lacking("012", "012"), DirectExchange(9)
    pods = pods_of(cluster, 4, 5)
    told_s = recipe.fluid_s(pods, GIB)
    assert told_s > 2 * recipe.fluid_s(cluster, GIB)
    assert fluid_seconds(recipe.lower(pods, GIB), pods) == pytest.approx(float(told_s), rel=1e-2)


# What it refuses and says


def test_nothing_to_reduce_has_a_plan() -> None:
    for _, cluster in FITTING.values():
        assert len(optcc.plan(cluster, 0, **COSTS).schedule()) == 0


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("kind", ["none-starves", "one-starves", "several-starve"])
def test_other_clusters_are_refused(name: str, kind: str) -> None:
    recipe = direct(NONE["small"], 4, kind)
    with pytest.raises(InputError, match="cluster"):
        recipe.check(UNFIT[name])
    assert not recipe.fits(UNFIT[name])


@pytest.mark.parametrize(("kind", "change", "message"), [
    ("none-starves", {"segments": 0}, "segments"),
    ("none-starves", {"segments": 1025}, "segments"),
    ("none-starves", {"steps": "even"}, "steps"),
    ("none-starves", {"last": Fraction(1, 3)}, "last"),
    ("none-starves", {"lanes": 5}, "lanes"),
    ("one-starves", {"last": Fraction(2, 3)}, "last"),
    ("one-starves", {"growth": Fraction(1, 2)}, "growth"),
    ("one-starves", {"growth": Fraction(4), "segments": 200}, "growth"),
    ("several-starve", {"growing": -1}, "growing"),
    ("several-starve", {"margin": Fraction(1)}, "margin"),
    ("several-starve", {"chunk": Fraction(2)}, "chunk"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(kind: str, change: dict[str, Any], message: str) -> None:
    small = NONE["small"]
    cluster = {"none-starves": small, "one-starves": ONE["one of eight"], "several-starve": SEVERAL["rails"]}[kind]
    recipe = direct(cluster, 8, kind)
    recipe.check(cluster)
    with pytest.raises(InputError, match=message):
        replace(recipe, **change).check(cluster)


def test_what_takes_too_much_memory_is_refused() -> None:
    """A plan file may ask for more than the planner does."""
    many = starving(64, 8, "0", "0")
    DirectExchange(65).check(many)
    with pytest.raises(InputError, match=r"1 to 65"):
        DirectExchange(66).check(many)


def test_what_it_says() -> None:
    told = dict(DirectExchange(9).describe(NONE["three dead each"]))
    assert told["hubs"] == "6 of 15.52 %, 2 of 3.448 %, each exchanges directly with all"
    assert told["rounds"].startswith("9; ")
    told = dict(direct(ONE["one of eight"]).describe(ONE["one of eight"]))
    assert told["adds last"] == "server0, to 45 % of the data"
    told = dict(direct(SEVERAL["rails"]).describe(SEVERAL["rails"]))
    assert told["send and are sent results all the time"] == "server1 and server5"
    assert "the first 2 each 1.1 times" in told["steps"]


@pytest.mark.parametrize(("lost", "rounds"), [(("0", ""), 3), (("0", "1", "2"), 6)])
def test_nics_with_more_chunks_have_fewer_bytes(
    lost: tuple[str, ...], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rail that dead NICs have left has as many chunks for fewer ranks: NICs are busy equally long nevertheless."""
    cluster = starving(16, 8, *lost)
    bound, us = optcc.lower_bound(cluster, GIB // 4), Fraction(1, 10**6)
    recipe = direct(cluster, rounds, chunk=(2 * us / bound.seconds).limit_denominator(2**20))

    def latest() -> float:
        """Busiest NIC's time, over the bound."""
        schedule = recipe.lower(cluster, GIB // 4)
        return simulate(schedule, per_chunk=us, receivers="packets").time_s / float(bound.seconds)

    even = latest()
    monkeypatch.setattr("optcc.schedule.direct.evenly_late", lambda slots, *_: slots)
    assert latest() > even + 0.001
