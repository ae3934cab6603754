"""Orders of schemes: ties are narrow, all of them are listed, and what is not tied is a disagreement."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import bench_packet_level
from benchmarks.bench_packet_level import CAUSES, TIE, Cause, Line, Swap, Windows, in_other_order, swaps

NAMES = ["ring", "nested"]


def apart(found: list[Swap]) -> list[Swap]:
    return [swap for swap in found if not swap.tied]


def test_the_width_of_a_tie() -> None:
    """What is said on the page; a wider one would hide disagreements."""
    assert TIE == 0.01


@pytest.mark.parametrize(
    ("ours", "theirs"), [((1.0, 1.012), (1.002, 1.0)), ((1.0, 1.002), (1.012, 1.0)), ((1.0, 1.5), (1.5, 1.0))]
)
def test_more_than_the_width_on_either_side_is_a_disagreement(
    ours: tuple[float, float], theirs: tuple[float, float]
) -> None:
    found = swaps("P = 4", "4 MiB", NAMES, ours, theirs)
    assert len(apart(found)) == len(found) == 1
    assert (found[0].first, found[0].second) == ("ring", "nested")
    assert (found[0].ours, found[0].theirs) == (ours[0] / ours[1], theirs[0] / theirs[1])


def test_ties_are_listed_with_both_figures() -> None:
    found = swaps("P = 4", "4 MiB", NAMES, (1.0, 1.009), (1.009, 1.0))
    assert not apart(found)
    assert str(found[0]) == "P = 4, 4 MiB: ring takes 0.9911 of nested here, 1.0090 in ns-3"


def test_the_same_order_is_neither() -> None:
    assert swaps("P = 4", "4 MiB", NAMES, (1.0, 1.001), (1.0, 1.5)) == []


def test_lines_of_a_job_are_compared() -> None:
    """The control: with the simulator's times the other way round the pair is a disagreement."""
    times = {"ring": (2.0, 2.01), "nested": (1.0, 1.01), "exchange": (1.5, 1.49)}
    lines = [Line(4, "1/2", name, ours, theirs, ours, 0, None, None, None) for name, (ours, theirs) in times.items()]
    assert in_other_order(lines, "4 MiB") == []
    wrong = [
        Line(4, "1/2", name, 3 - ours, theirs, ours, 0, None, None, None) for name, (ours, theirs) in times.items()
    ]
    assert {(swap.first, swap.second) for swap in apart(in_other_order(wrong, "4 MiB"))} == {
        ("ring", "nested"),
        ("ring", "exchange"),
        ("exchange", "nested"),
    }


def test_a_row_fits_its_table() -> None:
    (swap,) = swaps("P = 4", "4 MiB", NAMES, (1.0, 1.1), (1.1, 1.0))
    cells = Cause(swap, (1.0, 1.0, 1.0, 1.0), 1.0, (1.0, 1.0), (4096, 672)).cells()
    assert len(cells) == len(CAUSES)
    assert cells[-1] == "NOT tied"


@pytest.mark.parametrize(
    ("smaller", "stripes", "most", "said"),
    [
        (0.99, 0.99, 0.99, "packets"),
        (1.01, 1.01, 0.99, "receivers"),
        (1.01, 0.99, 1.01, "rows"),
        (1.01, 0.99, 0.99, "none alone"),
    ],
)
def test_what_a_pair_goes_with(smaller: float, stripes: float, most: float, said: str) -> None:
    """What gives both one order; the simulator's, that the first is faster, or ns-3's, that it is not."""
    (swap,) = swaps("P = 4", "4 MiB", NAMES, (1.0, 1.1), (1.1, 1.0))
    assert Cause(swap, (1.0, 1.0, 1.0, smaller), stripes, (0.98, most), (1, 1)).goes_with == said


@pytest.mark.parametrize(
    ("times", "alone", "status", "said"),
    [
        ((0.995, 1.0), 1.0, 0, "0 pairs of schemes are in another order, 0 of them not tied"),
        ((1.0, 0.995), 1.0, 0, "3 pairs of schemes are in another order, 0 of them not tied"),
        ((1.0, 0.985), 1.0, 0, "3 pairs of schemes are in another order, 3 of them not tied"),
        ((1.0, 0.985), 0.99, 1, "3 pairs of schemes are in another order, 3 of them not tied"),
    ],
    ids=["same order", "tied", "explained", "not explained"],
)
def test_a_disagreement_that_nothing_explains_is_an_error(
    times: tuple[float, float], alone: float, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole script on made-up times: ns-3's for the ring and nested rings, where we say 0.995 and 1.

    alone : the ring's time over nested rings' when receivers or rows are changed; from 1 on that explains it.
    """

    def compare(*job: object) -> tuple[list[Line], list[Cause]]:
        where = str(job[-1])
        ours = dict(zip(NAMES, (0.995, 1.0), strict=True))
        lines = [
            Line(4, "1/2", name, ours[name], time, ours[name], 0, None, 1.0, None)
            for name, time in zip(NAMES, times, strict=True)
        ]
        return lines, [Cause(swap, (1.0,) * 4, alone, (0.98, alone), (1, 1)) for swap in in_other_order(lines, where)]

    row = Windows(4, "1/2", "ring", 1.0, 1.0, (1.0, 1.0, 1.0), 1.0, (1.0, 1.0))
    monkeypatch.setattr(bench_packet_level, "compile_executor", lambda directory: directory)
    monkeypatch.setattr(bench_packet_level, "version", lambda package: "0")
    monkeypatch.setattr(bench_packet_level, "compare", compare)
    monkeypatch.setattr(bench_packet_level, "compare_windows", lambda *job: [row])
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["bench_packet_level", "-o", str(page)])
    assert bench_packet_level.main() == status
    assert said in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ratio", "ties", "fine", "fine_ties", "explained"),
    [
        (1.03, (1.0, 1.025), 1.03, (1.0, 1.0), True),
        (1.03, (1.0, 1.01), 1.005, (1.0, 1.0), True),
        (1.03, (1.0, 1.01), 0.98, (0.985, 1.0), True),
        (1.03, (1.0, 1.01), 0.98, (1.0, 1.03), False),
        (1.03, (1.0, 1.01), 1.03, (0.98, 1.0), False),
        (0.97, (1.0, 1.03), 0.97, (1.0, 1.03), False),
    ],
)
def test_what_explains_a_time(
    ratio: float, ties: tuple[float, float], fine: float, fine_ties: tuple[float, float], explained: bool
) -> None:
    """Rows that are tied, or small packets, or both; on the side on which ns-3 is."""
    assert Line(4, "1/2", "ring", 1.0, ratio, 1.0, 0, ties, fine, fine_ties).explained == explained
