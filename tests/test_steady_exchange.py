"""Two servers that starve, steadily served: AllReduce on every cluster that it fits, and what its steps promise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.ladders_timetable import steady_ladders
from optcc.schedule.latin import LatinExchange
from optcc.schedule.steady import SteadyExchange, hub_shares, steady_ranks, used_nics
from optcc.schedule.steady_steps import Steps, growing_ends, quiet_rails, steady_steps
from optcc.schedule.timetable_slots import HALF
from optcc.simulator import simulate
from optcc.standby.planner import _fits as fits
from optcc.standby.table import matching, relabelled
from optcc.theory.tally import Tally
from tests.effort import examples
from tests.test_latin import FITTING as WITH_SQUARES
from tests.test_latin import starving
from tests.timetables import ALPHA, PER_CHUNK, RATE, busiest, check_allreduce, loss

FITTING = {
    "one fabric": starving(8, 8, "0123", "2467"),
    "an odd number of hubs": starving(7, 8, "0123", "0123"),
    "rails": starving(6, 4, "02", "02", rails=True),
    "rails, an odd number of hubs": starving(7, 4, "02", "02", rails=True),
    "no NIC in common": starving(4, 2, "0", "1"),
    "less than half": starving(6, 8, "01234", "34567"),
    "more hubs than NICs": starving(12, 2, "0", "0"),
    "a quarter": starving(8, 8, "012345", "234567"),
    "a quarter, rails": starving(9, 8, "012345", "012345", rails=True),
    "a quarter, one other NIC, rails": starving(8, 8, "012345", "123456", rails=True),
    "a quarter, other NICs, rails": starving(8, 8, "012345", "345670", rails=True),
    "one NIC of eight": starving(7, 8, "0123456", "1234567"),
    "one NIC of five, beside one with most": starving(8, 5, "0123", "0123", "0"),
    "not alike": starving(8, 8, "0123", "567"),
    "not alike, the first has more": starving(6, 8, "345", "0123"),
    "not alike, rails": starving(6, 8, "134", "1356", rails=True),
    "rails, other NICs": starving(6, 4, "02", "13", rails=True),
    "rails, other NICs, half a step behind": starving(6, 8, "0123", "4567", rails=True),
    "rails, one other NIC": starving(7, 4, "02", "03", rails=True),
    "three": starving(8, 8, "0123", "0123", "4567"),
    "three, rails": starving(9, 8, "0123", "2345", "0167", rails=True),
    "four of ten": starving(10, 4, *["01"] * 4),
    "beside one with most": starving(8, 8, "0123", "0123", "5"),
    "beside some with most, rails": starving(9, 8, "0123", "1234", "5", "6", "67", rails=True),
    "rails, fewer but other NICs": starving(6, 8, "0256", "135", rails=True),
}
HUBS_SET_THE_PACE = [name for name in FITTING if name.startswith(("three", "four", "beside"))]
UNFIT = {
    "one slow server": starving(8, 8, "0123", ""),
    "more than half": starving(8, 8, "012", "01"),
    "four of eight": starving(8, 4, *["01"] * 4),
    "a hub that slow ones cannot reach": starving(8, 4, "123", "123", "0", rails=True),
    "three hubs": starving(5, 8, "0123", "0123"),
}


def steady(cluster: Cluster, segments: int, growing: int = 2, **other: Fraction) -> SteadyExchange:
    pair = steady_ranks(cluster)
    assert pair is not None
    given = {"growth": Fraction(5, 4), "margin": Fraction(1, 100), "chunk": Fraction(1, 600), **other}
    return SteadyExchange(segments, pair, growing, **given)


@examples(60)
@given(
    name=st.sampled_from(sorted(FITTING)),
    segments=st.integers(1, 24),
    growing=st.integers(0, 9),
    margin=st.sampled_from([Fraction(0), Fraction(1, 100), Fraction(1, 5)]),
    nbytes=st.integers(0, 2**20),
)
def test_all_steps_compute_allreduce(name: str, segments: int, growing: int, margin: Fraction, nbytes: int) -> None:
    check_allreduce(FITTING[name], steady(FITTING[name], segments, growing, margin=margin), nbytes)


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_with_few_steps_transfers_are_still_in_order(segments: int) -> None:
    """Results are then late, and what would wait for them on its NIC does not."""
    check_allreduce(FITTING["more hubs than NICs"], steady(FITTING["more hubs than NICs"], segments, 0), 2**16)


def found(servers: int, count: int = 24, margin: Fraction = Fraction(1, 100)) -> tuple[Steps, list[list[int]]]:
    """Steps of servers of 8 NICs, the first two of which have half of them."""
    live = [[4, 5, 6, 7]] * 2 + [list(range(8))] * (servers - 2)
    shares = [Fraction(0)] * 2 + [Fraction(1, servers - 2)] * (servers - 2)
    return steady_steps(live, shares, growing_ends(count, 2, Fraction(5, 4)), margin, Fraction(1, 600)), live


def test_ends_grow_and_then_stay() -> None:
    lengths = [z - a for a, z in pairwise((0, *growing_ends(6, 3, Fraction(2))))]
    assert lengths == pytest.approx([lengths[0] * factor for factor in (1, 2, 4, 8, 8, 8)], rel=1e-6)
    assert growing_ends(6, 3, Fraction(2))[-1] == growing_ends(1, 9, Fraction(2))[-1]


@pytest.mark.parametrize("servers", [8, 9, 16])
def test_every_nic_is_busy_and_nobody_meets(servers: int) -> None:
    """No NIC has two transfers at a time; slow servers send in every step, hubs receive in every step."""
    steps, live = found(servers)
    outs, ins = (Counter[tuple[int, int, int]]() for _ in range(2))
    begins: dict[int, set[int]] = {}
    for (i, k), slots in steps.slots.items():
        for slot in slots:
            outs[slot.begin, slot.nic, i] += 1
            ins[slot.begin, slot.nic, k] += 1
            begins.setdefault(slot.nic, set()).add(slot.begin)
    assert {*outs.values()} == {*ins.values()} == {1}
    for rank, mine in enumerate(live):
        for nic in mine:
            assert all((begin, nic, rank) in (outs if rank < 2 else ins) for begin in begins[nic])
    late = [begin for begin in begins[4] if begin > HALF // 3]  # the first results have come by then
    assert all((begin, 4, rank) in ins for begin in late for rank in (0, 1))
    assert all((begin, 4, rank) in outs for begin in late for rank in range(2, servers))


def test_half_of_the_rails_are_half_a_step_behind() -> None:
    begins: dict[int, set[int]] = {}
    for slots in found(8)[0].slots.values():
        for slot in slots:
            begins.setdefault(slot.nic, set()).add(slot.begin)
    assert begins[0] == begins[1] == begins[4] == begins[5] != begins[2] == begins[3] == begins[6] == begins[7]
    between = [(a + z) // 2 for a, z in pairwise([*sorted(begins[4]), HALF])]
    assert sorted(begins[6])[1:] == pytest.approx(between, abs=2**14)


@pytest.mark.parametrize("servers", [8, 16])
def test_both_slow_servers_send_to_the_same_hubs(servers: int) -> None:
    steps, _ = found(servers)
    for hub in range(2, servers):
        assert [slot.begin for slot in steps.slots[0, hub]] == [slot.begin for slot in steps.slots[1, hub]]


@pytest.mark.parametrize("servers", [8, 9, 16])
def test_pairs_have_nearly_as_much(servers: int) -> None:
    """In both halves; otherwise chunks would take longer than their steps."""
    steps, _ = found(servers, 40)
    had = {pair: sum(slot.weight for slot in slots) for pair, slots in steps.slots.items()}
    both = {(i, k): had[i, k] + had[k, i] for i, k in had if i < k}
    for mine in ([much for (i, _), much in both.items() if i >= 2], [much for (i, _), much in both.items() if i < 2]):
        longest = max(slot.weight for slots in steps.slots.values() for slot in slots)
        assert max(mine) - min(mine) <= 3 * longest


@pytest.mark.parametrize("margin", [Fraction(0), Fraction(1, 100), Fraction(1, 20)])
def test_results_are_sent_when_all_they_add_up_has_landed(margin: Fraction) -> None:
    servers = 8
    steps, _ = found(servers, margin=margin)
    total = {
        pair: sum(slot.weight for each in (pair, pair[::-1]) for slot in steps.slots[each]) for pair in steps.slots
    }

    def landed(sender: int, hub: int, by: int) -> Fraction:
        """The part of the hub's section."""
        much = sum(
            slot.weight for slot in steps.slots[sender, hub] if slot.begin + slot.size <= by - int(margin * HALF)
        )
        return Fraction(much * (1 if sender < 2 else 2), total[sender, hub])

    checked = 0
    for hub in range(2, servers):
        for slow in (0, 1):
            sent = 0
            for slot in steps.slots[hub, slow]:
                sent += slot.weight
                known = min(landed(sender, hub, slot.begin + 1) for sender in range(servers) if sender != hub)
                assert Fraction(sent, total[hub, slow]) <= known * Fraction(101, 100)
                checked += 1
    assert checked > 100


