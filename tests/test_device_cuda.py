"""What only a GPU can show: streams and events, other libraries' memory, graphs, memory shared between processes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import BFLOAT16, Op, dtype_of
from tests.gpus import need_gpus, with_gpus

if TYPE_CHECKING:
    from optcc.runtime.devices.cuda import Gpu
    from optcc.runtime.devices.gpu_array import SharedArray

ROOT = Path(__file__).resolve().parent.parent
LONG = 1 << 26
"""Elements of one byte that are more words than a grid has threads."""

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


@pytest.mark.gpu
class TestOrder:
    def test_a_fold_waits_for_the_landings_event(self, gpu: Gpu) -> None:
        own, landed = gpu.put(np.ones(1000, np.float32)), gpu.put(np.ones(1000, np.float32))
        late(gpu.arrivals, landed, 5)
        gpu.fold(Op.SUM, own, landed, after=[gpu.mark(gpu.arrivals)])
        assert set(gpu.get(own).tolist()) == {6}

    def test_without_the_event_it_does_not(self, gpu: Gpu) -> None:
        own, landed = gpu.put(np.ones(1000, np.float32)), gpu.put(np.ones(1000, np.float32))
        gpu.fold(Op.SUM, own, landed)  # compiled, so that what follows is not held up
        gpu.wait()
        late(gpu.arrivals, landed, 5)
        gpu.fold(Op.SUM, own, landed)
        assert set(gpu.get(own).tolist()) == {3}
        gpu.wait()

    def test_the_users_stream_goes_first_and_goes_on_after(self, gpu: Gpu) -> None:
        import cupy

        users = cupy.cuda.Stream(non_blocking=True)
        theirs = cupy.zeros(1000, np.float32)
        other = gpu.put(np.ones(1000, np.float32))
        cupy.cuda.Device().synchronize()
        late(users, DeviceArray(theirs.data.ptr, 1000, dtype_of("float32"), 0), 5)
        mine = gpu.adopt(theirs, stream=users)
        gpu.fold(Op.SUM, mine, other)
        gpu.release_to(users)
        with users:
            doubled = theirs * 2
        users.synchronize()
        assert set(doubled.get().tolist()) == {12}

    def test_copies_overlap_with_folds_and_are_right(self, gpu: Gpu) -> None:
        chunks, size = 8, 1 << 16
        host = gpu.pinned(chunks * size, dtype_of("int32"))
        host[:] = np.random.default_rng(1).integers(-9, 9, len(host))
        back = gpu.pinned(len(host), host.dtype)
        own, landing = gpu.put(host), gpu.empty(len(host), host.dtype)
        for at in range(0, len(host), size):
            part = slice(at, at + size)
            gpu.fetch(landing[part], host[part])
            gpu.fold(Op.PROD, own[part], landing[part], after=[gpu.mark(gpu.arrivals)])
            gpu.deliver(back[part], own[part], after=[gpu.mark()])
        gpu.wait()
        assert np.array_equal(back, host * host)


@pytest.mark.gpu
class TestRefusals:
    def test_arrays_that_differ(self, gpu: Gpu) -> None:
        own = gpu.empty(10, dtype_of("int32"))
        for other in (gpu.empty(11, dtype_of("int32")), gpu.empty(10, dtype_of("uint32"))):
            with pytest.raises(InputError, match="fold: arrays differ"):
                gpu.fold(Op.SUM, own, other)

    def test_outputs_that_overlap_inputs(self, gpu: Gpu) -> None:
        whole = gpu.empty(100, dtype_of("int32"))
        apart = gpu.empty(50, dtype_of("int32"))
        with pytest.raises(InputError, match="overlap"):
            gpu.fold(Op.SUM, whole[:50], apart, whole[1:51])
        with pytest.raises(InputError, match="overlap"):
            gpu.fold(Op.SUM, apart, whole[:50], apart, whole[49:99])
        gpu.fold(Op.SUM, whole[:50], apart, whole[50:])

    def test_another_gpu(self, gpu: Gpu) -> None:
        own = gpu.empty(10, dtype_of("int32"))
        elsewhere = DeviceArray(own.address, own.count, own.dtype, 1)
        with pytest.raises(InputError, match=r"wrong device, .*GPU 0, got '?GPU 1"):
            gpu.fold(Op.SUM, own, elsewhere)
        with pytest.raises(InputError, match=r"wrong device, .*GPU 0, got '?GPU 1"):
            gpu.adopt(elsewhere)

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

        theirs = cupy.arange(24, dtype=np.int32).reshape(2, 3, 4)
        mine = gpu.adopt(theirs)
        assert (mine.address, mine.count, mine.gpu) == (theirs.data.ptr, 24, 0)
        gpu.fold(Op.SUM, mine, mine)
        gpu.wait()
        assert np.array_equal(theirs.get().reshape(-1), 2 * np.arange(24))
        assert cupy.asarray(mine).sum() == 2 * sum(range(24)), "and back"
        with pytest.raises(InputError, match="not contiguous"):
            gpu.adopt(theirs[:, ::2])

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8", "int64"])
    def test_torch(self, gpu: Gpu, dtype: str) -> None:
        torch = with_gpus("torch")
        theirs = torch.arange(24, device="cuda:0", dtype=getattr(torch, dtype))
        mine = gpu.adopt(theirs, stream=torch.cuda.current_stream())
        assert mine.dtype == dtype_of(dtype)
        gpu.fold(Op.SUM, mine, mine)
        gpu.release_to(torch.cuda.current_stream())
        assert theirs.cpu().tolist() == [2 * i for i in range(24)]
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
        gpu.fold(Op.MAX, gpu.adopt(theirs), gpu.put(np.full(10, 4.5)))
        gpu.wait()
        assert theirs.copy_to_host().tolist() == [4.5] * 5 + [5, 6, 7, 8, 9]

    def test_jax_is_read_only(self, gpu: Gpu) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax = with_gpus("jax")
        theirs = jax.numpy.arange(10, dtype=jax.numpy.bfloat16).block_until_ready()
        mine = gpu.adopt(theirs, write=False)
        out = gpu.empty(10, BFLOAT16)
        gpu.fold(Op.SUM, mine, mine, out)
        assert gpu.get(out).view(np.uint16).tolist() == np.asarray(theirs * 2).view(np.uint16).tolist()
        with pytest.raises(InputError, match="read-only"):
            gpu.adopt(theirs)


def _double(shared: SharedArray, pipe: Any) -> None:
    from optcc.runtime.devices.cuda import Gpu

    gpu = Gpu(0)
    with gpu.open_shared(shared) as array:
        gpu.fold(Op.SUM, array, array)
        gpu.wait()
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
    array = gpu.put(np.zeros(1000, np.int32))
    pipe.send(gpu.share(array))
    pipe.recv()
    pipe.send(gpu.get(array).tolist())


@pytest.mark.gpu
def test_a_fold_writes_into_another_gpus_memory(gpu: Gpu) -> None:
    """The next hop of a rank on the same server: its buffer is mapped here, and the fold's result goes there."""
    need_gpus(2)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(theirs,))
    process.start()
    assert ours.poll(120), "the other process says nothing"
    own, landed = gpu.put(np.arange(1000, dtype=np.int32)), gpu.put(np.full(1000, 7, np.int32))
    with gpu.open_shared(ours.recv()) as onward:
        gpu.fold(Op.SUM, own, landed, own, onward)
    ours.send("folded")
    assert ours.poll(120), "the other process says nothing"
    assert ours.recv() == [i + 7 for i in range(1000)]
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
    """More words than threads, so that threads go around; every element is checked."""
    host = np.random.default_rng(2).integers(-100, 100, LONG).astype(np.int8)
    own = gpu.put(host)
    gpu.fold(Op.SUM, own, gpu.put(host))
    assert np.array_equal(gpu.get(own), host + host)
