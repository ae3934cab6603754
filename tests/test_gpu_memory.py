"""The path between a NIC and a GPU is the one by which bytes get through, whatever registrations say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optcc.runtime.devices import gpu_memory
from optcc.runtime.devices.gpu_memory import (
    PROBE_BYTES,
    GpuPath,
    PathChoice,
    PathRefusedError,
    Region,
    choose,
    examine_gpu_memory,
)


class Addressed(np.ndarray):
    address = 4096


class FakeGpu:
    """Its memory is numpy's; arrays are views, so that parts are written in place."""

    index = 2

    def empty(self, count: int, dtype: np.dtype[Any]) -> Any:
        self.memory = np.zeros(count, dtype).view(Addressed)
        return self.memory

    def put(self, host: np.ndarray, out: Any = None) -> Any:
        out[:] = host
        return out

    def get(self, array: Any) -> np.ndarray:
        return array.copy()


class FakeNic:
    """Paths in `registers` register; `faults` says what then goes wrong with their traffic."""

    name = "mlx5_0"

    def __init__(self, gpu: FakeGpu, registers: set[GpuPath], faults: dict[GpuPath, str] | None = None) -> None:
        self.gpu, self.registers, self.faults = gpu, registers, faults or {}
        self.live = 0

    def _register(self, path: GpuPath) -> Region:
        if path not in self.registers:
            raise PathRefusedError("Operation not supported")
        self.live += 1
        return Region(0, 1, 1, path)

    def by_dmabuf(self, fd: int, nbytes: int) -> Region:
        assert (fd, nbytes) == (33, PROBE_BYTES)
        return self._register(GpuPath.DMABUF)

    def by_address(self, address: int, nbytes: int) -> Region:
        assert nbytes == PROBE_BYTES
        return self._register(GpuPath.PEERMEM)

    def take(self, region: Region, offset: int, nbytes: int) -> bytes:
        fault = self.faults.get(region.handle)
        if fault == "error":
            raise PathRefusedError("the NIC reports LOC_PROT_ERR")
        data: bytes = self.gpu.memory[offset : offset + nbytes].tobytes()
        if fault == "zeros" or (fault == "last page" and offset + nbytes == PROBE_BYTES):
            return bytes(nbytes)
        return data

    def bring(self, region: Region, offset: int, data: bytes) -> None:
        if self.faults.get(region.handle) != "lost":
            self.gpu.memory[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def release(self, region: Region) -> None:
        self.live -= 1


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that exports."""

    @contextmanager
    def exported(array: Any) -> Iterator[int]:
        yield 33

    monkeypatch.setattr(gpu_memory, "exported", exported)


BOTH = {GpuPath.DMABUF, GpuPath.PEERMEM}


@pytest.mark.usefixtures("export")
@pytest.mark.parametrize(
    ("registers", "faults", "path"),
    [
        (BOTH, {}, GpuPath.DMABUF),
        ({GpuPath.PEERMEM}, {}, GpuPath.PEERMEM),
        (set(), {}, GpuPath.STAGED),
        (BOTH, {GpuPath.DMABUF: "zeros"}, GpuPath.PEERMEM),
        (BOTH, {GpuPath.DMABUF: "lost"}, GpuPath.PEERMEM),
        (BOTH, {GpuPath.DMABUF: "last page"}, GpuPath.PEERMEM),
        (BOTH, {GpuPath.DMABUF: "error"}, GpuPath.PEERMEM),
        (BOTH, {GpuPath.DMABUF: "zeros", GpuPath.PEERMEM: "lost"}, GpuPath.STAGED),
    ],
)
def test_the_path_that_carries_bytes_is_taken(
    registers: set[GpuPath], faults: dict[GpuPath, str], path: GpuPath
) -> None:
    gpu = FakeGpu()
    nic = FakeNic(gpu, registers, faults)
    choice = choose(gpu, nic)
    assert choice.path is path
    assert list(choice.refused) == list(GpuPath)[: list(GpuPath).index(path)]
    assert nic.live == 0, "every registration is taken back"


@pytest.mark.usefixtures("export")
def test_the_doctor_says_what_was_refused_and_why() -> None:
    gpu = FakeGpu()
    finding = choose(gpu, FakeNic(gpu, BOTH, {GpuPath.DMABUF: "lost", GpuPath.PEERMEM: "error"})).finding()
    assert finding.part == "GPU 2 by mlx5_0"
    assert not finding.present
    assert "pinned staging; dma-buf: registered, but what the NIC wrote is not" in finding.seen
    assert "nvidia-peermem: the NIC reports LOC_PROT_ERR" in finding.seen
    assert PathChoice("a", 0, GpuPath.DMABUF, {}).finding().present


def test_a_dmabuf_is_of_whole_pages() -> None:
    from optcc.runtime.devices.gpu_array import DeviceArray
    from optcc.runtime.devices.host import dtype_of

    for address, count in ((4096 + 64, 4096), (4096, 4097)):
        with (
            pytest.raises(PathRefusedError, match="not whole pages"),
            gpu_memory.exported(DeviceArray(address, count, dtype_of("uint8"), 0)),
        ):
            pass


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


@pytest.mark.gpu
def test_the_drivers_dmabuf(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole allocations can be exported just where the driver says so."""
    from optcc.runtime.devices.cuda import Gpu

    array = Gpu(0).empty(PROBE_BYTES, np.dtype(np.uint8))
    offered = "GPU 0: dma-buf" in examine_gpu_memory()[0].seen
    with capsys.disabled():
        print(f"\n{examine_gpu_memory()[0].seen}")
    if offered:
        with gpu_memory.exported(array) as fd:
            assert "dmabuf" in os.readlink(f"/proc/self/fd/{fd}")
    else:
        with pytest.raises(PathRefusedError, match="no dma-buf"), gpu_memory.exported(array):
            pass


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(PathRefusedError, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        gpu_memory.attribute(99, 1)
