"""Wires between processes whose buffers are in GPU memory: chunks are copied from GPU memory into the far GPU's.

As `LocalWires`, with two delays, because a GPU has not done yet what it has been given:

* a chunk's notification goes when the copy into its slot is done, which an event after it on the rank's stream tells;
* a credit goes when the folds that read the slots are done, likewise.

A rank gives all its copies and folds to one stream. So a copy reads what folds before it have made; and a chunk that is
sent again, over another wire, is written after the first try. So the first try cannot spoil the slot later, even if the
receiver closed the first wire during the copy.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from optcc.runtime.devices.cuda_memory import CudaMemory
from optcc.runtime.devices.gpu_array import DeviceArray, SharedArray
from optcc.runtime.engine.transport import Watch
from optcc.runtime.wires.contract import FlowSpec, Happening, Wire
from optcc.runtime.wires.cuda_slots import CudaSlots, room_for
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.local_ends import Unsent
from optcc.runtime.wires.pacing import Rates
from optcc.runtime.wires.slots import Slots

LOOK_S = 20e-6
"""Between two looks at a GPU that has work to do: the time of a small copy."""


class Copying(NamedTuple):
    """A chunk on its way into its slot, until `event`."""

    event: Any
    wire: int
    chunk: Unsent


class Owed(NamedTuple):
    """A credit that may be given after `event`."""

    event: Any
    wire: int
    flow: int
    folded: int


class CudaWires(LocalWires):
    """One rank's ends, for payloads in `memory`. `exchange` is called once more, with where the slots are.

    copying, owed : what waits for the GPU, in the order in which the GPU will be done with it
    """

    def __init__(
        self,
        memory: CudaMemory,
        rank: int,
        wires: Sequence[Wire],
        flows: Sequence[FlowSpec],
        rates: Sequence[Rates],
        *,
        exchange: Callable[[Any], list[Any]],
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gpu = memory.gpu
        self.copying: deque[Copying] = deque()
        self.owed: deque[Owed] = deque()
        self._room = memory.room(room_for(rank, flows))
        self._mapped = ExitStack()
        self._shown = exchange(self.gpu.share(self._room).as_json())
        super().__init__(rank, wires, flows, rates, exchange=exchange, watch=watch, clock=clock)

    def _slots_of(self, rank: int, fd: int | None = None) -> Slots:
        if fd is None:
            return CudaSlots(rank, self._flows, self._room)
        theirs = self._mapped.enter_context(self.gpu.open_shared(SharedArray.from_json(self._shown[rank])))
        return CudaSlots(rank, self._flows, theirs, fd)

    def payload(self, flow: int, seq: int, nbytes: int) -> DeviceArray:
        """The payload of a chunk that has arrived, in this rank's GPU memory."""
        assert isinstance(self._slots, CudaSlots)
        return self._slots.payload(flow, seq, nbytes)

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: Any, ready: float) -> None:
        """Begin to copy; `poll` does the rest when that is done."""
        start, end = self._clocks.depart(self._wires[wire].out, len(payload), ready)
        out = self._out.get(wire)
        if out is not None and self._is_open(out):
            far: Any = out.far
            self.gpu.copy(far.payload(flow, seq, len(payload)), payload)
            self.copying.append(Copying(self.gpu.mark(), wire, Unsent(flow, seq, header, payload, start, end)))

    def far_of(self, wire: int) -> Slots:
        """The slots at the far end of an outgoing wire."""
        return self._out[wire].far

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """Goes when the folds that have been enqueued so far are done."""
        self.owed.append(Owed(self.gpu.mark(), wire, flow, folded))

    def fence(self, wire: int) -> None:
        """As `LocalWires`, and no copy is under way any more."""
        self.gpu.wait()
        super().fence(wire)

    def poll(self, until: float) -> list[Happening]:
        """Look at the GPU; then as `LocalWires`, but not for long while the GPU has something to do."""
        self._settle()
        if self.copying or self.owed:
            until = min(until, self._clock() + LOOK_S)
        return super().poll(until)

    def close(self) -> None:
        """Also unmap the other ranks' slots, when no copy into them is under way any more."""
        super().close()
        self.copying.clear()
        self.owed.clear()
        self.gpu.wait()
        self._mapped.close()

    def _is_open(self, out: Any) -> bool:
        """Whether the far end has not closed; if it has, its slots are no longer there for this wire."""
        if out.far.is_closed(out.wire):
            self._fail(out.wire, os.strerror(errno.EPIPE))
            return False
        return True

    def _settle(self) -> None:
        """Notify of what has been copied, give the credits that are due. One stream does all, so in order."""
        while self.copying and self.copying[0].event.done:
            _, wire, chunk = self.copying.popleft()
            out = self._out.get(wire)
            if out is not None:  # else it was lost meanwhile
                out.unsent.append(chunk)
                self._flush(out)
        while self.owed and self.owed[0].event.done:
            _, wire, flow, folded = self.owed.popleft()
            super().credit(wire, flow, folded)
