"""A planner that is told of events: NICs that fail, slow down and come back; every answer is a plan for what is left.

What takes long is decided before the event: a table holds the recipe for every shape that the next failures can make
(`upcoming`). Everything that depends on the NIC is filled in at the event: the bound with its certificate, the order of
ranks, the shares of nested rings. All have closed forms (`optcc.theory.ring_shares`). Nothing is simulated or lowered
then.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from types import TracebackType
from typing import Self

from optcc.errors import InfeasibleError, InputError
from optcc.planner import search
from optcc.planner.background import SOLVE_S, Background, Helper, SkippedError, Where
from optcc.plans.plan import Plan
from optcc.schedule.families import FAMILIES
from optcc.schedule.nested import rings_in_order
from optcc.schedule.recipe import Costs, Recipe, default_segments
from optcc.schedule.tuned import NEARLY
from optcc.theory import lower_bound
from optcc.theory.ring_shares import GroupCounts
from optcc.values.bound import LARGEST_GAP, Bound
from optcc.values.cluster import Cluster, Nic
from optcc.values.units import MAX_BYTES, Quantity, as_seconds, as_size, parse_rate

# What a planner that is told of events answers: plans for what is left, how they were come by, what is prepared.


class Basis(StrEnum):
    """How a plan was come by, the best first.

    PREPARED : the whole planner decided in advance
    CLOSED_FORM : nested rings at (without latency and chunk costs: within 2 % of) the bound; nothing to decide
    SOLVED : the whole planner ran now, however long that took
    NEAREST : what the plan before the event becomes here, or what a family's formulas give at once, until this cluster
        is decided
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


# What is known of the job's NICs, as a value, and what an event makes of it.


Rate = str | int | Fraction


@dataclass(frozen=True)
class Places:
    """Where each NIC of a cluster is, by its name SERVER/NIC: (server, index in it)."""

    cluster: Cluster
    by_name: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, cluster: Cluster) -> Places:
        """All NICs of `cluster`."""
        named = {
            f"{server.name}/{nic.name}": (s, i)
            for s, server in enumerate(cluster.servers)
            for i, nic in enumerate(server.nics)
        }
        return cls(cluster, named)

    def __getitem__(self, nic: str) -> tuple[int, int]:
        place = self.by_name.get(nic) if isinstance(nic, str) else None
        if place is None:
            self.cluster.degrade(str(nic)[:600])  # which says what is wrong with the name
            raise InputError("not a NIC", where="nic", expected="SERVER/NIC", got=str(nic)[:600])
        return place


@dataclass(frozen=True)
class State:
    """The cluster after `events` events, and its counts where bounds and rings have a closed form."""

    cluster: Cluster
    events: int = 0
    counts: GroupCounts | None = None

    @classmethod
    def of(cls, cluster: Cluster) -> State:
        """Before any event. Of servers as ranks on one non-blocking fabric the bound is the largest of four terms, and
        nested rings have shares."""
        closed = cluster.fabric.flat and not cluster.gpu_ranks and len(cluster.servers) > 1
        return cls(cluster, counts=GroupCounts.of(cluster) if closed else None)

    @cached_property
    def key(self) -> Hashable:
        """Of the table: equal for clusters that need the same decision."""
        return self.deviations if self.counts is None else (self.counts.key, self.shared)

    @property
    def possible(self) -> bool:
        """No server is cut off; without counts the planner has to find that out."""
        return self.counts is None or self.counts.levels[0][0] > 0

    @cached_property
    def deviations(self) -> frozenset[tuple[str, Fraction, Fraction]]:
        """(NIC, rate out, rate in) of every NIC that is not what it was without failures."""
        found = set()
        for server, whole in zip(self.cluster.servers, self.cluster.fault_free.servers, strict=True):
            if server is not whole:
                pairs = zip(server.nics, whole.nics, strict=True)
                found |= {(f"{server.name}/{n.name}", n.out_rate, n.in_rate) for n, w in pairs if n != w}
        return frozenset(found)

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """Of every place in servers at which several have a NIC that is dead or slow, how many: direct exchange
        depends on places."""
        found: Counter[int] = Counter()
        for server, whole in zip(self.cluster.servers, self.cluster.fault_free.servers, strict=True):
            if server is not whole:
                pairs = zip(server.nics, whole.nics, strict=True)
                found.update(i for i, (nic, was) in enumerate(pairs) if nic != was)
        return tuple(sorted(count for count in found.values() if count > 1))

    def after(self, place: tuple[int, int], rate: Fraction | None) -> State:
        """The NIC at `place` has at most `rate` bytes per second each way; None: what it had without failures."""
        s, i = place
        pristine = self.cluster.fault_free
        whole = pristine.servers[s].nics[i]
        nic = whole if rate is None else limited(whole, rate)
        changed = self.cluster.with_nic(s, i, nic)
        if changed.servers[s] == pristine.servers[s]:
            # The very same object: what is as it was is found by identity.
            changed = replace(changed, servers=(*changed.servers[:s], pristine.servers[s], *changed.servers[s + 1 :]))
        same = all(now is was for now, was in zip(changed.servers, pristine.servers, strict=True))
        cluster = pristine if same else replace(changed, pristine=pristine)
        counts = self.counts and self.counts.moved(s, self.cluster.servers[s], cluster.servers[s])
        return State(cluster, self.events + 1, counts)


