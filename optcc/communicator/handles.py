"""Operations under way: in the order of calls, in a thread of their own where callers do not wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import ref


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
        self._last: ref[Future[Any]] | None = None  # no more than a reference: its result is the caller's

    def run(self, work: Callable[[], Any], async_op: bool) -> Any:
        """The result of `work`, or its Handle; in the caller's thread where it waits and nothing else is under way."""
        last = self._last() if self._last else None
        if not async_op and (last is None or last.done()):
            return work()
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, self._name)
        future = self._worker.submit(work)
        self._last = ref(future)
        return Handle(future) if async_op else future.result()

    def settle(self) -> None:
        """Wait for what is under way."""
        if self._worker:
            self._worker.shutdown()
