"""The failover protocol's sender in doubt: it asks whether the peer lives before it gives up a wire."""

from __future__ import annotations

import pytest

from optcc.runtime.protocol import SenderState
from optcc.runtime.protocol.doubting import PROBES
from optcc.runtime.protocol.events import (
    Acked,
    Alive,
    Answer,
    Credit,
    Doubt,
    Event,
    Expired,
    Fence,
    Fenced,
    Heard,
    Lost,
    Moved,
    Probe,
    Release,
    Send,
    Spread,
    Start,
    Stop,
    Tell,
    Timer,
)
from optcc.runtime.wires.contract import Cause
from tests.protocol_ends import GRACED, LEFT, doubtful, fed, moved_off, probe, sender


def test_silence_of_the_peer_proves_nothing() -> None:
    machine = doubtful(sender(2))
    assert fed(machine, *[Expired(Timer.PROGRESS)] * 50) == [Tell(Probe(0, 1, True))] * 50
    assert machine.state is SenderState.PROBING


def test_an_unanswered_probe_is_repeated_soon_and_then_by_the_progress_timer() -> None:
    machine = doubtful(sender(2))
    again = fed(machine, *[Expired(Timer.ANSWER)] * 50)
    assert again == [command for nth in range(1, PROBES) for command in probe(1, nth=nth)]
    assert fed(machine, Expired(Timer.GRACE)) == []
    assert fed(machine, Acked(7, 0), Expired(Timer.ANSWER)) == [Release(1)]
    assert machine.state is SenderState.ACTIVE, (
        "something came through since: however slow messages are, that ends the doubt"
    )


def test_a_living_peer_and_no_progress_lose_the_wire() -> None:
    machine = doubtful(sender(2))
    assert fed(machine, Alive(0, 1, 0, 0)) == GRACED
    assert fed(machine, Expired(Timer.GRACE)) == probe(2, spread=False), "it may have been paused meanwhile"
    assert fed(machine, Alive(0, 1, 0, 0)) == [], "what it said before"
    assert fed(machine, Alive(0, 2, 0, 0)) == LEFT
    fed(machine, Fenced(7))
    assert fed(machine, Answer(1, 0, 0))[1] == Moved(1, 7, 8, Cause.PROGRESS, 2)


def test_a_peer_that_is_paused_in_grace_is_asked_until_it_answers() -> None:
    machine = doubtful(sender(2))
    fed(machine, Alive(0, 1, 0, 0), Expired(Timer.GRACE))
    again = fed(machine, *[Expired(Timer.ANSWER)] * 50)
    assert again == [command for nth in range(1, PROBES) for command in probe(2, spread=False, nth=nth)]
    assert fed(machine, *[Expired(Timer.PROGRESS)] * 50) == [Tell(Probe(0, 2, False))] * 50
    assert fed(machine, Acked(7, 0), Alive(0, 2, 1, 0)) == [Release(1), Stop(Timer.ANSWER)]
    assert machine.state is SenderState.ACTIVE


def test_grace_begins_anew_when_the_peer_has_got_further_but_once() -> None:
    machine = doubtful(sender(4))
    assert fed(machine, Alive(0, 1, 0, 0), Expired(Timer.GRACE)) == [*GRACED, *probe(2, spread=False)]
    assert fed(machine, Alive(0, 2, 1, 0), Expired(Timer.GRACE)) == [*GRACED, *probe(3, spread=False)]
    assert fed(machine, Alive(0, 3, 4, 0)) == LEFT, "chunk 0 had landed before that grace"


@pytest.mark.parametrize("first", [Alive(0, 1, 2, 0), Alive(0, 1, 1, 1)], ids=["an acknowledgement", "a credit"])
def test_what_the_peer_had_sent_before_grace_proves_enough(first: Alive) -> None:
    machine = sender(1, 1)
    fed(machine, Send(), Send(), Send())
    fed(doubtful(machine), first, Expired(Timer.GRACE))
    assert fed(machine, Alive(0, 2, 3, 1)) == LEFT


def test_the_next_doubt_does_not_know_the_last_answer() -> None:
    machine = doubtful(sender(2))
    fed(machine, Alive(0, 1, 0, 0), Expired(Timer.GRACE), Acked(7, 0), Expired(Timer.ANSWER))
    assert machine.state is SenderState.ACTIVE
    assert fed(machine, Expired(Timer.PROGRESS)) == [Spread(7), *probe(3)]
    assert fed(machine, Alive(0, 3, 1, 0)) == GRACED


def test_progress_clears_the_wire() -> None:
    machine = doubtful(sender(2))
    fed(machine, Alive(0, 1, 0, 0), Acked(7, 0))
    assert fed(machine, Expired(Timer.GRACE)) == []
    assert machine.state is SenderState.ACTIVE
    assert fed(machine, Expired(Timer.PROGRESS)) == [Spread(7), *probe(2)]
    assert fed(machine, Alive(0, 1, 0, 0)) == [], "an answer to an earlier doubt"
    assert machine.state is SenderState.PROBING


