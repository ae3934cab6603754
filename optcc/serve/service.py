"""What the service holds between requests: replies, jobs, and who is computing what. No HTTP here."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from optcc import __version__
from optcc.diagnose.keep import DEFAULTS
from optcc.errors import InputError
from optcc.planner.background import Helper
from optcc.planner.standby import MAX_SHAPES, Planner, Progress, Replanned, State
from optcc.plans.plan import Plan
from optcc.reports.metrics import CACHED, IN_HAND, JOB, JOB_LABEL, JOBS, LOG_DROPPED, SERVICE, Gauges, text_of
from optcc.serve.gauges import JobGauges
from optcc.serve.lanes import ThreadLane, Workers, helper
from optcc.serve.messages import (
    Brief,
    ErrorBody,
    EventRequest,
    HealthReply,
    JobReply,
    JobRequest,
    MeasurementRequest,
    PlanRequest,
    Readiness,
    ReplyError,
)
from optcc.serve.replies import Replies, SharedReplies
from optcc.serve.settings import ServeSettings
from optcc.serve.work import lowered_text, plan_text, read_cluster, size_of
from optcc.values.cluster import Cluster
from optcc.values.units import parse_seconds, parse_share

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
            text, notes = await self._workers.call(plan_text, request)
            return _plan_reply(text, notes)

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

    async def job_plan(self, name: str, size: str, lowered: str | None) -> bytes:
        """The plan file of a job as it is, for any size."""
        job, nbytes = self._job(name), size_of(size)

        def choose() -> tuple[Plan, list[tuple[str, str, str]]]:
            plan = job.planner.plan(nbytes)
            return plan, sorted((nic, str(out), str(in_)) for nic, out, in_ in State(plan.cluster).deviations)

        # Equal plans have equal recipes on equal clusters. The plan's own: there may be another event by now.
        plan, changed = await job.looks.run(choose)
        recipe = plan.recipe.content()
        key = {"job": name, "changed": changed, "size": nbytes, "recipe": recipe, "lowered": lowered}

        async def make() -> bytes:
            if lowered is None:
                return _plan_reply(await job.looks.run(lambda: lowered_text(plan, None)), job.notes)
            return _plan_reply(await self._workers.call(lowered_text, plan, lowered), job.notes)

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


def _plan_reply(text: str, notes: tuple[str, ...]) -> bytes:
    # The plan's own bytes go out: decoding them to encode them again would be most of the work.
    return b'{"plan":' + text.encode() + b',"notes":' + msgspec.json.encode(notes) + b"}"


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
        plan.recipe.family,
        plan.recipe.content(),
        str(bound.seconds),
        float(bound.seconds),
        bound.bottleneck,
    )
