"""Baselines are correct AllReduces on random clusters, and take what their closed forms say in virtual time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError, VerifyError
from optcc.planner.search import packets_s
from optcc.schedule.baselines import BASELINES, OptccPaper, R2cc, nccl_tree, optcc_published, r2cc
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.nccl_tree import NcclTree
from optcc.schedule.recipe import Costs, Recipe
from optcc.schedule.ring import NicSpread, PlainRing, channels
from optcc.study import rivals
from optcc.study.evaluation import ALPHA
from optcc.theory import nested_shares
from optcc.values.cluster import Cluster, Fabric
from tests.broken_schedules import without, without_waits
from tests.conftest import GBPS, clusters
from tests.effort import examples
from tests.rival_ratios import compare

SIZES = st.one_of(st.integers(1, 200), st.integers(1, 2**20), st.just(2**30))
RATE = 50 * 10**9
NBYTES = 2**30


@st.composite
def one_weak(draw: st.DrawFn) -> Cluster:
    """Equal servers, one of which lost part of some NICs, but not all of all."""
    ranks, nics = draw(st.integers(3, 9)), draw(st.integers(1, 4))
    cluster, weak = Cluster.uniform(servers=ranks, nics=nics, rate=400 * GBPS), draw(st.integers(0, ranks - 1))
    left = draw(st.lists(st.integers(0, 8), min_size=nics, max_size=nics).filter(lambda x: 0 < sum(x) < 8 * nics))
    for i, eighths in enumerate(left):
        cluster = cluster.degrade(f"server{weak}/nic{i}", Fraction(eighths, 8))
    return cluster


@st.composite
def with_dead_nics(draw: st.DrawFn) -> Cluster:
    """Equal servers with dead and slow NICs; NIC `kept` lives everywhere, some NIC is dead."""
    ranks, nics = draw(st.integers(1, 9)), draw(st.integers(2, 4))
    cluster, kept = Cluster.uniform(servers=ranks, nics=nics, rate=400 * GBPS), draw(st.integers(0, nics - 1))
    others = st.tuples(st.integers(0, ranks - 1), st.sampled_from([i for i in range(nics) if i != kept]))
    for place, (server, nic) in enumerate(sorted(draw(st.sets(others, min_size=1)))):
        slow = draw(st.integers(0, 7)) if place else 0
        cluster = cluster.degrade(f"server{server}/nic{nic}", Fraction(slow, 8))
    return replace(cluster, fabric=Fabric(rails=draw(st.booleans())))


SUITED = {
    "ring": clusters(min_ranks=1, symmetric=False),
    "balance": clusters(min_ranks=1, symmetric=False),
    "hot-repair": with_dead_nics(),
    "nccl-tree": clusters(min_ranks=1, symmetric=False),
    "r2cc": one_weak(),
    "optcc-published": one_weak(),
}


def made(name: str, cluster: Cluster, segments: int) -> Recipe:
    recipe = BASELINES[name](cluster, segments)
    recipe.check(cluster)
    return recipe


def test_every_baseline_has_its_clusters() -> None:
    assert list(SUITED) == list(BASELINES)


@pytest.mark.parametrize("name", BASELINES)
@examples(60)  # 300 in all
@given(data=st.data(), nbytes=SIZES, segments=st.integers(1, 9))
def test_every_baseline_is_an_allreduce(name: str, data: st.DataObject, nbytes: int, segments: int) -> None:
    cluster = data.draw(SUITED[name])
    recipe = made(name, cluster, segments)
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    ranks = len(cluster.ranks)
    if isinstance(recipe, R2cc):
        # The tail: a ring of the healthy, once to the weak rank, once to every healthy one.
        tail = nbytes - schedule.offset[schedule.stage == Stage.TO_LEAF].min(initial=nbytes)
        assert schedule.length.sum() == 2 * (ranks - 1) * (nbytes - tail) + (2 * (ranks - 2) + 1 + ranks - 1) * tail
    elif ranks > 1:
        assert schedule.length.sum() == 2 * (ranks - 1) * nbytes, "2(P-1) transfers per byte"


@given(data=st.data(), chunks=st.integers(1, 4), each=st.integers(1, 3), nbytes=SIZES)
def test_r2cc_with_any_chunks(data: st.DataObject, chunks: int, each: int, nbytes: int) -> None:
    cluster = data.draw(one_weak())
    recipe = replace(made("r2cc", cluster, chunks * each), chunks=chunks)
    recipe.check(cluster)
    optcc.verify(recipe.lower(cluster, nbytes))


@pytest.mark.parametrize("name", BASELINES)
@given(data=st.data())
def test_every_transfer_is_needed(name: str, data: st.DataObject) -> None:
    """The negative control: without any one of its transfers no baseline passes."""
    cluster = data.draw(SUITED[name].filter(lambda c: len(c.ranks) > 1))
    schedule = made(name, cluster, 3).lower(cluster, 5000)
    lost = data.draw(st.integers(0, len(schedule) - 1))
    with pytest.raises(VerifyError):
        optcc.verify(without(schedule, lost))


@pytest.mark.parametrize("stage", [Stage.TO_LEAF, Stage.FROM_LEAF])
@pytest.mark.parametrize("name", ["r2cc", "optcc-published"])
def test_stages_in_the_wrong_order_are_noticed(name: str, stage: Stage) -> None:
    cluster = Cluster.uniform(servers=5, rate=RATE).degrade("server2/nic0", Fraction(1, 2))
    schedule = made(name, cluster, 4).lower(cluster, 2**16)
    with pytest.raises(VerifyError):
        optcc.verify(without_waits(schedule, np.flatnonzero(schedule.stage == stage)))


def over_fault_free(recipe: Recipe, cluster: Cluster) -> float:
    """Simulated time over the fault-free ring's, 2(P-1)n/(PB)."""
    ranks = len(cluster.ranks)
    rate = cluster.fault_free.ranks[0].out_rate
    return optcc.simulate(recipe.lower(cluster, NBYTES)).time_s * ranks * float(rate) / (2 * (ranks - 1) * NBYTES)


