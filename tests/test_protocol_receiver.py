"""The failover protocol's receiver by itself: chunks, credits, questions, and wires lost at its end."""

from __future__ import annotations

import pytest

from optcc.runtime.protocol import ProtocolError, ReceiverState, SenderState
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
    Landed,
    Lost,
    Notice,
    Probe,
    Publish,
    Refuse,
    Return,
    Send,
    Spread,
    Start,
    Tell,
    Timer,
)
from optcc.runtime.protocol.receiver import NOTICES
from optcc.runtime.wires.contract import ECHOES, Cause
from tests.protocol_ends import fed, receiver, sender


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
