"""Buffers in a GPU's memory: of a twin of a GPU, whose memory is the host's and which does all late, and of a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator import buffers, interface
from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array
from optcc.runtime.devices.interop import borrow
from optcc.runtime.errors import RankFailedError
from tests.communicators import Ranks
from tests.cuda_twin import SharedTwin, TwinGpu, host_view
from tests.free_port import free_port
from tests.gpus import with_gpus

WORLD = 2


class _Borrows:
    """What `GpuBuffer` uses of a `cuda.Gpu` that twins have not."""

    departures = property(lambda self: self)

    def synchronize(self) -> None:
        self.wait()

    def adopt(self, thing: Any, *, write: bool, where: str) -> DeviceArray:
        array = borrow(thing, write=write, stream=7, where=where)
        assert isinstance(array, DeviceArray)
        return array


class CopyingTwin(_Borrows, TwinGpu):
    """Of all ranks."""

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
    monkeypatch.setattr(buffers, "gpu_numbered", lambda number: twin)
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


# --- ranks whose GPUs copy and fold ---------------------------------------------------------------------------------


class FoldingTwin(_Borrows, SharedTwin):
    """Of one rank; arrays say by their device's number which."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index, self.copied = index, 0
        self._here, self.most = threading.local(), sys.maxsize

    place = property(lambda self: str(self.index))

    @contextmanager
    def current(self) -> Iterator[None]:
        before, self._here.current = getattr(self._here, "current", False), True
        yield
        self._here.current = before

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        assert getattr(self._here, "current", False), "of whichever GPU this thread is for"
        if count * dtype.itemsize > self.most:
            raise InputError("no memory on the twin", where="device cuda")
        return super().empty(count, dtype)

    def get(self, array: DeviceArray) -> Array:
        assert getattr(self._here, "current", False), "of whichever GPU this thread is for"
        return super().get(array)

    def deliver(self, host: Array, array: DeviceArray, *, after: Sequence[Any]) -> None:
        self.copied += 1
        self._give(lambda: np.copyto(host, host_view(array)))


class OnTwin(OnGpu):
    """An array of the twin of a rank."""

    def __init__(self, array: Array, index: int) -> None:
        super().__init__(array)
        self.index = index

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.index)


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> dict[int, FoldingTwin]:
    found = {index: FoldingTwin(index) for index in range(3)}
    monkeypatch.setattr(buffers, "gpu_numbered", lambda number: found[number])
    monkeypatch.setattr(interface, "gpu_called", lambda device: found[int(device.partition(":")[2])])
    return found


@contextmanager
def on_twins(world: int, **options: Any) -> Iterator[Ranks]:
    """Communicators whose ranks have a GPU each."""
    where = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(world) as pool:
        made = [
            pool.submit(optcc.Communicator, rendezvous=where, rank=rank, world=world, device=f"cuda:{rank}", **options)
            for rank in range(world)
        ]
        ranks = Ranks.of([each.result(60) for each in made])
    with ranks:
        yield ranks