def check_closed_form(simulated: float, expected: float) -> None:
    assert simulated == pytest.approx(expected, rel=0.02)


def one_lost(ranks: int, lost: Fraction) -> Cluster:
    """One server without the share `lost` of its rate: a dead NIC of 1/lost, else a slow NIC."""
    if lost.numerator == 1:
        return Cluster.uniform(servers=ranks, nics=lost.denominator, rate=RATE).degrade("server1/nic1")
    return Cluster.uniform(servers=ranks, rate=RATE).degrade("server1/nic0", 1 - lost)


def balance_form(lost: Fraction) -> float:
    return float(1 / (1 - lost))


def r2cc_form(ranks: int, lost: Fraction, chunks: float) -> float:
    return 1 + float(lost * ranks / (2 * (ranks - 1) * (1 - lost))) * (1 + 1 / chunks)


def test_the_forms_are_the_derived_ones() -> None:
    derived = {scheme: float(value) for scheme, value in compare(8, Fraction(1, 2)).items()}
    assert derived.pop("optimum-lost-share") == pytest.approx(8 / 7)
    forms = balance_form(Fraction(1, 2)), 2, r2cc_form(8, Fraction(1, 2), np.inf)
    assert derived == pytest.approx(dict(zip(("balance", "hot-repair", "r2cc-allreduce"), forms, strict=True)))


@pytest.mark.parametrize("lost", [Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)], ids=str)
@pytest.mark.parametrize("ranks", [3, 8, 16])
def test_closed_forms(ranks: int, lost: Fraction) -> None:
    cluster = one_lost(ranks, lost)
    check_closed_form(over_fault_free(made("balance", cluster, 8), cluster), balance_form(lost))
    # NICs that live are alike here: the ring that deals them equal parts is Balance.
    check_closed_form(over_fault_free(made("ring", cluster, 8), cluster), balance_form(lost))
    if lost.numerator == 1:
        check_closed_form(over_fault_free(made("hot-repair", cluster, 8), cluster), 2)
    one_nic = Cluster.uniform(servers=ranks, rate=RATE).degrade("server1/nic0", 1 - lost)
    check_closed_form(over_fault_free(made("r2cc", one_nic, 128), one_nic), r2cc_form(ranks, lost, np.inf))


