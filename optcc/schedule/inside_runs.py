"""Runs: the bytes that one GPU sums, or hands out, as a whole over NVLink.

Short runs let the first transfer start early and the last result be out soon; long ones are few. So all are equally
long, but for the first two on the way in and the last two on the way out. These are half as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from optcc.schedule.columns import GRANULE
from optcc.schedule.inside_cells import Cells, Ints, cut
from optcc.schedule.inside_channels import Site


class Runs(NamedTuple):
    """Sorted by server and cell; columns of shape (runs,), but `of`.

    first, stop : cells; hub : the GPU that gathers, or hands out; door : the GPU from which the sum leaves, or which
    the result enters; of : (servers, cells), the run of each
    """

    server: Ints
    first: Ints
    stop: Ints
    hub: Ints
    door: Ints
    of: Ints


def runs_of(cells: Cells, when: Ints, hub: Ints, door: Ints, apart: Ints, longest: int) -> Runs:
    """Neighbouring cells in one run. What one transfer moves stays together, unless it is longer than a run may be.

    when : (servers, cells), times, or less than 0: seen from the end; apart : (servers, cells), ends runs where it
    changes
    """
    servers, count = when.shape
    order = np.argsort(when, axis=1)
    size, timed = np.diff(cells.edge)[order], np.abs(np.take_along_axis(when, order, 1)) // count
    before = np.cumsum(size, axis=1) - size
    opens = np.ones((servers, count), np.bool_)
    opens[:, 1:] = timed[:, 1:] != timed[:, :-1]
    unit = np.cumsum(opens) - 1
    unit_before, unit_size = before[opens], np.bincount(unit, size.ravel())
    small = unit_size <= np.where(unit_before < longest, longest // 2, longest)
    level = np.where(small[unit], unit_before[unit], before.ravel())
    step = np.empty((servers, count), np.int64)
    np.put_along_axis(step, order, np.where(level < longest // 2, -1, level // longest).reshape(servers, count), 1)
    starts = np.ones((servers, count), np.bool_)
    starts[:, 1:] = False
    for label in (step, hub, door, apart):
        starts[:, 1:] |= label[:, 1:] != label[:, :-1]
    begin = np.flatnonzero(starts)
    server, first = np.divmod(begin, count)
    stop = np.append(begin[1:], servers * count) - server * count
    of = (np.cumsum(starts) - 1).reshape(servers, count)
    return Runs(server, first, stop, hub.ravel()[begin], door.ravel()[begin], of)


def shared_out(cells: Cells, sites: Sequence[Site], turn: int) -> tuple[Cells, Ints]:
    """Cells cut where the tasks of a site change, and (servers, cells) which of its site's tasks has each.

    In the order of time all tasks have a turn of about `turn` bytes, each in proportion to its part, then again, and so
    on. What a server sends more often, as a hub, is shared out by itself, so that all NICs send as much. The first of a
    round changes, since a NIC is busier during its turn.
    """
    turns: dict[int, tuple[Ints, Ints]] = {}
    for s, site in enumerate(sites):
        if len(site.tasks) > 1:
            turns[s] = _turns(cells, s, [task.part for task in site.tasks], turn)
    fine = cut(cells, np.concatenate([np.zeros(0, np.int64), *(begin for begin, _ in turns.values())]))
    which = np.zeros(fine.need.shape, np.int64)
    for s, (begin, task) in turns.items():
        which[s] = task[np.searchsorted(begin, fine.edge[:-1], "right") - 1]
    return fine, which


def _turns(cells: Cells, server: int, parts: Sequence[Fraction], length: int) -> tuple[Ints, Ints]:
    """(positions at which turns begin, in order; the task of each)."""
    begins, tasks = list[Ints](), list[Ints]()
    for often in np.unique(cells.sends[server]):
        mine = np.flatnonzero(cells.sends[server] == often)
        mine = mine[np.argsort(cells.need[server, mine], kind="stable")]
        size = np.diff(cells.edge)[mine]
        total, start = int(size.sum()), np.cumsum(size) - size
        rounds, turn = max(1, round(total / len(parts) / length)), list[int]()
        ends, done = [0], Fraction(0)
        for i in range(rounds * len(parts)):
            turn.append((i + i // len(parts)) % len(parts))
            done += parts[turn[-1]]
            ends.append(int(total * done / rounds) // GRANULE * GRANULE)
        places = np.unique(np.concatenate((np.array(ends[:-1]), start)))
        which = np.searchsorted(start, places, "right") - 1
        begins.append(cells.edge[mine[which]] + (places - start[which]) // GRANULE * GRANULE)
        tasks.append(np.array(turn)[np.searchsorted(np.array(ends[:-1]), places, "right") - 1])
    begin, task = np.concatenate(begins), np.concatenate(tasks)
    order = np.argsort(begin, kind="stable")
    return begin[order], task[order]
