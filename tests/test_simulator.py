"""Virtual time: never below the bound, within the stated limit, bytes conserved, deadlock seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError, SimulationError
from optcc.schedule import Lane, Link, Port, Route, Schedule
from optcc.schedule.columns import stripes_of
from optcc.simulation.simulator import TICKS_PER_S, Receivers, _jittered, usage
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.conftest import GBPS, clusters, degraded
from tests.conservation import check_conservation, check_shared
from tests.effort import examples
from tests.fabrics import fabrics, gpu_cluster, pods_of, ring


def allowed(segments: int, several: bool) -> float:
    """The stated limit on simulated/bound at alpha = 0 in docs/schedules.md, for one and for two or three slow."""
    return 1 + (2 if several else 1) / segments


@examples(100)
@given(cluster=degraded(most=3), segments=st.sampled_from([16, 64]))
def test_between_the_bound_and_the_limit(cluster: Cluster, segments: int) -> None:
    plan = optcc.plan(cluster, 2**30, segments=segments)
    time_s = optcc.simulate(plan.schedule()).time_s
    slow = sum(r.out_rate < 400 * GBPS for r in cluster.ranks)
    assert float(plan.bound.seconds) <= time_s * (1 + 1e-12)
    assert time_s <= float(plan.bound.seconds) * allowed(segments, slow > 1)


CHECKS = {"stripes": check_conservation, "packets": check_shared}
"""By kind of receivers."""


@pytest.mark.parametrize("receivers", CHECKS)
@examples(140)
@given(
    cluster=clusters(symmetric=False),
    nbytes=st.integers(1, 2**32),
    algorithm=st.sampled_from(["optcc", "ring"]),
    alpha=st.sampled_from([0, Fraction(5, 10**6)]),
)
def test_never_below_the_bound(
    receivers: Receivers, cluster: Cluster, nbytes: int, algorithm: str, alpha: Fraction
) -> None:
    plan = optcc.plan(cluster, nbytes, segments=4).baseline(algorithm)
    simulation = optcc.simulate(plan.schedule(), alpha=alpha, receivers=receivers)
    assert simulation.time_s >= float(plan.bound.seconds) * (1 - 1e-12)
    CHECKS[receivers](simulation.schedule, simulation)


def test_jitter_is_by_chance_and_by_the_seed() -> None:
    schedule = optcc.plan(Cluster.uniform(servers=6, nics=2, rate=GBPS).degrade("server0/nic0"), 2**26).schedule()

    def time_s(jitter: float, seed: int = 0) -> float:
        return optcc.simulate(schedule, jitter=jitter, seed=seed).time_s

    plain = optcc.simulate(schedule).time_s
    assert time_s(0.0) == time_s(0.0, seed=7) == plain
    assert time_s(0.1) == time_s(0.1)
    assert len({time_s(0.1, seed) for seed in range(5)}) == 5
    means = [sum(time_s(jitter, seed) for seed in range(5)) / 5 for jitter in (0.03, 0.1, 0.3)]
    assert plain < means[0] < means[1] < means[2] < 2 * plain
    for jitter in (-0.1, 1.5, float("nan")):
        with pytest.raises(InputError, match="jitter out of range"):
            time_s(jitter)


def test_jitter_is_the_spread_of_a_factor_of_mean_one() -> None:
    """One long transfer takes the mean of its stripes' factors."""
    lengths = np.full(40_000, 10**6)
    factors = _jittered(lengths, 0.2, 3) / lengths
    assert factors.mean() == pytest.approx(1, abs=0.005)
    assert factors.std() == pytest.approx(0.2, abs=0.005)
    assert (factors > 0).all()


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("early", "sent before it was there"),
        ("fast", "faster than its rate"),
        ("lost", None),
        ("skipped", "a transfer ends with"),
        ("ahead", "two things at once|served before it was there"),
        ("at once", "two things at once"),
    ],
)
def test_the_conservation_check_can_fail(fault: str, found: str | None) -> None:
    schedule = ring(two_racks(), 8000)
    simulation = optcc.simulate(schedule)
    check_conservation(schedule, simulation)
    if fault == "early":
        simulation.start[-1] = 0
    elif fault == "fast":
        simulation.stripe_end[0] = simulation.stripe_start[0]
    elif fault == "lost":
        simulation.stripes.length[0] -= 8
    elif fault == "skipped":
        simulation.land_end[-1] += 1e-3
    elif fault == "ahead":
        simulation.land_start[-1] -= 10
    else:
        simulation.crossings.end[0] += 1
    with pytest.raises(AssertionError, match=found):
        check_conservation(schedule, simulation)


