"""AllReduce over the lab's NICs: `lab/run.sh --nics 8 --results out/lab -- python3 -m lab.allreduce JOB`.

JOB is a JSON file under /results: cases with NIC rates and plan files made outside (`benchmarks/bench_lab.py` makes and
reads them); times are written beside it. Ranks are processes, forked rather than started anew, which saves an
interpreter's start on a machine as slow as this; everything else is as in `optcc run --transport verbs`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import network
from optcc.plans.files import load_plan
from optcc.runtime.control import launch
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Session, result_of
from optcc.runtime.control.runner import serve_child
from optcc.runtime.control.transports import LAB


class Forked:
    """A rank's process, with what `Session` uses of `subprocess.Popen`."""

    def __init__(self, end: socket.socket, rank: int, world: int, environment: object = None) -> None:
        self._status: int | None = None
        self._asking = threading.Lock()  # the hub's thread asks how a rank ended while the command ends the others
        gc.collect()
        gc.freeze()  # what former cases have left must not be looked at, and so copied, in the middle of a run
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                if os.environ.get(LAB) == "virtual":  # see `first_come_first_served`
                    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
                status = serve_child(os.dup(end.fileno()), rank, world)
            except BaseException:
                traceback.print_exc()
            finally:  # what called this belongs to the parent
                os._exit(status)

    def poll(self) -> int | None:
        """Exit status, if it has ended."""
        with self._asking:
            if self._status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
            return self._status

    def wait(self, timeout: float) -> int:
        """Exit status."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.001)
        assert self._status is not None
        return self._status

    def kill(self) -> None:
        """At once."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)


def first_come_first_served() -> None:
    """All ranks share a processor here, which no real ones do. By default the system would favour those that have
    slept: a rank that has once done more than others would wait, for milliseconds, until nobody else has work.
    Ranks take turns in the order in which they wake up, and packets go before them.
    """
    Path("/proc/sys/kernel/sched_rt_runtime_us").write_text("-1")
    for name in Path("/proc").glob("[0-9]*/comm"):
        if name.read_text().startswith("ksoftirqd"):
            os.sched_setscheduler(int(name.parent.name), os.SCHED_FIFO, os.sched_param(2))


def run(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One case: NIC rates in bit/s, plan files, repetitions -> times in seconds; the first run of each is dropped."""
    for nic, rate in enumerate(case["rates"]):
        network.rate(nic, rate)
    schedules = {name: load_plan(folder / file).schedule() for name, file in case["plans"].items()}
    job = Job(schedules, "float32", "sum", paced=False, transport="verbs")
    runs, troubles = {}, {}
    with Session(job) as session:
        for name in schedules:
            before = network.troubles()
            runs[name] = [session.run(name, timed=case.get("timed", False)) for _ in range(case["repeat"] + 1)]
            after = network.troubles()
            troubles[name] = {what: after[what] - count for what, count in before.items() if after[what] != count}
    results = {name: result_of(name, of) for name, of in runs.items()}
    outcome: dict[str, Any] = {
        name: {"seconds": result.seconds, "exact": all(result.exact), "troubles": troubles[name]}
        for name, result in results.items()
    }
    for name, of in runs.items():
        outcome[name]["starts"] = [[rank.start_s - run.start_s for rank in run.ran] for run in of]
    if case.get("timed"):
        for name, of in runs.items():
            outcome[name]["landed"] = {
                row: at - of[-1].start_s for rank in of[-1].ran for row, at in rank.landed.items()
            }
    return outcome


def main(arguments: Sequence[str]) -> int:
    """Run every case of a job."""
    launch.start_rank = Forked  # type: ignore[assignment]
    first_come_first_served()
    job = Path("/results") / arguments[0]
    outcomes: list[dict[str, Any]] = []
    cases = json.loads(job.read_text())
    for case in cases:
        try:
            outcomes.append(run(case, job.parent))
        except Exception as error:
            traceback.print_exc()
            outcomes.append({"error": f"{type(error).__name__}: {error}"})
        job.with_suffix(".out.json").write_text(json.dumps(outcomes))  # what is done stays, whatever comes
        print(f"case {len(outcomes)} of {len(cases)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