def test_a_peer_that_is_slow_to_fold_is_no_fault_of_the_wire() -> None:
    machine = doubtful(sender(4, 4, window=4))
    assert machine.folded < 4
    assert fed(machine, Alive(0, 1, 4, machine.folded)) == [Stop(Timer.ANSWER)]
    assert machine.state is SenderState.ACTIVE


def test_a_credit_that_only_the_peer_knows_of_has_not_come_through() -> None:
    machine = doubtful(sender(4, 4, window=4))
    expected = [*GRACED, *probe(2, spread=False), *LEFT]
    assert fed(machine, Alive(0, 1, 4, 4), Expired(Timer.GRACE), Alive(0, 2, 4, 4)) == expected
    assert machine.folded < 4


def test_a_wire_lost_during_grace_stops_the_timer() -> None:
    machine = doubtful(sender(2))
    machine.handle(Alive(0, 1, 0, 0))
    assert fed(machine, Lost(7, Cause.PORT)) == [Stop(Timer.GRACE), Fence(7)]


def test_a_wire_lost_while_it_is_probed_stops_the_timer() -> None:
    assert fed(doubtful(sender(2)), Lost(7, Cause.PORT)) == [Stop(Timer.ANSWER), Fence(7)]


@pytest.mark.parametrize("came", [(), (Heard(0),), (Credit(7, 0),), (Credit(8, 0), Heard(0)), (Heard(0), Heard(0))])
def test_a_flow_that_owes_nothing_is_tested_by_its_record_and_its_credit(came: tuple[Event, ...]) -> None:
    machine = sender(1, 1)
    assert fed(machine, Doubt(True)) == probe(1, spread=False)
    assert machine.stuck(waiting=False), "these are owed"
    assert fed(machine, *came) == []
    expected = [*GRACED, *probe(2, spread=False), *LEFT]
    assert fed(machine, Alive(0, 1, 1, 0), Expired(Timer.GRACE), Alive(0, 2, 1, 0)) == expected
    assert not machine.stuck(waiting=False)
    assert fed(machine, Fenced(7), Heard(0), Answer(1, 1, 0))[-1] == Moved(1, 7, 8, Cause.PROGRESS, 0)


@pytest.mark.parametrize("late", [True, False])
def test_a_record_asked_for_before_the_move_gives_grace_anew(late: bool) -> None:
    """It says nothing of the new wire, and is asked for again: the peer may answer sooner than that takes."""
    machine = sender(1, 1)
    moved_off(machine)
    fed(machine, Answer(1, 1, 0), Doubt(True), Alive(1, 1, 1, 0))
    asked = [Tell(Probe(1, 2, False)), Start(Timer.ANSWER)]
    assert fed(machine, *[Heard(0)] * late, Expired(Timer.GRACE)) == asked
    if late:
        assert fed(machine, Alive(1, 2, 1, 0)) == GRACED
        assert fed(machine, Credit(8, 0), Heard(1)) == [Stop(Timer.GRACE)]
    else:
        assert fed(machine, Alive(1, 2, 1, 0)) == [Stop(Timer.ANSWER), Fence(8)]


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("reading", [True, False])
def test_what_comes_through_ends_the_doubt_of_an_idle_flow(alive: bool, reading: bool) -> None:
    machine = sender(1, 1)
    fed(machine, Doubt(reading), *[Alive(0, 1, 1, 0)] * alive)
    if reading:
        assert fed(machine, Heard(1), Heard(0)) == [], "of another wire; then of this one, but the credit is owed"
    assert fed(machine, Credit(7, 0)) == [Stop(Timer.GRACE if alive else Timer.ANSWER)]
    assert machine.state is SenderState.ACTIVE
    assert not machine.stuck(waiting=False)
    assert fed(machine, Heard(0), Credit(7, 0), Expired(Timer.GRACE)) == []


def test_a_chunk_that_comes_through_ends_the_doubt_as_well() -> None:
    machine = sender(1, 1)
    fed(machine, Doubt(True), Send(), Acked(7, 1))
    assert fed(machine, Alive(0, 1, 2, 0)) == [Stop(Timer.ANSWER)]
    assert not machine.stuck(waiting=False), "nothing is owed any more"


def test_a_flow_that_owes_something_is_tested_by_that() -> None:
    machine = sender(2, 1)
    assert fed(machine, Doubt(False)) == probe(1, spread=False)
    expected = [*GRACED, *probe(2, spread=False), *LEFT]
    assert fed(machine, Alive(0, 1, 1, 0), Expired(Timer.GRACE), Alive(0, 2, 1, 0)) == expected
