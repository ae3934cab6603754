"""Faults in virtual time: slow NICs, dying NICs and their backups, against hand-made figures and conservation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError, SimulationError
from optcc.schedule import Lane, Schedule
from optcc.schedule.columns import stripes_of
from optcc.schedule.nested import NestedRings, Ordering
from optcc.simulation.faults import Fault, fault_tables
from optcc.simulation.simulator import Receivers, Simulation, _fabric, services
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.conservation import check_conservation
from tests.effort import examples
from tests.fabrics import gpu_cluster, ring

HALF = Fraction(1, 2)


def carried(begin: float, until: float, rate: float, faults: list[Fault]) -> float:
    """Bytes that a port with these faults can carry from `begin` to `until`."""
    total, left = 0.0, 1.0
    for fault in [*sorted(faults, key=lambda fault: fault.at_s), Fault("", max(0.0, until))]:
        stop = min(until, float(fault.at_s))
        total += max(0.0, stop - begin) * left * rate
        begin, left = max(begin, stop), float(fault.left)
    return total


def check_faults(simulation: Simulation, faults: list[Fault], alpha: float = 0) -> None:
    """No port works faster than its fault leaves it, after its death, or on bytes that have not come; what was lost is
    sent again once that is known."""
    schedule, stripes, every = simulation.schedule, simulation.stripes, services(simulation)
    ports, in_vain = len(schedule.ports), len(every.stripe) - len(simulation.lost.stripe)
    slack = 1e-12 * max(1.0, simulation.time_s)
    index = {port.name: i for i, port in enumerate(schedule.ports)}
    for fault in faults:
        p, at = index[fault.port], float(fault.at_s)
        for resource, rate in ((p, schedule.ports[p].out_rate), (ports + p, schedule.ports[p].in_rate)):
            mine = every.resource == resource
            begin, end, length = every.begin[mine], every.end[mine], stripes.length[every.stripe[mine]]
            done = (
                np.clip(at - begin, 0, None) + np.clip(end - np.maximum(begin, at), 0, None) * float(fault.left)
            ) * rate
            whole = np.flatnonzero(mine) < in_vain
            assert (done[whole] >= length[whole] - slack * rate).all(), "a port did more than its fault leaves it"
            assert fault.left or (end <= at + slack).all(), "a dead port served"
    for t in (float(fault.at_s) for fault in faults):
        for i in range(len(stripes.row)):
            out, into = schedule.ports[stripes.out[i]], schedule.ports[stripes.into[i]]
            came = carried(
                simulation.stripe_start[i], t - alpha, out.out_rate, [f for f in faults if f.port == out.name]
            )
            went = carried(simulation.land_start[i], t, into.in_rate, [f for f in faults if f.port == into.name])
            assert min(went, stripes.length[i]) <= came + slack * out.out_rate, "received before it was sent"
    first = simulation.lost.resource < ports
    again = simulation.stripe_start[simulation.lost.stripe[first]]
    noticed = [float(f.at_s) + float(f.detect_s) for f in faults if not f.left]
    assert (again >= min(noticed, default=0) - slack).all(), "sent again before anyone knew"


def pair(nics: int = 2, **fabric: Fraction | bool | None) -> Cluster:
    """Two servers with NICs of 1000 bytes per second, each on a rail of its own."""
    made = Cluster.uniform(servers=2, nics=nics, rate=1000)
    return replace(made, fabric=Fabric(**fabric))  # type: ignore[arg-type]


def one_way(cluster: Cluster, nbytes: int) -> Schedule:
    """One transfer from server 0 to server 1, over the lanes of its route."""
    schedule = ring(cluster, 2 * nbytes, segments=1)
    row = int(np.flatnonzero(schedule.src == 0)[0])
    kept = {
        name: getattr(schedule, name)[[row]] for name in ("route", "offset", "length", "reduce", "stage", "segment")
    }
    return schedule.replace(**kept, dep_ptr=np.zeros(2, np.int64), dep_idx=np.zeros(0, np.int64))


@pytest.mark.parametrize(
    ("at", "left", "seconds"),
    [
        (0, HALF, 2),
        (Fraction(1, 4), HALF, 0.25 + 0.75 * 2),
        (HALF, Fraction(1, 8), 0.5 + 0.5 * 8),
        (1, HALF, 1),
        (3, HALF, 1),
    ],
)
@pytest.mark.parametrize("port", ["server0/nic0", "server1/nic0"])
def test_a_port_slows_down_in_the_middle_of_a_stripe(port: str, at: Fraction, left: Fraction, seconds: float) -> None:
    schedule = one_way(pair(1), 1000)
    fault = Fault(port, at, left)
    simulation = optcc.simulate(schedule, faults=[fault])
    assert simulation.time_s == pytest.approx(seconds)
    assert simulation.replayed == 0
    check_conservation(schedule, simulation)
    check_faults(simulation, [fault])


def test_two_steps_down_and_both_ends() -> None:
    faults = [Fault("server0/nic0", Fraction(1, 4), HALF), Fault("server0/nic0", Fraction(1, 2), Fraction(1, 4))]
    schedule = one_way(pair(1), 1000)
    # 250 bytes, then 125 at half the rate, then 625 at a quarter.
    assert optcc.simulate(schedule, faults=faults).time_s == pytest.approx(0.25 + 0.25 + 2.5)
    slower = [*faults, Fault("server1/nic0", 0, Fraction(1, 10))]
    assert optcc.simulate(schedule, faults=slower).time_s == pytest.approx(10)


@pytest.mark.parametrize("port", ["server0/nic0", "server1/nic0"])
@pytest.mark.parametrize("rails", [False, True])
def test_a_death_by_hand(port: str, rails: bool) -> None:
    """Both NICs carry 1000 bytes. nic0 dies after 0.5 s, which is known at 0.7 s: nic1 takes its place, on rails at
    both ends, is busy until 1 s, and carries all 1000 bytes again."""
    schedule = one_way(pair(rails=rails), 2000)
    fault = Fault(port, HALF, detect_s=Fraction(1, 5))
    simulation = optcc.simulate(schedule, faults=[fault])
    # Off rails a live sender's nic0 is free at once; but its peer's nic1 still receives until 1 s.
    assert simulation.time_s == pytest.approx(2)
    assert simulation.replayed == 1000
    used = {schedule.ports[p].name for p in (*simulation.stripes.out, *simulation.stripes.into)}
    assert port not in used
    other = {"server0/nic0": "server1/nic0", "server1/nic0": "server0/nic0"}[port]
    assert (other in used) is not rails
    check_conservation(schedule, simulation)
    check_faults(simulation, [fault])


def test_a_death_long_after_is_noticed_and_sent_again() -> None:
    schedule = one_way(pair(), 2000)
    fault = Fault("server1/nic0", Fraction(1, 10), detect_s=5)
    simulation = optcc.simulate(schedule, faults=[fault])
    assert simulation.time_s == pytest.approx(5.1 + 1)
    assert simulation.lost.begin.tolist() == [0, 0]
    assert simulation.lost.end == pytest.approx([1, 0.1])  # the sender did not know


@pytest.mark.parametrize("receivers", ["stripes", "packets"])
@pytest.mark.parametrize(("port", "seconds"), [("server0/nic0", 950), ("server1/nic0", 1600)])
def test_a_dying_receiver_costs_the_whole_stripe(port: str, seconds: int, receivers: Receivers) -> None:
    """800 bytes at 1 byte per second, and a death at 100 s: a sender's NIC stops, and its backup begins at 150 s, but
    who sends to a dead NIC serves the stripe out until 800 s, and only then sends it again."""
    schedule = one_way(Cluster.uniform(servers=2, nics=2, rate=1), 800)
    lane = Lane(out=0, into=2, share=Fraction(1))
    routes = [route._replace(lanes=(lane,)) if route.src == 0 else route for route in schedule.routes]
    schedule = schedule.replace(routes=tuple(routes))
    fault = Fault(port, 100, detect_s=50)
    simulation = optcc.simulate(schedule, faults=[fault], receivers=receivers)
    assert simulation.time_s == pytest.approx(seconds)
    assert simulation.replayed == 800
    check_conservation(schedule, simulation)
    if receivers == "stripes":
        check_faults(simulation, [fault])


def test_all_that_waits_at_a_dying_receiver_is_lost_with_it() -> None:
    """Two servers send 1000 bytes to each of a third one's two NICs, which take 2 s for them. nic0 dies after 0.5 s."""
    cluster = Cluster.uniform(servers=3, nics=2, rate=1000)
    recipe = NestedRings(((1, Fraction(1)),), (0, 1, 2), 1, orderings=(Ordering.LEAF_FIRST,), sections=1)
    schedule = recipe.lower(cluster, 2000)
    fault = Fault("server2/nic0", HALF, detect_s=Fraction(1, 4))
    simulation = optcc.simulate(schedule, faults=[fault])
    check_conservation(schedule, simulation)
    check_faults(simulation, [fault])
    assert simulation.replayed == 2000
    at_receiver = simulation.lost.where(simulation.lost.resource == 6 + 4)
    assert (at_receiver.begin.tolist(), at_receiver.end.tolist()) == ([0], [0.5])
    assert simulation.finish[schedule.dst == 2] == pytest.approx([3, 4])  # nic1 has its own until 2 s


