"""A poll that folds for long is no time in which nothing happened: timers wait for what came meanwhile."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from optcc.runtime.engine.program import program_of
from optcc.runtime.engine.transport import Landing, Take
from optcc.runtime.flows.ends import CHUNK_HEADER, CHUNK_MARK
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.wires.contract import Arrived, Cause, Completed, Credited, Drained, Failed, Happening
from optcc.runtime.wires.layout import layout_of
from tests.failover_runs import rings

TIMEOUTS = Timeouts(progress=1.0, grace=0.5, answer=0.25, first=0.002)
FOLD_S = 0.6
"""Longer than grace."""


class Scripted:
    """Wires of which a poll brings what the test has put into `news`, and the next one what it has put into `later`.

    As with local wires, whoever asks for the time looks at the clock.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.news: list[Happening] = []
        self.later: list[Happening] = []
        self.fenced: list[int] = []
        self.slots: dict[tuple[int, int], bytes] = {}

    def poll(self, until: float) -> Sequence[Happening]:
        news, self.news, self.later = self.news, self.later, []
        return news

    def clock(self) -> float:
        return self.now

    def slot(self, flow: int, seq: int) -> memoryview:
        return memoryview(self.slots[flow, seq])

    def free_at(self, wire: int, now: float) -> float:
        return now

    def write(self, *_: Any) -> None: ...

    def credit(self, *_: Any) -> None: ...

    def ask_record(self, wire: int, flow: int) -> bool:
        return False

    def fence(self, wire: int) -> None:
        self.fenced.append(wire)
        self.news.append(Drained(wire))


class OneLook(Scripted):
    """As over queue pairs: one look at the clock for a poll, unless a new one is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_at = 0.0

    def poll(self, until: float) -> Sequence[Happening]:
        self.seen_at = self.now
        return super().poll(until)

    def clock(self) -> float:
        return self.seen_at

    def look_again(self) -> float:
        self.seen_at = self.now
        return self.now


class Rank:
    """Rank 0 of a ring of two, which has sent one chunk and been sent one."""

    def __init__(self, wires: type[Scripted] = Scripted) -> None:
        schedule = rings(2, 2, 1 << 12, 1_000_000)
        layout = layout_of({"it": schedule}, 1 << 12)
        self.wires: Any = wires()
        self.told: list[list[Any]] = []
        self.flows = FlowTransport(
            0,
            layout,
            {"it": schedule.routes},
            self.wires,
            lambda rank, value: self.told.append(value),
            self.wires.clock,
            TIMEOUTS,
        )
        program = program_of(schedule, 0, 4)
        self.flows.begin("it", program.receives)
        move = next(iter(program.sends.values()))
        self.flows.post(move, memoryview(bytes(move.length)), 0.0)
        self.out = next(out for out in self.flows._outs.values() if out.sender.posted)
        self._row, receive = next(iter(program.receives.items()))
        self._into = next(iter(self.flows._ins.values()))
        self._offset = receive.offset
        self.folds = 0

    def arrives(self) -> Arrived:
        """A chunk that takes FOLD_S to fold."""
        number, wire = self._into.number, self._into.receiver.wire
        header = CHUNK_HEADER.pack(CHUNK_MARK, 0, 1, 8, 0, self._row, self._offset)
        self.wires.slots[number, 0] = header + bytes(8)
        return Arrived(wire, number, 0, self.wires.now)

    def poll(self, at: float | None = None) -> None:
        def take(row: int, offset: int, data: Any) -> None:
            self.folds += 1
            self.wires.now += FOLD_S

        self.wires.now = at if at is not None else self.wires.now
        self.flows.poll(math.inf, take)

    def messages(self, kind: str) -> list[list[Any]]:
        return [message for message in self.told if message[1] == kind]


def in_grace(wires: type[Scripted]) -> Rank:
    """Nothing has come through for the deadline, and the peer has said that it lives: a second from the start."""
    rank = Rank(wires)
    for look in range(5):
        rank.poll(at=look * TIMEOUTS.progress / 4)
        rank.poll()
    answer(rank)
    assert rank.out.sender.state == "grace"
    return rank


def answer(rank: Rank) -> None:
    """The peer says that it lives and that nothing has come."""
    epoch, nonce = [message[2:4] for message in rank.messages("Probe") if message[0] == rank.out.number][-1]
    rank.flows.message(1, [rank.out.number, "Alive", epoch, nonce, 0, 0])
    rank.poll()


@pytest.mark.parametrize("wires", [Scripted, OneLook])
def test_what_came_during_a_long_fold_saves_the_wire(wires: type[Scripted]) -> None:
    rank = in_grace(wires)
    rank.wires.news = [rank.arrives()]
    rank.wires.later = [Completed(rank.out.sender.wire, rank.out.number, 0)]
    rank.poll(at=1.3)  # the fold takes until 1.9; grace is over at 1.5
    rank.poll()
    rank.poll()
    assert rank.folds == 1
    assert rank.out.sender.state == "active"
    assert rank.wires.fenced == []
    assert rank.flows.journal == []


@pytest.mark.parametrize("wires", [Scripted, OneLook])
def test_a_wire_over_which_nothing_came_meanwhile_is_lost(wires: type[Scripted]) -> None:
    """The negative control."""
    rank = in_grace(wires)
    rank.wires.news = [rank.arrives()]
    rank.poll(at=1.3)
    rank.poll()
    rank.poll()
    assert rank.wires.fenced == [], "the peer is asked once more"
    answer(rank)
    assert rank.wires.fenced == [rank.out.sender.wire]
    assert {note.cause for note in rank.flows.journal} == {Cause.PROGRESS}


@pytest.mark.parametrize("wires", [Scripted, OneLook])
def test_a_letter_that_came_during_a_long_fold_is_read_before_a_question_is_repeated(wires: type[Scripted]) -> None:
    rank = Rank(wires)
    rank.wires.news = [Failed(rank.out.sender.wire, Cause.ERROR, "flushed")]
    rank.poll(at=0.1)
    rank.poll()
    assert len(rank.messages("Ask")) == 1
    rank.wires.news = [rank.arrives()]
    poll = rank.wires.poll

    def hears(until: float) -> Sequence[Happening]:
        if rank.folds:
            rank.flows.message(1, [rank.out.number, "Answer", 1, 0, 0])
        news: Sequence[Happening] = poll(until)
        return news

    rank.wires.poll = hears
    rank.poll()
    rank.poll()
    assert rank.out.sender.epoch == 1
    assert rank.out.sender.state == "active"
    assert len(rank.messages("Ask")) == 1


def test_a_timer_that_is_started_after_a_long_fold_has_its_whole_time() -> None:
    rank = Rank(OneLook)
    rank.wires.news = [Failed(rank.out.sender.wire, Cause.ERROR, "flushed")]
    rank.poll(at=0.1)
    rank.wires.news = [rank.arrives(), *rank.wires.news]
    rank.poll(at=0.2)
    assert rank.folds == 1
    assert len(rank.messages("Ask")) == 1
    assert rank.flows._timers.next() == pytest.approx(rank.wires.now + TIMEOUTS.first)


# --- what `poll` owes the timers, and the bugs that it keeps out -----------------------------------------------------


class LooksWhenItMayNotWait(Scripted):
    """As over queue pairs: while there is news, what descriptors say (here `said`) is taken in only for -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Callable[[], None]] = []

    def poll(self, until: float) -> Sequence[Happening]:
        if until == -math.inf or not self.news:
            said, self.said = self.said, []
            for do in said:
                do()
        return super().poll(until)


