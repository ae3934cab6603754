"""What compiled code needs of the machine: memory by address, stores in order, and a few calls of libc.

numba compiles these into the functions that call them. Nothing here checks an address.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, import-untyped"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I64, _I32, _F64 = ir.IntType(64), ir.IntType(32), ir.DoubleType()

memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
ppoll = types.ExternalFunction("ppoll", types.int32(types.int64, types.int64, types.int64, types.int64))
recv = types.ExternalFunction("recv", types.int64(types.int32, types.int64, types.int64, types.int32))
errno_at = types.ExternalFunction("__errno_location", types.int64())
timerfd_settime = types.ExternalFunction(
    "timerfd_settime", types.int32(types.int32, types.int32, types.int64, types.int64)
)
send = types.ExternalFunction("send", types.int64(types.int32, types.int64, types.int64, types.int32))
"""As the manual pages of section 2 and memcpy(3) have them, pointers as integers."""


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic  # type: ignore[misc, unused-ignore]
def word(typing: Any, address: Any) -> Any:
    """The 8 bytes at an address, which another process writes: what it has written before is seen, too."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_at(builder, args[0], _I64), "acquire", 8)

    return types.int64(types.int64), code


@intrinsic  # type: ignore[misc, unused-ignore]
def set_word(typing: Any, address: Any, value: Any) -> Any:
    """Write 8 bytes that another process reads: it sees all that was written before, too."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _at(builder, args[0], _I64), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic  # type: ignore[misc, unused-ignore]
def fence(typing: Any) -> Any:
    """All stores are over before any load that comes after it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


def _load(kind: Any, result: Any) -> Any:
    @intrinsic  # type: ignore[misc, unused-ignore]
    def load(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_at(builder, args[0], kind))
            return builder.zext(value, _I64) if kind is _I32 else value

        return result(types.int64), code

    return load


def _store(kind: Any, given: Any) -> Any:
    @intrinsic  # type: ignore[misc, unused-ignore]
    def store(typing: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.trunc(args[1], _I32) if kind is _I32 else args[1]
            builder.store(value, _at(builder, args[0], kind))
            return context.get_dummy_value()

        return types.void(types.int64, given), code

    return store


load_u32, load_i64, load_f64 = _load(_I32, types.int64), _load(_I64, types.int64), _load(_F64, types.float64)
store_u32, store_i64, store_f64 = _store(_I32, types.int64), _store(_I64, types.int64), _store(_F64, types.float64)


@intrinsic  # type: ignore[misc, unused-ignore]
def call_fold(typing: Any, function: Any, own: Any, landed: Any, count: Any) -> Any:
    """Call one of `folds` by its address: (address of own elements, of landed ones, their number)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I64])
        builder.call(_at(builder, args[0], kind), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), code


@intrinsic  # type: ignore[misc, unused-ignore]
def call3(typing: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call a function of C by its address: of three pointers or numbers, or fewer, that returns an int."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64, _I64, _I64])
        return builder.sext(builder.call(_at(builder, args[0], kind), args[1:]), _I64)

    return types.int64(*[types.int64] * 4), code


@intrinsic  # type: ignore[misc, unused-ignore]
def call_launch(typing: Any, function: Any, kernel: Any, blocks: Any, threads: Any, stream: Any, arguments: Any) -> Any:
    """cuLaunchKernel, by its address: a grid of one dimension. `arguments` : address of the arguments' addresses.

    Returns the driver's CUresult; 0 is success.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at, kernel, blocks, threads, stream, arguments = args
        kind = ir.FunctionType(_I32, [_I64, *[_I32] * 7, _I64, _I64, _I64])
        one, none = ir.Constant(_I32, 1), ir.Constant(_I32, 0)
        grid = [builder.trunc(blocks, _I32), one, one, builder.trunc(threads, _I32), one, one]
        none_there = ir.Constant(_I64, 0)
        result = builder.call(_at(builder, at, kind), [kernel, *grid, none, stream, arguments, none_there])
        return builder.sext(result, _I64)

    return types.int64(*[types.int64] * 6), code
