"""How a NIC reaches a GPU's memory: dma-buf, else nvidia-peermem, else pinned host memory in between.

That a registration succeeds proves nothing: it can succeed where no byte gets through. So a path is taken when bytes
have gone through that NIC out of that GPU's memory, and into it, and were right. Needs no cupy: the driver is called
through ctypes. Sources: the CUDA driver API's reference (cuMemGetHandleForAddressRange),
NVIDIA's GPUDirect RDMA guide, rdma-core's ibv_reg_dmabuf_mr(3).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from optcc.machine.findings import PartFinding
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array

_RDMA_SUPPORTED, _DMA_BUF_SUPPORTED = 116, 124  # CUdevice_attribute
_DMA_BUF_FD, _SYNC_MEMOPS = 1, 6
_BUFFER_ID = 7  # CUpointer_attribute
PROBE_BYTES = 4 << 20
"""Of the memory that a path is tried on: two of the blocks that GPU memory is mapped in."""


class GpuPath(StrEnum):
    """How bytes get from a GPU's memory to a NIC and back."""

    DMABUF = "dma-buf"
    PEERMEM = "nvidia-peermem"
    STAGED = "pinned staging"


class PathRefusedError(Exception):
    """A path cannot be used; the text says why."""


@dataclass(frozen=True)
class Region:
    """GPU memory registered with a NIC. `base` is what its first byte is called in work requests.

    The base is the address by peermem, and 0 by dma-buf, which is registered from its first byte.
    """

    base: int
    lkey: int
    rkey: int
    handle: Any = field(default=None, repr=False)


class RegisteringNic(Protocol):
    """What a path is tried with: two ways to register, and one's own queue pair to send through. See `gpu_nic`."""

    name: str

    def by_dmabuf(self, fd: int, nbytes: int) -> Region:
        """Register `nbytes` of a dma-buf. PathRefusedError when the NIC's driver does not."""
        ...

    def by_address(self, address: int, nbytes: int) -> Region:
        """Register memory by its address; a GPU's if nvidia-peermem is loaded. PathRefusedError when that fails."""
        ...

    def take(self, region: Region, offset: int, nbytes: int) -> bytes:
        """Bytes that have gone out of the region through the NIC. PathRefusedError when the NIC reports an error."""
        ...

    def bring(self, region: Region, offset: int, data: bytes) -> None:
        """Write bytes into the region through the NIC. PathRefusedError when the NIC reports an error."""
        ...

    def release(self, region: Region) -> None:
        """Take back a registration."""
        ...


class GpuLike(Protocol):
    """The GPU, as `cuda.Gpu` is one."""

    index: int

    def empty(self, count: int, dtype: np.dtype[Any]) -> Any: ...
    def put(self, host: Array, out: Any = None) -> Any: ...
    def get(self, array: Any) -> Array: ...


@dataclass(frozen=True)
class PathChoice:
    """The path between a GPU and a NIC, and why those before it were refused."""

    nic: str
    gpu: int
    path: GpuPath
    refused: Mapping[GpuPath, str]

    def finding(self) -> PartFinding:
        """For the doctor."""
        why = "".join(f"; {path}: {text}" for path, text in self.refused.items())
        gives = "NICs read and write GPU buffers, with no copy through host memory"
        direct = self.path is not GpuPath.STAGED
        get = "" if direct else "an open-source GPU driver and a NIC driver with dma-buf, or modprobe nvidia-peermem"
        return PartFinding(f"GPU {self.gpu} by {self.nic}", direct, f"{self.path}{why}", gives, get)


def choose(gpu: GpuLike, nic: RegisteringNic) -> PathChoice:
    """The first path by which bytes get from `gpu` through `nic` and back whole."""
    array = gpu.empty(PROBE_BYTES, np.dtype(np.uint8))
    refused: dict[GpuPath, str] = {}
    for path in (GpuPath.DMABUF, GpuPath.PEERMEM):
        try:
            with registered(path, nic, array) as region:
                _demand_traffic(gpu, nic, array, region)
        except PathRefusedError as why:
            refused[path] = str(why)
        else:
            return PathChoice(nic.name, gpu.index, path, refused)
    return PathChoice(nic.name, gpu.index, GpuPath.STAGED, refused)


@contextmanager
def registered(path: GpuPath, nic: RegisteringNic, array: DeviceArray) -> Iterator[Region]:
    """`array`, which is of whole pages, registered with `nic` until the end of the block. Raises PathRefusedError."""
    if path is GpuPath.DMABUF:
        with exported(array) as fd:
            region = nic.by_dmabuf(fd, array.nbytes)  # which keeps the dma-buf; the descriptor need not stay open
    else:
        region = nic.by_address(array.address, array.nbytes)
    try:
        yield region
    finally:
        nic.release(region)


