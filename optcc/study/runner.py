"""Does a grid's jobs: in this process, on the local cores, or on an existing Dask cluster.

Results do not depend on where or in what order jobs are done: each is a function of its `SweepJob` alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from optcc import __version__, api
from optcc.discover import apply_failures
from optcc.errors import InputError, OptccError
from optcc.machine.workers import processes
from optcc.planner.search import baseline
from optcc.plans.plan import Plan
from optcc.schedule import Schedule
from optcc.schedule.recipe import Costs
from optcc.simulation.simulator import services, simulate
from optcc.study import rivals
from optcc.study.cells import JITTER_SEEDS, REFERENCE, SweepCell, SweepJob, SweepResult, groups
from optcc.study.journal import Journal
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster

CONNECT_S = 30
"""Seconds to reach a Dask scheduler, and a worker of its."""

SCHEDULER = "a scheduler's address such as tcp://host:8786"
LEAST_AHEAD = 64
"""Groups of jobs that a Dask cluster knows of ahead, so that one which grows by need does."""

DIED = (
    "a worker died, as when memory runs out; what is done is kept: run the same command again to go on, "
    "with fewer --jobs if it was memory"
)

Progress = Callable[[int, int], None]
"""Told the jobs done and the jobs to do."""


def compute(cluster: Cluster, jobs: tuple[SweepJob, ...]) -> list[SweepResult]:
    """The results of `jobs`, which differ in algorithm and jitter only; `cluster` is the one before their failures.

    What cannot be done is a result with an error, not an exception.
    """
    job = jobs[0]
    try:
        hurt = apply_failures(cluster, job.failures)
        if job.algorithm is None:
            return [_bounded(hurt, api.lower_bound(hurt, job.nbytes), job)]
        if job.best and job.algorithm != "optcc" and job.segments is None:
            return _at_best(hurt, jobs)
    except OptccError as error:
        return [SweepResult(error=str(error))] * len(jobs)
    plans: dict[float, Plan] = {}  # of ours, each for its jitter; rivals ask for their numbers of segments alone
    costs: dict[str, Any] = {"alpha": job.alpha_s, "per_chunk": job.per_chunk_s}
    spreads = [each.jitter if each.algorithm == "optcc" else 0.0 for each in jobs]
    try:
        for jitter in {*spreads}:
            plans[jitter] = api.plan(hurt, job.nbytes, segments=job.segments, **costs, jitter=jitter)
    except OptccError as error:
        bound_only = compute(cluster, (replace(job, algorithm=None),))[0]  # there may be a bound all the same
        return [replace(bound_only, error=bound_only.error or str(error))] * len(jobs)
    return [_simulated(plans[jitter], each) for jitter, each in zip(spreads, jobs, strict=True)]


def _bounded(cluster: Cluster, bound: Bound, job: SweepJob) -> SweepResult:
    found = SweepResult(float(bound.seconds), float(bound.fault_free_s), float(bound.overhead))
    if job.receivers != "packets":
        return found
    least = api.lower_bound_with_costs(cluster, job.nbytes, alpha=job.alpha_s, per_chunk=job.per_chunk_s)
    return replace(found, with_costs_s=float(least.seconds))


def _at_best(cluster: Cluster, jobs: tuple[SweepJob, ...]) -> list[SweepResult]:
    """A baseline in the way and with the segments that suit it best, each jitter's own, without a plan of ours; `jobs`
    differ in jitter only."""
    job = jobs[0]
    assert job.algorithm is not None
    result = _bounded(cluster, api.lower_bound(cluster, job.nbytes), job)
    costs = Costs(job.alpha_s, job.per_chunk_s)
    try:
        ways = rivals.best(job.algorithm, cluster, job.nbytes, alpha=costs.alpha, per_chunk=costs.per_chunk)
    except OptccError as error:
        return [replace(result, error=str(error))] * len(jobs)
    found = []
    for each in jobs:
        recipe = ways[0].recipe
        if each.jitter:
            spread = costs._replace(jitter=each.jitter)
            recipe = rivals.best_with_jitter(job.algorithm, cluster, job.nbytes, ways, spread)
        time_s = _mean_s(recipe.lower(cluster, job.nbytes), each)
        way = rivals.way_of(recipe)
        found.append(replace(result, simulated_s=time_s, family=recipe.family, segments=recipe.segments, way=way))
    return found


def _mean_s(schedule: Schedule, job: SweepJob) -> float:
    """Simulated seconds; with jitter the mean over `JITTER_SEEDS`."""
    how: dict[str, Any] = {"alpha": job.alpha_s, "per_chunk": job.per_chunk_s, "receivers": job.receivers}
    seeds = JITTER_SEEDS if job.jitter else (0,)
    return sum(simulate(schedule, **how, jitter=job.jitter, seed=seed).time_s for seed in seeds) / len(seeds)


def _simulated(plan: Plan, job: SweepJob) -> SweepResult:
    assert job.algorithm is not None
    result = _bounded(plan.cluster, plan.bound, job)
    try:
        # What only repairs is the ring where nothing has failed.
        whole = not job.failures and job.algorithm != "optcc" and not plan.bound.overhead
        name = REFERENCE if whole else job.algorithm
        depth = {"alpha": job.alpha_s, "per_chunk": job.per_chunk_s}
        chosen = plan.baseline(name) if job.segments else baseline(plan, name, **depth)
        time_s = _mean_s(chosen.schedule(), job)
    except OptccError as error:
        return replace(result, error=str(error))
    result = replace(result, simulated_s=time_s, family=chosen.family, segments=chosen.segments)
    if job.algorithm != "optcc":
        return result
    return replace(result, fluid_s=float(plan.fluid_s), busy_s=busy_s(chosen.schedule(), job.per_chunk_s))


def busy_s(schedule: Schedule, per_chunk: Fraction) -> float:
    """Seconds of the busiest port for its bytes and chunks; what the plan takes beyond is latency and waiting."""
    done = simulate(schedule, per_chunk=per_chunk, receivers="stripes")
    every = services(done)
    work = np.zeros(2 * len(schedule.ports) + len(schedule.links))
    np.add.at(work, every.resource, every.end - every.begin)
    return float(work[: 2 * len(schedule.ports)].max(initial=0))


def run(
    cells: tuple[SweepCell, ...],
    clusters: Mapping[str, Cluster],
    journal: Journal[SweepResult],
    *,
    workers: int = 1,
    limit_s: float | None = None,
    dask: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Do every job of `cells` that `journal` does not hold, and put its result there.

    clusters : by the `cluster_id` of jobs; workers : local processes, 1 for this one if there is no limit
    limit_s : seconds for jobs that share a plan; a process that takes longer ends, and they have an error
    dask : a scheduler's address
    Raises OptccError when a worker dies. What is done is in the journal whenever and however this ends.
    """
    todo = groups(cells, journal.results)
    if not todo:
        return
    done, total = 0, sum(map(len, todo))
    with _pool(min(workers, len(todo)), limit_s, dask) as pool:
        waiting = iter(todo)
        running: dict[Future[list[SweepResult]], tuple[SweepJob, ...]] = {}
        try:
            while True:
                for jobs in waiting:
                    running[pool.executor.submit(compute, clusters[jobs[0].cluster_id], jobs)] = jobs
                    if len(running) >= pool.at_once:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    journal.add(_by_key(running[future], _result(future, running[future])))
                    done += len(running.pop(future))
                    if progress:
                        progress(done, total)
        except BaseException as error:
            with suppress(InputError):  # where there is no room for more
                _keep(running, journal)
            if isinstance(error, pool.death):
                raise OptccError(DIED) from None
            raise


