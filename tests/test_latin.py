"""Direct exchange by a Latin square: AllReduce on every cluster that it fits, nobody meets, a few chunks are lost."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster, Fabric
from optcc.errors import InputError
from optcc.schedule import Schedule
from optcc.schedule.latin import LatinExchange, latin_pair
from optcc.schedule.timetable_rows import Kind
from optcc.simulator import simulate
from tests.effort import examples
from tests.timetables import ALPHA, PER_CHUNK, RATE, busiest, check_allreduce, loss


def starving(servers: int, nics: int, first: str, second: str, *others: str, rails: bool = False) -> Cluster:
    """`nics` NICs each; those of `first` are dead in server 1, those of `second` in the last server, others in 2, 3,
    ..."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    cluster = replace(cluster, fabric=Fabric(rails=rails))
    for server, lost in ((1, first), (servers - 1, second), *enumerate(others, 2)):
        for nic in lost:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


def latin(cluster: Cluster, windows: int, margin: int = 12) -> LatinExchange:
    pair = latin_pair(cluster)
    assert pair is not None
    return LatinExchange(windows, pair, margin)


FITTING = {
    "one fabric, even": starving(8, 8, "0123", "2467"),
    "one fabric, odd": starving(7, 8, "0123", "2467"),
    "rails, even": starving(6, 4, "02", "02", rails=True),
    "rails, odd": starving(5, 4, "02", "13", rails=True),
    "no NIC in common": starving(4, 2, "0", "1"),
    "less than half": starving(6, 8, "01234", "34567"),
    "less than half, odd": starving(5, 5, "012", "124"),
}


@examples(40)
@given(
    name=st.sampled_from(sorted(FITTING)),
    windows=st.integers(1, 9),
    margin=st.integers(0, 40),
    nbytes=st.integers(0, 2**20),
)
def test_every_square_computes_allreduce(name: str, windows: int, margin: int, nbytes: int) -> None:
    check_allreduce(FITTING[name], latin(FITTING[name], windows, margin), nbytes)


def steps(schedule: Schedule, ports: int) -> np.ndarray:
    """Of each row, how many rows before it leave by, or enter by, the same port; its place in the port's order."""
    lanes = [schedule.routes[route].lanes[0] for route in schedule.route]
    seen = np.zeros(2 * ports, int)
    found = []
    for lane in lanes:
        found.append((int(seen[lane.out]), int(seen[ports + lane.into])))
        seen[lane.out] += 1
        seen[ports + lane.into] += 1
    return np.array(found)


@pytest.mark.parametrize("name", FITTING)
def test_what_leaves_a_port_next_enters_the_other_next(name: str) -> None:
    """Gathering, nobody meets another sender: a NIC's n-th chunk is its receiver's n-th, but for sums."""
    cluster = FITTING[name]
    schedule = latin(cluster, 8).lower(cluster, 2**20)
    slow = latin_pair(cluster) or ()
    hubs_only = schedule.reduce & ~np.isin(schedule.dst, slow)
    places = steps(schedule, len(schedule.ports))[hubs_only]
    # A hub's NIC has sent one chunk less for every sum that it could not send yet: at most one in each window so far.
    late = places[:, 1] - places[:, 0]
    assert late.min() >= 0
    assert late.max() <= 2 + 12 / (len(cluster.ranks) - 2)


@pytest.mark.parametrize("name", FITTING)
def test_every_nic_of_a_slow_server_has_as_much_to_do(name: str) -> None:
    cluster, nbytes = FITTING[name], 2**20
    recipe = latin(cluster, 60)
    schedule = recipe.lower(cluster, nbytes)
    assert busiest(schedule) <= 1.03 * nbytes * RATE / float(cluster.ranks[recipe.slow[0]].out_rate)
    assert recipe.fluid_s(cluster, nbytes) == pytest.approx(optcc.lower_bound(cluster, nbytes).seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "chunks"), [("one fabric, even", 6), ("rails, even", 6), ("no NIC in common", 6), ("less than half", 6)]
)
def test_without_costs_a_few_chunks_are_lost(name: str, chunks: float) -> None:
    """And the shorter they are the less."""
    cluster = FITTING[name]
    recipe = latin(cluster, 64)
    fewer = int(cluster.ranks[recipe.slow[0]].out_rate) // RATE
    length = fewer / (64 * (len(cluster.ranks) - 2))  # of a chunk, of the bound
    assert 0 < loss(cluster, recipe) <= chunks * length
    assert loss(cluster, replace(recipe, segments=128)) <= 0.75 * loss(cluster, recipe)


