"""A NIC that becomes slow in the middle of a collective is given less; while all keep their rates nothing changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest

import optcc
from optcc.runtime.devices.host import Op
from optcc.runtime.flows import shares
from optcc.runtime.flows.straggler_monitor import LEAST, StragglerMonitor
from optcc.runtime.flows.symmetry_classes import Span, lane_classes
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.wires.contract import Arrived
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests import flow_storms
from tests.flow_storms import Storm, fault_free, schedules
from tests.test_flows import Watched, one_way
from tests.test_wires import LocalJob, count, header, until

NICS, AT, FACTOR = 4, 0.2, 0.25
OPTIMUM = AT + (1 - AT) * NICS / (NICS - 1 + FACTOR)
"""In times of the healthy bound: what is left when a NIC slows down goes at the whole rate that its server has left."""
CALM = Timeouts(progress=1e9, grace=1e9, answer=1e6)


@pytest.fixture
def asleep() -> Iterator[None]:
    """The negative control: nobody looks."""
    with mock.patch.object(StragglerMonitor, "wake"):
        yield


class Slowed(VirtualRun):
    """Four servers with four NICs each, of which one changes its rate at parts of the healthy time."""

    def __init__(self, changes: Sequence[tuple[float, float]]) -> None:
        nbytes = 1 << 20
        plan = optcc.plan(Cluster.uniform(servers=4, nics=NICS, rate=5_000_000), nbytes, segments=4)
        self.bound_s = float(plan.bound.seconds)
        self.buffers: list[Any] = [np.arange(nbytes // 4, dtype=np.int32) * (rank + 1) for rank in range(4)]
        self.expected = sum(self.buffers[1:], self.buffers[0].copy())
        # Some 300 looks, as over a collective of a second.
        timeouts = Timeouts(progress=self.bound_s * 256 / 300, grace=1e9, answer=1e6)
        super().__init__(plan.schedule(), self.buffers, Op.SUM, slot_bytes=4096, timeouts=timeouts)
        self.nic = next(i for i, nic in enumerate(self.net.layout.nics) if nic.name == "server1/nic3")
        for at, factor in changes:
            self.at(at * self.bound_s, lambda net, factor=factor: net.ends[1].slow(self.nic, factor))

    def over_bound(self) -> float:
        seconds = self.run()
        assert all(np.array_equal(buffer, self.expected) for buffer in self.buffers)
        assert all(flows.journal == [] for flows in self.flows), "a slow NIC is not a lost one"
        return seconds / self.bound_s

    @property
    def slow(self) -> set[tuple[int, int]]:
        """(NIC it leaves by, NIC it enters by) of the flows that are held to be slow."""
        wires, specs = self.net.layout.wires, self.net.layout.flows
        homes = [wires[specs[flow].wires[0]] for each in self.flows for flow in each._shares.monitor.factors]
        return {(wire.out, wire.into) for wire in homes}


def test_the_hit_collective_ends_near_the_optimum_of_the_changed_rates() -> None:
    run = Slowed([(AT, FACTOR)])
    assert OPTIMUM <= run.over_bound() < 1.15 * OPTIMUM
    assert run.slow, "and it has been seen why"
    assert all(run.nic in ends for ends in run.slow)


@pytest.mark.usefixtures("asleep")
def test_without_looks_the_slow_nic_holds_everything_back() -> None:
    run = Slowed([(AT, FACTOR)])
    assert run.over_bound() > 3
    assert run.slow == set()


def test_all_nics_at_their_rates_are_used_as_planned() -> None:
    run = Slowed([])
    assert run.over_bound() == pytest.approx(1)
    assert run.slow == set()
    assert all(flows._shares.monitor._busy or flows._shares.monitor._idle for flows in run.flows), "they were looked at"


def test_a_nic_that_is_back_at_its_rate_is_given_its_share_again() -> None:
    lasting, passing = Slowed([(0.2, 0.25)]), Slowed([(0.2, 0.25), (0.5, 4.0)])
    assert passing.over_bound() < lasting.over_bound()
    assert lasting.slow
    assert passing.slow == set()


def looked_at(schedule: Schedule, slot_bytes: int) -> tuple[int, set[int]]:
    """(lanes that were judged, flows that were held to be slow) in a run without a fault, with a hundred looks."""
    buffers = [np.zeros(schedule.nbytes // 4, np.float32) for _ in range(schedule.ranks)]
    seconds = VirtualRun(schedule, buffers, Op.SUM, slot_bytes=slot_bytes, timeouts=CALM).run()
    run = VirtualRun(schedule, buffers, Op.SUM, slot_bytes=slot_bytes, timeouts=CALM)
    judged, slow = Counter[int](), set[int]()
    for flows in run.flows:
        monitor = flows._shares.monitor
        monitor._every = seconds / 100

        def look(now: float, refresh: Any, monitor: StragglerMonitor = monitor, look: Any = monitor.look) -> None:
            look(now, refresh)
            judged.update(lane.out.number for watch in monitor._busy.values() for lane in watch.lanes if watch._known)
            slow.update(monitor.factors)

        monitor.look = look  # type: ignore[method-assign]
    run.run()
    return len(judged), slow


@pytest.mark.long
def test_without_a_fault_no_plan_of_any_family_has_a_slow_lane() -> None:
    found = [looked_at(schedule, 8192 if i % 3 == 0 else 256) for i, schedule in enumerate(schedules())]
    assert [slow for _, slow in found if slow] == []
    assert sum(judged > 0 for judged, _ in found) > 10


def test_lanes_that_are_not_alike_would_be_held_to_be_slow() -> None:
    """The negative control of lane_classes: all lanes of a route against each other."""

    def one_kind(routes: Sequence[Sequence[Span]], rates: Any) -> list[list[int]]:
        return [[0 for _ in route] for route in routes]

    with mock.patch.object(shares, "lane_classes", one_kind):
        assert any(looked_at(schedule, 256)[1] for schedule in schedules()[30:])


# --- chunks without a number -----------------------------------------------------------------------------------------


def queue_behind_a_slow_nic() -> Counter[int]:
    """Chunks by flow, of one long transfer that waits in the flows' queues for room in windows of two."""
    run = Watched(one_way([2400]), window=2, timeouts=Timeouts(progress=100.0, grace=1e9, answer=1e6))
    run.strike(20.0, "rank0/nic1", "slow", factor=0.125)
    run.finish()
    assert run.flows[0].journal == []
    return Counter(flow for flow, _ in {(flow, seq) for _, _, flow, seq in run.writes})


