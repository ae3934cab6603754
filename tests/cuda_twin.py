"""What stands for a GPU where there is none: its memory is this process's, and it does what it is given late.

Work waits until somebody waits for it, so whoever trusts that something has been done, without a wait, reads what was
there before. The resident kernel is a thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc.machine.native import library
from optcc.runtime.devices import gpu_memory, host, memory
from optcc.runtime.devices.gpu_array import DeviceArray, SharedArray
from optcc.runtime.devices.gpu_memory import Allocation
from optcc.runtime.devices.host import Array, Op, name_of
from optcc.runtime.devices.resident import OPS, TYPES

if TYPE_CHECKING:  # ranks do not take the time
    import pytest

GARBAGE = 0x5A
"""What fresh memory holds."""
ENDS_S = 5.0
"""For a kernel that was told to end."""


def host_view(array: DeviceArray) -> Array:
    """The memory itself."""
    raw = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(raw, np.uint8).view(array.dtype)


class TwinGpu:
    """As `cuda.Gpu`, as far as runs and `GpuBuffer` use it."""

    def __init__(self) -> None:
        self.index, self.mapped = 0, 0
        self._work: deque[Callable[[], None]] = deque()
        self._serving: threading.Thread | None = None
        self.freed_early = 0  # arrays, while the resident kernel ran

    def current(self) -> Any:
        return nullcontext()

    def wait(self) -> None:
        if self._serving:
            self._serving.join()
        while self._work:
            self._work.popleft()()

    def settle(self) -> None:
        self.wait()

    def _give(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def ready(self, dtype: np.dtype[Any], op: Op) -> None:
        assert (name_of(dtype), op) in product(TYPES, OPS)

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

    def copy(self, out: DeviceArray, source: DeviceArray) -> None:
        if out.address != source.address:
            self._give(lambda: np.copyto(host_view(out), host_view(source)))

    def mark(self) -> int:
        """No event: what is given later comes later."""
        return len(self._work)

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        memory = np.full(max(1, count * dtype.itemsize), GARBAGE, np.uint8)
        weakref.finalize(memory, self._free)
        return DeviceArray(memory.ctypes.data, count, dtype, self.index, memory)

    def divide(self, array: DeviceArray, by: int) -> None:
        self._give(lambda: host.divide(host_view(array), by))

    def put(self, host: Array, out: DeviceArray | None = None) -> DeviceArray:
        out = self.empty(len(host), host.dtype) if out is None else out
        host_view(out)[:] = host
        return out

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
