"""Which requests go by one call, and which ask for a completion; what is lost with a queue pair, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import (
    HEADER_BYTES,
    Arrived,
    Cause,
    Completed,
    Drained,
    Failed,
    FlowSpec,
    Happening,
    Wire,
)
from tests.verbs.ranks import Ranks
from tests.wires_contract import count, header, landed, quiet, until

pytestmark = pytest.mark.rdma

WINDOW, SIGNALS = 32, 8
WIRES = (Wire(0, 1, 0, 0), Wire(0, 1, 1, 1))
FLOW = FlowSpec(0, 1, (0, 1), WINDOW, 4096)


class Calls:
    """What one end of a wire posts: requests of each call, and whether its last asks for a completion."""

    def __init__(self, end: Any, patch: pytest.MonkeyPatch) -> None:
        self.sends: list[tuple[int, bool]] = []
        self.receives: list[int] = []
        chain, receives = end._chain, end._receives
        post, receive = chain.post, receives.post

        def counted(signalled: bool) -> None:
            self.sends.append((chain.length, signalled))
            post(signalled)

        def received(queue_pair: Any, number: int) -> None:
            self.receives.append(number)
            receive(queue_pair, number)

        patch.setattr(chain, "post", counted)
        patch.setattr(receives, "post", received)


@pytest.fixture
def job() -> Iterator[Ranks]:
    with Ranks(WIRES, [FLOW], settings=VerbsSettings(signals=SIGNALS)) as ranks:
        yield ranks


@pytest.fixture
def calls(job: Ranks, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Calls]:
    return lambda rank: Calls(job.ranks[rank]._ends[0], monkeypatch)


def write(job: Ranks, seqs: range, wire: int = 0) -> None:
    """Chunks that are posted by the next poll."""
    for seq in seqs:
        at = seq * 64
        job.ranks[0].write(wire, 0, seq, header(0, seq), job.memory[0][at : at + 4096], job.now())


def whole(job: Ranks, seqs: range) -> bool:
    """Whether these chunks lie in their slots."""
    return all(
        bytes(job.ranks[1].slot(0, seq)) == header(0, seq) + bytes(job.memory[0][seq * 64 : seq * 64 + 4096])
        for seq in seqs
    )


def test_what_is_written_between_two_polls_goes_by_one_call(job: Ranks, calls: Callable[[int], Calls]) -> None:
    posted = calls(0)
    write(job, range(5))
    assert posted.sends == []
    job.ranks[0].flush()
    assert posted.sends == [(5, False)], "and nobody asks for a completion yet"
    assert landed(until(job, 1, count(Arrived, 5))) == [(0, 0, seq) for seq in range(5)]
    assert whole(job, range(5))


def test_one_completion_stands_for_a_window_of_requests(job: Ranks, calls: Callable[[int], Calls]) -> None:
    posted = calls(0)
    for first in range(0, 2 * SIGNALS, 2):
        write(job, range(first, first + 2))
        job.ranks[0].flush()
    assert [signalled for _, signalled in posted.sends] == [False, False, False, True] * 2
    seen = until(job, 0, lambda seen: Completed(0, 0, 2 * SIGNALS - 1) in seen)
    assert set(seen) <= {Completed(0, 0, SIGNALS - 1), Completed(0, 0, 2 * SIGNALS - 1)}
    assert job.ranks[0]._ends[0].under_way == 0


def test_the_last_chunks_are_told_of_when_somebody_asks(job: Ranks, calls: Callable[[int], Calls]) -> None:
    write(job, range(3))
    job.ranks[0].flush()
    until(job, 1, count(Arrived, 3))
    assert quiet(job, 0) == [], "nobody has asked"
    posted = calls(0)
    for _ in range(3):
        job.ranks[0].hasten(0, 0, 2)
    assert posted.sends == [(1, True)], "once, by a write of nothing"
    assert until(job, 0, count(Completed, 1)) == [Completed(0, 0, 2)]
    assert quiet(job, 1) == []


def test_receives_of_a_poll_are_posted_again_by_one_call(job: Ranks, calls: Callable[[int], Calls]) -> None:
    posted = calls(1)
    write(job, range(12))
    job.ranks[0].hasten(0, 0, 11)
    until(job, 0, count(Completed, 1))
    assert len(landed(job.ranks[1].poll(job.now()))) == 12
    assert posted.receives == [12]


def test_as_many_chunks_as_the_queue_is_deep_go_on_without_being_asked_about(job: Ranks) -> None:
    """More than the queue holds, in one go: the completions that it has asked for make room."""
    write(job, range(5 * WINDOW))
    seen: list[Happening] = []
    while len(seen) < 5 * WINDOW:
        job.ranks[0].poll(job.now() + 0.001)
        seen += [s for s in job.ranks[1].poll(job.now() + 0.001) if isinstance(s, Arrived)]
    assert landed(seen) == [(0, 0, seq) for seq in range(5 * WINDOW)]


def test_a_port_that_has_all_it_may_have_asks_what_is_done() -> None:
    """Four wires, none of which has as many requests as bring a completion by themselves."""
    wires = [Wire(0, 1, 0, 0)] * 4
    flows = [FlowSpec(0, 1, (w,), WINDOW, 4096) for w in range(4)]
    with Ranks(wires, flows, nics=1, settings=VerbsSettings(ahead=8, signals=SIGNALS)) as job:
        for w in range(4):
            for seq in range(2):
                job.ranks[0].write(w, w, seq, bytes(HEADER_BYTES), job.memory[0][:4096], job.now())
        job.ranks[0].flush()
        until(job, 1, count(Arrived, 8))
        assert quiet(job, 0) == []
        assert job.ranks[0].free_at(0, job.now()) == float("inf")
        until(job, 0, lambda seen: sum(isinstance(s, Completed) for s in seen) == 4)
        assert job.ranks[0].free_at(0, job.now()) <= job.now()


@pytest.mark.parametrize("struck", [0, 1], ids=["the sender's end", "the receiver's end"])
def test_a_queue_pair_lost_in_a_window_without_completions_loses_no_chunk(struck: int) -> None:
    """What completions have not told is asked of the record and written again on another wire; nothing is told of
    that has not landed."""
    with Ranks(WIRES, [FLOW], settings=VerbsSettings(timeout=12, retries=2, signals=SIGNALS)) as job:
        write(job, range(SIGNALS + 3))  # no completion for the last three
        job.ranks[0].flush()
        arrived = [s for s in until(job, 1, count(Arrived, SIGNALS + 3)) if isinstance(s, Arrived)]
        job.ranks[struck].fail(0, Cause.ERROR, "broken")
        write(job, range(SIGNALS + 3, SIGNALS + 6))  # into a wire that is dead
        job.ranks[0].flush()
        seen = quiet(job, 0, 0.5)
        job.ranks[1].fence(0)
        arrived += [s for s in until(job, 1, count(Drained, 1)) if isinstance(s, Arrived)]
        job.ranks[0].fence(0)
        seen += until(job, 0, count(Drained, 1))
        assert any(isinstance(s, Failed) for s in seen)
        told = max((s.seq for s in seen if isinstance(s, Completed)), default=-1) + 1
        assert told <= len(arrived) == SIGNALS + 3
        assert job.ranks[0]._ends[0].under_way == job.ranks[0]._backlog.under_way[0] == 0
        job.ranks[1].publish(0, 1, len(arrived), 0)
        assert job.ranks[0].ask_record(1, 0)
        (record,) = until(job, 0, lambda seen: bool(seen))
        write(job, range(record.landed, SIGNALS + 6), wire=1)
        job.ranks[0].flush()
        assert landed(until(job, 1, count(Arrived, 3))) == [(1, 0, seq) for seq in range(SIGNALS + 3, SIGNALS + 6)]
        assert whole(job, range(SIGNALS + 6))