def test_a_heap_has_room_for_all_that_a_detour_brings() -> None:
    one = one_way(pair(), 2000)
    many = one.replace(
        **{
            name: np.repeat(getattr(one, name), 50)
            for name in ("route", "offset", "length", "reduce", "stage", "segment")
        },
        dep_ptr=np.zeros(51, np.int64),
    )
    fault = Fault("server0/nic0", HALF, detect_s=0)
    stripes = stripes_of(many)
    fabric = _fabric(many, stripes, fault_tables(many, stripes.lanes, [fault]), 0, 0, False)
    assert fabric.arrays["room"].tolist() == [50, 100, 0, 0]
    simulation = optcc.simulate(many, faults=[fault])
    check_conservation(many, simulation)
    assert simulation.time_s == pytest.approx(100)


def test_a_dead_port_does_not_start() -> None:
    """What becomes ready while nobody knows yet waits for the notice: it is not sent in vain, and not counted."""
    schedule = ring(pair(), 4000, segments=1)
    fault = Fault("server1/nic1", Fraction(9, 10), detect_s=5)
    simulation = optcc.simulate(schedule, faults=[fault])
    check_conservation(schedule, simulation)
    assert simulation.replayed == 2000  # what it sent and received in the first second


def test_hot_repair_gives_one_nic_two_shares() -> None:
    """Any ring with a NIC dead from the start: its backup carries twice its share, so the whole takes twice as long."""
    schedule = ring(Cluster.uniform(servers=4, nics=4, rate=1000), 10**6, segments=64)
    before = optcc.simulate(schedule).time_s
    after = optcc.simulate(schedule, faults=[Fault("server1/nic1", 0, detect_s=0)])
    assert after.time_s == pytest.approx(2 * before, rel=0.02)
    assert after.replayed == 0
    check_conservation(schedule, after)
    sent = np.bincount(after.stripes.out, after.stripes.length, 16)
    assert sent[4:8] / sent[4] == pytest.approx([1, 0, 2, 1], rel=1e-2)


