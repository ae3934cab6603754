"""Buffers in a GPU's memory: of a twin of a GPU, whose memory is the host's and which does all late, and of a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator import buffers
from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array
from optcc.runtime.devices.interop import borrow
from optcc.runtime.errors import RankFailedError
from tests.communicators import Ranks
from tests.cuda_twin import TwinGpu, host_view
from tests.gpus import with_gpus

WORLD = 2


class CopyingTwin(TwinGpu):
    """As `cuda.Gpu`, as far as `GpuBuffer` uses it."""

    @property
    def departures(self) -> Any:
        return self

    def synchronize(self) -> None:
        self.wait()

    def current(self) -> Any:
        return nullcontext()

    def adopt(self, thing: Any, *, write: bool) -> DeviceArray:
        array = borrow(thing, write=write, stream=7)
        assert isinstance(array, DeviceArray)
        return array

    def pinned(self, count: int, dtype: np.dtype[Any]) -> Array:
        return np.full(count, 77, dtype)

    def deliver(self, host: Array, array: DeviceArray, *, after: Sequence[Any]) -> None:
        assert after, "the caller's stream goes first"
        self._give(lambda: np.copyto(host, host_view(array)))


class OnGpu:
    """Another library's array in a GPU's memory, as it shows itself."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class ByCudaInterface:
    """The same without DLPack."""

    def __init__(self, array: Array) -> None:
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    twin = CopyingTwin()
    monkeypatch.setattr(buffers, "gpu_of", lambda memory: twin)
    with Ranks(WORLD) as ranks:
        yield ranks


@pytest.mark.parametrize("kind", [OnGpu, ByCudaInterface])
@pytest.mark.parametrize("count", [6, 100_000])
def test_every_call_copies_out_and_back(ranks: Ranks, kind: Callable[[Array], Any], count: int) -> None:
    def call(comm: optcc.Communicator) -> list[list[float]]:
        def given(n: int = count) -> Any:
            return kind(np.full(n, comm.rank + 1.0))

        own = given()
        assert comm.all_reduce(own) is own
        source, out = given(), kind(np.zeros(count))
        assert comm.all_reduce(source, out=out) is out
        moved, rooted = given(), given()
        handle = comm.all_reduce(moved, "max", async_op=True)
        comm.broadcast(rooted, 1)
        assert handle.wait(60) is moved
        gathered = comm.all_gather(given(), kind(np.zeros(2 * count)))
        scattered = comm.reduce_scatter(given(), np.zeros(count // 2))  # into host memory
        swapped = comm.all_to_all(given(), kind(np.zeros(count)))
        arrays = [
            own.array,
            source.array,
            out.array,
            moved.array,
            rooted.array,
            gathered.array,
            scattered,
            swapped.array,
        ]
        return [sorted({*each.tolist()}) for each in arrays]

    for rank, found in enumerate(ranks.good(call)):
        assert found == [[3.0], [rank + 1.0], [3.0], [2.0], [2.0], [1.0, 2.0], [3.0], [1.0, 2.0]]


def test_a_call_that_fails_leaves_what_was_there(ranks: Ranks) -> None:
    ranks.comms[1].abort("on purpose")
    x = OnGpu(np.ones(1 << 20))
    with pytest.raises(RankFailedError) as error:
        ranks.comms[0].all_reduce(x)
    assert error.value.result == "old"
    assert (x.array == 1).all()


def test_buffers_that_do_not_fit_are_refused(ranks: Ranks) -> None:
    comm, x = ranks.comms[0], OnGpu(np.ones(6))
    with pytest.raises(InputError, match=r"out: .* expected 6 elements of float64, got 7 of float64"):
        comm.all_reduce(x, out=OnGpu(np.ones(7)))
    with pytest.raises(InputError, match="out: the same memory as x"):
        comm.all_to_all(x, x)
    with pytest.raises(InputError, match="out: input and output overlap"):
        comm.all_reduce(OnGpu(x.array[:4]), out=OnGpu(x.array[2:]))


def test_without_cupy_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "optcc.runtime.devices.cuda", raising=False)
    with optcc.Communicator() as comm, pytest.raises(InputError, match=r"no cupy.*cupy-cuda13x"):
        comm.all_reduce(OnGpu(np.ones(6)))


@pytest.mark.gpu
class TestOnAGpu:
    """The ranks are threads that share it."""

    def test_cupys_arrays(self) -> None:
        import cupy

        def call(comm: optcc.Communicator) -> list[float]:
            with cupy.cuda.Stream(non_blocking=True):  # what this stream has under way comes first
                x = cupy.full(1 << 22, comm.rank, cupy.float32)
                for _ in range(50):
                    x += 1
                comm.all_reduce(x)
                x *= 2
                small = comm.broadcast(cupy.full(3, comm.rank), 1)
                return [float(x.min()), float(x.max()), float(small.sum())]

        with Ranks(WORLD) as ranks:
            assert ranks.good(call) == [[202.0, 202.0, 3.0]] * WORLD

    def test_torchs_tensors(self) -> None:
        torch = with_gpus("torch")

        def call(comm: optcc.Communicator) -> tuple[bool, int]:
            x = torch.full((1 << 20,), comm.rank + 1.0, dtype=torch.bfloat16, device="cuda")
            comm.all_reduce(x)
            handle = comm.all_reduce(x, async_op=True)
            handle.wait(60)
            return bool((x == 6).all()), torch.cuda.current_device()

        with Ranks(WORLD) as ranks:
            assert ranks.good(call) == [(True, 0)] * WORLD
