"""Runs of a direct exchange: the bytes that a server sums, or hands out, at once over NVLink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.inside_exchange_layout import FINE, CellLayout
from optcc.schedule.inside_spans import GROWTH, Ints, growth_steps


class CellRuns(NamedTuple):
    """Sorted by server and cell; columns of shape (runs,), but `of`.

    first, stop : cells; begin : server * cells + first; gather, carry : GPUs; of : (servers, cells), the run of each
    """

    server: Ints
    first: Ints
    stop: Ints
    begin: Ints
    gather: Ints
    carry: Ints
    of: Ints


def runs_by_time(lay: CellLayout, when: Ints, labels: Sequence[NDArray[Any]], chunks: int) -> CellRuns:
    """Neighbouring cells in one run while what goes before them grows little, as in `inside_spans`.

    when : (servers, cells), the rows that need the cells, or, less than 0, that bring them, seen from the end; what one
    row moves stays together unless it is more than a run may be.
    labels : (servers, cells) each, who gathers, who carries, and what else ends a run where it changes
    """
    servers, cells = when.shape
    ties = np.arange(cells) * (1 if when.max(initial=0) > 0 else -1)
    size, most = np.diff(lay.edge), int(lay.edge[-1]) / chunks
    order = np.lexsort((np.broadcast_to(ties, when.shape), when), axis=1)
    sized, timed = size[order], np.take_along_axis(when, order, 1)
    before = np.cumsum(sized, axis=1) - sized
    opens = np.ones((servers, cells), np.bool_)
    opens[:, 1:] = timed[:, 1:] != timed[:, :-1]
    unit = np.cumsum(opens) - 1
    unit_before, unit_size = before[opens], np.bincount(unit, sized.ravel())
    least = max(1.0, min(FINE, most))
    small = unit_size <= np.clip((GROWTH - 1) * unit_before, least, max(most, least))
    level = np.where(small[unit], unit_before[unit], before.ravel())
    # Runs of (GROWTH - 1) of what goes before end at even steps of its logarithm, those of `most` at even steps.
    bend = max(least, most / (GROWTH - 1))
    steps = growth_steps(level, least, bend)
    steps = np.floor(steps + np.maximum(level - bend, 0) / max(most, 1.0)) + (level >= least)
    step = np.empty((servers, cells))
    np.put_along_axis(step, order, steps.reshape(servers, cells), 1)
    starts = np.ones((servers, cells), np.bool_)
    starts[:, 1:] = False
    for label in (step, *labels):
        starts[:, 1:] |= label[:, 1:] != label[:, :-1]
    begin = np.flatnonzero(starts)
    server, first = np.divmod(begin, cells)
    stop = np.append(begin[1:], servers * cells) - server * cells
    of = (np.cumsum(starts) - 1).reshape(servers, cells)
    return CellRuns(server, first, stop, begin, labels[0].ravel()[begin], labels[1].ravel()[begin], of)
