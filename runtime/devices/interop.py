"""Arrays of other libraries, without a copy: numpy, DLPack (torch, jax, cupy), the CUDA array interface (numba).

Nothing of those libraries is imported. DLPack says most (the device, bfloat16, read-only since version 1, and the
producer orders its own stream before ours), so it is asked first. Sources: the DLPack specification, dlpack.h, and
the CUDA Array Interface, version 3.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray, span
from optcc.runtime.devices.host import BFLOAT16, DTYPES, Array, dtype_of, name_of

CPU, CUDA, CUDA_HOST = 1, 2, 3
"""DLPack's device types that are taken; pinned host memory is host memory."""


class _Tensor(ctypes.Structure):
    """DLTensor, with DLDevice and DLDataType laid out in place."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_READ_ONLY = 1
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
"""DLDataTypeCode, those that can be reduced here."""


class _Described(NamedTuple):
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: contiguous
    dtype: np.dtype[Any]
    device: tuple[int, int] | None  # DLPack's (type, id); None: not said
    readonly: bool
    stream: int | None  # the stream after which the elements are there
    owner: object


def stream_pointer(stream: object) -> int:
    """The cudaStream_t of a stream: an int, the CUDA stream protocol, torch's, cupy's or numba's object."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)  # numba's handle is a ctypes pointer, null for the default
    raise InputError(
        "not a CUDA stream", where="stream", expected="an int or a stream object", got=type(stream).__name__
    )


def borrow(
    thing: Any,
    *,
    write: bool = True,
    stream: int | None = None,
    gpu_of: Callable[[int], int] | None = None,
    after: Callable[[int], None] | None = None,
    where: str = "buffer",
) -> Array | DeviceArray:
    """The elements of `thing` as a flat array on the same memory: numpy's in host memory, a DeviceArray on a GPU.

    write : it will be written to
    stream : the stream that will work on it; the producer makes it wait for what it has under way (DLPack)
    gpu_of : address -> CUDA device, for producers that do not say (the CUDA array interface)
    after : called with the stream that a producer says it works on, so that ours can wait for it

    Raises InputError for memory that cannot be reduced in place: other devices, strides, read-only, unknown types.
    """
    if isinstance(thing, np.ndarray):
        return _host(thing, write, where)
    if isinstance(thing, DeviceArray):
        return thing
    if hasattr(thing, "__dlpack__"):
        said = _from_dlpack(thing, stream, where)
    elif hasattr(thing, "__cuda_array_interface__"):
        said = _from_cuda(thing, where)
    else:
        expected = "a numpy array, or an object with __dlpack__ or __cuda_array_interface__"
        raise InputError("not an array", where=where, expected=expected, got=type(thing).__name__)
    _demand_dense(said.shape, said.strides, where)
    if write and said.readonly:
        raise _read_only(where)
    count = int(np.prod(said.shape, dtype=np.int64))
    if said.device is not None and said.device[0] in (CPU, CUDA_HOST):
        return _on_host(said, count)
    if said.device is not None and said.device[0] != CUDA:
        got = f"DLPack device type {said.device[0]}"
        raise InputError("wrong device", where=where, expected="memory of a CUDA device or of the host", got=got)
    if said.stream is not None and after is not None:
        after(said.stream)
    gpu = -1 if said.device is None else said.device[1]
    if gpu < 0 and gpu_of is not None and count:
        gpu = gpu_of(said.address)
    return DeviceArray(said.address, count, said.dtype, gpu, said.owner)


