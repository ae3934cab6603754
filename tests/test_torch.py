"""Plans over torch.distributed: scripts without torch's help, results and training over four Gloo processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.cluster import Cluster
from optcc.errors import InputError, SimulationError
from optcc.plans import Plan
from optcc.schedule import Schedule
from optcc.schedule.baselines import BASELINES
from optcc.simulator import simulate
from tests.torch_ranks import (
    Raised,
    Ranks,
    apart,
    bug_in_planner,
    fails,
    given,
    measure,
    no_plan,
    one_raises,
    sum_by,
    sum_on_gpus,
    switching,
    train,
)

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parent.parent
HALF = Cluster.uniform(servers=4, nics=2, rate=10**9).degrade("server1/nic0")
TWO = HALF.degrade("server3/nic1", Fraction(1, 2))
GPUS = Cluster.uniform(servers=2, nics=2, rate=10**9, nvlink_rate=10**10)
NBYTES = 10_006  # no multiple of 8: the last cut is not at a granule


OWN: dict[str, Callable[[], Plan]] = {
    "nested": lambda: optcc.plan(HALF, NBYTES, segments=3),
    "nested, two degraded": lambda: optcc.plan(TWO, NBYTES, segments=5),
    "trees": lambda: optcc.plan(HALF, NBYTES, family="trees", segments=3),
    "packed trees": lambda: optcc.plan(HALF, NBYTES, family="packed-trees", segments=3),
    "inside": lambda: optcc.plan(replace(GPUS, gpu_ranks=True), NBYTES, segments=2),
}
FAMILIES = (*BASELINES, *OWN)


@cache
def schedule_of(name: str) -> Schedule:
    """One schedule of every family that four ranks can have."""
    if name in OWN:
        return OWN[name]().schedule()
    return OWN["nested"]().baseline(name).schedule()


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


def good(answers: Sequence[Any]) -> Sequence[Any]:
    """The answers of ranks none of which raised."""
    for answer in answers:
        assert not isinstance(answer, Raised), answer.trace
    return answers


# Order, scripts, rounds: no process needed.


def turns_and_programs(schedule: Schedule) -> tuple[Any, Any]:
    from optcc.runtime.program import program_of
    from optcc.runtime.torch.turns import turns_of

    programs = [program_of(schedule, rank, 1) for rank in range(schedule.ranks)]
    return turns_of(schedule, programs, simulate(schedule).finish), programs


def finishes(scripts: Sequence[Any]) -> bool:
    """Whether ranks that walk their scripts, blocking in every wait until its send is posted, all reach the end."""
    at, posted = [0] * len(scripts), set()
    moved = True
    while moved:
        moved = False
        for rank, script in enumerate(scripts):
            while True:
                posted |= {move.row for move in script.sends[at[rank]]}
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
    from optcc.runtime.torch.turns import turns_of

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
    from optcc.runtime.torch.script import rounds_script
    from optcc.runtime.torch.turns import rounds_of

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
    from optcc.runtime.torch.script import Round, rounds_script
    from optcc.runtime.torch.turns import rounds_of

    schedule = schedule_of("ring")
    turns, programs = turns_and_programs(schedule)
    rounds = rounds_of(schedule, programs, turns, 0.0).of
    parts = [rounds_script(p, turns, rounds) for p in programs]
    none = Round((), ())
    late = [[Round(a.sends, b.receives) for a, b in pairwise((none, *part, none))] for part in parts]
    assert groups_match(parts)
    assert not groups_match(late)


# The policy.


def test_levels_are_shares_of_the_upper_median() -> None:
    from optcc.runtime.torch.policy import Policy

    assert Policy().levels([100.0, 50.0, 102.0, 300.0]) == (16, 8, 16, 16)
    assert Policy().levels([1.0, 1000.0, 1000.0, 1000.0]) == (1, 16, 16, 16)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="rank 1"):
            Policy().levels([1.0, bad, 1.0])


def test_a_switch_holds_before_it_changes_and_does_not_flap() -> None:
    from optcc.runtime.torch.policy import Policy, Switch

    switch = Switch(Policy(enter=0.8, leave=0.9, hold=2))
    fine, hurt, between = [100.0] * 4, [100.0, 50.0, 100.0, 100.0], [100.0, 85.0, 100.0, 100.0]
    assert [switch.update(r) for r in (hurt, fine, hurt, fine)] == [False] * 4  # once is not enough
    assert [switch.update(r) for r in (between, between, between)] == [False] * 3  # neither slow enough
    assert [switch.update(r) for r in (hurt, hurt)] == [False, True]
    assert switch.current == (16, 8, 16, 16)
    assert [switch.update([100.0, 47.0, 100.0, 103.0]) for _ in range(4)] == [False] * 4  # nor another plan for noise
    assert [switch.update([100.0, 85.0, 100.0, 100.0]) for _ in range(2)] == [False, True]  # nor quick enough to leave
    assert switch.current == (16, 14, 16, 16)
    assert [switch.update(r) for r in (fine, fine)] == [False, True]
    assert switch.current is None
    noisy = Switch(Policy(hold=2))  # another rank disturbed each time, and one that is slow
    assert [noisy.update(r) for r in ([70.0, 50.0, 100.0, 100.0], [100.0, 50.0, 60.0, 100.0])] == [False, True]
    assert noisy.current == (16, 8, 16, 16)
    assert [noisy.update(r) for r in ([70.0, 50.0, 100.0, 100.0], [100.0, 50.0, 60.0, 100.0])] == [False, False]
    calm = Switch(Policy(hold=2))  # disturbed, but nobody slow
    assert [calm.update(r) for r in ([70.0, 100.0, 100.0, 100.0], [100.0, 60.0, 100.0, 100.0])] == [False, False]
    hasty = Switch(Policy(enter=0.9, leave=0.9, hold=1))  # the control: this one flaps
    assert [hasty.update(r) for r in (between, fine, between)] == [True] * 3


@pytest.mark.parametrize(
    "options", [{"quanta": 1}, {"enter": 0.9, "leave": 0.8}, {"hold": 0}, {"every": 0}, {"gain": 0.5}, {"enter": 0}]
)
def test_policies_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    from optcc.runtime.torch.policy import Policy

    with pytest.raises(InputError, match="Policy"):
        Policy(**options)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
def test_partners_meet_both_ways_and_never_twice(ranks: int) -> None:
    from optcc.runtime.torch.probe import partners

    meetings = [partners(ranks, rank, 99) for rank in range(ranks)]
    for rank, met in enumerate(meetings):
        assert all(meetings[other][turn] == rank for turn, other in enumerate(met) if other is not None)
        others = [other for other in met if other is not None]
        assert sorted(others) == [r for r in range(ranks) if r != rank]


def test_the_verdict_names_who_says_nothing() -> None:
    from optcc.runtime.torch.verdict import verdict_of

    assert verdict_of({0: (3, "lost rank 3"), 1: (0, "lost rank 0"), 3: (2, "lost rank 2")}, 4, 3.0)[0] == 2
    assert verdict_of({0: (2, "a"), 1: (1, "no memory"), 2: (1, "b")}, 4, 3.0) == (1, "no memory")
    assert verdict_of({0: (None, "a"), 1: (2, "b")}, 4, 3.0)[0] == 2  # blamed before merely silent
    assert verdict_of({0: (1, "a"), 1: (0, "b")}, 2, 3.0)[0] == 1
    assert verdict_of({0: (None, "a")}, 1, 3.0) == (0, "a")


# Four processes.


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_equals_the_native_allreduce(four: Ranks, name: str) -> None:
    schedule = schedule_of(name)
    turns, _ = turns_and_programs(schedule)
    for dtype in ("int8", "uint8"):
        assert all(equal for equal, _, _ in good(four.each(sum_by, schedule, turns, dtype)))
    for dtype, allowed in (("float16", 0.02), ("bfloat16", 0.2)):
        answers = good(four.each(sum_by, schedule, turns, dtype))
        assert max(apart for _, apart, _ in answers) <= allowed
        assert len({result for *_, result in answers}) == 1  # every rank has the same bits


@pytest.mark.parametrize(("dtype", "allowed"), [("int32", 0), ("int64", 0), ("float32", 2e-6), ("float64", 4e-15)])
def test_wide_types(four: Ranks, dtype: str, allowed: float) -> None:
    schedule = optcc.plan(HALF, 80_008, segments=3).schedule()
    turns, _ = turns_and_programs(schedule)
    answers = good(four.each(sum_by, schedule, turns, dtype))
    assert max(apart for _, apart, _ in answers) <= allowed
    assert len({result for *_, result in answers}) == 1


def test_a_wrong_schedule_gives_a_wrong_sum(four: Ranks) -> None:
    """The control: one fold becomes a copy."""
    schedule = schedule_of("nested")
    turns, _ = turns_and_programs(schedule)
    reduce = schedule.reduce.copy()
    reduce[int(np.argmax(reduce))] = False
    assert not all(equal for equal, _, _ in good(four.each(sum_by, schedule.replace(reduce=reduce), turns, "uint8")))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nested", "trees", "packed trees"])
@pytest.mark.parametrize("dtype", ["int32", "bfloat16"])
def test_rounds_over_nccl_equal_the_native_allreduce(name: str, dtype: str) -> None:
    import torch

    if torch.cuda.device_count() < 4:
        pytest.skip(
            "NCCL gives each of four ranks a GPU of its own, and here are fewer; the same rounds run over Gloo above"
        )
    schedule = replace(OWN[name](), bound=optcc.lower_bound(HALF, 100_008)).schedule()
    turns, _ = turns_and_programs(schedule)
    with Ranks(4) as ranks:
        assert all(all(same) for same in good(ranks.each(sum_on_gpus, schedule, turns, dtype)))


def largest(one: Sequence[bytes], other: Sequence[bytes]) -> float:
    return max(float(np.abs(np.frombuffer(a) - np.frombuffer(b)).max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("dtype", "allowed"), [("float64", 1e-14), ("float32", 1e-6), ("bfloat16", 0.02)])
def test_training_gives_the_weights_of_native_ddp(four: Ranks, dtype: str, allowed: float) -> None:
    native = good(four.each(train, dtype, None))
    planned = good(four.each(train, dtype, [1e6, 5e5, 1e6, 1e6]))
    assert all(buckets >= 6 and len(set(sizes)) >= 2 for _, buckets, sizes in planned)
    assert all(weights == planned[0][0] for weights, *_ in planned)  # bit for bit the same on all ranks
    assert largest(native[0][0], planned[0][0]) <= allowed


def test_ranks_that_train_alone_differ(four: Ranks) -> None:
    """The control of the above."""
    native, alone = good(four.each(train, "float64", None)), good(four.each(train, "float64", None, True))
    assert largest(native[0][0], alone[0][0]) > 1e-3


def test_equal_rates_go_natively_bit_for_bit(four: Ranks) -> None:
    native, hooked = good(four.each(train, "float32", None)), good(four.each(train, "float32", [1e6] * 4))
    assert [weights for weights, *_ in native] == [weights for weights, *_ in hooked]
    assert all(buckets == 0 for _, buckets, _ in hooked)


def test_all_ranks_switch_in_the_same_step(four: Ranks) -> None:
    fine, hurt = [1e6] * 4, [1e6, 4.9e5, 1.01e6, 1e6]
    script = [fine, hurt, fine, hurt, hurt, hurt, hurt, fine, fine, fine]
    answers = good(four.each(switching, script))
    assert all(seen == answers[0] for seen in answers)
    assert [levels for levels, _ in answers[0]] == [None] * 4 + [(16, 8, 16, 16)] * 4 + [None] * 2
    assert [by_plan for _, by_plan in answers[0]] == [0, 0, 0, 0, 1, 2, 3, 4, 4, 4]


def test_ranks_that_were_given_different_rates_are_refused(four: Ranks) -> None:
    other = [1e6, 1e6, 5e5, 1e6]
    answers = four.each(given, [[1e6] * 4, [1e6] * 4, other, [1e6] * 4])
    assert all(answer.kind == "InputError" and "other ones at 2" in answer.text for answer in answers)
    assert len({answer.text for answer in answers}) == 1
    wrong = four.each(given, [[1e6] * 3] * 4)
    assert all(answer.kind == "InputError" and "expected 4" in answer.text for answer in wrong)
    one = four.each(given, [[1e6] * 4, [1e6] * 4, [1e6] * 3, [1e6] * 4])
    assert all(answer.kind == "InputError" and "expected 4" in answer.text for answer in one)


def test_what_rank_0_cannot_plan_all_refuse(four: Ranks) -> None:
    answers = four.each(no_plan)
    assert all(answer.kind == "InputError" and "no family has a schedule" in answer.text for answer in answers)


def test_a_mistake_in_the_planner_is_not_waited_for(four: Ranks) -> None:
    answers = four.each(bug_in_planner)
    assert all(answer.kind == "InputError" and "KeyError: 'rates'" in answer.text for answer in answers)


def test_a_mistake_on_one_rank_is_the_same_error_everywhere() -> None:
    with Ranks(4) as ranks:
        told = good(ranks.each(one_raises, 2))
    assert len(set(told)) == 1
    assert told[0].startswith("rank 2 failed: ")
    assert "no such counter" in told[0]


def test_groups_of_some_ranks_know_nothing_of_each_other(four: Ranks) -> None:
    assert good(four.each(apart)) == [1.0, 1.0, 5.0, 5.0]


def test_what_cannot_be_judged_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error on the way to the verdict must not leave a bucket unsummed without a word."""
    torch = pytest.importorskip("torch")
    from optcc.runtime.errors import RankFailedError, TransportError
    from optcc.runtime.torch.hook import HookState
    from optcc.runtime.torch.verdict import Court

    state = object.__new__(HookState)
    state._failure, state._court = None, Court(None, "it", 1, 2)
    monkeypatch.setattr(Court, "judge", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        state._fail(TransportError("gone"), torch)
    assert isinstance(state._failure, RankFailedError)


def test_links_are_measured(four: Ranks) -> None:
    assert all(0 < rate < 1e12 for rate in good(four.each(measure)))


def test_a_late_rank_is_the_same_error_everywhere(four: Ranks) -> None:
    """Also on the late one, once it turns up; the native group lives on."""
    told = good(four.each(fails, 2, "late", True))
    _named(2, told, [told[rank] for rank in (0, 1, 3)])
    assert all(rate > 0 for rate in good(four.each(measure)))


@pytest.mark.parametrize("planned", [True, False])
def test_a_dead_rank_is_the_same_error_everywhere(planned: bool) -> None:
    with Ranks(4) as ranks:
        answers = ranks.each(fails, 1, "dies", planned)
    assert answers[1] is None
    told = good([answers[rank] for rank in (0, 2, 3)])
    _named(1, told, told)


def _named(culprit: int, told: Sequence[Any], waited: Sequence[Any]) -> None:
    """All name `culprit` in the same words, and those who waited did so for no longer than they may."""
    assert [blamed for blamed, _, _ in told] == [culprit] * len(told)
    assert len({text for _, text, _ in told}) == 1
    assert told[0][1].startswith(f"rank {culprit} failed: ")
    assert max(seconds for *_, seconds in waited) < 4.0 + 3.0 + 20.0  # a wait, the grace, a machine that is busy


def test_the_example_trains_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["examples/train_ddp.py", "--steps", "5", "--rates", "1e6", "2e5"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "step 5: loss" in done.stdout


def test_the_bench_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import bench_torch

    monkeypatch.setattr(bench_torch.shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    monkeypatch.setattr(sys, "argv", ["bench_torch"])
    assert "tc is missing" in (bench_torch.missing() or "")
    assert bench_torch.main() == 2


# Without torch.


@pytest.mark.parametrize("module", ["optcc.pytorch", "optcc.runtime.torch"])
def test_without_torch_the_import_says_what_to_install(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None\nimport {module}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert "InputError: optcc.runtime.torch: torch is not installed" in done.stderr
    assert "optcc-toolkit[torch]" in done.stderr
