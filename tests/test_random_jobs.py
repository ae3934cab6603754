"""Jobs of random calls, alike on all ranks, in which NICs fail, groups are split, ranks are stopped and killed, and
those that are left shrink: every result is right, every verdict the same and about a rank that was killed, nobody is
stuck."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.effort import cases
from tests.rank_processes import started

WAIT_S = 300
"""For a job that takes some ten seconds on a busy machine."""


@dataclass(frozen=True)
class Played:
    """A job: what was wrong, and how often what happened."""

    wrong: list[str]
    happened: Counter[str] = field(default_factory=Counter)


def judged(said: Sequence[Sequence[dict[str, Any]]], killed: Collection[int]) -> list[str]:
    """What is wrong with what ranks have said."""
    wrong = [f"rank {rank}: {line['wrong']}" for rank, lines in enumerate(said) for line in lines if "wrong" in line]
    verdicts: dict[tuple[int, ...], set[str]] = {}
    for lines in said:
        for line in lines:
            if "told" in line and line["of"]:
                verdicts.setdefault(tuple(line["of"]), set()).add(line["told"])
    for group, texts in verdicts.items():
        ranks = [int(text.split()[1]) for text in texts]
        named = {group[rank] if rank < len(group) else -1 for rank in ranks}  # -1: one that is not in it
        if len(texts) > 1:
            wrong.append(f"ranks {group} were told different things: {texts}")
        if not named <= {*killed}:
            wrong.append(f"ranks {group} were told of one that lives: {texts}")
    left = sum(1 << rank for rank in range(len(said)) if rank not in killed)
    for rank, lines in enumerate(said):
        groups = [line["ranks"] for line in lines if "ranks" in line]
        if rank not in killed and groups != [left]:
            wrong.append(f"rank {rank} was in groups {groups} at the end, not in {left}: {lines[-1:]}")
    return wrong


def played(seed: int) -> Played:
    """The job of a seed."""
    world = random.Random(seed).choice((3, 4, 5))
    processes = started(world, "-m", "tests.rank_scenarios", "chance", seed)
    try:
        told = [process.communicate(timeout=WAIT_S) for process in processes]
    except subprocess.TimeoutExpired:
        return Played([f"stuck: {[rank for rank, process in enumerate(processes) if process.poll() is None]}"])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = [[json.loads(line) for line in out.splitlines()] for out, _ in told]
    killed = [rank for rank, process in enumerate(processes) if process.returncode == -signal.SIGKILL]
    wrong = judged(said, killed)
    wrong += [
        f"rank {rank} has ended with {process.returncode}: {err[-1000:]}"
        for rank, (process, (_, err)) in enumerate(zip(processes, told, strict=True))
        if process.returncode and rank not in killed
    ]
    happened = Counter({"kills": len(killed)})
    happened["calls"] = max(sum(line.get("calls", 0) for line in lines) for lines in said)
    happened["stops"] = sum("stopped" in line for lines in said for line in lines)
    happened["faults on NICs"] = sum(line.get("happened") == "faults on NICs" for lines in said for line in lines)
    for what in ("splits", "shrinks"):
        happened[what] = max(sum(line.get("happened") == what for line in lines) for lines in said)
    return Played(wrong, happened)


@pytest.mark.long
def test_jobs_in_which_much_happens(request: pytest.FixtureRequest) -> None:
    """With --whole 100, of 50 calls or more each."""
    first = int(request.config.getoption("--hypothesis-seed")) // 100 * 100
    for seed in range(first, first + cases(100)):
        assert played(seed).wrong == [], f"seed {seed}"


def right() -> list[list[dict[str, Any]]]:
    """What three ranks say of which rank 1 is killed."""
    told = {"told": "rank 1 failed: it is gone", "of": [0, 1, 2]}
    return [[told, {"ranks": 5}], [{"calls": 1}], [told, {"ranks": 5}]]


def test_what_is_right_is_not_wrong() -> None:
    assert judged(right(), [1]) == []


@pytest.mark.parametrize(
    ("rank", "line", "words"),
    [
        (0, {"wrong": "an element"}, "an element"),
        (0, {"told": "rank 1 failed: it is late", "of": [0, 1, 2]}, "told different things"),
        (2, {"told": "rank 0 failed: it is gone", "of": [0, 2]}, "told of one that lives"),
        (2, {"told": "rank 2 failed: it is gone", "of": [0, 1]}, "told of one that lives"),
        (0, {"ranks": 7}, "was in groups"),
    ],
)
def test_what_is_wrong_is_noticed(rank: int, line: dict[str, Any], words: str) -> None:
    said = right()
    said[rank].append(line)
    assert any(words in each for each in judged(said, [1]))


def test_who_is_left_behind_is_noticed() -> None:
    said = right()
    del said[2][1]
    assert any("rank 2 was in groups []" in each for each in judged(said, [1]))
