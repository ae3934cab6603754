"""Operations under way: in the order of calls, in a thread of their own where callers do not wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


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


class InOrder:
    """Runs one call after the other, in the order in which they are given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._worker: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def run(self, work: Callable[[], Any], async_op: bool) -> Any:
        """The result of `work`, or its Handle; in the caller's thread where it waits and nothing else is under way."""
        if not async_op and (self._last is None or self._last.done()):
            return work()
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, self._name)
        self._last = self._worker.submit(work)
        return Handle(self._last) if async_op else self._last.result()

    def settle(self) -> None:
        """Wait for what is under way."""
        if self._worker:
            self._worker.shutdown()