class NeverSaysSo(LooksWhenItMayNotWait):
    """The planted bug: the transport polls up to a timer's end, and not just now, when that is over."""

    def poll(self, until: float) -> Sequence[Happening]:
        return super().poll(max(until, 0.0))


def graceful_end(wires: type[Scripted]) -> Rank:
    """Grace is over, there is news, and an acknowledgement that only a look at the descriptors shows."""
    rank = in_grace(wires)
    acked = Completed(rank.out.sender.wire, rank.out.number, 0)
    rank.poll(at=1.6)  # nothing yet; that grace is over counts from the next poll on
    rank.wires.news = [Credited(rank.out.sender.wire, rank.out.number, 0)]
    rank.wires.said = [lambda: rank.wires.news.append(acked)]
    rank.poll()
    return rank


def test_before_a_timer_ends_everything_is_looked_at() -> None:
    rank = graceful_end(LooksWhenItMayNotWait)
    assert rank.out.sender.state == "active"
    assert rank.messages("Probe")[-1][3] == 1, "nobody has to be asked again"


def test_without_that_look_the_peer_would_be_asked_again() -> None:
    """The negative control."""
    with pytest.raises(AssertionError):
        assert graceful_end(NeverSaysSo).out.sender.state == "active"


def folded_into_the_end(wires: type[Scripted]) -> Rank:
    """A look at progress is due, then a fold lasts until after the end of grace; so long an acknowledgement waits."""
    rank = in_grace(wires)
    rank.poll(at=1.3)
    rank.wires.news = [rank.arrives()]
    rank.wires.later = [Completed(rank.out.sender.wire, rank.out.number, 0)]
    rank.poll()
    assert rank.wires.now == 1.3 + FOLD_S > 1.0 + TIMEOUTS.grace
    return rank


@pytest.mark.parametrize("wires", [Scripted, OneLook])
def test_a_timer_that_ends_within_a_fold_waits_for_what_came_meanwhile(wires: type[Scripted]) -> None:
    rank = folded_into_the_end(wires)
    assert rank.out.sender.state == "grace"
    rank.poll()
    rank.poll()
    assert rank.out.sender.state == "active"
    assert rank.messages("Probe")[-1][3] == 1, "nobody had to be asked again"


class EndsTimersAtOnce(FlowTransport):
    """The planted bug: what has run out by the end of a poll counts, even if none had when it began."""

    def poll(self, until: float, take: Take) -> list[Landing]:
        landings = super().poll(until, take)
        self._expire(self._send_path.now)
        return landings


class CountsTheFold(FlowTransport):
    """The planted bug: when one timer has run out before a poll, all count that have by its end."""

    def _expire(self, now: float) -> None:
        super()._expire(self._send_path.now)


@pytest.mark.parametrize("planted", [EndsTimersAtOnce, CountsTheFold])
def test_timers_that_end_by_the_end_of_a_poll_would_be_noticed(planted: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the peer is asked again, for the acknowledgement lies there unread."""
    monkeypatch.setattr(sys.modules[__name__], "FlowTransport", planted)
    assert folded_into_the_end(Scripted).out.sender.state == "probing"