def limited(nic: Nic, rate: Fraction) -> Nic:
    """`nic` with at most `rate` bytes per second each way."""
    return replace(nic, out_rate=min(nic.out_rate, rate), in_rate=min(nic.in_rate, rate))


def rate_of(rate: Rate, nic: str, whole: Nic) -> Fraction:
    """Bytes per second of what a caller gave for a NIC, "180Gb/s" or a number.

    Raises InputError for what is no rate, and for more than the NIC's rate without failures. The latter is a mistake in
    the topology, the base of every bound so far.
    """
    where = f"rate of {nic}"
    if isinstance(rate, str):
        value = parse_rate(rate, where)
    elif isinstance(rate, (int, Fraction)) and not isinstance(rate, bool) and rate >= 0:
        value = Fraction(rate)
    else:
        raise InputError("not a rate", where=where, expected="bytes per second or such as 180Gb/s", got=str(rate)[:60])
    most = max(whole.out_rate, whole.in_rate)
    if value > most:
        raise InputError(
            "more than the NIC has without failures",
            where=where,
            expected=f"at most {most} bytes/s",
            got=str(value),
            hint="Make a new planner where the topology was wrong.",
        )
    return value


def upcoming(now: State, places: Places, *, lookahead: int, lefts: Sequence[Fraction], most: int) -> list[State]:
    """`now`, what repairs make of it, then every single failure, then every second one, to `lookahead` in a row.

    A failure leaves a NIC one of the fractions `lefts` of its rate. In the closed form every shape comes once,
    elsewhere every NIC does and only the next failure is looked at. At most `most` states.
    """
    found: dict[Hashable, State] = {}

    def add(states: Iterator[State]) -> list[State]:
        new = []
        for state in states:
            if len(found) < most and state.possible and state.key not in found:
                found[state.key] = state
                new.append(state)
        return new

    edge = add(iter([now]))
    add(now.after(places[nic], None) for nic, _, _ in sorted(now.deviations))
    for _ in range(lookahead if now.counts is not None else min(lookahead, 1)):
        edge = add(failed for state in edge for failed in _failures(state, lefts))
    return list(found.values())


def _failures(now: State, lefts: Sequence[Fraction]) -> Iterator[State]:
    """One more failure: in the closed form at the first server of each group only."""
    cluster = now.cluster
    servers = range(len(cluster.servers)) if now.counts is None else sorted(m[0] for m in now.counts.groups.values())
    for s in servers:
        for i, (nic, whole) in enumerate(zip(cluster.servers[s].nics, cluster.fault_free.servers[s].nics, strict=True)):
            for left in lefts:
                rate = left * max(whole.out_rate, whole.in_rate)
                if rate < max(nic.out_rate, nic.in_rate):
                    yield now.after((s, i), rate)


