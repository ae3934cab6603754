"""What a chunk costs the compiled path over queue pairs, beside its bytes and beside what a device does.

Devices are played by compiled functions in this process (`tests/loop_verbs.py`): no hardware is needed, and their time
is known. Ranks are threads, which compiled code lets run side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optcc.runtime.compiled.compiling import compile_all
from optcc.runtime.devices.host import Op
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.schedule import Schedule
from tests.loop_runs import LoopRun


class VerbsCosts(NamedTuple):
    """Processor seconds per chunk, of each run: in all; of folds, copies and the device; whether all was right."""

    all_s: list[float]
    bytes_s: list[float]
    exact: bool


def verbs_costs(schedule: Schedule, slot_bytes: int, chunks: int, repeat: int, timed_each: int) -> VerbsCosts:
    """Of so many runs, after one that warms up. chunks : sent by all ranks in a run."""
    compile_all(over="verbs")
    dtype = np.dtype(np.float32)
    starts = [np.empty(schedule.nbytes // dtype.itemsize, dtype) for _ in range(schedule.ranks)]
    for rank, start in enumerate(starts):
        fill(start, rank=rank, ranks=schedule.ranks, op=Op.SUM)
    expected = reference(len(starts[0]), dtype, ranks=schedule.ranks, op=Op.SUM)
    buffers = [start.copy() for start in starts]
    costs = VerbsCosts([], [], exact=True)
    with LoopRun(schedule, slot_bytes) as ranks:
        for run in range(repeat + 1):
            for buffer, start in zip(buffers, starts, strict=True):
                buffer[:] = start
            for path in ranks.paths:
                path.timing, path.bytes_s, path.clock_s, path.chunks = timed_each, 0.0, 0.0, 0
            device_s = ranks.device.device_s()
            cpu_s = ranks.run(buffers, Op.SUM, compiled=True)
            if run:
                costs.all_s.append((cpu_s - sum(path.clock_s for path in ranks.paths)) / chunks)
                bytes_s = sum(path.bytes_s for path in ranks.paths) + ranks.device.device_s() - device_s
                costs.bytes_s.append(bytes_s / chunks)
            exact = all(is_exact(buffer, expected) for buffer in buffers) and ranks.device.starved() == 0
            exact &= sum(path.chunks for path in ranks.paths) > 1.9 * chunks
            costs = costs._replace(exact=costs.exact and exact)
    return costs
