"""Half and double of the planner's numbers: the values, that they reach the families, and that effects are seen."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest

from benchmarks import bench_numbers
from benchmarks.bench_numbers import DOUBLE, HALF, WITHOUT, Task, Times
from optcc.schedule import direct, tuned


@pytest.mark.parametrize(
    ("value", "half", "double"),
    [
        (5, 2, 10), (1, 1, 2), (0.6, 0.3, 1.2),
        (Fraction(2, 3), Fraction(1, 3), 1), (Fraction(3, 2), Fraction(3, 4), 3),
        ((4, Fraction(1, 8)), (2, Fraction(1, 16)), (8, Fraction(1, 4))),
    ],
)  # fmt: skip
def test_half_and_double(value: object, half: object, double: object) -> None:
    assert bench_numbers.changed(value, HALF) == half
    assert bench_numbers.changed(value, DOUBLE) == double


def test_a_new_value_reaches_the_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "UP", tuned.UP)
    monkeypatch.setattr(direct, "UP", tuned.UP)
    before = direct.step_ends(20, Fraction(6, 5))
    bench_numbers.put("UP", Fraction(9, 10))
    direct.step_ends.cache_clear()
    assert direct.step_ends(20, Fraction(6, 5)) != before
    monkeypatch.undo()
    direct.step_ends.cache_clear()


def test_effects() -> None:
    base = {"a": 1.0, "b": 2.0, "c": 4.0}
    assert bench_numbers.effect(base, base) == "none"
    assert bench_numbers.effect(base, {"a": 1.02, "b": 1.98, "c": inf}) == "2: +0.5 (-1.0 to +2.0); no plan in 1"


def test_tables_join_the_parts() -> None:
    found = {
        Task(0): Times({"a": 1.0}), Task(1): Times({"b": 1.0}),
        Task(0, "UP", HALF): Times({"a": 1.0}), Task(1, "UP", HALF): Times({"b": 1.1}),
        Task(0, "UP", DOUBLE): Times({"a": 1.0}), Task(1, "UP", DOUBLE): Times({"b": 1.0}),
        Task(0, "trees", WITHOUT): Times({"a": 3.0}), Task(1, "trees", WITHOUT): Times({"b": 1.0}),
    }  # fmt: skip
    lines = bench_numbers.tables(["UP"], ["trees"], found)
    assert "| `UP` | 2/5 | 1: +10.0 (+10.0 to +10.0) | none |" in lines
    assert "| trees | 1: +200.0 (+200.0 to +200.0) |" in lines