@contextmanager
def exported(array: DeviceArray) -> Iterator[int]:
    """The descriptor of a dma-buf of an array of whole pages. Raises PathRefusedError."""
    if array.address % mmap.PAGESIZE or array.nbytes % mmap.PAGESIZE:
        raise PathRefusedError(f"{array.nbytes} bytes at {array.address:#x} are not whole pages")
    if not attribute(array.gpu, _DMA_BUF_SUPPORTED):
        raise PathRefusedError("the GPU's driver has no dma-buf (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0)")
    fd, on = ctypes.c_int(-1), ctypes.c_uint(1)
    # Copies that wait for nothing else would leave the memory as it was when the NIC looks.
    _call("cuPointerSetAttribute", ctypes.byref(on), _SYNC_MEMOPS, ctypes.c_uint64(array.address))
    start, size = ctypes.c_uint64(array.address), ctypes.c_size_t(array.nbytes)
    _call("cuMemGetHandleForAddressRange", ctypes.byref(fd), start, size, _DMA_BUF_FD, ctypes.c_uint64(0))
    try:
        yield fd.value
    finally:
        os.close(fd.value)


def examine_gpu_memory(root: Path = Path("/")) -> list[PartFinding]:
    """What the driver and the kernel offer, without a NIC. Whether it works, `choose` says."""
    gives = "GPU buffers that a NIC may reach by itself"
    try:
        gpus = gpu_count()
    except PathRefusedError as why:
        return [PartFinding("GPU memory for NICs", False, str(why), gives, "a machine with an NVIDIA GPU and driver")]
    offers = [f"GPU {i}: dma-buf" for i in range(gpus) if attribute(i, _DMA_BUF_SUPPORTED)]
    if (root / "sys/module/nvidia_peermem").exists():
        offers += [f"GPU {i}: nvidia-peermem" for i in range(gpus) if attribute(i, _RDMA_SUPPORTED)]
    get = "" if offers else "NVIDIA's open kernel driver (dma-buf), or modprobe nvidia-peermem"
    return [PartFinding("GPU memory for NICs", bool(offers), ", ".join(offers) or "staging only", gives, get)]


def attribute(gpu: int, number: int) -> int:
    """A CUdevice_attribute of a GPU. Raises PathRefusedError where there is no driver."""
    value, device = ctypes.c_int(0), ctypes.c_int(0)
    _call("cuDeviceGet", ctypes.byref(device), gpu)
    _call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


class Allocation(NamedTuple):
    """What memory is part of. base : address; number : no other allocation of this process has or had it"""

    base: int
    nbytes: int
    number: int


def allocation_of(address: int) -> Allocation:
    """That of an address of GPU memory. Raises PathRefusedError where there is none."""
    base, size, number = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_ulonglong()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    _call("cuPointerGetAttribute", ctypes.byref(number), _BUFFER_ID, ctypes.c_uint64(address))
    return Allocation(base.value, size.value, number.value)


def gpu_count() -> int:
    """How many GPUs the driver has. Raises PathRefusedError where there is none."""
    count = ctypes.c_int(0)
    _call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


@cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuInit(0)
    return library


def _call(name: str, *arguments: Any) -> None:
    try:
        driver = _driver()
    except OSError as missing:
        raise PathRefusedError(f"no NVIDIA driver ({missing})") from missing
    result = getattr(driver, name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(text))
        raise PathRefusedError(f"{name}: {text.value.decode() if text.value else result}")


def _demand_traffic(gpu: GpuLike, nic: RegisteringNic, array: DeviceArray, region: Region) -> None:
    """Bytes out through the NIC and other bytes in, at both ends and in the middle: right, or PathRefusedError."""
    rng = np.random.default_rng()
    size = 4096
    for offset in (0, array.nbytes // 2 - size // 2, array.nbytes - size):
        part = array[offset : offset + size]
        there = rng.integers(0, 256, size, np.uint8)
        gpu.put(there, part)
        if nic.take(region, offset, size) != there.tobytes():
            raise PathRefusedError("registered, but what came out of the NIC is not what is in the GPU's memory")
        back = rng.integers(0, 256, size, np.uint8)
        nic.bring(region, offset, back.tobytes())
        if gpu.get(part).tobytes() != back.tobytes():
            raise PathRefusedError("registered, but what the NIC wrote is not in the GPU's memory")
