"""A rank is stopped for 20 s at a random moment, in the start, a call, a split, while the others shrink: nothing fails,
for a rank may take 300 s."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.effort import cases
from tests.rank_processes import started

WORLD = 4
STOPPED_S = 20.0
"""Longer than any constant that has ever decided who lives."""
HALF, MOMENTS_S = 100, 5.0
"""Calls before and after the last rank ends; the stop is in the first seconds, of which a job takes about as many."""
WAIT_S = 300


def stopped(seed: int, stop: int = signal.SIGSTOP) -> tuple[bool, list[str]]:
    """(whether the stop met a rank that had not ended, what was wrong) in a job of four, of which the last one ends by
    itself."""
    draw, processes = random.Random(seed), started(WORLD, "-m", "tests.rank_scenarios", "busy", HALF)
    try:
        victim = processes[0 if seed % 4 == 0 else draw.randrange(1, WORLD - 1)]
        time.sleep(MOMENTS_S * draw.random())
        met = victim.poll() is None
        victim.send_signal(stop)
        time.sleep(STOPPED_S)
        victim.send_signal(signal.SIGCONT)
        said = [process.communicate(timeout=WAIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    gone = f"rank {WORLD - 1} failed: its process has ended, or its connection was cut"
    expected = [{"told": gone}, {"world": WORLD - 1, "wrong": 0, "lost": 1}]
    wrong = []
    for rank, (out, err) in enumerate(said[:-1]):
        told = [json.loads(line) for line in out.splitlines()]
        if [{key: line[key] for key in line if key != "rank"} for line in told] != expected:
            wrong.append(f"seed {seed}, rank {rank}: {told}; {err[-2000:]}")
    return met, wrong


@pytest.mark.long
def test_a_rank_that_is_stopped_at_any_moment_is_awaited(request: pytest.FixtureRequest) -> None:
    """With --whole 40, with --long 10, rank 0 in every fourth; some jobs wait at the same time."""
    first = int(request.config.getoption("--hypothesis-seed")) // 40 * 40
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(stopped, range(first, first + cases(40))))
    assert [wrong for _, each in found for wrong in each] == []
    assert sum(met for met, _ in found) > len(found) / 2


@pytest.mark.long
def test_a_rank_that_is_killed_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail."""
    monkeypatch.setattr(sys.modules[__name__], "STOPPED_S", 0.0)
    met, wrong = stopped(1, signal.SIGKILL)
    assert met
    assert wrong
