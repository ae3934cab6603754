"""Whole runs: a process per rank, started, timed and checked; what a rank needs, and what cannot be run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import optcc
from optcc import api, load_topology
from optcc.cli import main
from optcc.cli.run import RuntimeChoice, costs_of
from optcc.discover import Measured
from optcc.errors import InputError
from optcc.runtime import RunResult, run_schedules
from optcc.runtime.control.job import Job, check_memory
from optcc.runtime.control.launch import Session, start_rank
from optcc.runtime.errors import RankFailedError
from optcc.runtime.native.layout import layout_of
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests.broken_schedules import in_a_circle, nested, waiting_also, with_rows
from tests.control_star import gather, opened
from tests.left_behind import descriptors, gone

ROOT = Path(__file__).resolve().parent.parent


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
        "import sys, optcc.runtime.control.runner\n"
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
    with pytest.raises(InputError, match="ranks do not fit into this machine's memory"):
        run_schedules({"a": schedule.replace(nbytes=1 << 50)})


def test_what_fits_into_memory_is_not_refused() -> None:
    job = Job({"a": nested()}, "float32", "sum", True)
    check_memory(job, layout_of(job.schedules), range(job.ranks))


# Runs that fail: whatever happens to one rank, all end soon, say the same and leave nothing behind.


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


# `optcc run` plans with what its runtime takes for a message and a chunk, and says where it knows that from.


US = Fraction(1, 10**6)
MEASURED = Measured("2026-11-20", "local", 3 * US, 5 * US)
FILE = """optcc: 1
measured:
  date: 2026-11-20
  transport: {transport}
  alpha: 2us
  per_chunk: 50us
  spread: 0.1%
servers:
  - name: 'server0'
    nics: [{{name: 'nic0', rate: 400Gb/s}}]
  - name: 'server1'
    nics: [{{name: 'nic0', rate: 400Gb/s}}]
  - name: 'server2'
    nics: [{{name: 'nic0', rate: 400Gb/s}}]
"""


def chosen(transport: str = "local", device: str = "cpu", per_chunk: str | None = None) -> RuntimeChoice:
    return RuntimeChoice(None, per_chunk, transport, Fraction(50 * 10**9), device)


def test_what_is_stated_comes_before_what_is_measured() -> None:
    """By the clock of a runtime whose NICs are slower; measured times are the cluster's already."""
    costs = costs_of(chosen(per_chunk="40us"), MEASURED, Fraction(10))
    assert (costs.alpha, costs.per_chunk) == (3 * US, 4 * US)
    told = "planned for alpha 30 us (measured 2026-11-20), per chunk 40 us (stated), jitter 10 %"
    assert costs.line(Fraction(10)) == told
    assert costs.jitter == 0.1


def test_another_transports_costs_are_not_this_ones() -> None:
    costs = costs_of(chosen("verbs"), MEASURED, Fraction(1))
    assert (costs.alpha, costs.per_chunk, costs.jitter) == (0, 0, 0)
    assert costs.per_chunk_from == "measured over local only"
    assert costs_of(chosen("verbs"), None, Fraction(1)).per_chunk_from == "not measured"


def test_ranks_on_gpus_have_costs_of_their_own() -> None:
    """Not those which a file has of ranks in host memory; in the time of the cluster, whose NICs are faster here."""
    costs = costs_of(chosen(device="cuda", per_chunk="40us"), MEASURED, Fraction(10))
    assert (costs.alpha, costs.per_chunk, costs.jitter) == (US / 2, 4 * US, 0.1)
    told = "planned for alpha 5 us (of ranks on GPUs), per chunk 40 us (stated), jitter 10 %"
    assert costs.line(Fraction(10)) == told
    assert costs_of(chosen(device="cuda"), None, Fraction(1)).per_chunk == 2 * US


def test_another_engines_costs_are_not_this_ones() -> None:
    measured = replace(MEASURED, path="python")
    costs = costs_of(chosen(), measured, Fraction(1))
    assert (costs.per_chunk, costs.per_chunk_from) == (0, "measured with the path python, which is no more")
    costs = costs_of(chosen(), replace(MEASURED, path="native"), Fraction(1))
    assert (costs.per_chunk, costs.per_chunk_from) == (5 * US, "measured 2026-11-20")


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(InputError, match="--per-chunk"):
        costs_of(chosen(per_chunk="many"), None, Fraction(1))


@pytest.mark.parametrize("transport", ["local", "verbs"])
def test_the_plan_that_runs_is_the_one_for_these_costs(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cost of 50 us a chunk wants fewer and larger ones; a file of another transport changes nothing."""
    file = tmp_path / "measured.yaml"
    file.write_text(FILE.format(transport=transport))
    cluster = load_topology(str(file)).cluster
    costs = {"alpha": 2 * US, "per_chunk": 50 * US} if transport == "local" else {}
    expected = api.plan(cluster, 2**20, **costs)
    assert (expected.plan_id != api.plan(cluster, 2**20).plan_id) == (transport == "local"), "else nothing is shown"
    ran = CliRunner().invoke(main, ["run", str(file), "--size", "1MiB", "--repeat", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    value = json.loads(ran.stdout)
    assert value["nominal"]["plan_id"] == expected.plan_id
    assert value["planned_for"]["per_chunk_s"] == (50e-6 if costs else 0)
    assert ("measured 2026-11-20" if costs else "measured over verbs only") in ran.stderr


def test_a_plan_file_has_been_made_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "__init__", lambda *_: pytest.fail("nothing may start"))
    file = tmp_path / "plan.json"
    runner = CliRunner()
    assert runner.invoke(main, ["plan", "uniform:servers=2,nics=1,rate=1Gb/s", "-o", str(file)]).exit_code == 0
    refused = runner.invoke(main, ["run", str(file), "--per-chunk", "5us"])
    assert (refused.exit_code, "--per-chunk" in refused.stderr) == (2, True)
