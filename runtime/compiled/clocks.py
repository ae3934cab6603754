"""The clocks of emulated NICs and the chunks between them, into the arrays and back."""

from __future__ import annotations

from typing import Any

from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.tables import Lines
from optcc.runtime.wires.pacing import Chunk, PortClocks


def fill_clocks(clocks: PortClocks, w: Lines, g: Any) -> None:
    """There is room for all chunks. `g` : the array of whole numbers."""
    ways = len(clocks._held) + len(clocks._through)
    w.nics["out_rate"], w.nics["in_rate"] = [r.out for r in clocks.rates], [r.into for r in clocks.rates]
    w.nics["out_free"], w.nics["in_free"] = clocks._out_free, clocks._in_free
    for i, (at, order, nic, chunk) in enumerate(
        [*clocks._held, *((at, order, -1, chunk) for at, order, chunk in clocks._through)]
    ):
        w.ways["at"][i], w.ways["order"][i], w.ways["nic"][i], w.ways["flow"][i] = at, order, nic, chunk.flow
        w.ways["seq"][i], w.ways["bytes"][i], w.ways["wire"][i] = chunk.seq, chunk.nbytes, chunk.wire
    held = len(clocks._held)
    w.held[:held], w.through[: ways - held] = range(held), range(held, ways)  # heaps as they were
    unused = len(w.unused) - ways
    w.unused[:unused] = range(ways, len(w.unused))
    g[t.HELD], g[t.THROUGH], g[t.UNUSED], g[t.ORDER] = held, ways - held, unused, next(clocks._order)


def write_back_clocks(clocks: PortClocks, w: Lines, g: Any) -> None:
    """As if every chunk had been served by the clocks themselves."""
    clocks._out_free[:], clocks._in_free[:] = w.nics["out_free"].tolist(), w.nics["in_free"].tolist()
    held, through = w.ways[w.held[: g[t.HELD]]].tolist(), w.ways[w.through[: g[t.THROUGH]]].tolist()
    clocks._held = [(at, order, nic, Chunk(*chunk)) for order, nic, *chunk, at in held]
    clocks._through = [(at, order, Chunk(*chunk)) for order, _, *chunk, at in through]
    clocks.count_from(int(g[t.ORDER]))
