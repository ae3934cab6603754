"""Which flow carries what: by the shares of the schedule, and by rates when these no longer hold.

A transfer is cut among its route's flows by the shares of the schedule. When some of these have lost their own wire,
new transfers are cut among the others; the lost ones carry only what they had begun. So a NIC's traffic spreads over
the remaining NICs, as their rates allow, until the next plan. A flow that is slow (`straggler_monitor`) is given less.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from optcc.runtime.engine.program import Move
from optcc.runtime.flows.ends import Out, Piece
from optcc.runtime.flows.straggler_monitor import StragglerMonitor, WatchedFlow
from optcc.runtime.flows.symmetry_classes import Span, lane_classes
from optcc.runtime.wires.layout import Layout
from optcc.schedule import Route
from optcc.schedule.columns import GRANULE


class Shares:
    """Those of one rank's outgoing flows.

    Parameters
    ----------
    lost : the wires that are lost, kept by somebody else
    every : seconds from look to look at how fast they are, at least
    """

    def __init__(
        self,
        layout: Layout,
        routes: Mapping[str, Sequence[Route]],
        outs: Mapping[int, Out],
        lost: Collection[int],
        every: float,
    ) -> None:
        self._layout, self._outs, self._lost = layout, outs, lost
        self._routes: dict[str, Sequence[Route]] = {}
        self._lanes_of: dict[str, Sequence[tuple[int, ...]]] = {}
        self._kinds: dict[str, list[list[int]]] = {}
        self._lanes: Sequence[tuple[int, ...]] = ()
        self._route: Sequence[Route] = ()
        # (route, length) -> its stripes by the plan's shares: transfers are alike, and each would pay for cutting.
        self._stripes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for name in routes:
            self.learn(name, routes[name], layout.lanes[name])
        self.monitor = StragglerMonitor(every, self._at_home)

    def learn(self, name: str, routes: Sequence[Route], lanes: Sequence[tuple[int, ...]]) -> None:
        """Another schedule; `lanes` : route -> the flow of each of its lanes."""
        self._routes[name], self._lanes_of[name] = routes, lanes
        self._kinds[name] = lane_classes(self._spans(name), self._layout.rates)

    def begin(self, name: str) -> None:
        """The next operation runs schedule `name`."""
        lanes, route = self._lanes_of[name], self._routes[name]
        if lanes is not self._lanes or route is not self._route:
            self._stripes.clear()
        self._name, self._lanes, self._route = name, lanes, route
        self.monitor.begin()

    def live(self, route: int) -> Sequence[int]:
        """The flows of a route that are at home; all of them when none is."""
        flows = self._lanes[route]
        if not self._lost:
            return flows
        return [flow for flow in flows if self._at_home(self._outs[flow])] or flows

    def cut(self, move: Move) -> list[tuple[int, int, int]]:
        """(flow, start, stop) of the stripes of a transfer."""
        factors = self.monitor.factors
        if not factors and not self._lost:
            return self._by_plan(move.route, move.length)
        live = self.live(move.route)
        if factors and not factors.keys().isdisjoint(live):
            cuts = self._level(move, live)
        elif len(live) < len(self._lanes[move.route]):
            cuts = self._recut(move, live)
        else:
            cuts = self._route[move.route].cuts(move.length)
        return [(flow, start, stop) for flow, (start, stop) in zip(live, pairwise(cuts), strict=True)]

    def _by_plan(self, route: int, length: int) -> list[tuple[int, int, int]]:
        stripes = self._stripes.get((route, length))
        if stripes is None:
            cuts = pairwise(self._route[route].cuts(length))
            stripes = [(flow, start, stop) for flow, (start, stop) in zip(self._lanes[route], cuts, strict=True)]
            self._stripes[route, length] = stripes
        return stripes

    def _recut(self, move: Move, live: Sequence[int]) -> list[int]:
        """Where to cut a transfer among the flows that are left, in proportion to their shares."""
        lanes = self._route[move.route].lanes
        share = [lane.share for lane, flow in zip(lanes, self._lanes[move.route], strict=True) if flow in live]
        total = sum(share)
        cuts, done = [0], Fraction(0)
        for part in share[:-1]:
            done += part
            cuts.append(min(move.length, round(done / total * move.length / GRANULE) * GRANULE))
        return [*cuts, move.length]

    def _level(self, move: Move, live: Sequence[int]) -> list[int]:
        """Where to cut a transfer so that all flows are through with it together, with what they have had before.

        Flows bring in proportion to their shares, slow ones less. One that has more than that gets nothing.
        """
        lanes, factors = self._route[move.route].lanes, self.monitor.factors
        rate = {
            flow: float(lane.share) * factors.get(flow, 1.0)
            for lane, flow in zip(lanes, self._lanes[move.route], strict=True)
            if flow in live
        }
        load = {flow: self._outs[flow].load for flow in live}
        done, filled, level = 0.0, 0.0, 0.0
        for flow in sorted(live, key=lambda flow: load[flow] / rate[flow]):
            if filled and level <= load[flow] / rate[flow]:
                break
            filled, done = filled + rate[flow], done + load[flow]
            level = (move.length + done) / filled
        cuts, stop = [0], 0.0
        for flow in live[:-1]:
            stop += max(0.0, rate[flow] * level - load[flow])
            cuts.append(min(move.length, round(stop / GRANULE) * GRANULE))
        return [*cuts, move.length]

    def watch(self, route: int, now: float) -> None:
        """Something is given to the flows of a route."""
        if len(self._lanes[route]) > 1:
            self.monitor.wake((self._name, route), now, lambda: self._watched(route))

    def _spans(self, name: str) -> list[list[Span]]:
        """The lanes of a schedule, of all ranks."""
        homes = [self._layout.wires[flow.wires[0]] for flow in self._layout.flows]
        return [
            [
                Span(lane.share, homes[flow].out, homes[flow].into)
                for lane, flow in zip(route.lanes, self._lanes_of[name][number], strict=True)
            ]
            for number, route in enumerate(self._routes[name])
        ]

    def _watched(self, route: int) -> list[WatchedFlow]:
        outs = [self._outs[flow] for flow in self._lanes[route]]
        return [WatchedFlow(out, kind) for out, kind in zip(outs, self._kinds[self._name][route], strict=True)]

    def at_home(self, peer: int) -> list[Out]:
        """The flows to a rank that are at home."""
        return [out for out in self._outs.values() if out.peer == peer and self._at_home(out)]

    def deal(self, pieces: Iterable[Piece], among: Sequence[Out]) -> None:
        """Each to the flow that would be through with it first, by its rate and what it has queued."""
        factors = self.monitor.factors
        worth = [rate * factors.get(out.number, 1.0) for rate, out in zip(self._worth(among), among, strict=True)]
        load = [out.load for out in among]
        for piece in pieces:
            first = min(range(len(among)), key=lambda i: (load[i] + len(piece.payload)) / worth[i])
            load[first] += len(piece.payload)
            among[first].queue.append(piece)

    def _worth(self, outs: Sequence[Out]) -> list[float]:
        """The rates of flows by the plan, in bytes per second; all alike when one is as fast as the machine goes."""
        rates, wires = self._layout.rates, self._layout.wires
        homes = [wires[out.home] for out in outs]
        worth = [min(rates[wire.out].out, rates[wire.into].into) for wire in homes]
        return [1.0] * len(outs) if math.inf in worth else worth

    def _at_home(self, out: Out) -> bool:
        return out.sender.wire == out.home and out.home not in self._lost
