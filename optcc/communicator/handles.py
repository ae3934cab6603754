"""Operations under way: in the order of calls, in a thread of their own where callers do not wait.

What a callback of an operation calls comes right after that operation and before those that wait already. So all ranks
have one order, whether a callback was there before its operation was over or came later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

log = logging.getLogger(__name__)

CALLBACK_S = 5.0
"""Callbacks of an operation may hold up the next one for so long; one of them may wait for that."""
CALLBACKS = 32
"""Threads for callbacks at most. One does, unless a callback waits for what comes later."""
BESIDE_S = 60.0
"""An operation may take so long beside its own limit: to plan, and to make wires."""


class Handle:
    """An operation under way. `future` is a `concurrent.futures.Future` of its result."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    def wait(self, timeout: float | None = None) -> Any:
        """Until it is done, `timeout` seconds at most (then TimeoutError); its result. Raises what it has raised."""
        return self.future.result(timeout)

    def done(self) -> bool:
        """Whether it has ended."""
        return self.future.done()


class CallOutcome(Future[Any]):
    """Of one operation. Its callbacks may call and wait: the thread that runs operations does not run them.

    within_s : seconds until it is there at the latest; step_aside : called before a thread waits for it
    """

    def __init__(self, within_s: float, step_aside: Callable[[], None]) -> None:
        super().__init__()
        self._within_s, self._step_aside = within_s, step_aside
        self._completed_by: int | None = None
        self.callbacks: list[Callable[[Future[Any]], object]] = []
        """Those that were there when it was completed, for who has done so to have run."""

    def result(self, timeout: float | None = None) -> Any:
        """As a Future's; no wait is for ever."""
        if not self.done():
            self._step_aside()
        return super().result(self._within_s if timeout is None else timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As a Future's; no wait is for ever."""
        if not self.done():
            self._step_aside()
        return super().exception(self._within_s if timeout is None else timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As a Future's: at once where it is done, else in a thread that may wait."""
        super().add_done_callback(partial(self._later, fn))

    def complete(self, work: Callable[[], Any]) -> None:
        """Do the operation."""
        try:
            result = work()
        except BaseException as error:  # it is whoever waits that has to deal with it
            self._completed_by = threading.get_ident()
            self.set_exception(error)
        else:
            self._completed_by = threading.get_ident()
            self.set_result(result)
        self._completed_by = None

    def _later(self, fn: Callable[[Future[Any]], object], _: Future[Any]) -> None:
        if threading.get_ident() == self._completed_by:
            self.callbacks.append(fn)
        else:
            fn(self)


class InOrder:
    """Runs one call after the other, in the order in which they are given.

    timeout_s : an operation's own limit
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name, self._timeout_s = name, timeout_s
        self._worker: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._over_by = 0.0  # the last one, at the latest
        self._callbacks = ThreadPoolExecutor(CALLBACKS, f"{name}, callbacks")  # has no thread before the first one
        self._lock = threading.Lock()  # held while a callback's call runs
        self._turn: threading.Event | None = None  # of the callbacks whose calls come first; set when that ends
        self._here = threading.local()  # `turn`: of the callbacks that this thread runs

    def run(self, work: Callable[[], Any], async_op: bool) -> Any:
        """The result of `work`, or its Handle; in the caller's thread where it waits and nothing else is under way."""
        if self._turn is not None and self._has_turn():
            with self._lock:
                if self._has_turn():
                    return self._at_once(work, async_op)
        if not async_op and (self._last is None or self._last.done()):
            return work()
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, self._name)
        outcome = self._outcome()
        self._last = self._worker.submit(self._do, outcome, work)
        return Handle(outcome) if async_op else outcome.result()

    def settle(self) -> None:
        """Wait for what is under way."""
        self._step_aside()
        if self._worker:
            self._worker.shutdown()
        self._callbacks.shutdown(wait=False)

    def _outcome(self) -> CallOutcome:
        now = time.monotonic()
        self._over_by = max(now, self._over_by) + self._timeout_s + BESIDE_S + CALLBACK_S
        return CallOutcome(self._over_by - now, self._step_aside)

    def _at_once(self, work: Callable[[], Any], async_op: bool) -> Any:
        if not async_op:
            return work()
        outcome = self._outcome()
        outcome.complete(work)
        return Handle(outcome)

    def _do(self, outcome: CallOutcome, work: Callable[[], Any]) -> None:
        """One operation, in the worker, and its callbacks beside it."""
        if outcome.set_running_or_notify_cancel():
            outcome.complete(work)
            if outcome.callbacks:
                turn = self._turn = threading.Event()
                self._callbacks.submit(self._call_back, outcome, turn)
                turn.wait(CALLBACK_S)
                with self._lock:
                    self._turn = None

    def _call_back(self, outcome: CallOutcome, turn: threading.Event) -> None:
        self._here.turn = turn
        for callback in outcome.callbacks:
            try:
                callback(outcome)
            except Exception:  # as a Future does
                log.exception("a callback of an operation has failed")
        self._here.turn = None
        turn.set()

    def _has_turn(self) -> bool:
        turn = getattr(self._here, "turn", None)
        return turn is not None and turn is self._turn

    def _step_aside(self) -> None:
        """This thread waits: where it runs callbacks, operations go on without it."""
        if self._has_turn() and self._turn is not None:
            self._turn.set()
