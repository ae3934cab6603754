"""One rank's part of a schedule, in the form in which walks over torch.distributed look things up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optcc.errors import InputError
from optcc.schedule import Schedule


class Move(NamedTuple):
    """One transfer as its sender or receiver sees it; offset and length in bytes."""

    row: int
    route: int
    peer: int
    offset: int
    length: int
    reduce: bool


@dataclass(frozen=True, eq=False)
class Program:
    """What rank `rank` sends and receives.

    Attributes
    ----------
    sends, receives : row -> its Move
    waits : sent row -> how many received rows must finish before it
    releases : received row -> the sent rows that wait for it
    awaits : received row -> how many things finish it: its landing, and the folds that must come before its own
    folds_after : received row -> the received rows whose fold waits for its fold
    """

    rank: int
    sends: Mapping[int, Move]
    receives: Mapping[int, Move]
    waits: Mapping[int, int]
    releases: Mapping[int, list[int]]
    awaits: Mapping[int, int]
    folds_after: Mapping[int, list[int]]


def program_of(schedule: Schedule, rank: int, itemsize: int) -> Program:
    """The part of `rank`, for elements of `itemsize` bytes.

    Raises InputError if ranks that know only their own transfers cannot run the schedule: a transfer waits for one that
    ends elsewhere, is empty, or cuts an element.
    """
    sends = _moves(schedule, np.flatnonzero(schedule.src == rank), itemsize, schedule.dst)
    receives = _moves(schedule, np.flatnonzero(schedule.dst == rank), itemsize, schedule.src)
    releases: dict[int, list[int]] = defaultdict(list)
    for row in sends:
        for dep in schedule.deps(row).tolist():
            if dep not in receives:
                raise InputError(
                    f"transfer {row} leaves rank {rank} but waits for transfer {dep}, which does not end there",
                    where="schedule",
                    expected="dependencies that end at the sender",
                    got=f"one that ends at rank {schedule.dst[dep]}",
                )
            releases[dep].append(row)
    folds_before, folds_after = _fold_order(move for move in receives.values() if move.reduce)
    return Program(
        rank=rank,
        sends=sends,
        receives=receives,
        waits={row: len(schedule.deps(row)) for row in sends},
        releases=dict(releases),
        awaits={row: 1 + folds_before.get(row, 0) for row in receives},
        folds_after=folds_after,
    )


def _moves(schedule: Schedule, rows: np.ndarray, itemsize: int, peers: np.ndarray) -> dict[int, Move]:
    offset, length = schedule.offset[rows], schedule.length[rows]
    bad = (length < 1) | (offset % itemsize != 0) | (length % itemsize != 0)
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            f"transfer {rows[at]} does not carry whole elements",
            where="schedule",
            expected=f"a multiple of {itemsize} bytes, at least one",
            got=f"{length[at]} bytes at {offset[at]}",
        )
    columns = (rows, schedule.route[rows], peers[rows], offset, length, schedule.reduce[rows])
    return {move[0]: Move(*move) for move in zip(*(column.tolist() for column in columns), strict=True)}


def _fold_order(folds: Iterable[Move]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Each fold comes after the lower rows that reduce into some of its bytes: (how many before, which after)."""
    in_order = sorted(folds)
    edges = sorted({edge for move in in_order for edge in (move.offset, move.offset + move.length)})
    place = {edge: i for i, edge in enumerate(edges)}
    last = [-1] * len(edges)  # the latest fold into the bytes between an edge and the next
    before: dict[int, int] = {}
    after: dict[int, list[int]] = defaultdict(list)
    for move in in_order:
        span = slice(place[move.offset], place[move.offset + move.length])
        earlier = set(last[span]) - {-1}
        before[move.row] = len(earlier)
        for row in earlier:
            after[row].append(move.row)
        last[span] = [move.row] * (span.stop - span.start)
    return before, dict(after)
