"""Ranks that are killed at any moment, rank 0 as often as others, two at once: the others are told the same, and go on
as one group whose sums are right. Not here, since it does not hold: a second one killed while the group is made."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.effort import cases
from tests.free_port import free_port
from tests.test_architecture import ROOT

KILLS = signal.SIGKILL
WAIT_S = 120
"""For what takes a second on an idle machine."""


def survived(seed: int, victims: Sequence[int], world: int) -> list[str]:
    """What was wrong. victims : killed at a moment of the seed, all at once"""
    draw, port = random.Random(seed), free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.killed_process", *map(str, (rank, world, port))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(world)
    ]
    try:
        for process in started:
            assert process.stdout
            assert process.stdout.readline(), "it has not come so far"
        time.sleep(0.2 * draw.random())
        for victim in victims:
            os.kill(started[victim].pid, KILLS)
        said = [process.communicate(timeout=WAIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    alive = [rank for rank in range(world) if rank not in victims]
    found = [said[rank] for rank in alive]
    if not all(out for out, _ in found):
        return [f"rank {rank}: {err[-4000:]}" for rank, (out, err) in zip(alive, found, strict=True) if not out]
    last = [json.loads(out) for out, _ in found]
    expected = {"world": len(alive), "ranks": sum(1 << rank for rank in alive), "wrong": 0}
    wrong = [f"{each}, expected {expected}" for each in last if {name: each[name] for name in expected} != expected]
    verdicts = {tuple(each["told"]) for each in last}
    return wrong + ([f"told different things: {verdicts}"] if len(verdicts) > 1 else [])


def scene(seed: int) -> tuple[list[int], int]:
    """Who is killed, of how many: rank 0 in every second case, two in every third."""
    draw = random.Random(seed)
    world = draw.choice((3, 4, 5))
    first = 0 if seed % 2 == 0 else draw.randrange(1, world)
    others = [rank for rank in range(world) if rank != first]
    more = [draw.choice(others)] if seed % 3 == 0 else []
    return [first, *more], world


@pytest.mark.cases
@pytest.mark.parametrize("kind", range(6))
def test_the_others_go_on(kind: int, request: pytest.FixtureRequest) -> None:
    """With --whole 120 in all."""
    first = int(request.config.getoption("--hypothesis-seed")) // 6 * 6 + kind
    for seed in range(first, first + 6 * cases(20), 6):
        victims, world = scene(seed)
        assert survived(seed, victims, world) == [], f"seed {seed}: {victims} of {world}"


def test_who_is_not_there_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: nobody is killed whom it counts as killed."""
    monkeypatch.setattr(sys.modules[__name__], "KILLS", 0)
    monkeypatch.setattr(sys.modules[__name__], "WAIT_S", 3)
    with pytest.raises(subprocess.TimeoutExpired):
        survived(1, [1], 3)
