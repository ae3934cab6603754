"""Where a rank's buffer is: in host memory, or in a GPU's."""

from __future__ import annotations

import importlib.util
from typing import Any

from optcc.errors import InputError
from optcc.runtime.devices import gpu_memory

DEVICES = ("cpu", "cuda")
"""Buffers in host memory; in a GPU's."""


def device_of(name: str) -> str:
    """`name`, one of DEVICES; InputError for another."""
    if name not in DEVICES:
        raise InputError("no such device", where="--device", expected=" or ".join(DEVICES), got=name)
    return name


def gpu_of_rank(name: str, rank: int) -> Any:
    """Whose memory a rank's buffer is in: the `cuda.Gpu` ``rank % number of GPUs``, or None: the host's. InputError
    where there is none."""
    if device_of(name) == "cpu":
        return None
    from optcc.runtime.devices.cuda import Gpu, gpu_count

    return Gpu(rank % max(1, gpu_count()))


def check_device(name: str) -> None:
    """Raise InputError when this machine lacks what the device needs. Imports no cupy and opens no GPU."""
    if device_of(name) == "cpu":
        return
    where = f"--device {name}"
    if importlib.util.find_spec("cupy") is None:
        raise InputError(
            "cupy is not installed",
            where=where,
            hint="Install the extra `gpu` (cupy-cuda13x; cupy-cuda12x for CUDA 12); `optcc doctor` tells more.",
        )
    try:
        count = gpu_memory.gpu_count()
    except gpu_memory.NoDriverError as why:
        raise InputError(str(why), where=where, expected="a machine with an NVIDIA GPU and its driver") from why
    if not count:
        raise InputError("the driver has no GPU", where=where, expected="one GPU or more", got=0)
