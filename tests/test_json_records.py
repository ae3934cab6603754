"""One description of a record gives its reader, its writer and its check, and all three say the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.values.json_records import (
    LAST,
    OMITTED,
    As,
    Called,
    Choice,
    Exact,
    FieldError,
    Index,
    Least,
    Text,
    Whole,
    codec,
    read_json,
    write_json,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Cut:
    """kind : which one; where : a rank"""

    kind: Literal["cut", "slit"]
    where: Index


@dataclass(frozen=True)
class Fold:
    kind: Literal["fold"]


@dataclass(frozen=True)
class Sheet:
    """A sheet of paper.

    Attributes
    ----------
    done : last of all
    width, height : in points,
        at most 9
    note : None: there is none; colour : one of two
    """

    done: Annotated[bool, LAST]
    width: Annotated[int, Whole(1, 9)]
    height: Annotated[Fraction, Exact(Fraction(1), Fraction(9))]
    colour: Colour
    work: Annotated[tuple[Cut | Fold, ...], Least(1)]
    marks: tuple[tuple[Index, Fraction], ...] = ()
    note: Annotated[str, Text("[a-z]+", "small letters")] | None = None
    paper: Annotated[str, Choice(("thin", "thick"))] = "thin"
    fibre: Annotated[str, Called("fiber")] = "wood"
    layers: Annotated[int | None, OMITTED] = None


SHEET = Sheet(True, 3, Fraction(3, 2), Colour.RED, (Cut("slit", 4), Fold("fold")), ((1, Fraction(1, 3)),))
JSON: dict[str, Any] = {
    "width": 3,
    "height": "3/2",
    "colour": "red",
    "work": [{"kind": "slit", "where": 4}, {"kind": "fold"}],
    "marks": [[1, "1/3"]],
    "note": None,
    "paper": "thin",
    "fiber": "wood",
    "done": True,
}


def test_a_record_is_written_and_read() -> None:
    assert list(write_json(Sheet, SHEET)) == list(JSON)
    assert write_json(Sheet, SHEET) == JSON
    assert read_json(Sheet, JSON) == SHEET
    assert read_json(Sheet, {**JSON, "layers": 2}).layers == 2
    assert read_json(Sheet, {**JSON, "layers": None}) == SHEET
    assert read_json(Sheet, {**JSON, "added_later": [1]}) == SHEET
    codec(Sheet).check(SHEET)


FAULTS = [
    ("width", 0, "width", "a whole number from 1 to 9", "0"),
    ("width", True, "width", "a whole number from 1 to 9", "true"),
    ("width", "3", "width", "a whole number from 1 to 9", "3"),
    ("height", "0.5", "height", "an exact number as text", "0.5"),
    ("height", "1/0", "height", "an exact number as text", "1/0"),
    ("height", 2, "height", "an exact number as text", "2"),
    ("colour", "green", "colour", "one of red, blue", "green"),
    ("colour", ["red"], "colour", "one of red, blue", "['red']"),
    ("work", [], "work", "an array of 1 or more", "[]"),
    ("work", [{"kind": "fold"}, {"kind": "tear"}], "work[1].kind", "one of cut, slit, fold", "tear"),
    ("work", [{"kind": "cut"}], "work[0]", "a field 'where'", "none"),
    ("work", [{"kind": "cut", "where": -1}], "work[0].where", "a whole number from 0", "-1"),
    ("work", [7], "work[0]", "an object", "7"),
    ("marks", [[1]], "marks[0]", "an array of 2", "[1]"),
    ("marks", [[1, 2]], "marks[0][1]", "an exact number as text", "2"),
    ("note", "ABC", "note", "small letters", "ABC"),
    ("paper", None, "paper", "one of thin, thick", "null"),
    ("fiber", 1, "fiber", "text", "1"),
    ("layers", "2", "layers", "a whole number, 0 or more", "2"),
    ("done", 1, "done", "true or false", "1"),
    ("done", ..., "", "a field 'done'", "none"),
]


@pytest.mark.parametrize(("name", "value", "place", "expected", "got"), FAULTS, ids=str)
def test_what_is_not_of_its_type_is_named(name: str, value: Any, place: str, expected: str, got: str) -> None:
    wrong = {key: part for key, part in {**JSON, name: value}.items() if part is not ...}
    with pytest.raises(FieldError) as error:
        read_json(Sheet, wrong)
    assert (error.value.place, str(error.value.got)) == (place, got)
    assert error.value.expected.startswith(expected)


@pytest.mark.parametrize(
    ("field", "value"), [("width", 10), ("width", True), ("height", Fraction(10)), ("work", ()), ("layers", "2")]
)
def test_values_made_in_python_are_checked_the_same_way(field: str, value: object) -> None:
    object.__setattr__(wrong := read_json(Sheet, JSON), field, value)
    with pytest.raises(FieldError) as error:
        codec(Sheet).check(wrong)
    assert error.value.place == field


@given(st.fractions(0, 9), st.integers(0, 12))
def test_check_says_what_the_reader_says(height: Fraction, width: int) -> None:
    made = Sheet(False, width, height, Colour.BLUE, (Fold("fold"),))
    fits = 1 <= width <= 9 and height >= 1
    for look in (lambda: codec(Sheet).check(made), lambda: read_json(Sheet, write_json(Sheet, made))):
        if fits:
            look()
        else:
            with pytest.raises(FieldError):
                look()


def test_a_value_may_be_another_record_in_json() -> None:
    pair = Annotated[tuple[str, int], As(Cut, lambda value: Cut(*value), lambda cut: (cut.kind, cut.where))]
    assert write_json(pair, ("cut", 3)) == {"kind": "cut", "where": 3}
    assert read_json(pair, {"kind": "cut", "where": 3}) == ("cut", 3)
