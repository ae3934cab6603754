"""The failover protocol's sender by itself: chunks, moves to other wires, and flows that are severed or stranded."""

from __future__ import annotations

import pytest

from optcc.runtime.protocol import ProtocolError, Sender, SenderState
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
    Found,
    Heard,
    Lost,
    Moved,
    Notice,
    Refuse,
    Release,
    Send,
    Severed,
    Start,
    Stop,
    Timer,
    Write,
)
from optcc.runtime.wires.contract import Cause
from tests.protocol_ends import doubtful, fed, moved_off, question, sender


def test_chunks_are_written_in_order_within_the_window() -> None:
    machine = Sender((7, 8), 2)
    assert fed(machine, Send(), Send()) == [Write(7, 0, 0, False), Write(7, 0, 1, False)]
    assert not machine.may_send
    with pytest.raises(ProtocolError, match="full window"):
        machine.handle(Send())
    assert fed(machine, Acked(7, 0), Credit(7, 1)) == [Release(1)]
    assert machine.may_send
    assert (machine.posted, machine.acked, machine.folded, machine.outstanding) == (2, 1, 1, 1)


def test_one_acknowledgement_may_stand_for_several_chunks() -> None:
    machine = sender(3)
    assert fed(machine, Acked(7, 2), Acked(7, 1)) == [Release(3)]
    assert machine.outstanding == 0


def test_the_progress_timer_is_wanted_only_while_something_is_owed() -> None:
    machine = sender()
    assert not machine.stuck(waiting=True), "may send"
    machine.handle(Send())
    assert machine.stuck(waiting=False)
    machine.handle(Acked(7, 0))
    assert not machine.stuck(waiting=False)
    fed(machine, Send(), Send(), Send(), Acked(7, 3))
    assert machine.stuck(waiting=True), "the window is full"
    assert not machine.stuck(waiting=False), "but nothing waits"
    before = machine.progress
    machine.handle(Credit(7, 1))
    assert machine.progress > before
    moved_off(machine)
    assert not machine.stuck(waiting=True), "the ANSWER timer is in charge"


@pytest.mark.parametrize("event", [Lost(7, Cause.ERROR), Notice(7, Cause.PORT)], ids=["here", "there"])
def test_a_lost_wire_is_fenced_then_the_receiver_is_asked_then_the_rest_is_written_again(event: Event) -> None:
    machine = sender(4, 1)
    assert fed(machine, event) == [Fence(7)]
    assert not machine.may_send
    assert fed(machine, Fenced(7)) == question(1, 8)
    cause = event.cause if isinstance(event, Lost) else Cause.NOTICE
    again = [Write(8, 1, seq, True) for seq in (2, 3)]
    assert fed(machine, Answer(1, 2, 1)) == [Stop(Timer.ANSWER), Release(2), Moved(1, 7, 8, cause, 2), *again]
    assert (machine.state, machine.wire, machine.epoch, machine.lost) == (SenderState.ACTIVE, 8, 1, {7})
    assert fed(machine, Credit(8, 2), Send()) == [Write(8, 1, 4, False)]


def test_an_idle_flow_moves_too() -> None:
    machine = sender()
    assert moved_off(machine) == [Fence(7), *question(1, 8)]
    assert fed(machine, Answer(1, 0, 0)) == [Stop(Timer.ANSWER), Moved(1, 7, 8, Cause.PORT, 0)]


def test_what_had_landed_but_not_been_acknowledged_is_not_written_again() -> None:
    machine = sender(3, 2)
    moved_off(machine)
    assert fed(machine, Answer(1, 3, 3)) == [Stop(Timer.ANSWER), Release(3), Moved(1, 7, 8, Cause.PORT, 0)]


def test_acknowledgements_and_credits_of_the_old_wire_count_until_it_is_drained() -> None:
    machine = sender(3)
    machine.handle(Lost(7, Cause.PORT))
    assert fed(machine, Acked(7, 1), Credit(7, 1)) == [Release(2)]
    fed(machine, Fenced(7), Answer(1, 3, 1))
    assert fed(machine, Acked(7, 2)) == []


