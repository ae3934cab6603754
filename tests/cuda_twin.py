"""What stands for a GPU where there is none: its memory is this process's, and it does what it is given late.

Work waits in one stream. Every look at an event lets a few pieces of it be done, so whoever trusts that something has
been done, without having seen its event, reads what was there before. Kernels that compiled code starts come by a
function that stands for cuLaunchKernel; nobody looks at events then, so a thread lets the work be done.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc.machine.native import library
from optcc.runtime.devices import gpu_memory, host, memory
from optcc.runtime.devices.gpu_array import DeviceArray, SharedArray
from optcc.runtime.devices.gpu_memory import Allocation
from optcc.runtime.devices.host import Array, Op, name_of
from optcc.runtime.devices.launches import LINE, WIDTHS, Launches, Tickets
from optcc.runtime.devices.resident import OPS, TYPES

if TYPE_CHECKING:  # ranks do not take the time
    import pytest

GARBAGE = 0x5A
"""What fresh memory holds."""
ENDS_S = 5.0
"""For a kernel that was told to end."""
ARRIVED = 0xA0
"""An address that only a GPU uses."""
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, *[ctypes.c_uint] * 7, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64
)
"""cuLaunchKernel."""


def host_view(array: DeviceArray) -> Array:
    """The memory itself."""
    raw = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(raw, np.uint8).view(array.dtype)


def device_view(memory: Array) -> DeviceArray:
    """Host memory as if it were a GPU's."""
    return DeviceArray(memory.ctypes.data, len(memory), memory.dtype, 0, memory)


class TwinEvent:
    """After the first `number` pieces of work."""

    def __init__(self, gpu: TwinGpu, number: int) -> None:
        self._gpu, self._number = gpu, number

    @property
    def done(self) -> bool:
        self._gpu.some()
        return self._gpu.finished >= self._number


