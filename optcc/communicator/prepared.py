"""Which schedule each call of a communicator runs: planned once for a size class, cut once for a size, kept."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from optcc.api import plan
from optcc.communicator.clusters import MessageCosts
from optcc.errors import InfeasibleError, InputError
from optcc.plans.plan import Plan
from optcc.runtime.control.member import Member
from optcc.runtime.native.layout import Layout, layout_of
from optcc.runtime.native.library import NativeProgram
from optcc.schedule.columns import Schedule
from optcc.schedule.routes import carried_by, ports_of
from optcc.schedule.simple import all_gather, broadcast, one_tree, reduce_scatter
from optcc.schedule.tuned import PIECE_BYTES
from optcc.values.cluster import Cluster
from optcc.values.units import format_rate, format_size

ROUNDS = 8
"""Calls that measure a plan. The fastest counts: the first three or so touch new memory, and others may wait for a
process that the machine runs later. With 3, eight of twelve communicators kept the plan that was a third slower later;
with 8 none of 24 (4 ranks of one machine, 1 MiB)."""

DEPTHS = (4, Fraction(1, 4))
"""Segments of further candidates over the planner's choice. The best number grows with the square root of a chunk's
cost. So these suit a cost that is off by a factor of 16 either way."""


def candidates(cluster: Cluster, nbytes: int, transport: str, alpha: Fraction, per_chunk: Fraction) -> list[Plan]:
    """Plans for `nbytes` per rank, each once, the one to begin with first.

    transport, alpha, per_chunk : as of `clusters.MessageCosts`

    Processes of one machine (transport "local") are as fast as its memory, whatever NICs they are given. Each step
    waits until other processes get a processor, so there plans have one segment.
    """
    if transport == "local":
        first = plan(cluster, nbytes, segments=1, in_place=True)
        others: list[tuple[str, int]] = [("direct-exchange", 1)]
    else:
        first = plan(cluster, nbytes, alpha=alpha, per_chunk=per_chunk, in_place=True)
        others = [(first.family, max(1, int(first.segments * factor))) for factor in DEPTHS]
    found = {first.plan_id: first}
    for family, segments in others:
        try:
            other = plan(cluster, nbytes, family=family, segments=segments, in_place=True)
        except InputError:
            continue  # not a family, or not a depth, for this cluster
        found.setdefault(other.plan_id, other)
    return list(found.values())


class Trial:
    """The plans of a size class, of which one is kept once each has been measured.

    plans : at least one; the first is used where none may be tried
    seconds : by plan, of this rank's calls so far, per byte
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = tuple(plans)
        self.seconds: list[list[float]] = [[] for _ in plans]
        self._chosen = 0 if len(plans) == 1 else None

    @property
    def now(self) -> int:
        """Which plan the next call runs, the same on all ranks that have called alike."""
        if self._chosen is not None:
            return self._chosen
        return min(range(len(self.plans)), key=lambda i: len(self.seconds[i]))

    @property
    def plan(self) -> Plan:
        """The plan of the next call."""
        return self.plans[self.now]

    def took(self, seconds: float, nbytes: int) -> None:
        """What the call took on this rank, from when it came to when it had the result."""
        if self._chosen is None:
            self.seconds[self.now].append(seconds / nbytes)

    def choose(self, exchange: Callable[[list[list[float]]], list[list[list[float]]]]) -> bool:
        """Whether a plan is chosen by this. `exchange` : all ranks' values, by rank; called when all are measured."""
        if self._chosen is not None or len(self.seconds[-1]) < ROUNDS:
            return False
        times = fastest(exchange(self.seconds))
        self._chosen = times.index(min(times))
        return True