@pytest.mark.parametrize("chunks", [1, 2, 4, 16, 64])
@pytest.mark.parametrize(("ranks", "lost"), [(3, Fraction(1, 2)), (8, Fraction(1, 8)), (12, Fraction(3, 4))], ids=str)
def test_r2cc_in_chunks(ranks: int, lost: Fraction, chunks: int) -> None:
    cluster = Cluster.uniform(servers=ranks, rate=RATE).degrade("server1/nic0", 1 - lost)
    recipe = replace(made("r2cc", cluster, 64), chunks=chunks)
    check_closed_form(over_fault_free(recipe, cluster), r2cc_form(ranks, lost, chunks))


def test_the_closed_form_check_can_fail() -> None:
    cluster = one_lost(8, Fraction(1, 2))
    simulated = over_fault_free(replace(made("r2cc", cluster, 64), chunks=4), cluster)
    with pytest.raises(AssertionError):
        check_closed_form(simulated, r2cc_form(8, Fraction(1, 2), 16))


def test_r2cc_sends_no_chunk_before_it_is_whole() -> None:
    """One chunk comes down while the next goes up, and never earlier."""
    cluster = one_lost(6, Fraction(1, 2))
    schedule = replace(made("r2cc", cluster, 32), chunks=8).lower(cluster, NBYTES)
    simulation = optcc.simulate(schedule)
    up, down = schedule.stage == Stage.TO_LEAF, schedule.stage == Stage.FROM_LEAF
    for chunk in range(32, 40):
        mine = schedule.segment == chunk
        assert simulation.start[mine & down].min() >= simulation.finish[mine & up].max() - 1e-12
    assert simulation.start[down].min() < simulation.finish[up].max(), "chunks overlap"


def test_r2cc_begins_stage_2_where_stage_1_is_over() -> None:
    cluster = one_lost(6, Fraction(1, 2))
    schedule = made("r2cc", cluster, 16).lower(cluster, NBYTES)
    simulation = optcc.simulate(schedule)
    up, stage1 = schedule.stage == Stage.TO_LEAF, schedule.segment < 16
    for helper in (0, 2, 3, 4, 5):
        over = simulation.finish[stage1 & (schedule.dst == helper)].max()
        assert simulation.start[up & (schedule.src == helper)].min() >= over - 1e-12


@pytest.mark.parametrize("left", [Fraction(e, 8) for e in (2, 4, 5, 6, 7)], ids=str)
@pytest.mark.parametrize("ranks", [3, 8, 16])
@pytest.mark.parametrize("segments", [1, 6, 32])
def test_optcc_as_published_takes_one_slot_more_than_the_bound(ranks: int, left: Fraction, segments: int) -> None:
    """(k+1)/k of the bound, and less by up to 1/k: what is ready does not wait for its slot."""
    cluster = Cluster.uniform(servers=ranks, rate=RATE).degrade("server1/nic0", left)
    bound = float(optcc.lower_bound(cluster, NBYTES).seconds)
    time_s = optcc.simulate(made("optcc-published", cluster, segments).lower(cluster, NBYTES)).time_s
    slack = 1.5 if segments == 1 else 1  # one segment: its four stages follow one another
    assert bound <= time_s <= bound * (1 + slack / segments) * (1 + 1e-9)


@given(cluster=one_weak())
def test_published_shares_are_the_bounds(cluster: Cluster) -> None:
    recipe = made("optcc-published", cluster, 4)
    assert isinstance(recipe, OptccPaper)
    shares = nested_shares([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks])
    assert shares[len(cluster.ranks) - 1] == recipe.nested
    assert recipe.fluid_s(cluster, 2**40) == pytest.approx(float(optcc.lower_bound(cluster, 2**40).seconds), rel=1e-6)


