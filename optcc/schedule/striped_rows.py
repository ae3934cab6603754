"""From the rounds of a direct exchange to its transfers, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.columns import Stage
from optcc.schedule.striped_rounds import TICKS, HubRound, Ints


@dataclass(frozen=True, eq=False)
class Moves:
    """All transfers in order of priority, without dependencies; columns (rows,).

    ranks, nbytes, reduce, stage, segment, offset, length : as in `Schedule`; src, dst : int64
    """

    ranks: int
    nbytes: int
    src: Ints
    dst: Ints
    offset: Ints
    length: Ints
    reduce: NDArray[np.bool_]
    stage: NDArray[np.uint8]
    segment: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.src)


class Columns(NamedTuple):
    """Transfers of some rounds in order, int64 (rows,) each."""

    src: Ints
    dst: Ints
    start: Ints
    stop: Ints
    reduce: Ints
    stage: Ints
    key: Ints


class _Places(NamedTuple):
    """Of a round, (hubs, P-1) by offset: the hub, its sender, its receiver, whether these are the slow rank, and the
    rows of both. A slow rank's row holds its two transfers."""

    hub: Ints
    before: Ints
    after: Ints
    partial: NDArray[np.bool_]
    final: NDArray[np.bool_]
    to_hub: Ints
    from_hub: Ints


def _places(r: HubRound, ranks: int) -> _Places:
    offsets = np.arange(1, ranks)
    hub = np.repeat(r.hub[:, None], ranks - 1, axis=1)
    before, after = (hub - offsets) % ranks, (hub + offsets) % ranks
    to_hub = np.arange(len(hub))[:, None] * 2 * (ranks - 1) + offsets - 1
    via = r.via[:, None]
    return _Places(hub, before, after, before == via, after == via, to_hub, to_hub + ranks - 1)


def columns_of(r: HubRound, ranks: int) -> Columns:
    """Rows of hub k: P-1 towards it, by offset, then P-1 from it."""
    at = _places(r, ranks)
    raw = np.where(at.partial, 0, r.raw)
    due = np.maximum(r.partial, raw.max(axis=1) + 1)
    late = np.maximum(r.final, due + 1)
    ready = np.where(r.via >= 0, late, raw.max(axis=1))
    result = np.maximum(r.result, ready[:, None] + 1)

    def both(towards: NDArray[Any], away: NDArray[Any]) -> Ints:
        return np.concatenate((towards, away), axis=1).ravel().astype(np.int64)

    sections = np.repeat(np.stack((r.start, r.stop)), 2 * (ranks - 1), axis=1)
    sums = np.where(at.partial, Stage.TO_LEAF, Stage.REDUCE_SCATTER)
    results = np.where(at.final, Stage.FROM_LEAF, Stage.ALLGATHER)
    return Columns(
        both(np.where(at.partial, at.hub, at.before), np.where(at.final, at.after, at.hub)),
        both(np.where(at.partial, at.before, at.hub), np.where(at.final, at.hub, at.after)),
        sections[0],
        sections[1],
        both(np.ones_like(at.hub), np.zeros_like(at.hub)),
        both(sums, results),
        both(np.where(at.partial, due[:, None], raw), np.where(at.final, late[:, None], result)),
    )


def edges_of(r: HubRound, ranks: int) -> tuple[Ints, Ints]:
    """(dependency, dependent) as places within the round. Results wait for all raw data. With a slow rank the sums to
    it do, its answer waits for them, and the results for its answer."""
    at = _places(r, ranks)
    pairs: list[tuple[Ints, Ints]] = []
    for k in np.flatnonzero(r.via >= 0):
        p, f = at.to_hub[k][at.partial[k]], at.from_hub[k][at.final[k]]
        raws, results = at.to_hub[k][~at.partial[k]], at.from_hub[k][~at.final[k]]
        pairs += [(raws, np.repeat(p, len(raws))), (p, f), (np.repeat(f, len(results)), results)]
    plain = np.flatnonzero(r.via < 0)
    pairs.append((np.repeat(at.to_hub[plain], ranks - 1, axis=0).ravel(), np.repeat(at.from_hub[plain], ranks - 1)))
    return np.concatenate([dep for dep, _ in pairs]), np.concatenate([waits for _, waits in pairs])


def edges(made: Sequence[HubRound], ranks: int) -> tuple[Ints, Ints]:
    """`edges_of` all rounds, in order."""
    begins = accumulate((len(r.hub) * 2 * (ranks - 1) for r in made), initial=0)
    parts = [np.stack(edges_of(r, ranks)) + at for r, at in zip(made, begins, strict=False)]
    dep, waits = np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)
    return dep, waits


def in_order(made: Sequence[HubRound], ranks: int, nbytes: int, head: int) -> tuple[Moves, Ints]:
    """All rounds' transfers by urgency, and the place there of each row in order of rounds. head : ticks of a single"""
    nothing = Columns(*[np.zeros(0, np.int64)] * len(Columns._fields))
    parts = [columns_of(r, ranks) for r in made] or [nothing]
    c, into = fused(Columns(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), made, ranks, head)
    kept = np.flatnonzero(into == np.arange(len(into)))
    order = kept[np.argsort(c.key[kept], kind="stable")]
    place = np.empty(len(into), np.int64)
    place[order] = np.arange(len(order))
    number = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.src) for part in parts])
    moves = Moves(
        ranks=ranks,
        nbytes=nbytes,
        src=c.src[order],
        dst=c.dst[order],
        offset=c.start[order],
        length=c.stop[order] - c.start[order],
        reduce=c.reduce[order].astype(np.bool_),
        stage=c.stage[order].astype(np.uint8),
        segment=number[order],
    )
    return moves, place[into]


def fused(c: Columns, made: Sequence[HubRound], ranks: int, head: int) -> tuple[Columns, Ints]:
    """Merge the transfers of the only round by way of slow ranks with their neighbours' in the buffer. Raw data joins
    that of the first of the other rounds, results those of the last. Also returns the new row of each row.

    head : ticks that the round takes
    """
    rows = np.arange(len(c.src))
    ways = [r for r in made if r.via[0] >= 0]
    if len(ways) != 1:
        return c, rows
    plain = list(takewhile(lambda r: np.array_equal(r.hub, ways[0].hub), made[1:]))
    # A single round would wait for everything; where rounds were left out, the neighbours are not the same bytes.
    if len(plain) < 2 or (plain[0].stop != ways[0].start).any() or (plain[-1].start != ways[0].stop).any():
        return c, rows
    size = len(ways[0].hub) * 2 * (ranks - 1)
    block, final = rows[:size], size * len(plain)
    raw, result = (block[c.stage[:size] == stage] for stage in (Stage.REDUCE_SCATTER, Stage.ALLGATHER))
    into, start, stop, key = rows.copy(), c.start.copy(), c.stop.copy(), c.key.copy()
    for mine, other, overlap in ((raw, raw + size, head), (result, result + final, TICKS - head)):
        into[other] = mine
        start[mine], stop[mine] = np.minimum(start[mine], start[other]), np.maximum(stop[mine], stop[other])
        key[mine] += key[other] - overlap  # as long as both together
    (dep, waits), (more, late) = edges_of(ways[0], ranks), edges_of(plain[-1], ranks)
    dep, waits = into[np.concatenate((dep, more + final))], into[np.concatenate((waits, late + final))]
    inner = waits < size
    for _ in range(3):  # sums, answers, results
        np.maximum.at(key, waits[inner], key[dep[inner]] + 1)
    return c._replace(start=start, stop=stop, key=key), into
