"""A GPU in the native engine: copies and folds by a kernel that runs as long as a collective does (`ResidentFolder`),
and memory that ranks of one machine read of each other (`LentGpuMemory`).

CUDA is called before a collective and after it, never while it runs: `native/folder_gpu.c` says why. The library of
native code is handed in; so is the GPU, a `cuda.Gpu` or what stands for one in tests.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from ctypes import byref, c_int, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray, SharedArray
from optcc.runtime.devices.gpu_memory import Allocation
from optcc.runtime.devices.host import Array, Op, name_of

TYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
"""In the order of enum optcc_type."""
OPS = tuple(Op)
"""In the order of enum optcc_op."""
BLOCKS, PART_BYTES = 16, 32768
"""Of the kernel: a power of two; of what a block does at a time. All kernels on a GPU run at once."""
BYTE = np.dtype(np.uint8)
LATEST_S = 60.0
"""For one of dozens of kernels to end that were launched before."""
HIGHEST = 1 << 48
"""Addresses that a job can say are below."""
OK, AGAIN = range(2)

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "optcc_gpu_bytes": (c_uint64, c_uint32),
    "optcc_gpu_slots": (c_uint64, c_uint32, c_void_p),
    "optcc_gpu_open": (c_int, c_void_p, c_uint32, c_uint64, c_void_p),
    "optcc_gpu_close": (None, c_void_p),
    "optcc_gpu_use": (c_int, c_void_p, c_void_p, c_void_p),
    "optcc_gpu_launch": (c_int, c_void_p, c_int, c_int, c_void_p),
    "optcc_gpu_idle": (c_int, c_void_p),
    "optcc_gpu_end": (c_int, c_void_p),
    "optcc_program_early": (c_uint64, c_void_p),
    "optcc_shm_lend": (c_int, c_void_p, c_void_p, c_uint64, c_int, c_void_p),
    "optcc_shm_unlend": (c_int, c_void_p, c_uint32),
    "optcc_shm_reach": (c_int, c_void_p, c_uint32, c_uint32, c_void_p, c_uint64),
}


@cache
def _function(lib: Any, name: str) -> Any:
    """A function of the library, with types, in a prototype of its own."""
    result, *arguments = _FUNCTIONS[name]
    address = ctypes.cast(getattr(lib, name), c_void_p).value
    assert address
    return ctypes.CFUNCTYPE(result, *arguments)(address)


class ResidentFolder:
    """What copies and folds for the engine of one rank, on one GPU.

    A collective: `launch`, then `optcc_progress` until `ready`, then `optcc_begin`; when it has ended, `end`. The
    caller's stream goes first, and goes on after the end. In between the thread that makes progress frees no GPU memory
    and calls nothing else of CUDA that waits for kernels: it would wait for itself.

    Raises InputError where the GPU has not the memory, and MemoryError where the host has not.
    """

    def __init__(self, lib: Any, gpu: Any, *, blocks: int = BLOCKS, part_bytes: int = PART_BYTES) -> None:
        self._lib, self.gpu, self.blocks = lib, gpu, blocks
        room = gpu.pinned(int(self._call("optcc_gpu_bytes", blocks)) + 128, BYTE)
        start = -room.ctypes.data % 128
        self._memory: Array = room[start : len(room) - 128 + start]
        self._handle = c_void_p()
        if self._call("optcc_gpu_open", self._memory.ctypes.data, blocks, part_bytes, byref(self._handle)) != OK:
            raise MemoryError("optcc_gpu_open")
        offset = c_uint64()
        self._slots = int(self._call("optcc_gpu_slots", blocks, byref(offset)))
        self._offset = offset.value
        self._early: dict[int, DeviceArray] = {}
        self._running = self._collected = False

    def _call(self, name: str, *arguments: Any) -> Any:
        return _function(self._lib, name)(*arguments)

    def use(self, program: c_void_p) -> None:
        """The program's copies and folds are this GPU's from now on, until `close`."""
        nbytes = int(self._call("optcc_program_early", program))
        early = self.gpu.empty(max(1, nbytes), BYTE)
        if self._call("optcc_gpu_use", self._handle, program, early.address) != OK:
            raise MemoryError("optcc_gpu_use")
        self._early[program.value or 0] = early

    def launch(self, buffer: DeviceArray, op: Op, stream: object = None) -> None:
        """Start the kernel, behind what `stream` has been given so far. What it is given from now on waits for `end`.

        stream : a CUDA stream of the caller, of whichever library; `Gpu.stream` if None
        Raises InputError for memory that a job cannot name, RuntimeError while a kernel runs.
        """
        if buffer.address + buffer.nbytes > HIGHEST:
            raise InputError("an address that a job cannot name", where="buffer", got=hex(buffer.address))
        first = c_uint64()
        kind = TYPES.index(name_of(buffer.dtype))
        if self._running:
            raise RuntimeError("a collective runs on this GPU")
        until = time.monotonic() + LATEST_S
        while (result := self._call("optcc_gpu_launch", self._handle, kind, OPS.index(op), byref(first))) == AGAIN:
            if time.monotonic() > until:
                raise RuntimeError("kernels of earlier collectives do not end")
        if result != OK:
            raise RuntimeError(f"the kernel is not to be had: {result}")
        self._running = True
        self._collected = gc.isenabled()
        gc.disable()  # what is collected may free GPU memory
        address = self._memory.ctypes.data
        slots = (address + self._offset, self._slots)
        self.gpu.serve(buffer.dtype, op, self.blocks, slots, address, first.value, stream)

    @property
    def ready(self) -> bool:
        """After `launch`: the caller's stream has come so far. After `end`: the kernel has ended."""
        return int(self._call("optcc_gpu_idle", self._handle)) == OK

    def end(self) -> None:
        """The collective has ended, or is not to begin: the kernel ends, and the caller's stream goes on."""
        if self._running:
            self._call("optcc_gpu_end", self._handle)
            self._running = False
            if self._collected:
                gc.enable()

    def close(self) -> None:
        """End the kernel, wait for it, give all memory back. The programs must be closed before."""
        self.end()
        self.gpu.wait()
        self._call("optcc_gpu_close", self._handle)
        self._early.clear()


