"""The steps of a schedule on one GPU: a buffer and a stream per rank, recorded once as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from optcc.runtime.devices.cuda import LINE, Gpu
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Reduction
from optcc.runtime.engine.replay import Place, Steps


class Replay:
    """`steps` on `buffers`, one per rank, all on one GPU. A context manager that frees its slots and its graph."""

    def __init__(self, gpu: Gpu, plan: Steps, buffers: Sequence[DeviceArray], reduction: Reduction) -> None:
        self._gpu, self._plan, self._buffers, self._reduction = gpu, plan, buffers, reduction
        self._slots = [
            [gpu.empty(length + LINE, np.dtype(np.uint8)) for length in lengths] for lengths in plan.slot_bytes
        ]
        self._streams = [gpu.new_stream() for _ in buffers]
        self._graph: Any = None

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gpu.stream.synchronize()
        self._graph = None
        self._slots = []

    def enqueue(self) -> None:
        """Give every step to its rank's stream; the fold stream goes on when all are done."""
        gpu = self._gpu
        start = gpu.mark()
        for stream in self._streams:
            stream.wait_event(start)
        awaited = {before for step in self._plan.steps for before in step.after}
        done: dict[int, Any] = {}
        for index, step in enumerate(self._plan.steps):
            stream, after = self._streams[step.rank], [done[before] for before in step.after]
            if step.own is None:
                gpu.copy(self._at(step.out), self._at(step.source), after=after, stream=stream)
            else:
                also = None if step.also is None else self._at(step.also)
                own, source, out = self._at(step.own), self._at(step.source), self._at(step.out)
                gpu.fold(self._reduction.fold, own, source, out, also, after=after, stream=stream)
            if index in awaited:
                done[index] = gpu.mark(stream)
        if self._reduction.mean:
            # A rank's last sends are read on the receivers' streams: all of them come first.
            ends = [gpu.mark(stream) for stream in self._streams]
            for stream, buffer in zip(self._streams, self._buffers, strict=True):
                gpu.divide(buffer, len(self._buffers), after=ends, stream=stream)
        for stream in self._streams:
            gpu.stream.wait_event(gpu.mark(stream))

    def record(self) -> None:
        """Make a graph of all steps; kernels that have not run yet are compiled first."""
        one, other = (self._gpu.put(np.zeros(1, self._buffers[0].dtype)) for _ in range(2))
        self._gpu.fold(self._reduction.fold, one, other)
        self._gpu.copy(one, other)
        self._gpu.divide(one, 1)
        self._gpu.wait()
        with self._gpu.recorded(self._gpu.stream) as graph:
            self.enqueue()
        self._graph = graph[0]

    def run(self) -> None:
        """Run the graph on the fold stream; returns at once."""
        if self._graph is None:
            self.record()
        self._graph.launch(self._gpu.stream)

    def _at(self, place: Place) -> DeviceArray:
        buffer = self._buffers[place.rank]
        if place.slot < 0:
            item = buffer.itemsize
            return buffer[place.offset // item : (place.offset + place.length) // item]
        # Where its bytes lie in the buffer modulo a line, so that a fold reads whole words from both.
        shift = (buffer.address + place.offset) % LINE
        return self._slots[place.rank][place.slot][shift : shift + place.length].view(buffer.dtype)
