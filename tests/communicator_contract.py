"""The communicator's contract, from its caller's side: random calls on buffers of the caller, and what each must give.

All ranks draw the same calls. Inputs depend on the rank, the call and the index, and their result is the same bits in
whatever order it is folded (`optcc.runtime.evidence.payload`); zeros of both signs, NaN and infinities are among them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from optcc.communicator.prepared import SMALL
from optcc.runtime.devices.float_bits import quiet_nan
from optcc.runtime.devices.host import DTYPES, Array, bits_of, divide, dtype_of, fold, infinity_of, reduction_of
from optcc.runtime.evidence.payload import fill

KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
OPS = ("sum", "prod", "min", "max", "avg")
UNDER_WAY = 4
"""Calls that are begun before the first of them is waited for."""


@dataclass(frozen=True)
class Call:
    """One collective. `count` : elements of each rank's part; `out` : all_reduce's result goes elsewhere."""

    number: int
    kind: str
    count: int
    dtype: str
    op: str
    root: int
    out: bool
    waits: bool


def draw(random: np.random.Generator, number: int, world: int, largest: int) -> Call:
    """A call of up to `largest` bytes per rank; small sizes are as frequent as large ones, and edges more so."""
    dtype, kind = str(random.choice(DTYPES)), str(random.choice(KINDS, p=(0.6, 0.1, 0.1, 0.1, 0.1)))
    size = dtype_of(dtype).itemsize
    most = largest // size // (1 if kind in ("all_reduce", "broadcast") else world)
    edges = [0, 1, world, SMALL // size - 1, SMALL // size, SMALL // size + 1, most]
    count = int(random.choice(edges)) if random.random() < 0.3 else int(2 ** (random.random() * np.log2(most)))
    op, root = str(random.choice(OPS)), int(random.integers(world))
    return Call(number, kind, min(count, most), dtype, op, root, *(random.random(2) < 0.5).tolist())


def given(call: Call, rank: int, world: int, parts: int) -> Array:
    """What a rank gives, as `parts` times `count` elements."""
    array = np.empty(parts * call.count, dtype_of(call.dtype))
    op = reduction_of(call.op).fold
    fill(array, rank=call.number * world + rank, ranks=world, op=op)
    if op in ("sum", "prod") and call.dtype in ("float16", "float32", "float64", "bfloat16"):
        infinity, sign = infinity_of(array.dtype), 1 << 8 * array.itemsize - 1
        odd = [0, sign, quiet_nan(infinity), infinity, infinity | sign]
        bits_of(array)[rank % 3 :: 11] = np.resize(np.array(odd, f"u{array.itemsize}"), len(array[rank % 3 :: 11]))
    return array


@lru_cache(maxsize=2 * UNDER_WAY)
def total(call: Call, world: int, parts: int) -> Array:
    """The reduction of what all ranks give."""
    reduction = reduction_of(call.op)
    made = given(call, 0, world, parts)
    for rank in range(1, world):
        fold(reduction.fold, made, given(call, rank, world, parts))
    if reduction.mean:
        divide(made, world)
    return made


def expected(call: Call, rank: int, world: int) -> Array:
    """A rank's result."""
    match call.kind:
        case "all_reduce":
            return total(call, world, 1)
        case "broadcast":
            return given(call, call.root, world, 1)
        case "all_gather":
            return np.concatenate([given(call, each, world, 1) for each in range(world)])
        case "reduce_scatter":
            return total(call, world, world)[rank * call.count :][: call.count]
        case _:
            every = [given(call, each, world, world) for each in range(world)]
            return np.concatenate([one[rank * call.count :][: call.count] for one in every])


def placed(comm: Any, call: Call, array: Array) -> Array:
    """The same elements; for every other call in an array of the communicator's, on other ranks for other calls."""
    if (call.number + comm.rank) % 2 == 0:
        return array
    own: Array = comm.empty(array.shape, array.dtype)
    own[:] = array
    return own


def begin(comm: Any, call: Call) -> Callable[[], list[str]]:
    """Calls; what it returns waits for the result and says what is wrong with it."""
    how: dict[str, Any] = {"async_op": not call.waits}
    parts = comm.world if call.kind in ("reduce_scatter", "all_to_all") else 1
    source = placed(comm, call, given(call, comm.rank, comm.world, parts))
    kept, want = source.copy(), expected(call, comm.rank, comm.world)
    elsewhere = call.out or call.kind not in ("all_reduce", "broadcast")
    target = source
    if elsewhere:
        filler = np.full(len(want), 77, np.uint8).astype(f"u{want.itemsize}").view(want.dtype)
        target = placed(comm, call, filler)
    match call.kind:
        case "all_reduce":
            made = comm.all_reduce(source, call.op, out=target if elsewhere else None, **how)
        case "broadcast":
            target, elsewhere = source, False
            made = comm.broadcast(source, call.root, **how)
        case "reduce_scatter":
            made = comm.reduce_scatter(source, target, call.op, **how)
        case kind:
            made = getattr(comm, kind)(source, target, **how)

    def check() -> list[str]:
        result = made if call.waits else made.wait(300)
        wrong = []
        if result is not target:
            wrong.append(f"{call}: another array is returned")
        bad = np.flatnonzero(bits_of(target) != bits_of(want))
        if len(bad):
            wrong.append(f"{call}: rank {comm.rank} has {len(bad)} wrong elements, the first at {bad[0]}")
        if elsewhere and not np.array_equal(bits_of(source), bits_of(kept)):
            wrong.append(f"{call}: rank {comm.rank}'s input was changed")
        return wrong

    return check


def play(comm: Any, calls: Sequence[Call], strikes: Mapping[int, tuple[str, float]] | None = None) -> list[str]:
    """All calls, several under way at a time; `fault_injection` : number of a call -> the NIC that is cut in it, and
    when.

    Returns what was wrong.
    """
    wrong: list[str] = []
    under_way: deque[Callable[[], list[str]]] = deque()
    for call in calls:
        if strikes and call.number in strikes:
            while under_way:
                wrong += under_way.popleft()()
            comm.strike("cut", *strikes[call.number])
        under_way.append(begin(comm, call))
        if len(under_way) == UNDER_WAY:
            wrong += under_way.popleft()()
    while under_way:
        wrong += under_way.popleft()()
    return wrong


def calls_of(seed: int, count: int, world: int, largest: int) -> list[Call]:
    """The first `count` calls of a seed. Every third is one of before again, on other data, as in training."""
    random, again = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    calls: list[Call] = []
    for number in range(count):
        drawn = draw(random, number, world, largest)
        calls.append(replace(calls[again.integers(number)], number=number) if number % 3 == 2 else drawn)
    return calls
