"""Whole runs: a process per rank, started, timed, checked and ended together, whatever happens to one of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import optcc
from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.runtime import RunResult, run_schedules
from optcc.runtime import crew as crew_module
from optcc.runtime.errors import FlowSeveredError, RankFailedError, TransportError
from optcc.runtime.job import Job, check_memory, digest_of
from optcc.runtime.messages import Broken, Pong, Reply
from optcc.runtime.vigil import GRACE_S, PING_S, Accusation, Vigil, most_accused
from optcc.runtime.worker import _await_verdict
from optcc.schedule import Schedule
from tests.broken_schedules import in_a_circle, nested, waiting_also, with_rows

ROOT = Path(__file__).resolve().parent.parent


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def gone(pids: tuple[int, ...], within_s: float = 5.0) -> bool:
    """Whether none of the processes runs any more."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    end = time.monotonic() + within_s
    while any(map(runs, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_two_algorithms_in_turns() -> None:
    cluster = Cluster.uniform(servers=4, nics=4, rate=5_000_000).degrade("server1/nic0").degrade("server1/nic1")
    plan = optcc.plan(cluster, 1 << 20)
    schedules = {name: plan.baseline(name).schedule() for name in ("optcc", "ring")}
    before = descriptors()
    turns: list[tuple[str, int, float]] = []
    pids: list[int] = []

    def progress(algorithm: str, repetition: int, seconds: float) -> None:
        turns.append((algorithm, repetition, seconds))

    results = run_schedules(schedules, repeat=2, progress=progress, on_start=pids.extend)

    assert [turn[:2] for turn in turns] == [("optcc", 0), ("ring", 0), ("optcc", 1), ("ring", 1)]
    for name, result in results.items():
        assert isinstance(result, RunResult)
        assert result.exact == (True,) * 4
        assert result.seconds == tuple(turn[2] for turn in turns if turn[0] == name)
        assert min(result.seconds) >= 0.999 * float(plan.bound.seconds), "faster than the rates allow"
        assert min(result.seconds) < 2 * optcc.simulate(schedules[name]).time_s
        assert min(result.seconds) <= result.median_s <= max(result.seconds)
        assert len(result.cpu_s) == 2
        assert min(result.cpu_s) > 0
        assert sum(result.sent.values()) == 2 * 3 * plan.bound.nbytes
    assert set(results["ring"].sent) == {port.name for port in schedules["ring"].ports}
    assert len(pids) == 4
    assert gone(tuple(pids))
    assert descriptors() == before, "sockets or files left open"


@pytest.mark.parametrize(
    ("dtype", "op"), [("float16", "prod"), ("uint8", "max"), ("bfloat16", "sum"), ("int32", "avg"), ("float32", "avg")]
)
def test_as_fast_as_the_machine_goes(dtype: str, op: str) -> None:
    schedule = nested(ranks=3, nbytes=1 << 20, rate=1000)  # hours, if the rates were kept
    (result,) = run_schedules({"optcc": schedule}, dtype=dtype, op=op, repeat=1, paced=False).values()
    assert result.exact == (True,) * 3
    assert result.median_s < 30


@pytest.mark.parametrize("ranks", [1, 2])
def test_few_ranks_and_one_element(ranks: int) -> None:
    (result,) = run_schedules({"optcc": nested(ranks=ranks, nbytes=4, weak=0)}, repeat=1).values()
    assert result.exact == (True,) * ranks
    assert sum(result.sent.values()) == 2 * (ranks - 1) * 4


def test_wrong_schedules_are_not_exact() -> None:
    good = nested(ranks=3)
    rows = list(range(len(good)))
    reduce = int(np.flatnonzero(good.reduce)[5])
    results = run_schedules(
        {
            "good": good,
            "dropped": with_rows(good, rows[:-1]),
            "doubled": with_rows(good, [*rows[: reduce + 1], *rows[reduce:]]),
        },
        repeat=1,
        paced=False,
    )
    assert {name: all(result.exact) for name, result in results.items()} == {
        "good": True,
        "dropped": False,
        "doubled": False,
    }
    assert not results["dropped"].exact[good.dst[-1]]


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
    assert descriptors() == before
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
    assert re.fullmatch(r"no sign of life for [\d.]+ s", error.cause)
    assert set(error.seen_by) == {0, 2, 3}


def test_a_rank_that_pauses_for_less_than_the_bound_ends_nothing() -> None:
    def pause(pids: tuple[int, ...]) -> None:
        threading.Timer(0.3, os.kill, (pids[1], signal.SIGSTOP)).start()
        threading.Timer(1.0, os.kill, (pids[1], signal.SIGCONT)).start()

    (result,) = run_schedules({"it": nested(**SLOW)}, repeat=1, on_start=pause).values()
    assert result.exact == (True,) * 4


def test_a_deadlock_ends_all() -> None:
    error = fails(in_a_circle(nested(nbytes=1 << 16)), stall_s=1)
    assert re.fullmatch(
        r"no progress anywhere for [\d.]+ s; there: \d+ transfers to receive, .* from rank \d", error.cause
    )
    assert set(error.seen_by) == {0, 1, 2, 3}


def test_a_rank_that_raises_ends_all() -> None:
    schedule = nested()
    elsewhere = int(np.flatnonzero(schedule.dst != schedule.src[-1])[0])
    error = fails(waiting_also(schedule, len(schedule) - 1, elsewhere))
    assert error.rank == schedule.src[-1]
    assert "which does not end there" in error.cause
    assert set(error.seen_by) == {0, 1, 2, 3}, "the one that raised hears the verdict as well"


def test_another_schedule_than_the_parents_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = nested(ranks=2, weak=0)
    other = digest_of(schedule.replace(segment=schedule.segment + 1))
    monkeypatch.setattr(crew_module, "digest_of", lambda _: other)
    error = fails(schedule)
    assert f"it: not the schedule that the others run, expected {other}, got '{digest_of(schedule)}'" == error.cause


def test_the_digest_covers_everything() -> None:
    schedule = nested()
    digests = {digest_of(schedule)}
    for name in ("route", "offset", "length", "stage", "segment", "dep_ptr", "dep_idx"):
        column = getattr(schedule, name).copy()
        column[-1] += 1
        digests.add(digest_of(schedule.replace(**{name: column})))
    digests.add(digest_of(schedule.replace(reduce=~schedule.reduce)))
    digests.add(digest_of(schedule.replace(ports=(replace(schedule.ports[0], out_rate=1.0), *schedule.ports[1:]))))
    digests.add(digest_of(schedule.replace(routes=schedule.routes[::-1])))
    digests.add(digest_of(schedule.replace(nbytes=schedule.nbytes + 8)))
    assert len(digests) == 12
    assert digest_of(nested()) in digests


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


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from optcc.runtime import run_schedules\n"
        "from tests.broken_schedules import nested\n"
        "print(run_schedules({'it': nested(ranks=2, weak=0)}, repeat=1)['it'].exact)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.stderr) == ("(True, True)\n", "")


def test_a_rank_imports_only_numpy() -> None:
    script = (
        "import sys, optcc.runtime.worker\n"
        "print({m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names - {'__main__', '__mp_main__'})"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    ).stdout
    assert set(re.findall(r"'(\w+)'", found)) == {"numpy", "optcc"}


def test_what_cannot_be_run_is_refused() -> None:
    schedule = nested()
    with pytest.raises(InputError, match="nothing to run"):
        run_schedules({})
    with pytest.raises(InputError, match="schedules of different shapes"):
        run_schedules({"a": schedule, "b": nested(ranks=3)})
    with pytest.raises(InputError, match="nothing to time"):
        run_schedules({"a": schedule}, repeat=0)
    with pytest.raises(InputError, match="too short to tell"):
        run_schedules({"a": schedule}, stall_s=0.1)
    with pytest.raises(InputError, match="unknown dtype"):
        run_schedules({"a": schedule}, dtype="complex64")
    with pytest.raises(InputError, match="unknown operation"):
        run_schedules({"a": schedule}, op="mean")
    with pytest.raises(InputError, match="not a whole number of elements"):
        run_schedules({"a": nested(nbytes=4098)})
    with pytest.raises(InputError, match="do not fit into this machine's memory"):
        run_schedules({"a": schedule.replace(nbytes=1 << 50)})


def test_what_fits_into_memory_is_not_refused() -> None:
    check_memory(Job({"a": nested()}, "float32", "sum", True))


def test_vigil_waits_for_every_reply() -> None:
    vigil = Vigil(3, patience_s=2.0, now=0.0)
    for rank in range(3):
        assert vigil.pending
        vigil.heard(rank, Reply(), 0.1)
    assert not vigil.pending
    assert vigil.verdict(100.0) is None


def test_vigil_pings_those_that_owe_a_reply() -> None:
    vigil = Vigil(3, patience_s=2.0, now=0.0)
    assert vigil.to_ask(PING_S / 2) == []
    vigil.heard(1, Reply(), 0.1)
    assert vigil.to_ask(PING_S) == [0, 2]
    vigil.heard(0, Pong(1, "x"), 0.6)
    assert vigil.to_ask(1.2 * PING_S) == []
    assert vigil.to_ask(2 * PING_S) == [0], "rank 2 has not answered yet"


def test_vigil_takes_silence_for_death_after_its_patience() -> None:
    vigil = Vigil(2, patience_s=2.0, now=0.0)
    assert vigil.to_ask(1.0) == [0, 1]
    vigil.heard(0, Pong(1, "x"), 1.0)
    for second in (1.5, 2.5):
        vigil.heard(0, Pong(int(10 * second), "x"), second)
        assert vigil.verdict(second) is None
    assert vigil.verdict(3.1) == (1, "no sign of life for 2 s")


def test_vigil_tells_a_silent_rank_from_those_that_wait_for_it() -> None:
    vigil = Vigil(3, patience_s=2.0, now=0.0)
    vigil.to_ask(1.0)
    for rank in (0, 2):
        vigil.heard(rank, Pong(0, "waits"), 1.0)
    assert vigil.verdict(2.9) is None
    assert vigil.verdict(3.1) == (1, "no sign of life for 2 s"), "not rank 0, which answers"


def test_vigil_notices_that_nothing_moves() -> None:
    vigil = Vigil(2, patience_s=2.0, now=0.0)
    for second in range(1, 4):
        assert vigil.verdict(second) is None
        for rank in vigil.to_ask(second):
            vigil.heard(rank, Pong(5, "2 transfers"), second)
    assert vigil.verdict(3.1) == (0, "no progress anywhere for 2 s; there: 2 transfers")


def test_vigil_prefers_evidence_to_hearsay() -> None:
    vigil = Vigil(3, patience_s=9.0, now=0.0)
    vigil.heard(0, Broken("lost rank 1: it closed the connection", blames=1), 1.0)
    assert vigil.verdict(1.0 + GRACE_S / 2) is None
    assert vigil.verdict(1.0 + GRACE_S) == (1, "rank 0 lost rank 1: it closed the connection")
    vigil.heard(2, Broken("MemoryError: none left"), 1.1)
    assert vigil.verdict(1.1) == (2, "MemoryError: none left")


def accused(*said: tuple[int, int]) -> dict[int, Accusation]:
    """(accuser, whom it blames), in the order of time."""
    return {accuser: Accusation(blamed, f"lost rank {blamed}") for accuser, blamed in said}


DARK_SPEAKS_FIRST = (1, 2), (0, 1)
"""In a ring of four all NICs of rank 1 are black holes: it loses the next rank, and the one before loses it."""


@pytest.mark.parametrize(
    ("said", "culprit"),
    [
        (((1, 2), (0, 2)), 2),
        (((3, 1), (1, 2), (2, 1)), 1),
        (((1, 3), (0, 2), (4, 2)), 2),
        (((1, 2), (0, 1), (2, 0)), 2),
        (((1, 0), (0, 1)), 0),
        (((1, 3), (0, 2)), 3),
        (((0, 1), (1, 2), (3, 2)), 2),
    ],
    ids=[
        "one and all",
        "by more, although each other",
        "by more that nobody accuses",
        "a circle: the first",
        "each other: the first",
        "as many: the first",
        "as many that nobody accuses, and more at all",
    ],
)
def test_whom_most_ranks_accuse_is_to_blame(said: tuple[tuple[int, int], ...], culprit: int) -> None:
    assert most_accused(accused(*said))[0] == culprit


def test_the_word_of_an_accused_rank_counts_for_less() -> None:
    assert most_accused(accused(*DARK_SPEAKS_FIRST)) == (1, "rank 0 lost rank 1")
    assert next(iter(accused(*DARK_SPEAKS_FIRST).values())).blamed == 2, "the first accusation blames another one"


def test_the_witness_is_one_that_nobody_accuses() -> None:
    assert most_accused(accused((2, 1), (1, 2), (0, 1))) == (1, "rank 0 lost rank 1")


@pytest.mark.parametrize("later_s", [0.0, 0.5])
def test_vigil_hears_others_before_it_takes_an_accusation(later_s: float) -> None:
    vigil = Vigil(4, patience_s=9.0, now=0.0)
    for nth, (accuser, said) in enumerate(accused(*DARK_SPEAKS_FIRST).items()):
        vigil.heard(accuser, Broken(said.cause, blames=said.blamed), 1.0 + nth * later_s)
    assert vigil.verdict(0.99 + GRACE_S) is None
    assert vigil.verdict(1.0 + GRACE_S) == (1, "rank 0 lost rank 1"), "from the first accusation, whatever comes later"


def test_without_the_others_the_first_accusation_would_be_the_verdict() -> None:
    """The negative control: what it was."""
    vigil = Vigil(4, patience_s=9.0, now=0.0)
    accuser, said = next(iter(accused(*DARK_SPEAKS_FIRST).items()))
    vigil.heard(accuser, Broken(said.cause, blames=said.blamed), 1.0)
    assert vigil.verdict(1.0 + GRACE_S) == (2, "rank 1 lost rank 2")


class Says:
    """A worker, or its control channel: every command that it is asked for raises the next of these."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked = [*errors], 0

    def command(self) -> None:
        self.asked += 1
        raise self.errors.pop(0)


VERDICT = RankFailedError(1, "lost")


@pytest.mark.parametrize(
    ("error", "served", "asked"),
    [
        (FlowSeveredError(2, "no wire left"), (FlowSeveredError(2, "nor for this flow"), VERDICT), (2, 0)),
        (FlowSeveredError(2, "no wire left"), (TransportError("a gap"),), (1, 1)),
        (TransportError("a bug"), (), (0, 1)),
    ],
    ids=["serves its flows", "as long as they can be served", "not after a bug"],
)
def test_a_rank_that_has_lost_a_peer_answers_the_others_until_the_verdict(
    error: Exception, served: tuple[Exception, ...], asked: tuple[int, int]
) -> None:
    """Or they could not find out that it is the one who is lost: a peer that does not answer may just be paused."""
    worker, control = Says(*served), Says(VERDICT)
    with pytest.raises(RankFailedError):
        _await_verdict(cast("Any", worker), cast("Any", control), error)
    assert (worker.asked, control.asked) == asked
