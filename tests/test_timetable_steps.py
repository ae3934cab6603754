"""What timetables are made of: steps, rounds, slots, and the bytes that are cut by them."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.schedule import timetable_matched
from optcc.schedule.timetable_matchings import factors, matchings
from optcc.schedule.timetable_rows import Kind, Piece, cut
from optcc.schedule.timetable_slots import (
    HALF,
    LAST,
    Slot,
    full_rounds,
    growing_rounds,
    growing_steps,
    in_turns,
    mirrored,
    portions,
)
from tests.timetables import (
    half_slow,
    timetable,
)


@given(st.integers(2, 9), st.data())
def test_factors_serve_every_pair_once(ranks: int, data: st.DataObject) -> None:
    """As many steps as ranks less one, in all as long as each rank needs."""
    kinds = data.draw(st.lists(st.integers(1, 3), min_size=ranks, max_size=ranks))
    needs = [[1000 * (kinds[i] + kinds[k]) if i != k else 0 for k in range(ranks)] for i in range(ranks)]
    steps = factors(tuple(map(tuple, needs)))
    assert len(steps) == ranks - 1
    pairs = [pair for receivers, _ in steps for pair in enumerate(receivers)]
    assert sorted(pairs) == [(i, k) for i in range(ranks) for k in range(ranks) if i != k]
    assert sum(lasts for _, lasts in steps) == pytest.approx(sum(map(sum, needs)) / ranks, abs=ranks)


def test_factors_put_alike_pairs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven slow ranks of 16: no pair needs 2 % more than its step."""
    over: list[float] = []

    def seen(needs: tuple[tuple[int, ...], ...]) -> tuple[tuple[tuple[int, ...], int], ...]:
        steps = factors(needs)
        over.append(max(needs[i][k] / lasts for receivers, lasts in steps for i, k in enumerate(receivers)))
        return steps

    monkeypatch.setattr(timetable_matched, "factors", seen)
    cluster = half_slow(7)
    timetable(cluster, matched=1).fluid_s(cluster, 2**20)
    assert [round(by, 2) for by in over] == [1.0, 1.02]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 7))
def test_portions_are_equal_and_all(lengths: list[int], count: int) -> None:
    steps = [((step,), lasts) for step, lasts in enumerate(lengths)]
    found = portions(steps, count)
    order = [receivers for own in found for receivers, _ in own]
    assert order == sorted(order)
    assert all(abs(sum(lasts for _, lasts in own) - sum(lengths) / count) < 1 for own in found)
    for step, whole in enumerate(lengths):
        assert sum(lasts for own in found for receivers, lasts in own if receivers == (step,)) == whole


