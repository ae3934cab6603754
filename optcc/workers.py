"""Processes of this machine that compute for this one, and end when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path


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
    """Ctrl-C reaches the whole group of processes; the parent alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """From now on this process ends when the one that started it does, even by SIGKILL, whatever it is at."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def limit_memory(nbytes: int) -> None:
    """From now on this process may take `nbytes` bytes more than it has; what needs more raises MemoryError.

    What it has is its data as the kernel counts them (Linux; elsewhere they count as 0): stacks of many idle threads
    are among them, so a fixed total would mean less on a machine of more cores.
    """
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    except OSError:
        pages = 0
    most = pages * resource.getpagesize() + nbytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
