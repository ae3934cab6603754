"""What the service holds between requests: replies, jobs, their metrics, and who is computing what. No HTTP here.

Long work is done where it holds up nothing else: in threads of one purpose each, and in processes that plan. What is
cancelled is ended, not forgotten: a worker that computes for nobody is killed, and replaced when the next call comes.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from typing import Any, TypeVar, cast

import msgspec

from optcc import __version__
from optcc.diagnose.diagnosis import set_costs
from optcc.diagnose.fit import Sure
from optcc.diagnose.keep import DEFAULTS, InterruptionCosts, keep_or_drain, overhead, overheads_of
from optcc.errors import InfeasibleError, InputError
from optcc.planner.background import Helper, LateError, MemoryLimitError
from optcc.planner.standby import MAX_SHAPES, Planner, Progress, Replanned, State
from optcc.plans.plan import Plan
from optcc.reports.metrics import (
    ACHIEVED,
    CACHED,
    DRAIN,
    EVENTS,
    IN_HAND,
    JOB,
    JOB_LABEL,
    JOBS,
    LOG_DROPPED,
    NIC_LEFT,
    OVERHEAD,
    SERVICE,
    Gauges,
    text_of,
)
from optcc.serve.planning import (
    WorkOutcome,
    described,
    guarded,
    new_plan,
    plan_file,
    prepare,
    read_cluster,
    size_of,
)
from optcc.serve.requests import (
    Brief,
    ErrorBody,
    EventRequest,
    HealthReply,
    JobReply,
    JobRequest,
    MeasurementRequest,
    PlanReply,
    PlanRequest,
    Readiness,
    ReplyError,
    ServeSettings,
)
from optcc.values.cluster import Cluster
from optcc.values.units import parse_seconds, parse_share


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


@dataclass
class _Making:
    """A reply that is being made, and how many wait for it."""

    task: asyncio.Task[bytes]
    waiting: int = 0


class SharedReplies:
    """Makes replies once: what is kept is given again, and who asks for what is being made waits for that.

    When the last one who waits is cancelled, so is the making.
    """

    def __init__(self, kept: Replies) -> None:
        self.kept = kept
        self._making: dict[bytes, _Making] = {}

    async def get(self, kind: bytes, request: Any, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The reply to `request`, whose JSON is its key among those of its `kind`."""
        key = hashlib.sha256(kind + msgspec.json.encode(request)).digest()
        kept = self.kept.get(key)
        if kept is not None:
            return kept
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = _Making(asyncio.create_task(self._make(key, make)))
            # An error that nobody waits for is no defect to be reported.
            making.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        making.waiting += 1
        try:
            return await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if not making.waiting or making.task.done():
                making.task.cancel()
                if self._making.get(key) is making:  # whoever asks from now on begins anew
                    del self._making[key]

    async def _make(self, key: bytes, make: Callable[[], Awaitable[bytes]]) -> bytes:
        reply = await make()
        self.kept.put(key, reply)
        return reply


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
    hint = "Fewer servers or segments; or start the service with a larger --memory."
    return ReplyError(422, ErrorBody(body.type, body.what, hint=hint))


def _seen(done: asyncio.Future[T]) -> None:
    """An error that nobody waits for is no defect to be reported."""
    if not done.cancelled():
        done.exception()


def _hand_over(to: Callable[[T], None], done: Future[T]) -> None:
    if not done.cancelled() and done.exception() is None:
        to(done.result())


@dataclass(frozen=True)
class _Seen:
    """An AllReduce that the job has measured, and of which cluster: least possible seconds over its own."""

    cluster: Cluster
    healthy: float
    suspected: float


