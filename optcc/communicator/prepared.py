"""Which schedule each call of a communicator runs: planned once for a size class, lowered once for a size, kept."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, TypeVar

from optcc.communicator.debug import Say, cluster_text, plan_text, wires_text
from optcc.errors import InfeasibleError, InputError
from optcc.plans.plan import Plan
from optcc.runtime.control.member import Member
from optcc.runtime.engine.program import Program, program_of
from optcc.runtime.wires.layout import WINDOW_BYTES, layout_of
from optcc.schedule.candidates import DEFAULT_SEGMENTS
from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import Recipe
from optcc.schedule.simple import PIECE_BYTES, all_gather, broadcast, one_tree, reduce_scatter
from optcc.values.cluster import Cluster

SMALL = 256 * 1024
"""Bytes up to which an AllReduce goes by one tree: what its messages cost is more than what they carry. With 4 ranks of
one machine the tree is faster than the ring up to twice as much."""

SECTION = 1 << 20
"""Over NICs a plan is no deeper than leaves so many bytes to each at a time: a message costs as much as they do.
Processes of one machine are as fast as its memory, whatever NICs they are said to have, and each step waits for other
processes to be given a processor: there one segment is fastest at all sizes (docs/bench-communicator.md)."""

LARGE = 1 << 26
"""Wires are made for calls of so many bytes: chunks as large as they get, whatever the first call has."""

UNDER_WAY = 4 * WINDOW_BYTES
"""Landing slots of a rank, for all that others may have under way to it; a quarter of it on this machine cost an
AllReduce of 64 MiB a sixth more processor time."""

SIZES, CLASSES, TABLES = 64, 32, 8
"""How many schedules, plans, and sets of routes are kept; the one that was not used for longest goes."""

Value = TypeVar("Value")


class Kept(OrderedDict[Any, Value]):
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


class Prepared:
    """Those of one rank. All ranks ask for the same calls in the same order, within turns of `member`."""

    def __init__(self, member: Member, cluster: Cluster, transport: str, say: Say) -> None:
        self._member, self._transport, self._say = member, transport, say
        self._planned_for = cluster
        self.plans: Kept[Plan] = Kept(CLASSES)
        """By size class, the power of two that bytes per rank are rounded up to."""
        self._start(cluster)

    def renew(self, cluster: Cluster, reproducible: bool) -> None:
        """From now on for this cluster, over wires made anew with the first call.

        reproducible : plans stay, so that sums are rounded as ever; only what each NIC carries is dealt anew
        """
        if not reproducible:
            self._planned_for = cluster
            self.plans.clear()
        self._start(cluster)

    def _start(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._say(cluster_text(cluster, self._member.rank, self._transport))
        self._calls: Kept[tuple[str, Program]] = Kept(SIZES)
        self._tables: Kept[tuple[str, Schedule]] = Kept(TABLES)  # by ports and routes
        self._named = 0
        self._connected = False

    def call(self, kind: str, nbytes: int, root: int = 0) -> tuple[str, Program]:
        """What the wires know it by, and this rank's part.

        kind : "all_reduce", "broadcast" (from `root`), "all_gather" or "reduce_scatter" (of parts of `nbytes`)
        """
        found = self._calls.find((kind, nbytes, root))
        if found:
            return found
        match kind:
            case "all_reduce" if nbytes <= SMALL:
                schedule, widest = one_tree(self.cluster, nbytes), one_tree(self.cluster, LARGE)
            case "all_reduce":
                recipe = self._recipe(nbytes)
                schedule, widest = recipe.lower(self.cluster, nbytes), recipe.lower(self.cluster, LARGE)
            case "broadcast":
                large = PIECE_BYTES if nbytes <= PIECE_BYTES else LARGE  # beyond, it goes by other routes
                schedule, widest = broadcast(self.cluster, nbytes, root), broadcast(self.cluster, large, root)
            case "all_gather":
                schedule, widest = all_gather(self.cluster, nbytes), all_gather(self.cluster, LARGE)
            case _:
                schedule, widest = reduce_scatter(self.cluster, nbytes), reduce_scatter(self.cluster, LARGE)
        name = self._name(schedule, widest)
        return self._calls.keep((kind, nbytes, root), (name, program_of(schedule, self._member.rank, 1)))

    def _recipe(self, nbytes: int) -> Recipe:
        """Rank 0 plans; the others hear of it, so that all have the same plan and only one has to have a planner."""
        size = 1 << (nbytes - 1).bit_length()
        made = self.plans.find(size)
        if made is None:
            said: Any = None
            if self._member.rank == 0:
                try:
                    from optcc.api import plan

                    said = plan(self._planned_for, size, segments=self._segments(size)).to_json()
                except InputError as error:
                    said = {"infeasible": isinstance(error, InfeasibleError), "what": str(error)}
            said = self._member.exchange(said)[0]
            if isinstance(said, dict):
                raise (InfeasibleError if said["infeasible"] else InputError)(said["what"], where="rank 0's planner")
            made = self.plans.keep(size, Plan.from_json(said, "rank 0's plan"))
            self._say(plan_text(made, size))
        return made.recipe

    def _segments(self, nbytes: int) -> int:
        if self._transport == "local":
            return 1
        nics = sum(nic.alive for server in self._planned_for.servers for nic in server.nics)
        return min(DEFAULT_SEGMENTS, max(1, nbytes // (SECTION * nics)))

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
        self._member.connect(layout_of(schedules, window_bytes=window), schedules)
        self._say(wires_text(self._member.layout, self._member.rank))
        self._connected = True
        self._calls.clear()  # some may go by routes that are forgotten
        return name
