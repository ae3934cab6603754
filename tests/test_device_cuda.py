"""What only a GPU can show: streams and events, other libraries' memory, memory shared between processes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import BFLOAT16, Op, dtype_of
from tests.gpus import need_gpus, with_gpus
from tests.served import FOLD, Served

if TYPE_CHECKING:
    from optcc.runtime.devices.cuda import Gpu
    from optcc.runtime.devices.gpu_array import SharedArray

ROOT = Path(__file__).resolve().parent.parent
LONG = 1 << 26
"""Elements of one byte that are many words for each thread of the resident kernel."""

SLOW = """
extern "C" __global__ void fill_late(float* a, unsigned long long n, float value, long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {}
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) a[i] = value;
}
"""


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    from optcc.runtime.devices.cuda import Gpu

    return Gpu(0)


def test_without_cupy_the_message_says_what_to_install() -> None:
    if importlib.util.find_spec("cupy") is not None:
        code = "import sys; sys.modules['cupy'] = None; import optcc.runtime.devices.cuda"
    else:
        code = "import optcc.runtime.devices.cuda"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert "InputError: device cuda: no cupy. Install the extra `gpu`" in done.stderr


def late(stream: Any, array: DeviceArray, value: float) -> None:
    """Enqueue on `stream`: wait for some milliseconds, then set all of a float32 array."""
    import cupy

    kernel = cupy.RawKernel(SLOW, "fill_late")
    with stream:
        kernel((64,), (256,), (array.address, array.count, np.float32(value), np.int64(20_000_000)))


@pytest.fixture
def served(gpu: Gpu) -> Served:
    gpu.ready(np.dtype(np.float32), Op.SUM)  # so that what a test enqueues is not held up
    return Served(gpu, blocks=16)


@pytest.mark.gpu
class TestOrder:
    def test_the_kernel_starts_behind_its_stream(self, gpu: Gpu, served: Served) -> None:
        own, landed = gpu.put(np.ones(1000, np.float32)), gpu.put(np.ones(1000, np.float32))
        late(gpu.stream, landed, 5)
        served.start([(FOLD, own, landed)])
        gpu.divide(own, 2)  # and what the stream is given from now on comes after it
        assert set(gpu.get(own).tolist()) == {3}

    def test_behind_another_stream_it_does_not(self, gpu: Gpu, served: Served) -> None:
        own, landed = gpu.put(np.ones(1000, np.float32)), gpu.put(np.ones(1000, np.float32))
        late(gpu.arrivals, landed, 5)
        served.start([(FOLD, own, landed)])
        assert set(gpu.get(own).tolist()) == {2}
        gpu.wait()

    def test_the_users_stream_goes_first_and_goes_on_after(self, gpu: Gpu, served: Served) -> None:
        import cupy

        users = cupy.cuda.Stream(non_blocking=True)
        theirs = cupy.zeros(1000, np.float32)
        cupy.cuda.Device().synchronize()
        mine, other = gpu.adopt(theirs), gpu.put(np.ones(1000, np.float32))
        late(users, mine, 5)
        served.start([(FOLD, mine, other)], stream=users)
        with users:
            doubled = theirs * 2
        users.synchronize()
        assert set(doubled.get().tolist()) == {12}

    def test_a_copy_out_waits_for_the_event(self, gpu: Gpu) -> None:
        array, host = gpu.put(np.ones(1000, np.float32)), gpu.pinned(1000, np.dtype(np.float32))
        late(gpu.stream, array, 5)
        gpu.deliver(host, array, after=(gpu.mark(),))
        gpu.departures.synchronize()
        assert set(host.tolist()) == {5}

    def test_without_the_event_it_does_not(self, gpu: Gpu) -> None:
        array, host = gpu.put(np.ones(1000, np.float32)), gpu.pinned(1000, np.dtype(np.float32))
        late(gpu.stream, gpu.put(np.ones(1, np.float32)), 5)  # compiled
        gpu.wait()
        late(gpu.stream, array, 5)
        gpu.deliver(host, array)
        gpu.departures.synchronize()
        assert set(host.tolist()) == {1}
        gpu.wait()

    def test_jobs_are_done_when_the_words_say_so(self, gpu: Gpu, served: Served) -> None:
        own, landed = gpu.put(np.ones(1000, np.float32)), gpu.put(np.ones(1000, np.float32))
        late(gpu.stream, landed, 5)
        for _ in range(3):  # kernels one after another: all are given jobs before the first one has begun
            served.start([(FOLD, own[at : at + 10], landed[at : at + 10]) for at in range(0, 1000, 10)])
        assert not served.done()
        until = time.monotonic() + 60
        while not served.done():
            assert time.monotonic() < until
        assert set(gpu.get(own).tolist()) == {16}


@pytest.mark.gpu
class TestRefusals:
    def test_another_gpu(self, gpu: Gpu) -> None:
        own = gpu.empty(10, dtype_of("int32"))
        with pytest.raises(InputError, match=r"wrong device, .*GPU 0, got '?GPU 1"):
            gpu.adopt(DeviceArray(own.address, own.count, own.dtype, 1))

    def test_host_memory(self, gpu: Gpu) -> None:
        with pytest.raises(InputError, match=r"wrong device, .*got 'host memory'"):
            gpu.adopt(np.zeros(3))

    def test_a_gpu_that_is_not_there(self, gpu: Gpu) -> None:
        with pytest.raises(InputError, match="no such GPU"):
            type(gpu)(99)


@pytest.mark.gpu
class TestOtherLibraries:
    def test_cupy(self, gpu: Gpu) -> None:
        import cupy

        theirs = 2 * cupy.arange(24, dtype=np.int32).reshape(2, 3, 4)
        mine = gpu.adopt(theirs)
        assert (mine.address, mine.count, mine.gpu) == (theirs.data.ptr, 24, 0)
        gpu.divide(mine, 2)
        gpu.wait()
        assert np.array_equal(theirs.get().reshape(-1), np.arange(24))
        with pytest.raises(InputError, match="not contiguous"):
            gpu.adopt(theirs[:, ::2])

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8", "int64"])
    def test_torch(self, gpu: Gpu, dtype: str) -> None:
        torch = with_gpus("torch")
        theirs = 2 * torch.arange(24, device="cuda:0", dtype=getattr(torch, dtype))
        mine = gpu.adopt(theirs)
        assert mine.dtype == dtype_of(dtype)
        gpu.divide(mine, 2)
        gpu.wait()
        assert theirs.cpu().tolist() == [*range(24)]
        with pytest.raises(InputError, match="not contiguous"):
            gpu.adopt(theirs.reshape(4, 6).T)
        with pytest.raises(InputError, match="host memory"):
            gpu.adopt(theirs.cpu())

    def test_torch_that_requires_grad(self, gpu: Gpu) -> None:
        torch = with_gpus("torch")
        with pytest.raises(InputError, match="does not export it"):
            gpu.adopt(torch.zeros(3, device="cuda:0", requires_grad=True))

    def test_numba(self, gpu: Gpu) -> None:
        cuda = with_gpus("numba.cuda")
        theirs = cuda.to_device(np.arange(10, dtype=np.float64))
        gpu.divide(gpu.adopt(theirs), 4)
        gpu.wait()
        assert theirs.copy_to_host().tolist() == [i / 4 for i in range(10)]

    def test_jax_is_read_only(self, gpu: Gpu) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax = with_gpus("jax")
        theirs = jax.numpy.arange(10, dtype=jax.numpy.bfloat16).block_until_ready()
        mine = gpu.adopt(theirs, write=False)
        assert mine.dtype == BFLOAT16
        assert gpu.get(mine).view(np.uint16).tolist() == np.asarray(theirs).view(np.uint16).tolist()
        with pytest.raises(InputError, match="read-only"):
            gpu.adopt(theirs)


def _double(shared: SharedArray, pipe: Any) -> None:
    from optcc.runtime.devices.cuda import Gpu

    gpu = Gpu(0)
    with gpu.open_shared(shared) as array:
        Served(gpu).fold(Op.SUM, array, array)
    pipe.send("done")


@pytest.mark.gpu
def test_another_process_folds_into_shared_memory(gpu: Gpu) -> None:
    array = gpu.put(np.arange(1000, dtype=np.int32))
    part = array[100:200]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_double, args=(gpu.share(part), theirs))
    process.start()
    assert ours.poll(120), "the other process says nothing"
    assert ours.recv() == "done"
    process.join(60)
    expected = np.arange(1000)
    expected[100:200] *= 2
    assert np.array_equal(gpu.get(array), expected)


def _hold(pipe: Any) -> None:
    from optcc.runtime.devices.cuda import Gpu

    gpu = Gpu(1)
    array = gpu.put(np.full(1000, 7, np.int32))
    pipe.send(gpu.share(array))
    pipe.recv()


@pytest.mark.gpu
def test_a_fold_reads_another_gpus_memory(gpu: Gpu) -> None:
    """A rank of the same server on the next GPU: its buffer is mapped here, and is read where it lies."""
    need_gpus(2)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(theirs,))
    process.start()
    assert ours.poll(120), "the other process says nothing"
    own = gpu.put(np.arange(1000, dtype=np.int32))
    with gpu.open_shared(ours.recv()) as lent:
        Served(gpu).fold(Op.SUM, own, lent)
    ours.send("folded")
    assert gpu.get(own).tolist() == [i + 7 for i in range(1000)]
    process.join(60)


@pytest.mark.gpu
def test_an_array_on_another_gpu_is_refused(gpu: Gpu) -> None:
    need_gpus(2)
    import cupy

    with cupy.cuda.Device(1):
        theirs = cupy.zeros(10, np.float32)
    with pytest.raises(InputError, match=r"wrong device, .*GPU 0, got '?GPU 1"):
        gpu.adopt(theirs)


@pytest.mark.gpu
def test_large_arrays_are_whole(gpu: Gpu) -> None:
    """More words than threads, so that threads go around, in parts for all blocks; every element is checked."""
    host = np.random.default_rng(2).integers(-100, 100, LONG).astype(np.int8)
    own = gpu.put(host)
    Served(gpu, blocks=16, parts=48).fold(Op.SUM, own, gpu.put(host))
    assert np.array_equal(gpu.get(own), host + host)
