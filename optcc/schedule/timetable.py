"""Direct exchange by timetable: servers have equal NICs or fewer of them, all of one pace, and nobody has to wait.

Hubs are those of `exchange`. Here each transfer takes one NIC, and each rail has a timetable (`timetable_slots`): in
step t everybody sends to the rank d(t) further, a permutation, so that senders never meet at a receiver. With one slow
server that works out exactly: its rails are all-to-alls of all servers with equally much for every pair, and the other
rails the same among full servers. Where the bound is set by all, every NIC is busy all the time. With r rounds in each
half a NIC pays for 2r(P-1) chunks; besides these and two latencies nothing is lost, if rounds are enough for what is
gathered to be there when it is due. With several slow servers pairs have nearly equally much (`timetable_split`), and
senders meet now and then; or each rail's steps are matchings of those who have something left (`timetable_matchings`):
nobody meets, and NICs pay for more chunks.

What a rank has for another one, first its own data for that one's section, then the result of its own section, follows
the pair's slots of the whole plan in order of time. Between equal ranks a half is filled by each. A slow server, the
hub of less, sends data for longer than a half and gets results sooner; whoever passes on or needs what it sends does so
later still (docs/schedules.md), so that nothing has to go by way of it.

A slow server that alone sets the bound is a hub of nothing: it would have results to receive from the very beginning,
before any can exist. It adds last to half of the data instead (`via`): first it receives sums of what the others have,
and each of its halves is cut by itself. For one of that kind rounds begin small and grow (`growth`), and it is sent in
each slot what exists by then (`timetable_ramp`). Or steps are found one after the other (`timetable_greedy`): where
others are slow, too, no rounds suit all. These add last to a little as well then, since results of what goes by way of
the first come late. The second half is the first one's mirror image in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate, pairwise, permutations
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.assemble import granule
from optcc.schedule.columns import Schedule
from optcc.schedule.many_objects import no_collection
from optcc.schedule.pods import direct_uplink_s, in_turns, pod_numbers
from optcc.schedule.recipe import Recipe, demand, demand_segments, exact
from optcc.schedule.routes import Routes
from optcc.schedule.timetable_greedy import UP, greedy_slots, longest_step, starving, step_ends
from optcc.schedule.timetable_lanes import MOST_LANES, Lanes, in_lanes, nics_of, told_lanes
from optcc.schedule.timetable_matched import MOST_MATCHED
from optcc.schedule.timetable_nics import applies, have_spare_time, live_nics, nic_ports, nic_rate, reduced, told_pace
from optcc.schedule.timetable_pairs import by_matchings, by_offsets
from optcc.schedule.timetable_ramp import UNIT, sums_in_time
from optcc.schedule.timetable_rows import Kind, Piece, Rows, cut, dependencies, joined, on_leash, scheduled
from optcc.schedule.timetable_slots import (
    HALF,
    Slot,
    full_rounds,
    growing_rounds,
    growing_steps,
    in_time,
    mirrored,
    whole,
)
from optcc.schedule.timetable_split import CLOSE, rail_shares

MAX_GROWTH, MAX_ROUNDS, MAX_CHUNK, MAX_TURNS = 16, 256, Fraction(1, 16), 64
SPAN = 2**24
"""The longest round takes at most so many times as long as the shortest one."""
IN_TIME = Fraction(999, 1000)
"""Of what a slow rank that sets the bound alone can receive in time: the last sums are late otherwise (measured)."""


@dataclass(frozen=True)
class Timetable(Recipe):
    """Direct exchange by timetable.

    Attributes
    ----------
    segments : rounds in each half
    shares : each rank's part of the data as a hub, sum 1
    via : (slow rank, the part of the full ranks' data that it adds last to), in all at most 1. A rank that is the hub
        of nothing is one of them, and with `growth` it does so for all others' data
    growth : 0: every rail serves every pair once in a round. Otherwise, with one hub of nothing, one rail of each kind
        serves it, a round takes `growth` times as long as the one before, and another one follows them, which evens out
        what pairs have had
    matched : 0: steps are equal offsets. 1: matchings, of which one serves a pair, for about as long as it needs.
        Otherwise as many matchings as that takes exactly, less those that are shorter than 1/matched of a round
    sparse : rails that join the same ranks share the steps of a round, so that a pair has fewer, larger chunks
    stepped : not rounds but `segments` steps, found one after the other, each growing by `growth` at first
    margin, chunk : of these, the parts of a half from the end of a slot to when its bytes count, and that a chunk costs
    turns : of these, in how many turns the parts of a section follow each other that several add last to
    lanes : of each NIC at the pace; one that is slower has fewer
    """

    family: ClassVar[str] = "timetable"
    segments: int
    shares: tuple[Fraction, ...]
    via: tuple[tuple[int, Fraction], ...] = ()
    growth: Fraction = Fraction(0)
    matched: int = 0
    sparse: bool = False
    margin: Fraction = Fraction(0)
    chunk: Fraction = Fraction(0)
    stepped: bool = False
    turns: int = 1
    lanes: int = 1

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        with no_collection():
            routes, on = Routes(cluster), in_lanes(cluster, self.lanes)
            rows, via_end = self._rows(on, nbytes)
            ports = nic_ports(cluster, routes, nics_of(live_nics(on), self.lanes))
            held, live = None, [tuple(mine) for mine in live_nics(on)]
            if self.stepped and have_spare_time([*map(len, live)]):
                length = longest_step(self.segments, self.growth)
                if length > (self.margin + self.chunk) * HALF:  # there is time to hear of the step before
                    held = on_leash(rows, starving(live, self.shares), length)
            pairs = dependencies(rows, via_end)
            return scheduled(rows, pairs, ports, routes, nbytes, ordered=self.stepped, held=held)

    @property
    def _ranks(self) -> int:
        return len(self.shares)

    def _rows(self, cluster: Cluster, nbytes: int) -> tuple[Rows, dict[int, int]]:
        """All transfers, and where in each full hub's section the parts by way of slow ranks end."""
        ranks, times, live = self._ranks, self._times(cluster), live_nics(cluster)
        adding = dict(self.via)
        borders = [granule(end * nbytes, nbytes) for end in accumulate(self.shares[:-1], initial=Fraction(0))]
        section = list(pairwise([*borders, nbytes]))
        via: dict[int, list[tuple[int, tuple[int, int]]]] = {}  # hub -> (slow rank, bytes that it adds last to)
        plain: dict[int, tuple[int, int]] = {}
        for r, (low, high) in enumerate(section):
            own = self._adding_last(r)
            ends = accumulate((part for _, part in own), initial=Fraction(0))
            cuts = [granule(low + part * (high - low), nbytes) for part in ends]
            via[r] = list(zip((rank for rank, _ in own), pairwise(cuts), strict=True))
            plain[r] = cuts[-1], high
        # The second half is handed out in the same order, what came first first; or each slow rank's parts are, and
        # these are among each other as in the first one's mirror image.
        late = {r: _turned(of) for r, of in via.items()} if self.stepped else via

        def gathered(i: int, k: int) -> list[Piece]:
            """What i sends to k in the first half."""
            own = [Piece(Kind.RAW, k, *part) for part in (*(part for s, part in via[k] if s != i), plain[k])]
            return own + [Piece(Kind.PARTIAL, i, *part) for s, part in via[i] if s == k]

        def spread(i: int, k: int) -> list[Piece]:
            """What i sends to k in the second half."""
            own = [Piece(Kind.RESULT, i, *part) for part in (plain[i], *(part for s, part in late[i] if s != k))]
            return [Piece(Kind.FINAL, k, *part) for s, part in late[k] if s == i] + own

        found: list[tuple[int, ...]] = []
        lanes = Lanes.of(cluster, self.lanes, 0 if self.growth else 2 * self.segments * (ranks - 1))
        for i, k in permutations(range(ranks), 2):
            # The second half is the first one's mirror image, in which k sends to i.
            slots, back = times(i, k), in_time(mirrored(times(k, i)), live[k])
            if self.lanes > 1:
                slots, back = lanes.serve(slots), lanes.serve(back)
            first, second = joined(gathered(i, k)), joined(spread(i, k))
            if i in adding or k in adding:
                found += ((i, k, *part) for part in cut(first, slots))
                found += ((i, k, begin + HALF, *rest) for begin, *rest in cut(second, back))
            else:  # what is too much for one half goes on into the other
                found += ((i, k, *part) for part in cut(first + second, whole(slots, back)))
        rows = Rows(*np.array(found, np.int64).reshape(-1, len(Rows._fields)).T)
        return rows, {r: low for r, (low, _) in plain.items() if via[r]}

    def _adding_last(self, hub: int) -> Sequence[tuple[int, Fraction]]:
        """Who adds last to which part of a hub's section, in order: slow ranks to full ones', and who starves among
        several first, and to everybody's."""
        slow = dict(self.via)
        if not self.stepped:
            return () if hub in slow else self.via
        first = {r: part for r, part in slow.items() if not self.shares[r] and r != hub}
        own = first if hub in slow else first | slow
        return [(r, part / self.turns) for r, part in own.items()] * self.turns

    def idle(self, cluster: Cluster) -> Fraction:
        """Of a growing timetable, the part of a half in which the slow rank's NICs have nothing to receive."""
        cluster = in_lanes(cluster, self.lanes)
        return self._greedy(cluster)[1] if self.stepped else self._sums(self._pairs(cluster))[1]

    def _greedy(self, cluster: Cluster) -> tuple[dict[tuple[int, int], list[Slot]], Fraction]:
        pods, live = pod_numbers(cluster), [tuple(mine) for mine in live_nics(cluster)]
        order = in_turns(pods)
        place = {rank: i for i, rank in enumerate(order)}
        adding = [[(place[rank], part) for rank, part in self._adding_last(hub)] for hub in order]
        slots, idle = greedy_slots(
            [live[rank] for rank in order],
            [self.shares[rank] for rank in order],
            adding,
            step_ends(self.segments, self.growth),
            self.margin,
            self.chunk,
            [pods[rank] for rank in order],
        )
        return {(order[i], order[k]): own for (i, k), own in slots.items()}, idle

    def _times(self, cluster: Cluster) -> Callable[[int, int], list[Slot]]:
        """The slots of the first half for what one rank sends another."""
        if self.stepped:
            slots, live = self._greedy(cluster)[0], live_nics(cluster)
            return lambda i, k: slots.get((i, k)) or [Slot(0, 1, min({*live[i]} & {*live[k]}), 1)]
        pairs = self._pairs(cluster)
        if not self.growth:
            # A rank that is the hub of nothing has nothing to receive at first.
            return lambda i, k: pairs(i, k) if self.shares[k] or len(pairs(i, k)) == 1 else pairs(i, k)[1:]
        sums, _ = self._sums(pairs)
        return lambda i, k: pairs(i, k) if self.shares[k] else sums[i]

    def _sums(self, pairs: Callable[[int, int], list[Slot]]) -> tuple[dict[int, list[Slot]], Fraction]:
        ((slow, via),) = self.via
        return sums_in_time(slow, self._ranks, via, pairs)

    def _pairs(self, cluster: Cluster) -> Callable[[int, int], list[Slot]]:
        """The slots that each pair has."""
        live = [tuple(mine) for mine in live_nics(cluster)]
        if self.matched:
            return by_matchings(self.shares, live, segments=self.segments, matched=self.matched, sparse=self.sparse)
        if not self.growth:
            return by_offsets(self.shares, live, partial(full_rounds, count=self.segments))
        steps = growing_steps(self.segments, self.growth, Fraction(self._ranks - 1, min(map(len, live))))

        def slots(nics: Sequence[int], peers: int) -> list[list[Slot]]:
            # Rails without the slow rank are half a rail ahead: a pair's slots alternate between the two kinds.
            half = peers // (2 * len(nics))
            return growing_rounds(nics, peers, steps, half if half > 1 and peers < self._ranks - 1 else 0)

        return by_offsets(self.shares, live, slots)

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        demand(1 <= self.lanes <= MOST_LANES, "lanes", f"1 to {MOST_LANES}", self.lanes)
        ranks, cluster = len(cluster.ranks), in_lanes(cluster, self.lanes)
        fits = "servers of equal NICs, of which some may lack some"
        demand(applies(cluster), "cluster", fits, f"{ranks} ranks")
        demand(len(self.shares) == ranks, "shares", f"{ranks} of them", len(self.shares))
        demand(min(self.shares) >= 0 and sum(self.shares) == 1, "shares", "parts of sum 1", sum(self.shares))
        slow, late = reduced(cluster), [r for r, _ in self.via]
        idle = {r for r, x in enumerate(self.shares) if not x}
        all_late = late == sorted({*late} & {*slow}) and idle <= {*late}
        demand(all_late, "via", "servers with fewer NICs in order, all hubs of nothing among them", late)
        parts = [part for _, part in self.via]
        demand(min(parts, default=0) >= 0 and sum(parts) <= 1, "via", "parts of at most 1 in all", parts)
        full = {x for r, x in enumerate(self.shares) if r not in slow}
        demand(len(full) == 1 and min(full) > 0, "shares", "equal ones of full ranks", full)
        kinds = {(tuple(mine), x) for mine, x in zip(live_nics(cluster), self.shares, strict=True)}
        alike = len(kinds) == len({nics for nics, _ in kinds})
        demand(alike, "shares", "equal ones of servers with the same NICs", "others")
        demand_segments(self.segments)
        demand(0 <= self.matched <= MOST_MATCHED, "matched", f"0 to {MOST_MATCHED}", self.matched)
        demand(not (self.growth and self.matched), "matched", "0 where rounds grow", self.matched)
        demand(self.matched > 0 or not self.sparse, "sparse", "false where steps are offsets", self.sparse)
        demand(0 <= self.margin < 1, "margin", "at least 0, less than 1", self.margin)
        demand(0 <= self.chunk <= MAX_CHUNK, "chunk", f"0 to {MAX_CHUNK}", self.chunk)
        for name in ("margin", "chunk"):
            demand(self.stepped or not getattr(self, name), name, "0 but with steps", getattr(self, name))
        demand(1 <= self.turns <= MAX_TURNS, "turns", f"1 to {MAX_TURNS}", self.turns)
        demand(self.stepped or self.turns == 1, "turns", "1 but with steps", self.turns)
        demand(self.growth > 0 or not self.stepped, "stepped", "false where nothing grows", self.stepped)
        if self.growth:
            lone = len(idle) == 1 or (self.stepped and len(idle) > 1)
            demand(lone, "growth", "0, or a rank that is the hub of nothing", f"{len(idle)} of them")
            demand(self.stepped or len(late) == 1, "via", "one rank where rounds grow", late)
            demand(1 <= self.growth <= MAX_GROWTH, "growth", f"0, or 1 to {MAX_GROWTH}", self.growth)
            own = [part for r, part in self.via if not self.shares[r]]
            within = Fraction(1, UNIT) <= min(own) and max(own) <= Fraction(1, 2)
            demand(within, "via", f"1/{UNIT} to 1/2 where rounds grow", own)
            most = deepest(self.growth, UP if self.stepped else Fraction(1))
            demand(self.segments <= most, "segments", f"1 to {most} with growth {self.growth}", self.segments)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """The busiest NIC's work with infinitely many rounds: exact where all of a server's NICs are equally busy; or
        the busiest uplink's, of pods."""
        return max(self._nics_s(in_lanes(cluster, self.lanes), nbytes), direct_uplink_s(cluster, self.shares, nbytes))

    def _nics_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        if self.matched:
            return self._matched_s(cluster, nbytes)
        live = [tuple(mine) for mine in live_nics(cluster)]
        if self.stepped:
            exact = max((1 + (self._ranks - 2) * x) / len(mine) for x, mine in zip(self.shares, live, strict=True))
            return exact * nbytes / nic_rate(cluster)
        share, members = dict(zip(live, self.shares, strict=True)), Counter(live)
        of_each = {nics: (1 + (self._ranks - 2) * x) / len(nics) for nics, x in share.items()}
        loads: Counter[tuple[tuple[int, ...], int]] = Counter()
        for (a, b), parts in rail_shares(members, {nics: float(x) for nics, x in share.items()}).items():
            for nic, part in parts.items():
                loads[a, nic] += (members[b] - (a == b)) * float(share[a] + share[b]) * part  # type: ignore[assignment]
        uneven = {end: load / float(of_each[end[0]]) for end, load in loads.items()}
        works = (of_each[nics] * (Fraction(by) if by > 1 + CLOSE else 1) for (nics, _), by in uneven.items())
        return max(works) * nbytes / nic_rate(cluster)

    def _matched_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """The busiest NIC's work: a pair's halves go by other rails than each other where rounds are sparse."""
        times, x, via = self._times(cluster), list(map(float, self.shares)), {r: float(part) for r, part in self.via}
        loads: Counter[tuple[int, int, str]] = Counter()
        for i, k in permutations(range(self._ranks), 2):
            # What i sends k in the first half, of what goes on into the other one a half; in the second half, the first
            # one's mirror image, k sends i as much.
            carried = (x[i] + x[k]) / 2
            if i in via or k in via:
                carried = x[k] + (via[k] * x[i] if i not in via else 0) - (via[i] * x[k] if k not in via else 0)
            slots = times(i, k)
            total = sum(slot.weight for slot in slots)
            for slot in slots if total else ():  # none: they have nothing for each other
                for rank, way in ((i, "out"), (k, "into"), (k, "out"), (i, "into")):
                    loads[rank, slot.nic, way] += carried * slot.weight / total  # type: ignore[assignment]
        live = live_nics(cluster)
        exact_s = max((1 + (self._ranks - 2) * x) / len(mine) for x, mine in zip(self.shares, live, strict=True))
        by = max(loads.values()) / float(exact_s)
        return exact_s * (Fraction(by) if by > 1 + CLOSE else 1) * nbytes / nic_rate(cluster)

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {
            "segments": self.segments,
            "shares": [str(x) for x in self.shares],
            "via": [[r, str(part)] for r, part in self.via],
            "growth": str(self.growth),
            "matched": self.matched,
            "sparse": self.sparse,
            **{name: str(part) for name in ("margin", "chunk") if (part := getattr(self, name))},
            **({"stepped": True} if self.stepped else {}),
            **{name: many for name in ("turns", "lanes") if (many := getattr(self, name)) > 1},
        }

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        return cls(
            segments=raw["segments"],
            shares=tuple(exact(x) for x in raw["shares"]),
            via=tuple((r, exact(part)) for r, part in raw["via"]),
            growth=exact(raw["growth"]),
            matched=raw["matched"],
            sparse=raw["sparse"],
            margin=exact(raw.get("margin", "0")),
            chunk=exact(raw.get("chunk", "0")),
            stepped=raw.get("stepped", False),
            turns=raw.get("turns", 1),
            lanes=raw.get("lanes", 1),
        )

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Who gathers what, who adds last, and the rounds."""
        rounds = f"{self.segments} in each half"
        if self.stepped:
            rounds = f"{self.segments} steps in each half, the first each {float(self.growth):.4g} times the one before"
        elif self.growth:
            rounds += f", each {float(self.growth):.4g} times as long as the one before"
        lines = [("hubs", f"{sum(x > 0 for x in self.shares)} of {self._ranks}, each exchanges directly with all")]
        slow, adding = reduced(in_lanes(cluster, self.lanes)), dict(self.via)
        for r in slow[:4]:
            own = f"hub of {float(self.shares[r]) * 100:.4g} %"
            own += f", adds last to {float(adding[r]) * 100:.4g} %" if r in adding else ""
            lines.append((cluster.ranks[r].name, own))
        if len(slow) > 4:
            lines.append(("more slow ranks", str(len(slow) - 4)))
        rounds += " of matchings" if self.matched else ""
        lines.append(("rounds", f"{rounds}; one NIC for each transfer"))
        return [*lines, *told_lanes(cluster, self.lanes), *told_pace(in_lanes(cluster, self.lanes))]


def _turned(parts: Sequence[tuple[int, tuple[int, int]]]) -> list[tuple[int, tuple[int, int]]]:
    """(rank, bytes) with the ranks in reverse order, but each rank's bytes in the same."""
    own = {rank: iter([part for r, part in parts if r == rank]) for rank in {rank for rank, _ in parts}}
    return [(rank, next(own[rank])) for rank, _ in reversed(parts)]


@lru_cache(maxsize=64)
def deepest(growth: Fraction, part: Fraction = Fraction(1)) -> int:
    """The most rounds if, of that part of them, one is so many times as long as the next."""
    return max((k for k in range(1, MAX_ROUNDS + 1) if growth ** int(part * k) <= SPAN), default=1)


def growing(cluster: Cluster, shares: tuple[Fraction, ...], growth: Fraction, segments: int) -> Timetable:
    """The growing timetable in which the slow rank is busy for as long both ways. Raises InputError where none is.

    While first sums are gathered it can send but not receive. If it has nothing to receive in u of a half, then it
    should receive via in 1 - u of a half and send 1 - via in all of it: via = (1 - u)/(2 - u).
    """
    recipe = Timetable(segments, shares, ((shares.index(Fraction(0)), Fraction(1, 2)),), growth)
    recipe.check(cluster)
    for _ in range(2):  # u depends a little on via
        idle = recipe.idle(cluster)
        part = IN_TIME * (1 - idle) / (2 - idle)
        recipe = replace(recipe, via=((recipe.via[0][0], part.limit_denominator(UNIT)),))
    return recipe
