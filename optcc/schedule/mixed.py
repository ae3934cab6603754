"""Direct exchange by some NICs, and in two levels by the others, among pods whose uplinks are too few for the first.

Direct exchange by timetable leaves hardly a gap, but much of it crosses pods. In two levels little does, but hubs wait
for what other pods have gathered, and a pod that is slower cannot hand work over to others. So the NICs are divided:
the data of some is exchanged directly, in shares by which a slow server has less to do, that of the others in two
levels, in which all pods have the same to do. Both end together and share nothing but the uplinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster, Nic
from optcc.schedule.assemble import granule
from optcc.schedule.columns import Route, Schedule
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.pods import direct_across, pod_numbers, uplinks
from optcc.schedule.recipe import Recipe, demand, exact
from optcc.schedule.routes import Routes
from optcc.schedule.timetable import Timetable


@dataclass(frozen=True)
class MixedExchange(Recipe):
    """Direct exchange, in one level by some NICs and in two by the others.

    Attributes
    ----------
    segments : windows of `grouped`, which takes its number from here
    direct : what runs on the first part of the data, by all NICs but `nics`
    grouped : what runs on the rest, by `nics`; its groups are the pods
    nics : places of NICs in their servers, in order
    part : of the data, which `grouped` has
    """

    family: ClassVar[str] = "mixed-exchange"
    segments: int
    direct: Timetable
    grouped: GroupedExchange
    nics: tuple[int, ...]
    part: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "grouped", replace(self.grouped, segments=self.segments))

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        (_, direct, size), (_, grouped, rest) = self.parts(cluster, nbytes)
        beside = [self.grouped.lower(grouped, rest)] if rest else []
        return _beside(cluster, [self.direct.lower(direct, size), *beside])

    def parts(self, cluster: Cluster, nbytes: int) -> list[tuple[Recipe, Cluster, int]]:
        """Both recipes, what each runs on, and how many bytes it has, the first part first."""
        cut = granule((1 - self.part) * nbytes, nbytes)
        direct, grouped = divided(cluster, self.nics)
        return [(self.direct, direct, cut), (self.grouped, grouped, nbytes - cut)]

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        most = max(len(server.nics) for server in cluster.servers)
        fits = all(type(i) is int and 0 <= i < most for i in self.nics) and list(self.nics) == sorted({*self.nics})
        demand(fits and 0 < len(self.nics) < most, "nics", f"places below {most} in order, not all", self.nics)
        demand(0 < self.part < 1, "part", "above 0, below 1", self.part)
        demand(list(self.grouped.groups) == pod_numbers(cluster), "groups", "the pods", self.grouped.groups)
        for own, on, _ in self.parts(cluster, 0):
            own.check(on)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """The busiest NIC's work, or the busiest uplink's."""
        each = [own.fluid_s(on, size) for own, on, size in self.parts(cluster, nbytes)]
        return max(*each, self.uplink_s(cluster, nbytes))

    def uplink_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds that the busiest uplink needs for all that crosses it."""
        pods, finals = pod_numbers(cluster), self.grouped.finals
        across = zip(direct_across(pods, self.direct.shares), finals, uplinks(cluster, pods), strict=True)
        return nbytes * max(
            ((1 - self.part) * one + self.part * (1 + (len(finals) - 2) * final)) / uplink
            for one, final, uplink in across
            if uplink is not None
        )

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {
            "segments": self.segments,
            "direct": self.direct.content(),
            "grouped": {name: value for name, value in self.grouped.content().items() if name != "segments"},
            "nics": list(self.nics),
            "part": str(self.part),
        }

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        grouped = GroupedExchange.read({**raw["grouped"], "segments": raw["segments"]})
        return cls(raw["segments"], Timetable.read(raw["direct"]), grouped, tuple(raw["nics"]), exact(raw["part"]))

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Both parts."""
        direct, grouped = divided(cluster, self.nics)
        places = ", ".join(map(str, self.nics))
        return [
            ("in one level", f"{float(1 - self.part) * 100:.4g} % of the data, by all other NICs"),
            *self.direct.describe(direct),
            ("in two levels", f"{float(self.part) * 100:.4g} % of the data, by NICs {places} of every server"),
            *self.grouped.describe(grouped),
        ]


def divided(cluster: Cluster, nics: Sequence[int]) -> tuple[Cluster, Cluster]:
    """The cluster as if the NICs at these places were dead, and as if all others were. Uplinks are as they were."""
    kinds = {id(server.nics): server.nics for server in cluster.servers}  # most servers share theirs
    none, found = Fraction(0), []
    for kept in (False, True):
        own: dict[int, tuple[Nic, ...]] = {
            kind: tuple(
                nic if (i in nics) == kept else replace(nic, out_rate=none, in_rate=none) for i, nic in enumerate(mine)
            )
            for kind, mine in kinds.items()
        }
        servers = tuple(replace(server, nics=own[id(server.nics)]) for server in cluster.servers)
        found.append(replace(cluster, servers=servers, pristine=cluster.fault_free))
    return found[0], found[1]


def _beside(cluster: Cluster, parts: Sequence[Schedule]) -> Schedule:
    """Schedules of bytes that follow each other, whose ports are different ones of `cluster`."""
    routes = Routes(cluster)
    table: list[Route] = []
    columns: dict[str, list[np.ndarray[Any, Any]]] = {}
    base = start = 0
    for part in parts:
        port = [routes.port_index[each.name] for each in part.ports]
        for name, column in (
            ("route", part.route + len(table)),
            ("offset", part.offset + start),
            ("waits", np.diff(part.dep_ptr)),
            ("dep", part.dep_idx + base),
            ("place", (np.arange(len(part)) + 0.5) / max(1, len(part))),
            *((name, getattr(part, name)) for name in ("length", "reduce", "stage", "segment")),
        ):
            columns.setdefault(name, []).append(column)
        for route in part.routes:
            lanes = (replace(lane, out=port[lane.out], into=port[lane.into]) for lane in route.lanes)
            table.append(replace(route, lanes=tuple(lanes)))
        base, start = base + len(part), start + part.nbytes
    c = {name: np.concatenate(own) for name, own in columns.items()}
    # About in order of time, as each part is: who looks ahead a few rows sees both.
    order = np.argsort(c["place"], kind="stable")
    now = np.empty(base, np.int64)
    now[order] = np.arange(base)
    waiting, on = now[np.repeat(np.arange(base), c["waits"])], now[c["dep"]]
    return Schedule(
        ranks=len(cluster.ranks),
        nbytes=start,
        ports=routes.ports,
        routes=tuple(table),
        route=c["route"][order].astype(np.int32),
        offset=c["offset"][order],
        length=c["length"][order],
        reduce=c["reduce"][order],
        stage=c["stage"][order],
        segment=c["segment"][order],
        dep_ptr=np.concatenate(([0], np.cumsum(c["waits"][order]))).astype(np.int64),
        dep_idx=on[np.lexsort((on, waiting))],
        links=routes.links,
    )
