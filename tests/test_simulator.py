"""Virtual time: never below the bound, within the stated limit, bytes conserved, deadlock seen."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster
from optcc.errors import SimulationError
from optcc.schedule import Schedule
from optcc.simulator import TICKS_PER_S, Simulation, stripes_of
from tests.conftest import GBPS, clusters, degraded


def allowed(segments: int, several: bool) -> float:
    """The stated limit on simulated/bound at alpha = 0 in docs/schedules.md, for one and for two or three slow."""
    return 1 + (6 if several else 1) / segments


@settings(max_examples=100)
@given(cluster=degraded(most=3), segments=st.sampled_from([16, 64]))
def test_between_the_bound_and_the_limit(cluster: Cluster, segments: int) -> None:
    plan = optcc.plan(cluster, 2**30, segments=segments)
    time_s = optcc.simulate(plan.schedule()).time_s
    slow = sum(r.out_rate < 400 * GBPS for r in cluster.ranks)
    assert float(plan.bound.seconds) <= time_s * (1 + 1e-12)
    assert time_s <= float(plan.bound.seconds) * allowed(segments, slow > 1)


@given(cluster=clusters(symmetric=False), nbytes=st.integers(1, 2**32), algorithm=st.sampled_from(["optcc", "ring"]))
def test_never_below_the_bound(cluster: Cluster, nbytes: int, algorithm: str) -> None:
    plan = optcc.plan(cluster, nbytes, segments=4).baseline(algorithm)
    assert optcc.simulate(plan.schedule()).time_s >= float(plan.bound.seconds) * (1 - 1e-12)


def check_conservation(schedule: Schedule, simulation: Simulation) -> None:
    """Every byte of every transfer is in one stripe; no port serves two stripes at once or faster than its rate."""
    stripes = simulation.stripes
    assert np.array_equal(np.bincount(stripes.row, stripes.length, len(schedule)).astype(np.int64), schedule.length)
    for port_of, begin, end, rates in (
        (stripes.out, simulation.stripe_start, simulation.stripe_end, [p.out_rate for p in schedule.ports]),
        (stripes.into, simulation.land_start, simulation.land_end, [p.in_rate for p in schedule.ports]),
    ):
        order = np.lexsort((begin, port_of))
        same = port_of[order][1:] == port_of[order][:-1]
        assert (begin[order][1:] >= end[order][:-1] - 1e-12)[same].all(), "a port did two things at once"
        least = stripes.length / np.array(rates)[port_of]
        assert (end - begin >= least - 1e-12).all(), "a port went faster than its rate"
    assert (simulation.land_end >= simulation.stripe_end - 1e-12).all(), "received before it was sent"
    waits = np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))
    assert (simulation.start[waits] >= simulation.finish[schedule.dep_idx] - 1e-12).all(), "sent before it was there"


@given(cluster=clusters(symmetric=False), nbytes=st.integers(1, 2**30), alpha=st.sampled_from([0, Fraction(5, 10**6)]))
def test_conservation(cluster: Cluster, nbytes: int, alpha: Fraction) -> None:
    schedule = optcc.plan(cluster, nbytes, segments=3).schedule()
    check_conservation(schedule, optcc.simulate(schedule, alpha=alpha))


@pytest.mark.parametrize("fault", ["early", "fast", "lost"])
def test_the_conservation_check_can_fail(fault: str) -> None:
    schedule = optcc.plan(Cluster.uniform(servers=4, nics=2, rate=1000), 8000, segments=2).schedule()
    simulation = optcc.simulate(schedule)
    if fault == "early":
        simulation.start[-1] = 0
    elif fault == "fast":
        simulation.stripe_end[0] = simulation.stripe_start[0]
    else:
        simulation.stripes.length[0] -= 8
    with pytest.raises(AssertionError):
        check_conservation(schedule, simulation)


def test_one_transfer_by_hand() -> None:
    """Two ranks, 1000 bytes each way at 1000 and 500 B/s: half a second per half, in and out at once."""
    cluster = Cluster.uniform(servers=2, rate=1000).degrade("server0/nic0", Fraction(1, 2))
    schedule = optcc.plan(cluster, 1008, segments=1).schedule()
    # Reduce-scatter: 504 bytes at 500 B/s; allgather the same again.
    assert optcc.simulate(schedule).time_s == pytest.approx(2 * 504 / 500, abs=2 / TICKS_PER_S)
    assert optcc.simulate(schedule, alpha=1).time_s == pytest.approx(2 * 504 / 500 + 2, abs=2 / TICKS_PER_S)
    assert optcc.simulate(schedule, per_chunk=1).time_s == pytest.approx(2 * (504 / 500 + 1), abs=2 / TICKS_PER_S)


def test_several_senders_share_a_receiver() -> None:
    """Three leaves at full rate into a ring of one: the receiver's port is the limit."""
    from optcc.schedule.nested import Ordering, lower

    cluster = Cluster.uniform(servers=4, rate=1000)
    schedule = lower(cluster, 8000, {1: Fraction(1)}, order=range(4), segments=1, orderings=(Ordering.LEAF_FIRST,))
    assert optcc.simulate(schedule).time_s == pytest.approx(24 + 24)


def test_a_slow_sender_does_not_block_a_fast_receiver() -> None:
    """One slow and one fast leaf into one rank: the fast one lands while the slow one is still sending."""
    from optcc.schedule.nested import Ordering, lower

    cluster = Cluster.uniform(servers=3, rate=1000).degrade("server0/nic0", Fraction(1, 10))
    schedule = lower(cluster, 1000, {1: Fraction(1)}, order=range(3), segments=1, orderings=(Ordering.LEAF_FIRST,))
    simulation = optcc.simulate(schedule)
    assert simulation.finish[schedule.src == 1].min() == pytest.approx(1)
    assert simulation.finish[schedule.src == 0].min() == pytest.approx(10)


def test_deadlock_is_named() -> None:
    schedule = optcc.plan(Cluster.uniform(servers=3, rate=1000), 300, segments=1).schedule()
    row = int(np.flatnonzero(np.diff(schedule.dep_ptr))[0])
    dep_idx = schedule.dep_idx.copy()
    dep_idx[schedule.dep_ptr[row]] = row
    with pytest.raises(SimulationError, match=f"deadlock: transfer {row}"):
        optcc.simulate(schedule.replace(dep_idx=dep_idx))


def test_times_beyond_the_clock_are_refused() -> None:
    cluster = Cluster.uniform(servers=3, rate=1)
    with pytest.raises(SimulationError, match="check sizes"):
        optcc.simulate(optcc.plan(cluster, 2**50).schedule())


def test_a_run_repeats_to_the_tick() -> None:
    cluster = Cluster.uniform(servers=6, nics=4, rate=GBPS).degrade("server3/nic2", Fraction(1, 3))
    schedule = optcc.plan(cluster, 2**24).schedule()
    assert np.array_equal(optcc.simulate(schedule).finish, optcc.simulate(schedule).finish)


def test_stripes_leave_nothing_out_when_there_is_little() -> None:
    schedule = optcc.plan(Cluster.uniform(servers=3, nics=5, rate=1000), 3, segments=1).schedule()
    assert stripes_of(schedule).length.sum() == schedule.length.sum()
