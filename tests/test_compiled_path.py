"""The compiled path against Python's: the same bits in every buffer, and planted faults noticed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import optcc
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.control.launch import run_schedules
from optcc.runtime.devices.host import Op
from optcc.runtime.engine.loop import Engine
from optcc.runtime.flows.timeouts import Timeouts
from optcc.schedule import Schedule
from optcc.schedule.simple import one_tree
from tests.compiled_runs import BOUND_S, run_both, schedule_of
from tests.test_architecture import ROOT

pytestmark = pytest.mark.usefixtures("compiled")


def direct(nbytes: int) -> Schedule:
    """Every rank gets three pieces to fold, which come before their turn as often as not."""
    cluster = optcc.Cluster.uniform(servers=4, nics=1, rate=Fraction(10**9))
    return optcc.plan(cluster, nbytes, family="direct-exchange").schedule()


CASES = {
    "direct": (direct, {"nbytes": 128_000}),
    "ring": (schedule_of, {"weak": 0, "nics": 1, "nbytes": 120_000}),
    "lanes": (schedule_of, {"weak": 0, "nics": 2, "nbytes": 120_000}),
    "degraded": (schedule_of, {"weak": 1, "nics": 2, "nbytes": 120_000}),
}


@pytest.mark.parametrize("paced", [False, True], ids=["unlimited", "paced"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(case: str, paced: bool) -> None:
    make, how = CASES[case]
    expected, made, chunks = run_both(make(**how), "float32", Op.SUM, paced)
    assert made == [expected] * 3
    assert chunks > 0


FIRST = 3
"""In `star`, all send to rank 0 first, which folds in the order of rows."""


def held_back(until: Callable[[list[CompiledPath]], bool]) -> Callable[[int, list[CompiledPath]], None]:
    """The rank whose pieces rank 0 folds first does not begin until this is so."""

    def before(rank: int, paths: list[CompiledPath]) -> None:
        end = time.monotonic() + BOUND_S
        while rank == FIRST and not until(paths):
            assert time.monotonic() < end, "what was to come before its turn has not come"
            time.sleep(0.001)

    return before


def star(nbytes: int) -> Schedule:
    return one_tree(optcc.Cluster.uniform(servers=4, nics=1, rate=Fraction(10**9)), nbytes)


def test_pieces_before_their_turn_wait_in_their_slots() -> None:
    """And are folded in their turn, all by compiled code."""

    def both_wait(paths: list[CompiledPath]) -> bool:
        return int(paths[0].flows.tables.flows["parked"].sum()) >= 2

    schedule = star(4096)
    assert (schedule.src[0], schedule.dst[0]) == (FIRST, 0)
    expected, made, chunks = run_both(schedule, "float32", Op.SUM, False, before=held_back(both_wait))
    assert made == [expected] * 3
    assert chunks == 2 * 2 * len(schedule.src)  # each sent and taken, in both runs


def test_more_pieces_than_half_a_window_are_copied_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a flow whose slots are full of them could not bring what their turn waits for."""
    kept: list[int] = []
    whole = Engine.keep

    def counted(self: Engine, row: int, offset: int, data: Any) -> None:
        kept.append(row)
        whole(self, row, offset, data)

    monkeypatch.setattr(Engine, "keep", counted)

    def is_kept(paths: list[CompiledPath]) -> bool:
        return len(kept) > int(paths[0].flows.tables.flows["window"].max()) // 2

    def before(rank: int, paths: list[CompiledPath]) -> None:
        held_back(is_kept)(rank, paths)
        if rank == FIRST:
            kept.clear()

    rare = Timeouts(progress=100 * BOUND_S)  # no look at progress, which would give Python a turn
    expected, made, _ = run_both(star(1 << 18), "float32", Op.SUM, False, slot_bytes=512, before=before, timeouts=rare)
    assert made == [expected] * 3


@pytest.mark.parametrize(("name", "op"), [("int8", Op.PROD), ("float64", Op.MIN), ("uint32", Op.MAX)])
def test_the_same_bits_of_other_types(name: str, op: Op) -> None:
    expected, made, _ = run_both(schedule_of(weak=1, nics=2, nbytes=24_000), name, op, paced=False, slot_bytes=512)
    assert made == [expected] * 3


def test_a_wrong_fold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optcc.runtime.compiled.path.fold_of", lambda op, name: fold_of(Op.MAX, name))
    expected, made, _ = run_both(schedule_of(weak=0, nics=1, nbytes=24_000), "float32", Op.SUM, paced=False)
    assert made[0] != expected


def lost_count(planted: bool, bound_s: float) -> None:
    """A machine that is told of one chunk less than compiled code has sent numbers the next one wrongly."""

    def forgets(self: CompiledPath, engine: CompiledEngine, code: int) -> None:
        posted = self.flows.tables.flows["posted"]
        posted[posted > 0] -= planted
        whole(self, engine, code)

    whole, CompiledPath._write_back = CompiledPath._write_back, forgets  # type: ignore[method-assign]
    expected, made, _ = run_both(
        schedule_of(weak=0, nics=1, nbytes=24_000), "float32", Op.SUM, paced=False, slot_bytes=512, bound_s=bound_s
    )
    assert made == [expected] * 3


@pytest.mark.long
def test_a_lost_count_is_noticed() -> None:
    """In a process of its own, which it may end: nobody stops a rank that writes where it must not."""
    ends = []
    for planted in (True, False):
        bound_s = 5.0 if planted else BOUND_S
        what = f"from tests.test_compiled_path import lost_count; lost_count({planted}, {bound_s})"
        ends.append(subprocess.run([sys.executable, "-c", what], cwd=ROOT, capture_output=True, timeout=600).returncode)
    assert ends[0] != 0
    assert ends[1] == 0


@pytest.mark.long
def test_processes_over_the_compiled_path() -> None:
    schedule = schedule_of(weak=1, nics=2, nbytes=1 << 20)
    done = run_schedules({"it": schedule}, repeat=2, paced=False, path="compiled", stall_s=60.0)
    assert all(done["it"].exact)
