"""Runs in virtual time whose messages take their time: stuck chunks, black holes, giving up, how soon flows go on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from heapq import heappop
from typing import Any
from unittest import mock

import numpy as np
import pytest

from optcc.runtime.devices.host import Op
from optcc.runtime.errors import FlowSeveredError
from optcc.runtime.flows import flows, timeouts
from optcc.runtime.flows.progress_watchdog import LOOKS, SUSPECTED, ProgressWatchdog
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.flows.suspicion import Suspicions
from optcc.runtime.flows.timeouts import Timeouts, Timers
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.messages import Note
from optcc.runtime.protocol import Sender, SenderState, events
from optcc.runtime.protocol.doubting import PROBES
from optcc.runtime.protocol.events import Alive, Expired, Lost, Probe, Spread, Start, Tell, Timer
from optcc.runtime.protocol.table import Commands
from optcc.runtime.wires import layout
from optcc.runtime.wires.contract import ECHOES, Cause
from optcc.runtime.wires.virtual import VirtualNet, VirtualWires
from optcc.schedule import Lane, Port, Route, Schedule
from tests import protocol_mutants
from tests.failover_runs import leaves, rings

# Runs in virtual time whose messages take their time: what is struck, lost, doubted and moved in them, and when.


TIMEOUTS = Timeouts()
RTT_S = 0.001
"""Of a message and its answer."""


class Timed(VirtualRun):
    """A run whose messages take their time, and get lost as `loses` says: (kind, how many of it there were before)."""

    rtt_s = RTT_S

    def __init__(
        self, schedule: Schedule, loses: Callable[[str, int], bool] = lambda kind, nth: False, **how: Any
    ) -> None:
        self.schedule, self._loses, self.messages = schedule, loses, Counter[str]()
        self.buffers = [
            np.random.default_rng(rank).standard_normal(schedule.nbytes // 4).astype(np.float32)
            for rank in range(schedule.ranks)
        ]
        how = {"slot_bytes": 2048, "timeouts": TIMEOUTS, **how}
        with mock.patch.object(layout, "WINDOW", (1, 4)):
            super().__init__(schedule, self.buffers, Op.SUM, **how)

    def _post_for(self, rank: int) -> Callable[[int, object], None]:
        def post(to: int, value: Any) -> None:
            lost = self._loses(value[1], self.messages[value[1]])
            self.messages[value[1]] += 1
            if not lost:
                self.at(self.net.now + self.rtt_s / 2, lambda net: self.flows[to].message(rank, value))

        return post

    def strike(self, at: float, nic: str, what: str, **how: Any) -> None:
        """Let a NIC be struck at its time."""
        number = next(i for i, port in enumerate(self.net.layout.nics) if port.name == nic)
        rank = self.net.layout.nics[number].rank
        self.at(at, lambda net: getattr(net.ends[rank], what)(number, **how))

    def settle(self, within_s: float = 5.0) -> None:
        """Go on after the end until nothing is waited for any more."""
        self.net.paused.clear()
        end = self.net.now + within_s
        while self._next() < np.inf:
            self.net.now = max(self.net.now, self._next())
            assert self.net.now < end, f"still asking: {self.messages}"
            while self._pending and self._pending[0][0] <= self.net.now:
                heappop(self._pending)[2](self.net)
            for each in self.flows:
                each.poll(self.net.now, nothing_runs)

    def _next(self) -> float:
        wakes = [flows.next_wake() for flows in self.flows]
        return min(*wakes, self.net.next_landing(), self._pending[0][0] if self._pending else np.inf)

    def moved(self) -> list[Note]:
        """Of all ranks, by time."""
        return sorted((n for f in self.flows for n in f.journal if n.kind == "moved"), key=lambda note: note.at)

    def finish(self) -> VirtualRun:
        """Run, and see that every rank has the bits that it would have had without a fault."""
        self.run()
        assert [buffer.tobytes() for buffer in self.buffers] == whole(self.schedule)[1]
        return self


@cache
def whole(schedule: Schedule) -> tuple[float, list[bytes]]:
    """Without a fault: seconds, and the bits on every rank."""
    run = Timed(schedule)
    return run.run(), [buffer.tobytes() for buffer in run.buffers]


def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over sockets: messages are all there is."""
    monkeypatch.setattr(VirtualWires, "ask_record", lambda self, wire, flow: False)


PAIR = rings(2, 2, 1 << 16, 4_000_000)
DEADLINE_S = TIMEOUTS.progress + TIMEOUTS.grace
MESSAGES_S = 4 * RTT_S
"""A probe and its answer, word to those who share the NIC, the question after the verdict: what comes on top."""


