"""Runs that fail: whatever happens to one rank, all end soon, say the same and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from optcc.runtime import run_schedules
from optcc.runtime.control.launch import start_rank
from optcc.runtime.errors import RankFailedError
from optcc.schedule import Schedule
from tests.broken_schedules import in_a_circle, nested, waiting_also
from tests.control_star import gather, opened
from tests.left_behind import descriptors, gone

ROOT = Path(__file__).resolve().parent.parent


def fails(
    schedule: Schedule, *, stall_s: float = 10.0, on_start: Callable[[tuple[int, ...]], None] | None = None
) -> RankFailedError:
    """The error of a run, after checking what holds of every failed run."""
    pids: list[int] = []

    def started(those: tuple[int, ...]) -> None:
        pids.extend(those)
        if on_start:
            on_start(those)

    before, begin = descriptors(), time.monotonic()
    with pytest.raises(RankFailedError) as caught:
        run_schedules({"it": schedule}, repeat=3, stall_s=stall_s, on_start=started)
    assert time.monotonic() - begin < 25, "start, 10 s to notice, 3 s for last words"
    assert gone(tuple(pids), within_s=1), "a rank was left behind"
    assert descriptors() <= before  # fewer where something of a test before has ended meanwhile
    assert set(caught.value.seen_by.values()) <= {str(caught.value)}, "all say the same"
    return caught.value


def later(number: signal.Signals, rank: int, began: list[float]) -> Callable[[tuple[int, ...]], None]:
    """Send a signal to `rank` in the middle of the first collective."""

    def on_start(pids: tuple[int, ...]) -> None:
        def strike() -> None:
            began.append(time.monotonic())
            os.kill(pids[rank], number)

        threading.Timer(0.4, strike).start()

    return on_start


SLOW = {"ranks": 4, "nbytes": 1 << 20, "rate": 1 << 20, "segments": 8}  # 2 s at the weak rank


def test_a_killed_rank_ends_all() -> None:
    began: list[float] = []
    error = fails(nested(**SLOW), on_start=later(signal.SIGKILL, 2, began))
    assert time.monotonic() - began[0] < 10
    assert str(error) == "rank 2 failed: killed by signal 9 (Killed)"
    assert set(error.seen_by) == {0, 1, 3}, "every survivor"


def test_a_hung_rank_ends_all() -> None:
    began: list[float] = []
    error = fails(nested(**SLOW), stall_s=2, on_start=later(signal.SIGSTOP, 1, began))
    assert time.monotonic() - began[0] < 10
    assert error.rank == 1
    assert re.match(r"no sign of life; elsewhere: no progress for [\d.]+ s: \d+ transfers to receive", error.cause)
    assert set(error.seen_by) == {0, 2, 3}


@pytest.mark.long
def test_a_rank_that_pauses_for_less_than_the_bound_ends_nothing() -> None:
    def pause(pids: tuple[int, ...]) -> None:
        threading.Timer(0.3, os.kill, (pids[1], signal.SIGSTOP)).start()
        threading.Timer(1.0, os.kill, (pids[1], signal.SIGCONT)).start()

    (result,) = run_schedules({"it": nested(**SLOW)}, repeat=1, on_start=pause).values()
    assert result.exact == (True,) * 4


def test_a_deadlock_ends_all() -> None:
    error = fails(in_a_circle(nested(nbytes=1 << 16)), stall_s=1)
    assert re.fullmatch(r"no progress for [\d.]+ s: \d+ transfers to receive, .* from rank \d", error.cause)
    assert set(error.seen_by) == {0, 1, 2, 3}


def test_a_rank_that_raises_ends_all() -> None:
    schedule = nested()
    elsewhere = int(np.flatnonzero(schedule.dst != schedule.src[-1])[0])
    error = fails(waiting_also(schedule, len(schedule) - 1, elsewhere))
    assert error.rank == schedule.src[-1]
    assert "which does not end there" in error.cause
    assert set(error.seen_by) == {0, 1, 2, 3}, "the one that raised hears the verdict as well"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_parent(number: signal.Signals) -> None:
    script = """
import os, signal, sys
from optcc.runtime import run_schedules
from tests.broken_schedules import nested
run_schedules(
    {"it": nested(ranks=4, nbytes=1 << 20, rate=1 << 18)}, on_start=lambda pids: print(*pids, flush=True)
)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout
        assert parent.stderr
        pids = tuple(map(int, parent.stdout.readline().split()))
        assert len(pids) == 4
        assert not gone(pids, within_s=0.3)
        parent.send_signal(number)
        assert parent.stderr.read().count("Traceback") == (number == signal.SIGINT), "the parent's own, if any"
    assert gone(pids)


def test_ranks_end_with_a_parent_that_dies_as_they_start(tmp_path: Path) -> None:
    """They hang in their first import for ever, so that nothing but the watch over the parent can end them."""
    (tmp_path / "numpy.py").write_text("import time\ntime.sleep(3600)\n")
    script = f"""
import os, sys
from optcc.runtime import run_schedules
from optcc.runtime.control import launch as crew
from tests.broken_schedules import nested
start, pids = crew.start_rank, []
def started(end, rank, world, environment):
    process = start(end, rank, world, environment)
    pids.append(process.pid)
    if len(pids) == world:
        print(*pids, flush=True)
        os.kill(os.getpid(), 9)
    return process
crew.start_rank = started
schedule = nested(ranks=4)
sys.path.insert(0, {str(tmp_path)!r})
run_schedules({{"it": schedule}})
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == -signal.SIGKILL
    pids = tuple(map(int, done.stdout.split()))
    assert len(pids) == 4
    assert gone(pids, within_s=60)


def test_a_ranks_process_does_not_show_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "a secret of a test, long enough"
    monkeypatch.setenv("OPTCC_SECRET", secret)
    monkeypatch.setenv("OPTCC_SECRET_FILE", secret)
    monkeypatch.setenv("OPTCC_ELSE", "shown")
    with opened(1, None) as hub:
        with hub.attach(0) as end:
            process = start_rank(end, 0, 1)
        try:
            gather(hub, 60)  # it has its environment by now: the kernel shows none while a program starts
            shown = b"".join(Path(f"/proc/{process.pid}/{what}").read_bytes() for what in ("environ", "cmdline"))
        finally:
            process.kill()
            process.wait()
    assert b"OPTCC_ELSE=shown" in shown, "it can be seen"
    assert secret.encode() not in shown