class LentGpuMemory:
    """GPU memory of the ranks of one machine that they read where it lies.

    shm : the rank's optcc_shm; rank : its number there
    exchange : from each rank one value, to each all of them, by rank; it waits for all, and all call it equally often
    """

    def __init__(self, lib: Any, gpu: Any, shm: c_void_p, rank: int, exchange: Callable[[Any], list[Any]]) -> None:
        self._lib, self.gpu, self._shm, self.rank, self._exchange = lib, gpu, shm, rank, exchange
        self._mine: dict[Allocation, int] = {}
        self._mapped = ExitStack()
        self._reached: list[tuple[int, int]] = []

    def _call(self, name: str, *arguments: Any) -> None:
        if _function(self._lib, name)(self._shm, *arguments) != OK:
            raise InputError("no room for more memory that ranks read of each other", where=name)

    def lends(self, array: DeviceArray) -> bool:
        """Whether the others reach it already, as part of what was lent before."""
        return self.gpu.allocation(array) in self._mine

    def lend(self, array: DeviceArray | None) -> None:
        """Let all others read what an array of this rank is part of, or nothing new, and reach what they lend.

        All ranks call it. The memory must stay until `close`. Returns when all reach all. Raises InputError for memory
        that other processes cannot map, and for more than 64 allocations.
        """
        told: list[Any] | None = None
        if array is not None and not self.lends(array):
            allocation, region = self.gpu.allocation(array), c_uint32()
            whole = DeviceArray(allocation.base, allocation.nbytes, BYTE, array.gpu, array.owner)
            shown = self.gpu.share(whole).as_json()
            self._call("optcc_shm_lend", whole.address, whole.nbytes, 0, byref(region))
            self._mine[allocation] = region.value
            told = [region.value, shown]
        for peer, theirs in enumerate(self._exchange(told)):
            if theirs is None or peer == self.rank:
                continue
            number, shared = theirs[0], SharedArray.from_json(theirs[1])
            here = self._mapped.enter_context(self.gpu.open_shared(shared))
            if here.address + here.nbytes > HIGHEST:
                raise InputError("an address that a job cannot name", where=f"rank {peer}", got=hex(here.address))
            self._call("optcc_shm_reach", peer, number, here.address, here.nbytes)
            self._reached.append((peer, number))
        self._exchange(None)

    def close(self) -> None:
        """As `let_go`, until all ranks have: then what was lent may be freed. All ranks call it."""
        self.let_go()
        self._exchange(None)

    def let_go(self) -> None:
        """Unmap what is the others', and lend nothing any more. No collective may run."""
        for peer, number in self._reached:
            self._call("optcc_shm_reach", peer, number, None, 0)
        for region in self._mine.values():
            self._call("optcc_shm_unlend", region)
        self._reached.clear()
        self._mine.clear()
        self._mapped.close()