def test_the_slots_of_the_four_patterns() -> None:
    """The degraded rank sends B D A C and receives A C B D."""
    cluster = Cluster.uniform(servers=4, rate=RATE).degrade("server1/nic0", Fraction(1, 4))
    schedule = made("optcc-published", cluster, 4).lower(cluster, 4 * 3 * 800)
    pattern = np.array(list("ABCD"))[schedule.offset // (3 * 800)]
    assert "".join(dict.fromkeys(pattern[schedule.src == 1])) == "BDAC"
    assert "".join(dict.fromkeys(pattern[schedule.dst == 1])) == "ACBD"


def test_stages_stand_in_their_slots() -> None:
    cluster = Cluster.uniform(servers=5, rate=RATE).degrade("server1/nic0", Fraction(1, 4))
    schedule = made("optcc-published", cluster, 4).lower(cluster, 4 * 4 * 800)
    pattern = np.array(list("ABCD"))[schedule.offset // (4 * 800)]
    slots = ["A1 B3", "A2 B1 C1 D3", "A3 B4 C2 D1", "A4 B2 C3 D4", "C4 D2"]
    names = [f"{p}{s}" for p, s in zip(pattern, schedule.stage, strict=True)]
    order = [slot for name in names for slot, inside in enumerate(slots) if name in inside]
    assert order == sorted(order)
    assert len(order) == len(schedule)


@given(cluster=clusters(symmetric=False))
def test_the_ring_loads_live_nics_alike(cluster: Cluster) -> None:
    schedule = made("ring", cluster, 1).lower(cluster, 2**20)
    for route in schedule.routes:
        for rank, side, alive in ((route.src, "out", "out_rate"), (route.dst, "into", "in_rate")):
            carried: dict[int, Fraction] = {}
            for lane in route.lanes:
                carried[getattr(lane, side)] = carried.get(getattr(lane, side), Fraction(0)) + lane.share
            live = sum(getattr(nic, alive) > 0 for nic in cluster.ranks[rank].nics)
            assert list(carried.values()) == [Fraction(1, live)] * live


def test_a_slow_nic_paces_the_ring_but_not_balance() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=RATE).degrade("server1/nic0", Fraction(1, 2))
    check_closed_form(over_fault_free(made("ring", cluster, 32), cluster), 2)
    check_closed_form(over_fault_free(made("balance", cluster, 32), cluster), 4 / 3)


@pytest.mark.parametrize("fabric", [Fabric(), Fabric(rails=True)], ids=["flat", "rails"])
def test_hot_repair_moves_the_channel_at_both_ends(fabric: Fabric) -> None:
    cluster = replace(Cluster.uniform(servers=3, nics=4, rate=RATE).degrade("server1/nic2"), fabric=fabric)
    schedule = made("hot-repair", cluster, 1).lower(cluster, 2**20)
    for route in schedule.routes:
        lanes = {
            (schedule.ports[lane.out].name[-1], schedule.ports[lane.into].name[-1]): lane.share for lane in route.lanes
        }
        if 1 in (route.src, route.dst):
            quarter = Fraction(1, 4)
            assert lanes == {("0", "0"): quarter, ("1", "1"): quarter, ("3", "3"): 2 * quarter}
        else:
            assert set(lanes) == {("0", "0"), ("1", "1"), ("2", "2"), ("3", "3")}


def test_hot_repair_keeps_the_share_of_a_slow_nic() -> None:
    cluster = Cluster.uniform(servers=4, nics=4, rate=RATE).degrade("server1/nic0")
    cluster = cluster.degrade("server2/nic3", Fraction(1, 4))
    check_closed_form(over_fault_free(made("hot-repair", cluster, 32), cluster), 4)


@pytest.mark.parametrize(
    ("dead", "nics"),
    [
        (set(), [0, 1, 2, 3, 4, 5, 6]),
        ({2}, [0, 1, 3, 3, 4, 5, 6]),  # its pair
        ({3}, [0, 1, 2, 2, 4, 5, 6]),
        ({6}, [0, 1, 2, 3, 4, 5, 0]),  # an odd one has no pair
        ({0, 1}, [2, 3, 2, 3, 4, 5, 6]),  # those that carry fewest
        ({0, 1, 2, 3}, [4, 5, 6, 4, 4, 5, 6]),
        ({0, 1, 2}, [4, 5, 3, 3, 4, 5, 6]),  # pairs before others
        ({0, 1, 2, 3, 4, 5, 6}, None),
    ],
)
def test_which_nics_carry_the_channels(dead: set[int], nics: list[int] | None) -> None:
    assert channels(7, lambda i: i not in dead) == nics


FAULT_FREE = Cluster.uniform(servers=4, nics=2, rate=RATE)


@pytest.mark.parametrize(
    ("name", "cluster", "says"),
    [
        ("hot-repair", FAULT_FREE, "nothing to repair"),
        ("hot-repair", FAULT_FREE.degrade("server0/nic0").degrade("server1/nic1"), "no backup NIC"),
        ("hot-repair", FAULT_FREE.degrade("server0/nic0").degrade("server0/nic1"), "no backup NIC"),
        ("hot-repair", Cluster.uniform(servers=4, rate=RATE).degrade("server0/nic0"), "no backup NIC"),
        ("r2cc", FAULT_FREE, "one degraded server only"),
        ("r2cc", FAULT_FREE.degrade("server0/nic0").degrade("server1/nic0"), "one degraded server only"),
        ("r2cc", Cluster.uniform(servers=2, nics=2, rate=RATE).degrade("server0/nic0"), "one degraded server only"),
        ("r2cc", FAULT_FREE.degrade("server0/nic0").degrade("server0/nic1"), "one degraded server only"),
        ("optcc-published", FAULT_FREE, "one degraded server only"),
        ("optcc-published", FAULT_FREE.degrade("server0/nic0").degrade("server3/nic1"), "one degraded server only"),
    ],
)
def test_where_a_scheme_does_not_apply(name: str, cluster: Cluster, says: str) -> None:
    with pytest.raises(InputError, match=says):
        made(name, cluster, 4)


def test_hot_repair_needs_equally_many_nics() -> None:
    first, *others = FAULT_FREE.degrade("server0/nic0").servers
    cluster = Cluster((first, *others[:-1], replace(others[-1], nics=others[-1].nics[:1])))
    with pytest.raises(InputError, match="no channels"):
        made("hot-repair", cluster, 4)


GOOD: list[Recipe] = [
    PlainRing(4),
    NcclTree(4, (1, 0, 3, 2)),
    R2cc(8, 4, 1, Fraction(1, 2)),
    OptccPaper(4, 1, Fraction(1, 2)),
]


@pytest.mark.parametrize(
    "recipe",
    [
        PlainRing(0),
        PlainRing(True),
        NcclTree(0, (0, 1, 2, 3)),
        NcclTree(4, (0, 1, 2)),
        NcclTree(4, (0, 1, 2, 2)),
        NcclTree(4, (0, 1, 2, 3), 0),
        R2cc(8, 3, 1, Fraction(1, 2)),
        R2cc(8, 0, 1, Fraction(1, 2)),
        R2cc(8, 4, 4, Fraction(1, 2)),
        R2cc(8, 4, True, Fraction(1, 2)),
        R2cc(8, 4, 1, Fraction(1)),
        R2cc(0, 4, 1, Fraction(1, 2)),
        OptccPaper(0, 1, Fraction(1, 2)),
        OptccPaper(4, -1, Fraction(1, 2)),
        OptccPaper(4, 1, Fraction(0)),
        OptccPaper(4, 1, Fraction(3, 2)),
    ],
)
def test_parameters_out_of_range(recipe: Recipe) -> None:
    with pytest.raises(InputError, match="does not fit its cluster"):
        recipe.check(FAULT_FREE)


@pytest.mark.parametrize("recipe", GOOD, ids=lambda recipe: recipe.family)
def test_parameters_in_range(recipe: Recipe) -> None:
    recipe.check(FAULT_FREE)
    assert all(label and text for label, text in recipe.describe(FAULT_FREE))


def test_spreads_tell_rings_apart() -> None:
    assert len({json.dumps(PlainRing(4, spread).content()) for spread in NicSpread}) == len(NicSpread)


# Rivals in channels: correct, a chunk at a time on one NIC, and shown at their best.


NAMES = ("balance", "r2cc", "optcc-published", "nccl-tree")
FREE = {"alpha": Fraction(0), "per_chunk": Fraction(0)}


def straggler(servers: int, dead: int, nics: int = 8) -> Cluster:
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return cluster


def chunks(schedule: Schedule) -> Counter[tuple[str, int]]:
    """How many chunks each port sends and receives."""
    found: Counter[tuple[str, int]] = Counter()
    for route in schedule.route:
        for lane in schedule.routes[route].lanes:
            found[("out", lane.out)] += 1
            found[("in", lane.into)] += 1
    return found


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), depth=st.integers(1, 3), nbytes=st.integers(1, 2**16))
def test_channels_sum_every_byte_once(name: str, data: st.DataObject, depth: int, nbytes: int) -> None:
    cluster = data.draw(one_weak())
    try:
        recipe = rivals.in_channels(name, cluster, depth)
        recipe.check(cluster)
    except InputError:  # rails, or a NIC that works one way only
        return
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert all(len(schedule.routes[route].lanes) == 1 for route in schedule.route)
    if len(schedule):
        lost = data.draw(st.integers(0, len(schedule) - 1))
        with pytest.raises(VerifyError):
            optcc.verify(without(schedule, lost))


