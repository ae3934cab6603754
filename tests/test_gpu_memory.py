"""What NVIDIA's driver says of GPUs and their memory, and what the doctor makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optcc.runtime.devices import gpu_memory
from optcc.runtime.devices.gpu_memory import NoDriverError, allocation_of, examine_gpu_memory


def test_without_a_driver_the_doctor_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(gpu_memory, "_driver", missing)
    (finding,) = examine_gpu_memory(tmp_path)
    assert not finding.present
    assert "no NVIDIA driver (libcuda.so.1" in finding.seen


def test_what_the_driver_offers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_memory, "gpu_count", lambda: 2)
    monkeypatch.setattr(gpu_memory, "attribute", lambda gpu, number: int(number != 124 or gpu == 1))
    (finding,) = examine_gpu_memory(tmp_path)
    assert (finding.present, finding.seen) == (True, "GPU 1: dma-buf")
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    (finding,) = examine_gpu_memory(tmp_path)
    assert finding.seen == "GPU 1: dma-buf, GPU 0: nvidia-peermem, GPU 1: nvidia-peermem"
    monkeypatch.setattr(gpu_memory, "attribute", lambda gpu, number: 0)
    (finding,) = examine_gpu_memory(tmp_path)
    assert (finding.present, finding.seen) == (False, "staging only")


class Driver:
    """A libcuda whose memory is one allocation at 4096, of 8192 bytes."""

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:  # noqa: N802
        base._obj.value, size._obj.value = 4096, 8192
        return 0 if 4096 <= address.value < 4096 + 8192 else 1

    def cuPointerGetAttribute(self, number: Any, what: int, address: Any) -> int:  # noqa: N802
        number._obj.value = 5 if what == 7 else 0
        return 0

    def cuGetErrorName(self, result: int, text: Any) -> None:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_INVALID_VALUE" if result == 1 else None


def test_what_an_address_is_part_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_driver", Driver)
    assert allocation_of(5000) == (4096, 8192, 5)
    with pytest.raises(NoDriverError, match="cuMemGetAddressRange_v2: CUDA_ERROR_INVALID_VALUE"):
        allocation_of(100)


@pytest.mark.gpu
def test_parts_of_an_array_are_parts_of_one_allocation() -> None:
    from optcc.runtime.devices.cuda import BLOCK, Gpu

    gpu = Gpu(0)
    one, other = (gpu.empty(1000, np.dtype(np.uint8)) for _ in range(2))
    found = gpu.allocation(one)
    assert (found.base, found.nbytes) == (one.address, BLOCK)
    assert gpu.allocation(one[10:20]) == found
    assert gpu.allocation(other).number != found.number


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(NoDriverError, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        gpu_memory.attribute(99, 1)
