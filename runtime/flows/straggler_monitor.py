"""Recent rates of a route's lanes, compared between similar lanes: a lane that has become slow is given less.

Lanes that the plan uses alike (`symmetry_classes`) finish their work at the same time. If one achieves a lower rate
than another, over the time in which it has data, it would delay all the others. So its share is lowered in proportion,
until it keeps up again or the next plan uses its rate.

A lane is compared with similar lanes, not with the plan's bytes per second. Real NICs have other rates, and a slow
peer, or a process that wakes up late, makes all lanes slow alike.

Nothing is counted chunk by chunk: the flows' counters are compared at intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from optcc.runtime.flows.ends import Out

SLOW = 2 / 3
"""A lane below this part of its siblings' rate is slow. One chunk less of `CHUNKS` leaves 3/4, which proves nothing."""
FAST = 0.9
"""A slow lane at or above this part is slow no more: an even share then takes at most a ninth longer than the others'.
Between the two limits nothing changes, so that a lane near one of them does not change sides with every look."""
LEAST = 1 / 32
"""Least part of its share that a lane keeps: an idle lane cannot be measured."""
LOOKS, CHUNKS = 8, 4
"""Least looks and chunks of a window. A lane is judged by two windows, the last whole one and the current one. The
window's fastest lane must have brought `CHUNKS`: with fewer, one chunk more or less decides."""
LONGEST = 16
"""Most looks that one look counts for: the process may have been stopped."""
ROUTES = 8
"""With more routes than this in use, looks are rarer in proportion, so that looking takes no more of the time."""


@dataclass
class WatchedFlow:
    """A flow of a route. `kind` : it is held against those of the same kind, see `symmetry_classes`."""

    out: Out
    kind: int
    acked: int = 0  # chunks over by the last look
    brought: int = 0  # bytes, likewise
    chunks: int = 0  # over in this window
    nbytes: int = 0  # likewise
    seconds: float = 0.0  # in this window in which there was something to bring
    old_nbytes: int = 0  # in the window before
    old_seconds: float = 0.0

    def wake(self) -> None:
        """What has come over by now does not count any more."""
        self.acked, self.brought = self.out.sender.acked, self.out.brought

    def look(self, seconds: float) -> bool:
        """What has come over in the `seconds` since the last look; whether there is more to bring."""
        out, sender = self.out, self.out.sender
        busy = sender.posted > sender.acked or bool(out.queue)
        if busy or sender.posted > self.acked:
            self.seconds += seconds if busy else seconds / 2  # it was through with it at some time since
            self.nbytes += out.brought - self.brought
            self.chunks += sender.acked - self.acked
            self.wake()
        return busy

    @property
    def rate(self) -> float:
        """Bytes per second with something to bring, in both windows; 0: there was nothing."""
        seconds = self.seconds + self.old_seconds
        return (self.nbytes + self.old_nbytes) / seconds if seconds else 0.0

    def part(self, best: float) -> float:
        """Of the rate `best` it brings at most this part: as if the chunk under way were over, too. inf: not known."""
        seconds = self.seconds + self.old_seconds
        under_way = len(self.out.kept[0].payload) if self.out.kept else 0
        return (self.nbytes + self.old_nbytes + under_way) / seconds / best if seconds else math.inf

    def turn(self) -> None:
        """A window is over."""
        self.old_nbytes, self.old_seconds = self.nbytes, self.seconds
        self.nbytes, self.seconds, self.chunks = 0, 0.0, 0


class _Watch:
    """What is known of the lanes of a route."""

    def __init__(self, lanes: Sequence[WatchedFlow]) -> None:
        self.lanes, self._looks, self._known, self._at = lanes, 0, False, 0.0

    def wake(self, now: float) -> None:
        """From now on there is something to bring."""
        self._at = now
        for lane in self.lanes:
            lane.wake()

    def look(self, now: float, longest: float) -> bool:
        """At all lanes; whether there is more to bring."""
        seconds, self._at = min(now - self._at, longest), now
        self._looks += 1
        busy = [lane.look(seconds) for lane in self.lanes]
        return any(busy)

    def judge(self, lanes: Sequence[WatchedFlow], factors: dict[int, float]) -> None:
        """Which of these lanes are slow, and by how much."""
        turn = self._looks >= LOOKS and max(lane.chunks for lane in self.lanes) >= CHUNKS
        kinds: dict[int, list[WatchedFlow]] = {}
        for lane in lanes if self._known else ():
            kinds.setdefault(lane.kind, []).append(lane)
        for like in kinds.values():
            best = max(lane.rate for lane in like)
            for lane in like if best and len(like) > 1 else ():
                part, before = lane.part(best), factors.get(lane.out.number, 1.0)
                if part == math.inf:
                    part = (1 + turn) * before  # nothing was given to it: it is given more, to be measured
                if part < (SLOW if before == 1 else FAST):
                    factors[lane.out.number] = max(part, LEAST)
                else:
                    factors.pop(lane.out.number, None)
        if turn:
            self._looks, self._known = 0, True
            for lane in self.lanes:
                lane.turn()


class StragglerMonitor:
    """Of one rank's routes.

    Parameters
    ----------
    every : seconds from look to look at least; nobody is woken for one
    at_home : whether a flow is on its home wire; others are not judged

    Attributes
    ----------
    factors : of the flows that are slow, the part of its share that each is to be given
    look_at : when the next look is due; inf: nothing to look at
    """

    def __init__(self, every: float, at_home: Callable[[Out], bool]) -> None:
        self._every, self._at_home = every, at_home
        self._busy: dict[Hashable, _Watch] = {}
        self._idle: dict[Hashable, _Watch] = {}
        self.factors: dict[int, float] = {}
        self.look_at = math.inf

    def begin(self) -> None:
        """Nothing is to be brought any more: what was has come over."""
        self._idle.update(self._busy)
        self._busy.clear()
        self.look_at = math.inf

    def wake(self, route: Hashable, now: float, lanes: Callable[[], Sequence[WatchedFlow]]) -> None:
        """From now on there is something to bring on a route; of `lanes` when it is new."""
        if route in self._busy:
            return
        watch = self._idle.pop(route, None) or _Watch(lanes())
        watch.wake(now)
        self._busy[route] = watch
        self.look_at = min(self.look_at, now + self._every)

    def look(self, now: float, refresh: Callable[[Out], None]) -> None:
        """At all routes on which there is something to bring. `refresh` : bring what a flow knows up to date."""
        for route, watch in list(self._busy.items()):
            for lane in watch.lanes:
                if lane.out.sender.outstanding:
                    refresh(lane.out)
            if not watch.look(now, LONGEST * self._every):
                self._idle[route] = self._busy.pop(route)
            watch.judge([lane for lane in watch.lanes if self._at_home(lane.out)], self.factors)
        self.look_at = now + self._every * (1 + len(self._busy) // ROUTES) if self._busy else math.inf
