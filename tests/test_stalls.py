"""A chunk that waits behind others at its NIC is not stuck; one in a black hole is, whatever else its NIC does."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from optcc.runtime.devices.host import Op
from optcc.runtime.errors import FlowSeveredError
from optcc.runtime.flows.progress_watchdog import LOOKS, SUSPECTED, ProgressWatchdog
from optcc.runtime.flows.timeouts import Timeouts, Timers
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.protocol import Sender, events
from optcc.runtime.wires import layout
from optcc.runtime.wires.contract import Cause
from optcc.schedule import Lane, Port, Route, Schedule

DEADLINE = 8.0
TIMEOUTS = Timeouts(progress=DEADLINE, grace=4.0, answer=1.0)
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
        run = VirtualRun(schedule, buffers, Op.SUM, slot_bytes=8, timeouts=TIMEOUTS)
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
    assert queue < run.net.now <= queue + TIMEOUTS.progress * (1 + 1 / LOOKS) + 2 * TIMEOUTS.grace


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
