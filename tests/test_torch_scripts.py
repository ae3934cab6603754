"""Scripts and rounds of plans over torch.distributed: nobody waits in a circle. No process is needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from optcc.errors import SimulationError
from optcc.schedule import Schedule
from tests.torch_schedules import FAMILIES, schedule_of, turns_and_programs

pytestmark = pytest.mark.torch


def finishes(scripts: Sequence[Any]) -> bool:
    """Whether ranks that walk their scripts, blocking in every wait until its send is posted, all reach the end."""
    at, posted = [0] * len(scripts), set()
    moved = True
    while moved:
        moved = False
        for rank, script in enumerate(scripts):
            while True:
                news = {move.row for move in script.sends[at[rank]]} - posted
                posted |= news
                moved |= bool(news)
                if at[rank] == len(script.receives) or script.receives[at[rank]].row not in posted:
                    break
                at[rank] += 1
                moved = True
    return all(place == len(script.receives) for place, script in zip(at, scripts, strict=True))


def scripts_of(schedule: Schedule, turns: Any, programs: Any, lead: int = 2) -> list[Any]:
    from optcc.runtime.torch.script import script_of

    deps = {row: schedule.deps(row).tolist() for row in range(len(schedule))}
    return [script_of(program, turns, deps, lead) for program in programs]


@pytest.mark.parametrize("lead", [1, 2, 100])
@pytest.mark.parametrize("name", FAMILIES)
def test_scripts_never_wait_in_a_circle(name: str, lead: int) -> None:
    schedule = schedule_of(name)
    turns, programs = turns_and_programs(schedule)
    scripts = scripts_of(schedule, turns, programs, lead)
    assert finishes(scripts)
    for script, program in zip(scripts, programs, strict=True):
        assert sorted(move.row for moves in script.sends for move in moves) == sorted(program.sends)
        done: set[int] = set()
        for i, moves in enumerate(script.sends):
            assert all(set(schedule.deps(move.row).tolist()) <= done for move in moves)
            if i < len(script.receives):
                done.add(script.receives[i].row)
        folds = [move.row for move in script.receives if move.row in program.folds_after]
        assert all(turns[before] < turns[after] for before in folds for after in program.folds_after[before])


def test_an_order_of_one_ranks_own_hangs() -> None:
    """The control: one rank waits in reverse."""
    schedule = schedule_of("ring")
    turns, programs = turns_and_programs(schedule)
    scripts = scripts_of(schedule, turns, programs)
    scripts[0] = scripts_of(schedule, turns[::-1].copy(), programs)[0]
    assert not finishes(scripts)


def test_transfers_that_wait_for_each_other_are_refused() -> None:
    from optcc.runtime.torch.script import turns_of

    schedule = schedule_of("ring")
    _, programs = turns_and_programs(schedule)
    last = int(np.argmax(np.diff(schedule.dep_ptr) > 0))
    late = max(row for row in range(len(schedule)) if last in schedule.deps(row))
    looped = schedule.dep_idx.copy()
    looped[schedule.dep_ptr[last]] = late
    with pytest.raises(SimulationError, match="wait for each other"):
        turns_of(schedule.replace(dep_idx=looped), programs, np.zeros(len(schedule)))


def groups_match(parts: Sequence[Any]) -> bool:
    """Whether groups of calls, each of which ends when all its calls are matched, all end (NCCL's rule).

    Calls between two ranks match in the order in which each issues them, and carry what the sender's says.
    """
    groups = [[([*group.sends], [*group.receives]) for group in part] for part in parts]
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(groups):
            for move in [*mine[0][0]] if mine else []:
                theirs = groups[move.peer][0][1] if groups[move.peer] else []
                landing = next((m for m in theirs if m.peer == rank), None)
                first = next(m for m in mine[0][0] if m.peer == move.peer)
                if landing is not None and first is move:
                    if landing.row != move.row:
                        return False
                    mine[0][0].remove(move)
                    theirs.remove(landing)
                    moved = True
        for mine in groups:
            while mine and mine[0] == ([], []):
                mine.pop(0)
                moved = True
    return not any(groups)


@pytest.mark.parametrize("length_s", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_rounds_match_at_both_ends(name: str, length_s: float) -> None:
    from optcc.runtime.torch.script import rounds_of, rounds_script

    schedule = schedule_of(name)
    turns, programs = turns_and_programs(schedule)
    rounds = rounds_of(schedule, programs, turns, length_s)
    assert all(rounds.of[dep] < rounds.of[row] for row in range(len(schedule)) for dep in schedule.deps(row))
    parts = [rounds_script(program, turns, rounds.of) for program in programs]
    assert groups_match(parts)
    alone = rounds_of(schedule, programs, turns, 0.0).seconds  # one transfer per port and round
    assert max(rounds.seconds) <= max(length_s, *alone) * (1 + 1e-9)


def test_groups_that_send_only_after_they_have_received_hang() -> None:
    """The control: every rank's sends a round later than its receives."""
    from optcc.runtime.torch.script import Round, rounds_of, rounds_script

    schedule = schedule_of("ring")
    turns, programs = turns_and_programs(schedule)
    rounds = rounds_of(schedule, programs, turns, 0.0).of
    parts = [rounds_script(p, turns, rounds) for p in programs]
    none = Round((), ())
    late = [[Round(a.sends, b.receives) for a, b in pairwise((none, *part, none))] for part in parts]
    assert groups_match(parts)
    assert not groups_match(late)