def test_chunks_without_a_number_are_dealt_by_live_rates() -> None:
    by_flow = queue_behind_a_slow_nic()
    assert by_flow[0] + by_flow[1] + by_flow[2] == 300
    # By 20 s each had 20. Of the other 240 the slow one brings 1 in 17, and what it had before it was found out.
    assert 20 + 240 / 17 <= by_flow[1] < 20 + 240 / 17 + 10
    assert by_flow[0] == pytest.approx(by_flow[2], abs=2)


@pytest.mark.usefixtures("asleep")
def test_without_looks_they_wait_behind_the_slow_nic() -> None:
    assert queue_behind_a_slow_nic() == {0: 100, 1: 100, 2: 100}


# --- what makes nothing slow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_paused_rank_makes_no_lane_slow(rank: int) -> None:
    run = Watched(one_way([24] * 40), window=3)
    monitor, slow = run.flows[0]._shares.monitor, set[int]()
    look = monitor.look
    monitor.look = lambda *a: (look(*a), slow.update(monitor.factors))  # type: ignore[assignment, method-assign]
    run.at(20.2, lambda net: net.paused.add(rank))
    run.at(90.7, lambda net: net.paused.discard(rank))
    run.finish()
    assert slow == set()


def least_factor() -> float:
    """Of a NIC that hardly moves any more for a tenth of the time."""
    run = Slowed([(AT, 1e-3), (AT + 0.1, 1e3)])
    seen = [1.0]
    for flows in run.flows:
        monitor = flows._shares.monitor

        def look(now: float, refresh: Any, monitor: StragglerMonitor = monitor, look: Any = monitor.look) -> None:
            look(now, refresh)
            seen.extend(monitor.factors.values())

        monitor.look = look  # type: ignore[method-assign]
    run.over_bound()
    return min(seen)


def test_a_slow_lane_is_never_left_without_a_share() -> None:
    """What carries nothing cannot be measured, and would be slow for ever."""
    assert least_factor() == LEAST


def test_without_a_least_share_it_would_be() -> None:
    with mock.patch("optcc.runtime.flows.straggler_monitor.LEAST", 1e-9):
        assert least_factor() < LEAST


