"""A planner that is told of events: NICs that fail, slow down and come back; every answer is a plan for what is left.

What takes long is decided before the event: a table holds the recipe for every shape that the next failures can make
(`optcc.planner.standby.shapes`). Everything that depends on the NIC is filled in at the event: the bound with its
certificate, the order of ranks, the shares of nested rings. All have closed forms (`optcc.theory.tally`). Nothing is
simulated or lowered then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from types import TracebackType
from typing import Self

from optcc.errors import InfeasibleError, InputError
from optcc.planner.search import NEAR, SAME
from optcc.planner.standby.background import SOLVE_S, Background, Helper, SkippedError, Where
from optcc.planner.standby.shapes import Now, upcoming
from optcc.planner.standby.solve import solve
from optcc.planner.standby.state import Places, Rate, rate_of
from optcc.planner.standby.table import Entry, Table
from optcc.plans.plan import Plan
from optcc.schedule.candidates import Costs, default_segments
from optcc.schedule.families import FAMILIES
from optcc.schedule.nested_order import rings_in_order
from optcc.schedule.recipe import Recipe
from optcc.theory import lower_bound
from optcc.theory.tally import GroupCounts
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster
from optcc.values.units import MAX_BYTES, Quantity, as_seconds, as_size

KEEP = 4096
MOST_SIZES = 16
MOST_LOOKAHEAD = 4


class Basis(StrEnum):
    """How a plan was come by, the best first.

    PREPARED : the whole planner decided in advance
    CLOSED_FORM : nested rings at (without latency and chunk costs: within 2 % of) the bound; nothing to decide
    SOLVED : the whole planner ran now, however long that took
    NEAREST : what a family's formulas give at once, or what suits a similar cluster, until this one is decided
    """

    PREPARED = "prepared"
    CLOSED_FORM = "closed-form"
    SOLVED = "solved"
    NEAREST = "nearest"


@dataclass(frozen=True)
class Replanned:
    """The answer to an event.

    event : how many events there have been; cluster : what is left after them
    plans : size in bytes -> plan; basis : of the plan that is worst off, in the order of `Basis`
    took_s : seconds from event to answer
    """

    event: int
    cluster: Cluster
    plans: Mapping[int, Plan]
    basis: Basis
    took_s: float

    @property
    def plan(self) -> Plan:
        """The plan of the largest size."""
        return self.plans[max(self.plans)]


@dataclass(frozen=True)
class Progress:
    """How many of the shapes that may come next are decided; `error`: why the last preparation failed, if it did."""

    ready: int
    wanted: int
    error: str | None = None


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
        keep: int = KEEP,
        background: Where = "thread",
        limit_s: float = SOLVE_S,
        urgent: Helper | None = None,
    ) -> None:
        self.sizes = _sizes(sizes)
        self.alpha, self.per_chunk = as_seconds(alpha, "alpha"), as_seconds(per_chunk, "per_chunk")
        self._lookahead = _in_range(lookahead, 0, MOST_LOOKAHEAD, "lookahead")
        self._lefts = tuple(Fraction(left) for left in lefts)
        if any(not 0 <= left < 1 for left in self._lefts):
            raise InputError("fraction left out of range", where="lefts", expected="0 to below 1", got=str(self._lefts))
        self._places = Places.of(cluster)
        self._table = Table(_in_range(keep, 1, 10**6, "keep"))
        self._lock = threading.Lock()
        self._now = Now.of(cluster)
        servers = (*cluster.servers, *cluster.fault_free.servers)
        even = all(nic.out_rate == nic.in_rate for server in servers for nic in server.nics)
        self._settled = self._free and self._now.tally is not None and even  # whatever fails: rings at the bound
        self._wanted: tuple[Now | None, list[Now]] = (None, [])
        self._failed: set[Hashable] = set()  # shapes that could not be decided since the last event
        self._background = Background(self._step, background, limit_s, urgent)
        self._fault_free_s = [lower_bound(cluster.fault_free, size).seconds for size in self.sizes]
        if self._undecided(self._now):
            self._decide(self._now, urgent=True)
        self._answer = self._answer_to(self._now, time.perf_counter())
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
            self._failed = set()
        try:
            answer = self._answer_to(now, start)
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
        answer = self._answer_to(now, time.perf_counter())
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
        """For any size, at the present state: as the least of `sizes` that holds it, or the largest, has it."""
        (nbytes,) = _sizes(nbytes)
        if nbytes in self.sizes:
            return self.current.plans[nbytes]
        bucket = next((size for size in self.sizes if size >= nbytes), self.sizes[-1])
        found = self.current.plans[bucket]
        with self._lock:
            now = self._now
        if now.tally is None or now.state.cluster is not found.cluster:  # or an event came in between
            bound = lower_bound(found.cluster, nbytes)
        else:
            bound = now.tally.bound(found.cluster, nbytes, self._fault_free_s[0] * nbytes / self.sizes[0])
        return Plan(found.cluster, bound, found.recipe)

    def _answer_to(self, now: Now, start: float) -> Replanned:
        plans: dict[int, Plan] = {}
        bases: set[Basis] = set()
        for size, fault_free_s in zip(self.sizes, self._fault_free_s, strict=True):
            plans[size], basis = self._plan(now, size, fault_free_s)
            bases.add(basis)
        worst = max(bases, key=list(Basis).index)
        return Replanned(now.state.events, now.state.cluster, plans, worst, time.perf_counter() - start)

    def _plan(self, now: Now, size: int, fault_free_s: Fraction) -> tuple[Plan, Basis]:
        cluster, tally = now.state.cluster, now.tally
        with self._lock:
            entry = self._table.get(now.key)
            near = self._table.nearest(tally) if entry is None and tally is not None else None
        if tally is None:
            made = self._at_once(cluster, size) if entry is None else None
            return (made, Basis.NEAREST) if made else self._whole(now, size, entry)
        bound = tally.bound(cluster, size, fault_free_s)
        found: tuple[Recipe, Basis] | None = None
        if self._at_bound(tally, bound, SAME):
            found = rings_in_order(tally.order, tally.shares(), self._depth(cluster, size)), Basis.CLOSED_FORM
        elif entry is not None and entry.plans:
            found = _with_basis(entry.recipe(size, tally), Basis.PREPARED)
        elif self._at_bound(tally, bound, NEAR - 1):
            found = rings_in_order(tally.order, tally.shares(), self._depth(cluster, size)), Basis.CLOSED_FORM
        elif near is not None and not self._free:
            found = _with_basis(self._nearest(near, size, cluster, tally, bound), Basis.NEAREST)
        if found is not None and not found[0].fits(cluster):
            found = None  # it is about which NICs are dead; a shape only counts them
        if found is None:
            return self._whole(now, size, None)
        found[0].check(cluster)
        return Plan(cluster, bound, found[0]), found[1]

    def _whole(self, now: Now, size: int, entry: Entry | None) -> tuple[Plan, Basis]:
        """By the table, or by the whole planner."""
        basis = Basis.PREPARED if entry is not None else Basis.SOLVED
        if entry is None:
            entry = self._decide(now, urgent=True)
        if size not in entry.plans:
            lower_bound(now.state.cluster, size)  # which says who is cut off
            raise InfeasibleError("no AllReduce is possible", where="cluster", expected="one that has a schedule")
        # The key tells rates, not the way they came about: `pristine` is the planner's own.
        return replace(entry.plans[size], cluster=now.state.cluster), basis

    @property
    def _free(self) -> bool:
        """Neither latency nor chunk costs: fluid times decide, and deeper is never slower."""
        return not self.alpha and not self.per_chunk

    def _at_bound(self, tally: GroupCounts, bound: Bound, gap: Fraction) -> bool:
        """Whether nested rings are what the planner takes without trying anything (`optcc.planner.search.choose`)."""
        return self._free and tally.rings_s * bound.nbytes <= (1 + gap) * bound.seconds

    def _at_once(self, cluster: Cluster, size: int) -> Plan | None:
        """Outside the closed form: what the first family that has something at once has; None where none has."""
        bound, costs = lower_bound(cluster, size), Costs(self.alpha, self.per_chunk)
        made = (family.at_once(cluster, bound, costs) for family in FAMILIES.values())
        found = next((recipe for recipe in made if recipe is not None and recipe.fits(cluster)), None)
        return None if found is None else Plan(cluster, bound, found)

    def _nearest(self, entry: Entry, size: int, cluster: Cluster, tally: GroupCounts, bound: Bound) -> Recipe | None:
        """What the entry's shape has, carried over, or what a family has at once; None where there is neither."""
        costs = Costs(self.alpha, self.per_chunk)
        tried = (
            entry.plans[size].recipe.like(cluster, bound, costs, tally),
            *(family.at_once(cluster, bound, costs) for family in FAMILIES.values()),
        )
        return next((made for made in tried if made is not None and made.fits(cluster)), None)

    def _depth(self, cluster: Cluster, size: int) -> int:
        return default_segments(size, len(cluster.servers))

    # Preparation

    @property
    def progress(self) -> Progress:
        """How much of what may come next is decided."""
        wanted = self._upcoming()
        return Progress(sum(not self._undecided(now) for now in wanted), len(wanted), self._background.error)

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
        missing = next((now for now in self._upcoming() if now.key not in failed and self._undecided(now)), None)
        if missing is None:
            return False
        try:
            self._decide(missing)
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

    def _undecided(self, now: Now) -> bool:
        """Whether the planner has yet to run for this shape."""
        if now.tally is not None:
            if not now.possible:
                return False
            bound = now.tally.bound(now.state.cluster, self.sizes[0], Fraction(0))
            if self._at_bound(now.tally, bound, SAME):
                return False
        with self._lock:
            return now.key not in self._table

    def _decide(self, now: Now, *, urgent: bool = False) -> Entry:
        task = (now.state.cluster, self.sizes, self.alpha, self.per_chunk)
        entry = Entry(self._background.compute(solve, *task, urgent=urgent), now.tally)
        with self._lock:
            self._table.put(now.key, entry)
        return entry

    def close(self, limit_s: float = 5.0) -> None:
        """Stop preparing; waits at most `limit_s` seconds for what is in hand."""
        self._background.close(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _with_basis(recipe: Recipe | None, basis: Basis) -> tuple[Recipe, Basis] | None:
    return None if recipe is None else (recipe, basis)


def _in_range(value: int, low: int, high: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError("out of range", where=where, expected=f"{low} to {high}", got=str(value)[:60])
    return value


def _sizes(sizes: Quantity | Sequence[Quantity]) -> tuple[int, ...]:
    given = tuple(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else (sizes,)
    if not 1 <= len(given) <= MOST_SIZES:
        raise InputError("how many sizes", where="sizes", expected=f"1 to {MOST_SIZES}", got=len(given))
    return tuple(sorted({_in_range(as_size(size, "sizes"), 1, MAX_BYTES, "sizes") for size in given}))
