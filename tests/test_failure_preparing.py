"""Plans are prepared within limits, by hand, by a thread or by a process, whatever goes wrong with one of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess

import pytest

import optcc
from optcc.errors import OptccError
from optcc.planner.standby.answers import Basis, Progress
from optcc.planner.standby.background import Background, Helper, SkippedError
from optcc.planner.standby.decisions import solve
from optcc.planner.standby.planner import Planner
from optcc.theory.ring_shares import GroupCounts
from optcc.values.cluster import Cluster
from tests.failure_cases import ALPHA, COSTS, MIB, uniform


def test_preparing_ends_with_a_table_that_is_too_small() -> None:
    with Planner(uniform(nics=3), MIB, keep=2, alpha=ALPHA, background="off") as planner:
        done = planner.prepare()
        assert done.ready == done.wanted == 2
        assert len(planner._table) == 2


def test_preparing_stops_at_its_limit() -> None:
    with Planner(uniform(), MIB, alpha=ALPHA, background="off") as planner:
        assert planner.prepare(limit_s=0).ready == 1
        seen: list[int] = []
        planner.prepare(report=lambda progress: seen.append(progress.ready))
        assert seen == sorted(seen) == [2, 3, 4]


def failing_on(monkeypatch: pytest.MonkeyPatch, shape: Cluster) -> list[Cluster]:
    """Lets the planner fail on a shape; the list grows each time it does."""
    tried: list[Cluster] = []

    def solve_others(cluster: Cluster, *task: object) -> object:
        if GroupCounts.of(cluster).key == GroupCounts.of(shape).key:
            tried.append(cluster)
            raise ValueError("no plan for it")
        return solve(cluster, *task)  # type: ignore[arg-type]

    monkeypatch.setattr("optcc.planner.standby.decisions.solve", solve_others)
    return tried


def test_a_shape_that_cannot_be_decided_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of four is no good; it is tried again when asked to, and after an event."""
    with Planner(uniform(), MIB, alpha=ALPHA, background="off") as planner:
        tried = failing_on(monkeypatch, uniform().degrade("server0/nic0"))
        for times in (1, 2):
            with pytest.raises(ValueError, match="no plan for it"):
                planner.prepare()
            assert planner.progress == Progress(3, 4)
            assert len(tried) == times
        assert not planner._step()
        planner.restore("server0/nic0")
        with pytest.raises(SkippedError):
            planner._step()
        assert not planner._step()
        monkeypatch.undo()
        assert planner.prepare() == Progress(4, 4)


def test_the_background_goes_on_after_a_shape_that_cannot_be_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = failing_on(monkeypatch, uniform().degrade("server0/nic0"))
    with Planner(uniform(), MIB, alpha=ALPHA, background="thread") as planner:
        _until(lambda: planner.progress.ready == 3, planner)
        assert planner.progress == Progress(3, 4, "ValueError: no plan for it")
        assert len(tried) == 1


@pytest.mark.long
@pytest.mark.parametrize("where", ["thread", "process"])
def test_the_background_prepares_what_the_last_event_made_likely(where: str) -> None:
    with Planner(uniform(3), MIB, lookahead=1, background=where, **COSTS) as planner:  # type: ignore[arg-type]
        planner.fail("server1/nic0")
        _until(lambda: planner.progress.ready == planner.progress.wanted, planner)
        assert planner.progress.wanted >= 3
        answer = planner.rate("server1/nic0", "100Gb/s")
        _until(lambda: planner.current.basis is Basis.PREPARED, planner)
        assert planner.current.plan == optcc.plan(answer.cluster, MIB, **COSTS)
        assert planner.progress.error is None


def _until(holds: object, planner: Planner, limit_s: float = 240) -> None:
    end = time.monotonic() + limit_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, planner.progress
        time.sleep(0.05)


@pytest.fixture
def helper() -> Iterator[Helper]:
    made = Helper()
    yield made
    made.stop()


def test_a_helper_can_be_closed_while_its_process_starts(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    starting, closed, told = threading.Event(), threading.Event(), list[OptccError]()
    start = SpawnProcess.start

    def slowly(process: SpawnProcess) -> None:
        starting.set()
        assert closed.wait(10)
        start(process)

    def ask() -> None:
        with pytest.raises(OptccError, match=r"closed|died") as caught:
            helper(abs, -1)
        told.append(caught.value)

    monkeypatch.setattr(SpawnProcess, "start", slowly)
    asking = threading.Thread(target=ask)
    asking.start()
    assert starting.wait(10)
    helper.close()
    closed.set()
    asking.join(30)
    assert len(told) == 1


def test_a_helper_that_dies_is_an_error_and_then_replaced(helper: Helper) -> None:
    with pytest.raises(OptccError, match="died"):
        helper(os._exit, 3)
    assert helper(len, "four") == 4
    with pytest.raises(OptccError, match="ZeroDivisionError"):
        helper(divmod, 1, 0)
    with pytest.raises(OptccError, match="no plan after"):
        helper(time.sleep, 60, limit_s=0.05)
    assert helper(len, "four") == 4
    helper.close()
    with pytest.raises(OptccError, match="closed"):
        helper(len, "four")


def test_a_helper_s_start_is_not_the_call_s_time() -> None:
    helper = Helper(_slow_start)
    try:
        assert helper(len, "four", limit_s=0.5) == 4
    finally:
        helper.stop()


def _slow_start() -> None:
    time.sleep(1)


def test_a_failed_preparation_is_told_and_does_not_end_the_background() -> None:
    calls: list[int] = []

    def step() -> bool:
        calls.append(len(calls))
        if len(calls) == 1:
            raise OptccError("no")
        return False

    background = Background(step, "thread")
    for count in (1, 2):
        background.wake()
        end = time.monotonic() + 30
        while len(calls) < count and time.monotonic() < end:
            time.sleep(0.01)
        assert len(calls) == count
    assert background.error == "OptccError: no"
    background.close(30)
    background.wake()
    assert len(calls) == 2
