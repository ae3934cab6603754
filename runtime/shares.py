"""Which flow carries what: by the shares of the schedule, and by rates when flows have lost their home wires.

A transfer is cut among its route's flows by the shares of the schedule. When some of them have lost their home wire,
what is new is cut among the others, and the lost ones carry only what they had begun. So a NIC's traffic spreads over
all that is left, as its rates allow, until the next plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from optcc.runtime.flow_ends import Out, Piece
from optcc.runtime.layout import Layout
from optcc.runtime.program import Move
from optcc.schedule import Route
from optcc.schedule.columns import GRANULE


class Shares:
    """Those of one rank's outgoing flows. `lost` : the wires that are lost, kept by somebody else."""

    def __init__(
        self,
        layout: Layout,
        routes: Mapping[str, Sequence[Route]],
        outs: Mapping[int, Out],
        lost: Collection[int],
    ) -> None:
        self._layout, self._routes, self._outs, self._lost = layout, routes, outs, lost

    def begin(self, name: str) -> None:
        """The next operation runs schedule `name`."""
        self._lanes, self._route = self._layout.lanes[name], self._routes[name]

    def live(self, route: int) -> list[int]:
        """The flows of a route that are at home; all of them when none is."""
        flows = self._lanes[route]
        if not self._lost:
            return list(flows)
        return [flow for flow in flows if self._at_home(self._outs[flow])] or list(flows)

    def cut(self, move: Move) -> list[tuple[int, int, int]]:
        """(flow, start, stop) of the stripes of a transfer."""
        live = self.live(move.route)
        whole = len(live) == len(self._lanes[move.route])
        cuts = self._route[move.route].cuts(move.length) if whole else self._recut(move, live)
        return [(flow, start, stop) for flow, (start, stop) in zip(live, pairwise(cuts), strict=True)]

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

    def siblings(self, out: Out) -> list[Out]:
        """Other flows to the same rank that are at home."""
        return [other for other in self._outs.values() if other.peer == out.peer and self._at_home(other, out)]

    def deal(self, pieces: Iterable[Piece], among: Sequence[Out]) -> None:
        """Each to the flow that would be through with it first, by the rates of the plan and what it has queued."""
        rates, wires = self._layout.rates, self._layout.wires
        homes = [wires[out.home] for out in among]
        worth = [min(rates[wire.out].out, rates[wire.into].into) for wire in homes]
        if math.inf in worth:
            worth = [1.0] * len(among)
        load = [out.load for out in among]
        for piece in pieces:
            first = min(range(len(among)), key=lambda i: (load[i] + len(piece.payload)) / worth[i])
            load[first] += len(piece.payload)
            among[first].queue.append(piece)

    def _at_home(self, out: Out, but: Out | None = None) -> bool:
        return out is not but and out.sender.wire == out.home and out.home not in self._lost