def test_channels_cost_fewer_chunks() -> None:
    """At the worst port, with one NIC of 8 dead: striped, a NIC takes part in up to three chunks of every transfer."""
    cluster = straggler(8, 1)
    striped = max(chunks(optcc_published(cluster, 64).lower(cluster, 2**30)).values())
    single = replace(optcc_published(cluster, 64), channels=8)
    assert striped == 2688
    assert max(chunks(single.lower(cluster, 2**30)).values()) < striped / 8


@pytest.mark.parametrize("dead", [1, 3, 4])
@pytest.mark.parametrize("name", ["r2cc", "optcc-published"])
def test_a_server_deals_its_sections_to_its_nics_alike(name: str, dead: int) -> None:
    cluster = straggler(5, dead)
    schedule = rivals.in_channels(name, cluster, 4).lower(cluster, 2**26)
    sent = np.bincount(
        [schedule.routes[route].lanes[0].out for route in schedule.route], schedule.length, len(schedule.ports)
    )
    for server in cluster.servers:
        live = [nic for nic in server.nics if nic.alive]
        mine = [sent[i] for i, port in enumerate(schedule.ports) if port.name.startswith(server.name + "/")]
        used = [nbytes for nbytes in mine if nbytes]
        assert len(used) == len(live)
        assert max(used) <= 1.1 * min(used)


