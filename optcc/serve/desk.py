"""What the service holds between requests: replies, jobs, and who is computing what. No HTTP here."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from optcc import __version__
from optcc.cluster import Cluster
from optcc.plans import Plan
from optcc.serve.messages import (
    Brief,
    ErrorBody,
    EventRequest,
    HealthReply,
    JobReply,
    JobRequest,
    PlanRequest,
    Readiness,
)
from optcc.serve.settings import Settings
from optcc.serve.work import Outcome, described, guarded, lowered_text, plan_text, prepare, read_cluster, size_of
from optcc.standby.background import Helper, LateError
from optcc.standby.planner import Planner, Progress, Replanned
from optcc.standby.state import State
from optcc.units import parse_seconds

T = TypeVar("T")


class RefusedError(Exception):
    """A reply with a status and an error."""

    def __init__(self, status: int, body: ErrorBody) -> None:
        super().__init__(body.what)
        self.status, self.body = status, body


class Replies:
    """Encoded replies, the most lately used ones up to `most` bytes."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> bytes | None:
        """The reply, which counts as a use of it."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: bytes, reply: bytes) -> None:
        """Keep it, unless it alone is too large."""
        if len(reply) > self.most or key in self._kept:
            return
        self._kept[key] = reply
        self.held += len(reply)
        while self.held > self.most:
            _, gone = self._kept.popitem(last=False)
            self.held -= len(gone)


@dataclass(frozen=True)
class Job:
    """A registered cluster."""

    name: str
    planner: Planner
    notes: tuple[str, ...]


class Desk:
    """Requests in, replies out; all methods run in one event loop, and long work elsewhere."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.replies = Replies(settings.cache_bytes)
        self.jobs: dict[str, Job] = {}
        self._registering = 0
        self._making: set[Helper] = set()
        self._under_way: dict[bytes, asyncio.Task[bytes]] = {}
        self._helpers = [Helper(prepare) for _ in range(settings.workers)]
        self._idle: queue.Queue[Helper] = queue.Queue()
        for helper in self._helpers:
            self._idle.put(helper)
        self._threads = ThreadPoolExecutor(settings.workers + settings.concurrent, thread_name_prefix="optcc-serve")

    def start(self) -> None:
        """Start the processes that plan, so that the first requests need not wait for them."""
        for helper in self._helpers:
            self._threads.submit(helper, prepare)

    async def plan(self, request: PlanRequest) -> bytes:
        """A plan from scratch, or the same bytes as the last time that this was asked."""

        async def make() -> bytes:
            text, notes = await self._in_helper(plan_text, request)
            return _plan_reply(text, notes)

        return await self._once(b"plan", request, make)

    async def register(self, request: JobRequest) -> JobReply:
        """A new job. Raises RefusedError where there are as many as there may be."""
        if len(self.jobs) + self._registering >= self.settings.jobs:
            got = str(len(self.jobs))
            body = ErrorBody("BusyError", "too many jobs", "jobs", f"at most {self.settings.jobs}", got, "Delete one.")
            raise RefusedError(429, body)
        self._registering += 1
        try:
            cluster, notes = await self._in_helper(read_cluster, request)
            job = Job(secrets.token_hex(8), await self._planner(cluster, request), notes)
            self.jobs[job.name] = job
        finally:
            self._registering -= 1
        try:
            return await self.job(job.name)
        except BaseException:  # nobody learns its name
            del self.jobs[job.name]
            job.planner.close(0)
            raise

    async def _planner(self, cluster: Cluster, request: JobRequest) -> Planner:
        """A planner, its first plans made; ended at once where nobody waits for it any more."""
        helper = Helper()

        def make() -> Planner:
            return Planner(
                cluster,
                [size_of(size) for size in request.sizes],
                alpha=parse_seconds(request.alpha, "alpha"),
                per_chunk=parse_seconds(request.per_chunk, "per_chunk"),
                lookahead=request.lookahead,
                background="process",
                limit_s=self.settings.request_s,
                urgent=helper,
            )

        self._making.add(helper)
        future = self._threads.submit(make)
        try:
            return await asyncio.wrap_future(future)
        except BaseException as error:
            helper.close()
            future.add_done_callback(_unwanted)
            if isinstance(error, LateError):
                raise RefusedError(504, described(error)) from None
            raise
        finally:
            self._making.discard(helper)

    async def job(self, name: str) -> JobReply:
        """The job as it is."""
        job = self._job(name)
        return await self._in_thread(lambda: _job_reply(job, job.planner.current, job.planner.progress))

    async def event(self, name: str, request: EventRequest) -> JobReply:
        """Tell the job's planner what happened."""
        job, planner = self._job(name), self._job(name).planner
        if (request.event == "rate") != (request.rate is not None):
            expected = "with an event of rate, and only then"
            raise RefusedError(422, ErrorBody("InputError", "a rate", "rate", expected, request.rate))

        def tell() -> JobReply:
            if request.event == "rate":
                return _job_reply(job, planner.rate(request.nic, request.rate or ""))
            return _job_reply(job, (planner.fail if request.event == "fail" else planner.restore)(request.nic))

        return await self._in_thread(tell)

    async def job_plan(self, name: str, size: str, lowered: str | None) -> bytes:
        """The plan file of a job as it is, for any size."""
        job, nbytes = self._job(name), size_of(size)

        def choose() -> tuple[Plan, list[tuple[str, str, str]]]:
            plan = job.planner.plan(nbytes)
            return plan, sorted((nic, str(out), str(in_)) for nic, out, in_ in State(plan.cluster).deviations)

        # Equal plans have equal recipes on equal clusters. The plan's own: there may be another event by now.
        plan, changed = await self._in_thread(choose)
        recipe = plan.recipe.content()
        key = {"job": name, "changed": changed, "size": nbytes, "recipe": recipe, "lowered": lowered}

        async def make() -> bytes:
            if lowered is None:
                return _plan_reply(await self._in_thread(plan.to_json), job.notes)
            return _plan_reply(await self._in_helper(lowered_text, plan, lowered), job.notes)

        return await self._once(b"job", key, make)

    async def forget(self, name: str) -> None:
        """End a job."""
        job = self._job(name)
        del self.jobs[name]
        await self._in_thread(job.planner.close)

    def health(self) -> HealthReply:
        """How much there is of what is bounded."""
        return HealthReply("ok", __version__, len(self.jobs), len(self.replies), self.replies.held)

    def close(self) -> None:
        """End every process; whoever still waits for one gets an error."""
        for helper in (*self._helpers, *self._making):
            helper.close()
        for job in self.jobs.values():
            job.planner.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _job(self, name: str) -> Job:
        if name not in self.jobs:
            expected = "an id from POST /v1/jobs"
            raise RefusedError(404, ErrorBody("UnknownError", "no such job", "job", expected, name[:64]))
        return self.jobs[name]

    async def _once(self, kind: bytes, request: Any, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The kept reply, or the one that is being made for somebody else, or a new one."""
        key = hashlib.sha256(kind + msgspec.json.encode(request)).digest()
        kept = self.replies.get(key)
        if kept is not None:
            return kept
        task = self._under_way.get(key)
        if task is None:

            async def fresh() -> bytes:
                try:
                    reply = await make()
                    self.replies.put(key, reply)
                    return reply
                finally:
                    del self._under_way[key]

            task = self._under_way[key] = asyncio.create_task(fresh())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _in_helper(self, function: Callable[..., T], *arguments: object) -> T:
        """In another process, which is ended when it takes too long."""
        limit_s = self.settings.request_s

        def call() -> Outcome[T]:
            try:
                helper = self._idle.get(timeout=limit_s)
            except queue.Empty:
                raise LateError(f"no worker was free for {limit_s:.3g} s") from None
            try:
                return helper(guarded, function, *arguments, limit_s=limit_s)
            finally:
                self._idle.put(helper)

        outcome = await self._in_thread(call)
        if outcome.error is not None:
            raise RefusedError(422 if outcome.expected else 500, outcome.error)
        return cast(T, outcome.value)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Off the event loop. Whoever is no longer waited for still ends: all that is slow has a limit of its own."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except LateError as error:
            raise RefusedError(504, described(error)) from None


def _unwanted(made: Future[Planner]) -> None:
    """End a planner that came to its own although nobody waited any more."""
    if not made.cancelled() and made.exception() is None:
        made.result().close(0)


def _plan_reply(text: str, notes: tuple[str, ...]) -> bytes:
    # The plan's own bytes go out: decoding them to encode them again would be most of the work.
    return b'{"plan":' + text.encode() + b',"notes":' + msgspec.json.encode(notes) + b"}"


def _job_reply(job: Job, answer: Replanned, progress: Progress | None = None) -> JobReply:
    return JobReply(
        job.name,
        answer.event,
        answer.basis.value,
        answer.took_s,
        [_brief(plan) for plan in answer.plans.values()],
        None if progress is None else Readiness(progress.ready, progress.wanted, progress.error),
        list(job.notes),
    )


def _brief(plan: Plan) -> Brief:
    bound = plan.bound
    return Brief(
        bound.nbytes,
        plan.recipe.family,
        plan.recipe.content(),
        str(bound.seconds),
        float(bound.seconds),
        bound.bottleneck,
    )
