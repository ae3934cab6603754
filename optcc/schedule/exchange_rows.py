"""From the rounds of a direct exchange to its transfers, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.columns import Stage
from optcc.schedule.exchange_clock import TICKS, Ints
from optcc.schedule.exchange_rounds import Round


class Columns(NamedTuple):
    """Transfers of one round, int64 (rows,) each; `dep` and `waits` are pairs of places within the round.

    turn : which NIC in turn, -1 for all
    """

    src: Ints
    dst: Ints
    start: Ints
    stop: Ints
    reduce: Ints
    stage: Ints
    key: Ints
    turn: Ints
    dep: Ints
    waits: Ints


def columns_of(r: Round, ranks: int) -> Columns:
    """Rows of hub k: P-1 towards it, by offset, then P-1 from it. A slow rank's place holds the two by way of it."""
    hubs, offsets = len(r.hub), np.arange(1, ranks)
    hub = np.repeat(r.hub[:, None], ranks - 1, axis=1)
    before, after = (hub - offsets) % ranks, (hub + offsets) % ranks
    partial, final = before == r.via[:, None], after == r.via[:, None]
    raw = np.where(partial, 0, r.raw)
    due = np.maximum(r.partial, raw.max(axis=1) + 1)
    late = np.maximum(r.final, due + 1)
    by_way = r.via >= 0
    ready = np.where(by_way, late, raw.max(axis=1))
    result = np.maximum(r.result, ready[:, None] + 1)
    first = np.arange(hubs)[:, None] * 2 * (ranks - 1)  # the hub's rows
    to_hub = first + offsets - 1
    from_hub = to_hub + ranks - 1
    is_raw, is_result = ~partial, ~final
    pairs: list[tuple[Ints, Ints]] = []
    # Sums to the slow rank wait for all raw data, its answer for them, and results for that.
    for k in np.flatnonzero(by_way):
        p, f = to_hub[k][partial[k]], from_hub[k][final[k]]
        raws, results = to_hub[k][is_raw[k]], from_hub[k][is_result[k]]
        pairs += [(raws, np.repeat(p, len(raws))), (p, f), (np.repeat(f, len(results)), results)]
    plain = np.flatnonzero(~by_way)
    dep = np.repeat(to_hub[plain], ranks - 1, axis=0).ravel()
    waits = np.repeat(from_hub[plain].ravel(), ranks - 1)
    pairs.append((dep, waits))

    def both(towards: NDArray[Any], away: NDArray[Any]) -> Ints:
        return np.concatenate((towards, away), axis=1).ravel().astype(np.int64)

    # Offset d goes by the d-th NIC, so that no two senders meet at one; the next round begins one further.
    turn, whole = r.number, np.full(hub.size * 2, -1, np.int64)
    sections = np.repeat(np.stack((r.start, r.stop)), 2 * (ranks - 1), axis=1)
    return Columns(
        both(np.where(partial, hub, before), np.where(final, after, hub)),
        both(np.where(partial, before, hub), np.where(final, hub, after)),
        sections[0],
        sections[1],
        both(np.ones_like(hub), np.zeros_like(hub)),
        both(np.where(partial, Stage.TO_LEAF, Stage.REDUCE_SCATTER), np.where(final, Stage.FROM_LEAF, Stage.ALLGATHER)),
        both(np.where(partial, due[:, None], raw), np.where(final, late[:, None], result)),
        both(np.where(partial, hub, offsets) + turn, np.where(final, hub, offsets) + turn) if r.narrow else whole,
        np.concatenate([dep for dep, _ in pairs]),
        np.concatenate([waits for _, waits in pairs]),
    )


def joined(parts: Sequence[Columns]) -> Columns:
    """The rounds one after the other."""
    shifts = accumulate((len(c.src) for c in parts), initial=0)
    moved = [c._replace(dep=c.dep + shift, waits=c.waits + shift) for c, shift in zip(parts, shifts, strict=False)]
    return Columns(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))


def fused(c: Columns, made: Sequence[Round], ranks: int, head: int) -> tuple[Columns, Ints]:
    """The transfers of the only round by way of slow ranks as one with their neighbours' in the buffer: raw data with
    that of the first of the other rounds, results with those of the last. Also, which rows that leaves.

    head : ticks that the round takes
    """
    rows = np.arange(len(c.src))
    ways = [r for r in made if r.via[0] >= 0]
    if len(ways) != 1:
        return c, rows
    plain = list(takewhile(lambda r: np.array_equal(r.hub, ways[0].hub), made[1:]))
    # One round alone would wait for everything, and where rounds were left out the neighbours are not the same bytes.
    if len(plain) < 2 or (plain[0].stop != ways[0].start).any() or (plain[-1].start != ways[0].stop).any():
        return c, rows
    size = len(ways[0].hub) * 2 * (ranks - 1)
    block = rows[:size]
    raw, result = (block[c.stage[:size] == stage] for stage in (Stage.REDUCE_SCATTER, Stage.ALLGATHER))
    into, start, stop, key = rows.copy(), c.start.copy(), c.stop.copy(), c.key.copy()
    for mine, other, overlap in ((raw, raw + size, head), (result, result + size * len(plain), TICKS - head)):
        into[other] = mine
        start[mine], stop[mine] = np.minimum(start[mine], start[other]), np.maximum(stop[mine], stop[other])
        key[mine] += key[other] - overlap  # as long as both together
    dep, waits = into[c.dep], into[c.waits]
    inner = waits < size
    for _ in range(3):  # sums, answers, results
        np.maximum.at(key, waits[inner], key[dep[inner]] + 1)
    return c._replace(start=start, stop=stop, key=key, dep=dep, waits=waits), np.flatnonzero(into == rows)
