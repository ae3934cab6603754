"""The least time that memory allows a schedule: its folds and copies alone, by as many processes as cores.

A fold of n bytes reads 2 n and writes n; a copy of n bytes reads n and writes n. The processes share out the folds and
copies of all ranks. Each works on arrays of its own, as large as a rank's buffer: no messages and no waits.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.schedule import Schedule

PIECE = 1 << 18
"""Elements of one fold or copy: a chunk of 1 MiB."""
LEAD_S = 0.01
"""From the decision to start to the start."""


class MemoryFloor:
    """Processes that stand by to fold and copy float32. A context manager. nbytes : of a rank's buffer."""

    def __init__(self, nbytes: int) -> None:
        self._stack, self._pipes = ExitStack(), list[Connection]()
        context = multiprocessing.get_context("spawn")
        for _ in range(os.cpu_count() or 1):
            mine, theirs = context.Pipe()
            process = context.Process(target=_worker, args=(nbytes, theirs), daemon=True)
            process.start()
            self._stack.callback(process.join, 10)
            self._pipes.append(mine)
        self._replies()

    def __enter__(self) -> MemoryFloor:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        self._stack.close()

    def run(self, schedule: Schedule) -> float:
        """Seconds that the schedule's folds and copies take, shared evenly."""
        folded, copied = (int(schedule.length[schedule.reduce == folds].sum()) for folds in (True, False))
        start = time.monotonic() + LEAD_S
        for pipe in self._pipes:
            pipe.send((start, folded // len(self._pipes), copied // len(self._pipes)))
        ended: list[float] = self._replies()
        return max(ended) - start

    def _replies(self) -> list[Any]:
        replies = []
        for pipe in self._pipes:
            if not pipe.poll(60):
                raise SystemExit("a process that measures the memory does not answer")
            replies.append(pipe.recv())
        return replies


def _worker(nbytes: int, pipe: Connection) -> None:
    own, landed = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        start, folded, copied = order
        time.sleep(max(0.0, start - time.monotonic()))
        fold_and_copy(own, landed, folded, copied)
        pipe.send(time.monotonic())


def fold_and_copy(own: NDArray[Any], landed: NDArray[Any], folded: int, copied: int) -> None:
    """Fold and copy so many bytes of `landed` into `own`, piece by piece, from the start again at the end."""
    for nbytes, work in ((folded, lambda a, b: np.add(a, b, out=a)), (copied, np.copyto)):
        left, at = nbytes // 4, 0
        while left > 0:
            count = min(PIECE, left, len(own) - at)
            work(own[at : at + count], landed[at : at + count])
            left -= count
            at = (at + count) % len(own)