class JobGauges:
    """Of one job; `exposed` : the part of a fault-free step that is AllReduce and not hidden.

    What takes long is computed once for each state of the cluster, and kept: by one thread at a time.
    """

    def __init__(self, name: str, planner: Planner, exposed: float) -> None:
        self._name, self._planner, self._costs = name, planner, InterruptionCosts(exposed=exposed)
        self._made: tuple[Cluster, Gauges] | None = None
        self._seen: _Seen | None = None

    def measured(self, nbytes: int, seconds: float) -> None:
        """The job's AllReduce of `nbytes` per rank took so long on the cluster as it is. The last one counts."""
        plan = self._planner.plan(nbytes)
        bound = plan.bound
        self._seen = _Seen(plan.cluster, float(bound.fault_free_s) / seconds, float(bound.seconds) / seconds)

    def gauges(self) -> Gauges:
        """All of them as they are now."""
        cluster = self._planner.cluster
        if self._made is None or self._made[0] is not cluster:
            self._made = cluster, self._of(cluster)
        made, seen = self._made[1], self._seen
        made.set(EVENTS, self._planner.events, self._name)
        if seen is not None and seen.cluster is cluster:  # what was measured before an event is of another one
            made.set(ACHIEVED, seen.healthy, self._name, "all_reduce", "healthy")
            made.set(ACHIEVED, seen.suspected, self._name, "all_reduce", "suspected")
        return made

    def _of(self, cluster: Cluster) -> Gauges:
        gauges, nbytes = Gauges(JOB, (JOB_LABEL,)), self._planner.sizes[-1]
        hurt = []
        for server, whole in zip(cluster.servers, cluster.fault_free.servers, strict=True):
            for nic, was in zip(server.nics, whole.nics, strict=True):
                if nic != was:
                    hurt.append(server.name)
                    left = min(nic.out_rate / was.out_rate, nic.in_rate / was.in_rate)
                    gauges.set(NIC_LEFT, float(left), self._name, server.name, nic.name, Sure.CERTAIN)
        try:
            plan: Plan | None = self._planner.plan(nbytes)
        except InfeasibleError:
            plan = None
        ours = None if plan is None else max(0.0, float(plan.fluid_s / plan.bound.fault_free_s) - 1)
        gauges.set(OVERHEAD, inf if plan is None else float(plan.bound.overhead), self._name)
        # Those that stay are valued by the bound: a plan for them would be another job's work.
        keep = keep_or_drain(
            cluster, overheads_of(cluster, ours), self._costs, lambda part: overhead(part, nbytes)
        )  # fmt: skip
        if keep is not None:
            set_costs(gauges, keep, self._name)
            for name in dict.fromkeys(hurt):
                gauges.set(DRAIN, not keep.keep and name in keep.drain.servers, self._name, name)
        return gauges


REGISTRARS = 4
"""Clusters that are registered at once; each has a process of its own for what takes long in it."""
EVENTS_AT_ONCE = 4
"""Of one job. Nearly all take milliseconds; one whose plans have to be made from scratch waits for that process."""
MOST_WAITING = 64
"""Requests in hand for one job, of each kind."""
MOST_SCRAPES = 8
"""Of the metrics at once."""
KEPT_SERVERS = 2**18
"""Of all shapes that one job's planner keeps, together: some hundred bytes each."""


@dataclass(frozen=True)
class ServedCluster:
    """A registered cluster. Its events wait for nothing but each other; whoever looks at its plans, in another lane."""

    name: str
    planner: Planner
    notes: tuple[str, ...]
    exposed: float = DEFAULTS.exposed
    events: ThreadLane = field(default_factory=lambda: ThreadLane("events", EVENTS_AT_ONCE, MOST_WAITING))
    looks: ThreadLane = field(default_factory=lambda: ThreadLane("job", 1, MOST_WAITING))

    @cached_property
    def gauges(self) -> JobGauges:
        """What Prometheus is told of it."""
        return JobGauges(self.name, self.planner, self.exposed)

    def close(self, limit_s: float = 5) -> None:
        """End its processes and threads."""
        self.planner.close(limit_s)
        self.events.close()
        self.looks.close()