def test_a_slow_nic_gets_fewer_sections() -> None:
    cluster = Cluster.uniform(servers=5, nics=2, rate=RATE).degrade("server1/nic0", Fraction(1, 2))
    schedule = rivals.in_channels("optcc-published", cluster, 8).lower(cluster, 2**26)
    names = [schedule.ports[schedule.routes[route].lanes[0].out].name for route in schedule.route]
    sent = {name: sum(n for n, at in zip(schedule.length, names, strict=True) if at == name) for name in set(names)}
    assert sent["server1/nic1"] == pytest.approx(2 * sent["server1/nic0"], rel=0.1)


def test_the_ring_in_channels_keeps_the_pace_of_what_is_left() -> None:
    """As many channels as live NICs, a slow one with less data: 1/(1-X) of the fault-free ring."""
    cluster = straggler(4, 1, nics=4).degrade("server1/nic3", Fraction(1, 2))
    time_s = optcc.simulate(PlainRing(24, NicSpread.CHANNELS).lower(cluster, 2**30)).time_s
    assert time_s == pytest.approx(2 * 3 / 4 * 2**30 / (2.5 * 50e9), rel=0.01)
    assert time_s != pytest.approx(2 * 3 / 4 * 2**30 / (3 * 50e9), rel=0.01)