def _result(future: Future[list[SweepResult]], jobs: tuple[SweepJob, ...]) -> list[SweepResult]:
    try:
        return future.result()
    except TimeoutError as error:
        return [SweepResult(error=str(error))] * len(jobs)


def _keep(running: Mapping[Future[list[SweepResult]], tuple[SweepJob, ...]], journal: Journal[SweepResult]) -> None:
    """Put what was finished at the moment of an interrupt into the journal."""
    for future, jobs in running.items():
        if future.done() and not future.cancelled() and future.exception() is None:
            journal.add(_by_key(jobs, future.result()))


def _by_key(jobs: tuple[SweepJob, ...], results: list[SweepResult]) -> dict[str, SweepResult]:
    return {job.key: result for job, result in zip(jobs, results, strict=True)}


@dataclass(frozen=True)
class _JobPool:
    """Where jobs are done; `at_once` groups of them are handed over ahead of results.

    death : what a future raises when its worker is gone
    """

    executor: Executor
    at_once: int
    death: tuple[type[BaseException], ...] = ()


class _Here(Executor):
    """Does what is submitted at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def _pool(workers: int, limit_s: float | None, dask: str | None) -> Iterator[_JobPool]:
    if dask is not None:
        with _dask(dask) as pool:
            yield pool
    elif workers == 1 and limit_s is None:
        yield _JobPool(_Here(), 1)
    else:
        with processes(workers, limit_s=limit_s) as executor:
            yield _JobPool(executor, 2 * workers, (BrokenProcessPool,))


@contextmanager
def _dask(address: str) -> Iterator[_JobPool]:
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise InputError(
            "distributed is not installed",
            where="--dask",
            expected="the extra `dask`",
            hint="In a checkout of optcc: pip install '.[dask]'.",
        ) from None
    if not re.fullmatch(r"([a-z]+://)?[^\s/]+:[0-9]+", address):  # Client would take a minute to give up on it
        raise InputError("not an address", where="--dask", expected=SCHEDULER, got=address)
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError("no Dask scheduler answers", where="--dask", expected=SCHEDULER, got=str(error)) from None
    with client:
        _check_workers(client)
        threads = sum(client.nthreads().values())
        yield _JobPool(client.get_executor(pure=False), max(LEAST_AHEAD, 2 * threads), (KilledWorker, CancelledError))


def _check_workers(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
        found = set(client.run(_version).values())
    except TimeoutError:
        raise InputError("the Dask cluster has no worker", where="--dask", expected="one or more") from None
    except ImportError as error:
        got = f"a worker without: {error}"
        raise InputError("a worker lacks optcc", where="--dask", expected=f"optcc {__version__}", got=got) from None
    if found != {__version__}:
        raise InputError(
            "another optcc on the Dask workers", where="--dask", expected=__version__, got=", ".join(sorted(found))
        )


def _version() -> str:
    return __version__
