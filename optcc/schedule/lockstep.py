"""Direct exchange in lockstep: several servers lack NICs, none starves, and all NICs send chunks of one length.

Where pairs have chunks of unequal length, as in `timetable`, a sender that is early meets another one at a receiver.
Here every chunk fills its step, so that nobody does: without costs such a plan takes the bound's time exactly wherever
the number of steps suits the numbers of NICs, and no rail has so few ranks that these have too little for each other
(`lockstep_steps`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.assemble import cuts_by
from optcc.schedule.columns import GRANULE, Schedule
from optcc.schedule.lockstep_steps import Steps, fewest_steps, hub_shares, lockstep_steps
from optcc.schedule.many_objects import no_collection
from optcc.schedule.pods import direct_uplink_s
from optcc.schedule.recipe import Recipe, demand, demand_segments
from optcc.schedule.routes import Routes
from optcc.schedule.timetable_nics import live_nics, nic_ports, nic_rate, of_one_pace, told_pace
from optcc.schedule.timetable_rows import NEAR, Kind, Piece, Rows, dependencies, scheduled
from optcc.schedule.timetable_slots import TICKS, Slot
from optcc.schedule.timetable_split import common_rails

MAX_STEPS, MAX_VARIANTS, MOST_RANKS = 1024, 256, 128
MAX_CHUNKS = 2**18
"""Steps times NICs: so many take some GB and some ten seconds."""
LATER = 8 * GRANULE
"""Cuts between data are so much later than those between results, or rounding would make a result wait for data that
comes a chunk later."""


@dataclass(frozen=True)
class LockstepExchange(Recipe):
    """Direct exchange in lockstep.

    Attributes
    ----------
    segments : steps of the whole plan; as many as every rank needs to serve all others once, if that is more
    variant : what settles ties between pairs that are equally far behind; plans differ by little in time
    """

    family: ClassVar[str] = "lockstep-exchange"
    segments: int
    variant: int = 0

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        with no_collection():
            used, routes = lockstep_nics(cluster), Routes(cluster)
            order, steps = self._steps(used)
            section = list(pairwise(cuts_by(0, nbytes, _shares(used)).tolist()))
            found: list[tuple[int, ...]] = []
            for a, z in permutations(range(len(order)), 2):
                i, k = order[a], order[z]
                own = Piece(Kind.RAW, k, *section[k]), Piece(Kind.RESULT, i, *section[i])
                # With few steps some pairs may have had no turn.
                places = steps.chunks.get((a, z)) or [(steps.length // 2, min({*used[i]} & {*used[k]}))]
                weights = [1] * len(places)
                if (a, z) in steps.results:  # data and result each in a chunk of its own
                    places = [*places, (steps.results[a, z], places[0][1])]
                    weights = [piece.stop - piece.start for piece in own]
                slots = [
                    Slot(TICKS * at // steps.length, TICKS // steps.length, rail, weight)
                    for (at, rail), weight in zip(places, weights, strict=True)
                ]
                found += ((i, k, *part) for part in cut(*own, slots))
            rows = Rows(*np.array(found, np.int64).reshape(-1, len(Rows._fields)).T)
            ports = nic_ports(cluster, routes, used)
            return scheduled(rows, dependencies(rows, {}), ports, routes, nbytes, ordered=True)

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        demand(applies_lockstep(cluster), "cluster", "servers that lack NICs, all of them hubs", "another one")
        demand_segments(self.segments)
        nics = list(map(len, lockstep_nics(cluster)))
        most, fewest = min(MAX_STEPS, MAX_CHUNKS // sum(nics)), fewest_steps(nics)
        demand(self.segments <= most, "segments", f"1 to {most}", self.segments)
        demand(fewest <= most, "cluster", f"ranks that serve all others in {most} steps", f"{fewest} steps")
        demand(0 <= self.variant < MAX_VARIANTS, "variant", f"0 to {MAX_VARIANTS - 1}", self.variant)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """What the busiest NIC needs: the bound where the number of steps suits, a little more elsewhere."""
        used = lockstep_nics(cluster)
        (order, steps), shares = self._steps(used), _shares(used)
        loads = Counter[tuple[str, int, int]]()
        for (a, z), chunks in steps.chunks.items():
            part = (shares[order[a]] + shares[order[z]]) / len(chunks)
            for rail, many in Counter(rail for _, rail in chunks).items():
                loads["out", a, rail] += part * many  # type: ignore[assignment]
                loads["in", z, rail] += part * many  # type: ignore[assignment]
        return max(max(loads.values()) * nbytes / nic_rate(cluster), direct_uplink_s(cluster, shares, nbytes))

    def _steps(self, used: Sequence[Mapping[int, object]]) -> tuple[list[int], Steps]:
        """The ranks in order of their NICs, so that steps are the same whichever have lost some; and these."""
        order = sorted(range(len(used)), key=lambda rank: (len(used[rank]), [*used[rank]], rank))
        fewest = fewest_steps(list(map(len, used)))
        live = tuple(tuple(used[rank]) for rank in order)
        return order, lockstep_steps(live, max(self.segments, fewest), self.variant)

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {"segments": self.segments, "variant": self.variant}

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        return cls(segments=raw["segments"], variant=raw["variant"])

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Who gathers what, and the steps."""
        used = lockstep_nics(cluster)
        shares, (_, steps) = _shares(used), self._steps(used)
        kinds = sorted(Counter(shares).items())
        parts = ", ".join(f"{count} of {100 * float(share):.4g} %" for share, count in kinds)
        return [
            ("hubs", f"{parts}, each exchanges directly with all"),
            ("steps", f"{steps.length}, chunks of one length; one NIC for each transfer"),
            *told_pace(cluster),
        ]