# What was decided in advance: for each shape of a cluster and each size the recipe that the planner found best.
#
# A shape is a cluster without its servers' names, so similar failures share an entry. 128 servers of 8 equal NICs
# have 1024 single failures of one shape. An entry keeps recipes, not schedules: a few kilobytes.


@dataclass(frozen=True)
class Entry:
    """The plans of one shape, by size; no plan where the shape has none. `counts` is of the cluster they were made for,
    None outside the closed form, where a shape is one cluster only."""

    plans: Mapping[int, Plan]
    counts: GroupCounts | None = None

    def recipe(self, size: int, counts: GroupCounts | None) -> Recipe | None:
        """The recipe for the cluster that `counts` counts, which is of the entry's shape; None where its family is not
        known here and the servers have other places."""
        made = self.plans[size].recipe
        if counts is None or self.counts is None or counts.groups == self.counts.groups:
            return made
        return made.relabelled(matching(self.counts, counts), counts)


def matching(old: GroupCounts, new: GroupCounts) -> dict[int, int]:
    """Rank of `old` -> the rank of `new` that takes its part; equal servers in ascending order."""
    return {a: b for sign, members in old.groups.items() for a, b in zip(members, new.groups[sign], strict=True)}


class Table:
    """Entries by key, the most lately used `keep` of them. Not thread-safe: its planner's lock is."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> Entry | None:
        """The entry, which counts as a use of it."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Hashable, entry: Entry) -> None:
        """Keep an entry; the one that was not used for longest makes room."""
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self.keep:
            self._entries.popitem(last=False)