def test_nobody_runs_ahead_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NIC that has nothing to send in the first step does not send what is next."""
    cluster = FITTING["one fabric"]
    recipe = steady(cluster, 24)
    live = [[0, 1, 2, 3] if rank in recipe.slow else list(range(8)) for rank in range(8)]
    ends = growing_ends(24, 2, recipe.growth)
    slots = steady_steps(live, hub_shares(cluster, recipe.slow), ends, recipe.margin, recipe.chunk).slots
    busy = {(i, slot.nic) for (i, _), mine in slots.items() for slot in mine if not slot.begin}

    def quick() -> int:
        schedule = recipe.lower(cluster, 2**26)
        start = simulate(schedule, alpha=ALPHA, per_chunk=PER_CHUNK).start
        return len({schedule.routes[schedule.route[row]].lanes[0].out for row in np.flatnonzero(start == 0)})

    assert quick() == len(busy) < 2 * 4 + 6 * 8
    monkeypatch.setattr("optcc.schedule.steady.steady_steps", lambda *given: Steps(steady_steps(*given).slots, []))
    assert quick() > len(busy)


@pytest.mark.parametrize(
    ("dead", "rails", "own"),
    [
        (("012345", "012345"), True, {6, 7}),
        (("012345", "123456"), True, {0, 6, 7}),
        (("012345", "234567"), False, {0, 1}),
        (("0123456", "1234567"), False, {0, 1}),
        (("01234", "01234"), False, set()),
        (("012345", "234567"), True, set()),
        (("0123", "0123"), True, set()),
    ],
)
def test_hubs_keep_off_the_rails_of_who_starves(dead: tuple[str, str], rails: bool, own: set[int]) -> None:
    """If the others are enough for them. They are through early, and have had just what slow servers have for them."""
    cluster = starving(8, 8, *dead, rails=rails)
    recipe = steady(cluster, 40, margin=Fraction(0))
    live = [list(mine) for mine in used_nics(cluster, recipe.slow)]
    ends, shares = growing_ends(40, 2, recipe.growth), hub_shares(cluster, recipe.slow)
    slots = steady_steps(live, shares, ends, recipe.margin, recipe.chunk).slots
    among = {pair: mine for pair, mine in slots.items() if not {*pair} & {*recipe.slow}}
    every = {slot.nic for mine in among.values() for slot in mine}
    assert every == set(range(8)) - own
    assert quiet_rails(live, recipe.slow) == own
    over = max(slot.begin + slot.size for mine in among.values() for slot in mine)
    assert over <= 0.75 * HALF if own else over > 0.95 * HALF
    one, longest = recipe.slow[0], max(slot.weight for mine in slots.values() for slot in mine)
    for i, k in among if own else ():
        theirs = sum(slot.weight for pair in ((one, k), (k, one)) for slot in slots[pair])
        assert sum(slot.weight for slot in slots[i, k]) == pytest.approx(theirs, abs=longest)


def test_nobody_is_late_on_rails_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = starving(12, 8, "012345", "012345")
    recipe = steady(cluster, 40, growing=6)

    def lost() -> float:
        schedule = recipe.lower(cluster, 2**28)
        fluid_s = float(recipe.fluid_s(cluster, 2**28))
        return simulate(schedule, alpha=ALPHA, per_chunk=PER_CHUNK).time_s / fluid_s - 1

    quiet = lost()
    monkeypatch.setattr("optcc.schedule.steady_steps.quiet_rails", lambda live, slow: frozenset())
    assert lost() > 1.3 * quiet


def test_with_one_nic_each_both_still_send_to_the_same_hubs() -> None:
    cluster = FITTING["one NIC of eight"]
    recipe = steady(cluster, 24)
    live, shares = used_nics(cluster, recipe.slow), hub_shares(cluster, recipe.slow)
    ends = growing_ends(24, 2, recipe.growth)
    slots = steady_steps([list(mine) for mine in live], shares, ends, recipe.margin, recipe.chunk).slots
    for hub in set(range(7)) - {*recipe.slow}:
        assert [s.begin for s in slots[recipe.slow[0], hub]] == [s.begin for s in slots[recipe.slow[1], hub]]


@pytest.mark.parametrize("name", FITTING)
def test_every_nic_of_a_slow_server_has_as_much_to_do(name: str) -> None:
    """And those of hubs where there are more slow servers than two."""
    cluster, nbytes = FITTING[name], 2**22
    recipe = steady(cluster, 80)
    schedule, fluid_s = recipe.lower(cluster, nbytes), recipe.fluid_s(cluster, nbytes)
    assert busiest(schedule) <= 1.06 * float(fluid_s) * RATE
    above = 1 + (0.12 if name in HUBS_SET_THE_PACE else 1e-9)
    assert 1 - 1e-9 <= fluid_s / optcc.lower_bound(cluster, nbytes).seconds <= above


@pytest.mark.parametrize("name", ["one fabric", "rails", "no NIC in common"])
def test_without_costs_two_steps_are_lost(name: str) -> None:
    cluster, free = FITTING[name], {"margin": Fraction(0), "chunk": Fraction(0)}
    assert 0 < loss(cluster, steady(cluster, 40, **free)) <= 5 / 80
    assert loss(cluster, steady(cluster, 80, **free)) <= 0.7 * loss(cluster, steady(cluster, 40, **free))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slow": (0, 1)}, "slow"),
        ({"segments": 0}, "segments"),
        ({"segments": 1025}, "segments"),
        ({"growth": Fraction(1, 2)}, "growth"),
        ({"growth": Fraction(9)}, "growth"),
        ({"growing": -1}, "growing"),
        ({"growing": 60, "segments": 60, "growth": Fraction(2)}, "growing"),
        ({"margin": Fraction(1)}, "margin"),
        ({"chunk": Fraction(1, 2)}, "chunk"),
    ],
)
def test_parameters_that_do_not_fit(change: dict[str, object], message: str) -> None:
    cluster = FITTING["one fabric"]
    steady(cluster, 4).check(cluster)
    with pytest.raises(InputError, match=message):
        replace(steady(cluster, 4), **change).check(cluster)  # type: ignore[arg-type]


def test_what_takes_too_much_memory_is_refused() -> None:
    """A plan file may ask for more than the planner does."""
    cluster = starving(64, 8, "0123", "0123")
    steady(cluster, 520).check(cluster)
    with pytest.raises(InputError, match="1 to 520"):
        steady(cluster, 521).check(cluster)


@pytest.mark.parametrize("name", UNFIT)
def test_clusters_that_do_not_fit(name: str) -> None:
    assert steady_ranks(UNFIT[name]) is None
    with pytest.raises(InputError, match="cluster"):
        replace(steady(FITTING["one fabric"], 4), slow=(1, len(UNFIT[name].ranks) - 1)).check(UNFIT[name])


@pytest.mark.long
@pytest.mark.parametrize(("servers", "most"), [(8, 0.1), (16, 0.105)])
def test_planned_steps_lose_less_than_squares(servers: int, most: float) -> None:
    cluster, costs = starving(servers, 8, "0123", "0123"), {"alpha": ALPHA, "per_chunk": PER_CHUNK}
    bound_s = float(optcc.lower_bound(cluster, 2**28).seconds)
    lost = {
        family: simulate(optcc.plan(cluster, 2**28, family=family, **costs).schedule(), **costs).time_s / bound_s - 1
        for family in (SteadyExchange.family, LatinExchange.family)
    }
    assert lost[SteadyExchange.family] <= most
    assert lost[LatinExchange.family] >= 1.15 * lost[SteadyExchange.family]
    assert optcc.plan(cluster, 2**28, **costs).recipe.family == SteadyExchange.family


def test_what_the_planner_tries() -> None:
    """Where few are enough steps that are all alike, too, or of which just the first is shorter, with margins or not;
    no margin where hubs have time to spare, but no rails of their own; none with many hubs."""

    def tried(cluster: Cluster, nbytes: int) -> list[SteadyExchange]:
        found = steady_ladders(cluster, optcc.lower_bound(cluster, nbytes), ALPHA, PER_CHUNK)
        return [ladder.make(segments) for ladder in found for segments in ladder.only]

    half, less, quarter = FITTING["one fabric"], starving(8, 8, "01234", "01234"), FITTING["a quarter"]
    small, large, spare, own = tried(half, 2**20), tried(half, 2**28), tried(less, 2**28), tried(quarter, 2**28)
    for cluster, recipes in ((half, small + large), (less, spare), (quarter, own)):
        for recipe in recipes:
            recipe.check(cluster)
    assert {(recipe.growing, recipe.margin > 0) for recipe in small} >= {*product((0, 1), (False, True))}
    assert all(recipe.growing for recipe in large)
    assert all(recipe.margin > 0 for recipe in large + own)
    assert not any(recipe.margin for recipe in spare)
    assert tried(starving(70, 2, "0", "0"), 2**28) == []
    assert tried(starving(8, 8, "0123", "45"), 2**28) == []  # with 6 of 8 NICs it hardly waits


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [("0123", "456"), ("567", "0123")])
def test_two_unlike_lose_no_more_than_two_like_the_slower_one(first: str, second: str) -> None:
    """In steady steps."""
    both, family = max(first, second, key=len), "steady-exchange"
    plans = [
        optcc.plan(starving(8, 8, *dead), 2**28, family=family, alpha=ALPHA, per_chunk=PER_CHUNK)
        for dead in ((first, second), (both, both))
    ]
    mine, alike = (optcc.simulate(plan.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK).time_s for plan in plans)
    assert mine <= 1.01 * alike


def test_few_hubs_have_squares() -> None:
    cluster = WITH_SQUARES["rails, even"]
    assert optcc.plan(cluster, 2**28, alpha=ALPHA, per_chunk=PER_CHUNK).recipe.family == "latin-exchange"


def test_prepared_steps_move_to_whom_they_fit() -> None:
    here, there = FITTING["one fabric"], starving(8, 8, "", "0123")
    for nic in range(4):
        there = there.degrade(f"server3/nic{nic}")
    recipe, to = steady(here, 4), matching(Tally.of(here), Tally.of(there))
    moved = relabelled(recipe, to, Tally.of(there))
    assert moved == replace(recipe, slow=(3, 7))
    moved.check(there)
    assert not fits(recipe, there)
    assert fits(moved, there)
