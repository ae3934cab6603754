"""Folds in host memory, of compiled code and by a GPU's kernel give the same: the exact result rounded once."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from optcc.runtime.devices.float_bits import quiet_nan
from optcc.runtime.devices.host import DTYPES, Array, Op, bits_of, dtype_of, floats, infinity_of, name_of
from optcc.runtime.evidence.payload import peculiar
from optcc.runtime.native.library import OPS, TYPES, engine_library
from tests.cuda_twin import TwinGpu
from tests.fold_contract import HostMemory, Memory, as_numbers, by_hand, greatest, least, random_bits, rounded, same
from tests.served import FOLD, Served

ALL = [(dtype, op) for dtype in DTYPES for op in Op]
COUNTS = (0, 1, 7, 33, 4099)


class Compiled(HostMemory):
    """Host memory, by the engine's own folds."""

    def fold(self, op: Op, own: Any, landed: Any) -> None:
        engine_library().optcc_fold(*self._kind(own), OPS.index(op), own.ctypes.data, landed.ctypes.data, len(own))

    def divide(self, array: Any, by: int) -> None:
        engine_library().optcc_divide(*self._kind(array), array.ctypes.data, len(array), by)

    @staticmethod
    def _kind(array: Any) -> tuple[int]:
        return (TYPES.index(name_of(array.dtype)),)


@pytest.fixture(scope="module", params=["numpy", "compiled", "twin", pytest.param("cuda", marks=pytest.mark.gpu)])
def memory(request: pytest.FixtureRequest) -> Memory:
    if request.param == "numpy":
        return HostMemory()
    if request.param == "compiled":
        return Compiled()
    if request.param == "twin":
        return Served(TwinGpu())
    from optcc.runtime.devices.cuda import Gpu

    return Served(Gpu(0))


def finite(array: Array) -> Array:
    """With what is infinite or no number replaced."""
    if array.dtype.kind in "iu":
        return array
    array = array.copy()
    array[~np.isfinite(as_numbers(array))] = np.zeros(1, array.dtype)
    return array


@cache
def folds(dtype: str, op: Op) -> list[tuple[Array, Array, list[Any]]]:
    """Two operands and what each pair of their elements gives, by exact arithmetic: for all memories once."""
    a, b = (finite(random_bits(dtype, 1500, seed)) for seed in (1, 2))
    near = a.copy()  # numbers of like size, so that rounding matters
    near.view(np.uint8)[:: a.itemsize] ^= 0x5A
    pairs = ((a, b), (a, finite(near)))
    return [(x, y, by_hand(op, as_numbers(x).tolist(), as_numbers(y).tolist(), dtype_of(dtype))) for x, y in pairs]


@pytest.mark.filterwarnings("ignore:overflow", "ignore:underflow")
@pytest.mark.parametrize(("dtype", "op"), ALL)
def test_a_fold_is_exact_but_for_one_rounding(memory: Memory, dtype: str, op: Op) -> None:
    for a, b, expected in folds(dtype, op):
        own, landed = memory.put(a), memory.put(b)
        memory.fold(op, own, landed)
        assert as_numbers(memory.get(own)).tolist() == expected


def test_rounding_by_hand_is_numpys() -> None:
    values = np.random.default_rng(3).standard_normal(2000) * 10.0 ** np.random.default_rng(4).integers(-9, 6, 2000)
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    assert [rounded(Fraction(v), np.dtype(np.float16)) for v in values.tolist()] == halves.tolist()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:underflow", "ignore:invalid")
@pytest.mark.parametrize(("dtype", "op"), ALL)
def test_all_memories_agree_on_any_bits(memory: Memory, dtype: str, op: Op) -> None:
    host = HostMemory()
    for count in COUNTS:
        a, b = random_bits(dtype, count, 5), random_bits(dtype, count, 6)
        expected = a.copy()
        host.fold(op, expected, b)
        own, landed, other = memory.put(a), memory.put(b), memory.put(a)
        memory.fold(op, own, landed)
        assert same(memory.get(own), expected)
        assert memory.get(landed).tobytes() == b.tobytes()
        memory.fold(op, landed, other)  # the other way around: the same bits
        assert memory.get(landed).tobytes() == memory.get(own).tobytes()
        memory.fold(op, own, own)
        host.fold(op, expected, expected)
        assert same(memory.get(own), expected)


