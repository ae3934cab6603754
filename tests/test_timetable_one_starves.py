"""Timetables in greedy steps, where a slow server starves and others may be slow, too."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster, Fabric
from optcc.errors import InputError
from optcc.schedule import timetable as timetables
from optcc.schedule import timetable_greedy
from optcc.schedule.timetable import Timetable, _turned
from optcc.schedule.timetable_greedy import LATE, LEAD, ONE, PARTS, _Half, greedy_slots, step_ends
from optcc.schedule.timetable_nics import applies, have_spare_time, live_nics
from optcc.schedule.timetable_one_starves import one_starves, stepped
from optcc.schedule.timetable_rows import Kind, Rows, in_order, on_leash
from optcc.schedule.timetable_slots import HALF, Slot
from optcc.simulator import Receivers, simulate
from tests.effort import examples
from tests.timetables import ALPHA, PER_CHUNK, RATE, check_allreduce, lacking, loss, timetable

GROWTH = Fraction(23, 20)
MIXES = [("0123", "45", "6"), ("01234", "5"), ("0", "1234", "0"), ("0123", "456"), ("01234", "5670"), ("4567",)]
"""The dead NICs of the first of eight servers."""
COSTS = Fraction(1, 100), Fraction(1, 500)
"""A margin, and what a chunk costs."""


@st.composite
def one_of_several(draw: st.DrawFn) -> Cluster:
    """One server that starves, anywhere, and none to three more that are slow. On one fabric or on rails."""
    ranks, nics = draw(st.integers(5, 9)), draw(st.sampled_from([4, 8]))
    cluster = Cluster.uniform(servers=ranks, nics=nics, rate=RATE)
    cluster = replace(cluster, fabric=Fabric(rails=draw(st.booleans()), spine=None))
    slow = draw(st.permutations(range(ranks)))[: draw(st.integers(1, min(4, ranks - 2)))]
    for place, server in enumerate(slow):
        dead = nics // 2 + draw(st.integers(0, 1)) if place == 0 else draw(st.integers(1, nics // 2))
        for nic in draw(st.permutations(range(nics)))[:dead]:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    assume(applies(cluster) and one_starves(cluster))
    return cluster


@examples(15)
@given(one_of_several(), st.integers(1, 30), st.sampled_from(["1", "23/20", "3/2"]), st.integers(0, 3))
def test_allreduce_holds(cluster: Cluster, segments: int, growth: str, margin: int) -> None:
    recipe = stepped(cluster, Fraction(growth), segments, Fraction(margin, 500), Fraction(margin, 1000))
    check_allreduce(cluster, recipe, 99_992)


@pytest.mark.parametrize("dead", MIXES[:4], ids=str)
def test_less_is_lost_than_by_full_rounds(dead: tuple[str, ...]) -> None:
    cluster = lacking(*dead)
    full = min(loss(cluster, timetable(cluster, rounds, matched=1)) for rounds in (4, 8, 16))
    assert loss(cluster, stepped(cluster, Fraction(11, 10), 80)) < min(0.03, 0.8 * full)


def adding_last(recipe: Timetable, hub: int) -> list[tuple[int, Fraction]]:
    """Who adds last to which part of a hub's section: hubs of nothing first, others only to full ranks' sections."""
    slow = sorted(recipe.via, key=lambda each: recipe.shares[each[0]] > 0)
    own = [(r, part) for r, part in slow if r != hub and (hub not in dict(slow) or not recipe.shares[r])]
    return [(r, part / recipe.turns) for _ in range(recipe.turns) for r, part in own]


def slots_of(recipe: Timetable, cluster: Cluster) -> dict[tuple[int, int], list[Slot]]:
    adding = [adding_last(recipe, hub) for hub in range(len(cluster.ranks))]
    live, ends = [tuple(mine) for mine in live_nics(cluster)], step_ends(recipe.segments, recipe.growth)
    return greedy_slots(live, recipe.shares, adding, ends, recipe.margin, recipe.chunk)[0]


@pytest.mark.parametrize("dead", MIXES, ids=str)
@pytest.mark.parametrize(("margin", "chunk"), [(Fraction(0), Fraction(0)), COSTS], ids=["free", "costs"])
def test_no_sum_is_sent_before_it_is_gathered(dead: tuple[str, ...], margin: Fraction, chunk: Fraction) -> None:
    """But for the late slots, which carry what is left: of each slot to a slow rank, what its hub has by then."""
    cluster = lacking(*dead)
    recipe = replace(stepped(cluster, GROWTH, 40), margin=margin, chunk=chunk)
    slots, ranks, shares = slots_of(recipe, cluster), len(cluster.ranks), recipe.shares
    parts = {hub: [(r, end - part, end) for r, part, end in ends(adding_last(recipe, hub))] for hub in range(ranks)}

    def adds_last(r: int, hub: int) -> Fraction:
        return sum((end - begin for rank, begin, end in parts[hub] if rank == r), Fraction(0))

    def sent(i: int, hub: int, when: int) -> Fraction:
        """How far i has sent of a hub's section, its own parts skipped."""
        mine = slots[i, hub]
        raw = shares[hub] * (1 - adds_last(i, hub))
        whole = raw + shares[i] * adds_last(hub, i)
        done = sum(slot.weight for slot in mine if slot.begin + slot.size <= when)
        at = min(Fraction(done, sum(slot.weight for slot in mine)) * whole, raw) / shares[hub]
        for rank, begin, end in parts[hub]:
            at += end - begin if rank == i and begin <= at else 0
        return at

    checked = 0
    for hub, slow in permutations(range(ranks), 2):
        if not adds_last(slow, hub) or not shares[hub]:
            continue
        mine = slots[hub, slow]
        total, done = sum(slot.weight for slot in mine), 0
        own = shares[slow] * (1 - adds_last(hub, slow))
        whole = own + shares[hub] * adds_last(slow, hub)
        for slot in [slot for slot in mine[:-1] if slot.begin < LATE]:
            done += slot.weight
            sums, needed = (Fraction(done, total) * whole - own) / shares[hub], Fraction(0)
            for rank, begin, end in parts[hub]:  # up to where in the section it carries sums
                if rank == slow and sums > Fraction(1, 10**6):
                    needed, sums = min(end, begin + sums), sums - (end - begin)
            when = slot.begin - int(margin * HALF)
            if needed:
                checked += 1
                others = [i for i in range(ranks) if i not in (hub, slow)]
                assert needed <= min(sent(i, hub, when) for i in others) + Fraction(1, 10**6)
    assert checked > 30


