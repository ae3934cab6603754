"""Pinned host memory between a GPU and a NIC that cannot reach it: copies by chunk, beside folds and the network."""

from __future__ import annotations

import numpy as np

from optcc.runtime.devices.cuda import Event, Gpu
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array


class Staging:
    """`slots` pieces of pinned memory of `slot_bytes` each; each holds one chunk on its way.

    Copies run beside folds, and both directions at once, on the GPU's streams for arrivals and departures. A slot is
    free for a NIC, or for the next copy, when its last copy's event has happened. Slots of 2 MiB or more: every copy
    costs the GPU's copy engine 1 to 3 us beyond its bytes (docs/bench-gpu.md).
    """

    def __init__(self, gpu: Gpu, slots: int, slot_bytes: int) -> None:
        self._gpu = gpu
        self.memory = gpu.pinned(slots * slot_bytes, np.dtype(np.uint8))
        self._slots = [self.memory[i * slot_bytes : (i + 1) * slot_bytes] for i in range(slots)]
        self._last: list[Event] = [gpu.mark() for _ in range(slots)]

    def slot(self, index: int) -> Array:
        """Its bytes, shape (slot_bytes,): what is registered with the NIC."""
        return self._slots[index]

    def out(self, index: int, array: DeviceArray, after: tuple[Event, ...] = ()) -> Event:
        """Copy `array` out into a slot, once `after` has happened on the GPU; the event says when it may be sent,
        and is used again for the slot's next copy."""
        self.finished(index)
        self._gpu.deliver(self._slots[index][: array.nbytes], array, after=after)
        return self._gpu.mark(self._gpu.departures, self._last[index])

    def into(self, array: DeviceArray, index: int) -> Event:
        """Copy a slot's first bytes, which have arrived, into `array`; the event says when that may be folded."""
        self.finished(index)
        self._gpu.fetch(array, self._slots[index][: array.nbytes])
        return self._gpu.mark(self._gpu.arrivals, self._last[index])

    def finished(self, index: int) -> None:
        """Wait until the last copy from or to a slot is done."""
        self._last[index].synchronize()

    def wait(self) -> None:
        """Wait until all copies are done."""
        for event in self._last:
            event.synchronize()