@given(st.integers(1, 9))
def test_every_round_serves_everybody_as_much(count: int) -> None:
    ends = [HALF * turn // count for turn in range(count + 1)]
    for offset in full_rounds([0, 1], 5, count):
        carried = [sum(slot.weight for slot in offset if begin <= slot.begin < end) for begin, end in pairwise(ends)]
        assert all(abs(5 * count * own - 2 * HALF) <= 20 * count for own in carried)


@given(st.integers(2, 7).flatmap(lambda m: st.lists(st.permutations(range(m)), min_size=1, max_size=9)), st.data())
def test_matchings_are_what_is_needed(steps: list[list[int]], data: st.DataObject) -> None:
    """Their sum is the matrix, less what is too short; each sender and each receiver has one part in each."""
    ranks = len(steps[0])
    needs = np.zeros((ranks, ranks), int)
    for step in steps:
        needs[range(ranks), step] += data.draw(st.integers(1, 1000))
    rows = tuple(map(tuple, needs.tolist()))
    found = matchings(rows, 1)
    for receivers, lasts in found:
        assert sorted(receivers) == list(range(ranks))
        assert lasts > 0
        needs[range(ranks), receivers] -= lasts
    assert not needs.any()
    assert sum(lasts for _, lasts in found) == sum(rows[0])
    assert all(lasts >= 50 for _, lasts in matchings(rows, 50))


def test_matrices_of_unequal_sums_have_no_matchings() -> None:
    with pytest.raises(AssertionError, match="other sums"):
        matchings(((0, 1), (1, 1)), 1)


def test_steps_in_turns_fill_the_half() -> None:
    """Two rounds of two steps, a quarter of a round ahead; what meets its own end is one slot."""
    found = in_turns([((1, 0), 3), ((0, 1), 1)], 2, Fraction(1, 4))
    assert found[0, 1] == [(0, HALF // 4), (HALF * 3 // 8, HALF * 3 // 8), (HALF * 7 // 8, HALF // 8)]
    assert found[0, 1] == found[1, 0]
    assert set(found) == {(0, 1), (1, 0)}


@given(st.integers(2, 12), st.integers(1, 8), st.integers(1, 3))
def test_full_rounds_serve_every_offset_as_often_on_every_rail(peers: int, rails: int, rounds: int) -> None:
    table = full_rounds(range(rails), peers, rounds)
    check_rails(table, rails)
    for rail in range(rails):
        assert [sum(slot.nic == rail for slot in own) for own in table] == [rounds] * peers


@given(st.integers(2, 40), st.integers(1, 8), st.integers(1, 8), st.fractions(1, 4, max_denominator=9), st.data())
def test_growing_rounds_serve_every_offset_as_long(
    peers: int, rails: int, rounds: int, growth: Fraction, data: st.DataObject
) -> None:
    """As long as no offset has had more than its part before the last round."""
    steps = growing_steps(rounds, growth, Fraction(peers, rails))
    assert steps == sorted(steps)
    table = growing_rounds(range(rails), peers, steps, data.draw(st.integers(0, peers - 1)))
    check_rails(table, rails)
    had = [sum(slot.size for slot in own if slot.begin < steps[-1]) for own in table]
    if max(had) <= HALF * rails / peers:
        assert [sum(slot.size for slot in own) for own in table] == pytest.approx([HALF * rails / peers] * peers)


def test_steps_grow_by_the_round() -> None:
    """17/10 in 31/4 steps; a last round of LAST times the last step's is left."""
    steps = growing_steps(4, Fraction(17, 10), Fraction(31, 4))
    sizes = np.diff(steps)
    assert len(sizes) == 31
    assert sizes[8:] / sizes[:-8] == pytest.approx([1.7 ** (32 / 31)] * 23, rel=2e-3)
    assert HALF - steps[-1] == pytest.approx(float(LAST) * 31 / 4 * sizes[-1], rel=1e-6)


def check_rails(table: list[list[Slot]], rails: int) -> None:
    """One offset at a time on every rail, all of the half."""
    assert all(list(own) == sorted(own) for own in table)
    for rail in range(rails):
        mine = sorted(slot for own in table for slot in own if slot.nic == rail)
        assert mine[0].begin == 0
        assert mine[-1].begin + mine[-1].size == HALF
        assert all(a.begin + a.size == b.begin for a, b in pairwise(mine))
    assert mirrored(mirrored(table[0])) == table[0]


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=3),
    st.integers(1, 9),
    st.fractions(1, 4, max_denominator=9),
)
def test_pieces_are_cut_without_a_gap(lengths: list[int], count: int, growth: Fraction) -> None:
    ends = np.cumsum([0, *lengths]).tolist()
    pieces = [Piece(Kind.RAW, 0, a, b) for a, b in pairwise(ends)]
    given_ = growing_rounds([0], 1, growing_steps(count, growth, Fraction(1)))[0]
    made = [part[3:5] for part in cut(pieces, given_)]
    assert [a for a, _ in made[1:]] == [b for _, b in made[:-1]]
    assert not ends[-1] or (made[0][0], made[-1][1]) == (0, ends[-1])
    assert all(b > a for a, b in made)


def test_a_slot_that_nearly_ends_with_a_piece_ends_with_it() -> None:
    """What is left would be waited for until the pair's next slot, which may be half a plan later."""
    pieces = [Piece(Kind.RAW, 0, 0, 8000), Piece(Kind.PARTIAL, 1, 0, 8000)]

    def made(weight: int) -> list[tuple[int, int]]:
        slots = [Slot(0, 1, 0, weight), Slot(1, 1, 0, 1000 - weight), Slot(2, 1, 0, 1000)]
        return [(part[-1], part[4] - part[3]) for part in cut(pieces, slots)]

    assert made(996) == [(0, 8000), (2, 8000)]
    assert made(900) == [(0, 7200), (1, 800), (2, 8000)]
    backward = [Slot(0, 1, 0, 1004), Slot(1, 1, 0, 996)]
    assert [(part[-1], part[4] - part[3]) for part in cut(pieces, backward)] == [(0, 8000), (1, 8000)]