def solve(cluster: Cluster, sizes: Sequence[int], alpha: Fraction, per_chunk: Fraction) -> dict[int, Plan]:
    """The best plan for each size in bytes; nothing where no AllReduce is possible. Another process can run it."""
    found = dict[int, Plan]()
    for size in sizes:
        try:
            bound = lower_bound(cluster, size)
        except InfeasibleError:
            return {}
        recipe = search.choose(cluster, bound, alpha=alpha, per_chunk=per_chunk, in_place=True)
        recipe.check(cluster)
        found[size] = Plan(cluster, bound, recipe)
    return found


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
        self._now = State.of(cluster)
        self._wanted: tuple[State | None, list[State]] = (None, [])
        self._failed: set[Hashable] = set()  # shapes that could not be decided since the last event
        self._background = Background(self._step, background, limit_s, urgent)
        self._costs = Costs(self.alpha, self.per_chunk)
        servers = (*cluster.servers, *cluster.fault_free.servers)
        even = all(nic.out_rate == nic.in_rate for server in servers for nic in server.nics)
        # Whatever fails: rings at the bound.
        self._settled = self._free and self._now.counts is not None and even
        self._fault_free_s = [lower_bound(cluster.fault_free, size).seconds for size in self.sizes]
        if self._missing(self._now):
            self._decide(self._now, urgent=True)
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
            return rate_of(rate, nic, self._now.cluster.fault_free.servers[s].nics[i])

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
        if answer.event == now.events and not (answer.basis is Basis.NEAREST and known):
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
            return self._now.cluster

    @property
    def events(self) -> int:
        """How many events there have been."""
        with self._lock:
            return self._now.events

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
        if now.counts is None or now.cluster is not found.cluster:  # or an event came in between
            bound = lower_bound(found.cluster, nbytes)
        else:
            bound = now.counts.bound(found.cluster, nbytes, self._fault_free_s[0] * nbytes / self.sizes[0])
        return Plan(found.cluster, bound, found.recipe)

    def _answer_to(self, now: State, start: float, before: Mapping[int, Plan]) -> Replanned:
        plans: dict[int, Plan] = {}
        bases: set[Basis] = set()
        for size, fault_free_s in zip(self.sizes, self._fault_free_s, strict=True):
            last = before[size].recipe if before else None
            plans[size], basis = self._decided(now, size, fault_free_s, last)
            bases.add(basis)
        worst = max(bases, key=list(Basis).index)
        return Replanned(now.events, now.cluster, plans, worst, time.perf_counter() - start)

    # Decisions: from the table, in closed form, carried over from the state before, or solved now. What depends on
    # which NIC failed is put in here, in closed form; nothing is simulated or lowered unless a shape has to be solved.

    def _decided(self, now: State, size: int, fault_free_s: Fraction, before: Recipe | None) -> tuple[Plan, Basis]:
        """The plan of state `now`; `before` is what the last state had. Raises InfeasibleError where a server is cut
        off."""
        cluster, counts = now.cluster, now.counts
        with self._lock:
            entry = self._table.get(now.key)
        if counts is None and entry is not None:
            return self._whole(now, size, entry)
        bound = lower_bound(cluster, size) if counts is None else counts.bound(cluster, size, fault_free_s)
        for recipe, basis in self._offers(now, bound, entry, before):
            # Whether it fits is about which NICs are dead; a shape only counts them.
            if recipe is not None and recipe.fits(cluster):
                return Plan(cluster, bound, recipe), basis
        return self._whole(now, size, None)

    def _offers(
        self, now: State, bound: Bound, entry: Entry | None, before: Recipe | None
    ) -> Iterator[tuple[Recipe | None, Basis]]:
        """What needs no planning now, the best first."""
        cluster, counts = now.cluster, now.counts
        if counts is not None and self._at_bound(counts, bound, NEARLY - 1 if entry is None else LARGEST_GAP):
            depth = default_segments(bound.nbytes, counts.ranks)
            yield rings_in_order(counts.order, counts.shares(), depth), Basis.CLOSED_FORM
        if entry is not None:
            yield entry.recipe(bound.nbytes, counts) if entry.plans else None, Basis.PREPARED
        elif counts is None or not self._free:
            if before is not None and counts is not None:
                yield before.like(cluster, bound, self._costs, counts), Basis.NEAREST
            for family in FAMILIES.values():
                yield family.at_once(cluster, bound, self._costs), Basis.NEAREST

    def _whole(self, now: State, size: int, entry: Entry | None) -> tuple[Plan, Basis]:
        """By the table, or by the whole planner."""
        basis = Basis.PREPARED if entry is not None else Basis.SOLVED
        if entry is None:
            entry = self._decide(now, urgent=True)
        if size not in entry.plans:
            lower_bound(now.cluster, size)  # which says who is cut off
            raise InfeasibleError("no AllReduce is possible", where="cluster", expected="one that has a schedule")
        # The key tells rates, not the way they came about: `pristine` is the planner's own.
        return replace(entry.plans[size], cluster=now.cluster), basis

    @property
    def _free(self) -> bool:
        """Neither latency nor chunk costs: fluid times decide, and deeper is never slower."""
        return not self._costs.alpha and not self._costs.per_chunk

    def _at_bound(self, counts: GroupCounts, bound: Bound, gap: Fraction) -> bool:
        """Whether nested rings are what the planner takes without trying anything (`optcc.planner.search.choose`)."""
        return self._free and counts.rings_s * bound.nbytes <= (1 + gap) * bound.seconds

    def _missing(self, now: State) -> bool:
        """Whether the planner has yet to run for this shape."""
        if now.counts is not None:
            if not now.possible:
                return False
            bound = now.counts.bound(now.cluster, self.sizes[0], Fraction(0))
            if self._at_bound(now.counts, bound, LARGEST_GAP):
                return False
        with self._lock:
            return now.key not in self._table

    def _decide(self, now: State, *, urgent: bool = False) -> Entry:
        """Run the whole planner for this shape, and keep what it gives."""
        task = (now.cluster, self.sizes, self._costs.alpha, self._costs.per_chunk)
        entry = Entry(self._background.compute(solve, *task, urgent=urgent), now.counts)
        with self._lock:
            self._table.put(now.key, entry)
        return entry

    # Preparation

    @property
    def progress(self) -> Progress:
        """How much of what may come next is decided."""
        wanted = self._upcoming()
        return Progress(sum(not self._missing(now) for now in wanted), len(wanted), self._background.error)

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
        missing = next((now for now in self._upcoming() if now.key not in failed and self._missing(now)), None)
        if missing is None:
            return False
        try:
            self._decide(missing)
        except Exception as error:
            failed.add(missing.key)
            raise SkippedError("a shape that cannot be decided") from error
        return True

    def _upcoming(self) -> list[State]:
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