class PlanningService:
    """Requests in, replies out; all methods run in one event loop, and long work elsewhere."""

    def __init__(self, settings: ServeSettings, dropped: Callable[[], int] = lambda: 0) -> None:
        self.settings, self._dropped = settings, dropped
        self.replies = Replies(settings.cache_bytes)
        self.jobs: dict[str, ServedCluster] = {}
        self.in_hand = 0
        self._registering = 0
        self._making: set[Helper] = set()
        self._shared = SharedReplies(self.replies)
        self._workers = Workers(settings)
        self._registrars = ThreadLane("jobs", REGISTRARS, settings.jobs + 1)
        self._scrapes = ThreadLane("metrics", 1, MOST_SCRAPES)

    def start(self) -> None:
        """Start the processes that plan, so that the first requests need not wait for them."""
        self._workers.start()

    @contextmanager
    def place(self) -> Iterator[None]:
        """For a request that may take long, while it is in hand. Raises ReplyError when as many are as may be."""
        if self.in_hand >= self.settings.concurrent:
            busy = f"at most {self.settings.concurrent} at once"
            raise ReplyError(503, ErrorBody("BusyError", "too many requests", None, busy, hint="Try again."))
        self.in_hand += 1
        try:
            yield
        finally:
            self.in_hand -= 1

    async def plan(self, request: PlanRequest) -> bytes:
        """A plan from scratch, or the same bytes as the last time that this was asked."""

        async def make() -> bytes:
            return _plan_reply(*await self._workers.call(new_plan, request))

        return await self._shared.get(b"plan", request, make)

    async def register(self, request: JobRequest) -> JobReply:
        """A new job. Raises ReplyError where there are as many as there may be."""
        if len(self.jobs) + self._registering >= self.settings.jobs:
            got = str(len(self.jobs))
            body = ErrorBody("BusyError", "too many jobs", "jobs", f"at most {self.settings.jobs}", got, "Delete one.")
            raise ReplyError(429, body)
        self._registering += 1
        try:
            cluster, notes = await self._workers.call(read_cluster, request)
            exposed = float(parse_share(request.exposed, "exposed"))
            planner, name = await self._planner(cluster, request), secrets.token_hex(8)
            self.jobs[name] = ServedCluster(name, planner, notes, exposed)
        finally:
            self._registering -= 1
        try:
            return await self.job(name)
        except BaseException:  # nobody learns its name
            self.jobs.pop(name).close(0)
            raise

    async def _planner(self, cluster: Cluster, request: JobRequest) -> Planner:
        """A planner, its first plans made; ended at once where nobody waits for it any more."""
        urgent = helper(self.settings)

        def make() -> Planner:
            return Planner(
                cluster,
                [size_of(size) for size in request.sizes],
                alpha=parse_seconds(request.alpha, "alpha"),
                per_chunk=parse_seconds(request.per_chunk, "per_chunk"),
                lookahead=request.lookahead,
                keep=max(1, min(MAX_SHAPES, KEPT_SERVERS // len(cluster.servers))),
                background="process",
                limit_s=self.settings.request_s,
                urgent=urgent,
            )

        self._making.add(urgent)
        try:
            return await self._registrars.run(make, unwanted=lambda made: made.close(0))
        except BaseException:
            urgent.close()
            raise
        finally:
            self._making.discard(urgent)

    async def job(self, name: str) -> JobReply:
        """The job as it is."""
        job = self._job(name)
        return await job.looks.run(lambda: _job_reply(job, job.planner.current, job.planner.progress))

    async def event(self, name: str, request: EventRequest) -> JobReply:
        """Tell the job's planner what happened."""
        job, planner = self._job(name), self._job(name).planner
        if (request.event == "rate") != (request.rate is not None):
            expected = "with an event of rate, and only then"
            raise ReplyError(422, ErrorBody("InputError", "a rate", "rate", expected, request.rate))

        def tell() -> JobReply:
            if request.event == "rate":
                return _job_reply(job, planner.rate(request.nic, request.rate or ""))
            return _job_reply(job, (planner.fail if request.event == "fail" else planner.restore)(request.nic))

        return await job.events.run(tell, certain=True)  # it happened, whether its caller is still there or not

    async def job_plan(self, name: str, size: str) -> bytes:
        """The plan file of a job as it is, for any size."""
        job, nbytes = self._job(name), size_of(size)

        def choose() -> tuple[Plan, list[tuple[str, str, str]]]:
            plan = job.planner.plan(nbytes)
            return plan, sorted((nic, str(out), str(in_)) for nic, out, in_ in State(plan.cluster).deviations)

        # Equal plans have equal recipes on equal clusters. The plan's own: there may be another event by now.
        plan, changed = await job.looks.run(choose)
        key = {"job": name, "changed": changed, "size": nbytes, "recipe": plan.choices}

        async def make() -> bytes:
            return _plan_reply(await self._workers.call(plan_file, plan), job.notes)

        return await self._shared.get(b"job", key, make)

    async def measured(self, name: str, request: MeasurementRequest) -> None:
        """Note how long the job's AllReduce took."""
        job, nbytes = self._job(name), size_of(request.size)
        seconds = float(parse_seconds(request.time, "time"))
        if seconds <= 0:
            raise InputError("no time", where="time", expected="more than 0", got=request.time)
        await job.looks.run(lambda: job.gauges.measured(nbytes, seconds))

    async def metrics(self) -> bytes:
        """All metrics in Prometheus' text format."""
        service, jobs = Gauges(SERVICE), list(self.jobs.values())
        service.set(JOBS, len(jobs))
        service.set(IN_HAND, self.in_hand)
        service.set(CACHED, self.replies.held)
        service.set(LOG_DROPPED, self._dropped())

        def make() -> bytes:
            every = Gauges(JOB, (JOB_LABEL,))
            for job in jobs:
                every.add(job.gauges.gauges())
            return text_of(service, every)

        return await self._scrapes.run(make)

    async def forget(self, name: str) -> None:
        """End a job."""
        job = self._job(name)
        del self.jobs[name]
        await asyncio.shield(asyncio.to_thread(job.close))

    def health(self) -> HealthReply:
        """How much there is of what is bounded."""
        kept = (len(self.replies), self.replies.held)
        return HealthReply("ok", __version__, len(self.jobs), self.in_hand, *kept, self._dropped())

    def close(self) -> None:
        """End every process; whoever still waits for one gets an error."""
        self._workers.close()
        for urgent in self._making:
            urgent.close()
        for job in self.jobs.values():
            job.close()
        self._registrars.close()
        self._scrapes.close()

    def _job(self, name: str) -> ServedCluster:
        if name not in self.jobs:
            expected = "an id from POST /v1/jobs"
            raise ReplyError(404, ErrorBody("UnknownError", "no such job", "job", expected, name[:64]))
        return self.jobs[name]


def _plan_reply(plan: bytes, notes: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(PlanReply(b64encode(plan).decode(), list(notes)))


def _job_reply(job: ServedCluster, answer: Replanned, progress: Progress | None = None) -> JobReply:
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
        plan.family,
        plan.choices,
        str(bound.seconds),
        float(bound.seconds),
        bound.bottleneck,
    )
