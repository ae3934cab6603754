"""Direct exchange: AllReduce on any cluster, loads and halves of the time as stated, and every NIC equally busy."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster
from optcc.errors import InputError, VerifyError
from optcc.schedule.columns import Stage
from optcc.schedule.exchange import Exchange
from optcc.schedule.exchange_clock import swell
from optcc.schedule.routes import fluid_seconds
from optcc.theory.hubs import hub_split
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


def exchange(cluster: Cluster, **parameters: int) -> Exchange:
    return Exchange(parameters.pop("segments", 2), *hub_split(cluster), **parameters)


@st.composite
def unequal(draw: st.DrawFn) -> Cluster:
    """Servers that lost different numbers of NICs, in any places, or parts of some."""
    ranks, nics = draw(st.integers(3, 8)), draw(st.sampled_from([2, 4, 6]))
    cluster = Cluster.uniform(servers=ranks, nics=nics, rate=RATE)
    for server in range(draw(st.integers(0, ranks - 1))):
        for nic in draw(st.sets(st.integers(0, nics - 1), max_size=nics - 1)):
            cluster = cluster.degrade(f"server{server}/nic{nic}", Fraction(draw(st.sampled_from([0, 0, 0, 4])), 8))
    return cluster


counted = {name: st.integers(1, 4) for name in ("segments", "ways", "most", "own", "thin")}
parameters = st.fixed_dictionaries({**counted, "narrow": st.integers(0, 4)})


@examples(200)
@given(
    cluster=degraded(min_ranks=3, max_ranks=8),
    given_=parameters,
    nbytes=st.one_of(st.integers(1, 300), st.integers(1, 2**22)),
)
def test_every_recipe_is_an_allreduce(cluster: Cluster, given_: dict[str, int], nbytes: int) -> None:
    recipe = exchange(cluster, **given_)
    recipe.check(cluster)
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    moved = schedule.length.sum()
    assert moved == 2 * (len(cluster.ranks) - 1) * nbytes
    assert Exchange.read(recipe.content()) == recipe


@examples(100)
@given(cluster=degraded(min_ranks=3, max_ranks=12))
def test_loads_reach_the_bound(cluster: Cluster) -> None:
    """What `fluid_s` states is the bound where rates are equal both ways, and what the lowered bytes need on NICs."""
    assert exchange(cluster).fluid_s(cluster, 2**20) == optcc.lower_bound(cluster, 2**20).seconds


@examples(60)
@given(cluster=unequal(), given_=parameters)
def test_fluid_time_is_that_of_the_busiest_nic(cluster: Cluster, given_: dict[str, int]) -> None:
    """Also where servers lack different NICs, and two meet on those that both have."""
    nbytes, recipe = 2**40, exchange(cluster, **given_)
    busiest = fluid_seconds(recipe.lower(cluster, nbytes), cluster)
    assert float(recipe.fluid_s(cluster, nbytes) / busiest) == pytest.approx(1, abs=1e-6)


def test_totals_of_servers_say_too_little() -> None:
    """Negative control of the test above: every server has time for its bytes, but not every NIC."""
    cluster, nbytes = hurt(4, 3, 1, nics=6), 2**30
    recipe = exchange(cluster)
    pairs = zip(recipe.shares, cluster.ranks, strict=True)
    totals = max((1 + 2 * share) * nbytes / rank.out_rate for share, rank in pairs)
    assert recipe.fluid_s(cluster, nbytes) > totals * Fraction(110, 100)


def test_nothing_to_exchange_is_nothing_to_do() -> None:
    recipe, cluster = exchange(hurt(4, 1)), hurt(4, 1)
    schedule = recipe.lower(cluster, 0)
    optcc.verify(schedule)
    assert len(schedule) == 0


@pytest.mark.parametrize("given_", [{}, {"ways": 3, "most": 4}, {"ways": 4, "narrow": 2, "thin": 2}])
def test_moves_are_the_transfers_of_the_schedule(given_: dict[str, int]) -> None:
    recipe = exchange(hurt(5, 3), segments=4, **given_)
    schedule, moves = recipe.lower(hurt(5, 3), 2**20), recipe.moves(2**20)
    for name in ("src", "dst", "offset", "length", "reduce", "stage", "segment"):
        assert np.array_equal(getattr(moves, name), getattr(schedule, name))
    assert (moves.ranks, moves.nbytes, len(moves)) == (5, 2**20, len(schedule))


@pytest.mark.parametrize(
    ("dead", "above"), [((1,), 0.001), ((3,), 0.001), ((4,), 0.001), ((6,), 0.001), ((1, 2), 0.02)]
)
def test_every_nic_is_equally_busy(dead: tuple[int, ...], above: float) -> None:
    """What one reduced server sends another uses only the NICs that both have: 2 % with two."""
    cluster, nbytes = hurt(8, *dead), 2**26
    recipe = exchange(cluster, segments=3, ways=2)
    schedule, bound = recipe.lower(cluster, nbytes), optcc.lower_bound(cluster, nbytes).seconds
    assert fluid_seconds(schedule, cluster) <= bound * (1 + above)
    assert max(len(route.lanes) for route in schedule.routes) == 8  # by rate it would be up to 15


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


def test_narrow_rounds_take_one_nic() -> None:
    cluster = hurt(6, 4)
    schedule = exchange(cluster, segments=4, ways=4, thin=4, narrow=1).lower(cluster, 2**24)
    optcc.verify(schedule)
    lanes = np.array([len(route.lanes) for route in schedule.routes])[schedule.route]
    assert set(lanes[np.isin(schedule.segment, [0, 3])]) == {1}
    assert min(lanes[np.isin(schedule.segment, [1, 2, 4])]) == 4


@pytest.mark.long
@pytest.mark.parametrize("dead", [(2, 1), (5, 1, 3), (4, 2)])
def test_servers_that_lost_different_numbers_of_nics(dead: tuple[int, ...]) -> None:
    """Where the weakest alone sets the bound the others of them are hubs like full servers, on fewer NICs."""
    cluster = hurt(6, *dead, nics=6)
    schedule = exchange(cluster).lower(cluster, 2**20)
    optcc.verify(schedule)
    made = optcc.plan(cluster, 2**24, alpha=ALPHA, per_chunk=PER_CHUNK)
    optcc.verify(made.schedule())


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


def test_sizes_swell_and_shrink() -> None:
    assert swell(5, 4) == [Fraction(x, 10) for x in (1, 2, 4, 2, 1)]
    assert swell(3, 1) == [Fraction(1, 3)] * 3


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"shares": (Fraction(1),)}, "shares"),
        ({"via": ((0, Fraction(2)),)}, "via"),
        ({"via": ((9, Fraction(1)),)}, "via"),
        ({"ways": 0}, "ways"),
        ({"narrow": -1}, "narrow"),
        ({"segments": 0}, "segments"),
    ],
)
def test_parameters_out_of_range(changed: dict[str, object], where: str) -> None:
    cluster = hurt(4, 1)
    with pytest.raises(InputError, match=where):
        replace(exchange(cluster), **changed).check(cluster)
