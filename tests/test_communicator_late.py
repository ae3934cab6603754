"""A rank that always comes after the others is told in everybody's events, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

import optcc
from optcc.communicator.collectives import FIRST, Punctuality
from optcc.communicator.prepared import SMALL
from optcc.runtime.messages import Note
from tests.communicators import WAIT_S, Ranks


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_that_comes_late_to_every_call_is_told_to_all(world: int) -> None:
    together = threading.Barrier(world)
    with Ranks(world) as ranks:

        def steps(comm: optcc.Communicator) -> list[str]:
            x = np.ones(4, np.float32)
            for step in range(2 * FIRST):
                together.wait(WAIT_S)
                time.sleep(0.05 if comm.rank == 1 else 0)
                if step % 4:
                    comm.all_reduce(x)
                else:
                    comm.barrier()
                comm.broadcast(x)
            return [event.text for event in comm.events() if event.kind == "late"]

        told = ranks.good(steps)
    assert [len(each) for each in told] == [1] * world, told
    assert {each[0].split(":")[0] for each in told} == {"rank 1 comes late"}


def told(calls: Sequence[Sequence[float]]) -> list[list[str]]:
    """What each call told; `calls` : of each, seconds by rank, of which rank 0's are this one's."""
    each: list[list[str]] = []
    kept: list[Sequence[float]] = []

    def exchange(mine: list[float]) -> list[list[float]]:
        latest = kept[-len(mine) :]
        assert mine == [call[0] for call in latest]
        return [list(of) for of in zip(*latest, strict=True)]

    def tell(notes: Sequence[Note]) -> None:
        each.append([note.text for note in notes])

    one = Punctuality(exchange, tell)
    for call in calls:
        kept.append(call)
        one.took(call[0])
    return each


def test_it_is_told_once_and_again_after_it_was_in_time() -> None:
    late, well = [[0.2, 0.21, 0.01]] * 64, [[0.01, 0.01, 0.01]] * 64
    said = told([*late, *well, *late, *late])
    assert [len(each) for each in said] == [1, 0, 0, 0, 1]  # after 16, 32, 64, 128 and 256 calls
    assert said[0][0].startswith("rank 2 comes late: last in 16 of 16 collectives")


def test_ranks_that_come_together_or_by_turns_are_not_told() -> None:
    assert told([[0.05, 0.051, 0.052]] * 300) == [[], [], [], [], []]
    turns = [[0.2 if rank != call % 3 else 0.01 for rank in range(3)] for call in range(300)]
    assert told(turns) == [[], [], [], [], []]


def test_large_arrays_count_too() -> None:
    together = threading.Barrier(3)
    with Ranks(3) as ranks:

        def steps(comm: optcc.Communicator) -> list[str]:
            x = np.ones(SMALL // 2, np.float32)
            for _ in range(FIRST):
                together.wait(WAIT_S)
                time.sleep(0.05 if comm.rank == 2 else 0)
                comm.all_reduce(x)
            return [event.text for event in comm.events() if event.kind == "late"]

        assert [each[0].split(":")[0] for each in ranks.good(steps)] == ["rank 2 comes late"] * 3
