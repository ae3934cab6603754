"""The clocks of emulated NICs and the chunks between them, into the arrays and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.tables import Lines
from optcc.runtime.wires.pacing import Chunk, PortClocks


def fill_clocks(clocks: PortClocks, nics: Sequence[int], w: Lines, g: Any) -> None:
    """Of these NICs. There is room for all chunks. `g` : the array of whole numbers."""
    for nic in nics:
        rates = clocks.rates[nic]
        w.nics[nic] = (0, clocks._out_free[nic], clocks._in_free[nic], rates.out, rates.into)
    held = len(clocks._held)
    ways = held + len(clocks._through)
    if ways:
        every = [*clocks._held, *((at, order, -1, chunk) for at, order, chunk in clocks._through)]
        for i, (at, order, nic, chunk) in enumerate(every):
            w.ways[i] = (order, nic, *chunk, at)
        w.held[:held], w.through[: ways - held] = range(held), range(held, ways)  # heaps as they were
    unused = len(w.unused) - ways
    w.unused[:unused] = np.arange(ways, len(w.unused))
    g[t.HELD], g[t.THROUGH], g[t.UNUSED], g[t.ORDER] = held, ways - held, unused, next(clocks._order)


def write_back_clocks(clocks: PortClocks, nics: Sequence[int], w: Lines, g: Any) -> None:
    """As if every chunk had been served by the clocks themselves."""
    for nic in nics:
        _, clocks._out_free[nic], clocks._in_free[nic], _, _ = w.nics[nic].item()
    held, through = (
        (w.ways[heap[:n]].tolist() if n else []) for heap, n in ((w.held, g[t.HELD]), (w.through, g[t.THROUGH]))
    )
    clocks._held = [(at, order, nic, Chunk(*chunk)) for order, nic, *chunk, at in held]
    clocks._through = [(at, order, Chunk(*chunk)) for order, _, *chunk, at in through]
    clocks.count_from(g[t.ORDER])