class TwinGpu:
    """As `cuda.Gpu`, as far as `CudaMemory` and `CudaWires` use it."""

    def __init__(self, seed: int = 0) -> None:
        self.index, self.finished, self.mapped = 0, 0, 0
        self._work: deque[Callable[[], None]] = deque()
        self._given = 0
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._kernels: list[tuple[Op | None, np.dtype[Any], int]] = []
        self._tickets = Tickets(np.zeros(1, np.int64))
        self._worker: threading.Thread | None = None
        self._serving: threading.Thread | None = None
        self._over = threading.Event()
        self.launched = 0  # kernels, by compiled code
        self.hasty = False  # tickets are done before their work
        self.refuses = 0  # an error for every kernel
        self.freed_early = 0  # arrays, while the resident kernel ran

    def some(self) -> None:
        with self._lock:
            for _ in range(min(self._random.randrange(3), len(self._work))):
                self._work.popleft()()
                self.finished += 1

    def wait(self) -> None:
        if self._serving:
            self._serving.join()
        with self._lock:
            while self._work:
                self._work.popleft()()
                self.finished += 1

    def close(self) -> None:
        """No thread works any more."""
        self._over.set()
        if self._worker:
            self._worker.join()

    def _give(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._work.append(work)
            self._given += 1

    def launches(self, dtype: np.dtype[Any], op: Op) -> Launches:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work_on, daemon=True)
            self._worker.start()
        self._kernels += [(None, np.dtype(np.uint8), width) for width in WIDTHS]
        self._kernels += [(op, dtype, width) for width in WIDTHS]
        handles = tuple(range(len(self._kernels)))
        self._function = LAUNCH(self._launch)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address
        return Launches(address, 7, handles[-6:-3], handles[-3:], ARRIVED, self._tickets)

    def _work_on(self) -> None:
        while not self._over.is_set():
            self.some()
            time.sleep(20e-6)

    def _launch(self, kernel: int, *rest: int) -> int:
        """As the driver and the kernel have it; 1, which is an error, for what a kernel would not do right."""
        blocks, threads, stream, at = rest[0], rest[3], rest[7], rest[8]
        if self.refuses:
            return self.refuses
        op, dtype, width = self._kernels[kernel]
        addresses = (ctypes.c_void_p * 9).from_address(at)
        own, landed, out, also, count, head, arrived, done, ticket = (
            ctypes.c_uint64.from_address(address or 0).value for address in addresses
        )
        lanes = max(1, width // dtype.itemsize)
        words = (count - head) // lanes
        starts = [address + head * dtype.itemsize for address in (own, landed, out)]
        if any(start % max(width, 1) for start in starts) or head > LINE or head > count:
            return 1
        if blocks * threads < max(words, head + (count - head) % lanes):
            return 1
        if stream != 7 or also or out != own or arrived != ARRIVED or done != self._tickets.done.ctypes.data:
            return 1
        to, source = (host_view(DeviceArray(a, count, dtype, self.index)) for a in (out, landed))

        def work() -> None:
            if op is None:
                host.copy(to, source)
            else:
                host.fold(op, to, source)
            self._tickets.done[0] = ticket

        self.launched += 1
        self._give(work)
        if self.hasty:
            self._tickets.done[0] = ticket
        return 0

    def pinned(self, count: int, dtype: np.dtype[Any]) -> Array:
        return np.empty(count, dtype)

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
        """The resident kernel, as a thread, by the twin of native/folder_gpu.c, once what was given before is done."""
        assert slots == (done + 128 * blocks, 1024)
        twin, lib = ctypes.c_void_p(), library()
        kind, how = TYPES.index(name_of(dtype)), OPS.index(op)
        opened = lib.optcc_gpu_twin_open(
            ctypes.c_void_p(done), blocks, kind, how, ctypes.c_uint64(first), ctypes.c_uint64(first), ctypes.byref(twin)
        )
        assert opened == 0
        self.wait()

        before = self._serving

        def run() -> None:
            if before:
                before.join()
            while lib.optcc_gpu_twin_step(twin, 4 * blocks):
                time.sleep(0)
            lib.optcc_gpu_twin_close(twin)

        self._serving = threading.Thread(target=run, daemon=True)
        self._serving.start()

    def _free(self) -> None:
        """CUDA would wait here for the resident kernel."""
        if self._serving and self._serving.is_alive():
            self.freed_early += 1

    def mark(self) -> Any:
        return TwinEvent(self, self._given)

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        memory = np.full(max(1, count * dtype.itemsize), GARBAGE, np.uint8)
        weakref.finalize(memory, self._free)
        return DeviceArray(memory.ctypes.data, count, dtype, self.index, memory)

    scratch = empty

    def copy(self, out: DeviceArray, source: DeviceArray) -> None:
        assert out.count == source.count
        self._give(lambda: host.copy(host_view(out), host_view(source)))

    def fold(self, op: Op, own: DeviceArray, landed: DeviceArray) -> None:
        assert own.count == landed.count
        assert own.dtype == landed.dtype
        self._give(lambda: host.fold(op, host_view(own), host_view(landed)))

    def divide(self, array: DeviceArray, by: int) -> None:
        self._give(lambda: host.divide(host_view(array), by))

    def put(self, host: Array, out: DeviceArray) -> None:
        host_view(out)[:] = host

    def get(self, array: DeviceArray) -> Array:
        self.wait()
        return host_view(array).copy()

    def allocation(self, array: DeviceArray) -> Allocation:
        memory = array.owner[1] if isinstance(array.owner, tuple) else array.owner
        assert isinstance(memory, np.ndarray)
        return Allocation(memory.ctypes.data, memory.nbytes, id(memory))

    def share(self, array: DeviceArray) -> SharedArray:
        return SharedArray(array.address.to_bytes(8, "little"), 0, array.count, name_of(array.dtype), 0)

    @contextmanager
    def open_shared(self, shared: SharedArray) -> Iterator[DeviceArray]:
        self.mapped += 1
        yield DeviceArray(int.from_bytes(shared.handle, "little"), shared.count, host.dtype_of(shared.dtype), 0)
        self.mapped -= 1


class SharedTwin(TwinGpu):
    """The same for ranks that are processes: its memory can be mapped by others of this machine."""

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        nbytes = max(1, count * dtype.itemsize)
        fd = os.memfd_create("twin")
        os.ftruncate(fd, nbytes)
        memory = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        weakref.finalize(memory, self._freed, fd).atexit = False
        return DeviceArray(memory.ctypes.data, count, dtype, self.index, (fd, memory))

    def _freed(self, fd: int) -> None:
        """A rank dies of what CUDA does not say: it would wait here for the resident kernel, for ever; and nobody may
        have mapped what is freed."""
        if self._serving:
            self._serving.join(ENDS_S)
        if self._serving and self._serving.is_alive():
            os.write(2, b"GPU memory is freed while a kernel runs\n")
            os.abort()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.write(2, b"GPU memory is freed that another process has mapped\n")
            os.abort()
        os.close(fd)

    def share(self, array: DeviceArray) -> SharedArray:
        name = f"/proc/{os.getpid()}/fd/{array.owner[0]}"  # type: ignore[index]
        return SharedArray(name.encode(), 0, array.count, name_of(array.dtype), self.index)

    @contextmanager
    def open_shared(self, shared: SharedArray) -> Iterator[DeviceArray]:
        fd = os.open(shared.handle, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_SH)  # until it is unmapped
        memory = np.frombuffer(mmap.mmap(fd, shared.count * host.dtype_of(shared.dtype).itemsize), np.uint8)
        yield DeviceArray(memory.ctypes.data, shared.count, host.dtype_of(shared.dtype), self.index, memory)
        os.close(fd)


def find_twins(monkeypatch: pytest.MonkeyPatch, bug: str = "") -> None:
    """From now on the ranks' processes find twins for GPUs. bug : of `twin_site`, planted in them"""
    monkeypatch.setattr(memory.importlib.util, "find_spec", lambda name: "cupy")
    monkeypatch.setattr(gpu_memory, "gpu_count", lambda: 2)
    monkeypatch.syspath_prepend(Path(__file__).parent / "twin_site")
    monkeypatch.setenv("TWIN_BUG", bug)
