"""Arrays of other libraries: taken without a copy, or refused with what is wrong."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray, span
from optcc.runtime.devices.host import BFLOAT16, DTYPES, dtype_of
from optcc.runtime.devices.interop import borrow, demand_apart, stream_pointer


class Exporter:
    """Another library's array in host memory, known by DLPack alone."""

    def __init__(self, array: np.ndarray, versioned: bool = True, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.versioned, self.device = array, versioned, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        if not self.versioned and "max_version" in asked:
            raise TypeError("unexpected keyword max_version")
        return self.array.__dlpack__(**{k: v for k, v in asked.items() if k == "max_version"})


class OnGpu:
    """What the CUDA array interface says, without a GPU."""

    def __init__(self, dtype: str = "", **said: Any) -> None:
        self.dtype = dtype
        told = {"shape": (8,), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None}
        self.__cuda_array_interface__ = told | said


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_dlpack_in_host_memory_is_not_copied(dtype: str, versioned: bool) -> None:
    source = np.arange(24).astype(dtype).reshape(2, 3, 4)
    array = borrow(Exporter(source, versioned))
    assert isinstance(array, np.ndarray)
    assert (array.shape, array.dtype) == ((24,), source.dtype)
    array[5] = 77
    assert source.reshape(-1)[5] == 77


def test_the_memory_lives_as_long_as_what_was_borrowed() -> None:
    class Tracked(np.ndarray):
        pass

    source = np.arange(1000).view(Tracked)
    gone = weakref.ref(source)
    array = borrow(Exporter(source))
    del source
    gc.collect()
    assert gone() is not None
    assert isinstance(array, np.ndarray)
    assert array[999] == 999
    del array
    gc.collect()
    assert gone() is None


def test_numpy_goes_in_as_it_is() -> None:
    source = np.zeros((4, 5), np.float32)
    array = borrow(source)
    assert isinstance(array, np.ndarray)
    assert array.shape == (20,)
    assert np.shares_memory(array, source)
    assert borrow(np.zeros(3, BFLOAT16)).dtype == BFLOAT16
    assert len(borrow(np.zeros(0, np.int8))) == 0
    assert len(borrow(Exporter(np.zeros(0, np.int8)))) == 0


@pytest.mark.parametrize("wrap", [lambda a: a, Exporter])
def test_what_has_gaps_is_refused(wrap: Any) -> None:
    grid = np.zeros((6, 8), np.float32)
    for part in (grid[:, ::2], grid.T, grid[:, :4], grid[::-1], np.broadcast_to(grid[:1], (6, 8)).copy()[:, 1:]):
        with pytest.raises(InputError, match=r"not contiguous.*contiguous copy"):
            borrow(wrap(part))
    assert len(borrow(wrap(grid[2:4]))) == 16
    assert len(borrow(wrap(grid[2:3, 1:5]))) == 4, "an axis of one element has no gaps"


@pytest.mark.parametrize("wrap", [lambda a: a, Exporter])
def test_what_is_read_only_is_only_read(wrap: Any) -> None:
    source = np.arange(4.0)
    source.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        borrow(wrap(source))
    array = borrow(wrap(source), write=False)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize("source", [np.zeros(3, complex), np.zeros(3, bool), np.zeros(3, ">i4")])
def test_other_types_are_refused(source: np.ndarray) -> None:
    with pytest.raises(InputError, match="unknown dtype"):
        borrow(source)
    if source.dtype.isnative:
        with pytest.raises(InputError, match="unknown dtype"):
            borrow(Exporter(source))


def test_the_cuda_array_interface() -> None:
    seen: list[int] = []
    array = borrow(OnGpu(shape=(2, 3), stream=7, typestr="<i8"), gpu_of=lambda address: 3, after=seen.append)
    assert isinstance(array, DeviceArray)
    assert (array.address, array.count, array.dtype, array.gpu) == (4096, 6, np.dtype("int64"), 3)
    assert seen == [7], "its stream is waited for"
    assert borrow(OnGpu(dtype="torch.bfloat16", typestr="<V2")).dtype == BFLOAT16
    assert len(borrow(OnGpu(strides=(4,)))) == 8


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (OnGpu(strides=(8,)), "not contiguous"),
        (OnGpu(strides=(6,)), "not contiguous"),
        (OnGpu(shape=(4, 2), strides=(4, 16)), "not contiguous"),
        (OnGpu(data=(4096, True)), "read-only"),
        (OnGpu(typestr="<V2"), "unknown dtype"),
        (OnGpu(typestr="<c8"), "unknown dtype"),
        (OnGpu(mask=object()), "a masked array"),
        (Exporter(np.zeros(3), device=(10, 0)), "wrong device, .*got 'DLPack device type 10'"),
        ([1.0, 2.0], "not an array, expected a numpy array, or"),
        (3, "not an array"),
    ],
)
def test_what_cannot_be_reduced_is_refused(thing: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"buffer: {message}"):
        borrow(thing)


def test_a_refusal_of_the_producer_is_passed_on() -> None:
    class Guarded(Exporter):
        def __dlpack__(self, **asked: Any) -> Any:
            raise RuntimeError("requires grad")

    with pytest.raises(InputError, match="does not export it, got 'requires grad'"):
        borrow(Guarded(np.zeros(3)))


def test_dlpack_of_a_gpu_gets_our_stream() -> None:
    class Gpus(Exporter):
        asked: Any = None

        def __dlpack__(self, **asked: Any) -> Any:
            Gpus.asked = asked
            return super().__dlpack__(**asked)

    array = borrow(Gpus(np.zeros(3), device=(2, 1)), stream=99)
    assert isinstance(array, DeviceArray)
    assert (array.gpu, array.count) == (1, 3)
    assert Gpus.asked["stream"] == 99


def test_arrays_that_overlap_are_refused() -> None:
    source = np.zeros(100, np.int32)
    demand_apart(source, source)
    demand_apart(source[:50], source[50:])
    with pytest.raises(InputError, match=r"overlap, .*got '?40 bytes in common"):
        demand_apart(source[:60], source[50:])
    whole = DeviceArray(4096, 100, dtype_of("int32"), 0)
    demand_apart(whole[:50], whole[50:])
    with pytest.raises(InputError, match="overlap"):
        demand_apart(whole[:50], whole[49:])
    with pytest.raises(InputError, match="overlap"):
        demand_apart(whole, whole[10:20])


def test_device_arrays_are_cut_like_numpys() -> None:
    whole, model = DeviceArray(4096, 100, dtype_of("float64"), 0), np.zeros(100)
    for part in (slice(3, 9), slice(None, 7), slice(95, 200), slice(9, 3), slice(-4, None), slice(100, None)):
        assert len(whole[part]) == len(model[part])
    assert span(whole[3:9]) == (4096 + 24, 4096 + 72)
    with pytest.raises(IndexError):
        whole[::2]


class Torch:
    cuda_stream = 11


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 12)


class Cupy:
    ptr = 13


class Numba:
    class handle:  # noqa: N801
        value = 14


class NumbaDefault:
    class handle:  # noqa: N801
        value = None


@pytest.mark.parametrize(
    ("stream", "pointer"), [(5, 5), (Torch(), 11), (Protocol(), 12), (Cupy(), 13), (Numba(), 14), (NumbaDefault(), 0)]
)
def test_streams_of_other_libraries(stream: object, pointer: int) -> None:
    assert stream_pointer(stream) == pointer


@pytest.mark.parametrize("thing", ["stream", None, True, object()])
def test_what_is_no_stream_is_refused(thing: object) -> None:
    with pytest.raises(InputError, match="not a CUDA stream"):
        stream_pointer(thing)
