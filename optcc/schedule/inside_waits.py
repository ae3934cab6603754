"""Which earlier transfers a transfer waits for: those that bring its source GPU the bytes that it sends."""

from __future__ import annotations

import numpy as np

from optcc.schedule.inside_cells import Bools, Ints, ranges


def waits_by_bytes(src: Ints, dst: Ints, first: Ints, stop: Ints, reduce: Bools, cells: int) -> tuple[Ints, Ints]:
    """(rows,), how many rows each row waits for; and the numbers of these rows, row after row.

    src, dst, first, stop, reduce : (rows,) in the order of time. Row i moves cells first to stop - 1 of `cells` from
    GPU src to GPU dst, where they are added (`reduce`) or copied

    A row that sends a cell waits for the last copy into that cell and for what was added since. It need not wait for
    what landed there before the copy: the copy is a result made of it, so the copy has waited for it.
    """
    row, cell = np.repeat(np.arange(len(src)), stop - first), ranges(first, stop - first)
    place = dst[row] * cells + cell
    order = np.argsort(place, kind="stable")
    place, lander = place[order], row[order]
    opens = np.ones(len(order), np.bool_)
    opens[1:] = place[1:] != place[:-1]
    since = np.maximum.accumulate(np.where(opens | ~reduce[lander], np.arange(len(order)), 0))
    # In front of (GPU and cell that row i takes, i), among all (GPU and cell where a row lands, row), is what landed.
    takes, times = src[row] * cells + cell, len(src) + 1
    end = np.searchsorted(place * times + lander, takes * times + row)
    last = np.maximum(end - 1, 0)
    landed = (end > 0) & (np.append(place, -1)[last] == takes)
    begin = np.where(landed, since[last], end) if len(place) else end
    taker, giver = np.repeat(np.arange(len(row)), end - begin), lander[ranges(begin, end - begin)]
    # What was there at the cell before, too, has been counted.
    earliest = np.append(np.where(landed, lander[begin * landed], len(src)), len(src))[taker - 1]
    again = (cell[taker] > first[row[taker]]) & (first[giver] < cell[taker]) & (giver >= earliest)
    taker, giver = row[taker[~again]], giver[~again]
    return np.bincount(taker, minlength=len(src)), giver
