"""Buffers, folds, and payloads: the reference is right, and no mistake goes unseen."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from operator import add, mul
from typing import Any

import numpy as np
import pytest

from optcc.errors import InputError
from optcc.runtime.devices.host import (
    BFLOAT16,
    DTYPES,
    Array,
    Op,
    Reduction,
    dtype_of,
    empty,
    fold,
    name_of,
    reduction_of,
    widen,
)
from optcc.runtime.evidence.payload import fill, is_exact, reference

COUNT = 257
ALL = [(dtype, op) for dtype in DTYPES for op in Op]
NOT_IDEMPOTENT = [(dtype, op) for dtype in DTYPES for op in (Op.SUM, Op.PROD)]


def inputs(dtype: str, op: Op, ranks: int, count: int = COUNT) -> list[Array]:
    made = [empty(count, dtype_of(dtype)) for _ in range(ranks)]
    for rank, out in enumerate(made):
        fill(out, rank=rank, ranks=ranks, op=op)
    return made


def folded(parts: list[Array], op: Op) -> Array:
    total = parts[0].copy()
    for part in parts[1:]:
        fold(op, total, part)
    return total


def numbers(array: Array) -> list[Any]:
    """The elements in Python's own numbers."""
    listed: list[Any] = (widen(array) if array.dtype == BFLOAT16 else array).tolist()
    return listed


def in_exact_numbers(parts: list[Array], op: Op) -> list[Any]:
    """The reduction in Python's own numbers, wrapped around for integers; NaN left aside, None where all are."""
    totals: list[Any] = []
    for column in zip(*(numbers(part) for part in parts), strict=True):
        held = [x if x in (inf, -inf) else Fraction(x) for x in column if x == x]
        if not held:
            totals.append(None)
            continue
        total = held[0]
        for x in held[1:]:
            total = {Op.SUM: add, Op.PROD: mul, Op.MIN: min, Op.MAX: max}[op](total, x)
        totals.append(total)
    dtype = parts[0].dtype
    if dtype.kind in "iu":
        size, low = 2 ** (8 * dtype.itemsize), int(np.iinfo(dtype).min)
        totals = [(int(total) - low) % size + low for total in totals]
    return totals


@pytest.mark.parametrize(("dtype", "op"), ALL)
def test_reference_is_the_exact_reduction(dtype: str, op: Op) -> None:
    parts = inputs(dtype, op, ranks=5)
    result = reference(COUNT, dtype_of(dtype), ranks=5, op=op)
    assert [x if x == x else None for x in numbers(result)] == in_exact_numbers(parts, op)


@pytest.mark.parametrize("ranks", [2, 5, 40])
@pytest.mark.parametrize(("dtype", "op"), ALL)
def test_the_order_of_folds_does_not_matter(dtype: str, op: Op, ranks: int) -> None:
    parts = inputs(dtype, op, ranks)
    expected = reference(COUNT, dtype_of(dtype), ranks=ranks, op=op)
    shuffled = [parts[i] for i in np.random.default_rng(7).permutation(ranks)]
    assert is_exact(folded(parts[::-1], op), expected)
    assert is_exact(folded(shuffled, op), expected)
    # A tree: partial results of any subset are exact too.
    half = ranks // 2
    if half:
        tree = folded(parts[:half], op)
        fold(op, tree, folded(parts[half:], op))
        assert is_exact(tree, expected)


@pytest.mark.parametrize("ranks", [2, 16])
@pytest.mark.parametrize(("dtype", "op"), ALL)
def test_a_dropped_contribution_shows(dtype: str, op: Op, ranks: int) -> None:
    parts = inputs(dtype, op, ranks)
    expected = reference(COUNT, dtype_of(dtype), ranks=ranks, op=op)
    for rank in range(ranks):
        assert not is_exact(folded(parts[:rank] + parts[rank + 1 :], op), expected)


@pytest.mark.filterwarnings("ignore:overflow")  # one factor too many
@pytest.mark.parametrize("ranks", [1, 16])
@pytest.mark.parametrize(("dtype", "op"), NOT_IDEMPOTENT)
def test_a_duplicated_contribution_shows(dtype: str, op: Op, ranks: int) -> None:
    parts = inputs(dtype, op, ranks)
    expected = reference(COUNT, dtype_of(dtype), ranks=ranks, op=op)
    for rank in range(ranks):
        assert not is_exact(folded([*parts, parts[rank]], op), expected)


@pytest.mark.parametrize(("dtype", "op"), ALL)
def test_a_misplaced_section_shows(dtype: str, op: Op) -> None:
    parts = inputs(dtype, op, ranks=4)
    expected = reference(COUNT, dtype_of(dtype), ranks=4, op=op)
    swapped = folded(parts, op)
    swapped[64:128], swapped[128:192] = swapped[128:192].copy(), swapped[64:128].copy()
    assert not is_exact(swapped, expected)
    parts[1] = np.roll(parts[1], 8)
    assert not is_exact(folded(parts, op), expected)
    assert not is_exact(parts[0], expected)  # a rank that got nothing


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_shows_a_drop_in_a_sum(dtype: str) -> None:
    for rank in range(4):
        parts = inputs(dtype, Op.SUM, ranks=4, count=1)
        expected = reference(1, dtype_of(dtype), ranks=4, op=Op.SUM)
        assert not is_exact(folded(parts[:rank] + parts[rank + 1 :], Op.SUM), expected)


def test_payloads_differ_by_rank_and_not_by_call() -> None:
    first, second = inputs("float32", Op.SUM, 2)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, inputs("float32", Op.SUM, 2)[0])


def test_another_dtype_is_not_exact() -> None:
    assert not is_exact(np.ones(3, np.float32), np.ones(3, np.float64))


def test_too_many_ranks_for_half_precision() -> None:
    with pytest.raises(InputError, match="too many ranks"):
        fill(empty(4, np.dtype("float16")), rank=0, ranks=4096, op=Op.SUM)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"one of int8, .*, got 'float8'"):
        dtype_of("float8")
    with pytest.raises(InputError, match=r"one of sum, prod, min, max, avg, got 'mean'"):
        reduction_of("mean")
    for dtype in (np.dtype(">f4"), np.dtype("complex64"), np.dtype("V2"), np.dtype(bool)):
        with pytest.raises(InputError, match="unknown dtype"):
            name_of(dtype)


def test_names_and_types() -> None:
    assert [name_of(dtype_of(name)) for name in DTYPES] == list(DTYPES)
    assert reduction_of("avg") == Reduction(Op.SUM, mean=True)
    assert [reduction_of(op).fold for op in Op] == list(Op)
