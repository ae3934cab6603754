"""Where long work is done, so that it holds up nothing else: threads of one purpose each, and processes that plan.

What is cancelled here is ended, not forgotten: a worker that computes for nobody is killed, and replaced when the next
call comes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar, cast

from optcc.planner.background import Helper, LateError, MemoryLimitError
from optcc.serve.messages import ErrorBody, ReplyError
from optcc.serve.settings import ServeSettings
from optcc.serve.work import WorkOutcome, described, guarded, prepare

T = TypeVar("T")


class ThreadLane:
    """`threads` threads of one purpose, for which at most `most` calls are in hand; more are turned away."""

    def __init__(self, name: str, threads: int, most: int) -> None:
        self.name, self.most = name, most
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"optcc-{name}")
        self._places = threading.Semaphore(most)

    async def run(
        self, function: Callable[[], T], *, certain: bool = False, unwanted: Callable[[T], None] | None = None
    ) -> T:
        """`function()`, off the event loop.

        certain : it is called also when nobody waits for it any more before it begins
        unwanted : gets a result that nobody waits for
        """
        if not self._places.acquire(blocking=False):
            body = ErrorBody("BusyError", "too many requests", self.name, f"at most {self.most} at once")
            raise ReplyError(503, body)
        future = self._threads.submit(function)
        future.add_done_callback(lambda _: self._places.release())
        waited = asyncio.wrap_future(future)
        waited.add_done_callback(_seen)
        try:
            return await (asyncio.shield(waited) if certain else waited)
        except asyncio.CancelledError:
            if unwanted is not None:
                future.add_done_callback(partial(_hand_over, unwanted))
            raise
        except (LateError, MemoryLimitError) as error:
            raise refusal(error) from None

    def close(self) -> None:
        """No more calls; those that have not begun are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Workers:
    """Processes that plan from scratch, one call at a time each. Calls wait for a free one, first come first served."""

    def __init__(self, settings: ServeSettings) -> None:
        self._limit_s = settings.request_s
        self._all = [helper(settings) for _ in range(settings.workers)]
        self._idle: asyncio.Queue[Helper] = asyncio.Queue()
        for each in self._all:
            self._idle.put_nowait(each)
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="optcc-workers")

    def start(self) -> None:
        """Start the processes, so that the first requests need not wait for them."""
        for each in self._all:
            self._threads.submit(each, int)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """`function(*arguments)` in a worker, which is ended when it takes too long, or this call is cancelled.

        Raises ReplyError for an error of the request's, LateError and OptccError as `Helper` does.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                worker = await self._idle.get()
        except TimeoutError:
            body = ErrorBody("LateError", f"no worker was free for {self._limit_s:.3g} s")
            raise ReplyError(504, body) from None
        unwanted = threading.Event()
        limits = {"limit_s": self._limit_s, "unwanted": unwanted}
        future = self._threads.submit(
            cast(Callable[..., WorkOutcome[T]], worker), guarded, function, *arguments, **limits
        )
        future.add_done_callback(partial(self._free, asyncio.get_running_loop(), worker))
        try:
            outcome = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.done():  # else another call may have the worker by now
                unwanted.set()
                worker.interrupt()
            raise
        except (LateError, MemoryLimitError) as error:
            raise refusal(error) from None
        if outcome.error is not None:
            raise ReplyError(422 if outcome.expected else 500, outcome.error)
        return cast(T, outcome.value)

    def _free(self, loop: asyncio.AbstractEventLoop, worker: Helper, _: Future[object]) -> None:
        with suppress(RuntimeError):  # the loop is closed: so is the service
            loop.call_soon_threadsafe(self._idle.put_nowait, worker)

    def close(self) -> None:
        """End every process; whoever still waits for one gets an error."""
        for each in self._all:
            each.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def helper(settings: ServeSettings) -> Helper:
    """A process that has imported what planning takes, and may then take `settings.memory` bytes more."""
    return Helper(partial(prepare, settings.memory))


def refusal(error: LateError | MemoryLimitError) -> ReplyError:
    """What who asked is told."""
    body = described(error)
    if isinstance(error, LateError):
        return ReplyError(504, body)
    hint = "Fewer servers or segments, or without lowered; or start the service with a larger --memory."
    return ReplyError(422, ErrorBody(body.type, body.what, hint=hint))


def _seen(done: asyncio.Future[T]) -> None:
    """An error that nobody waits for is no defect to be reported."""
    if not done.cancelled():
        done.exception()


def _hand_over(to: Callable[[T], None], done: Future[T]) -> None:
    if not done.cancelled() and done.exception() is None:
        to(done.result())
