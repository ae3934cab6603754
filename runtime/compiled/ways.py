"""Chunks on their way between emulated NICs, compiled: the heaps of `wires.pacing`."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled.basics import inner
from optcc.runtime.compiled.tables import HELD, THROUGH, Lines


@inner  # type: ignore[misc, unused-ignore]
def _sooner(w: Lines, one: int, other: int) -> bool:
    return (w.ways[one].at, w.ways[one].order) < (w.ways[other].at, w.ways[other].order)


@inner  # type: ignore[misc, unused-ignore]
def push_way(w: Lines, heap: Any, size: int, chunk: int) -> None:
    """Onto a heap of `size` chunks on their way."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if not _sooner(w, chunk, heap[up]):
            break
        heap[i] = heap[up]
        i = up
    heap[i] = chunk


@inner  # type: ignore[misc, unused-ignore]
def pop_way(w: Lines, heap: Any, size: int) -> None:
    """Off a heap of `size`, the first."""
    size -= 1
    chunk, i = heap[size], 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _sooner(w, heap[child + 1], heap[child]):
            child += 1
        if not _sooner(w, heap[child], chunk):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = chunk


@inner  # type: ignore[misc, unused-ignore]
def next_landing(w: Lines, g: Any) -> float:
    """See `PortClocks.next_landing`."""
    first = w.ways[w.through[0]].at if g[THROUGH] else np.inf
    for i in range(g[HELD]):
        chunk = w.held[i]
        nic = w.ways[chunk].nic
        first = min(first, max(w.ways[chunk].at, w.nics[nic].in_free) + w.ways[chunk].bytes / w.nics[nic].in_rate)
    return first