@pytest.mark.parametrize("hubs", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("margin", [0, 7, 30])
def test_sums_wait_for_the_margin(hubs: int, margin: int) -> None:
    """From a window's last step to the one that sends its sum, and no longer than to the next turn of its hub."""
    ranks, windows = np.arange(2, hubs + 2), 9
    cuts = np.arange(hubs * (windows + 1)).reshape(hubs, -1)
    rows = LatinExchange(windows, (0, 1), margin)._rows(ranks, cuts, 2, 4)
    gathered, sent, back, given = (
        {
            (hub, start): rows.key[(rows.kind == kind) & (rows.hub == hub) & (rows.start == start)]
            for hub, own in zip(ranks.tolist(), cuts.tolist(), strict=True)
            for start in own[:-1]
        }
        for kind in (Kind.RAW, Kind.PARTIAL, Kind.FINAL, Kind.RESULT)
    )
    for window, (one,) in sent.items():
        assert margin <= one - gathered[window].max() < margin + 2 * hubs
        assert len(gathered[window]) == hubs  # from every other hub, and from one slow rank
    for window, (one,) in back.items():
        assert margin <= given[window].min() - one < margin + 2 * hubs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slow": (0, 1)}, "slow"),
        ({"slow": (7, 1)}, "slow"),
        ({"segments": 0}, "segments"),
        ({"margin": -1}, "margin"),
        ({"margin": 10**6}, "margin"),
    ],
)
def test_parameters_that_do_not_fit(change: dict[str, object], message: str) -> None:
    cluster = FITTING["one fabric, even"]
    with pytest.raises(InputError, match=message):
        replace(latin(cluster, 4), **change).check(cluster)  # type: ignore[arg-type]


UNFIT = {
    "one slow server": starving(8, 8, "0123", ""),
    "three slow servers": starving(8, 8, "0123", "0123").degrade("server3/nic0"),
    "not alike": starving(8, 8, "0123", "01234"),
    "more than half": starving(8, 8, "012", "012"),
    "rails, even, other NICs": starving(6, 4, "02", "13", rails=True),
    "rails, odd, the same NICs": starving(5, 4, "02", "02", rails=True),
    "one hub": starving(3, 2, "0", "0"),
    "a slow NIC": starving(8, 8, "0123", "0123").degrade("server3/nic0", Fraction(1, 2)),
}


@pytest.mark.parametrize("name", UNFIT)
def test_clusters_that_do_not_fit(name: str) -> None:
    assert latin_pair(UNFIT[name]) is None
    with pytest.raises(InputError, match="cluster"):
        LatinExchange(4, (1, len(UNFIT[name].ranks) - 1), 8).check(UNFIT[name])


@pytest.mark.parametrize(("servers", "most"), [(6, 0.032), (16, 0.062)])
def test_planned_squares_lose_less_than_direct_exchange(servers: int, most: float) -> None:
    cluster, costs = starving(servers, 8, "0123", "0123"), {"alpha": ALPHA, "per_chunk": PER_CHUNK}
    made = optcc.plan(cluster, 2**30, family="latin-exchange", **costs)
    mine_s, bound_s = simulate(made.schedule(), **costs).time_s, float(made.bound.seconds)
    assert mine_s <= (1 + most) * bound_s
    other = optcc.plan(cluster, 2**30, family="exchange", **costs)
    assert simulate(other.schedule(), **costs).time_s >= 1.01 * mine_s


@pytest.mark.long
def test_a_planner_on_standby_moves_squares_to_whom_they_fit() -> None:
    whole = Cluster.uniform(servers=5, nics=2, rate=RATE)
    with optcc.Planner(whole, 2**28, alpha=ALPHA, per_chunk=PER_CHUNK, background="off") as planner:
        planner.prepare()
        planner.fail("server3/nic1")
        answer = planner.fail("server4/nic1")
        (made,) = answer.plans.values()
        assert answer.basis == "prepared"
        assert made.recipe.family == "latin-exchange"
        assert made.recipe.slow == (3, 4)
        optcc.verify(made.schedule())