def two_racks(spine: int = 2) -> Cluster:
    """Two servers on rail 0 and two on rail 1, one NIC of 1000 bytes/s each; a rail's spine link has 2000 / spine."""
    servers = tuple(Server(f"server{i}", (Nic("nic0", Fraction(1000), Fraction(1000), rail=i // 2),)) for i in range(4))
    return Cluster(servers, fabric=Fabric(rails=True, spine=Fraction(spine)))


def one_transfer(links: Sequence[float], *, out: float = 1000, into: float = 1000, copies: int = 1) -> Schedule:
    """`copies` ranks send 1000 bytes each to a rank of their own, over one chain of links of these rates."""
    ports = [Port(f"from{i}", i, out, out) for i in range(copies)]
    ports += [Port(f"to{i}", copies + i, into, into) for i in range(copies)]
    crossed = tuple(range(len(links)))
    return Schedule(
        ranks=2 * copies,
        nbytes=1000,
        ports=tuple(ports),
        routes=tuple(Route(i, copies + i, (Lane(i, copies + i, Fraction(1), crossed),)) for i in range(copies)),
        route=np.arange(copies, dtype=np.int32),
        offset=np.zeros(copies, np.int64),
        length=np.full(copies, 1000, np.int64),
        reduce=np.ones(copies, np.bool_),
        stage=np.ones(copies, np.uint8),
        segment=np.zeros(copies, np.int32),
        dep_ptr=np.zeros(copies + 1, np.int64),
        dep_idx=np.zeros(0, np.int64),
        links=tuple(Link(f"link{i}", rate) for i, rate in enumerate(links)),
    )


@pytest.mark.parametrize("receivers", CHECKS)
@pytest.mark.parametrize(
    ("links", "seconds"),
    [((), 1), ((4000,), 1), ((500,), 2), ((500, 4000, 250, 8000), 4), ((4000, 4000, 4000, 4000), 1)],
)
def test_a_chain_takes_as_long_as_its_slowest_member(
    receivers: Receivers, links: tuple[float, ...], seconds: float
) -> None:
    """Cut-through: a stripe is on all of its lane at once, and alpha passes once."""
    schedule = one_transfer(links)
    assert optcc.simulate(schedule, receivers=receivers).time_s == pytest.approx(seconds)
    # What a chunk costs the receiving port passes while its first byte is on its way.
    assert optcc.simulate(schedule, per_chunk=1, receivers=receivers).time_s == pytest.approx(seconds + 1)
    late = optcc.simulate(schedule, alpha=3, receivers=receivers)
    assert late.time_s == pytest.approx(seconds + 3)
    CHECKS[receivers](schedule, late)


def test_a_link_is_shared() -> None:
    """Three transfers with ports of their own over a link that needs 2/3 s for each. It serves the first one while that
    is being sent, which is over after 1 s; ports are slower than the link and start with it on the others."""
    schedule = one_transfer((1500,), copies=3)
    simulation = optcc.simulate(schedule, receivers="stripes")
    assert simulation.crossings.begin == pytest.approx([1 / 3, 1, 5 / 3])
    assert simulation.finish == pytest.approx([1, 2, 8 / 3])
    check_conservation(schedule, simulation)
    costly = optcc.simulate(schedule, per_chunk=1, receivers="stripes").crossings
    assert costly.end - costly.begin == pytest.approx([2 / 3] * 3), "chunks cost ports, not links"


@pytest.mark.parametrize("receivers", CHECKS)
@examples(50)
@given(
    cluster=fabrics(),
    nbytes=st.integers(1, 10**7),
    alpha=st.sampled_from([0, 1]),
    per_chunk=st.sampled_from([0, Fraction(1, 3)]),
    data=st.data(),
)
def test_on_rails_and_pods_never_below_the_bound(
    receivers: Receivers, cluster: Cluster, nbytes: int, alpha: int, per_chunk: Fraction, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(cluster.ranks))))
    try:
        schedule = ring(cluster, nbytes, order=order, segments=2)
    except InputError:  # a rank without rate one way, or neighbours without a common rail
        assume(False)
        raise
    optcc.verify(schedule)
    simulation = optcc.simulate(schedule, alpha=alpha, per_chunk=per_chunk, receivers=receivers)
    if receivers == "packets" or not per_chunk:  # a port works for a stripe before a link is free for it
        CHECKS[receivers](schedule, simulation)
    assert simulation.time_s >= float(optcc.lower_bound(cluster, nbytes).seconds) * (1 - 1e-12)
    for row in usage(simulation):
        assert min(row.busy_s, row.forced_idle_s, row.idle_s) >= 0
        assert row.busy_s + row.forced_idle_s + row.idle_s == pytest.approx(simulation.time_s, rel=1e-9)


def test_where_links_join_switches_packets_share_them() -> None:
    """Unless it is told; on one fabric, and on rails without a spine, whole stripes."""
    whole = Cluster.uniform(servers=4, nics=2, rate=1000)
    pods = pods_of(whole, 2)
    rails, spine = (replace(whole, fabric=Fabric(rails=True, spine=own)) for own in (None, Fraction(2)))
    for cluster, kind in ((whole, "stripes"), (rails, "stripes"), (spine, "packets"), (pods, "packets")):
        schedule = ring(cluster, 800, segments=1)
        assert optcc.simulate(schedule).receivers == kind
        assert optcc.simulate(schedule, receivers="stripes").receivers == "stripes"


def test_links_slow_a_ring_down_to_their_rate() -> None:
    """Two servers on each of two rails: the ring crosses the spine once each way, and its link is the bottleneck."""
    fast, slow = (optcc.simulate(ring(two_racks(spine), 8000, segments=64)).time_s for spine in (1, 8))
    assert fast == pytest.approx(12, rel=0.05)
    assert slow == pytest.approx(12 * 4, rel=0.05)


@pytest.mark.parametrize("receivers", CHECKS)
@pytest.mark.parametrize(("nvlink_rate", "slowest"), [(4000, 1000), (250, 250)])
def test_gpus_as_ranks(receivers: Receivers, nvlink_rate: int, slowest: int) -> None:
    """A ring that goes once through each GPU: two hops over NVLink, two between servers."""
    cluster = gpu_cluster(nvlink_rate=nvlink_rate)
    schedule = ring(cluster, 8000, order=(0, 1, 3, 2), segments=64)
    optcc.verify(schedule)
    simulation = optcc.simulate(schedule, receivers=receivers)
    CHECKS[receivers](schedule, simulation)
    assert simulation.time_s >= float(optcc.lower_bound(cluster, 8000).seconds) * (1 - 1e-12)
    assert simulation.time_s == pytest.approx(2 * 3 / 4 * 8000 / slowest, rel=0.05)


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
    from optcc.schedule.nested import NestedRings, Ordering

    cluster = Cluster.uniform(servers=4, rate=1000)
    recipe = NestedRings(((1, Fraction(1)),), (0, 1, 2, 3), 1, orderings=(Ordering.LEAF_FIRST,), sections=1)
    schedule = recipe.lower(cluster, 8000)
    assert optcc.simulate(schedule).time_s == pytest.approx(24 + 24)


def test_a_slow_sender_does_not_block_a_fast_receiver() -> None:
    """One slow and one fast leaf into one rank: the fast one lands while the slow one is still sending."""
    from optcc.schedule.nested import NestedRings, Ordering

    cluster = Cluster.uniform(servers=3, rate=1000).degrade("server0/nic0", Fraction(1, 10))
    recipe = NestedRings(((1, Fraction(1)),), (0, 1, 2), 1, orderings=(Ordering.LEAF_FIRST,), sections=1)
    schedule = recipe.lower(cluster, 1000)
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


def three_transfers() -> Schedule:
    """Rank 0 sends rows 0 (after row 1), 1 and 2 to rank 1, a second each."""
    return Schedule(
        ranks=2,
        nbytes=1000,
        ports=(Port("from", 0, 1000.0, 1000.0), Port("to", 1, 1000.0, 1000.0)),
        routes=(Route(0, 1, (Lane(0, 1, Fraction(1)),)),),
        route=np.zeros(3, np.int32),
        offset=np.zeros(3, np.int64),
        length=np.full(3, 1000, np.int64),
        reduce=np.ones(3, np.bool_),
        stage=np.ones(3, np.uint8),
        segment=np.zeros(3, np.int32),
        dep_ptr=np.array([0, 1, 1, 1], np.int64),
        dep_idx=np.array([1], np.int64),
    )


@pytest.mark.parametrize("receivers", CHECKS)
def test_what_is_ready_first(receivers: Receivers) -> None:
    """Row 0 becomes ready after a second, when row 2 has been for one."""
    schedule = three_transfers()
    assert optcc.simulate(schedule, receivers=receivers).finish == pytest.approx([2, 1, 3])
    assert optcc.simulate(schedule, receivers=receivers, service="ready").finish == pytest.approx([3, 1, 2])


def test_an_unknown_service() -> None:
    with pytest.raises(InputError, match="unknown kind of service"):
        optcc.simulate(three_transfers(), service="lifo")  # type: ignore[arg-type]