@pytest.mark.parametrize("channels", [None, 4])
@pytest.mark.parametrize(("depth", "count"), [(4, 2), (4, 4), (2, 8), (1, 3)])
def test_no_chunk_of_r2cc_goes_before_it_is_whole(channels: int | None, depth: int, count: int) -> None:
    """Chunks of stage 2 may be parts of the rings' segments, and each is whole before any of it comes down."""
    cluster = straggler(6, 2, nics=4)
    recipe = replace(r2cc(cluster, depth * (channels or 1)), chunks=count, channels=channels)
    recipe.check(cluster)
    schedule = recipe.lower(cluster, 2**24)
    optcc.verify(schedule)
    simulation = optcc.simulate(schedule)
    first = recipe.segments
    assert set(schedule.segment) == set(range(first + count))
    for chunk in range(first, first + count):
        mine = schedule.segment == chunk
        up, down = schedule.stage == Stage.TO_LEAF, schedule.stage == Stage.FROM_LEAF
        assert simulation.start[mine & down].min() >= simulation.finish[mine & up].max() - 1e-12


def test_chunks_that_do_not_fit_the_rings_are_refused() -> None:
    cluster = straggler(4, 1)
    bad: list[Recipe] = [
        R2cc(4, 6, 1, Fraction(1, 8)),
        R2cc(12, 4, 1, Fraction(1, 8), 8),
        R2cc(16, 3, 1, Fraction(1, 8), 8),
        OptccPaper(8, 1, Fraction(1, 2), 0),
        OptccPaper(8, 1, Fraction(1, 2), True),
    ]
    for recipe in bad:
        with pytest.raises(InputError, match="does not fit its cluster"):
            recipe.check(cluster)
    R2cc(16, 8, 1, Fraction(1, 8), 8).check(cluster)


@pytest.mark.parametrize("name", NAMES)
def test_no_channels_on_rails_or_between_gpus(name: str) -> None:
    flat = straggler(4, 1)
    for cluster in (replace(flat, fabric=Fabric(rails=True)), replace(flat, gpu_ranks=True)):
        with pytest.raises(InputError, match="no channels here"):
            rivals.in_channels(name, cluster, 2).check(cluster)
    rivals.in_channels(name, flat, 2).check(flat)


@pytest.mark.parametrize("name", NAMES)
def test_recipes_in_channels_say_so(name: str) -> None:
    recipe = rivals.in_channels(name, straggler(4, 1), 2)
    striped = BASELINES[name](straggler(4, 1), 2)
    assert "channels" not in striped.content()
    assert (rivals.way_of(recipe), rivals.way_of(striped)) == ("channels", "stripes")


def published_form(bound: optcc.Bound, recipe: Any, off: float = 1) -> float:
    """(k+1)/k of the bound, over the fault-free bound, less 1; k on each NIC."""
    k = off * recipe.segments / (recipe.channels or 1)
    return (1 + 1 / k) * float(bound.seconds / bound.fault_free_s) - 1


@pytest.mark.long
@pytest.mark.parametrize("dead", [1, 2, 3, 4, 6])
def test_optcc_as_published_is_near_its_closed_form_where_nothing_costs(dead: int) -> None:
    cluster = straggler(8, dead)
    share = optcc_published(cluster, 1).nested  # the form is of this reading
    found = rivals.best("optcc-published", cluster, 2**30, **FREE)
    every = [way.recipe for way in found if isinstance(way.recipe, OptccPaper)]
    recipe = next(each for each in every if each.nested == share)
    bound = optcc.lower_bound(cluster, 2**30)

    def overhead(per_chunk: Fraction) -> float:
        schedule = recipe.lower(cluster, 2**30)
        return optcc.simulate(schedule, per_chunk=per_chunk).time_s / float(bound.fault_free_s) - 1

    assert overhead(Fraction(0)) == pytest.approx(published_form(bound, recipe), abs=0.02)
    # The comparison can fail: for a chunk that costs something, and for another k.
    assert overhead(Fraction(1, 10**6)) != pytest.approx(published_form(bound, recipe), abs=0.02)
    assert overhead(Fraction(0)) != pytest.approx(published_form(bound, recipe, 0.02), abs=0.02)


@pytest.mark.parametrize("dead", [1, pytest.param(4, marks=pytest.mark.long)])
def test_optcc_as_published_with_latency_is_near_its_closed_form_and_a_rings_latency(dead: int) -> None:
    cluster = straggler(16, dead)
    recipe = rivals.in_stripes("optcc-published", cluster, 192)
    bound = optcc.lower_bound(cluster, 2**30)
    time_s = optcc.simulate(recipe.lower(cluster, 2**30), alpha=ALPHA, receivers="packets").time_s
    simulated, form = time_s / float(bound.fault_free_s) - 1, published_form(bound, recipe)
    latency = 30 * float(ALPHA / bound.fault_free_s)  # of 2(P-1) hops
    assert abs(simulated - form - latency) <= 0.02
    # It is the latency that makes the difference.
    assert simulated - form > 0.015


