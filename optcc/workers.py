"""Processes of this machine that compute for this one, and end when it does.

`concurrent.futures.ProcessPoolExecutor` would queue tasks under semaphores that have names, which stay in /dev/shm when
all of its processes are killed at once. Here a thread for each process hands it tasks over a pipe, which nothing is
left of.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

END_S = 5.0
"""For a process that has nothing to do any more, or was killed, to end."""


@contextmanager
def processes(workers: int, *, fresh: bool = False) -> Iterator[Executor]:
    """A pool of `workers`; whatever they are in the middle of when an error or an interrupt comes is given up.

    fresh : a process for every task

    A future raises BrokenProcessPool where its process died, else what the task raised, with its traceback as a note.
    """
    pool = _Pool(workers, fresh)
    try:
        yield pool
    except BaseException:
        pool.kill()
        raise
    finally:
        pool.shutdown()


class _Process:
    """One process, which does what it is sent, one task after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context(
            "spawn"
        )  # a forked child would share numba's and BLAS's threads and locks
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, task: tuple[Callable[..., Any], Any, Any]) -> Any:
        """The result of the task. Raises what it raised, EOFError or OSError when the process is gone."""
        self._pipe.send(task)
        value, error = self._pipe.recv()
        if error is not None:
            raise error
        return value

    def kill(self) -> None:
        """End it in the middle of what it does; whoever waits for its result gets an error."""
        self._process.kill()

    def end(self) -> None:
        """Wait until it is gone, now that nothing is left for it to do."""
        self._pipe.close()
        self._process.join(END_S)
        self._process.kill()
        self._process.join(END_S)


class _Pool(Executor):
    """Starts a process when none is idle, up to `workers`."""

    def __init__(self, workers: int, fresh: bool) -> None:
        self._threads, self._fresh = ThreadPoolExecutor(workers), fresh
        self._lock = threading.Lock()
        self._killed = False
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._call, (fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        for process in self._idle:
            process.end()
        self._idle.clear()

    def kill(self) -> None:
        """Give up what is under way and what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._killed = True
            for process in self._all:
                process.kill()

    def _call(self, task: tuple[Callable[..., Any], Any, Any]) -> Any:
        process = self._take()
        try:
            value = process.call(task)
        except (EOFError, ConnectionError):
            self._let_go(process)
            raise BrokenProcessPool("a process died in the middle of a task") from None
        except BaseException:
            self._put(process)
            raise
        self._put(process)
        return value

    def _take(self) -> _Process:
        with self._lock:
            if self._killed:
                raise BrokenProcessPool("the pool was killed")
            process = self._idle.pop() if self._idle else _Process()
            self._all.add(process)
        return process

    def _put(self, process: _Process) -> None:
        if self._fresh:
            self._let_go(process)
        else:
            self._idle.append(process)

    def _let_go(self, process: _Process) -> None:
        process.end()
        with self._lock:
            self._all.discard(process)


def _serve(pipe: Connection) -> None:
    """The process: one task after the other until the pipe closes.

    Ctrl-C reaches the whole group of processes; the parent alone answers it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        result: tuple[Any, BaseException | None]
        try:
            result = function(*args, **kwargs), None
        except BaseException as error:
            error.add_note(traceback.format_exc())
            result = None, error
        try:
            pipe.send(result)
        except OSError:
            return
        except Exception as error:  # what cannot be pickled
            pipe.send((None, TypeError(f"a result that cannot be sent, {type(error).__name__}: {error}")))


def _end_with_parent() -> None:
    """The pipe's end is noticed between tasks only."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
