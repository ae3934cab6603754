"""Who is to blame for a failed run: silence, standstill and accusations, and what ranks do until the verdict."""

from __future__ import annotations

from typing import Any, cast

import pytest

from optcc.runtime.control.failure_detector import GRACE_S, PING_S, Accusation, FailureDetector, most_accused
from optcc.runtime.control.serving import _await_verdict
from optcc.runtime.errors import FlowSeveredError, RankFailedError, TransportError
from optcc.runtime.messages import Broken, Pong, Reply


def test_the_detector_waits_for_every_reply() -> None:
    detector = FailureDetector(3, patience_s=2.0, now=0.0)
    for rank in range(3):
        assert detector.pending
        detector.heard(rank, Reply(), 0.1)
    assert not detector.pending
    assert detector.verdict(100.0) is None


def test_the_detector_pings_those_that_owe_a_reply() -> None:
    detector = FailureDetector(3, patience_s=2.0, now=0.0)
    assert detector.to_ask(PING_S / 2) == []
    detector.heard(1, Reply(), 0.1)
    assert detector.to_ask(PING_S) == [0, 2]
    detector.heard(0, Pong(1, "x"), 0.6)
    assert detector.to_ask(1.2 * PING_S) == []
    assert detector.to_ask(2 * PING_S) == [0], "rank 2 has not answered yet"


def test_the_detector_takes_silence_for_death_after_its_patience() -> None:
    detector = FailureDetector(2, patience_s=2.0, now=0.0)
    assert detector.to_ask(1.0) == [0, 1]
    detector.heard(0, Pong(1, "x"), 1.0)
    for second in (1.5, 2.5):
        detector.heard(0, Pong(int(10 * second), "x"), second)
        assert detector.verdict(second) is None
    assert detector.verdict(3.1) == (1, "no sign of life for 2 s")


def test_the_detector_tells_a_silent_rank_from_those_that_wait_for_it() -> None:
    detector = FailureDetector(3, patience_s=2.0, now=0.0)
    detector.to_ask(1.0)
    for rank in (0, 2):
        detector.heard(rank, Pong(0, "waits"), 1.0)
    assert detector.verdict(2.9) is None
    assert detector.verdict(3.1) == (1, "no sign of life for 2 s"), "not rank 0, which answers"


def test_the_detector_notices_that_nothing_moves() -> None:
    detector = FailureDetector(2, patience_s=2.0, now=0.0)
    for second in range(1, 4):
        assert detector.verdict(second) is None
        for rank in detector.to_ask(second):
            detector.heard(rank, Pong(5, "2 transfers"), second)
    assert detector.verdict(3.1) == (0, "no progress anywhere for 2 s; there: 2 transfers")


def test_the_detector_prefers_evidence_to_hearsay() -> None:
    detector = FailureDetector(3, patience_s=9.0, now=0.0)
    detector.heard(0, Broken("lost rank 1: it closed the connection", blames=1), 1.0)
    assert detector.verdict(1.0 + GRACE_S / 2) is None
    assert detector.verdict(1.0 + GRACE_S) == (1, "rank 0 lost rank 1: it closed the connection")
    detector.heard(2, Broken("MemoryError: none left"), 1.1)
    assert detector.verdict(1.1) == (2, "MemoryError: none left")


def accused(*said: tuple[int, int]) -> dict[int, Accusation]:
    """(accuser, whom it blames), in the order of time."""
    return {accuser: Accusation(blamed, f"lost rank {blamed}") for accuser, blamed in said}


DARK_SPEAKS_FIRST = (1, 2), (0, 1)
"""In a ring of four all NICs of rank 1 are black holes: it loses the next rank, and the one before loses it."""


@pytest.mark.parametrize(
    ("said", "culprit"),
    [
        (((1, 2), (0, 2)), 2),
        (((3, 1), (1, 2), (2, 1)), 1),
        (((1, 3), (0, 2), (4, 2)), 2),
        (((1, 2), (0, 1), (2, 0)), 2),
        (((1, 0), (0, 1)), 0),
        (((1, 3), (0, 2)), 3),
        (((0, 1), (1, 2), (3, 2)), 2),
    ],
    ids=[
        "one and all",
        "by more, although each other",
        "by more that nobody accuses",
        "a circle: the first",
        "each other: the first",
        "as many: the first",
        "as many that nobody accuses, and more at all",
    ],
)
def test_whom_most_ranks_accuse_is_to_blame(said: tuple[tuple[int, int], ...], culprit: int) -> None:
    assert most_accused(accused(*said))[0] == culprit


def test_the_word_of_an_accused_rank_counts_for_less() -> None:
    assert most_accused(accused(*DARK_SPEAKS_FIRST)) == (1, "rank 0 lost rank 1")
    assert next(iter(accused(*DARK_SPEAKS_FIRST).values())).blamed == 2, "the first accusation blames another one"


def test_the_witness_is_one_that_nobody_accuses() -> None:
    assert most_accused(accused((2, 1), (1, 2), (0, 1))) == (1, "rank 0 lost rank 1")


@pytest.mark.parametrize("later_s", [0.0, 0.5])
def test_the_detector_hears_others_before_it_takes_an_accusation(later_s: float) -> None:
    detector = FailureDetector(4, patience_s=9.0, now=0.0)
    for nth, (accuser, said) in enumerate(accused(*DARK_SPEAKS_FIRST).items()):
        detector.heard(accuser, Broken(said.cause, blames=said.blamed), 1.0 + nth * later_s)
    assert detector.verdict(0.99 + GRACE_S) is None
    assert detector.verdict(1.0 + GRACE_S) == (1, "rank 0 lost rank 1"), "from the first accusation on"


def test_without_the_others_the_first_accusation_would_be_the_verdict() -> None:
    """The negative control: what it was."""
    detector = FailureDetector(4, patience_s=9.0, now=0.0)
    accuser, said = next(iter(accused(*DARK_SPEAKS_FIRST).items()))
    detector.heard(accuser, Broken(said.cause, blames=said.blamed), 1.0)
    assert detector.verdict(1.0 + GRACE_S) == (2, "rank 1 lost rank 2")


class Says:
    """A worker, or its control channel: every command that it is asked for raises the next of these."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked = [*errors], 0

    def command(self) -> None:
        self.asked += 1
        raise self.errors.pop(0)


VERDICT = RankFailedError(1, "lost")


@pytest.mark.parametrize(
    ("error", "served", "asked"),
    [
        (FlowSeveredError(2, "no wire left"), (FlowSeveredError(2, "nor for this flow"), VERDICT), (2, 0)),
        (FlowSeveredError(2, "no wire left"), (TransportError("a gap"),), (1, 1)),
        (TransportError("a bug"), (), (0, 1)),
    ],
    ids=["serves its flows", "as long as they can be served", "not after a bug"],
)
def test_a_rank_that_has_lost_a_peer_answers_the_others_until_the_verdict(
    error: Exception, served: tuple[Exception, ...], asked: tuple[int, int]
) -> None:
    """Or they could not find out that it is the one who is lost: a peer that does not answer may just be paused."""
    worker, control = Says(*served), Says(VERDICT)
    with pytest.raises(RankFailedError):
        _await_verdict(cast("Any", worker), cast("Any", control), error)
    assert (worker.asked, control.asked) == asked
