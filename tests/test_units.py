"""Units: exact, both ways, and nothing but InputError for anything else."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optcc.discover import parse_fail
from optcc.errors import InputError
from optcc.values.units import (
    MAX_BYTES,
    format_rate,
    format_seconds,
    format_size,
    parse_fraction,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("400Gb/s", 50_000_000_000),
        ("50GB/s", 50_000_000_000),
        ("50 GB/s", 50_000_000_000),
        ("0.4Tb/s", 50_000_000_000),
        ("1e3Mb/s", 125_000_000),
        ("1GiB/s", 2**30),
        ("8b/s", 1),
        ("8b/sec", 1),
        ("0Gb/s", 0),
        ("0.37GB/s", 370_000_000),
        (".5B/s", Fraction(1, 2)),
        ("400G", 50_000_000_000),
        ("400Gbps", 50_000_000_000),
        ("400 Gbit/s", 50_000_000_000),
        ("400Gbit", 50_000_000_000),
        ("50GBps", 50_000_000_000),
    ],
)
def test_rate(text: str, bytes_per_second: int | Fraction) -> None:
    assert parse_rate(text) == bytes_per_second


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1GiB", 2**30),
        ("64MB", 64_000_000),
        ("4096", 4096),
        ("1.5KiB", 1536),
        ("0", 0),
        (" 1 KiB ", 1024),
        ("256M", 2**28),
        ("1K", 1024),
        ("8g", 2**33),
        ("1KB", 1000),
        ("1kB", 1000),
        ("1Gi", 2**30),
    ],
)
def test_size(text: str, nbytes: int) -> None:
    size = parse_size(text)
    assert size == nbytes
    assert isinstance(size, int)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", "0"),
        ("5us", "1/200000"),
        ("5µs", "1/200000"),
        ("5μs", "1/200000"),
        ("3.2ms", "2/625"),
        ("1min", "60"),
        ("2h", "7200"),
    ],
)
def test_seconds(text: str, seconds: str) -> None:
    assert parse_seconds(text) == Fraction(seconds)


@given(st.integers(0, 10**6), st.sampled_from(["b", "kb", "Mb", "Gb", "Tb"]))
def test_rate_round_trip(number: int, unit: str) -> None:
    rate = parse_rate(f"{number}{unit}/s")
    assert parse_rate(format_rate(rate, digits=17)) == pytest.approx(rate, rel=1e-15)
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=1e-5)


@given(st.integers(0, MAX_BYTES))
def test_size_round_trip(nbytes: int) -> None:
    assert parse_size(str(nbytes)) == nbytes
    number = format_size(nbytes).rstrip("TGMKiB")
    unit = format_size(nbytes).removeprefix(number)
    assert Fraction(number) * parse_size(f"1{unit}") == pytest.approx(nbytes, rel=1e-5)


@pytest.mark.parametrize("text", ["1B", "1023B", "1KiB", "1.5MiB", "64MiB", "1GiB", "1024TiB"])
def test_sizes_that_people_write_come_back_unchanged(text: str) -> None:
    assert format_size(parse_size(text)) == text


@given(st.fractions(0, 10**5, max_denominator=10**9))
def test_seconds_round_trip(seconds: Fraction) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=1e-3)


PARSERS = [parse_rate, parse_size, parse_seconds, parse_fail]
PIECES = [
    "1",
    "9",
    "0.5",
    ".",
    "e9",
    "e999999999",
    "-",
    "+",
    "%",
    "/",
    "=",
    "G",
    "Gi",
    "b",
    "B",
    "s",
    "B/s",
    "server0/nic0",
]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text() | st.lists(st.sampled_from([*PIECES, "**", "⁹", "(", "nan", "inf", " ", "squared"])).map("".join))
@example(text="9⁹⁹⁹⁹⁹⁹⁹⁹⁹⁹⁹ B/s")
@example(text="9" * 10**6)
@example(text="server0/nic0=" + "9" * 10**6)
@example(text="server0/nic0=1e999999999")
@example(text="1e999999999 B")
@example(text="9**9**9**9 B")
@pytest.mark.timeout(60)
def test_any_text_is_parsed_or_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with suppress(InputError):
        parse(text)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(12345.6, "12346 s"), (9999, "9999 s"), (0.0032, "3.2 ms"), (5e-12, "0.005 ns"), (0, "0 s")]
)
def test_long_times_without_exponents(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize("text", ["0.1", "10%", "10 %", "1/10", " .1 "])
def test_one_way_of_writing_parts(text: str) -> None:
    assert parse_fraction(text) == parse_share(text) == Fraction(1, 10)


@pytest.mark.parametrize("text", ["0", "0%", "0/7"])
def test_no_part_is_no_share(text: str) -> None:
    assert parse_fraction(text) == 0
    with pytest.raises(InputError, match="not a share, expected above 0"):
        parse_share(text)
