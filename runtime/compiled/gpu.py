"""Payloads in a GPU's memory, compiled: kernels are started here, and what waits for them goes when they are done.

What `wires.cuda` does by events goes by tickets here: see `devices.launches`.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

from optcc.runtime.compiled.basics import ASIDE, CREDIT, GOES_ON, inner
from optcc.runtime.compiled.machine import call_launch, word
from optcc.runtime.compiled.rings import has_room, notify, reply
from optcc.runtime.compiled.tables import (
    ARRIVED,
    COPIES,
    COPYING_AT,
    DONE_AT,
    LAUNCH,
    OWED_AT,
    OWES,
    REFUSED,
    STREAM,
    TICKET,
    Lines,
)

COPY, FOLD_BY = 0, 1
"""Kernels of `Device`: out = landed; out = own op landed."""
LINE, THREADS = 128, 256
"""As in `launches`, which is outside this package's stamp; a test holds them equal."""
ARGUMENTS = 9
"""Of each of them, see `kernels/fold.cu`."""


@inner  # type: ignore[misc, unused-ignore]
def start_kernel(w: Lines, g: Any, which: int, own: int, landed: int, count: int) -> None:
    """As `Gpu.fold` and `Gpu.copy` start a kernel, on `count` elements, with the next ticket.

    Where the driver refuses it, REFUSED says so, and the run ends before anything is told that waits for it.
    """
    item = w.kernels[which].item
    unlike = own ^ landed
    if (unlike & 15) == 0:
        width, kernel = 16, w.kernels[which].w16
    elif (unlike & 7) == 0:
        width, kernel = 8, w.kernels[which].w8
    else:
        width, kernel = 0, w.kernels[which].w0
    head, threads = 0, count
    if width:
        head = min(count, (-own) % LINE // item)
        threads = (count - head) * item // width
    threads = max(threads, head + LINE)
    a = w.arguments
    a[0], a[1], a[2], a[3], a[4], a[5] = own, landed, own, 0, count, head
    a[6], a[7], a[8] = g[ARRIVED], g[DONE_AT], g[TICKET] + 1
    at = a.ctypes.data + 8 * ARGUMENTS
    refused = call_launch(g[LAUNCH], kernel, (threads + THREADS - 1) // THREADS, THREADS, g[STREAM], at)
    if refused != 0:
        g[REFUSED] = refused
    g[TICKET] += 1


@inner  # type: ignore[misc, unused-ignore]
def notify_later(w: Lines, g: Any, flow: int, nbytes: int, seq: int, begins: float, ends: float, wire: int) -> None:
    """When what has been started so far is done; `copying` has room."""
    to = w.copying[(g[COPYING_AT] + g[COPIES]) % len(w.copying)]
    to.ticket, to.wire, to.flow, to.seq, to.bytes, to.start, to.end = g[TICKET], wire, flow, seq, nbytes, begins, ends
    g[COPIES] += 1


@inner  # type: ignore[misc, unused-ignore]
def credit_later(w: Lines, g: Any, wire: int, flow: int, folded: int) -> None:
    """When what has been started so far is done; `owed` has room."""
    to = w.owed[(g[OWED_AT] + g[OWES]) % len(w.owed)]
    to.ticket, to.wire, to.flow, to.folded = g[TICKET], wire, flow, folded
    g[OWES] += 1


@inner  # type: ignore[misc, unused-ignore]
def settle(w: Lines, g: Any) -> int:
    """See `CudaWires._settle`."""
    if g[COPIES] + g[OWES] == 0:
        return GOES_ON
    done = word(g[DONE_AT])
    while g[COPIES] and w.copying[g[COPYING_AT]].ticket <= done:
        it = w.copying[g[COPYING_AT]]
        if word(w.wires[it.wire].closed) != 0 or not has_room(w, w.wires[it.wire].ring, 1):
            return ASIDE
        notify(w, g, it.wire, it.flow, it.bytes, it.seq, it.start, it.end)
        g[COPYING_AT] = (g[COPYING_AT] + 1) % len(w.copying)
        g[COPIES] -= 1
    while g[OWES] and w.owed[g[OWED_AT]].ticket <= done:
        it = w.owed[g[OWED_AT]]
        if not has_room(w, w.wires[it.wire].ring, 1):
            return ASIDE
        reply(w, g, it.wire, CREDIT, it.flow, it.folded)
        g[OWED_AT] = (g[OWED_AT] + 1) % len(w.owed)
        g[OWES] -= 1
    return GOES_ON
