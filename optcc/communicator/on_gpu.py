"""What each collective does in a GPU's memory: the GPU copies and folds, and ranks read each other's memory.

A call's elements go through memory of the communicator's own, for that alone the other ranks have mapped. That costs
two copies within the GPU, and saves ranks from having to agree on whose array is where. It grows with the largest call,
by powers of two, and is given back with the communicator: when that closes, others may have it mapped yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optcc.communicator.buffers import Buffer, GpuBuffer, room_of, words_of
from optcc.communicator.collectives import Punctuality
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


class InPlace:
    """A caller's buffer on the communicator's GPU."""

    staged = False

    def __init__(self, memory: DeviceArray) -> None:
        self.memory = memory

    def read(self) -> DeviceArray:
        """It is there."""
        return self.memory

    def room(self) -> DeviceArray:
        """It is there."""
        return self.memory

    def take(self, written: DeviceArray) -> None:
        """It has been written to already."""


class Lifted:
    """A caller's buffer in host memory, or of another GPU: a copy on the communicator's."""

    staged = True

    def __init__(self, buffer: Buffer, gpu: Any) -> None:
        self.memory, self._buffer, self._gpu = buffer.memory, buffer, gpu

    def read(self) -> DeviceArray:
        """A copy."""
        made = self.room()
        if self.memory.nbytes:
            with self._gpu.current():
                self._gpu.put(self._buffer.read(), made)
        return made

    def room(self) -> DeviceArray:
        """Memory for as many elements."""
        count, dtype = len(self.memory), self.memory.dtype
        with self._gpu.current():
            made: DeviceArray = self._gpu.empty(count, dtype) if count else DeviceArray(0, 0, dtype, self._gpu.index)
            return made

    def take(self, written: DeviceArray) -> None:
        """Copy it back; nothing where only read is allowed, as of an array that is broadcast."""
        read_only = isinstance(self.memory, np.ndarray) and not self.memory.flags.writeable
        if read_only or not len(written):
            return
        room = self._buffer.room()
        with self._gpu.current():
            room[:] = self._gpu.get(written)
        self._buffer.take(room)


def on_gpu(buffer: Buffer, gpu: Any) -> Any:
    """A caller's buffer as one of this GPU's."""
    return InPlace(buffer.memory) if isinstance(buffer, GpuBuffer) and buffer.gpu is gpu else Lifted(buffer, gpu)


class OnGpu:
    """Of one rank among several, see `Collectives`; buffers are DeviceArrays.

    gpu : a `cuda.Gpu`, or what stands for one in tests; tell : called with ranks that come late
    """

    wrote = False

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
        start = time.monotonic()
        self._member.run(self._member.call(program, buffer, op, parts=parts))
        return time.monotonic() - start

    def _finish(self, out: DeviceArray, found: DeviceArray, reduction: Reduction | None = None) -> None:
        if reduction and reduction.mean:
            self._gpu.divide(found, self._world)
        self._gpu.copy(out, found)
        self._gpu.settle()

    def all_reduce(
        self, source: DeviceArray, target: DeviceArray, reduction: Reduction, call: str = "all_reduce"
    ) -> None:
        """See Collectives."""
        words = words_of(call, source, reduction) if call != "barrier" else "barrier()"
        small = source.nbytes <= SMALL
        with self._member.turn(words), self._gpu.current():
            room = room_of(source.nbytes) if small else source.nbytes
            program = self._prepared.call("all_reduce", room)
            self._stage(room)
            own = self._place(0, room // source.itemsize, source.dtype)
            self._gpu.copy(own[: source.count], source)
            seconds = self._run(program, own, reduction.fold)
            self._punctuality.took(seconds)
            if not small:
                self._prepared.took(source.nbytes, seconds)
            self._finish(target, own[: source.count], reduction)

    def broadcast(self, buffer: DeviceArray, root: int) -> None:
        """See Collectives."""
        with self._member.turn(words_of("broadcast", buffer, f"root {root}")), self._gpu.current():
            room = room_of(buffer.nbytes) if buffer.nbytes <= SMALL else buffer.nbytes
            program = self._prepared.call("broadcast", room, root)
            self._stage(room)
            own = self._place(0, room // buffer.itemsize, buffer.dtype)
            if self._rank == root:
                self._gpu.copy(own[: buffer.count], buffer)
            self._run(program, own, Op.MAX)
            if self._rank != root:
                self._finish(buffer, own[: buffer.count])

    def all_gather(self, source: DeviceArray, target: DeviceArray) -> None:
        """See Collectives."""
        with self._member.turn(words_of("all_gather", source)), self._gpu.current():
            program, step = self._parted("all_gather", source)
            own = self._place(0, step * self._world, source.dtype)
            self._gpu.copy(own[self._rank * step :][: source.count], source)
            self._punctuality.took(self._run(program, own, Op.MAX))
            self._spread(own, step, target)

    def reduce_scatter(self, source: DeviceArray, target: DeviceArray, reduction: Reduction) -> None:
        """See Collectives."""
        with self._member.turn(words_of("reduce_scatter", source, reduction)), self._gpu.current():
            program, step = self._parted("reduce_scatter", target)
            own = self._place(0, step * self._world, source.dtype)
            self._gather(source, own, step)
            self._punctuality.took(self._run(program, own, reduction.fold))
            self._finish(target, own[self._rank * step :][: target.count], reduction)

    def all_to_all(self, source: DeviceArray, target: DeviceArray) -> None:
        """See Collectives."""
        part = source[: source.count // self._world]
        with self._member.turn(words_of("all_to_all", source)), self._gpu.current():
            program, step = self._parted("all_gather", part, 2)
            own = self._place(0, step * self._world, source.dtype)
            parts = self._place(own.nbytes, step * self._world, source.dtype)
            self._gather(source, parts, step)
            self._gpu.copy(own[self._rank * step :][:step], parts[self._rank * step :][:step])
            self._punctuality.took(self._run(program, own, Op.MAX, parts))
            self._spread(own, step, target)

    def _parted(self, kind: str, part: DeviceArray, times: int = 1) -> tuple[NativeProgram, int]:
        """The program of a call of parts like this one, and elements from one part to the next on the stage, which has
        `times` all parts."""
        room = room_of(part.nbytes) if part.nbytes <= SMALL else part.nbytes
        program = self._prepared.call(kind, room)
        self._stage(times * room * self._world)
        return program, room // part.itemsize

    def _gather(self, source: DeviceArray, own: DeviceArray, step: int) -> None:
        """Parts of a caller's array to where they are on the stage."""
        size = source.count // self._world
        for rank in range(self._world if step != size else 0):
            self._gpu.copy(own[rank * step :][:size], source[rank * size :][:size])
        if step == size:
            self._gpu.copy(own, source)

    def _spread(self, own: DeviceArray, step: int, target: DeviceArray) -> None:
        """The reverse."""
        size = target.count // self._world
        for rank in range(self._world if step != size else 0):
            self._gpu.copy(target[rank * size :][:size], own[rank * step :][:size])
        if step == size:
            self._gpu.copy(target, own)
        self._gpu.settle()
