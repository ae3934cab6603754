"""The two machines of a flow by themselves, brought to where a test begins; their tables, which the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime.protocol import ProtocolError, Receiver, ReceiverState, Sender, SenderState
from optcc.runtime.protocol.doubting import PROBES
from optcc.runtime.protocol.events import (
    Acked,
    Alive,
    Answer,
    Ask,
    Credit,
    Deliver,
    Doubt,
    Echo,
    Event,
    Expired,
    Fence,
    Fenced,
    Folded,
    Found,
    Heard,
    Landed,
    Lost,
    Moved,
    Notice,
    Probe,
    Publish,
    Read,
    Refuse,
    Release,
    Return,
    Send,
    Severed,
    Spread,
    Start,
    Stop,
    Tell,
    Timer,
    Write,
)
from optcc.runtime.protocol.receiver import NOTICES
from optcc.runtime.protocol.table import Machine, Row, table
from optcc.runtime.wires.contract import ECHOES, Cause
from tools.protocol_tables import document, update

# The two machines of a flow by themselves, brought to where a test begins, and what is expected of them.


GRACED = [Stop(Timer.ANSWER), Start(Timer.GRACE)]
LEFT = [Stop(Timer.ANSWER), Fence(7)]
"""What is done when the peer is alive: time is given to the wire; and then the wire is given up."""


def fed(machine: Machine, *events: Event) -> list[Any]:
    """All commands that `events` bring about."""
    return [command for event in events for command in machine.handle(event)]


def sender(
    posted: int = 0, acked: int = 0, *, wires: tuple[int, ...] = (7, 8, 9), window: int = 4, asks: int = 3
) -> Sender:
    """A sender that has posted and has had acknowledged so many chunks."""
    machine = Sender(wires, window, asks=asks)
    for seq in range(posted):
        machine.handle(Credit(7, min(seq, acked)))
        machine.handle(Send())
        if seq < acked:
            machine.handle(Acked(7, seq))
    return machine


def receiver(
    landed: int = 0, *, wires: tuple[int, ...] = (7, 8, 9), window: int = 4, credit_every: int = 1
) -> Receiver:
    """A receiver at which so many chunks have landed, none folded."""
    machine = Receiver(wires, window, credit_every=credit_every)
    fed(machine, *(Landed(7, 0, seq) for seq in range(landed)))
    return machine


def moved_off(machine: Sender, cause: Cause = Cause.PORT) -> list[Any]:
    return fed(machine, Lost(machine.wire, cause), Fenced(machine.wire))


def question(epoch: int, wire: int, nth: int = 0) -> list[Any]:
    return [Tell(Ask(epoch, wire)), Read(wire), Start(Timer.ANSWER, nth)]


def probe(nonce: int, spread: bool = True, nth: int = 0) -> list[Any]:
    return [Tell(Probe(0, nonce, spread)), Start(Timer.ANSWER, nth)]


def doubtful(machine: Sender) -> Sender:
    assert fed(machine, Expired(Timer.PROGRESS)) == [Spread(7), *probe(1)]
    return machine


# The failover protocol's sender by itself: chunks, moves to other wires, and flows that are severed or stranded.


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


# The failover protocol's receiver by itself: chunks, credits, questions, and wires lost at its end.


def test_chunks_are_delivered_and_credits_returned_without_gaps() -> None:
    machine = receiver(window=3)
    assert fed(machine, *(Landed(7, 0, seq) for seq in range(3))) == [Deliver(seq) for seq in range(3)]
    assert fed(machine, Folded(1)) == []
    assert fed(machine, Folded(0), Folded(2)) == [Return(7, 2), Return(7, 3)]


def test_credits_may_be_bundled() -> None:
    machine = receiver(4, credit_every=3)
    assert fed(machine, *map(Folded, range(4))) == [Return(7, 3)]
    assert fed(machine, Probe(0, 5, False)) == [Echo(7, 3), Tell(Alive(0, 5, 4, 3))], (
        "what has not been sent is not owed"
    )


def test_a_question_fences_the_old_wire_before_it_is_answered() -> None:
    machine = receiver(2)
    assert fed(machine, Ask(1, 8)) == [Fence(7)]
    assert fed(machine, Landed(7, 0, 2), Folded(0)) == [Deliver(2)], "still coming out of the old wire"
    answer = Tell(Answer(1, 3, 1))
    assert fed(machine, Fenced(8), Fenced(7)) == [Publish(1, 3, 1), answer]
    assert (machine.state, machine.wire, machine.epoch, machine.lost) == (ReceiverState.OPEN, 8, 1, {7})
    assert fed(machine, Ask(1, 8)) == [answer], "the answer was lost"
    assert fed(machine, Landed(8, 1, 3), Folded(1)) == [Deliver(3), Return(8, 2)]


def test_ghosts_are_counted_and_ignored() -> None:
    machine = receiver(2)
    fed(machine, Ask(1, 8), Fenced(7))
    assert fed(machine, Landed(7, 0, 2), Landed(8, 0, 2), Landed(7, 1, 2)) == []
    assert (machine.ghosts, machine.landed) == (3, 2)


@pytest.mark.parametrize(
    "event",
    [Landed(7, 0, 3), Landed(7, 0, 1), Landed(7, 1, 2), Folded(2), Lost(5, Cause.PORT), Ask(1, 5)],
    ids=["gap", "again", "epoch never asked for", "folded unlanded", "foreign wire", "foreign wire asked"],
)
def test_what_cannot_be_is_an_error(event: Event) -> None:
    with pytest.raises(ProtocolError):
        receiver(2).handle(event)


def test_a_chunk_folded_twice_is_an_error() -> None:
    machine = receiver(3)
    machine.handle(Folded(1))
    with pytest.raises(ProtocolError):
        machine.handle(Folded(1))


def test_a_chunk_in_a_slot_that_is_not_free_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="not yet free"):
        receiver(4, window=4).handle(Landed(7, 0, 4))


def test_questions_of_earlier_epochs_change_nothing() -> None:
    machine = receiver(1)
    fed(machine, Ask(2, 9), Ask(1, 8), Fenced(7))
    assert (machine.epoch, machine.wire) == (2, 9)
    assert fed(machine, Ask(1, 8)) == []


def test_a_later_question_while_fencing_takes_the_place_of_the_earlier() -> None:
    machine = receiver(1)
    assert fed(machine, Ask(1, 8), Ask(2, 9), Ask(1, 8)) == [Fence(7)]
    assert fed(machine, Fenced(7))[-1] == Tell(Answer(2, 1, 0))


def test_a_wire_lost_at_this_end_is_told_and_refused() -> None:
    machine = receiver()
    assert fed(machine, Lost(8, Cause.PORT), Lost(8, Cause.ERROR)) == [Tell(Notice(8, Cause.PORT))]
    assert machine.state is ReceiverState.OPEN, "it is not on that one"
    assert fed(machine, Ask(1, 8)) == [Tell(Refuse(1, 8))]
    machine.handle(Found(8))
    assert fed(machine, Ask(1, 8)) == [Tell(Refuse(1, 8))], "refused is refused"
    assert fed(machine, Ask(2, 8)) == [Fence(7)]


def test_a_wire_lost_while_the_old_one_is_fenced_is_refused() -> None:
    machine = receiver()
    fed(machine, Ask(1, 8), Lost(8, Cause.PORT))
    assert fed(machine, Fenced(7)) == [Tell(Refuse(1, 8))]
    assert fed(machine, Ask(2, 9), Fenced(7)) == [Fence(7), Publish(2, 0, 0), Tell(Answer(2, 0, 0))]


def test_the_wire_it_is_on_is_refused() -> None:
    assert fed(receiver(), Ask(1, 7)) == [Tell(Refuse(1, 7))]


def test_its_own_wire_found_again_is_taken_at_once_since_it_was_fenced() -> None:
    machine = receiver(2)
    machine.handle(Folded(0))
    fed(machine, Lost(7, Cause.PORT), Found(7))
    assert fed(machine, Expired(Timer.ANSWER)) == [], "nothing more to say about its former life"
    assert fed(machine, Ask(1, 7)) == [Publish(1, 2, 1), Tell(Answer(1, 2, 1))]
    assert (machine.state, machine.epoch, machine.wire) == (ReceiverState.OPEN, 1, 7)


def test_another_wire_is_taken_without_a_fence_where_its_own_was_found_again() -> None:
    machine = receiver()
    fed(machine, Lost(7, Cause.PORT), Found(7))
    assert fed(machine, Ask(1, 8)) == [Publish(1, 0, 0), Tell(Answer(1, 0, 0))]


def test_a_wire_to_move_off_is_not_found() -> None:
    machine = receiver()
    fed(machine, Lost(7, Cause.PORT), Ask(1, 8), Found(7), Fenced(7))
    assert (machine.wire, machine.lost) == (8, {7})


def test_an_idle_receiver_that_lost_its_wire_says_so_again_when_probed() -> None:
    machine = receiver()
    notice = Tell(Notice(7, Cause.PORT))
    assert fed(machine, Lost(7, Cause.PORT)) == [notice, Start(Timer.ANSWER)]
    assert machine.state is ReceiverState.CUT
    assert fed(machine, Probe(0, 1, False)) == [Echo(7, 0), Tell(Alive(0, 1, 0, 0)), notice]
    assert fed(machine, Landed(7, 0, 0)) == [Deliver(0)], "not fenced yet"
    fed(machine, Ask(1, 8), Fenced(7))
    again = Probe(1, 2, False)
    assert fed(machine, again) == [Echo(8, 0), Tell(Alive(1, 2, 1, 0))]
    assert fed(machine, again) == [Tell(Alive(1, 2, 1, 0))], "an echo for each doubt: every one takes a receive"
    assert fed(machine, Probe(0, 1, True)) == []


def test_two_echoes_and_a_credit_may_be_under_way_at_once() -> None:
    """A doubt may end by a chunk that comes through, and the next begin, while its echo is still under way."""
    here, there = sender(1, 1, window=1), receiver(1, window=1)
    back = fed(there, Folded(0))
    here.handle(Credit(7, 1))
    for nonce, events in ((1, [Doubt(False), Send(), Acked(7, 1)]), (2, [Doubt(False)])):
        assert Tell(Probe(0, nonce, False)) in fed(here, *events)
        back += fed(there, *[Landed(7, 0, 1)] * (nonce == 1), Probe(0, nonce, False))
        here.handle(Alive(0, nonce, 2, 1))
        assert (here.state is SenderState.ACTIVE) == (nonce == 1)
    back += fed(there, Folded(1))
    assert [c for c in back if isinstance(c, (Echo, Return))] == [Return(7, 1), Echo(7, 1), Echo(7, 1), Return(7, 2)]
    assert here.folded == 1, "none of the last three has been seen: a window of one, and ECHOES"
    assert ECHOES == 2


def test_a_notice_is_repeated_until_somebody_asks_or_often_enough() -> None:
    again, notice = Expired(Timer.ANSWER), Tell(Notice(7, Cause.PORT))
    machine = receiver()
    machine.handle(Lost(7, Cause.PORT))
    expected = [command for nth in range(1, NOTICES) for command in (notice, Start(Timer.ANSWER, nth))]
    assert fed(machine, Expired(Timer.GRACE), *[again] * 50) == expected
    machine = receiver()
    assert fed(machine, Lost(7, Cause.PORT), again)[2:] == [notice, Start(Timer.ANSWER, 1)]
    assert fed(machine, Ask(1, 8), again, Fenced(7), again)[-1] == Tell(Answer(1, 0, 0))
    fed(machine, Lost(9, Cause.PORT), Ask(2, 9))
    assert fed(machine, again) == [], "the sender is not on it any more"


def test_a_probe_may_ask_for_tests_of_what_shares_the_nic() -> None:
    assert fed(receiver(1), Probe(0, 1, True)) == [Tell(Alive(0, 1, 1, 0)), Spread(7)]


# The failover protocol's sender in doubt: it asks whether the peer lives before it gives up a wire.


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


# The tables of the failover protocol's machines: what is not in them is an error, and the page shows all that is.


PAGE = Path(__file__).resolve().parent.parent / "docs" / "failover-protocol.md"


def test_an_event_that_the_table_lacks_is_an_error() -> None:
    machine = sender(1)
    machine.handle(Lost(7, Cause.PORT))
    with pytest.raises(ProtocolError, match="fencing"):
        machine.handle(Send())
    with pytest.raises(ProtocolError, match="Landed"):
        machine.handle(Landed(7, 0, 0))


def test_two_rules_for_one_pair_are_an_error() -> None:
    row = Row((SenderState.ACTIVE,), (Send,), Sender._send)
    with pytest.raises(ValueError, match="Send in active"):
        table((row, row))


@pytest.mark.parametrize("make", [lambda: Sender((), 1), lambda: Sender((1, 1), 1), lambda: Sender((1,), 0)])
def test_a_flow_without_wires_or_window_is_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("make", [lambda: Receiver((), 1), lambda: Receiver((1,), 2, credit_every=3)])
def test_a_receiver_that_could_not_return_its_credits_is_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_the_page_is_what_the_tables_say() -> None:
    assert update(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8"), "run tools/protocol_tables.py"


def test_the_page_shows_every_rule() -> None:
    shown = document()
    for machine in (Sender, Receiver):
        for state, event in machine.TABLE:
            assert f"`{event.__name__}`" in shown
            assert f"| {state} |" in shown


def test_the_page_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dict(Sender.TABLE)
    del rules[SenderState.STRANDED, Found]
    monkeypatch.setattr(Sender, "TABLE", rules)
    assert update(PAGE.read_text(encoding="utf-8")) != PAGE.read_text(encoding="utf-8")