def doubt_everything(run: VirtualRun) -> None:
    """As if every flow had come upon a black hole."""
    for each in run.flows:
        doubts: Any = each._suspicions
        doubts._nics.clear()
        for flow in (*each._outs.values(), *each._ins.values()):
            machine: Any = getattr(flow, "sender", None) or flow.receiver  # type: ignore[union-attr]
            doubts.spread(None, Spread(machine.wire))


# A chunk that waits behind others at its NIC is not stuck; one in a black hole is, whatever else its NIC does.


DEADLINE = 8.0
STALLS_TIMEOUTS = Timeouts(progress=DEADLINE, grace=4.0, answer=1.0)
LONG, SHORT = 480, 40  # bytes, at 8 bytes a second: a minute, and five seconds


def two_peers() -> Schedule:
    """Rank 0 sends much to rank 1 by its first NIC, a little to rank 2 by its second."""
    names = ("rank0/nic0", "rank0/nic1", "rank1/nic0", "rank2/nic0")
    return Schedule(
        ranks=3,
        nbytes=LONG + SHORT,
        ports=tuple(Port(name, int(name[4]), 8.0, 8.0) for name in names),
        routes=(Route(0, 1, (Lane(0, 2, Fraction(1)),)), Route(0, 2, (Lane(1, 3, Fraction(1)),))),
        route=np.array([0, 1], np.int32),
        offset=np.array([0, LONG]),
        length=np.array([LONG, SHORT]),
        reduce=np.zeros(2, np.bool_),
        stage=np.ones(2, np.uint8),
        segment=np.zeros(2, np.int32),
        dep_ptr=np.zeros(3, np.int64),
        dep_idx=np.zeros(0, np.int64),
    )


