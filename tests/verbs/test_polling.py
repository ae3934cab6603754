"""When a rank asks its NICs for events: not while there is something to tell, and never too late to be woken."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from optcc.runtime.wires.contract import ECHOES, Arrived, Credited, FlowSpec
from tests.verbs.ranks import Ranks
from tests.wires_contract import SLOT_BYTES, WINDOW, count, landed, quiet, send, until

pytestmark = pytest.mark.rdma

SOON_S = 0.05
"""Until a small write has landed for sure."""


@pytest.fixture
def job() -> Iterator[Ranks]:
    """Rank 1 has had the event that was asked for, so that its NIC owes it none."""
    with Ranks() as ranks:
        send(ranks, 0, 0, 0)
        until(ranks, 1, count(Arrived, 1))
        ranks.ranks[1]._nics[0].take_event()  # unless it was woken by that
        yield ranks


def test_what_comes_just_before_an_event_is_asked_for_is_told(job: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    nic = job.ranks[1]._nics[0]
    arms = nic.arms

    def late() -> bool:
        send(job, 0, 0, 1)
        time.sleep(SOON_S)
        asked = arms()
        assert asked, "or there would be an event for it"
        return asked

    monkeypatch.setattr(nic, "arms", late)
    assert landed(job.ranks[1].poll(job.now() + 20 * SOON_S)) == [(0, 0, 1)]


def test_no_event_is_asked_for_while_there_is_something_to_tell(job: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    nic = job.ranks[1]._nics[0]
    asked, arms = [], nic.arms
    monkeypatch.setattr(nic, "arms", lambda: asked.append(arms()))
    for seq in range(1, WINDOW):
        send(job, 0, 0, seq)
        time.sleep(SOON_S)
        assert landed(job.ranks[1].poll(job.now() + SOON_S)) == [(0, 0, seq)]
    assert asked == []
    assert job.ranks[1].poll(job.now() + SOON_S) == []
    assert asked == [True]


def test_a_look_without_a_wait_hears_the_watch_also_while_chunks_come(
    job: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optcc.runtime.verbs import poll_clock

    monkeypatch.setattr(poll_clock, "LOOK_EVERY_S", 1000.0)
    job.ranks[1].poll(-float("inf"))
    for seq, look, heard in ((1, job.now() + SOON_S, 0), (2, -float("inf"), 1)):
        send(job, 0, 0, seq)
        job.watches[1].speak()
        time.sleep(SOON_S)
        assert landed(job.ranks[1].poll(look)) == [(0, 0, seq)]
        assert (job.watches[1].heard > 0) == heard, "every thousand seconds, or when nothing is waited for"


def test_the_clock_stands_still_between_polls_unless_it_is_looked_at_again(job: Ranks) -> None:
    rank = job.ranks[0]
    rank.poll(-float("inf"))
    before = rank.clock()
    time.sleep(0.001)
    assert rank.clock() == before
    after = rank.look_again()
    assert after > before
    assert rank.clock() == after


@pytest.mark.parametrize("window", [1, 4])
def test_credits_of_a_window_and_echoes_find_receives_at_a_rank_that_is_busy(window: int) -> None:
    """Its NIC would refuse the one too many until the other end gives up: that is an error on all ranks."""
    with Ranks(flows=[FlowSpec(0, 1, (0,), window, SLOT_BYTES)]) as job:
        for seq in range(window):
            send(job, 0, 0, seq)
        until(job, 1, count(Arrived, window))
        for folded in (*range(1, window + 1), *[window] * ECHOES):
            job.ranks[1].credit(0, 0, folded)
        quiet(job, 1, for_s=1.0)  # in virtual time; on other NICs 5 ms would do
        credits = [s.folded for s in quiet(job, 0) if isinstance(s, Credited)]
        assert credits == [*range(1, window + 1), *[window] * ECHOES]
