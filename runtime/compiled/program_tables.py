"""The arrays of one rank's part of a schedule: made once; a run begins with those that change as they were at first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.stores import Column, ExpectedRows, Queue
from optcc.runtime.compiled.tables import RowTables
from optcc.runtime.engine.program import Move, Program

Stripes = Sequence[tuple[int, int, int]]
"""(flow, start, stop) of the parts that a transfer is cut into."""


class ProgramTables:
    """Those of `program`, which runs once at a time.

    Attributes
    ----------
    arrays : what compiled code works on
    counts, since, missing, expected, ready : columns of theirs, for Python
    place : row -> its index in the arrays
    routes : route -> its number in the arrays
    moves : place -> the transfer
    starts : places of what is sent first, waiting for nothing
    received : places of what is received, in the order of `program.receives`
    """

    def __init__(self, program: Program) -> None:
        numbers = sorted((*program.sends, *program.receives))
        place = self.place = {number: i for i, number in enumerate(numbers)}
        routes = self.routes = {r: i for i, r in enumerate(sorted({move.route for move in program.sends.values()}))}
        sent = [number in program.sends for number in numbers]
        self.moves = [(program.sends if s else program.receives)[n] for n, s in zip(numbers, sent, strict=True)]
        self.starts = np.array([place[n] for n, count in program.waits.items() if count == 0], np.int64)
        self.received = np.array([place[n] for n in program.receives], np.int64)
        alike: dict[tuple[int, int], int] = {}
        self._kinds: list[Move] = []  # one of each: of the same route and length
        for move in program.sends.values():
            if alike.setdefault((move.route, move.length), len(self._kinds)) == len(self._kinds):
                self._kinds.append(move)
        kind = [alike[move.route, move.length] if s else 0 for move, s in zip(self.moves, sent, strict=True)]
        rows = np.zeros(len(numbers) + 1, t.ROW)
        mine = rows[:-1]
        mine["row"], mine["offset"], mine["length"] = numbers, self._of("offset"), self._of("length")
        mine["reduce"], mine["kind"] = self._of("reduce"), kind
        mine["count"] = [program.waits[n] if s else program.awaits[n] for n, s in zip(numbers, sent, strict=True)]
        mine["route"] = [routes[move.route] if s else -1 for move, s in zip(self.moves, sent, strict=True)]
        mine["expected"] = ~np.array(sent, bool)
        mine["missing"] = mine["expected"] * mine["length"]
        mine["source"] = mine["offset"]
        rows["since"] = np.nan
        after_each: Sequence[Mapping[int, list[int]]] = (program.releases, program.folds_after)
        (released_at, released), (after_at, after) = (
            _lists_in_one([[place[to] for to in which.get(n, ())] for n in numbers]) for which in after_each
        )
        rows["released_at"], rows["after_at"] = released_at, after_at
        sends = np.zeros(len(routes) + 1, t.ROUTE)
        sizes = np.bincount(mine["route"][sent], minlength=len(routes))
        sends["queue_at"][1:] = np.cumsum(sizes)
        places = np.full(numbers[-1] + 1 if numbers else 0, -1, np.int64)
        places[numbers] = range(len(numbers))
        self._parts = mine["length"] * self._of("peer")  # where what is sent begins in `parts`, as of `Engine`
        self._first_rows, self._first_routes, self._address = rows.copy(), sends.copy(), 0  # as they are before a run
        # As bytes: numpy copies records field by field.
        pairs = ((rows, self._first_rows), (sends, self._first_routes))
        self._resets = [(now.view(np.uint8), first.view(np.uint8)) for now, first in pairs]
        self.arrays = RowTables(
            rows=rows,
            routes=sends,
            queues=np.zeros(2 * len(program.sends), t.QUEUE),
            stripes=np.zeros(0, t.STRIPE),
            kinds=np.zeros(1, np.int64),
            lanes=np.zeros(0, np.int64),
            released=released,
            after=after,
            stack=np.zeros(len(after) + 2, t.STACK),
            places=places,
        )
        self.counts, self.since = Column(place, rows["count"]), Column(place, rows["since"])
        self.missing, self.expected = Column(place, rows["missing"]), ExpectedRows(rows, place)
        self.ready = {route: Queue(self.arrays, place, i) for route, i in routes.items()}
        self._cut_for: Hashable = None

    def _of(self, field: str) -> np.ndarray:
        return np.array([getattr(move, field) for move in self.moves], np.int64)

    def begin(self, address: int, in_parts: bool) -> None:
        """A run begins. What is sent is at an address: the buffer's, or that of `parts`."""
        if in_parts:
            self._first_rows["source"][:-1] = self._parts + address
        elif address != self._address:
            self._first_rows["source"] = self._first_rows["offset"] + address
        self._address = -1 if in_parts else address
        for now, first in self._resets:
            now[:] = first

    def cut(self, state: Hashable, live: Callable[[int], Sequence[int]], cut: Callable[[Move], Stripes]) -> None:
        """From now on, the lanes of each route and the stripes of each kind of transfer.

        state : of what these depend on; they are made anew only where it differs from the last one
        live, cut : as of `Shares`
        """
        if state == self._cut_for:
            return
        self._cut_for = state
        stripes = [cut(move) for move in self._kinds]
        at = np.zeros(len(stripes) + 1, np.int64)
        at[1:] = np.cumsum([len(many) for many in stripes])
        every = np.array([stripe for many in stripes for stripe in many], t.STRIPE)
        lane_at, lanes = _lists_in_one([list(live(route)) for route in self.routes])
        self.arrays = self.arrays._replace(stripes=every, kinds=at, lanes=lanes)
        self.arrays.routes["lane_at"] = self._first_routes["lane_at"] = lane_at


def _lists_in_one(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Where each begins, and where the last one ends; and all of them."""
    at = np.zeros(len(lists) + 1, np.int64)
    at[1:] = np.cumsum([len(each) for each in lists])
    return at, np.array([value for each in lists for value in each], np.int64)