def moved_behind_a_queue(dark: bool = False) -> VirtualRun:
    """The second NIC is cut: its flow goes on by the first, which has a minute's work of the other flow.

    `dark` : and the peer's NIC swallows everything
    """
    schedule = two_peers()
    buffers = [np.arange(schedule.nbytes // 4, dtype=np.int32) for _ in range(3)]
    with mock.patch.object(layout, "WINDOW", (1, 64)):
        run = VirtualRun(schedule, buffers, Op.SUM, slot_bytes=8, timeouts=STALLS_TIMEOUTS)
    run.at(1.5, lambda net: net.ends[0].cut(1))
    if dark:
        run.at(1.5, lambda net: net.ends[2].darken(3))
    return run


def test_a_chunk_behind_others_at_its_nic_is_not_stuck() -> None:
    run = moved_behind_a_queue()
    assert run.run() == pytest.approx((LONG + SHORT) / 8, abs=2.0), "seven deadlines in the queue"
    (moved,) = [note for note in run.flows[0].journal if note.kind == "moved"]
    assert moved.cause == Cause.PORT


def test_without_that_rule_a_live_wire_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What used to happen: no wire left, with a NIC on which everything comes through in its turn."""
    monkeypatch.setattr(ProgressWatchdog, "_before", lambda self, flow: {})
    with pytest.raises(FlowSeveredError, match=r"no wire left of 2; .* lost by no progress"):
        moved_behind_a_queue().run()


def test_a_black_hole_is_noticed_when_the_queue_before_it_has_gone() -> None:
    run = moved_behind_a_queue(dark=True)
    with pytest.raises(FlowSeveredError, match=r"no wire left of 2; .* lost by no progress"):
        run.run()
    queue = LONG / 8
    # The last chunk before it has gone within a part of the deadline after a look; grace may begin anew once.
    assert queue < run.net.now <= queue + STALLS_TIMEOUTS.progress * (1 + 1 / LOOKS) + 2 * STALLS_TIMEOUTS.grace


# --- looks, one by one -----------------------------------------------------------------------------------------------

ENDS = {0: (0, 10), 1: (1, 11), 2: (0, 12)}


def sender(wire: int, posted: int) -> Sender:
    made = Sender((wire,), 99, ends=ENDS)
    for _ in range(posted):
        made.handle(events.Send())
    return made


def looks(
    stalls: ProgressWatchdog, senders: Mapping[int, Sender], acks: Mapping[int, tuple[int, int]], until: int
) -> list[int]:
    """Looks at which flow 0 is over its deadline. `acks` : look -> (flow, chunk) acknowledged just before it."""
    over = []
    for look in range(until):
        if look in acks:
            flow, seq = acks[look]
            senders[flow].handle(events.Acked(senders[flow].wire, seq))
        if 0 in stalls.look(look * stalls.every, look * stalls.every, lambda flow: False):
            over.append(look)
    return over


def test_a_flow_is_over_its_deadline_at_the_last_look_but_one_and_then_at_each() -> None:
    senders = {0: sender(0, 3)}
    assert looks(ProgressWatchdog(senders, DEADLINE), senders, {}, 9) == [6, 7, 8]
    senders = {0: sender(0, 3)}
    assert looks(ProgressWatchdog(senders, DEADLINE), senders, {2: (0, 0)}, 10) == [8, 9]


def test_neither_its_last_progress_nor_that_of_what_was_before_it_makes_a_flow_miss_its_deadline() -> None:
    """It stops just after look 0; look 1 sees that, and look 2 that the chunk before it at its NIC came through."""
    senders = {0: sender(0, 3), 2: sender(2, 2)}
    found = looks(ProgressWatchdog(senders, DEADLINE), senders, {1: (0, 0), 2: (2, 1)}, LOOKS + 1)
    assert found == [LOOKS]


def test_only_what_the_nic_was_given_before_counts() -> None:
    senders = {0: sender(0, 1), 1: sender(1, 9), 2: sender(2, 2)}
    stalls = ProgressWatchdog(senders, DEADLINE)
    assert looks(stalls, senders, {1: (1, 3), 2: (1, 6)}, 7) == [6], "another NIC"
    senders = {0: sender(0, 1), 2: sender(2, 2)}
    assert looks(ProgressWatchdog(senders, DEADLINE), senders, {1: (2, 0), 2: (2, 1)}, 9) == [8], "the same, before it"
    senders = {0: sender(0, 1), 2: sender(2, 2)}
    stalls = ProgressWatchdog(senders, DEADLINE)
    assert looks(stalls, senders, {}, 1) == []
    for _ in range(4):
        senders[2].handle(events.Send())
    assert looks(stalls, senders, {1: (2, 1), 2: (2, 3), 3: (2, 5)}, 8) == [7], "what came after counts no more"


def test_what_leaves_the_nic_counts_no_more() -> None:
    """The other end tells a flow that leaves a black hole what had landed there, and its next NIC brings over the rest:
    neither says that the chunk behind it has had its turn."""
    leaves = Sender((2, 1), 99, ends=ENDS)
    for _ in range(3):
        leaves.handle(events.Send())
    stalls = ProgressWatchdog({0: sender(0, 1), 2: leaves}, DEADLINE)
    stalls.look(0.0, 0.0, lambda flow: False)
    stalls.grace(0)
    leaves.handle(events.Acked(2, 0))
    assert stalls.still_moves(0), "while it is there"
    for event in (events.Lost(2, Cause.PROGRESS), events.Acked(2, 1), events.Fenced(2)):
        leaves.handle(event)
        assert not stalls.still_moves(0)
    leaves.handle(events.Answer(1, 2, 0))
    assert not stalls.still_moves(0)
    leaves.handle(events.Acked(1, 2))
    assert not stalls.still_moves(0)
    assert leaves.acked == 3


def test_next_to_a_black_hole_few_looks_are_enough() -> None:
    senders = {0: sender(0, 1), 1: sender(1, 1)}
    stalls = ProgressWatchdog(senders, DEADLINE)
    stalls.suspect((10, 4))
    for look in range(SUSPECTED):
        assert stalls.look(look * stalls.every, look * stalls.every, lambda flow: False) == []
    assert stalls.look(SUSPECTED * stalls.every, SUSPECTED * stalls.every, lambda flow: False) == [0]


def test_a_suspect_that_brings_something_over_is_suspect_no_more() -> None:
    senders = {0: sender(0, 3), 1: sender(1, 1)}
    stalls = ProgressWatchdog(senders, DEADLINE)
    stalls.suspect((0, 1))
    assert looks(stalls, senders, {3: (0, 0)}, 10) == [2, 9], "first after two looks, then after a deadline again"
    assert 1 in stalls.look(10 * stalls.every, 10 * stalls.every, lambda flow: False), (
        "the other one is as suspect as before"
    )


def test_both_ends_of_a_wire_are_acquitted_also_one_that_the_flow_has_moved_to() -> None:
    moves = Sender((0, 1), 99, ends=ENDS)
    moves.handle(events.Send())
    senders = {0: moves}
    stalls = ProgressWatchdog(senders, DEADLINE)
    for event in (events.Lost(0, Cause.PROGRESS), events.Fenced(0), events.Answer(1, 0, 0)):
        moves.handle(event)
    stalls.suspect((*ENDS[1], 99))
    stalls.look(0.0, 0.0, lambda flow: False)
    moves.handle(events.Acked(1, 0))
    stalls.look(stalls.every, stalls.every, lambda flow: False)
    assert stalls._suspects == {99}


def test_what_a_look_sees_counts_from_then_not_from_the_poll_before() -> None:
    """A fold lies between what the deadline is judged by and what is seen."""
    senders = {0: sender(0, 3)}
    stalls = ProgressWatchdog(senders, DEADLINE)
    stalls.look(0.0, 0.0, lambda flow: False)
    senders[0].handle(events.Acked(0, 0))
    stalls.look(0.5 * DEADLINE, 2 * DEADLINE, lambda flow: False)
    assert stalls.look(2 * DEADLINE, 2 * DEADLINE + stalls.every, lambda flow: False) == []
    assert stalls.look(3 * DEADLINE, 3 * DEADLINE, lambda flow: False) == [0]


def test_grace_that_begins_anew_is_not_over_already() -> None:
    """It ends at 1.5; a poll folds until 2.12, and the next one is told that the queue before the flow has moved."""
    senders, now = {0: sender(0, 1), 2: sender(2, 2)}, 0.0
    stalls = ProgressWatchdog(senders, 1.0)
    timers = Timers(Timeouts(1.0, 0.5, 0.25), stalls, lambda: now)
    stalls.look(0.0, 0.0, lambda flow: False)
    now = 1.0
    timers.start(0, events.Start(events.Timer.GRACE))
    now = 2.12
    senders[2].handle(events.Acked(2, 0))
    assert list(timers.over(1.52)) == []
    assert list(timers.over(2.12)) == []
    assert list(timers.over(2.62)) == [(0, events.Timer.GRACE)]


def test_what_had_come_over_before_and_what_the_far_end_tells_acquit_nobody() -> None:
    moves = Sender((0, 1), 99, ends=ENDS)
    moves.handle(events.Send())
    moves.handle(events.Send())
    senders = {0: sender(0, 3), 1: moves}
    stalls = ProgressWatchdog(senders, DEADLINE)
    senders[0].handle(events.Acked(0, 0))
    stalls.suspect(ENDS[0] + ENDS[1])
    for event in (events.Lost(0, Cause.PROGRESS), events.Fenced(0), events.Answer(1, 1, 0)):
        moves.handle(event)
    assert (moves.wire, moves.acked) == (1, 1)
    for look in range(SUSPECTED):
        assert stalls.look(look * stalls.every, look * stalls.every, lambda flow: False) == []
    assert stalls.look(SUSPECTED * stalls.every, SUSPECTED * stalls.every, lambda flow: False) == [0, 1]


def test_grace_begins_anew_as_long_as_its_queue_moves() -> None:
    senders = {0: sender(0, 1), 2: sender(2, 2)}
    stalls = ProgressWatchdog(senders, DEADLINE)
    stalls.look(0.0, 0.0, lambda flow: False)
    stalls.grace(0)
    assert not stalls.still_moves(0)
    senders[2].handle(events.Acked(2, 0))
    assert stalls.still_moves(0)
    assert not stalls.still_moves(0)


def test_what_owes_nothing_is_not_looked_at() -> None:
    senders = {0: sender(0, 0)}
    stalls = ProgressWatchdog(senders, DEADLINE)
    stalls.look(0.0, 0.0, lambda flow: False)
    assert not stalls.any
    senders[0].handle(events.Send())
    stalls.look(1.0, 1.0, lambda flow: False)
    assert stalls.any


# A black hole costs one deadline, however many flows come upon it, one after the other; what is none moves nothing.


SCHEDULES = (
    PAIR,
    rings(3, 2, 1 << 17, 8_000_000),
    rings(3, 3, 1 << 17, 20_000_000),
    rings(4, 2, 1 << 17, 8_000_000),
    leaves(1 << 17, 8_000_000),
)
PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)
FAULTS: dict[str, dict[str, bool]] = {"hole": {}, "no data": {"acks": False}, "no acks": {"data": False}}


def felt_by_all(**how: bool) -> list[float]:
    """`felt_s` of many runs."""
    found = []
    for schedule in SCHEDULES:
        nics = Counter(port.rank for port in schedule.ports)
        spare = [rank for rank in nics if nics[rank] > 1]
        found += [felt_s(schedule, part, rank, **how) for part in PARTS for rank in (spare[0], spare[-1])]
    return found


def felt_s(schedule: Schedule, part: float, rank: int, **how: bool) -> float:
    """From when a NIC turns into a black hole, so much of the run done, until the last flow has left it; 0: none."""
    run, at = Timed(schedule), part * whole(schedule)[0]
    name = next(port.name for port in schedule.ports if port.rank == rank)
    run.strike(at, name, "darken", **how)
    run.finish()
    assert all(name in (note.nic, note.far) for note in run.moved()), "only what the black hole has hit"
    return run.moved()[-1].at - at if run.moved() else 0.0


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_black_hole_costs_one_deadline(fault: str, readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not readable:
        unreadable(monkeypatch)
    bound = DEADLINE_S + MESSAGES_S
    if fault == "no data" and not readable:  # credits come through, so what begins to send later has to notice
        bound += TIMEOUTS.progress / 2 + TIMEOUTS.grace
    assert 0 < max(felt_by_all(**FAULTS[fault])) <= bound


def test_without_tests_of_what_shares_the_nic_it_costs_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was: flows that begin to send only when others have gone on have a deadline of their own."""
    monkeypatch.setattr(Suspicions, "spread", lambda self, flow, command: None)
    assert max(felt_by_all()) > 1.5 * DEADLINE_S


def test_flows_of_one_nic_are_in_doubt_together_and_moved_together() -> None:
    run = Timed(hub())
    run.strike(0.5, "rank0/nic0", "darken")
    run.finish()
    moved = [note for note in run.moved() if note.nic == "rank0/nic0"]
    assert {note.far[:5] for note in moved} == {"rank1", "rank2", "rank3"}
    assert {note.cause for note in moved} == {Cause.PROGRESS}
    assert moved[-1].at - moved[0].at <= MESSAGES_S
    assert moved[-1].at - 0.5 <= DEADLINE_S + MESSAGES_S


def hub() -> Schedule:
    """Rank 0 sends to three others; to the last two only when the first has all."""
    names = [f"rank{rank}/nic{nic}" for rank in range(4) for nic in range(2)]
    sizes = [16_000, 8_000, 8_000]
    return Schedule(
        ranks=4,
        nbytes=sum(sizes),
        ports=tuple(Port(name, int(name[4]), 20_000.0, 20_000.0) for name in names),
        routes=tuple(Route(0, to, (Lane(0, 2 * to, Fraction(1)),)) for to in (1, 2, 3)),
        route=np.arange(3, dtype=np.int32),
        offset=np.cumsum([0, *sizes[:-1]]),
        length=np.array(sizes),
        reduce=np.zeros(3, np.bool_),
        stage=np.ones(3, np.uint8),
        segment=np.zeros(3, np.int32),
        dep_ptr=np.array([0, 0, 0, 0]),
        dep_idx=np.zeros(0, np.int64),
    )


# --- what is no black hole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("deadlines", [2, 6.5])
def test_a_paused_rank_is_doubted_and_nothing_moves(rank: int, deadlines: float) -> None:
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run, at = Timed(schedule), 0.4 * whole(schedule)[0]
    run.at(at, lambda net: net.paused.add(rank))
    run.at(at + deadlines * TIMEOUTS.progress, lambda net: net.paused.discard(rank))
    run.finish()
    assert run.messages["Probe"] > 2, "or nothing was tried"
    assert run.messages["Suspect"] > 0, "and spread"
    assert run.moved() == []


class Napping(Timed):
    """Rank 1 does nothing for some graces, right after it has said that it is alive; over wires that its process
    acknowledges, as local ones do."""

    naps = 0

    def _post_for(self, rank: int) -> Callable[[int, object], None]:
        post = super()._post_for(rank)

        def post_and_nap(to: int, value: Any) -> None:
            post(to, value)
            if rank == 1 and value[1] == "Alive" and rank not in self.net.paused and self.naps < 3:
                self.naps += 1
                self.net.paused.add(rank)
                self.at(self.net.now + 3 * TIMEOUTS.grace, lambda net: net.paused.discard(rank))

        return post_and_nap


def napped() -> Napping:
    """Chunks take a fifth of a second, so that one is under way when the peer answers."""
    schedule = rings(2, 2, 1 << 16, 10_000)
    run = Napping(schedule)
    for step in range(10):
        run.at(step * whole(schedule)[0] / 10, lambda net: doubt_everything(run))
    run.finish()
    run.settle()
    assert run.naps == 3
    return run


def test_a_peer_that_is_paused_right_after_it_has_answered_moves_nothing() -> None:
    assert napped().moved() == []


def test_without_a_second_question_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(flows, "Sender", protocol_mutants.DoesNotAskAgain)
    assert {note.cause for note in napped().moved()} == {Cause.PROGRESS}


@pytest.mark.parametrize("heals", [1.05, 1.3])
def test_a_hole_that_heals_during_the_tests_moves_nothing(heals: float) -> None:
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run, at = Timed(schedule), 0.4 * whole(schedule)[0]
    run.strike(at, "server1/nic0", "darken")
    run.strike(at + heals * TIMEOUTS.progress, "server1/nic0", "heal")
    run.finish()
    assert run.messages["Probe"] > 0
    assert run.moved() == []


def test_doubt_alone_moves_nothing() -> None:
    """Every NIC is doubted all the time while all work: tests cost messages and nothing else."""
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run = Timed(schedule)
    for step in range(40):
        run.at(step * whole(schedule)[0] / 30, lambda net: doubt_everything(run))
    run.finish()
    assert run.messages["Suspect"] > 40
    assert run.messages["Alive"] > 40
    assert run.moved() == []
    assert run.net.now < 1.01 * whole(schedule)[0]


def test_a_long_queue_in_doubt_moves_nothing() -> None:
    """A minute's work before the flow at its NIC, and doubt all the time, with graces of four seconds."""
    run = moved_behind_a_queue()
    for step in range(60):
        run.at(2.0 + step, lambda net: doubt_everything(run))
    run.run()
    assert [note.cause for flows in run.flows for note in flows.journal if note.kind == "moved"] == [Cause.PORT]


def test_without_regard_to_the_queue_it_would_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(ProgressWatchdog, "_before", lambda self, flow: {})
    with pytest.raises((AssertionError, FlowSeveredError)):
        test_a_long_queue_in_doubt_moves_nothing()


def test_believing_every_doubt_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a wire that is given up for a doubt."""
    monkeypatch.setattr(Suspicions, "_test", lambda self, out: self._handle(out, Lost(out.sender.wire, Cause.PROGRESS)))
    with pytest.raises((AssertionError, FlowSeveredError)):
        test_doubt_alone_moves_nothing()


class Outage(Timed):
    """No message arrives between these two moments; all of them do at the second."""

    away = (0.5, 3.5)

    def _post_for(self, rank: int) -> Callable[[int, Any], None]:
        def post(to: int, value: Any) -> None:
            now, (begin, end) = self.net.now, self.away
            self.messages[value[1]] += 1
            arrives = max(now + self.rtt_s / 2, end if begin <= now < end else 0.0)
            self.at(arrives, lambda net: self.flows[to].message(rank, value))

        return post


def test_questions_that_come_together_are_echoed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control channel is away while NICs are doubted again and again."""
    run, said = Outage(rings(3, 2, 9 << 16, 100_000)), Counter[tuple[int, int, float]]()

    def doubt(net: VirtualNet) -> None:
        for each in run.flows:
            for flow in each._outs.values():
                each._suspicions.spread(None, Spread(flow.sender.wire))  # type: ignore[arg-type]

    credit = VirtualWires.credit

    def counted(self: VirtualWires, wire: int, flow: int, folded: int) -> None:
        said[flow, folded, run.net.now] += 1
        credit(self, wire, flow, folded)

    monkeypatch.setattr(VirtualWires, "credit", counted)
    for i in range(1, 100):
        run.at(i * 0.05, doubt)
    run.finish()
    assert run.messages["Probe"] > 40, "doubts asked while nothing came"
    assert max(n for (_, _, at), n in said.items() if at >= Outage.away[1]) <= ECHOES
    assert not run.moved()


# How long it takes to give up a peer of which all NICs are black holes, in virtual time: it grows with their number.
#
# A round is the verdict on one wire of every flow between the two ranks. The first takes PROGRESS and GRACE. What is
# moved is in doubt at the next look, for nothing has come through since; so each further one takes a look and GRACE.
# How many there are depends on how many flows try the pair's wires at the same time.


FIRST_S = TIMEOUTS.progress + TIMEOUTS.grace + MESSAGES_S
FURTHER_S = TIMEOUTS.progress / LOOKS + TIMEOUTS.grace + MESSAGES_S


def bound_s(rounds: int) -> float:
    """From the strike to the error."""
    return FIRST_S + (rounds - 1) * FURTHER_S


def given_up_s(schedule: Schedule, part: float = 0.3) -> float:
    """From when all NICs of rank 1 turn into black holes, so much of the run done, to the first error."""
    run, at = Timed(schedule), part * whole(schedule)[0]
    for port in schedule.ports:
        if port.rank == 1:
            run.strike(at, port.name, "darken")
    with pytest.raises(FlowSeveredError, match=r"no wire left of \d+; .* lost by no progress"):
        run.run()
    return run.net.now - at


def lanes(nics: int, used: int) -> Schedule:
    """Rank 0 sends to rank 1 by some of their NICs."""
    names = [f"rank{rank}/nic{nic}" for rank in range(2) for nic in range(nics)]
    ways = tuple(Lane(nic, nics + nic, Fraction(1, used)) for nic in range(used))
    return Schedule(
        ranks=2,
        nbytes=1 << 17,
        ports=tuple(Port(name, int(name[4]), 8e6, 8e6) for name in names),
        routes=(Route(0, 1, ways),),
        route=np.zeros(1, np.int32),
        offset=np.zeros(1, np.int64),
        length=np.array([1 << 17]),
        reduce=np.zeros(1, np.bool_),
        stage=np.ones(1, np.uint8),
        segment=np.zeros(1, np.int32),
        dep_ptr=np.zeros(2, np.int64),
        dep_idx=np.zeros(0, np.int64),
    )


@pytest.mark.parametrize("part", [0.1, 0.5])
@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("nics", [1, 2, 4, 8])
def test_with_flows_on_all_nics_there_are_as_many_rounds_as_nics(nics: int, servers: int, part: float) -> None:
    seconds = given_up_s(rings(servers, nics, 1 << 17, 8_000_000), part)
    assert bound_s(nics) - TIMEOUTS.progress / 4 - nics * MESSAGES_S <= seconds <= bound_s(nics)


@pytest.mark.parametrize(("nics", "used"), [(2, 1), (3, 1), (3, 2), (4, 2)])
def test_one_wire_of_the_pair_a_round_is_the_most(nics: int, used: int) -> None:
    assert bound_s(nics) < given_up_s(lanes(nics, used)) <= bound_s(nics * nics)


def test_a_single_flow_tries_them_one_by_one() -> None:
    assert given_up_s(lanes(3, 1)) == pytest.approx(bound_s(9), abs=TIMEOUTS.progress / 4 + 9 * MESSAGES_S)


def test_if_what_is_moved_had_a_whole_deadline_it_would_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    over = timeouts.Timers.stop

    def begin_anew(self: timeouts.Timers, flow: int, timer: object) -> None:
        over(self, flow, timer)  # type: ignore[arg-type]
        if timer is timeouts.Timer.ANSWER and self._watchdog._senders[flow].epoch:
            self._watchdog._watchdog.pop(flow, None)

    monkeypatch.setattr(timeouts.Timers, "stop", begin_anew)
    monkeypatch.setattr(ProgressWatchdog, "suspect", lambda self, nics: None)
    assert given_up_s(rings(2, 4, 1 << 17, 8_000_000)) > bound_s(4)


# How long it takes from the fault to the last flow's first chunk on another wire, in virtual time: messages that are
# lost or slow cost little.


WANTED_S = 0.03
"""From a port event to the first chunk on another wire."""


# --- lost messages ----------------------------------------------------------------------------------------------------


def resumed_s(what: str, loses: Callable[[str, int], bool], timeouts: Timeouts = TIMEOUTS, **how: Any) -> float:
    """From the strike until the last flow goes on, with a NIC lost in the middle of a ring of two."""
    run = Timed(PAIR, loses, timeouts=timeouts)
    at = 0.4 * whole(PAIR)[0]
    run.strike(at, "server1/nic0", what, **how)
    run.finish()
    assert run.moved()
    return run.moved()[-1].at - at


def first_of(*lost: tuple[str, int]) -> Callable[[str, int], bool]:
    """Loses the first so many messages of some kinds."""
    return lambda kind, nth: nth < dict(lost).get(kind, 0)


@pytest.mark.parametrize(
    "lost", [(), (("Ask", 2),), (("Ask", 12),), (("Answer", 2),), (("Answer", 12),), (("Ask", 6), ("Answer", 6))]
)
def test_a_cut_with_lost_letters_is_over_in_30_ms(
    lost: tuple[tuple[str, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two flows are hit: of twelve lost messages each loses six."""
    unreadable(monkeypatch)
    seconds = resumed_s("cut", first_of(*lost))
    assert seconds < WANTED_S
    assert lost or seconds == pytest.approx(RTT_S, abs=RTT_S / 10)
    slow = replace(TIMEOUTS, first=TIMEOUTS.answer)
    assert not lost or resumed_s("cut", first_of(*lost), slow) >= TIMEOUTS.answer, "what it was with one timer"


def test_a_record_that_can_be_read_saves_the_answer() -> None:
    assert resumed_s("cut", lambda kind, nth: kind == "Answer") <= TIMEOUTS.first + RTT_S


def test_a_lost_notice_is_repeated_soon() -> None:
    """The receiver's end is lost and only the receiver knows."""
    told = resumed_s("fail_in", first_of(("Notice", 3)), told=True)
    assert RTT_S < told < WANTED_S
    never = resumed_s("fail_in", lambda kind, nth: kind == "Notice" and nth < 50, told=True)
    assert never > TIMEOUTS.progress / 2, "then the progress timer has to notice"


def test_nine_of_ten_are_over_in_30_ms_when_a_third_of_all_letters_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch)
    times = []
    for seed in range(60):
        rng = random.Random(seed)
        times.append(resumed_s("cut", lambda kind, nth, rng=rng: rng.random() < 0.3))
    assert sorted(times)[int(0.9 * len(times))] < WANTED_S
    assert max(times) < TIMEOUTS.answer


def test_a_peer_that_never_answers_is_asked_less_and_less_often() -> None:
    run = Timed(PAIR, lambda kind, nth: kind == "Ask" and nth < 60)
    run.strike(0.4 * whole(PAIR)[0], "server1/nic0", "cut")
    run.finish()
    assert run.moved()[-1].at > 10 * TIMEOUTS.answer, "30 questions for each of the two flows"


# --- messages slower than the first repetition ------------------------------------------------------------------------

SLOW = pytest.mark.parametrize("rtt_s", [0.01, 0.1, 0.4])


@SLOW
def test_slow_letters_leave_healthy_flows_alone_and_come_to_an_end(rtt_s: float) -> None:
    """Everything is doubted, and the answer to no probe comes before it has been repeated."""
    assert rtt_s > 2 * TIMEOUTS.first
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run = Timed(schedule)
    run.rtt_s = rtt_s
    for step in range(20):
        run.at(step * whole(schedule)[0] / 20, lambda net: doubt_everything(run))
    run.finish()
    run.settle()
    senders = [out.sender for each in run.flows for out in each._outs.values()]
    doubts = sum(sender._nonce for sender in senders)
    assert 0 < doubts < run.messages["Probe"] <= PROBES * doubts, "repeated, and not for ever"
    assert {sender.state for sender in senders} == {SenderState.ACTIVE}
    assert [note for each in run.flows for note in each.journal] == []


@SLOW
def test_a_cut_with_slow_letters_costs_a_round_trip(rtt_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch)
    run, at = Timed(PAIR), 0.4 * whole(PAIR)[0]
    run.rtt_s = rtt_s
    run.strike(at, "server1/nic0", "cut")
    run.finish()
    run.settle()
    assert run.moved()[-1].at - at == pytest.approx(rtt_s, rel=0.1)
    assert {note.cause for note in run.moved()} <= {Cause.PORT, Cause.ERROR, Cause.NOTICE}
    assert 2 < run.messages["Ask"] < 30


@SLOW
def test_a_black_hole_with_slow_letters_is_left_alone_by_the_others(rtt_s: float) -> None:
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run, at = Timed(schedule), 0.4 * whole(schedule)[0]
    run.rtt_s = rtt_s
    run.strike(at, "server1/nic0", "darken")
    run.finish()
    run.settle()
    assert {"server1/nic0" in (note.nic, note.far) for note in run.moved()} == {True}
    assert run.moved()[-1].at - at <= DEADLINE_S + 4 * rtt_s


class AsksForEver(Sender):
    """Nothing that comes through, and no answer, ends a doubt; every question is followed by the next."""

    __slots__ = ()

    def _doubt_again(self, event: Expired) -> Commands:
        return (Tell(Probe(self.epoch, self._nonce, False)), Start(Timer.ANSWER))

    def _alive(self, event: Alive) -> Commands:
        return ()

    def _shown(self, kind: type) -> Commands:
        return ()


class BelievesNoLateAnswer(Sender):
    """The wire is given up when the peer has not answered by the first repetition."""

    __slots__ = ()

    def _doubt_again(self, event: Expired) -> Commands:
        return self._leave(Cause.PROGRESS)


@pytest.mark.parametrize("mutant", [AsksForEver, BelievesNoLateAnswer])
def test_broken_doubts_are_noticed_by_slow_letters(mutant: type[Sender]) -> None:
    """The negative controls."""
    with mock.patch.object(flows, "Sender", mutant), pytest.raises((AssertionError, FlowSeveredError)):
        test_slow_letters_leave_healthy_flows_alone_and_come_to_an_end(0.1)