def ends(parts: list[tuple[int, Fraction]]) -> list[tuple[int, Fraction, Fraction]]:
    """(rank, part, where the part ends)."""
    at = accumulate(part for _, part in parts)
    return [(rank, part, end) for (rank, part), end in zip(parts, at, strict=True)]


@pytest.mark.parametrize("dead", MIXES, ids=str)
def test_nobody_meets_on_a_rail(dead: tuple[str, ...]) -> None:
    """A slot of the starving server may be for two others, one after the other."""
    cluster = lacking(*dead)
    slots = slots_of(stepped(cluster, GROWTH, 40), cluster)
    busy: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
    for (i, k), mine in slots.items():
        for slot in mine:
            busy.setdefault(("out", i, slot.nic), set()).add((slot.begin, slot.begin + slot.size))
            busy.setdefault(("into", k, slot.nic), set()).add((slot.begin, slot.begin + slot.size))
    assert min(map(len, busy.values())) > 4
    for times in busy.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(times)))


@pytest.mark.parametrize("dead", MIXES, ids=str)
def test_no_pair_is_far_ahead_of_an_even_course(dead: tuple[str, ...]) -> None:
    """When a slot begins that is not of the starving rank. At the end what is left over is handed out."""
    cluster = lacking(*dead)
    recipe = stepped(cluster, GROWTH, 40)
    lone = min(range(len(cluster.ranks)), key=lambda r: len(live_nics(cluster)[r]))
    checked = 0
    for pair, mine in slots_of(recipe, cluster).items():
        total, done = sum(slot.weight for slot in mine), 0
        for slot in [] if lone in pair else mine:
            ahead = Fraction(done, total) - Fraction(slot.begin + slot.size, HALF)
            assert ahead <= Fraction(LEAD * slot.size, HALF) + Fraction(1, 10**3)
            checked += ahead > 0
            done += slot.weight
    assert checked > 10


