"""Work that is done between events: one thing at a time, the most urgent first, in a thread or another process."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeVar

from optcc.errors import InputError, OptccError
from optcc.machine.workers import end_with_parent

T = TypeVar("T")
Where = Literal["off", "thread", "process"]
SETTLE_S = 0.05
"""From an event to the work that it makes: its answer goes out first, and failures come in bursts."""
IDLE_S = 60.0
"""Longest sleep without a look at whether there is work."""
SOLVE_S = 1800.0
"""A piece of work that takes longer is given up."""
START_S = 120.0
"""For another process to start and import what it needs: seconds, on a machine that is busy with something else."""


class LateError(OptccError):
    """No answer within the limit; what computed it was ended."""


class MemoryLimitError(OptccError):
    """What was computed needed more memory than its process may take; that process was ended."""


class SkippedError(OptccError):
    """A piece of work failed, as its cause says, and will not be tried again soon; more may be left."""


class Helper:
    """Another process that computes what it is sent, one call at a time. Started at the first call, and again after it
    died.

    prepare : what it does first, such as imports; a call's limit of time begins after it
    """

    def __init__(self, prepare: Callable[[], object] = int) -> None:
        self.prepare = prepare
        self._turn, self._closed = threading.Lock(), False
        self._process: BaseProcess | None = None
        self._ours: Connection | None = None

    def __call__(
        self,
        function: Callable[..., T],
        *arguments: Any,
        limit_s: float = SOLVE_S,
        unwanted: threading.Event | None = None,
    ) -> T:
        """`function(*arguments)`, both picklable.

        unwanted : set it, then call `interrupt`, and this call ends soon, wherever it is
        Raises LateError when there is no answer in time, counted from this call's turn; MemoryLimitError where it took
        too much memory; OptccError when there is none at all.
        """
        with self._turn:
            return self._call(function, arguments, limit_s, unwanted or threading.Event())

    def _call(
        self, function: Callable[..., T], arguments: tuple[Any, ...], limit_s: float, unwanted: threading.Event
    ) -> T:
        if self._closed:
            raise OptccError("no more plans: it was closed")
        try:
            process = self._process  # another thread may end it meanwhile
            if process is None or not process.is_alive():
                pipe = self._start()
                self._unless(unwanted)
                self._ask(pipe, self.prepare, (), START_S)
            self._unless(unwanted)
            assert self._ours is not None
            value, error = self._ask(self._ours, function, arguments, limit_s)
            if isinstance(error, MemoryLimitError):  # what it has taken, it may keep
                raise error
        except (OSError, EOFError):
            self.stop()
            raise OptccError("the process that prepares plans died") from None
        except OptccError:
            self.stop()
            raise
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    @staticmethod
    def _unless(unwanted: threading.Event) -> None:
        """An `interrupt` before the process was there had nothing to end."""
        if unwanted.is_set():
            raise OptccError("no more plans: nobody waits for it")

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), name="optcc-standby", daemon=True)
        process.start()
        theirs.close()
        self._process = process  # not before: who closes this meanwhile would end a process that has not begun
        if self._closed:
            self.stop()
        return self._ours

    @staticmethod
    def _ask(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], limit_s: float) -> Any:
        pipe.send((function, arguments))
        if not pipe.poll(limit_s):
            raise LateError(f"no plan after {limit_s:.3g} s")
        return pipe.recv()

    def interrupt(self) -> None:
        """End the process in the middle of its call, which then raises; the next call starts another. Does not wait."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process for good; whoever waits for it, or for a turn, gets an error."""
        self._closed = True
        self.stop()

    def stop(self) -> None:
        """End the process, whatever it computes: nobody wants it any more."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join(5)


def serve(pipe: Connection) -> None:
    """The other process: one call after the other until the pipe closes, or the process that started this one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that started this one
    end_with_parent()
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((function(*arguments), None))
        except MemoryError:
            pipe.send((None, MemoryLimitError("it takes more memory than a process may")))
        except Exception as error:
            pipe.send((None, OptccError(f"{type(error).__name__}: {error}"[:500])))


class Background:
    """Calls `step` until it says that nothing is left, again after every `wake`, until closed.

    step : does one piece of work by `compute`; True, or SkippedError: more may be left
    where : "thread" computes in this process, and so holds up events now and then; "process" in another one; "off": not
    urgent_s : longest time for what an event waits for, where another process computes it
    urgent : that process, for who wants to end it before there is a planner to close; the other one is prepared alike
    """

    def __init__(
        self, step: Callable[[], bool], where: Where, urgent_s: float = SOLVE_S, urgent: Helper | None = None
    ) -> None:
        if where not in ("off", "thread", "process"):
            expected = "off, thread or process"
            raise InputError("unknown place", where="background", expected=expected, got=str(where)[:60])
        self._step, self._where = step, where
        self._changed = threading.Condition()
        self._woken = self._closing = False
        self._thread: threading.Thread | None = None
        self._urgent, self._urgent_s = urgent or Helper(), urgent_s
        self._helper = Helper(self._urgent.prepare)
        self.error: str | None = None

    def compute(self, function: Callable[..., T], *arguments: Any, urgent: bool = False) -> T:
        """`function(*arguments)`, by a helper if there are any: a second one does what is urgent."""
        if self._where != "process":
            return function(*arguments)
        if urgent:
            return self._urgent(function, *arguments, limit_s=self._urgent_s)
        return self._helper(function, *arguments)

    def wake(self) -> None:
        """There may be work. Starts the thread when there is none yet."""
        if self._where == "off":
            return
        with self._changed:
            self._woken = True
            self._changed.notify_all()
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="optcc-standby", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._woken or self._closing, IDLE_S)
                if self._closing:
                    return
                self._changed.wait_for(lambda: self._closing, SETTLE_S)
                self._woken = False
            failed: str | None = None  # of this time
            left = True
            while left and not self._closing:
                try:
                    left = self._step()
                    self.error = failed if left else self.error
                except Exception as error:  # kept for whoever asks how far it is; the planner goes on without
                    left = isinstance(error, SkippedError)
                    cause = error.__cause__ or error
                    failed = self.error = f"{type(cause).__name__}: {cause}"[:500]

    def close(self, limit_s: float) -> None:
        """Stop after the piece of work in hand, or without it where another process does it, in `limit_s` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for helper in (self._helper, self._urgent):
            helper.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)
