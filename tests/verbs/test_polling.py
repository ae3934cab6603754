"""When a rank asks its NICs for events: not while there is something to tell, and never too late to be woken."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from optcc.runtime.wires import Arrived
from tests.verbs.ranks import Ranks
from tests.wires_contract import WINDOW, count, landed, send, until

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
