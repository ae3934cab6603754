"""Jobs whose ranks are processes that run a scenario of tests/rank_scenarios.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.free_port import free_port
from tests.rank_processes import started

WAIT_S = 300
"""For processes that take seconds on an idle machine."""


def job(world: int, scenario: str, *arguments: object) -> list[list[dict[str, Any]]]:
    """By rank, all that it has said. Ranks that live on until they hear otherwise do so until the others have ended."""
    processes = started(world, "-m", "tests.rank_scenarios", scenario, *arguments)
    try:
        living = processes[1] if scenario == "left" else None
        said = ["" for _ in processes]
        for rank, process in enumerate(processes):
            if process is not living:
                said[rank] = process.communicate(timeout=WAIT_S)[0]
        if living:
            said[1] = living.communicate(timeout=WAIT_S)[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [[json.loads(line) for line in lines.splitlines()] for lines in said]


# What ranks are told of each other, in processes of their own: who calls what, is late, has left, or was forked.


AT_ONCE_S = 100
"""Of the 300 that a rank may take: far more than the machine needs, far less than anybody waits for a limit."""

HUB_LEFT = "has left, as another rank had failed, before this one had come"
HUB_GONE = "rank 0 failed: its process, which held the control channel, is gone"

SUM, SMALL, BARRIER = "all_reduce(float32, 1000000, sum)", "all_reduce(float32, 10, sum)", "barrier()"

PAIRS = [  # what all ranks but one call, and what that one does
    (SUM, SMALL),
    (SUM, "broadcast(float32, 1000000, root 0)"),
    (SUM, BARRIER),
    ("broadcast(float32, 10, root 0)", "broadcast(float32, 10, root 2)"),
    (SUM, "split()"),
    (SMALL, "all_reduce(float32, 11, sum)"),
    (SMALL, "close()"),
    (BARRIER, "split()"),
    (SUM, "all_reduce(float32, 999999, sum)"),
    (SUM, "all_reduce(int32, 1000000, sum)"),
    (SUM, "all_reduce(float32, 1000000, avg)"),
    (SMALL, "all_reduce(float32, 10, max)"),
    (SMALL, SUM),
    (BARRIER, SUM),
    ("broadcast(float32, 1000000, root 0)", "broadcast(float32, 1000000, root 1)"),
    ("broadcast(float32, 10, root 0)", SUM),
    ("broadcast(float32, 10, root 2)", SMALL),
    ("all_gather(float32, 10)", "all_gather(float32, 1000000)"),
    ("all_gather(float32, 10)", "reduce_scatter(float32, 12, sum)"),
    ("reduce_scatter(float32, 12, sum)", "all_to_all(float32, 12)"),
    ("all_to_all(float32, 12)", BARRIER),
    ("all_gather(float32, 1000000)", SUM),
    ("split()", SUM),
    ("split()", "grow()"),
    ("grow()", SMALL),
    (SUM, "close()"),
]


def one_error(said: list[list[dict[str, Any]]], but: int | None = None) -> str:
    """What all ranks were told first, at once."""
    told = [next((line for line in lines if "error" in line), {}) for rank, lines in enumerate(said) if rank != but]
    assert all(line.get("kind") == "RankFailedError" for line in told), said
    assert all(line["seconds"] < AT_ONCE_S for line in told), told
    texts = {line["error"] for line in told}
    assert len(texts) == 1, texts
    return str(texts.pop())


# --- calls that differ -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "pairs"), [(3, PAIRS[:8:2]), pytest.param(4, PAIRS, marks=pytest.mark.long)])
def test_calls_that_differ_are_the_same_error_on_all_ranks_in_words(world: int, pairs: list[tuple[str, str]]) -> None:
    cases = [(case % 2, call, (case + case // 3) % world, other) for case, (call, other) in enumerate(pairs)]
    found = job(world, "differ", json.dumps(cases))
    for case, (_, call, odd, other) in enumerate(cases):
        # A rank whose call needs nobody's word, a root's, may be done with it: its next call says the same.
        firsts = [next(line for line in lines[2 * case :] if "error" in line) for lines in found]
        told = {line["error"] for rank, line in enumerate(firsts) if other != "close()" or rank != odd}
        assert len(told) == 1, (call, odd, other, firsts)
        assert all(line["seconds"] < AT_ONCE_S for line in firsts)
        words = told.pop()
        if other == "close()":
            assert words == f"rank {odd} has closed its communicator"
        else:
            both = f"rank {odd}: {other}; rank {min({0, 1} - {odd})}: {call}"
            assert words == f"rank {odd} failed: called something else than the others: {both}"


def test_as_many_calls_as_ranks_are_all_told() -> None:
    calls = [f"broadcast(float32, 1000000, root {rank})" for rank in range(3)]
    said = one_error(job(3, "each", json.dumps(calls)))
    told = "; ".join(f"rank {rank}: {calls[rank]}" for rank in (2, 1, 0))
    assert said == f"rank 2 failed: called something else than the others: {told}"


# --- ranks that are late ---------------------------------------------------------------------------------------------


STOPPED = {  # place : ranks, and what the last call gives
    "greeting": (3, 3.0),
    "exchange": (3, 3.0),
    "wires": (4, 4.0),
    "first call": (3, 3.0),
    "call": (3, 3.0),
    "split": (4, 2.0),
    "shrink": (4, 3.0),
}


@pytest.fixture(scope="module")
def stopped() -> Iterator[dict[str, Future[list[list[dict[str, Any]]]]]]:
    """What ranks say of which one is stopped for 20 s: some jobs wait at the same time."""
    with ThreadPoolExecutor(4) as pool:
        yield {place: pool.submit(job, world, "stopped", place, 20) for place, (world, _) in STOPPED.items()}


@pytest.mark.long
@pytest.mark.parametrize("place", STOPPED)
def test_a_rank_that_is_stopped_for_a_while_is_awaited(
    place: str, stopped: dict[str, Future[list[list[dict[str, Any]]]]]
) -> None:
    """Longer than any constant that there has been, but for the limit, which is 300 s."""
    said = stopped[place].result()
    assert [line["stopped"] > 15 for line in said[1] if "stopped" in line] == [True]
    for lines in said[:-1] if place == "shrink" else said:
        assert lines[-1].get("value") == STOPPED[place][1], lines


@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_rank_that_stops_for_longer_than_the_limit_is_named(who: int) -> None:
    said = one_error(job(4, "beyond", who, 4), but=who)
    late = "rank 1 failed: no sign of life; elsewhere: "
    silent = "rank 0 failed: its process does not answer: it has not said who failed, within 4 s"
    assert said.startswith(silent if who == 0 else late)


def test_who_comes_too_late_to_shrink_is_told_who_has_gone_on() -> None:
    said = job(4, "late_to_shrink", 5)
    for lines in said[:2]:
        assert lines[-1]["world"] == 2, lines
        assert lines[-1]["value"] == 2.0
    assert said[2][-1]["error"].startswith(
        "shrink: rank 2 is not among those that go on: ranks 0, 1 have gone on without it."
    )


ENDED = "its process has ended, or its connection was cut"


@pytest.mark.parametrize(
    ("who", "halves"),
    [
        ([3], ["", f"rank 1 failed: {ENDED}"]),
        pytest.param([2], ["", HUB_GONE], marks=pytest.mark.long),
        pytest.param([1, 2], [f"rank 1 failed: {ENDED}", HUB_GONE], marks=pytest.mark.long),
    ],
)
def test_a_half_whose_rank_dies_in_split_hears_of_it_at_once(who: list[int], halves: list[str]) -> None:
    """The other half is made; the next call of all fails."""
    said = job(4, "dies_joining", "split", ",".join(map(str, who)), "")
    for rank in {0, 1, 2, 3} - {*who}:
        part, whole = said[rank]
        assert part.get("error", "") == halves[rank // 2]
        assert part["seconds"] < AT_ONCE_S
        assert whole["kind"] == "RankFailedError"


@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.long)])
def test_an_old_rank_that_dies_in_grow_is_noticed_at_once(who: int) -> None:
    """New ranks may take their time; whether those that there are live is known."""
    said = job(3, "dies_joining", "grow", who, f"127.0.0.1:{free_port()}")
    failed = HUB_GONE if who == 0 else f"rank {who} failed: {ENDED}"
    for rank in {0, 1, 2} - {who}:
        grown, old = said[rank]
        assert (grown["error"], old["error"]) == (failed, failed)
        assert grown["seconds"] < AT_ONCE_S


@pytest.mark.parametrize("call", ["grow", "split"])
@pytest.mark.parametrize("when", ["waits", "left"])
def test_who_comes_to_a_group_in_which_one_has_died_hears_of_it(call: str, when: str) -> None:
    """Nobody waits for a limit, and none of the old group is named that lives."""
    world = 3 if call == "grow" else 4
    said = job(world, "comes_late", call, when, f"127.0.0.1:{free_port()}")
    told = [lines[0].get("error") for lines in said[:2]]
    assert all(line["seconds"] < AT_ONCE_S for lines in said for line in lines)
    if call == "grow":
        assert (
            told
            == [f"cannot grow from 2 to 3 ranks: rank 2 failed: {ENDED}; the communicator of 2 ranks is as it was"] * 2
        )
        assert [lines[1]["value"] for lines in said[:2]] == [2.0, 2.0]
    else:
        # Who left has ended, too, by the time that a late rank asks on a busy machine.
        late = [f"rank 2 failed: {ENDED}"] if when == "waits" else [f"rank 0 failed: {HUB_LEFT}", HUB_GONE]
        assert told[0] == f"rank 2 failed: {ENDED}"
        assert told[1] in late


@pytest.mark.parametrize(("told", "sums"), [(2, [3.0] * 3), (1, [3.0] * 3), (0, [2.0, 2.0, 1.0])])
def test_who_has_not_heard_that_a_group_has_grown_goes_where_the_others_go(told: int, sums: list[float]) -> None:
    """Rank 0 has ended as it had told so many others; where it had told none, the new rank is not in their group."""
    said = job(4, "half_grown", told, f"127.0.0.1:{free_port()}")
    assert [lines[-1].get("value") for lines in said[1:]] == sums, said


# --- ranks that leave ------------------------------------------------------------------------------------------------

LEFT = [
    ("close", "cold", SUM, "rank 1 has closed its communicator"),
    ("close", "warm", BARRIER, "rank 1 has closed its communicator"),
    ("with, exit", "warm", "split()", "rank 1 failed: left: SystemExit: enough"),
    ("with, exception", "warm", BARRIER, "rank 1 failed: left: ValueError: boom"),
    ("exit", "cold", BARRIER, "rank 1 failed: its process has ended, or its connection was cut"),
    ("exit", "warm", SUM, "rank 1 failed: its process has ended, or its connection was cut"),
]


@pytest.mark.parametrize(
    ("how", "warm", "call", "words"), [*LEFT[:1], *(pytest.param(*each, marks=pytest.mark.long) for each in LEFT[1:])]
)
def test_a_rank_that_leaves_is_told_to_all_others_at_once(how: str, warm: str, call: str, words: str) -> None:
    assert one_error(job(3, "left", how, warm, call), but=1) == words


# --- forked children -------------------------------------------------------------------------------------------------

FORKED = ["use", "close", "exit", "pool", "with", "abort", "collect"]


def test_forked_children_touch_nothing_of_their_parents() -> None:
    """One child of every rank after the other; after each all ranks go on."""
    said = job(3, "forked", *FORKED)
    for rank, lines in enumerate(said):
        assert lines[0] == {"rank": rank, "child": True}, "every use is refused"
        assert [line.get("value") for line in lines[1:]] == [3.0, 3.0] * len(FORKED) + [None], lines
        assert lines[-1] == {"rank": rank, "closed": True}


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_killed_rank_is_gone_although_its_child_lives(killed: int) -> None:
    said = one_error(job(3, "outlived", killed), but=killed)
    assert said == (HUB_GONE if killed == 0 else "rank 1 failed: its process has ended, or its connection was cut")
