"""Rivals in channels: correct, a chunk at a time on one NIC, and shown at their best."""

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
from optcc.schedule.baselines import BASELINES, optcc_published, r2cc
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.optcc_paper import OptccPaper
from optcc.schedule.r2cc import R2cc
from optcc.schedule.recipe import Recipe
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.study import rivals
from optcc.study.cells import SweepResult
from optcc.study.evaluation import ALPHA, Case
from optcc.study.page import hops_of
from optcc.study.page import published_form as form_on_the_page
from optcc.values.cluster import Cluster, Fabric
from tests.broken_schedules import with_rows
from tests.test_baselines import one_weak

NAMES = ("balance", "r2cc", "optcc-published")
RATE = Fraction(50 * 10**9)
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
            optcc.verify(with_rows(schedule, [row for row in range(len(schedule)) if row != lost]))


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
def test_r2cc_sends_no_chunk_before_it_is_whole(channels: int | None, depth: int, count: int) -> None:
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
def test_recipes_in_channels_travel(name: str) -> None:
    recipe = rivals.in_channels(name, straggler(4, 1), 2)
    assert type(recipe).read(json.loads(json.dumps(recipe.content()))) == recipe
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
    recipe = rivals.best("optcc-published", cluster, 2**30, **FREE)
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
    case, cluster = Case(16, (dead,), 2**30, "optcc-published", per_chunk=Fraction(0)), straggler(16, dead)
    recipe = rivals.in_stripes(case.scheme, cluster, 192)
    bound = optcc.lower_bound(cluster, case.nbytes)
    time_s = optcc.simulate(recipe.lower(cluster, case.nbytes), alpha=ALPHA, receivers="packets").time_s
    outcome = SweepResult(float(bound.seconds), float(bound.fault_free_s), 0.0, time_s, segments=recipe.segments)
    simulated = time_s / float(bound.fault_free_s) - 1
    assert hops_of(16) == 30
    assert abs(simulated - form_on_the_page(case, {case: outcome}, hops_of(16))) <= 0.02
    # It is the latency that makes the difference.
    assert simulated - form_on_the_page(case, {case: outcome}) > 0.015


def test_the_best_is_no_slower_than_what_was_tried() -> None:
    cluster, costs = straggler(4, 1), {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}

    def time_s(recipe: Recipe) -> float:
        return optcc.simulate(recipe.lower(cluster, 2**28), **costs, receivers="packets").time_s

    for name in NAMES:
        best = time_s(rivals.best(name, cluster, 2**28, **costs))
        every = [time_s(make(name, cluster, k)) for make in (rivals.in_stripes, rivals.in_channels) for k in (1, 4, 16)]
        assert best <= min(every) < max(every)