def test_a_credit_by_the_new_wire_may_overtake_the_answer() -> None:
    machine = sender(4)
    moved_off(machine)
    fed(machine, Credit(8, 3), Answer(1, 3, 2))
    assert machine.folded == 3


@pytest.mark.parametrize(
    "event",
    [Answer(1, 0, 0), Answer(1, 4, 0), Answer(1, 2, 3), Credit(7, 4)],
    ids=["forgets", "too many landed", "folded before landed", "credit unsent"],
)
def test_what_the_other_end_cannot_have_said_is_an_error(event: Event) -> None:
    machine = sender(3, 1)
    moved_off(machine)
    with pytest.raises(ProtocolError):
        machine.handle(event)


def test_what_was_never_sent_cannot_have_landed() -> None:
    for event in (Acked(7, 3), Alive(0, 1, 4, 0), Alive(0, 1, 1, 2)):
        with pytest.raises(ProtocolError):
            doubtful(sender(3, 1)).handle(event)


def test_letters_of_other_epochs_change_nothing() -> None:
    machine = sender(3)
    moved_off(machine)
    machine.handle(Lost(8, Cause.PORT))
    assert (machine.epoch, machine.state) == (2, SenderState.ASKING)
    assert fed(machine, Answer(1, 2, 1), Refuse(1, 8), Alive(0, 0, 1, 1)) == []
    assert (machine.epoch, machine.state, machine.acked) == (2, SenderState.ASKING, 0)
    fed(machine, Answer(2, 2, 1))
    assert fed(machine, Answer(2, 2, 1), Answer(1, 2, 1), Refuse(2, 9)) == []
    assert (machine.wire, machine.acked, machine.lost) == (9, 2, {7, 8})


@pytest.mark.parametrize(
    "event", [Lost(8, Cause.ERROR), Notice(8, Cause.PORT), Refuse(1, 8)], ids=["here", "there", "refused"]
)
def test_when_the_backup_fails_the_next_is_asked_for_in_a_new_epoch(event: Event) -> None:
    machine = sender(2)
    moved_off(machine)
    assert fed(machine, event) == question(2, 9)
    assert fed(machine, Answer(2, 1, 0))[-1] == Write(9, 2, 1, True)


def test_a_backup_that_fails_while_the_wire_is_fenced_is_not_asked_for() -> None:
    machine = sender(2)
    machine.handle(Lost(7, Cause.PORT))
    assert fed(machine, Lost(8, Cause.PORT), Fenced(8), Fenced(7)) == question(1, 9)


def test_a_wire_not_in_use_only_leaves_the_choice() -> None:
    machine = sender(2)
    assert fed(machine, Lost(8, Cause.PORT), Fenced(8)) == []
    assert (machine.state, machine.lost) == (SenderState.ACTIVE, {8})
    assert moved_off(machine)[1:] == question(1, 9)


def test_a_wire_found_again_is_not_taken_at_once_but_when_the_next_is_lost() -> None:
    machine = sender()
    moved_off(machine)
    fed(machine, Answer(1, 0, 0))
    assert fed(machine, Found(7)) == []
    assert (machine.wire, machine.lost) == (8, set())
    assert moved_off(machine)[1:] == question(2, 7)


def test_the_wire_to_move_off_is_not_found() -> None:
    machine = sender(wires=(7, 8))
    fed(machine, Lost(7, Cause.PORT), Found(7), Fenced(7))
    assert machine.lost == {7}


def test_unanswered_questions_are_repeated_then_the_flow_is_severed() -> None:
    machine = sender(1)
    moved_off(machine)
    again, end = Expired(Timer.ANSWER), Expired(Timer.GRACE)
    assert fed(machine, again, end, again) == question(1, 8, nth=1) + question(1, 8, nth=2)
    (severed,) = fed(machine, again)
    assert isinstance(severed, Severed)
    assert "no answer to 3 questions" in severed.why


def test_without_a_wire_the_flow_is_severed_once_and_says_nothing_more() -> None:
    machine = sender(1, wires=(7, 8))
    moved_off(machine)
    stop, severed = machine.handle(Lost(8, Cause.PORT))
    assert (stop, type(severed)) == (Stop(Timer.ANSWER), Severed)
    events = [Send(), Acked(7, 0), Credit(7, 1), Lost(7, Cause.PORT), Found(7), Fenced(7), Expired(Timer.ANSWER)]
    events += [Answer(1, 0, 0), Refuse(1, 8), Alive(0, 0, 0, 0), Notice(7, Cause.PORT), Doubt(True), Heard(0)]
    assert {type(event) for event in events} == {event for state, event in Sender.TABLE if state is SenderState.SEVERED}
    assert fed(machine, *events) == []
    assert not machine.may_send