def test_what_a_rank_was_sent_first_it_hands_back_first() -> None:
    """The ranks in reverse order, each rank's bytes in the same."""
    parts = [(5, (0, 2)), (3, (2, 3)), (5, (3, 6)), (3, (6, 7))]
    assert _turned(parts) == [(3, (2, 3)), (5, (0, 2)), (3, (6, 7)), (5, (3, 6))]


@pytest.mark.parametrize("dead", MIXES, ids=str)
def test_slots_leave_room_for_what_chunks_cost(dead: tuple[str, ...]) -> None:
    """All that a slot has for its bytes is its time less a chunk's, but for the late ones, which take what is left."""
    cluster = lacking(*dead)
    margin, chunk = COSTS
    slots = slots_of(replace(stepped(cluster, GROWTH, 40), margin=margin, chunk=chunk), cluster)
    early = [slot for mine in slots.values() for slot in mine[:-1] if slot.begin < LATE]
    spare = [slot.size * ONE // HALF - slot.weight for slot in early]
    assert len(spare) > 400
    assert min(spare) == int(chunk * ONE)


def test_what_is_left_over_goes_to_nics_that_have_least() -> None:
    """A pair has an early slot and two late ones on NICs that are not equally busy; all that it lacks is handed out."""
    half = _Half([Fraction(1, 3)] * 3, [[], [], []], Fraction(1), 0)
    needs, unit = int(half.needs[0, 1]), ONE // 100
    half.put(([0], [1]), 2, 0, unit, np.array([unit]))
    half.put(([0, 1], [1, 2]), 3, ONE - unit, ONE, np.array([3 * unit, unit]))
    half.put(([0], [1]), 4, ONE - unit, ONE, np.array([5 * unit]))
    half.put(([0], [2]), 4, ONE - unit, ONE, np.array([4 * unit]))
    half.left[0, 2] = half.left[1, 2] = 0
    half.hand_out(0)
    carried = {slot.nic: slot.weight for slot in half.found[0, 1]}
    assert sum(carried.values()) == needs
    assert carried[2] == unit
    assert abs(carried[3] - (carried[4] + 4 * unit)) <= needs // PARTS


def test_order_is_held() -> None:
    """By waiting for the latest that an earlier transfer on the same NIC waits for, and for no other NIC's."""
    #        0  1  2  3  4  5  6
    src = [1, 2, 0, 0, 0, 0, 0]
    nic = [0, 0, 0, 0, 1, 0, 0]
    columns = {name: np.zeros(7, np.int64) for name in Rows._fields}
    rows = Rows(**columns | {"src": np.array(src), "nic": np.array(nic), "key": np.arange(7)})
    waits = [(np.array([2]), np.array([0])), (np.array([5]), np.array([1]))]
    found = list(zip(*(side.tolist() for side in in_order(rows, waits)), strict=True))
    assert found == [(3, 0), (5, 0), (6, 1)]
    back = rows._replace(kind=np.array([0, 0, 0, 0, 0, Kind.FINAL, 0]))  # what a slow rank hands back is not held up
    assert list(zip(*(side.tolist() for side in in_order(back, waits)), strict=True)) == [(3, 0), (6, 1)]


def test_what_others_send_is_on_a_leash() -> None:
    """In the second half each rank's transfers wait for the latest sum from who starves whose slot was to have ended
    some time before: when the next one of that NIC begins."""
    #        0  1  2  3  4  5  6  7  8  9
    src = [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
    dst = [1, 2, 1, 1, 2, 2, 2, 2, 0, 1]
    nic = [0, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    key = [HALF - 9, HALF, HALF + 10, HALF, HALF - 5, HALF + 14, HALF + 15, 2 * HALF - 1, HALF + 99, HALF + 15]
    columns = {name: np.zeros(10, np.int64) for name in Rows._fields}
    given = {"src": src, "dst": dst, "nic": nic, "key": key}
    rows = Rows(**columns | {name: np.array(column) for name, column in given.items()})
    # From 0: to 2 on NIC 0 until HALF + 10, then to 1 until the end, as on NIC 1. 1 hears from it too late for all.
    assert pairs_of(on_leash(rows, 0, 5)) == [(9, 1)]
    assert pairs_of(on_leash(rows, 0, 6)) == []
    # With one more on NIC 1, the former slot there ends at HALF + 4.
    longer = Rows(*(np.append(column, 0) for column in rows))
    for name, value in {"dst": 2, "nic": 1, "key": HALF + 4}.items():
        getattr(longer, name)[10] = value
    assert pairs_of(on_leash(longer, 0, 10)) == [(5, 3), (6, 3), (7, 3)]
    assert pairs_of(on_leash(longer, 0, 11)) == [(6, 3), (7, 3)]


def pairs_of(found: tuple[Any, Any]) -> list[tuple[int, int]]:
    return sorted(zip(*(side.tolist() for side in found), strict=True))


CHUNK = Fraction(1, 2700)
"""About as much as 1 us is of a half of 1 GiB."""


def lost(cluster: Cluster, segments: int, growth: Fraction, receivers: Receivers) -> float:
    """Of the bound, at 1 GiB with costs."""
    recipe = stepped(cluster, growth, segments, 7 * CHUNK, CHUNK)
    made = recipe.lower(cluster, 2**30)
    time_s = simulate(made, alpha=ALPHA, per_chunk=PER_CHUNK, receivers=receivers).time_s
    return time_s / float(optcc.lower_bound(cluster, 2**30).seconds) - 1


def free(rows: Rows, starving: int, length: int) -> tuple[Any, Any]:
    return rows.src[:0], rows.src[:0]


@pytest.mark.long
@pytest.mark.parametrize("dead", [("0123",), ("0123", "4")], ids=str)
def test_less_is_lost_on_the_leash(dead: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """By receivers that take packets as they come, where those who run ahead are most in the way; on average over some
    numbers of steps."""
    cluster = lacking(*dead)

    def all_lost() -> float:
        return sum(lost(cluster, segments, Fraction(11, 10), "packets") for segments in (54, 60, 66, 72, 78, 84))

    leashed = all_lost()
    monkeypatch.setattr(timetables, "on_leash", free)
    assert leashed < 0.9 * all_lost()


def test_who_has_time_to_spare() -> None:
    assert have_spare_time([4] + 15 * [8])
    assert not have_spare_time([4] + 31 * [8])  # with more servers each has as much to do as the one
    assert not have_spare_time([4, 6, 7] + 5 * [8])
    assert not have_spare_time([3, 4] + 6 * [8])  # hardly faster, though others would have


def test_nobody_sends_in_steps_that_are_too_short() -> None:
    """Who starves does not; what hubs sent each other before its first long slot would be behind that one."""
    cluster = lacking("0123", "4")
    slots = slots_of(stepped(cluster, GROWTH, 78, 7 * CHUNK, CHUNK), cluster)
    first = {i: min(slot.begin for pair, mine in slots.items() if pair[0] == i for slot in mine) for i in range(8)}
    assert 0 < first[0] == min(first.values())
    assert lost(cluster, 78, GROWTH, "stripes") < 0.03


def test_few_steps_are_never_too_short() -> None:
    """Of a small message all are shorter than two chunks cost."""
    cluster = lacking("0123", "4")
    slots = slots_of(stepped(cluster, GROWTH, 8, chunk=Fraction(1, 16)), cluster)
    assert min(slot.begin for mine in slots.values() for slot in mine) == 0


def test_hubs_of_a_small_message_hear_too_late_to_be_on_a_leash(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(timetables, "on_leash", lambda *given: called.append(given[2]) or free(*given))
    cluster = lacking("0123")
    for margin in (Fraction(0), Fraction(1, 10)):
        stepped(cluster, GROWTH, 16, margin).lower(cluster, 2**22)
    assert len(called) == 1


def last_due(cluster: Cluster) -> float:
    """When the first server has sent every full hub what others add last to, as part of the half."""
    recipe = stepped(cluster, Fraction(11, 10), 80, chunk=Fraction(1, 5000))
    slots, via, at = slots_of(recipe, cluster), dict(recipe.via), []
    for hub in range(len(via), len(cluster.ranks)):
        mine = sorted(slots[0, hub])
        need = sum(slot.weight for slot in mine) * float((sum(via.values()) - via[0]) / (1 - via[0]))
        had = accumulate(slot.weight for slot in mine)
        at.append(next(slot.begin + slot.size for slot, done in zip(mine, had, strict=True) if done > 0.999 * need))
    return max(at) / HALF


def test_what_others_add_last_to_is_sent_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starves meets each of many hubs once or twice, the last ones at the end of the half."""
    cluster = Cluster.uniform(servers=32, nics=8, rate=RATE)
    for server, dead in enumerate(("0123", "45", "6")):
        for nic in dead:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    assert last_due(cluster) < 0.96
    monkeypatch.setattr(timetable_greedy, "DUE", 2 * ONE)
    assert last_due(cluster) > 0.97, "else this case shows nothing"


def test_steps_grow_stay_and_shrink() -> None:
    ends = step_ends(50, GROWTH)
    sizes = [b - a for a, b in pairwise([0, *ends])]
    assert ends[-1] == ONE
    assert all(1.14 < b / a < 1.16 for a, b in pairwise(sizes[:21]))
    assert max(sizes[20:39]) - min(sizes[20:39]) <= 1
    assert all(0.89 < b / a < 0.91 for a, b in pairwise(sizes[38:]))


def test_found_alike_twice() -> None:
    cluster = lacking(*MIXES[0])
    recipe = stepped(cluster, GROWTH, 30)
    assert recipe == stepped(cluster, GROWTH, 30)
    one, other = recipe.lower(cluster, 2**20), recipe.lower(cluster, 2**20)
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("route", "offset", "dep_idx"))


def test_bad_parameters() -> None:
    cluster = lacking(*MIXES[0])
    recipe = stepped(cluster, GROWTH, 20)
    recipe.check(cluster)
    for wrong in (
        {"growth": Fraction(1, 2)},
        {"growth": Fraction(17)},
        {"segments": 4096},
        {"matched": 1},
        {"margin": Fraction(-1, 2)},
        {"margin": Fraction(3, 2)},
        {"chunk": Fraction(-1, 100)},
        {"chunk": Fraction(1, 10)},
        {"growth": Fraction(0)},
        {"turns": 0},
        {"turns": 65},
        {"stepped": False},
        {"stepped": False, "via": recipe.via[:1], "turns": 2},
        {"stepped": False, "via": recipe.via[:1], "margin": Fraction(1, 100)},
        {"stepped": False, "via": recipe.via[:1], "chunk": Fraction(1, 100)},
        {"via": recipe.via[1:]},
    ):
        with pytest.raises(InputError):
            replace(recipe, **wrong).check(cluster)  # type: ignore[arg-type]
    two = lacking("0", "1", "2")
    with pytest.raises(InputError, match="growth"):
        replace(timetable(two, late=True), growth=GROWTH, stepped=True).check(two)


@pytest.mark.long
def test_the_planner_takes_it() -> None:
    """Half of the NICs of a server, and fewer of two others: within 6 % of the bound at 1 GiB, with costs."""
    cluster, alpha, per_chunk = lacking(*MIXES[0]), Fraction(5, 10**6), Fraction(1, 10**6)
    made = optcc.plan(cluster, 2**30, alpha=alpha, per_chunk=per_chunk)
    assert made.recipe.family == "timetable"
    time_s = optcc.simulate(made.schedule(), alpha=alpha, per_chunk=per_chunk).time_s
    assert time_s < 1.04 * float(made.bound.seconds)


@pytest.mark.parametrize(("dead", "most"), [(("01234", "0123"), 0.02), (("0123", "456"), 0.02)], ids=str)
def test_beside_one_that_is_hardly_faster(dead: tuple[str, ...], most: float) -> None:
    """That one adds last to much, which begins early: in turns with who starves, not after it."""
    cluster = lacking(*dead)
    recipes = [stepped(cluster, GROWTH, segments) for segments in (48, 80)]
    in_turns, after = (min(loss(cluster, replace(r, turns=turns)) for r in recipes) for turns in (recipes[0].turns, 1))
    assert in_turns < min(most, after)


def test_who_starves_needs_no_place_in_common_with_another_one() -> None:
    cluster = lacking("012345", "4567")
    assert min(loss(cluster, stepped(cluster, GROWTH, segments)) for segments in (48, 80)) < 0.02


def test_small_messages_have_plans_too() -> None:
    cluster, alpha, per_chunk = lacking(*MIXES[0]), Fraction(5, 10**6), Fraction(1, 10**6)
    for nbytes in (0, 8, 2**16):
        made = optcc.plan(cluster, nbytes, family="timetable", alpha=alpha, per_chunk=per_chunk)
        optcc.verify(made.schedule())
