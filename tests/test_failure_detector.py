"""Who is to blame for a failed run, by what ranks say, and what ranks do until the verdict."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from optcc.runtime.control.judgement import GRACE_S, Accusation, Hub, most_accused
from optcc.runtime.control.member import _listen
from optcc.runtime.errors import FlowSeveredError, RankFailedError, TransportError
from optcc.runtime.messages import Broken, Joined, RunFailed


def hub_of(world: int) -> Hub:
    """All ranks are there."""
    hub = Hub(range(world), lambda numbers, message: None, 300.0)
    for number in range(world):
        hub.take(number, Joined(), 0.0)
    return hub


def verdict(hub: Hub, now: float) -> RunFailed | None:
    """What it says then."""
    hub.look(now)
    return hub.failed


@pytest.mark.parametrize("evidence", [True, False])
def test_the_hub_prefers_evidence_to_hearsay(evidence: bool) -> None:
    hub = hub_of(3)
    hub.take(0, Broken("lost rank 1: it closed the connection", blames=1), 1.0)
    assert verdict(hub, 1.0 + GRACE_S / 2) is None
    if evidence:
        hub.take(2, Broken("MemoryError: none left"), 1.0 + GRACE_S / 2)
    accused = RunFailed(1, "rank 0 lost rank 1: it closed the connection")
    assert verdict(hub, 1.0 + GRACE_S) == (RunFailed(2, "MemoryError: none left") if evidence else accused)


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
def test_the_hub_hears_others_before_it_takes_an_accusation(later_s: float) -> None:
    hub = hub_of(4)
    for nth, (accuser, said) in enumerate(accused(*DARK_SPEAKS_FIRST).items()):
        hub.take(accuser, Broken(said.cause, blames=said.blamed), 1.0 + nth * later_s)
    assert verdict(hub, 0.99 + GRACE_S) is None
    assert verdict(hub, 1.0 + GRACE_S) == RunFailed(1, "rank 0 lost rank 1"), "from the first accusation on"


def test_without_the_others_the_first_accusation_would_be_the_verdict() -> None:
    """The negative control: what it was."""
    hub = hub_of(4)
    accuser, said = next(iter(accused(*DARK_SPEAKS_FIRST).items()))
    hub.take(accuser, Broken(said.cause, blames=said.blamed), 1.0)
    assert verdict(hub, 1.0 + GRACE_S) == RunFailed(2, "rank 1 lost rank 2")


class Says:
    """Links that are up, or a control channel: whenever they are looked after they raise the next of these."""

    def __init__(self, *errors: Exception, fd: int = -1) -> None:
        self.errors, self.asked, self.up, self._fd = [*errors], 0, True, fd

    def fileno(self) -> int:
        return self._fd

    def poll(self, until: float = 0.0) -> None:
        self.asked += 1
        raise self.errors.pop(0)

    check = poll


VERDICT = RankFailedError(1, "lost")


@pytest.mark.parametrize(
    ("served", "asked"),
    [
        ((FlowSeveredError(2, "nor for this flow"), VERDICT), (2, 0)),
        ((TransportError("a gap"),), (1, 1)),
        (None, (0, 1)),
    ],
    ids=["serves its flows", "as long as they can be served", "not after a bug"],
)
def test_a_rank_that_has_lost_a_peer_answers_the_others_until_the_verdict(
    served: tuple[Exception, ...] | None, asked: tuple[int, int]
) -> None:
    """Or they could not find out that it is the one who is lost: a peer that does not answer may just be paused."""
    reader, writer = os.pipe()
    os.write(writer, b"a verdict")
    links, control = Says(*(served or ())), Says(VERDICT, fd=reader)
    with pytest.raises(RankFailedError):
        _listen(cast("Any", control), 10.0, cast("Any", None if served is None else links))
    assert (links.asked, control.asked) == asked
    os.close(reader)
    os.close(writer)
