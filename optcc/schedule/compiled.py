"""The slowest parts of planning direct exchange, compiled: matchings of greatest worth, and dependencies of transfers.

All that is compiled is in this file, because what is kept looks at no other when it decides whether to compile again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.machine.kernels import Kernels

KERNELS = Kernels("direct", "what plans direct exchange", 20)
Ints = NDArray[np.int64]


@KERNELS.compiled()
def assigned(worth: Any) -> Any:
    """For each row its column, -1 for rows beyond the columns: a matching of greatest total worth.

    worth : (rows, columns), numbers that float64 represents exactly

    Shortest augmenting paths (Crouse 2016, On implementing 2D rectangular assignment algorithms), row by row, or column
    by column if these are fewer. Of several matchings of greatest worth this takes the one that scipy 1.11 to 1.18
    take.
    """
    wide = worth.shape[0] <= worth.shape[1]
    cost = -worth.astype(np.float64) if wide else -worth.T.astype(np.float64)
    rows, columns = cost.shape
    of_row, of_column = np.full(rows, -1), np.full(columns, -1)
    price, reach = np.zeros(columns), np.zeros(columns)
    gain = np.zeros(rows)
    before, left = np.full(columns, -1), np.zeros(columns, np.int64)
    seen_row, seen_column = np.zeros(rows, np.bool_), np.zeros(columns, np.bool_)
    for current in range(rows):
        for place in range(columns):
            left[place] = columns - place - 1
        reach[:], seen_row[:], seen_column[:] = np.inf, False, False
        count, least, row, end = columns, 0.0, current, -1
        while end < 0:
            seen_row[row] = True
            nearest, at = np.inf, -1
            for place in range(count):
                column = left[place]
                far = least + cost[row, column] - gain[row] - price[column]
                if far < reach[column]:
                    before[column], reach[column] = row, far
                if reach[column] < nearest or (reach[column] == nearest and of_column[column] < 0):
                    nearest, at = reach[column], place
            least, column = nearest, left[at]
            if of_column[column] < 0:
                end = column
            else:
                row = of_column[column]
            seen_column[column] = True
            count -= 1
            left[at] = left[count]
        gain[current] += least
        for row in range(rows):
            if seen_row[row] and row != current:
                gain[row] += least - reach[of_row[row]]
        for column in range(columns):
            if seen_column[column]:
                price[column] -= least - reach[column]
        row, column = -1, end
        while row != current:
            row = before[column]
            of_column[column] = row
            of_row[row], column = column, of_row[row]
    return of_row if wide else of_column


@KERNELS.compiled()
def exchanged(
    senders: Any, receivers: Any, begin: int, end: int, cost: int, one: int, tie: int,
    needs: Any, served: Any, limit: Any, late: Any, ties: Any,
) -> Any:  # fmt: skip
    """One step: on each rail a matching of the pairs furthest behind. Returns (chunks, 4): place of the rail, sender,
    receiver, amount. Updates `served` and `limit`.

    senders, receivers : bool, (rails, ranks), the ranks that may; begin, end : of the step, in `one`; cost : of a chunk
    needs, served, limit : (ranks, ranks), a pair's total, the amount sent, and the amount that is ready
    late : amount added to a pair's delay; ties : (ranks, ranks), less than `tie`, settles ties
    """
    rails, ranks = senders.shape
    found, count, size = np.empty((rails * ranks, 4), np.int64), 0, end - begin
    worth, fills = np.empty((ranks, ranks), np.int64), np.empty((ranks, ranks), np.int64)
    for i in range(ranks):
        for k in range(ranks):
            of = needs[i, k], served[i, k], limit[i, k], late[i, k]
            worth[i, k], fills[i, k] = _worth(of, end, size, size - cost, one)
    for rail in range(rails):
        rows, columns = np.flatnonzero(senders[rail]), np.flatnonzero(receivers[rail])
        values = np.empty((len(rows), len(columns)), np.int64)
        for a in range(len(rows)):
            for z in range(len(columns)):
                values[a, z] = worth[rows[a], columns[z]] * tie + ties[rows[a], columns[z]]
        taken = assigned(values)
        for a in range(len(rows)):
            if taken[a] < 0:
                continue
            i, k = int(rows[a]), int(columns[taken[a]])
            if fills[i, k] > 0:
                found[count] = rail, i, k, fills[i, k]
                count += 1
                served[i, k] += fills[i, k]
                limit[i, k] -= fills[i, k]
                of = needs[i, k], served[i, k], limit[i, k], late[i, k]
                worth[i, k], fills[i, k] = _worth(of, end, size, size - cost, one)
    return found[:count]


@KERNELS.compiled()
def _worth(of: Any, end: int, size: int, room: int, one: int) -> Any:
    """(worth, much): `much` is the amount that the pair can send in the step, 0 if it is ahead of an even schedule by
    more than a step. The worth is `much`, plus the pair's delay relative to its total, scaled by the part of the step
    that `much` fills.

    of : its total, the amount served, the amount ready, and the amount added to its delay
    """
    need, served, limit, late = of
    behind = (end * need - served * one) // max(need, 1)
    much = min(limit, room) if behind >= -size else 0
    behind += late
    return ((behind * much // size if behind > 0 else behind) + much if much > 0 else -one), much


@KERNELS.compiled()
def grouped_by(numbers: Any, count: int) -> Any:
    """(ptr, places), CSR: the places in `numbers` of each number from 0 to `count` - 1, ascending."""
    ptr = np.zeros(count + 1, np.int64)
    for number in numbers:
        ptr[number + 1] += 1
    for number in range(count):
        ptr[number + 1] += ptr[number]
    places, at = np.empty(len(numbers), np.int64), ptr[:-1].copy()
    for place, number in enumerate(numbers):
        places[at[number]] = place
        at[number] += 1
    return ptr, places


@KERNELS.compiled()
def _among(number: int, numbers: Any, count: int) -> bool:
    for place in range(count):  # noqa: SIM110
        if numbers[place] == number:
            return True
    return False


@KERNELS.compiled()
def waited_for_before(order: Any, nics: Any, keys: Any, free: Any, ptr: Any, on: Any, most: int) -> Any:
    """(pairs, 2), row that waits and row that it waits for. A row waits for the latest dependencies of earlier rows on
    its NIC: those of the greatest key, at most `most`, except its own dependencies.

    order : rows by time; nics : of each row, its NIC's number; free : bool, of rows that do not wait so
    ptr, on : CSR, what each row waits for by itself
    """
    before, many = np.empty((nics.max() + 1, most), np.int64), np.zeros(nics.max() + 1, np.int64)
    found, count, latest = np.empty((len(order) * most, 2), np.int64), 0, np.empty(most, np.int64)
    for row in order:
        nic, own = nics[row], on[ptr[row] : ptr[row + 1]]
        earlier = before[nic, : many[nic]]
        for landing in earlier:
            if not free[row] and not _among(landing, own, len(own)):
                found[count] = row, landing
                count += 1
        key = -1
        for landing in own:
            key = max(key, keys[landing])
        if key < 0 or (len(earlier) and key < keys[earlier[0]]):
            continue
        kept = 0
        for some in (own, earlier):
            for landing in some:
                if kept < most and keys[landing] == key and not _among(landing, latest, kept):
                    latest[kept] = landing
                    kept += 1
        before[nic, :kept] = latest[:kept]
        many[nic] = kept
    return found[:count]


def make_ready() -> None:
    """Compile all of this, or load what was compiled before: ranks call it before anybody waits for them."""
    ints, table, may = np.zeros(1, np.int64), np.zeros((1, 1), np.int64), np.zeros((1, 1), np.bool_)
    with KERNELS.together():
        assigned(table)
        exchanged(may, may, 0, 1, 0, 1, 1, *(table.copy() for _ in range(5)))
        ptr, none = grouped_by(ints[:0], 1)
        waited_for_before(ints, ints, ints, may[0], ptr, none, 1)