def demand_apart(a: Array | DeviceArray, b: Array | DeviceArray, where: str = "buffer") -> None:
    """InputError when two arrays share some of their memory without being the same."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and not np.may_share_memory(a, b):
        return  # by their bounds
    first, second = span(a), span(b)
    if first != second and max(first[0], second[0]) < min(first[1], second[1]):
        raise InputError(
            "input and output overlap",
            where=where,
            expected="the same memory (in place) or memory apart",
            got=f"{min(first[1], second[1]) - max(first[0], second[0])} bytes in common",
        )


def _host(array: Array, write: bool, where: str) -> Array:
    if isinstance(array, np.ma.MaskedArray):
        hint = "Pass x.filled(value), or x.data where the mask does not matter."
        raise InputError("a masked array, whose mask would be lost", where=where, expected="a plain array", hint=hint)
    dtype = dtype_of(name_of(array.dtype, where))
    if not array.flags.c_contiguous:
        raise _strided(where, tuple(array.shape), tuple(array.strides))
    if write and not array.flags.writeable:
        raise _read_only(where)
    if type(array) is np.ndarray and array.ndim == 1 and array.dtype is dtype:
        return array
    return array.reshape(-1).view(dtype)


def _from_dlpack(thing: Any, stream: int | None, where: str) -> _Described:
    """An unconsumed capsule stays the owner: its own destructor frees the producer's memory."""
    device, number = thing.__dlpack_device__()
    asked: dict[str, Any] = {"stream": stream} if int(device) == CUDA and stream is not None else {}
    try:
        capsule = thing.__dlpack__(max_version=(1, 0), **asked)
    except TypeError:  # a producer from before version 1
        capsule = thing.__dlpack__(**asked)
    except (RuntimeError, ValueError, BufferError) as refused:  # torch: requires grad, conjugated, sparse
        raise InputError("its library does not export it", where=where, got=str(refused)) from refused
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    pointer = api.PyCapsule_GetPointer(capsule, name)
    if name == b"dltensor_versioned":
        versioned = _Versioned.from_address(pointer)
        tensor, readonly = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        tensor, readonly = _Tensor.from_address(pointer), False
    readonly |= type(thing).__module__.partition(".")[0] in ("jax", "jaxlib")  # never change, but do not say so
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    kind = f"{_KINDS.get(tensor.code, 'type')}{tensor.bits}"
    if kind not in DTYPES or tensor.lanes != 1:
        got = f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise InputError("unknown dtype", where=where, expected=f"one of {', '.join(DTYPES)}", got=got)
    address = (tensor.data or 0) + tensor.byte_offset
    return _Described(address, shape, strides, dtype_of(kind), (int(device), int(number)), readonly, None, capsule)


def _from_cuda(thing: Any, where: str) -> _Described:
    said = thing.__cuda_array_interface__
    if said.get("mask") is not None:
        raise InputError("a masked array", where=where, expected="plain elements")
    typestr = said["typestr"]
    if typestr == "<V2" and "bfloat16" in str(getattr(thing, "dtype", "")):
        dtype = BFLOAT16
    else:
        dtype = dtype_of(name_of(np.dtype(typestr)))
    address, readonly = said["data"]
    strides = said.get("strides")
    in_elements = None if strides is None else tuple(s // dtype.itemsize for s in strides)
    if strides is not None and any(s % dtype.itemsize for s in strides):
        raise _strided(where, tuple(said["shape"]), tuple(strides))
    stream = said.get("stream")
    return _Described(address, tuple(said["shape"]), in_elements, dtype, None, bool(readonly), stream, thing)


def _demand_dense(shape: Sequence[int], strides: Sequence[int] | None, where: str) -> None:
    """C order without gaps; the stride of an axis of one element, or of none at all, says nothing."""
    if strides is None or 0 in shape:
        return
    dense = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != dense:
            raise _strided(where, tuple(shape), tuple(strides))
        dense *= length


def _strided(where: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> InputError:
    return InputError(
        "not contiguous",
        where=where,
        expected="elements in C order without gaps",
        got=f"shape {shape}, strides {strides}",
        hint="Make a contiguous copy, and reduce that.",
    )


def _read_only(where: str) -> InputError:
    hint = "It can be an input where the result goes elsewhere."
    return InputError("read-only", where=where, expected="memory that may be written", hint=hint)


def _on_host(said: _Described, count: int) -> Array:
    if count == 0:
        return np.empty(0, said.dtype)
    memory: Any = (ctypes.c_ubyte * (count * said.dtype.itemsize)).from_address(said.address)
    memory.owner = said.owner  # lives as long as the array that numpy makes of it
    array = np.frombuffer(memory, said.dtype)
    array.flags.writeable = not said.readonly
    return array
