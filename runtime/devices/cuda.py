"""A GPU: its memory, folds on its streams, pinned host memory, memory shared between processes. The only cupy here.

Everything is enqueued and returns at once, in the order of the stream it is given: the fold stream unless another is
named. What must come first is an event in `after`, so a fold runs beside the landings of the next chunks.
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
from optcc.runtime.devices.interop import borrow, demand_alike, stream_pointer

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
"""Threads of a block of the other kernels, each of which works on one word; bytes of a cache line: the first words of a
fold start one, at the output."""
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


def describe_gpu(index: int) -> str:
    """For people: the GPU, its driver's and cupy's versions. Nothing is opened."""
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    driver, runtime = cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion()
    return f"{properties['name'].decode()}, CUDA driver {driver}, runtime {runtime}, cupy {cupy.__version__}"


def on_device(index: int) -> Any:
    """A context in which calls of this thread are for CUDA device `index`; then for the one that they were for."""
    return cupy.cuda.Device(index)


class Gpu:
    """CUDA device `index`. `stream` is its fold stream, `receive_path` the one that copies in, `send_path` out."""

    def __init__(self, index: int = 0) -> None:
        count = gpu_count()
        if not 0 <= index < count:
            raise InputError("no such GPU", where="device cuda", expected=f"a number below {count}", got=index)
        self.index = index
        cupy.cuda.Device(index).use()
        self.stream, self.arrivals, self.departures, self.resident = (self.new_stream() for _ in range(4))
        self._kernels: dict[tuple[np.dtype[Any], str, int | None], Any] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within, calls of this thread are for this GPU, afterwards for the one that they were for before."""
        with on_device(self.index):
            yield

    def new_stream(self) -> Stream:
        """A stream that waits for no other of its own accord."""
        return cupy.cuda.Stream(non_blocking=True)

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

    def scratch(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        """Uninitialised elements for work on the fold stream alone, shape (count,).

        Freed with the last array on it: then it is used again, by work that the fold stream is given later.
        """
        memory = cupy.cuda.alloc(max(1, count * dtype.itemsize))
        return DeviceArray(memory.ptr, count, dtype, self.index, memory)

    def pinned(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Uninitialised elements in page-locked host memory, which copies need in order to run beside other work."""
        memory = cupy.cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
        return np.frombuffer(memory, np.uint8, count * dtype.itemsize).view(dtype)

    def put(self, host: Array, out: DeviceArray | None = None) -> DeviceArray:
        """`host` on the GPU; waits until it is there."""
        out = self.empty(len(host), host.dtype) if out is None else out
        self.fetch(out, host)
        self.arrivals.synchronize()
        return out

    def get(self, array: DeviceArray) -> Array:
        """`array` in host memory, once what is enqueued on the fold stream has been done."""
        host = np.empty(len(array), array.dtype)
        self.deliver(host, array, after=(self.mark(),))
        self.departures.synchronize()
        return host

    def fetch(self, out: DeviceArray, host: Array, *, after: Sequence[Event] = (), stream: Stream = None) -> None:
        """Host to GPU, on `receive_path`. `host` stays as it is until that is done."""
        self._move(out.address, host.ctypes.data, host.nbytes, 1, after, stream or self.arrivals)

    def deliver(self, host: Array, array: DeviceArray, *, after: Sequence[Event] = (), stream: Stream = None) -> None:
        """GPU to host, on `send_path`."""
        self._move(host.ctypes.data, array.address, array.nbytes, 2, after, stream or self.departures)

    def copy(
        self, out: DeviceArray, source: DeviceArray, *, after: Sequence[Event] = (), stream: Stream = None
    ) -> None:
        """out = source, in the GPU's memory, by a kernel: beside other work, cudaMemcpy is slower at most sizes."""
        demand_alike(source, source, out, None)
        self._launch("take", source, source, out, None, after, stream or self.stream)

    def memcpy(self, out: DeviceArray, source: DeviceArray) -> None:
        """The same by cudaMemcpyAsync, on the fold stream: what benchmarks compare with."""
        self._move(out.address, source.address, source.nbytes, 3, (), self.stream)

    def _move(self, to: int, source: int, nbytes: int, kind: int, after: Sequence[Event], stream: Stream) -> None:
        for event in after:
            stream.wait_event(event)
        if nbytes:
            cupy.cuda.runtime.memcpyAsync(to, source, nbytes, kind, stream.ptr)

    # Folds

    def fold(
        self,
        op: Op,
        own: DeviceArray,
        landed: DeviceArray,
        out: DeviceArray | None = None,
        also: DeviceArray | None = None,
        *,
        after: Sequence[Event] = (),
        stream: Stream = None,
    ) -> None:
        """out = own op landed, in one pass over memory; `out` is `own` unless it is given, `also` gets the same.

        `out` or `also` may be the next hop's buffer, another GPU's or process's that is mapped here. InputError when
        arrays differ in length, type or GPU, or overlap without being the same.
        """
        out = own if out is None else out
        demand_alike(own, landed, out, also)
        self._launch(str(op), own, landed, out, also, after, stream or self.stream)

    def _launch(
        self,
        name: str,
        own: DeviceArray,
        landed: DeviceArray,
        out: DeviceArray,
        also: DeviceArray | None,
        after: Sequence[Event],
        stream: Stream,
    ) -> None:
        for event in after:
            stream.wait_event(event)
        count, too = out.count, 0 if also is None else also.address
        if not count:
            return
        unlike = (own.address ^ out.address) | (landed.address ^ out.address) | (too and too ^ out.address)
        # A width serves when all addresses lie alike within a word of it.
        width = 16 if unlike % 16 == 0 else 8 if unlike % 8 == 0 else 0
        head = min(count, -out.address % LINE // out.itemsize) if width else 0
        threads = max((count - head) * out.itemsize // width if width else count, head + LINE)
        kernel = self._kernels.get((out.dtype, name, width)) or self._kernel(out.dtype, name, width)
        arguments = (own.address, landed.address, out.address, too, count, head, 0, 0, 0)
        kernel((-(-threads // THREADS),), (THREADS,), arguments, stream=stream)

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
        native/folder_gpu.c has them; stream : the fold stream if None
        """
        pointer = self.stream.ptr if stream is None else stream_pointer(stream)
        kernel = self._kernels.get((dtype, f"serve_{op}", None)) or self._kernel(dtype, f"serve_{op}", None)
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, pointer)
        self.resident.wait_event(event)
        kernel((blocks,), (RESIDENT_THREADS,), (*slots, done, first), stream=self.resident)
        event.record(self.resident)
        cupy.cuda.runtime.streamWaitEvent(pointer, event.ptr)

    def divide(self, array: DeviceArray, by: int, *, after: Sequence[Event] = (), stream: Stream = None) -> None:
        """Every element divided by `by` in place: floats rounded once, integers cut towards zero."""
        stream = stream or self.stream
        for event in after:
            stream.wait_event(event)
        if array.count:
            head = min(array.count, -array.address % LINE // array.itemsize)
            threads = max(-(-array.nbytes // 16), head + LINE)
            arguments = (array.address, array.count, head, by)
            self._kernel(array.dtype, "divide", None)((-(-threads // THREADS),), (THREADS,), arguments, stream=stream)

    def _kernel(self, dtype: np.dtype[Any], name: str, width: int | None) -> Any:
        made = _module(name_of(dtype)).get_function(name if width is None else f"{name}_{width}").kernel
        self._kernels[dtype, name, width] = made
        return made

    # Order

    def mark(self, stream: Stream = None, event: Event = None) -> Event:
        """An event after everything that `stream` has been given so far; `event` if one is given to be used again."""
        event = event or cupy.cuda.Event(disable_timing=True)
        event.record(stream or self.stream)
        return event

    def wait(self) -> None:
        """Until everything that this object's own streams have been given is done."""
        for stream in (self.resident, self.arrivals, self.stream, self.departures):
            stream.synchronize()

    # Other libraries and other processes

    def adopt(self, thing: Any, *, write: bool = True, stream: object = None) -> DeviceArray:
        """Another library's array, without a copy; folds wait for what its stream has been given so far.

        stream : the stream it was last worked on, where the object itself does not say; cudaStreamLegacy if None
        """
        array = borrow(thing, write=write, stream=self.stream.ptr, gpu_of=device_of_address, after=self._order_after)
        if not isinstance(array, DeviceArray) or array.gpu not in (self.index, -1):
            place = f"GPU {array.gpu}" if isinstance(array, DeviceArray) else "host memory"
            raise InputError("wrong device", where="buffer", expected=f"memory of GPU {self.index}", got=place)
        self._order_after(LEGACY_STREAM if stream is None else stream_pointer(stream))
        return array

    def release_to(self, stream: object) -> None:
        """What `stream` is given from now on runs after the folds enqueued so far."""
        event = self.mark()  # lives until the stream has been told
        cupy.cuda.runtime.streamWaitEvent(stream_pointer(stream), event.ptr)

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

    @contextmanager
    def recorded(self, stream: Stream) -> Iterator[list[Any]]:
        """What is given to `stream`, and to streams that wait for it, is not run but becomes a graph: [graph]."""
        graph: list[Any] = []
        stream.begin_capture()
        try:
            yield graph
        finally:
            graph.append(stream.end_capture())


@cache
def _module(dtype: str) -> Any:
    return cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=(f"-DTYPE_{dtype}", "-std=c++17"))