def applies_lockstep(cluster: Cluster) -> bool:
    """Two ranks or more have fewer NICs than others, all of one pace, none so few that it alone sets the bound; any two
    have a rail in common."""
    if not of_one_pace(cluster) or not 3 <= len(cluster.ranks) <= MOST_RANKS:
        return False
    used = lockstep_nics(cluster)
    nics = list(map(len, used))
    return hub_shares(nics) is not None and common_rails([tuple(mine) for mine in used])


def lockstep_nics(cluster: Cluster) -> list[dict[int, tuple[int, ...]]]:
    """Of each rank the rails that it serves -> its NICs, as of `live_nics`. On one fabric, where any NIC reaches any,
    ranks serve the first rails, so that those with fewer NICs have all of theirs in common with everybody."""
    live = live_nics(cluster)
    return live if cluster.fabric.rails else [dict(enumerate(mine.values())) for mine in live]


def _shares(used: Sequence[Mapping[int, object]]) -> tuple[Fraction, ...]:
    shares = hub_shares(list(map(len, used)))
    assert shares is not None, "some rank is the hub of nothing"
    return shares


def cut(raw: Piece, result: Piece, slots: Sequence[Slot]) -> list[tuple[int, ...]]:
    """A pair's data and then its result in shares by the slots' weights, as of `timetable_rows.cut`. A cut very near to
    where the data ends is there."""
    data, total = raw.stop - raw.start, sum(slot.weight for slot in slots)
    units = data + result.stop - result.start
    found: list[tuple[int, ...]] = []
    at = done = 0
    for place, (begin, _, nic, weight) in enumerate(slots if total else ()):
        done += weight
        until = units if done == total else units * done // total // GRANULE * GRANULE
        # The last one ends with the result, however small that is.
        if done < total and abs(until - data) <= units * weight // total // NEAR:
            until = data
        elif until < data:
            until = min(data, until + LATER)
        for piece, low in ((raw, 0), (result, data)):
            one, other = max(at - low, 0), min(until - low, piece.stop - piece.start)
            if one < other:
                found.append((begin, piece.kind, piece.hub, piece.start + one, piece.start + other, nic, place))
        at = max(at, until)
    return found