@pytest.mark.parametrize("at", [0.0, 0.1, 0.37, 0.5, 0.93])
def test_a_death_costs_time(at: float) -> None:
    schedule = ring(Cluster.uniform(servers=4, nics=4, rate=1000), 10**6, segments=8)
    before = optcc.simulate(schedule, alpha=1)
    fault = Fault("server2/nic3", at * before.time_s, detect_s=3)
    after = optcc.simulate(schedule, alpha=1, faults=[fault])
    assert after.time_s > before.time_s
    check_conservation(schedule, after)
    check_faults(after, [fault], alpha=1)


def test_a_fault_after_the_end_changes_nothing() -> None:
    schedule = ring(Cluster.uniform(servers=4, nics=2, rate=1000), 10**5)
    before = optcc.simulate(schedule)
    for left in (0, HALF):
        after = optcc.simulate(schedule, faults=[Fault("server0/nic0", before.time_s, left)])
        for name in ("finish", "stripe_start", "stripe_end", "land_start", "land_end"):
            assert np.array_equal(getattr(before, name), getattr(after, name)), name
    # Not even when nobody could take over.
    faults = [Fault(f"server0/nic{i}", before.time_s) for i in range(2)]
    assert optcc.simulate(schedule, faults=faults).time_s == before.time_s


