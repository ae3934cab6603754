"""Which NIC to repair first: what the bound gains by each failed NIC coming back, and per unit of rate at each NIC.

The gain of a repair is the difference of two bounds, exact. The gain per rate at a live NIC comes from the
certificate's prices. By linear-programming duality a resource's price is the first-order change of the reachable rate R
per unit of its rate, and T = n / R. Where several certificates hold at once (a tie) a price is the gain for raising all
that is tied together. A dead NIC has no price; its repair tells.

Where several servers are equally slow, or one rail is dead everywhere, no repair alone lowers the bound. Then all
failed parts are reduced to a set that does: parts are left out one by one as long as the rest still lowers it. The
bound never rises when a NIC is repaired, so that every part of the set that remains is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.theory.bounds import lower_bound
from optcc.values.bound import LARGEST_GAP, Bound, ProgramCertificate
from optcc.values.cluster import Cluster, Nic


@dataclass(frozen=True)
class Repair:
    """A degraded NIC: the bound once it alone is repaired.

    saved_s : seconds by which the repair lowers the bound; gain_s_per_rate : the same per byte per second restored
    """

    nic: str
    repaired_s: Fraction
    saved_s: Fraction
    gain_s_per_rate: Fraction


Place = tuple[int, int]
"""(server, NIC), as indices."""
MOST_STEPS = 8
"""Steps of joint advice: as many as are read. Once they are done the bound tells the next."""


@dataclass(frozen=True)
class JointRepair:
    """NICs to repair together, after those of the steps before.

    repaired_s : the bound once this step is done, seconds; saved_s : by which it lowers the bound, seconds
    """

    nics: tuple[str, ...]
    repaired_s: Fraction
    saved_s: Fraction


def repair_first(cluster: Cluster, nbytes: int) -> tuple[Repair, ...]:
    """Every degraded NIC, the one whose repair lowers the bound most first. Empty when nothing has failed."""
    bounds = _Bounds(cluster, nbytes)
    now = bounds.seconds(cluster)
    repairs = []
    for place in _degraded(cluster):
        after, saved = bounds.once_repaired(cluster, [place], now)
        repairs.append(Repair(_name(cluster, place), after, saved, saved / _restored(cluster, place)))
    return tuple(sorted(repairs, key=lambda r: (-_rounded(r.saved_s, bounds.noise), r.nic)))


def repair_together(cluster: Cluster, nbytes: int) -> tuple[JointRepair, ...]:
    """What to repair step by step, at most `MOST_STEPS`, until each repair that is left saves something alone.

    A step is the part that saves most, or where none does alone, a minimal set: without any one of its parts it saves
    nothing. A part is a NIC, or a rail that has failed on every server. Empty when nothing would save anything.
    """
    bounds = _Bounds(cluster, nbytes)
    steps = list[JointRepair]()
    while (failed := _degraded(cluster)) and len(steps) < MOST_STEPS:
        now = bounds.seconds(cluster)
        if all(bounds.once_repaired(cluster, [place], now)[1] > 0 for place in failed):
            break
        parts = _parts(cluster, failed)
        best = max(parts, key=lambda part: bounds.once_repaired(cluster, part, now)[1])
        chosen = [best] if bounds.once_repaired(cluster, best, now)[1] > 0 else _minimal(bounds, cluster, parts, now)
        places = sorted(place for part in chosen for place in part)
        after, saved = bounds.once_repaired(cluster, places, now)
        if saved <= 0:
            break
        steps.append(JointRepair(tuple(_name(cluster, place) for place in places), after, saved))
        cluster = _repaired(cluster, places)
    return tuple(steps)


def _minimal(bounds: _Bounds, cluster: Cluster, parts: list[list[Place]], now: Fraction) -> list[list[Place]]:
    """Parts that save something together, one after the other left out that is not needed for it."""
    chosen = parts
    # What restores least goes first, then the last NICs of a server, so that NICs of one name remain.
    for part in sorted(parts, key=lambda part: (_restored(cluster, part[0]), -part[0][1], -part[0][0])):
        fewer = [other for other in chosen if other != part]
        if bounds.once_repaired(cluster, [place for other in fewer for place in other], now)[1] > 0:
            chosen = fewer
    return chosen


def _parts(cluster: Cluster, failed: list[Place]) -> list[list[Place]]:
    """Failed NICs one by one, but those of a rail that has failed on every server together: its switch is at fault."""
    if not cluster.fabric.rails:
        return [[place] for place in failed]
    rail_of = {
        (s, i): i if nic.rail is None else nic.rail
        for s, server in enumerate(cluster.servers)
        for i, nic in enumerate(server.nics)
    }
    live = {rail_of[place] for place in rail_of.keys() - set(failed)}
    rails = dict[int, list[Place]]()
    for place in failed:
        rails.setdefault(rail_of[place], []).append(place)
    return [part for rail, of in rails.items() for part in ([[place] for place in of] if rail in live else [of])]


class _Bounds:
    """Bounds of a cluster's repairs. Servers that differ in name only make the same bound, which is found once."""

    def __init__(self, cluster: Cluster, nbytes: int) -> None:
        self._nbytes = nbytes
        self._known = dict[object, Fraction]()
        bound = lower_bound(cluster, nbytes)
        self._known[_shape(cluster)] = bound.seconds
        # The program's bounds are known to the certificate's gap: what is closer than that is a tie, or saves nothing.
        self.noise = bound.seconds * LARGEST_GAP if isinstance(bound.certificate, ProgramCertificate) else Fraction(0)

    def seconds(self, cluster: Cluster) -> Fraction:
        shape = _shape(cluster)
        if shape not in self._known:
            # The bound of the fault-free cluster, which `lower_bound` adds, is not needed here.
            self._known[shape] = lower_bound(replace(cluster, pristine=None), self._nbytes).seconds
        return self._known[shape]

    def once_repaired(self, cluster: Cluster, places: list[Place], now: Fraction) -> tuple[Fraction, Fraction]:
        """(the bound once these NICs are whole, by how much it is below `now`: 0 within the program's gap)."""
        after = self.seconds(_repaired(cluster, places))
        return (now, Fraction(0)) if abs(now - after) <= self.noise else (after, now - after)