def fastest(seconds: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """By plan, the time of its fastest call; `seconds` : by rank, plan and call.

    A call takes as long as on the rank that came last, which has waited for nobody: the least of all ranks.
    """
    plans = zip(*seconds, strict=True)
    return [min(min(call) for call in zip(*of_ranks, strict=True)) for of_ranks in plans]


VARIABLE, LEVELS = "OPTCC_DEBUG", ("WARN", "INFO")

Say = Callable[[str], None]


def speaker(environ: Mapping[str, str], rank: int, world: int) -> Say:
    """What prints a line of rank `rank` of `world`; nothing where OPTCC_DEBUG is not INFO. InputError for no level."""
    level = environ.get(VARIABLE, "WARN").upper()
    if level not in LEVELS:
        raise InputError("no such level", where=VARIABLE, expected=" or ".join(LEVELS), got=environ[VARIABLE])
    if level != "INFO":
        return lambda text: None

    def say(text: str) -> None:
        sys.stderr.write(f"optcc INFO rank {rank} of {world}: {text}\n")  # in one piece: all ranks write to it
        sys.stderr.flush()

    return say


def cluster_text(cluster: Cluster, rank: int, transport: str) -> str:
    """This rank's NICs and how many there are in all."""
    nics = ", ".join(
        f"{nic.name} {format_rate(nic.out_rate) if nic.alive else 'dead'}" for nic in cluster.ranks[rank].nics
    )
    dead = sum(not nic.alive for server in cluster.servers for nic in server.nics)
    everything = sum(len(server.nics) for server in cluster.servers)
    return f"cluster of {everything} NICs, {dead} of them dead; here {nics}; transport {transport}"


def plans_text(plans: Sequence[Plan], nbytes: int) -> str:
    """What runs an AllReduce of up to so many bytes; more than one: each is tried."""

    def text(plan: Plan) -> str:
        depth = f"{plan.segments} segment{'s' * (plan.segments != 1)}"
        return f"{plan.family}, {depth}, plan {plan.plan_id}"

    return f"AllReduce up to {format_size(nbytes)}: {'; or '.join(text(plan) for plan in plans)}"


def wires_text(layout: Layout, rank: int) -> str:
    """This rank's wires."""
    ends = layout.ends(rank)
    return f"{len(ends)} wires to {len({peer for peer, *_ in ends})} ranks"


SMALL = 256 * 1024
"""Bytes up to which an AllReduce goes by one tree: what its messages cost is more than what they carry. With 4 ranks of
one machine the tree is faster than the ring up to twice as much."""

LARGE = 1 << 26
"""Wires are made for calls of so many bytes: chunks as large as they get, whatever the first call has."""

SIZES, CLASSES, TABLES = 64, 32, 8
"""How many schedules, size classes, and sets of routes are kept; the one that was not used for longest goes."""

Value = TypeVar("Value")


class RecentlyUsed(OrderedDict[Any, Value]):
    """The `most` values that were used last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def find(self, key: Any) -> Value | None:
        """The value of a key, used now."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: Any, value: Value) -> Value:
        """Another one; returns it."""
        self[key] = value
        if len(self) > self._most:
            self.popitem(last=False)
        return value


def size_class(nbytes: int) -> int:
    """The power of two that bytes per rank are rounded up to."""
    return 1 << (nbytes - 1).bit_length()


class Prepared:
    """Those of one rank. All ranks ask for the same calls in the same order, within turns of `member`."""

    def __init__(self, member: Member, cluster: Cluster, costs: MessageCosts, say: Say, tune: bool) -> None:
        self._member, self._costs, self._say, self._tune = member, costs, say, tune
        self._planned_for = self._whole = cluster
        self.trials: RecentlyUsed[Trial] = RecentlyUsed(CLASSES)
        """By `size_class`."""
        self.age = 0
        """Another one once wires are made anew, or are to be: programs of before are of no use. On all ranks alike."""
        self._start(cluster)

    def renew(self, cluster: Cluster, reproducible: bool) -> None:
        """From now on for this cluster, over wires made anew with the first call.

        reproducible : plans stay, so that sums are rounded as ever; only which NIC carries what changes
        """
        if not reproducible and cluster.servers != self._planned_for.servers:
            self._planned_for = cluster
            self.trials.clear()
        self._start(cluster)

    def _start(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._say(cluster_text(cluster, self._member.rank, self._costs.transport))
        self._calls: RecentlyUsed[NativeProgram] = RecentlyUsed(SIZES)
        self._widest: RecentlyUsed[Schedule] = RecentlyUsed(TABLES)  # by ports and routes
        self._connected = False
        self.age += 1

    def call(self, kind: str, nbytes: int, root: int = 0) -> NativeProgram:
        """This rank's part.

        kind : "all_reduce", "broadcast" (from `root`), "all_gather" or "reduce_scatter" (of parts of `nbytes`)
        """
        trial = self._trial(nbytes) if kind == "all_reduce" and nbytes > SMALL else None
        key = kind, nbytes, trial.now if trial else root
        found = self._calls.find(key)
        if found:
            return found
        match kind:
            case "all_reduce" if trial:
                schedule, widest = self._lowered(trial.plan, nbytes), self._lowered(trial.plan, LARGE)
            case "all_reduce":
                schedule, widest = one_tree(self.cluster, nbytes), one_tree(self.cluster, LARGE)
            case "broadcast":
                large = PIECE_BYTES if nbytes <= PIECE_BYTES else LARGE  # beyond, it goes by other routes
                schedule, widest = broadcast(self.cluster, nbytes, root), broadcast(self.cluster, large, root)
            case "all_gather":
                schedule, widest = all_gather(self.cluster, nbytes), all_gather(self.cluster, LARGE)
            case _:
                schedule, widest = reduce_scatter(self.cluster, nbytes), reduce_scatter(self.cluster, LARGE)
        self._join(schedule, widest)
        return self._calls.keep(key, self._member.links.program(schedule))

    def took(self, nbytes: int, seconds: float) -> None:
        """What an AllReduce of more than SMALL bytes took on this rank: by this its plan is chosen."""
        trial = self.trials.find(size_class(nbytes))
        if trial:
            trial.took(seconds, nbytes)

    def _lowered(self, plan: Plan, nbytes: int) -> Schedule:
        """By the NICs that there are now; the plan may have been made for more."""
        return carried_by(self.cluster, plan.schedule().resized(nbytes), plan.cluster)

    def _trial(self, nbytes: int) -> Trial:
        """Of the size class. Rank 0 plans; the others hear of it, so that all have the same plans."""
        size = size_class(nbytes)
        trial = self.trials.find(size)
        if trial is None:
            said: Any = None
            if self._member.rank == 0:
                try:
                    made = candidates(self._planned_for, size, *self._costs)
                    plans = made if self._tune else made[:1]
                    said = [b64encode(plan.to_bytes(packed=True)).decode() for plan in plans]
                except InputError as error:
                    said = {"infeasible": isinstance(error, InfeasibleError), "what": str(error)}
            said = self._member.exchange(said)[0]
            if isinstance(said, dict):
                raise (InfeasibleError if said["infeasible"] else InputError)(said["what"], where="rank 0's planner")
            trial = self.trials.keep(size, Trial([Plan.from_bytes(b64decode(each), "rank 0's plan") for each in said]))
            self._say(plans_text(trial.plans, size))
        if trial.choose(self._member.exchange):
            self._say(f"measured, {plans_text([trial.plan], size)}")
        return trial

    def _join(self, schedule: Schedule, widest: Schedule) -> None:
        """Have wires that serve a schedule: made anew where those that there are do not.

        widest : the same for LARGE bytes, which says how long segments are
        """
        key = schedule.ports, schedule.routes
        if self._widest.find(key) is not None:
            return
        self._widest.keep(key, widest if widest.routes == schedule.routes else schedule)
        if self._connected and self._member.links.layout.serves(schedule):
            return
        schedules = {str(number): each for number, each in enumerate(self._widest.values())}
        self._member.connect(layout_of(schedules, spare=ports_of(self._whole)))
        self._say(wires_text(self._member.links.layout, self._member.rank))
        self._connected = True
        self.age += 1
        self._calls.clear()  # they are of the wires that were
