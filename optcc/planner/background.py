"""Work that is done between events: one thing at a time, the most urgent first, in a thread or another process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, TypeVar

from optcc.errors import InputError, OptccError
from optcc.machine.workers import Worker

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
        self._turn, self._worker = threading.Lock(), Worker()

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
        unwanted = unwanted or threading.Event()
        with self._turn:
            if not self._worker.alive:
                try:
                    self._ask(unwanted, START_S, self.prepare)
                except OptccError:  # nothing is done by a process that is not prepared
                    self.stop()
                    raise
            value: T = self._ask(unwanted, limit_s, function, *arguments)
            return value

    def _ask(self, unwanted: threading.Event, limit_s: float, *call: Any) -> Any:
        if self._worker.over:
            raise OptccError("no more plans: it was closed")
        if unwanted.is_set():  # an `interrupt` before the process was there had nothing to end
            raise OptccError("no more plans: nobody waits for it")
        try:
            return self._worker.do((_in_words, call, {}), limit_s)
        except TimeoutError:
            raise LateError(f"no plan after {limit_s:.3g} s") from None
        except (BrokenProcessPool, OSError):
            raise OptccError("the process that prepares plans died") from None
        except MemoryLimitError:  # what it has taken, it may keep
            self.stop()
            raise

    def interrupt(self) -> None:
        """End the process in the middle of its call, which then raises; the next call starts another. Does not wait."""
        self._worker.interrupt()

    def close(self) -> None:
        """End the process for good; whoever waits for it, or for a turn, gets an error."""
        self._worker.end(over=True)

    def stop(self) -> None:
        """End the process, whatever it computes: nobody wants it any more."""
        self._worker.end()


def _in_words(function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)`; not every error can be sent to another process as it is."""
    try:
        return function(*arguments)
    except MemoryError:
        raise MemoryLimitError("it takes more memory than a process may") from None
    except Exception as error:
        raise OptccError(f"{type(error).__name__}: {error}"[:500]) from error


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
