"""What each collective does in a GPU's memory: the GPU copies and folds, and ranks read each other's memory.

A call's elements go through memory of the communicator's own, for that alone the other ranks have mapped. That costs
two copies within the GPU, and saves ranks from having to agree on whose array is where. It grows with the largest call,
by powers of two, and is given back with the communicator: when that closes, others may have it mapped yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optcc.communicator.buffers import Buffer, GpuBuffer, InPlace, room_of
from optcc.communicator.collectives import ALL_REDUCE, COPY, CallKind, Collectives, Punctuality
from optcc.communicator.prepared import SMALL, Prepared
from optcc.errors import InputError
from optcc.runtime.control.member import Member
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Op, Reduction
from optcc.runtime.messages import Note
from optcc.runtime.native.library import NativeProgram
from optcc.runtime.native.wires import SHARED_GPU, GpuTuning

BYTE = np.dtype(np.uint8)
LEAST_BYTES = 32 << 20
"""Of that memory: to make it, all ranks wait for each other."""

OWN_GPU = GpuTuning(segment=2 << 20, window=32 << 20, blocks=64, part=128 << 10)
"""Where no two ranks share a GPU: as many blocks as there can be, and few segments, for each takes some microseconds of
the processor: docs/bench-gpu-communicator.md has others."""


def tuning_for(gpus: Sequence[object]) -> GpuTuning:
    """gpus : of each rank, something that only ranks of one GPU have in common"""
    return OWN_GPU if len({*map(str, gpus)}) == len(gpus) else SHARED_GPU


class Lifted:
    """A caller's buffer in host memory, or of another GPU: a copy on the communicator's."""

    staged = True

    def __init__(self, buffer: Buffer, gpu: Any) -> None:
        self.memory, self.address, self._buffer, self._gpu = buffer.memory, buffer.address, buffer, gpu

    def read(self) -> InPlace:
        """A copy."""
        made = self.room()
        if self.memory.nbytes:
            with self._gpu.current():
                self._gpu.put(self._buffer.read().memory, made.memory)
        return made

    def room(self) -> InPlace:
        """Memory for as many elements."""
        count, dtype = len(self.memory), self.memory.dtype
        with self._gpu.current():
            return InPlace(self._gpu.empty(count, dtype) if count else DeviceArray(0, 0, dtype, self._gpu.index))

    def take(self, written: InPlace) -> None:
        """Copy it back; nothing where only read is allowed, as of an array that is broadcast."""
        read_only = isinstance(self.memory, np.ndarray) and not self.memory.flags.writeable
        if read_only or not len(written.memory):
            return
        room = self._buffer.room()
        with self._gpu.current():
            room.memory[:] = self._gpu.get(written.memory)
        self._buffer.take(room)


def on_gpu(buffer: Buffer, gpu: Any) -> Any:
    """A caller's buffer as one of this GPU's."""
    return InPlace(buffer.memory) if isinstance(buffer, GpuBuffer) and buffer.gpu is gpu else Lifted(buffer, gpu)


class OnGpu(Collectives):
    """Of one rank among several; buffers are DeviceArrays.

    gpu : a `cuda.Gpu`, or what stands for one in tests; tell : called with ranks that come late
    """

    def __init__(self, member: Member, prepared: Prepared, gpu: Any, tell: Callable[[Sequence[Note]], None]) -> None:
        self._member, self._prepared, self._gpu = member, prepared, gpu
        self._punctuality = Punctuality(member.exchange, tell)
        self._rank, self._world = member.rank, member.world
        self._memory: DeviceArray | None = None
        self._kept: list[DeviceArray] = []  # others have it mapped until wires are made anew
        self._ready: set[tuple[np.dtype[Any], Op]] = set()
        self._wires = 0  # over which it was lent

    def _stage(self, nbytes: int) -> DeviceArray:
        """So many bytes that the other ranks read. All ranks call it alike, once there are wires for the call."""
        if self._wires != self._prepared.age:
            self._kept.clear()
        if self._memory is None or self._memory.nbytes < nbytes:
            if self._memory is not None and self._wires == self._prepared.age:
                self._kept.append(self._memory)
            self._memory = self._made(max(LEAST_BYTES, 1 << (nbytes - 1).bit_length()))
            self._wires = -1
        if self._wires != self._prepared.age:
            self._member.lend(self._memory)
            self._wires = self._prepared.age
        return self._memory

    def _made(self, nbytes: int) -> DeviceArray:
        """Memory of the GPU. InputError on all ranks where one of them has too little."""
        made: DeviceArray | None = None
        refused: str | None = None
        try:
            made = self._gpu.empty(nbytes, BYTE)
        except InputError as error:
            refused = str(error)
        said = self._member.exchange(refused)
        lacking = "; ".join(f"rank {rank}: {words}" for rank, words in enumerate(said) if words)
        if lacking or made is None:
            hint = "Make smaller calls, or free memory of the GPU."
            raise InputError("too little memory for a call", where="device", got=lacking, hint=hint)
        return made

    def _place(self, at: int, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        """Elements of the stage, `at` bytes from its beginning."""
        assert self._memory
        memory = self._memory
        return DeviceArray(memory.address + at, count, dtype, memory.gpu, memory.owner)

    def _run(self, program: NativeProgram, buffer: DeviceArray, op: Op, parts: DeviceArray | None = None) -> float:
        if (buffer.dtype, op) not in self._ready:
            self._gpu.ready(buffer.dtype, op)
            self._ready.add((buffer.dtype, op))
        return self._member.run(self._member.call(program, buffer, op, parts=parts))

    def do(
        self, kind: CallKind, x: InPlace, out: InPlace, reduction: Reduction = COPY, root: int | None = None
    ) -> None:
        source, target = x.memory, out.memory
        count = source.count // self._world if kind.parts_in else source.count  # of a part, where there are any
        nbytes = count * source.itemsize
        small = nbytes <= SMALL
        room = room_of(nbytes) if small else nbytes
        step = room // source.itemsize
        parted, exchanged = kind.parts_in or kind.parts_out, kind.parts_in and kind.parts_out
        own_count = step * self._world if parted else step
        with self._member.turn(kind.words(source, reduction, root)), self._gpu.current():
            program = self._prepared.call(kind.schedule, room, root or 0)
            self._stage((2 if exchanged else 1) * own_count * source.itemsize)
            own = self._place(0, own_count, source.dtype)
            given = self._place(own.nbytes, own_count, source.dtype) if exchanged else own
            mine = own[self._rank * step :][:count] if parted else own[:count]
            if kind.parts_in:
                self._copy_parts(given, source, step, back=False)
            elif root in (None, self._rank):
                self._gpu.copy(mine, source)
            if exchanged:
                self._gpu.copy(mine, given[self._rank * step :][:count])
            seconds = self._run(program, own, reduction.fold, given if exchanged else None)
            if root is None:
                self._punctuality.took(seconds)
            if kind is ALL_REDUCE and not small:
                self._prepared.took(source.nbytes, seconds)
            if kind.parts_out:
                self._copy_parts(own, target, step, back=True)
            elif root != self._rank:
                if reduction.mean:
                    self._gpu.divide(mine, self._world)
                self._gpu.copy(target, mine)
            self._gpu.settle()

    def _copy_parts(self, stage: DeviceArray, array: DeviceArray, step: int, *, back: bool) -> None:
        """Of a caller's array, one for each rank, to where they are on the stage, every `step` elements; or `back`."""
        size, places = array.count // self._world, range(self._world)
        pairs = [(stage[rank * step :][:size], array[rank * size :][:size]) for rank in places]
        for there, here in pairs if step != size else [(stage, array)]:
            self._gpu.copy(*((here, there) if back else (there, here)))