def test_the_comparison_can_fail() -> None:
    a = random_bits("bfloat16", 100, 5)
    b = a.copy()
    b.view(np.uint16)[50] ^= 1
    assert same(a, a)
    assert not same(a, b)
    assert not same(a, a.view(np.float16))


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
def test_any_alignment_and_nothing_beside_it(memory: Memory, dtype: str) -> None:
    kind, count = dtype_of(dtype), 100
    for shift in range(16 // kind.itemsize + 1):
        for other in {0, shift, 8 // kind.itemsize}:
            a, b = (random_bits("uint8", 300 * kind.itemsize, seed).view(kind) for seed in (7, 8))
            expected = a.copy()
            with np.errstate(all="ignore"):
                HostMemory().fold(Op.SUM, expected[shift:][:count], b[other:][:count])
            own, landed = memory.put(a), memory.put(b)
            memory.fold(Op.SUM, own[shift : shift + count], landed[other : other + count])
            got = memory.get(own)
            assert same(got[shift : shift + count], expected[shift : shift + count])
            assert got[:shift].tobytes() == a[:shift].tobytes()
            assert got[shift + count :].tobytes() == a[shift + count :].tobytes()


@cache
def quotients(dtype: str, by: int) -> tuple[Array, list[Any]]:
    """Numbers, and each divided, by exact arithmetic."""
    before = finite(random_bits(dtype, 1500, 10))
    exact = [Fraction(x) / by for x in as_numbers(before).tolist()]
    return before, [int(x) if before.dtype.kind in "iu" else rounded(x, before.dtype) for x in exact]


@pytest.mark.parametrize("by", [3, 128, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dividing_rounds_once_and_cuts_towards_zero(memory: Memory, dtype: str, by: int) -> None:
    before, expected = quotients(dtype, by)
    array = memory.put(before)
    memory.divide(array, by)
    assert as_numbers(memory.get(array)).tolist() == expected


def test_dividing_part_of_an_array_leaves_the_rest(memory: Memory) -> None:
    before = random_bits("int32", 100, 11)
    array = memory.put(before)
    memory.divide(array[3:50], 3)
    got = memory.get(array)
    assert got[:3].tolist() == before[:3].tolist()
    assert got[50:].tolist() == before[50:].tolist()
    assert got[3:50].tolist() == [int(Fraction(x, 3)) for x in before[3:50].tolist()]


FLOATS = ("float16", "bfloat16", "float32", "float64")


def every_pair(dtype: str) -> tuple[Array, Array]:
    """Each peculiar value and some numbers, against each."""
    kind = dtype_of(dtype)
    values = np.concatenate([peculiar(kind), floats([-3.0, -1.0, 1.0, 3.0], kind)])
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("op", "by_rule"), [(Op.MIN, least), (Op.MAX, greatest)])
def test_minima_and_maxima_of_peculiar_values(memory: Memory, dtype: str, op: Op, by_rule: Any) -> None:
    a, b = every_pair(dtype)
    own = memory.put(a)
    memory.fold(op, own, memory.put(b))
    infinity, sign = infinity_of(a.dtype), 1 << 8 * a.itemsize - 1
    expected = [by_rule(x, y, infinity, sign) for x, y in zip(bits_of(a).tolist(), bits_of(b).tolist(), strict=True)]
    assert bits_of(memory.get(own)).tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", list(Op))
def test_the_bits_do_not_depend_on_how_pieces_are_cut(memory: Memory, dtype: str, op: Op) -> None:
    """One element at a time, whole, and from every offset: other instructions, the same bits."""
    a, b = every_pair(dtype)
    alone = []
    for x, y in zip(a.reshape(-1, 1), b.reshape(-1, 1), strict=True):
        own = memory.put(x)
        memory.fold(op, own, memory.put(y))
        alone.append(memory.get(own).tobytes())
    for start in range(20):
        own, landed = memory.put(a), memory.put(b)
        memory.fold(op, own[start:], landed[start:])
        assert memory.get(own)[start:].tobytes() == b"".join(alone[start:])
        memory.fold(op, landed[start:], memory.put(a)[start:])  # in place of the other operand
        assert memory.get(landed)[start:].tobytes() == b"".join(alone[start:])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", list(Op))
def test_every_nan_that_comes_out_is_the_same(memory: Memory, dtype: str, op: Op) -> None:
    a, b = every_pair(dtype)
    own = memory.put(a)
    memory.fold(op, own, memory.put(b))
    got, infinity = bits_of(memory.get(own)), infinity_of(a.dtype)
    nan = (got << 1) > infinity << 1
    assert nan.any()
    assert set(got[nan].tolist()) == {quiet_nan(infinity)}


@pytest.mark.parametrize("dtype", FLOATS)
def test_quotients_of_nan_are_the_same_nan(memory: Memory, dtype: str) -> None:
    array = memory.put(peculiar(dtype_of(dtype)))
    memory.divide(array, 3)
    assert bits_of(memory.get(array))[6:12].tolist() == [quiet_nan(infinity_of(dtype_of(dtype)))] * 6


def test_copies(memory: Memory) -> None:
    source = random_bits("int16", 1001, 12)
    for start in range(9):
        out = memory.put(random_bits("int16", 1010, 13))
        before = memory.get(out)
        memory.copy(out[start : start + 1001], memory.put(source))
        before[start : start + 1001] = source
        assert memory.get(out).tobytes() == before.tobytes()


@pytest.mark.parametrize("memory", ["twin", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_jobs_that_are_given_ahead_are_the_next_kernels(memory: Memory) -> None:
    """Each kernel ends with the jobs that are its own."""
    assert isinstance(memory, Served)
    own, landed = memory.put(np.full(1000, 3.0, np.float32)), memory.put(np.full(1000, 2.0, np.float32))
    ops = (Op.SUM, Op.PROD, Op.SUM)
    firsts = [memory.give([(FOLD, own, landed)], op) for op in ops]
    for op, first in zip(ops, firsts, strict=True):
        memory.launch(np.dtype(np.float32), op, first)
    memory.gpu.wait()
    assert set(memory.get(own).tolist()) == {12.0}, "(3 + 2) x 2 + 2"
