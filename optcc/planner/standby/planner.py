"""A planner that is told of events: NICs that fail, slow down and come back; every answer is a plan for what is left.

What takes long is decided before the event: a table holds the recipe for every shape that the next failures can make
(`optcc.planner.standby.shapes`). Everything that depends on the NIC is filled in at the event: the bound with its
certificate, the order of ranks, the shares of nested rings. All have closed forms
(`optcc.theory.ring_shares`). Nothing is simulated or lowered then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Self

from optcc.errors import InputError
from optcc.planner.standby.answers import Basis, Progress, Replanned
from optcc.planner.standby.background import SOLVE_S, Background, Helper, SkippedError, Where
from optcc.planner.standby.decisions import Decisions
from optcc.planner.standby.shapes import Now, upcoming
from optcc.planner.standby.state import Places, Rate, rate_of
from optcc.planner.standby.table import Table
from optcc.plans.plan import Plan
from optcc.schedule.candidates import Costs
from optcc.theory import lower_bound
from optcc.values.cluster import Cluster
from optcc.values.units import MAX_BYTES, Quantity, as_seconds, as_size

MAX_SHAPES = 4096
MAX_SIZES = 16
MAX_LOOKAHEAD = 4


class Planner:
    """Plans for `cluster` as it is and as failures leave it, for AllReduces of `sizes` bytes per rank, one or several.

    sizes, alpha, per_chunk : numbers in bytes and seconds, or text such as "1GiB" and "5us", as in `optcc.plan`
    lookahead : how many failures in a row are prepared for; outside the closed form one at most
    lefts : what fractions of its rate a failed NIC may have left, in what is prepared
    keep : most shapes in the table; those that were not used for longest go first
    background : where preparation runs: "thread", "process" (another one, so that events do not wait for it; a script
        then needs ``if __name__ == "__main__"``), "off" (only in `prepare`)
    limit_s : with "process", longest time of one run of the whole planner that the caller waits for; LateError after it
    urgent : with "process", what those runs are done by; closing it from another thread ends one, the first one, too

    The plan of the present state is made at once, which takes as long as `optcc.plan`. Methods may be called from any
    thread. Close it, or use it in a with statement.

    >>> cluster = Cluster.uniform(servers=8, nics=8, rate=Fraction(50_000_000_000))
    >>> with Planner(cluster, 2**30) as planner:
    ...     hurt = planner.fail("server3/nic2")
    >>> hurt.plan.recipe.family, str(hurt.basis), round(float(hurt.plan.bound.overhead), 4)
    ('nested-rings', 'closed-form', 0.0159)
    """

    def __init__(
        self,
        cluster: Cluster,
        sizes: Quantity | Sequence[Quantity],
        *,
        alpha: Quantity = 0,
        per_chunk: Quantity = 0,
        lookahead: int = 2,
        lefts: Sequence[Fraction | int] = (0,),
        keep: int = MAX_SHAPES,
        background: Where = "thread",
        limit_s: float = SOLVE_S,
        urgent: Helper | None = None,
    ) -> None:
        self.sizes = _sizes(sizes)
        self.alpha, self.per_chunk = as_seconds(alpha, "alpha"), as_seconds(per_chunk, "per_chunk")
        self._lookahead = _in_range(lookahead, 0, MAX_LOOKAHEAD, "lookahead")
        self._lefts = tuple(Fraction(left) for left in lefts)
        if any(not 0 <= left < 1 for left in self._lefts):
            raise InputError("fraction left out of range", where="lefts", expected="0 to below 1", got=str(self._lefts))
        self._places = Places.of(cluster)
        self._table = Table(_in_range(keep, 1, 10**6, "keep"))
        self._lock = threading.Lock()
        self._now = Now.of(cluster)
        self._wanted: tuple[Now | None, list[Now]] = (None, [])
        self._failed: set[Hashable] = set()  # shapes that could not be decided since the last event
        self._background = Background(self._step, background, limit_s, urgent)
        self._decisions = Decisions(
            self.sizes, Costs(self.alpha, self.per_chunk), self._table, self._lock, self._background.compute
        )
        servers = (*cluster.servers, *cluster.fault_free.servers)
        even = all(nic.out_rate == nic.in_rate for server in servers for nic in server.nics)
        # Whatever fails: rings at the bound.
        self._settled = self._decisions.free and self._now.counts is not None and even
        self._fault_free_s = [lower_bound(cluster.fault_free, size).seconds for size in self.sizes]
        if self._decisions.missing(self._now):
            self._decisions.decide(self._now, urgent=True)
        self._answer = self._answer_to(self._now, time.perf_counter(), {})
        self._wake()

    # Events

    def fail(self, nic: str) -> Replanned:
        """NIC "server3/nic2" is dead.

        Raises InputError for an unknown NIC, which changes nothing; InfeasibleError where that leaves a server without
        a NIC, in one direction or both: the event is noted, and a restore leads back.
        """
        return self._event(nic, lambda place: Fraction(0))

    def rate(self, nic: str, rate: Rate) -> Replanned:
        """The NIC has at most this much left each way, "180Gb/s" or bytes per second. Raises as `fail` does."""

        def parsed(place: tuple[int, int]) -> Fraction:
            s, i = place
            return rate_of(rate, nic, self._now.state.cluster.fault_free.servers[s].nics[i])

        return self._event(nic, parsed)

    def restore(self, nic: str) -> Replanned:
        """The NIC is as it was without failures. Raises as `fail` does."""
        return self._event(nic, lambda place: None)

    def _event(self, nic: str, left: Callable[[tuple[int, int]], Fraction | None]) -> Replanned:
        start = time.perf_counter()
        place = self._places[nic]
        rate = left(place)
        with self._lock:
            now = self._now = self._now.after(place, rate)
            self._failed, before = set(), self._answer.plans
        try:
            answer = self._answer_to(now, start, before)
            with self._lock:
                if now is self._now:
                    self._answer = answer
            return answer
        finally:
            self._wake()

    def _wake(self) -> None:
        if not self._settled:
            self._background.wake()

    # Answers

    @property
    def current(self) -> Replanned:
        """The plans for the present state: the last event's, or better ones that were decided since."""
        with self._lock:
            now, answer, known = self._now, self._answer, self._now.key in self._table
        if answer.event == now.state.events and not (answer.basis is Basis.NEAREST and known):
            return answer
        answer = self._answer_to(now, time.perf_counter(), answer.plans)
        with self._lock:
            if now is self._now:
                self._answer = answer
        return answer

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is, after all events, also where it has no AllReduce."""
        with self._lock:
            return self._now.state.cluster

    @property
    def events(self) -> int:
        """How many events there have been."""
        with self._lock:
            return self._now.state.events

    def plan(self, nbytes: Quantity) -> Plan:
        """For any size, at the present state, with the recipe of the least of `sizes` that holds it, or of the largest.

        nbytes : bytes, as a number or as text such as "1GiB". Raises InputError for a size out of range,
        InfeasibleError where the present cluster has no AllReduce.
        """
        (nbytes,) = _sizes(nbytes)
        if nbytes in self.sizes:
            return self.current.plans[nbytes]
        bucket = next((size for size in self.sizes if size >= nbytes), self.sizes[-1])
        found = self.current.plans[bucket]
        with self._lock:
            now = self._now
        if now.counts is None or now.state.cluster is not found.cluster:  # or an event came in between
            bound = lower_bound(found.cluster, nbytes)
        else:
            bound = now.counts.bound(found.cluster, nbytes, self._fault_free_s[0] * nbytes / self.sizes[0])
        return Plan(found.cluster, bound, found.recipe)

    def _answer_to(self, now: Now, start: float, before: Mapping[int, Plan]) -> Replanned:
        plans: dict[int, Plan] = {}
        bases: set[Basis] = set()
        for size, fault_free_s in zip(self.sizes, self._fault_free_s, strict=True):
            last = before[size].recipe if before else None
            plans[size], basis = self._decisions.plan(now, size, fault_free_s, last)
            bases.add(basis)
        worst = max(bases, key=list(Basis).index)
        return Replanned(now.state.events, now.state.cluster, plans, worst, time.perf_counter() - start)

    # Preparation

    @property
    def progress(self) -> Progress:
        """How much of what may come next is decided."""
        wanted = self._upcoming()
        return Progress(sum(not self._decisions.missing(now) for now in wanted), len(wanted), self._background.error)

    def prepare(self, limit_s: float | None = None, report: Callable[[Progress], None] | None = None) -> Progress:
        """Decide here and now what is missing, the most urgent first, for about `limit_s` seconds at most.

        A shape that cannot be decided holds up no other: its error, the first one, is raised at the end.
        """
        end = None if limit_s is None else time.monotonic() + limit_s
        with self._lock:
            self._failed = set()
        failed: BaseException | None = None
        while end is None or time.monotonic() < end:
            try:
                if not self._step():
                    break
            except SkippedError as error:
                failed = failed or error.__cause__
            if report is not None:
                report(self.progress)
        if failed is not None:
            raise failed
        return self.progress

    def _step(self) -> bool:
        """Decide one shape; False when none is missing. Raises SkippedError for one that cannot be decided."""
        failed = self._failed
        missing = next(
            (now for now in self._upcoming() if now.key not in failed and self._decisions.missing(now)), None
        )
        if missing is None:
            return False
        try:
            self._decisions.decide(missing)
        except Exception as error:
            failed.add(missing.key)
            raise SkippedError("a shape that cannot be decided") from error
        return True

    def _upcoming(self) -> list[Now]:
        with self._lock:
            now, (of, wanted) = self._now, self._wanted
        if of is not now:
            most = self._table.keep
            wanted = upcoming(now, self._places, lookahead=self._lookahead, lefts=self._lefts, most=most)
            with self._lock:
                self._wanted = (now, wanted)
        return wanted

    def close(self, limit_s: float = 5.0) -> None:
        """Stop preparing; waits at most `limit_s` seconds for what is in hand."""
        self._background.close(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _in_range(value: int, low: int, high: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError("out of range", where=where, expected=f"{low} to {high}", got=str(value)[:60])
    return value


def _sizes(sizes: Quantity | Sequence[Quantity]) -> tuple[int, ...]:
    given = tuple(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else (sizes,)
    if not 1 <= len(given) <= MAX_SIZES:
        raise InputError("how many sizes", where="sizes", expected=f"1 to {MAX_SIZES}", got=len(given))
    return tuple(sorted({_in_range(as_size(size, "sizes"), 1, MAX_BYTES, "sizes") for size in given}))