# --- storms ----------------------------------------------------------------------------------------------------------


def slow_storm(seed: int) -> int:
    """One run with NICs that become slow, or fail; how many flows were held to be slow. Raises for what must not be."""
    rng = random.Random(seed)
    which = rng.randrange(len(schedules()))
    slot_bytes, window = rng.choice((64, 256, 1000)), rng.choice((1, 2, 5, 64))
    healthy_s, expected = fault_free(which, slot_bytes, window)
    run = Storm(schedules()[which], rng, rng.choice((0.0, 0.3)), slot_bytes, window, healthy_s)
    slow: set[int] = set()
    for flows in run.flows:
        monitor = flows._shares.monitor
        monitor._every = healthy_s / 200

        def look(now: float, refresh: Any, monitor: StragglerMonitor = monitor, look: Any = monitor.look) -> None:
            look(now, refresh)
            slow.update(monitor.factors)

        monitor.look = look  # type: ignore[method-assign]
    nics = [i for i, nic in enumerate(run.net.layout.nics) if not nic.nvlink]
    for kind in ("slow", "slow", rng.choice(flow_storms.KINDS)):
        at = rng.random() * healthy_s
        run.at(at, run.strike(kind, rng.choice(nics), at + healthy_s))
    run.at(20_000 * healthy_s, flow_storms.hang)
    try:
        run.run()
    except flow_storms.FlowSeveredError as error:
        run.severed(error)
    else:
        run.check(expected)
    return len(slow)


@pytest.mark.long
def test_storms_with_slow_nics() -> None:
    found = 0
    for seed in range(100):
        try:
            found += slow_storm(seed) > 0
        except Exception as error:
            raise AssertionError(f"slow_storm({seed}): {error}") from error
    assert found > 10, "runs in which the rule did something"


# --- lane classes --------------------------------------------------------------------------------------------------


def kinds(*routes: Sequence[tuple[int, int]], rates: Sequence[float] = (1.0,) * 8) -> list[int]:
    """How many kinds of lanes each route has; its lanes have the same share."""
    spans = [[Span(Fraction(1, len(route)), out, into) for out, into in route] for route in routes]
    return [len(set(of)) for of in lane_classes(spans, rates)]


def test_lanes_that_the_plan_uses_alike_are_alike() -> None:
    assert kinds([(0, 2), (1, 3)], [(2, 0), (3, 1)]) == [1, 1]
    assert kinds([(0, 2), (1, 3)], [(2, 5), (3, 4)], [(4, 0), (5, 1)]) == [1, 1, 1], "crossed further on"


@pytest.mark.parametrize(
    ("why", "routes", "rates"),
    [
        ("they share a NIC", [[(0, 2), (0, 3)]], (1.0,) * 8),
        ("one of the NICs has another route to serve", [[(0, 2), (1, 3)], [(0, 4)]], (1.0,) * 8),
        ("what goes through one far NIC waits elsewhere", [[(0, 2), (1, 3)], [(4, 2), (4, 3)]], (1.0,) * 8),
        ("and that further away", [[(0, 2), (1, 3)], [(4, 2), (5, 3)], [(4, 6)]], (1.0,) * 8),
        ("one of the NICs has another rate", [[(0, 2), (1, 3)]], (1.0, 1.0, 1.0, 2.0)),
    ],
)
def test_lanes_are_not_alike_when(why: str, routes: Any, rates: Sequence[float]) -> None:
    assert kinds(*routes, rates=rates)[0] == 2, why


def test_lanes_with_other_shares_are_not_alike() -> None:
    spans = [[Span(Fraction(1, 3), 0, 2), Span(Fraction(2, 3), 1, 3)]]
    assert len(set(lane_classes(spans, [1.0] * 4)[0])) == 2


# --- local wires -----------------------------------------------------------------------------------------------------


def test_local_wires_show_what_has_landed_although_nobody_has_told() -> None:
    job = LocalJob()
    for seq in range(2):
        job.ranks[0].write(0, 0, seq, header(0, seq), job.memory[0][:64], job.now())
    until(job, 1, count(Arrived, 2))
    assert job.ranks[0].landed(0, 0) == 2
    job.ranks[0].darken(job.ranks[0]._wires[0].out)
    assert job.ranks[0].landed(0, 0) == 0, "a black hole shows nothing"
    job.close()
