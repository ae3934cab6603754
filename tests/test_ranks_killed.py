"""Ranks that are killed at any moment, rank 0 as often as others, two at once, or a second one while the others make
their group: they are told the same, and go on as one group whose sums are right."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping

import pytest

from tests.effort import cases
from tests.free_port import free_port
from tests.rank_processes import ran

KILLS = signal.SIGKILL
WAIT_S = 120
"""For what takes a second on an idle machine."""

MAKING_S = 0.1
"""A group is made within this, on an idle machine."""
MOMENTS_S = 2.0
"""Ranks open wires for their first call, plan, and call in this."""


def survived(
    seed: int, victims: Mapping[int, float], world: int, within_s: float = 0.2, tells: int | None = None
) -> list[str]:
    """What was wrong. victims : killed so many seconds after a moment of the seed, in this order, which is `within_s`
    from when all have met; tells : rank 0 is lost, too, when it has told so many of those that are left"""
    draw, port = random.Random(seed), free_port()

    extra = [] if tells is None else [tells]
    started = [
        ran("-m", "tests.killed_process", rank, world, port, *(extra if rank == 0 else [])) for rank in range(world)
    ]
    try:
        for process in started:
            assert process.stdout
            assert process.stdout.readline(), process.communicate()[1][-4000:]  # it has ended before it came so far
        time.sleep(within_s * draw.random())
        start = time.monotonic()
        for victim, after_s in victims.items():
            time.sleep(max(0.0, start + after_s - time.monotonic()))
            os.kill(started[victim].pid, KILLS)
        alive = [rank for rank in range(world) if rank not in victims and (rank or tells is None)]
        said = {rank: started[rank].communicate("enough\n", timeout=WAIT_S) for rank in alive}
    finally:
        for process in started:
            process.kill()
    if not all(out for out, _ in said.values()):
        return [f"rank {rank}: {err[-4000:]}" for rank, (out, err) in said.items() if not out]
    last = [json.loads(out) for out, _ in said.values()]
    expected = {"world": len(alive), "ranks": sum(1 << rank for rank in alive), "wrong": 0}
    wrong = [f"{each}, expected {expected}" for each in last if {name: each[name] for name in expected} != expected]
    verdicts = {*(tuple(each["told"][:1]) for each in last)}  # of a second one some are told: who had the group already
    return wrong + ([f"told different things: {verdicts}"] if len(verdicts) > 1 else [])


def scene(seed: int, later: bool = False) -> tuple[dict[int, float], int]:
    """Who is killed when, of how many: rank 0 in every second case; two in every third at once, or all in turn."""
    draw = random.Random(seed)
    world = draw.choice((3, 4, 5))
    first = 0 if seed % 2 == 0 else draw.randrange(1, world)
    others = [rank for rank in range(world) if rank != first]
    if later:
        second = min(others) if seed % 4 < 2 else draw.choice(others)  # the next hub in every second case
        return {first: 0.0, second: MAKING_S * draw.random()}, world
    more = [draw.choice(others)] if seed % 3 == 0 else []
    return dict.fromkeys([first, *more], 0.0), world


def go_on(kind: int, later: bool, request: pytest.FixtureRequest) -> None:
    first = int(request.config.getoption("--hypothesis-seed")) // 6 * 6 + kind
    for seed in range(first, first + 6 * cases(8), 6):
        victims, world = scene(seed, later)
        assert survived(seed, victims, world) == [], f"seed {seed}: {victims} of {world}"


def at_a_moment(seed: int) -> list[str]:
    """What was wrong where one rank is killed, rank 0 in every fourth case; for benchmarks.bench_rank_lost."""
    draw = random.Random(seed)
    world = draw.choice((3, 4, 5))
    return survived(seed, {draw.randrange(1, world) if seed % 4 else 0: 0.0}, world, MOMENTS_S)


@pytest.mark.parametrize("kind", range(6))
def test_the_others_go_on(kind: int, request: pytest.FixtureRequest) -> None:
    """With --whole 48 in all."""
    go_on(kind, False, request)


@pytest.mark.parametrize("kind", [0, *(pytest.param(kind, marks=pytest.mark.long) for kind in range(1, 6))])
def test_the_others_go_on_where_a_second_one_dies_meanwhile(kind: int, request: pytest.FixtureRequest) -> None:
    """While they make their group; with --whole 48 in all."""
    go_on(kind, True, request)


@pytest.mark.parametrize("tells", range(4))
def test_who_has_not_been_told_hears_what_the_others_have(tells: int) -> None:
    """The hub's process ends in the middle of a verdict, which it has told none, some or all of three."""
    assert survived(tells, {2: 0.0}, 5, tells=tells) == []


def test_who_is_not_there_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: nobody is killed whom it counts as killed."""
    monkeypatch.setattr(sys.modules[__name__], "KILLS", 0)
    assert len(survived(1, {1: 0.0}, 3)) == 2
