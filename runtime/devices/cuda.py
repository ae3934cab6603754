"""A GPU: its memory, the resident kernel, pinned host memory, memory shared between processes. The only cupy here.

Everything is enqueued and returns at once, in the order of the stream it is given, but for `put` and `get`. What must
come first is an event in `after`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray, SharedArray
from optcc.runtime.devices.gpu_memory import Allocation, allocation_of
from optcc.runtime.devices.host import Array, Op, dtype_of, name_of
from optcc.runtime.devices.interop import borrow, stream_pointer

try:
    import cupy
except ImportError as missing:
    raise InputError(
        "no cupy", where="device cuda", hint="Install the extra `gpu` (cupy-cuda13x; cupy-cuda12x for CUDA 12)."
    ) from missing

BLOCK = 2 << 20
"""Memory is taken in multiples of this, for itself: what is registered with a NIC shares no page with anything else."""
SOURCE = Path(__file__).parent / "kernels" / "fold.cu"
THREADS, LINE = 256, 128
"""Threads of a block that divides, each of which works on one word; bytes of a cache line, where the first word
starts."""
IN, OUT, WITHIN = 1, 2, 3
"""cudaMemcpyHostToDevice, back, and cudaMemcpyDeviceToDevice."""
LEGACY_STREAM = 1
"""cudaStreamLegacy: waits for, and is waited for by, all streams that are not made non-blocking."""
RESIDENT_THREADS = 512
"""Of a block of the resident kernel: as many as its launch bounds say."""

Event = Any  # cupy.cuda.Event
Stream = Any  # cupy.cuda.Stream


def gpu_count() -> int:
    """How many CUDA devices there are; 0 without a driver."""
    return int(cupy.cuda.runtime.getDeviceCount()) if cupy.cuda.is_available() else 0


def device_of_address(address: int) -> int:
    """The number of the CUDA device that the memory is of."""
    return int(cupy.cuda.runtime.pointerGetAttributes(address).device)


def current_device() -> int:
    """The number of the CUDA device that calls of this thread are for."""
    return int(cupy.cuda.runtime.getDevice())


def on_device(index: int) -> Any:
    """A context in which calls of this thread are for CUDA device `index`; then for the one that they were for."""
    return cupy.cuda.Device(index)


class Gpu:
    """CUDA device `index`. Copies in are on the stream `arrivals`, copies out on `departures`, the resident kernel on
    `resident`, all else on `stream`."""

    def __init__(self, index: int = 0) -> None:
        count = gpu_count()
        if not 0 <= index < count:
            raise InputError("no such GPU", where="device cuda", expected=f"a number below {count}", got=index)
        self.index = index
        cupy.cuda.Device(index).use()
        self.stream, self.arrivals, self.departures, self.resident = (
            cupy.cuda.Stream(non_blocking=True) for _ in range(4)
        )
        self._kernels: dict[tuple[np.dtype[Any], str], Any] = {}

    @property
    def place(self) -> str:
        """Its place on the machine's bus, for all processes the same."""
        return str(cupy.cuda.Device(self.index).pci_bus_id)

    def ready(self, dtype: np.dtype[Any], op: Op) -> None:
        """Compile and load what a collective needs, which takes seconds, and see that this GPU runs it."""
        self._kernel(dtype, f"serve_{op}")
        self.divide(self.empty(1, dtype), 1)
        self.wait()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within, calls of this thread are for this GPU, afterwards for the one that they were for before."""
        with on_device(self.index):
            yield

    # Memory

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        """Uninitialised elements in memory of their own, shape (count,); freed with the last array on it."""
        name_of(dtype)
        nbytes = max(1, -(-count * dtype.itemsize // BLOCK)) * BLOCK
        try:
            memory = cupy.cuda.Memory(nbytes)  # cudaMalloc, past cupy's pool: dma-buf and IPC take whole allocations
        except cupy.cuda.runtime.CUDARuntimeError as error:
            free, _ = cupy.cuda.runtime.memGetInfo()
            raise InputError(
                f"no memory on GPU {self.index} ({error})",
                where="device cuda",
                expected=f"{free >> 20} MiB or less, which are free",
                got=f"{nbytes >> 20} MiB",
            ) from error
        return DeviceArray(memory.ptr, count, dtype, self.index, memory)

    def pinned(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Uninitialised elements in page-locked host memory, which copies need in order to run beside other work."""
        memory = cupy.cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
        return np.frombuffer(memory, np.uint8, count * dtype.itemsize).view(dtype)

    def put(self, host: Array, out: DeviceArray | None = None) -> DeviceArray:
        """`host` on the GPU; waits until it is there."""
        out = self.empty(len(host), host.dtype) if out is None else out
        self._move(out.address, host.ctypes.data, host.nbytes, IN, self.arrivals)
        self.arrivals.synchronize()
        return out

    def get(self, array: DeviceArray) -> Array:
        """`array` in host memory, once what `stream` has been given is done."""
        host = np.empty(len(array), array.dtype)
        self.deliver(host, array, after=(self.mark(),))
        self.departures.synchronize()
        return host

    def deliver(self, host: Array, array: DeviceArray, *, after: Sequence[Event] = ()) -> None:
        """GPU to host; `host` is not touched until that is done."""
        for event in after:
            self.departures.wait_event(event)
        self._move(host.ctypes.data, array.address, array.nbytes, OUT, self.departures)

    def copy(self, out: DeviceArray, source: DeviceArray) -> None:
        """Within this GPU, on `stream`; nothing where they are the same."""
        if out.address != source.address:
            self._move(out.address, source.address, source.nbytes, WITHIN, self.stream)

    def _move(self, to: int, source: int, nbytes: int, way: int, stream: Stream) -> None:
        if nbytes:
            cupy.cuda.runtime.memcpyAsync(to, source, nbytes, way, stream.ptr)

    # Kernels

    def serve(
        self,
        dtype: np.dtype[Any],
        op: Op,
        blocks: int,
        slots: tuple[int, int],
        done: int,
        first: int,
        stream: object = None,
    ) -> None:
        """Start the resident kernel behind what `stream` has been given; what it is given from now on runs after it.

        slots : (address of jobs, how many); done : address of words; first : number of the first job, as
        native/folder_gpu.c has them; stream : a stream of whichever library, `stream` if None
        """
        pointer = self.stream.ptr if stream is None else stream_pointer(stream)
        kernel = self._kernel(dtype, f"serve_{op}")
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, pointer)
        self.resident.wait_event(event)
        kernel((blocks,), (RESIDENT_THREADS,), (*slots, done, first), stream=self.resident)
        event.record(self.resident)
        cupy.cuda.runtime.streamWaitEvent(pointer, event.ptr)

    def divide(self, array: DeviceArray, by: int) -> None:
        """Every element divided by `by` in place: floats rounded once, integers cut towards zero."""
        kernel = self._kernel(array.dtype, "divide")
        if array.count:
            head = min(array.count, -array.address % LINE // array.itemsize)
            threads = max(-(-array.nbytes // 16), head + LINE)
            arguments = (array.address, array.count, head, by)
            kernel((-(-threads // THREADS),), (THREADS,), arguments, stream=self.stream)

    def _kernel(self, dtype: np.dtype[Any], name: str) -> Any:
        if (dtype, name) not in self._kernels:
            self._kernels[dtype, name] = _module(name_of(dtype)).get_function(name).kernel
        return self._kernels[dtype, name]

    # Order

    def mark(self) -> Event:
        """An event after everything that `stream` has been given so far."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        return event

    def settle(self) -> None:
        """Until everything that `stream` has been given is done, and the kernels that it waits for."""
        self.stream.synchronize()

    def wait(self) -> None:
        """Until everything that this object's own streams have been given is done."""
        for stream in (self.resident, self.arrivals, self.stream, self.departures):
            stream.synchronize()

    # Other libraries and other processes

    def adopt(self, thing: Any, *, write: bool = True, where: str = "buffer") -> DeviceArray:
        """Another library's array, without a copy; `stream` waits for what its stream has been given so far."""
        array = borrow(
            thing, write=write, stream=self.stream.ptr, gpu_of=device_of_address, after=self._order_after, where=where
        )
        if not isinstance(array, DeviceArray) or array.gpu not in (self.index, -1):
            place = f"GPU {array.gpu}" if isinstance(array, DeviceArray) else "host memory"
            raise InputError("wrong device", where=where, expected=f"memory of GPU {self.index}", got=place)
        self._order_after(LEGACY_STREAM)
        return array

    def _order_after(self, pointer: int) -> None:
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, pointer)
        self.stream.wait_event(event)

    def allocation(self, array: DeviceArray) -> Allocation:
        """What an array is part of."""
        return allocation_of(array.address)

    def share(self, array: DeviceArray) -> SharedArray:
        """For `open_shared` in another process; the memory must stay. InputError for what no other can map."""
        base = allocation_of(array.address).base
        try:
            handle = cupy.cuda.runtime.ipcGetMemHandle(base)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise InputError(
                f"memory that no other process can map ({error})",
                where="buffer",
                expected="memory of cudaMalloc",
                hint="Arrays that the communicator allocates are; torch's are unless its segments are expandable.",
            ) from error
        return SharedArray(bytes(handle), array.address - base, array.count, name_of(array.dtype), self.index)

    @contextmanager
    def open_shared(self, shared: SharedArray) -> Iterator[DeviceArray]:
        """Another process's memory in this one's addresses, until the end of the block; not in the process it is of."""
        base = cupy.cuda.runtime.ipcOpenMemHandle(shared.handle)
        try:
            yield DeviceArray(base + shared.offset, shared.count, dtype_of(shared.dtype), self.index)
        finally:
            self.wait()
            cupy.cuda.runtime.ipcCloseMemHandle(base)


@cache
def _module(dtype: str) -> Any:
    return cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=(f"-DTYPE_{dtype}", "-std=c++17"))
