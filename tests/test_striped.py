"""Direct exchange between servers of any rates: AllReduce on any cluster, loads and halves of the time as stated."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError, VerifyError
from optcc.schedule.columns import Stage
from optcc.schedule.recipe import Costs
from optcc.schedule.routes import fluid_seconds
from optcc.schedule.striped import StripedExchange, least_seconds
from optcc.theory.ring_shares import hub_split
from optcc.values.cluster import Cluster
from tests.conftest import degraded
from tests.effort import examples

RATE = 50 * 10**9
ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)


def hurt(servers: int, *dead: int, nics: int = 8) -> Cluster:
    """`servers` servers of `nics` NICs; of the i-th one dead[i] are dead."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    for server, count in enumerate(dead):
        for nic in range(count):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


def exchange(cluster: Cluster, segments: int = 2) -> StripedExchange:
    return StripedExchange(segments, *hub_split(cluster))


@examples(200)
@given(
    cluster=degraded(min_ranks=3, max_ranks=8),
    segments=st.integers(1, 5),
    nbytes=st.one_of(st.integers(1, 300), st.integers(1, 2**22)),
)
def test_every_recipe_is_an_allreduce(cluster: Cluster, segments: int, nbytes: int) -> None:
    recipe = exchange(cluster, segments)
    recipe.check(cluster)
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    moved = schedule.length.sum()
    assert moved == 2 * (len(cluster.ranks) - 1) * nbytes


@examples(100)
@given(cluster=degraded(min_ranks=3, max_ranks=12))
def test_loads_reach_the_bound(cluster: Cluster) -> None:
    """What `fluid_s` states is the bound where rates are equal both ways, and what the lowered bytes need."""
    recipe, nbytes = exchange(cluster), 2**40
    assert recipe.fluid_s(cluster, nbytes) == optcc.lower_bound(cluster, nbytes).seconds
    busiest = fluid_seconds(recipe.lower(cluster, nbytes), cluster)
    assert float(recipe.fluid_s(cluster, nbytes) / busiest) == pytest.approx(1, abs=1e-6)


def test_nothing_to_exchange_is_nothing_to_do() -> None:
    recipe, cluster = exchange(hurt(4, 1)), hurt(4, 1)
    schedule = recipe.lower(cluster, 0)
    optcc.verify(schedule)
    assert len(schedule) == 0


def test_moves_are_the_transfers_of_the_schedule() -> None:
    recipe = exchange(hurt(5, 3), segments=4)
    schedule, moves = recipe.lower(hurt(5, 3), 2**20), recipe.moves(2**20)
    for name in ("src", "dst", "offset", "length", "reduce", "stage", "segment"):
        assert np.array_equal(getattr(moves, name), getattr(schedule, name))
    assert (moves.ranks, moves.nbytes, len(moves)) == (5, 2**20, len(schedule))


@pytest.mark.parametrize("dead", [1, 2, 3, 4])
def test_both_halves_have_as_much_to_do(dead: int) -> None:
    """Towards hubs and from hubs, every rank sends as much and receives as much: half its load each."""
    cluster, nbytes = hurt(8, dead), 7 * 2**23
    schedule = exchange(cluster, segments=1).lower(cluster, nbytes)
    for ends in (schedule.src, schedule.dst):
        first = np.bincount(ends[schedule.reduce], schedule.length[schedule.reduce], 8)
        second = np.bincount(ends[~schedule.reduce], schedule.length[~schedule.reduce], 8)
        assert first == pytest.approx(second, rel=1e-4)


def test_without_way_by_the_slow_rank_the_halves_differ() -> None:
    """Negative control of the test above."""
    cluster = hurt(8, 4)
    recipe = replace(exchange(cluster, segments=1), via=((0, Fraction(0)),))
    schedule = recipe.lower(cluster, 7 * 2**23)
    received = np.bincount(schedule.dst[schedule.reduce], schedule.length[schedule.reduce], 8)
    assert received[0] == 0


def test_one_round_by_way_is_joined_to_its_neighbours() -> None:
    """Between full ranks one transfer carries both parts, so that rounds by way of the slow rank cost them no chunk."""
    cluster = hurt(6, 1)
    schedule = exchange(cluster, segments=3).lower(cluster, 2**24)
    between = (schedule.src != 0) & (schedule.dst != 0)
    assert between.sum() == 2 * 3 * 5 * 4
    by_way = np.isin(schedule.stage, [Stage.TO_LEAF, Stage.FROM_LEAF]).sum()
    assert by_way == 2 * 5
    optcc.verify(schedule)


@pytest.mark.parametrize("left", [("23", "23", "012", "1", "012"), ("3", "01", "01"), ("0", "12", "12", "12")])
def test_a_nic_that_the_servers_with_most_have_lost(left: tuple[str, ...]) -> None:
    nics = "0123"
    cluster = Cluster.uniform(servers=len(left), nics=len(nics), rate=RATE)
    for server, alive in enumerate(left):
        for nic in nics:
            cluster = cluster if nic in alive else cluster.degrade(f"server{server}/nic{nic}")
    optcc.verify(exchange(cluster).lower(cluster, 2**20))


def test_a_changed_order_is_caught() -> None:
    schedule = exchange(hurt(4, 1)).lower(hurt(4, 1), 2**16)
    with pytest.raises(VerifyError):
        optcc.verify(schedule.replace(dep_ptr=np.zeros_like(schedule.dep_ptr), dep_idx=schedule.dep_idx[:0]))


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"shares": (Fraction(1),)}, "shares"),
        ({"via": ((0, Fraction(2)),)}, "via"),
        ({"via": ((9, Fraction(1)),)}, "via"),
        ({"segments": 0}, "segments"),
    ],
)
def test_parameters_out_of_range(changed: dict[str, object], where: str) -> None:
    cluster = hurt(4, 1)
    with pytest.raises(InputError, match=where):
        replace(exchange(cluster), **changed).check(cluster)


COSTS = Costs(Fraction(5, 10**6), Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("count", "nics", "dead"), [(5, 2, {0: 1}), (8, 8, {1: 4}), (8, 8, {1: 6, 2: 2}), (8, 8, {1: 4, 2: 4})]
)
def test_none_takes_less_than_what_the_planner_leaves_it_out_by(count: int, nics: int, dead: dict[int, int]) -> None:
    """And with large sizes some hardly take more, so that a limit a twentieth higher would be wrong."""
    cluster, near = Cluster.uniform(servers=count, nics=nics, rate=50 * 10**9), []
    for server, many in dead.items():
        for nic in range(many):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    shares, via = hub_split(cluster)
    for nbytes in (2**14, 2**20, 2**25, 2**30):
        for segments, ways in ((1, 1), (3, 1), (1, 2), (1, 4), (2, 8), (4, 16)):
            recipe = StripedExchange(segments, shares, via, ways)
            time_s = optcc.simulate(recipe.lower(cluster, nbytes), alpha=COSTS.alpha, per_chunk=COSTS.per_chunk).time_s
            least = least_seconds(recipe, cluster, nbytes, COSTS)
            assert time_s >= least
            near.append(time_s / least if least else 2)
    assert min(near) < 1.05


def test_where_every_rank_is_a_hub_nothing_is_known() -> None:
    cluster = Cluster.uniform(servers=5, nics=8, rate=50 * 10**9).degrade("server1/nic0")
    assert least_seconds(StripedExchange(1, *hub_split(cluster)), cluster, 2**30, COSTS) == 0
