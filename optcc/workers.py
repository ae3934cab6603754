"""Processes of this machine that compute for this one, and end when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def processes(workers: int, *, fresh: bool = False) -> Iterator[ProcessPoolExecutor]:
    """A pool of `workers`; whatever they are in the middle of when an error or an interrupt comes is given up.

    fresh : a process for every task
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # a forked child would share numba's and BLAS's threads and locks
    each = 1 if fresh else None
    executor = ProcessPoolExecutor(workers, context, initializer=_start_worker, max_tasks_per_child=each)
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        executor.shutdown()


def _start_worker() -> None:
    """Ctrl-C reaches the whole group of processes; the parent alone answers it. A worker ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