def test_a_flow_that_owes_nothing_is_stranded_and_severed_only_by_the_next_chunk() -> None:
    machine = sender(2, 2, wires=(7,))
    assert fed(machine, Lost(7, Cause.PORT)) == []
    assert (machine.state, machine.may_send) == (SenderState.STRANDED, True)
    (severed,) = machine.handle(Send())
    assert isinstance(severed, Severed)


def test_a_stranded_flow_whose_window_is_full_is_severed_by_the_progress_timer() -> None:
    machine = sender(wires=(7,), window=1)
    fed(machine, Send(), Acked(7, 0), Lost(7, Cause.PORT))
    assert machine.stuck(waiting=True)
    assert not machine.stuck(waiting=False)
    assert isinstance(machine.handle(Expired(Timer.PROGRESS))[0], Severed)


def test_a_stranded_flow_takes_the_first_wire_that_is_found() -> None:
    machine = sender(wires=(7, 8))
    fed(machine, Lost(8, Cause.PORT), Lost(7, Cause.PORT))
    assert fed(machine, Found(8), Fenced(7)) == [Fence(7), *question(1, 8)]


# --- a wire that may come back ---------------------------------------------------------------------------------------


def waiting(posted: int, acked: int = 0) -> Sender:
    """With all of its wires lost, of which one may come back."""
    machine = Sender((7, 8), 4, waits=True)
    fed(machine, *[Send()] * posted, *(Acked(7, seq) for seq in range(acked)), Lost(8, Cause.PORT))
    assert fed(machine, Lost(7, Cause.PORT)) == [Fence(7)]
    assert fed(machine, Fenced(7)) == [Start(Timer.RETURN)]
    assert (machine.state, machine.may_send, machine.stuck(True)) == (SenderState.WAITING, False, False)
    return machine


@pytest.mark.parametrize("wire", [7, 8])
def test_it_waits_for_a_wire_and_resumes_there_even_on_its_own(wire: int) -> None:
    machine = waiting(3, 1)
    assert fed(machine, Acked(7, 2), Notice(8, Cause.ERROR), Fenced(7), Heard(0)) == []
    assert fed(machine, Found(wire)) == [Stop(Timer.RETURN), *question(1, wire)]
    again = [Write(wire, 1, 2, True)]
    assert fed(machine, Answer(1, 2, 2)) == [Stop(Timer.ANSWER), Release(2), Moved(1, 7, wire, Cause.PORT, 1), *again]
    assert (machine.state, machine.wire) == (SenderState.ACTIVE, wire)


def test_it_waits_again_when_the_wire_that_came_back_is_refused_or_lost() -> None:
    machine = waiting(1)
    fed(machine, Found(7))
    assert fed(machine, Refuse(1, 7)) == [Stop(Timer.ANSWER), Start(Timer.RETURN)]
    fed(machine, Found(7))
    assert fed(machine, Lost(7, Cause.PORT)) == [Stop(Timer.ANSWER), Start(Timer.RETURN)]
    assert fed(machine, Found(8)) == [Stop(Timer.RETURN), *question(3, 8)]


def test_it_waits_in_vain_and_gives_up_what_it_owes() -> None:
    machine = waiting(1)
    assert fed(machine, Expired(Timer.ANSWER)) == []
    (severed,) = fed(machine, Expired(Timer.RETURN))
    assert isinstance(severed, Severed)
    assert "none has come back" in severed.why


def test_one_that_owes_nothing_is_stranded_and_a_wire_may_still_come_back() -> None:
    machine = waiting(1, 1)
    assert fed(machine, Expired(Timer.RETURN)) == []
    assert (machine.state, machine.may_send) == (SenderState.STRANDED, True)
    assert fed(machine, Found(7)) == [Stop(Timer.RETURN), *question(1, 7)]
