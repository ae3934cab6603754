"""How long it takes from the fault to the last flow's first chunk on another wire, in virtual time: messages that are
lost or slow cost little."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from optcc.runtime.errors import FlowSeveredError
from optcc.runtime.flows import flows
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.protocol import Sender, SenderState
from optcc.runtime.protocol.doubting import PROBES
from optcc.runtime.protocol.events import Alive, Expired, Probe, Start, Tell, Timer
from optcc.runtime.protocol.table import Commands
from optcc.runtime.wires.contract import Cause
from tests.failover_runs import rings
from tests.timed_runs import DEADLINE_S, PAIR, RTT_S, TIMEOUTS, Timed, doubt_everything, unreadable, whole

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
