"""What a rank's GPU has under way, into the arrays and back: the deques of `CudaWires`, with tickets for events."""

from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.basics import AWAKE_S
from optcc.runtime.compiled.gpu import ARGUMENTS, COPY, FOLD_BY
from optcc.runtime.compiled.tables import Lines
from optcc.runtime.devices.launches import Launches, Ticket
from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import HEADER_BYTES
from optcc.runtime.wires.cuda import Copying, CudaWires, Owed
from optcc.runtime.wires.local_ends import Unsent


def arguments_of_kernels() -> Any:
    """Room for a kernel's arguments, and their addresses."""
    arguments = np.zeros(2 * ARGUMENTS, np.int64)
    arguments[ARGUMENTS:] = [arguments.ctypes.data + arguments.itemsize * i for i in range(ARGUMENTS)]
    return arguments


def bind_gpu(launches: Launches, w: Lines, g: Any, item: int) -> None:
    """From now on copies and folds of elements of `item` bytes are started with these."""
    g[t.ON_GPU], g[t.LAUNCH], g[t.STREAM], g[t.ARRIVED] = 1, launches.function, launches.stream, launches.arrived
    g[t.DONE_AT] = launches.tickets.done.ctypes.data
    w.kernels[COPY], w.kernels[FOLD_BY] = (*launches.copies, 1), (*launches.folds, item)


def fill_gpu(wires: CudaWires, launches: Launches, w: Lines, g: Any, x: Any, now: float) -> bool:
    """False, and nothing has changed, where Python has to go on first: by a lost wire, or with more than has room."""
    tickets = launches.tickets
    if len(wires.copying) > len(w.copying) or len(wires.owed) > len(w.owed):
        return False
    if not all(w.wires["out"][it.wire] for it in wires.copying) or not all(
        w.wires["into"][it.wire] for it in wires.owed
    ):
        return False
    events = [it.event for it in wires.copying] + [it.event for it in wires.owed]
    if not all(isinstance(event, Ticket) for event in events):
        wires.gpu.wait()  # what Python has started has no tickets; it takes microseconds, for it is little
    for i, (event, wire, chunk) in enumerate(wires.copying):
        nbytes, far = len(chunk.payload), wires.far_of(wire)
        far.put(chunk.flow, chunk.seq, chunk.header, chunk.payload)  # Python would do it together with the notification
        w.copying[i] = (_number(event), wire, chunk.flow, chunk.seq, nbytes, chunk.start, chunk.end)
    for i, (event, wire, flow, folded) in enumerate(wires.owed):
        w.owed[i] = (_number(event), wire, flow, folded)
    g[t.COPYING_AT] = g[t.OWED_AT] = g[t.REFUSED] = 0
    g[t.COPIES], g[t.OWES], g[t.TICKET] = len(wires.copying), len(wires.owed), tickets.given
    x[t.AWAKE] = now + AWAKE_S
    return True


def write_back_gpu(wires: CudaWires, launches: Launches, w: Lines, g: Any) -> None:
    """As if every kernel had been started by Python. Raises TransportError where the driver has refused one."""
    tickets = launches.tickets
    tickets.given = int(g[t.TICKET])
    wires.copying.clear()
    wires.owed.clear()
    for ticket, wire, flow, seq, nbytes, start, end in _ring(w.copying, g[t.COPYING_AT], g[t.COPIES]):
        far: Any = wires.far_of(wire)
        header = bytes(far.slot(flow, seq)[:HEADER_BYTES])
        chunk = Unsent(flow, seq, header, far.payload(flow, seq, nbytes), start, end)
        wires.copying.append(Copying(Ticket(tickets, ticket), wire, chunk))
    for ticket, wire, flow, folded in _ring(w.owed, g[t.OWED_AT], g[t.OWES]):
        wires.owed.append(Owed(Ticket(tickets, ticket), wire, flow, folded))
    if g[t.REFUSED]:
        raise TransportError(f"the GPU's driver refuses a kernel: CUresult {g[t.REFUSED]}")


def _number(event: Any) -> int:
    """Of a ticket; of another event, which is over, one that is done."""
    return event.number if isinstance(event, Ticket) else 0


def _ring(records: Any, first: int, count: int) -> list[Any]:
    """What is in a ring, the oldest first."""
    return [records[(int(first) + i) % len(records)].item() for i in range(int(count))]