def test_slow_from_the_start_is_the_degraded_port_to_the_tick() -> None:
    schedule = ring(Cluster.uniform(servers=4, nics=2, rate=10**9 + 7), 10**8)
    ports = list(schedule.ports)
    ports[3] = replace(ports[3], out_rate=ports[3].out_rate / 4, in_rate=ports[3].in_rate / 4)
    degraded = optcc.simulate(schedule.replace(ports=tuple(ports)), per_chunk=Fraction(1, 10**6))
    fault = Fault(ports[3].name, 0, Fraction(1, 4))
    faulty = optcc.simulate(schedule, per_chunk=Fraction(1, 10**6), faults=[fault])
    assert np.array_equal(degraded.finish, faulty.finish)
    assert np.array_equal(degraded.land_start, faulty.land_start)


@examples(150)
@given(data=st.data(), rails=st.booleans(), spine=st.sampled_from([None, Fraction(2)]), alpha=st.sampled_from([0, 1]))
def test_conservation_under_faults(data: st.DataObject, rails: bool, spine: Fraction | None, alpha: int) -> None:
    """Random faults on random ports, over rails, spine and pods: whatever happens, nothing is lost for good."""
    servers = tuple(
        Server(
            f"server{s}",
            tuple(
                Nic(f"nic{i}", Fraction(rate), Fraction(rate), rail=i)
                for i, rate in enumerate(data.draw(st.lists(st.sampled_from([500, 1000]), min_size=2, max_size=3)))
            ),
            pod=str(s % 2),
        )
        for s in range(data.draw(st.integers(2, 4)))
    )
    pods = data.draw(st.sampled_from([None, Fraction(3)]))
    fabric = Fabric(rails=rails, spine=spine if rails else None, pod_oversubscription=pods)
    schedule = ring(Cluster(servers, fabric=fabric), data.draw(st.integers(1, 10**5)), segments=2)
    whole = optcc.simulate(schedule, alpha=alpha, receivers="stripes").time_s
    names = data.draw(st.lists(st.sampled_from([p.name for p in schedule.ports]), unique=True, min_size=1, max_size=3))
    faults = [
        Fault(
            name,
            data.draw(st.floats(0, 1.2)) * whole,
            data.draw(st.sampled_from([0, 0, Fraction(1, 3), Fraction(9, 10)])),
            data.draw(st.sampled_from([0, 0.01, 0.5])) * whole,
        )
        for name in names
    ]
    try:
        simulation = optcc.simulate(schedule, alpha=alpha, faults=faults, receivers="stripes")
    except SimulationError:  # too many died
        assert any(not fault.left for fault in faults)
        return
    check_conservation(schedule, simulation)
    check_faults(simulation, faults, alpha)


