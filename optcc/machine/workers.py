"""Processes of this machine that compute for this one, and end when it does."""

from __future__ import annotations

import multiprocessing
import multiprocessing.popen_spawn_posix  # now: two threads that import it with too few descriptors see half of it
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

END_S = 10.0
"""For a process that was killed to be gone."""


@contextmanager
def processes(workers: int, *, limit_s: float | None = None) -> Iterator[Executor]:
    """A pool of `workers`; whatever they are in the middle of when an error or an interrupt comes is given up.

    limit_s : seconds that a task may take
    A task's future raises what the task does, BrokenProcessPool where its process dies, or TimeoutError where it is
    killed at the limit.
    """
    pool = _Pool(workers, limit_s)
    try:
        yield pool
    except BaseException:
        pool.end()
        raise
    finally:
        pool.shutdown()
        pool.end()


class Worker:
    """A process that does one task after the other, each a function and its arguments, all picklable. It is started at
    the first one, and again after it ended."""

    def __init__(self) -> None:
        self._change = threading.Lock()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self.over = False

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        process = self._process  # another thread may end it meanwhile
        return process is not None and process.is_alive()

    def do(self, task: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], limit_s: float | None) -> Any:
        """What the task returns or raises. BrokenProcessPool where the process dies, or there is to be none any more,
        TimeoutError where it was killed at the limit, OSError where it cannot be started."""
        pipe = self._pipe if self._pipe and self.alive else self._start()
        try:
            pipe.send(task)
            answered = pipe.poll(limit_s)
            done, value = pipe.recv() if answered else (False, TimeoutError(f"took longer than {limit_s:g} s"))
        except (EOFError, OSError):
            self.end()
            raise BrokenProcessPool("a process of the pool died") from None
        if not answered:
            self.end()
        if not done:
            raise value
        return value

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")  # a forked child would share BLAS's threads and locks
        ours, theirs = context.Pipe()
        with theirs:
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()  # may lack descriptors: then there is nothing to end
        with self._change:
            if not self.over:
                self._process, self._pipe = process, ours
                return ours
        process.kill()
        process.join(END_S)
        raise BrokenProcessPool("the pool has ended")

    def interrupt(self) -> None:
        """Kill the process in the middle of its task, which then raises BrokenProcessPool. Does not wait."""
        process = self._process
        if process is not None:
            process.kill()

    def end(self, *, over: bool = False) -> None:
        """Kill the process. `over`: there will be no other."""
        with self._change:
            self.over = self.over or over
            process, self._process, self._pipe = self._process, None, None
        if process is not None:
            process.kill()
            process.join(END_S)


class _Pool(Executor):
    """A thread for each process hands tasks over by a pipe. The standard library's pool has named semaphores, which
    stay in /dev/shm when all of a job's processes are killed at once; pipes go with the processes that hold them."""

    def __init__(self, workers: int, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._threads = ThreadPoolExecutor(workers)
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all = [Worker() for _ in range(workers)]
        for worker in self._all:
            self._idle.put(worker)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._do, fn, args, kwargs)

    def _do(self, *task: Any) -> Any:
        worker = self._idle.get_nowait()  # there are as many threads
        try:
            return worker.do(task, self._limit_s)
        finally:
            self._idle.put(worker)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def end(self) -> None:
        """Kill all processes; what has not begun never does."""
        self.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.end(over=True)


def _serve(pipe: Connection) -> None:
    """The other process: one task after the other. Ctrl-C reaches the whole group of processes; the parent alone
    answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = True, function(*args, **kwargs)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = False, error
        try:
            pipe.send(answer)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            pipe.send((False, TypeError(f"{answer[1]!r:.500} cannot be handed over: {error}")))


def _end_with_parent() -> None:
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
