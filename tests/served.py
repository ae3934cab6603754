"""Copies and folds that the resident kernel of a GPU does, given by hand, without an engine.

The GPU is a `cuda.Gpu`, or a twin, whose kernel is native/folder_gpu.c's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array, Op, name_of
from optcc.runtime.devices.resident import OPS, TYPES

SLOTS = 1024
COPY, FOLD, END = 1, 2, 3
"""As native/folder_gpu.c has them, as is the form of a slot."""
LOW = (1 << 48) - 1

Job = tuple[int, DeviceArray, DeviceArray]
"""What to do, to what, from what."""


class Served:
    """Memory of a GPU, for `fold_contract`, and jobs on it.

    parts : that a job is cut into, one for a block, as the engine cuts long ones
    """

    def __init__(self, gpu: Any, blocks: int = 4, parts: int = 1) -> None:
        self.gpu, self.blocks, self.parts = gpu, blocks, parts
        self.put, self.get, self.empty, self.divide = gpu.put, gpu.get, gpu.empty, gpu.divide
        words = 16 * blocks
        room = gpu.pinned(words + 4 * SLOTS + 16, np.dtype(np.uint64))
        start = -room.ctypes.data % 128 // 8
        self._room: Array = room[start : start + words + 4 * SLOTS]
        self._room[:] = 0
        self._slots = self._room[words:].reshape(SLOTS, 4)
        self._next = 0

    def fold(self, op: Op, own: DeviceArray, landed: DeviceArray) -> None:
        """own = own op landed."""
        self.do([(FOLD, own, landed)], op)

    def copy(self, out: DeviceArray, source: DeviceArray) -> None:
        """out = source."""
        self.do([(COPY, out, source)])

    def do(self, jobs: Sequence[Job], op: Op = Op.SUM) -> None:
        """Jobs of one kernel, and wait for it."""
        self.start(jobs, op)
        self.gpu.wait()

    def start(self, jobs: Sequence[Job], op: Op = Op.SUM, stream: object = None) -> None:
        """The same without the wait; the next call comes after it."""
        first = self.give(jobs, op)
        self.launch(jobs[0][1].dtype, op, first, stream)

    def give(self, jobs: Sequence[Job], op: Op = Op.SUM) -> int:
        """Jobs for a kernel that is launched next; returns the first one's number."""
        first = self._next
        assert len(jobs) * self.parts + self.blocks <= SLOTS
        for task, to, source in jobs:
            what = task | (OPS.index(op) << 8 | TYPES.index(name_of(to.dtype)) << 12 if task == FOLD else 0)
            step = -(-to.count // self.parts) * to.itemsize
            for at in range(0, to.nbytes, max(1, step)):
                self._put(what, to.address + at, source.address + at, min(step, to.nbytes - at))
        for _ in range(self.blocks):
            self._put(END, 0, 0, 0)
        return first

    def launch(self, dtype: np.dtype[Any], op: Op, first: int, stream: object = None) -> None:
        """The kernel, which ends after the jobs that it has been given."""
        slots = (self._slots.ctypes.data, SLOTS)
        self.gpu.serve(dtype, op, self.blocks, slots, self._room.ctypes.data, first, stream)

    def _put(self, task: int, to: int, source: int, nbytes: int) -> None:
        assert max(to, source) <= LOW
        mark = (self._next // SLOTS + 1 & 0xFFFF) << 48
        self._slots[self._next % SLOTS, :3] = np.array(
            [mark | to, mark | source, mark | task << 32 | nbytes], np.uint64
        )
        self._next += 1

    def done(self) -> bool:
        """Whether all jobs so far are, as the blocks' words say."""
        told = self._room[: 16 * self.blocks : 16].tolist()
        last = range(max(0, self._next - self.blocks), self._next)
        return all(told[number % self.blocks] == number // self.blocks + 1 for number in last)