@pytest.mark.parametrize("bug", ["dead port", "too fast", "too soon", "ahead"])
def test_the_check_of_faults_can_fail(bug: str) -> None:
    schedule = one_way(pair(rails=True), 2000)
    faults = [Fault("server0/nic0", HALF, detect_s=Fraction(1, 5)), Fault("server1/nic1", 0, HALF)]
    simulation = optcc.simulate(schedule, faults=faults)
    check_faults(simulation, faults)
    if bug == "dead port":
        lane = np.zeros_like(simulation.stripes.lane)  # as if the stripe had never changed its lane
        simulation = replace(simulation, stripes=replace(simulation.stripes, lane=lane))
        found = "a dead port served|more than its fault leaves it"
    elif bug == "too fast":
        simulation.land_start[1] = simulation.land_end[1] - 1
        found = "more than its fault leaves it"
    elif bug == "ahead":
        simulation.stripe_start[1] += 1
        found = "received before it was sent"
    else:
        simulation.stripe_start[0] = 0.6
        found = "before anyone knew"
    with pytest.raises(AssertionError, match=found):
        check_faults(simulation, faults)


def test_a_rank_without_nics_is_named_with_the_time() -> None:
    schedule = ring(Cluster.uniform(servers=3, nics=2, rate=1000), 10**4)
    faults = [Fault("server1/nic0", 1, detect_s=0), Fault("server1/nic1", 2, detect_s=HALF)]
    with pytest.raises(SimulationError, match=r"rank 1 \(server1\) has no live NIC left at 2\.5 s"):
        optcc.simulate(schedule, faults=faults)
    with pytest.raises(SimulationError, match=r"rank 1 \(server0/gpu1\) has no live NIC left at 0\.5"):
        optcc.simulate(ring(gpu_cluster(), 10**4, order=(0, 1, 3, 2)), faults=[Fault("server0/nic1", HALF, detect_s=0)])


def test_ranks_that_share_no_rail_any_more_are_named() -> None:
    schedule = one_way(pair(rails=True), 2000)
    faults = [Fault("server0/nic0", 0, detect_s=0), Fault("server1/nic1", 0, detect_s=0)]
    with pytest.raises(SimulationError, match="rank 0 and rank 1 can reach each other"):
        optcc.simulate(schedule, faults=faults)


def test_lanes_over_the_spine_take_another_lane_of_their_ranks() -> None:
    servers = [
        Server(f"server{s}", tuple(Nic(f"nic{i}", Fraction(1000), Fraction(1000), rail=2 * s + i) for i in range(2)))
        for s in range(2)
    ]
    schedule = one_way(Cluster(tuple(servers), fabric=Fabric(rails=True, spine=Fraction(1))), 2000)
    fault = Fault("server0/nic0", Fraction(1, 4), detect_s=0)
    simulation = optcc.simulate(schedule, faults=[fault])
    assert simulation.time_s == pytest.approx(2)
    used = {simulation.stripes.lanes[lane] for lane in simulation.stripes.lane}
    assert {schedule.links[lane.links[0]].name for lane in used} == {"spine link of rail 1, out"}
    check_conservation(schedule, simulation)
    check_faults(simulation, [fault])


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Fault("server0/nic0", -1), "time out of range"),
        (lambda: Fault("server0/nic0", 0, 2), "fraction left out of range"),
        (lambda: Fault("server0/nic0", 0, 0, -1), "time out of range"),
        (lambda: optcc.simulate(one_way(pair(), 8), faults=[Fault("server9/nic0", 0)]), "no such port"),
        (
            lambda: optcc.simulate(one_way(pair(), 8), faults=[Fault("server0/nic0", 0), Fault("server0/nic0", 1, 1)]),
            "recovers",
        ),
        (
            lambda: optcc.simulate(
                ring(gpu_cluster(), 8, order=(0, 1, 3, 2)), faults=[Fault("server0/gpu0/nvlink", 0)]
            ),
            "only NICs",
        ),
    ],
)
def test_bad_faults(make: object, what: str) -> None:
    with pytest.raises(InputError, match=what):
        make()  # type: ignore[operator]


def test_a_slow_nvlink_port() -> None:
    schedule = ring(gpu_cluster(), 8000, order=(0, 1, 3, 2), segments=64)
    fault = Fault("server0/gpu1/nvlink", 0, Fraction(1, 16))
    assert optcc.simulate(schedule, faults=[fault]).time_s == pytest.approx(
        4 * optcc.simulate(schedule).time_s, rel=0.05
    )
