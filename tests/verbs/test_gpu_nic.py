"""Traffic that tries a registration, through a real NIC, with host memory in the GPU's place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optcc.runtime.devices.gpu_memory import PathRefusedError

if TYPE_CHECKING:
    from optcc.runtime.verbs.gpu_nic import LoopNic

pytestmark = pytest.mark.rdma


@pytest.fixture
def nic() -> Iterator[LoopNic]:
    from optcc.machine.rdma import rdma_ports
    from optcc.runtime.verbs.gpu_nic import LoopNic

    address = next(filter(None, (port.address() for port in rdma_ports() if port.active)))
    with LoopNic(address) as made:
        yield made


def test_bytes_go_out_and_come_in(nic: LoopNic) -> None:
    memory = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    region = nic.by_address(memory.ctypes.data, memory.nbytes)
    for offset in (0, 5000, memory.nbytes - 4096):
        assert nic.take(region, offset, 4096) == memory[offset : offset + 4096].tobytes()
        nic.bring(region, offset, bytes(range(256)) * 16)
        assert memory[offset : offset + 4096].tobytes() == bytes(range(256)) * 16
    nic.release(region)


def test_what_is_not_registered_is_refused(nic: LoopNic) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    region = nic.by_address(memory.ctypes.data, 4096)
    with pytest.raises(PathRefusedError, match=r"the NIC reports|ibv_post_send"):
        nic.bring(region, 8192, b"outside")
    nic.bring(region, 0, b"inside")
    assert memory[:6].tobytes() == b"inside", "the next attempt has a queue pair of its own"
    nic.release(region)


def test_a_dmabuf_that_is_none_is_refused(nic: LoopNic) -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(PathRefusedError, match="ibv_reg_dmabuf_mr"):
            nic.by_dmabuf(read, 4096)
    finally:
        os.close(read)
        os.close(write)


def test_memory_that_is_not_there_is_refused(nic: LoopNic) -> None:
    with pytest.raises(PathRefusedError, match="ibv_reg_mr"):
        nic.by_address(1 << 46, 4096)