@pytest.mark.parametrize("world", [2, 3])
def test_gpus_fold_where_buffers_are(world: int, twins: dict[int, FoldingTwin]) -> None:
    def calls(comm: optcc.Communicator) -> None:
        def given(count: int, dtype: str = "float32") -> OnTwin:
            return OnTwin((np.arange(count) % 100 + comm.rank).astype(dtype), comm.rank)

        for count in (world * 3, world * 30_000, world * 200_000):
            every = [(np.arange(count) % 100 + rank).astype("float32") for rank in range(world)]
            total, part = np.sum(every, axis=0), slice(comm.rank * count // world, (comm.rank + 1) * count // world)
            own = given(count)
            assert comm.all_reduce(own) is own
            assert (own.array == total).all()
            source, out = given(count), given(count)
            comm.all_reduce(source, "avg", out=out)
            assert (source.array == every[comm.rank]).all()
            np.testing.assert_allclose(out.array, total / world, rtol=1e-6)
            rooted = given(count)
            comm.broadcast(rooted, world - 1, async_op=True).wait(60)
            assert (rooted.array == every[-1]).all()
            gathered = comm.all_gather(given(count), OnTwin(np.zeros(world * count, np.float32), comm.rank))
            assert (gathered.array == np.concatenate(every)).all()
            scattered = comm.reduce_scatter(given(count), np.zeros(count // world, np.float32))  # into host memory
            assert (scattered == total[part]).all()
            swapped = comm.all_to_all(given(count), OnTwin(np.zeros(count, np.float32), comm.rank))
            assert (swapped.array == np.concatenate([one[part] for one in every])).all()
        comm.barrier()
        assert (comm.all_reduce(np.full(5, comm.rank), "max") == world - 1).all()
        told = np.full(1000, comm.rank)
        told.flags.writeable = comm.rank != 0  # who tells only reads
        assert (comm.broadcast(told, 0) == 0).all()
        empty = OnTwin(np.zeros(0), comm.rank)
        assert comm.all_reduce(empty) is empty

    with on_twins(world) as ranks:
        ranks.good(calls)
    assert all(twin.copied == 0 or twin.index >= world for twin in twins.values()), "nothing goes by host memory"


@pytest.mark.usefixtures("twins")
def test_a_lost_nic_is_survived_and_planned_around_on_gpus() -> None:
    cluster = optcc.Cluster.uniform(servers=2, nics=2, rate="100Gb/s")

    def call(comm: optcc.Communicator) -> list[Any]:
        x = OnTwin(np.ones(1 << 20, np.float32), comm.rank)
        comm.all_reduce(x)
        comm.strike("cut", "server1/nic0", 0.3)
        comm.all_reduce(x)
        comm.all_reduce(x)
        comm.barrier()
        return [sorted({*x.array.tolist()}), [note.nic for note in comm.events() if note.kind == "nic down"]]

    with on_twins(2, cluster=cluster, tune=False) as ranks:
        found = ranks.good(call)
    assert [values for values, _ in found] == [[8.0]] * 2
    assert found[1][1] == ["server1/nic0"]


def test_where_one_gpu_is_full_all_ranks_hear_of_it(twins: dict[int, FoldingTwin]) -> None:
    """And go on with less."""
    twins[1].most = 64 << 20

    def calls(comm: optcc.Communicator) -> None:
        with pytest.raises(InputError, match=r"too little memory for a call.*rank 1: .*no memory on the twin"):
            comm.all_reduce(OnTwin(np.ones(20 << 20, np.float32), comm.rank))
        assert (comm.all_reduce(OnTwin(np.ones(1000, np.float32), comm.rank)).array == 2).all()

    with on_twins(2) as ranks:
        ranks.good(calls)


def test_what_comes_of_a_communicator_is_on_its_gpu(
    twins: dict[int, FoldingTwin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the thread that makes it is for."""
    first = iter((0, 1))
    monkeypatch.setattr(interface, "gpu_called", lambda device: twins[int(device.partition(":")[2] or next(first, 2))])
    where = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(optcc.Communicator, rendezvous=where, rank=r, world=2, device="cuda") for r in (0, 1)]
        ranks = Ranks.of([each.result(60) for each in made])
    with ranks:
        gpus = ranks.good(lambda comm: comm._gpu.index)
        parts = ranks.good(lambda comm: comm.split(0))
        assert [part._gpu.index for part in parts] == gpus
        assert sorted(gpus) == [0, 1]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(optcc.Communicator.close, parts))


@pytest.mark.usefixtures("twins")
def test_ranks_with_and_without_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = FoldingTwin(0)
    monkeypatch.setattr(interface, "gpu_called", lambda device: twin if device == "cuda:0" else None)
    where = f"127.0.0.1:{free_port()}"

    def made(rank: int) -> optcc.Communicator:
        return optcc.Communicator(rendezvous=where, rank=rank, world=2, device=("cuda:0", "cpu")[rank])

    with ThreadPoolExecutor(2) as pool:
        for error in [each.exception(60) for each in [pool.submit(made, rank) for rank in (0, 1)]]:
            assert isinstance(error, InputError)
            assert "device: not the same on all ranks" in str(error)
            assert "rank 0 a GPU, rank 1 cpu" in str(error)


def test_devices_that_are_none_are_refused() -> None:
    for device in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", 3):
        with pytest.raises(InputError, match=r"device: no such device"):
            buffers.gpu_called(device)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"device: not over this transport"):
        optcc.Communicator(transport="tcp", device="cuda:0")
