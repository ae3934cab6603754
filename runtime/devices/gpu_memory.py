"""What NVIDIA's driver says of GPUs and their memory, by ctypes: no cupy is needed, and no GPU is opened.

Sources: the CUDA driver API's reference, NVIDIA's GPUDirect RDMA guide.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from optcc.machine.findings import PartFinding

_RDMA_SUPPORTED, _DMA_BUF_SUPPORTED = 116, 124  # CUdevice_attribute
_BUFFER_ID = 7  # CUpointer_attribute


class NoDriverError(Exception):
    """There is no driver, or it refuses; the text says what."""


def examine_gpu_memory(root: Path = Path("/")) -> list[PartFinding]:
    """What the driver and the kernel offer NICs. optcc itself copies a GPU's buffers through pinned host memory."""
    gives = "GPU buffers that a NIC may reach by itself; optcc's own go by host memory"
    try:
        gpus = gpu_count()
    except NoDriverError as why:
        return [PartFinding("GPU memory for NICs", False, str(why), gives, "a machine with an NVIDIA GPU and driver")]
    offers = [f"GPU {i}: dma-buf" for i in range(gpus) if attribute(i, _DMA_BUF_SUPPORTED)]
    if (root / "sys/module/nvidia_peermem").exists():
        offers += [f"GPU {i}: nvidia-peermem" for i in range(gpus) if attribute(i, _RDMA_SUPPORTED)]
    get = "" if offers else "NVIDIA's open kernel driver (dma-buf), or modprobe nvidia-peermem"
    return [PartFinding("GPU memory for NICs", bool(offers), ", ".join(offers) or "staging only", gives, get)]


def attribute(gpu: int, number: int) -> int:
    """A CUdevice_attribute of a GPU. Raises NoDriverError where there is no driver."""
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
    """That of an address of GPU memory. Raises NoDriverError where there is none."""
    base, size, number = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_ulonglong()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    _call("cuPointerGetAttribute", ctypes.byref(number), _BUFFER_ID, ctypes.c_uint64(address))
    return Allocation(base.value, size.value, number.value)


def gpu_count() -> int:
    """How many GPUs the driver has. Raises NoDriverError where there is none."""
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
        raise NoDriverError(f"no NVIDIA driver ({missing})") from missing
    result = getattr(driver, name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(text))
        raise NoDriverError(f"{name}: {text.value.decode() if text.value else result}")