def test_the_best_is_no_slower_than_what_was_tried() -> None:
    cluster, costs = straggler(4, 1), {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}

    def time_s(recipe: Recipe) -> float:
        return optcc.simulate(recipe.lower(cluster, 2**28), **costs, receivers="packets").time_s

    for name in NAMES:
        found = rivals.best(name, cluster, 2**28, **costs)
        best = time_s(found[0].recipe)
        assert [time_s(way.recipe) for way in found] == sorted(way.time_s for way in found)
        every = [time_s(make(name, cluster, k)) for make in (rivals.in_stripes, rivals.in_channels) for k in (1, 4, 16)]
        assert best <= min(every) < max(every)


@pytest.mark.parametrize("name", ["r2cc", "optcc-published"])
def test_the_best_with_jitter_is_chosen_with_it(name: str) -> None:
    """No slower than the best without jitter, nor than its neighbours."""
    cluster, costs = straggler(4, 1), Costs(Fraction(5, 10**6), Fraction(1, 10**6), 0.1)
    ways = rivals.best(name, cluster, 2**28, alpha=costs.alpha, per_chunk=costs.per_chunk)

    def time_s(recipe: Recipe) -> float:
        return packets_s(recipe.lower(cluster, 2**28), costs)

    chosen = time_s(rivals.best_with_jitter(name, cluster, 2**28, ways, costs))
    near = [rivals.DEPTHS[way.place + step] for way in ways[:1] for step in (-1, 1)]
    every = [time_s(way.recipe) for way in ways] + [time_s(ways[0].make(name, cluster, depth)) for depth in near]
    assert chosen <= min(every) < max(every)


def test_both_readings_of_optcc_as_published_are_tried() -> None:
    """Where less than half is lost, the four patterns alone are another schedule; from there on they are the same."""
    name, cluster = "optcc-published", straggler(8, 1)
    ways = [rivals.way_of(make(name, cluster, 2)) for make in rivals.ways_of(name, cluster)]
    assert ways == ["stripes", "channels", "stripes, plain patterns", "channels, plain patterns"]
    assert len(rivals.ways_of(name, straggler(8, 4))) == 2


def test_r2cc_is_searched_wider() -> None:
    cluster, costs = straggler(4, 1), {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}
    recipe = rivals.in_stripes("r2cc", cluster, 4)
    tried = list(rivals.others(recipe, cluster))
    assert all(isinstance(each, R2cc) and each != recipe for each in tried)
    assert {each.chunks for each in tried if isinstance(each, R2cc)} == {4, 8, 16, 32, 64}
    assert len({each.tail for each in tried if isinstance(each, R2cc)}) == 4
    found = rivals.best("r2cc", cluster, 2**28, **costs)
    assert {rivals.way_of(each.recipe) for each in found} == {"stripes", "channels"}


# NCCL's Tree: its trees (tests/test_rank_advice.py), its loads, and where the slow server stands.


def test_the_tree_loads_the_slow_server_once_where_it_carries_least() -> None:
    """Half of a server's NICs dead: first in rank order it sends the data once, inside the trees twice."""
    cluster = Cluster.uniform(servers=8, nics=2, rate=RATE).degrade("server3/nic0")
    best, inside = nccl_tree(cluster, 64), NcclTree(64, tuple(range(8)))
    assert best.order[0] == 3
    assert best.fluid_s(cluster, 2**26) == Fraction(2**26) / RATE
    assert inside.fluid_s(cluster, 2**26) == 2 * best.fluid_s(cluster, 2**26)
    for recipe in (best, inside):
        time_s = optcc.simulate(recipe.lower(cluster, 2**26)).time_s
        assert 1 < time_s / float(recipe.fluid_s(cluster, 2**26)) < 1.2
