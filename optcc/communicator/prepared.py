"""Which schedule each call of a communicator runs: planned once for a size class, lowered once for a size, kept."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, TypeVar

from optcc.communicator.clusters import MessageCosts
from optcc.communicator.debug import Say, cluster_text, plans_text, wires_text
from optcc.communicator.tuning import Trial, candidates
from optcc.errors import InfeasibleError, InputError
from optcc.plans.plan import Plan
from optcc.runtime.control.member import Member
from optcc.runtime.engine.program import Program, program_of
from optcc.runtime.wires.layout import WINDOW_BYTES, layout_of
from optcc.schedule.columns import Schedule
from optcc.schedule.routes import carried_by, ports_of
from optcc.schedule.simple import all_gather, broadcast, one_tree, reduce_scatter
from optcc.schedule.tuned import PIECE_BYTES
from optcc.values.cluster import Cluster

SMALL = 256 * 1024
"""Bytes up to which an AllReduce goes by one tree: what its messages cost is more than what they carry. With 4 ranks of
one machine the tree is faster than the ring up to twice as much."""

LARGE = 1 << 26
"""Wires are made for calls of so many bytes: chunks as large as they get, whatever the first call has."""

UNDER_WAY = 4 * WINDOW_BYTES
"""Landing slots of a rank, for all that others may have under way to it; a quarter of it on this machine cost an
AllReduce of 64 MiB a sixth more processor time."""

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
        self._calls: RecentlyUsed[tuple[str, Program]] = RecentlyUsed(SIZES)
        self._tables: RecentlyUsed[tuple[str, Schedule]] = RecentlyUsed(TABLES)  # by ports and routes
        self._named = 0
        self._connected = False

    def call(self, kind: str, nbytes: int, root: int = 0) -> tuple[str, Program]:
        """What the wires know it by, and this rank's part.

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
        name = self._name(schedule, widest)
        return self._calls.keep(key, (name, program_of(schedule, self._member.rank, 1)))

    def took(self, nbytes: int, seconds: float) -> None:
        """What an AllReduce of more than SMALL bytes took on this rank: by this its plan is chosen."""
        trial = self.trials.find(size_class(nbytes))
        if trial:
            trial.took(seconds, nbytes)

    def _lowered(self, plan: Plan, nbytes: int) -> Schedule:
        """By the NICs that there are now; the plan may have been made for more."""
        return carried_by(self.cluster, plan.recipe.lower(plan.cluster, nbytes), plan.cluster)

    def _trial(self, nbytes: int) -> Trial:
        """Of the size class. Rank 0 plans; the others hear of it, so that all have the same plans."""
        size = size_class(nbytes)
        trial = self.trials.find(size)
        if trial is None:
            said: Any = None
            if self._member.rank == 0:
                try:
                    made = candidates(self._planned_for, size, *self._costs)
                    said = [plan.to_json() for plan in (made if self._tune else made[:1])]
                except InputError as error:
                    said = {"infeasible": isinstance(error, InfeasibleError), "what": str(error)}
            said = self._member.exchange(said)[0]
            if isinstance(said, dict):
                raise (InfeasibleError if said["infeasible"] else InputError)(said["what"], where="rank 0's planner")
            trial = self.trials.keep(size, Trial([Plan.from_json(each, "rank 0's plan") for each in said]))
            self._say(plans_text(trial.plans, size))
        if trial.choose(self._member.exchange):
            self._say(f"measured, {plans_text([trial.plan], size)}")
        return trial

    def _name(self, schedule: Schedule, widest: Schedule) -> str:
        """Of its set of routes; wires are made anew where some of it have none.

        widest : the same for LARGE bytes, which says how large slots are
        """
        key = schedule.ports, schedule.routes
        found = self._tables.find(key)
        if found:
            return found[0]
        self._named += 1
        name = f"routes {self._named}"
        self._tables.keep(key, (name, widest if widest.routes == schedule.routes else schedule))
        lanes = self._member.layout.lanes_of(schedule) if self._connected else None
        if lanes is not None:
            self._member.learn(name, schedule, lanes)
            return name
        schedules = dict(self._tables.values())
        into = Counter(flow.dst for flow in layout_of(schedules).flows)
        window = min(max(UNDER_WAY // max(into.values()), WINDOW_BYTES // 4), WINDOW_BYTES)
        layout = layout_of(schedules, window_bytes=window, spare=ports_of(self._whole))
        self._member.connect(layout, schedules)
        self._say(wires_text(self._member.layout, self._member.rank, self._member.path))
        self._connected = True
        self._calls.clear()  # some may go by routes that are forgotten
        return name
