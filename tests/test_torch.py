"""Plans over torch.distributed: results and training over four Gloo processes, and what is said without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optcc
from tests.gpus import need_gpus, with_gpus
from tests.torch_ranks import (
    Ranks,
    apart,
    bug_in_planner,
    fails,
    given,
    good,
    made_and_hung_up,
    measure,
    no_plan,
    one_raises,
    sum_by,
    sum_on_gpus,
    switching,
    told,
    train,
)
from tests.torch_schedules import FAMILIES, HALF, OWN, schedule_of, turns_and_programs

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def simulator() -> None:
    """Compiled before ranks wait for each other: under load it takes longer than they may."""
    from optcc.simulation.simulator import simulate

    simulate(optcc.plan(HALF, 4096, segments=8).schedule())


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


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
    """NCCL wants a GPU for each rank; over Gloo the same rounds run above."""
    with_gpus("torch")
    need_gpus(4)
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


def test_where_no_plan_is_faster_it_is_said(four: Ranks) -> None:
    for logged, says in good(four.each(told)):
        assert logged == ["buckets of 16.25KiB: no plan is 1.05 times as fast as a ring: native"]
        assert says == "native: no plan is 1.05 times as fast as a ring for buckets of 16.25KiB"


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


def test_nobody_hangs_up_before_all_connections_are_made() -> None:
    """Else the making of them would fail on a slower rank, by an error that says nothing of the one that failed."""
    with Ranks(4) as ranks:
        times = good(ranks.each(made_and_hung_up, 2, 3))
    assert max(made for made, _ in times) < min(hung_up for _, hung_up in times)


def test_groups_of_some_ranks_know_nothing_of_each_other(four: Ranks) -> None:
    assert good(four.each(apart)) == [1.0, 1.0, 5.0, 5.0]


def test_what_cannot_be_judged_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error on the way to the verdict must not leave a bucket unsummed without a word."""
    import torch

    from optcc.runtime.errors import RankFailedError, TransportError
    from optcc.runtime.torch.hook import HookState
    from optcc.runtime.torch.meeting import Court

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


@pytest.mark.long
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
    assert "pip install '.[torch]' (with CUDA, 6 GB)" in done.stderr
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu" in done.stderr
