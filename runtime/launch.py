"""Run schedules on this machine (POSIX): a process per rank, real bytes, every element checked after every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from optcc.errors import InputError
from optcc.runtime.codec import typed
from optcc.runtime.crew import Crew
from optcc.runtime.job import Job, check_memory
from optcc.runtime.layout import longest_transfer_s
from optcc.runtime.messages import Check, Go, Prepare, Ran
from optcc.runtime.vigil import PING_S
from optcc.schedule import Schedule

LEAD_S = 0.03
"""From the parent's decision to the common start: more than the slowest rank needs to hear of it."""

ARRAY_BYTES_PER_S = 50e6
"""Less than the slowest array operation does on a shared core: bounds how long a rank may be deaf as it computes."""


@dataclass(frozen=True)
class RunResult:
    """The runs of one algorithm.

    Attributes
    ----------
    seconds : of each timed repetition, from the first rank's start to the last rank's end
    exact : by rank, whether every element equalled the reference in every repetition, the warm-up included
    sent : bytes of payload by port name in one repetition
    cpu_s : processor seconds of all ranks together, of each timed repetition
    """

    algorithm: str
    seconds: tuple[float, ...]
    exact: tuple[bool, ...]
    sent: Mapping[str, int]
    cpu_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median repetition."""
        return median(self.seconds)


def run_schedules(
    schedules: Mapping[str, Schedule],
    *,
    dtype: str = "float32",
    op: str = "sum",
    repeat: int = 5,
    paced: bool = True,
    stall_s: float = 10.0,
    progress: Callable[[str, int, float], None] | None = None,
    on_start: Callable[[tuple[int, ...]], None] | None = None,
) -> dict[str, RunResult]:
    """Run every schedule once to warm up and `repeat` times timed, in turns (A B A B ...), in the same processes.

    Parameters
    ----------
    schedules : by algorithm name, all for the same ranks and bytes
    dtype, op : names from `device.DTYPES` and `device.Op`
    paced : emulate the rates of the schedules' ports; False: as fast as the machine goes
    stall_s : so long may a rank be silent, or everything stand still, before the run is declared failed
    progress : called with (algorithm, repetition from 0, seconds) after each timed repetition
    on_start : called with the ranks' process ids before the first run

    Raises InputError for what cannot be run and RankFailedError when a rank fails. A wrong result raises nothing: it
    is in `RunResult.exact`.
    """
    if repeat < 1:
        raise InputError("nothing to time", where="--repeat", expected="1 or more", got=repeat)
    if stall_s < 2 * PING_S:
        raise InputError("too short to tell", where="stall_s", expected=f"{2 * PING_S} s or more", got=stall_s)
    job = Job(dict(schedules), dtype, op, paced)
    check_memory(job)
    setup_s = stall_s + job.ranks**2 * job.nbytes / ARRAY_BYTES_PER_S
    run_s = {name: stall_s + (longest_transfer_s(schedule) if paced else 0) for name, schedule in schedules.items()}
    runs: dict[str, list[list[Ran]]] = {name: [] for name in schedules}
    exact = {name: [True] * job.ranks for name in schedules}
    with Crew(job) as crew:
        crew.replies(setup_s)
        if on_start:
            on_start(crew.pids)
        for repetition in range(-1, repeat):  # -1 warms up
            for name in schedules:
                crew.order(Prepare(name, []), setup_s)
                ran = [typed(Ran, times) for times in crew.order(Go(time.monotonic() + LEAD_S), run_s[name])]
                right = crew.order(Check(), setup_s)
                exact[name] = [a and b for a, b in zip(exact[name], right, strict=True)]
                if repetition >= 0:
                    runs[name].append(ran)
                    if progress:
                        progress(name, repetition, _seconds(ran))
    return {
        name: RunResult(
            algorithm=name,
            seconds=tuple(_seconds(ran) for ran in runs[name]),
            exact=tuple(exact[name]),
            sent={nic: nbytes for rank in runs[name][-1] for nic, nbytes in rank.sent.items()},
            cpu_s=tuple(sum(rank.cpu_s for rank in ran) for ran in runs[name]),
        )
        for name, schedule in schedules.items()
    }


def _seconds(ran: list[Ran]) -> float:
    return max(rank.end_s for rank in ran) - min(rank.start_s for rank in ran)
