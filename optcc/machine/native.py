"""The library of C code (`native/`): found, loaded, and called with arrays whose types and shapes are checked.

It is built when optcc is installed, and loaded when something is planned, simulated or run: bounds, certificates,
topologies and diagnosis do without it. `native/planning.h` says what its functions do.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from optcc.errors import InputError

LIBRARY = Path(__file__).resolve().parents[1] / "liboptcc.so"
ABI = 4
"""PLANNING_ABI of native/planning.h."""
WAY_OUT = "make setup, in a checkout, or pip install . builds it; both need a C compiler."


class NativeCode(IntEnum):
    """What a function of the library returns, as `planning_code`."""

    DONE = 0
    NO_MEMORY = 1
    BAD_INDEX = 2
    NO_TREE = 3
    STUCK = 4
    TOO_LONG = 5
    NO_WAY = 6


@cache
def library() -> ctypes.CDLL:
    """The library. Raises InputError where there is none, or one of other sources."""
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        got = str(error) if LIBRARY.exists() else "no file"
        raise InputError("no compiled code", where=str(LIBRARY), expected="a library", got=got, hint=WAY_OUT) from None
    abi = loaded.planning_abi() if hasattr(loaded, "planning_abi") else "none"
    if abi != ABI:
        raise InputError(
            "compiled code of another version", where=str(LIBRARY), expected=f"interface {ABI}", got=abi, hint=WAY_OUT
        )
    return loaded


def call(name: str, *args: Any) -> NativeCode:
    """Call a function. Whole numbers go as int64_t, arrays as pointers, a `Struct` as its address.

    Raises MemoryError, and InputError for a number beyond the array that it points into. Other outcomes are returned.
    """
    outcome = NativeCode(getattr(library(), name)(*map(_as_c, args)))
    if outcome is NativeCode.NO_MEMORY:
        raise MemoryError(name)
    if outcome is NativeCode.BAD_INDEX:
        raise InputError("a number beyond its table", where=name)
    return outcome


def _as_c(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous or not value.flags.aligned:
            raise TypeError("an array with gaps")
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, float):
        return ctypes.c_double(value)
    return ctypes.c_int64(int(value)) if isinstance(value, (int, np.integer)) else ctypes.byref(value)


class Pointer(NamedTuple):
    """A pointer in a `Struct`. dims : numbers, names of the struct's numbers, or such names with "+1" behind;
    written : by the library
    """

    dtype: Any
    dims: tuple[int | str, ...]
    written: bool = False


def array(dtype: Any, *dims: int | str, written: bool = False) -> Pointer:
    """See `Pointer`."""
    return Pointer(dtype, dims, written)


class Struct(ctypes.Structure):
    """A C struct, made from values by name. It keeps its arrays alive; numbers that are not given are 0.

    layout : as `struct` has it
    Raises TypeError for an array of another type or shape, with gaps, or read-only where the library writes.
    """

    layout: ClassVar[dict[str, Any]] = {}
    _arrays: ClassVar[list[tuple[str, np.dtype[Any], list[tuple[str, int]], bool]]] = []

    def __init__(self, **values: Any) -> None:
        self.arrays = {name: values.pop(name) for name, *_ in self._arrays}
        super().__init__(**values)
        for name, dtype, dims, written in self._arrays:
            given, flags = self.arrays[name], self.arrays[name].flags
            shape = tuple(getattr(self, dim) + more if dim else more for dim, more in dims)
            fits = given.dtype == dtype and given.shape == shape and flags.c_contiguous and flags.aligned
            if not fits or (written and not flags.writeable):
                raise TypeError(f"{name}: expected {dtype} {shape}, got {given.dtype} {given.shape}")
            setattr(self, name, given.ctypes.data)


def struct(name: str, layout: dict[str, Any]) -> type[Struct]:
    """The type of a C struct. layout : of each field, in the order of C, `int`, `float`, or a `Pointer`."""
    kinds = {int: ctypes.c_int64, float: ctypes.c_double}
    return type(
        name,
        (Struct,),
        {
            "__doc__": f"`{name}` of native/planning.h.",
            "_fields_": [(field, kinds.get(kind, ctypes.c_void_p)) for field, kind in layout.items()],
            "layout": layout,
            "_arrays": [
                (field, np.dtype(kind.dtype), [*map(_dim, kind.dims)], kind.written)
                for field, kind in layout.items()
                if isinstance(kind, Pointer)
            ],
        },
    )


def _dim(dim: int | str) -> tuple[str, int]:
    """(name of a number, "" for none; what is added to it)."""
    if isinstance(dim, int):
        return "", dim
    name, _, more = dim.partition("+")
    return name, int(more or 0)