def _shape(cluster: Cluster) -> object:
    return tuple(
        sorted(
            (
                server.pod or "",
                server.gpus,
                server.nvlink_rate,
                *((_number(nic.rail), _number(nic.gpu), nic.out_rate, nic.in_rate) for nic in server.nics),
            )
            for server in cluster.servers
        )
    )


def _number(place: int | None) -> int:
    return -1 if place is None else place


def _degraded(cluster: Cluster) -> list[Place]:
    return [
        (s, i)
        for s, (now, before) in enumerate(zip(cluster.servers, cluster.fault_free.servers, strict=True))
        for i, (nic, whole) in enumerate(zip(now.nics, before.nics, strict=True))
        if nic != whole
    ]


def _repaired(cluster: Cluster, places: list[Place]) -> Cluster:
    whole = cluster.fault_free
    for server, i in places:
        cluster = cluster.with_nic(server, i, whole.servers[server].nics[i])
    return cluster


def _restored(cluster: Cluster, place: Place) -> Fraction:
    nic, whole = _nic(cluster, place), _nic(cluster.fault_free, place)
    return max(whole.out_rate - nic.out_rate, whole.in_rate - nic.in_rate)


def _nic(cluster: Cluster, place: Place) -> Nic:
    return cluster.servers[place[0]].nics[place[1]]


def _name(cluster: Cluster, place: Place) -> str:
    return f"{cluster.servers[place[0]].name}/{_nic(cluster, place).name}"


def _rounded(seconds: Fraction, noise: Fraction) -> Fraction:
    return round(seconds / noise) * noise if noise else seconds


def gains_per_rate(cluster: Cluster, bound: Bound) -> dict[str, Fraction]:
    """SERVER/NIC -> seconds that the bound falls per byte per second more, out and in, to first order; zeros left
    out.
    """
    cert, gains = bound.certificate, dict[str, Fraction]()
    if isinstance(cert, ProgramCertificate):
        for price in cert.prices:
            # The price is that of all `count` equal resources together.
            gain = price.gain / price.count * bound.seconds / cert.rate
            for name in price.nics:
                gains[name] = gains.get(name, Fraction(0)) + gain
    elif cert.nbytes:
        for r in cert.ranks:
            for nic in cluster.ranks[r].nics:
                gains[f"{cluster.ranks[r].name}/{nic.name}"] = bound.seconds / cert.rate
    return gains
