"""Timetables with several slow servers, by offsets and by matchings: what they lose, and that names do not matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster
from optcc.schedule import timetable_pairs
from optcc.simulator import simulate
from tests.timetables import ALPHA, PER_CHUNK, RATE, four_of_eight, lacking, loss, timetable


@pytest.mark.parametrize(
    ("lost", "most"), [(("0", "0"), 0.007), (("0", "1"), 0.016), (("0", "12"), 0.04), (("0", "0", "0"), 0.013)]
)
def test_several_degraded_servers_lose_little(lost: tuple[str, ...], most: float) -> None:
    """Pairs have not all equally much then, and senders meet by fractions of a step."""
    cluster = lacking(*lost)
    assert 0 <= loss(cluster, timetable(cluster, 2)) <= most


@pytest.mark.parametrize(
    ("lost", "offsets"),
    [(("0", "0"), 0.0095), (("0",) * 3, 0.0119), (("0",) * 4, 0), (("0", "1", "2"), 0.0833), (("0",) * 5, 0.0238)],
)
def test_with_matchings_several_degraded_servers_lose_nothing(lost: tuple[str, ...], offsets: float) -> None:
    """Within what is left out as too short; by equal offsets they lose up to 8 %."""
    cluster = lacking(*lost)
    assert 0 <= loss(cluster, timetable(cluster, matched=1024)) <= 3e-4
    assert loss(cluster, timetable(cluster)) == pytest.approx(offsets, abs=5e-4)


def test_by_offsets_slow_servers_are_far_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever they are. Next to each other, as these are, four of eight would lose 3.6 %, and not nothing."""
    cluster = lacking(*("0",) * 4)
    assert 0 <= loss(cluster, timetable(cluster)) <= 1e-5
    monkeypatch.setattr(timetable_pairs, "spread_out", lambda ranks, nics: ranks)
    assert loss(cluster, timetable(cluster)) > 0.03


@given(nics=st.lists(st.integers(1, 8), min_size=1, max_size=20))
def test_slow_ranks_are_as_far_from_each_other_as_can_be(nics: list[int]) -> None:
    ranks = [2 * rank for rank in range(len(nics))]  # not all ranks are on every rail
    order = timetable_pairs.spread_out(ranks, dict(zip(ranks, nics, strict=True)))
    assert sorted(order) == ranks
    slow = [place for place, rank in enumerate(order) if nics[rank // 2] < max(nics)]
    gaps = [(b - a) % len(order) or len(order) for a, b in zip(slow, [*slow[1:], *slow[:1]], strict=True)]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1


@pytest.mark.parametrize("lost", [("0",), ("0", "0"), ("0", "1"), ("0",) * 4])
def test_nothing_has_to_go_by_way_of_slow_servers(lost: tuple[str, ...]) -> None:
    """What is too much for a slow server's half goes on into the other one. Where it adds last instead, so that both
    of its halves are as long, one round is not enough."""
    cluster = lacking(*lost)
    assert not timetable(cluster).via
    direct, late = (loss(cluster, timetable(cluster, 1, matched=1024, late=late)) for late in (False, True))
    assert 0 <= direct <= 3e-4
    assert late > 0.05


def test_where_half_of_the_servers_are_slow_two_rounds_lose_nothing() -> None:
    """Even in many rounds the last sums would come too late by way of so many."""
    cluster = four_of_eight()
    assert 0 <= loss(cluster, timetable(cluster, 2, matched=1024)) <= 3e-4
    assert loss(cluster, timetable(cluster, 8, matched=1024, late=True)) > 0.02


def test_one_step_for_each_pair_is_a_choice() -> None:
    """It takes a quarter fewer chunks. Pairs have a little more or less than their steps; otherwise NICs have their
    time, but for slots that end with a piece that they nearly ended with."""
    cluster = lacking("0", "0")
    bound_s = optcc.lower_bound(cluster, 2**28).seconds
    exactly, once = (timetable(cluster, 2, matched=matched) for matched in (1024, 1))
    assert len(once.lower(cluster, 2**28)) < 0.8 * len(exactly.lower(cluster, 2**28))
    assert 0 <= loss(cluster, exactly) <= 5e-4 < loss(cluster, once) <= 0.01
    for recipe in (exactly, once):
        assert 1 <= recipe.fluid_s(cluster, 2**28) / bound_s <= 1 + 1e-3


@pytest.mark.parametrize(
    ("lost", "rounds", "most"),
    [(("0",), 3, 1e-4), (("01",), 2, 1e-4), (("0", "1"), 3, 1e-4), (("0",) * 4, 3, 3e-4)],
)
def test_sparse_rounds_lose_little_and_take_fewer_chunks(lost: tuple[str, ...], rounds: int, most: float) -> None:
    """Full rounds lose nothing if there is just one of them."""
    cluster = lacking(*lost)
    sparse = timetable(cluster, rounds, matched=1024, sparse=True)
    full = timetable(cluster, 1, matched=1024)
    assert len(sparse.lower(cluster, 2**28)) < 0.95 * len(full.lower(cluster, 2**28))
    assert loss(cluster, full) <= 3e-4
    assert loss(cluster, sparse) <= most


@pytest.mark.parametrize("matched", [1, 1024])
@pytest.mark.parametrize("sparse", [False, True])
def test_it_takes_as_long_whichever_servers_have_lost_whichever_nic(matched: int, sparse: bool) -> None:
    """So that a plan that was prepared for one failure keeps its promise of 2 % for another of its shape."""

    def seconds(servers: tuple[int, int], nic: int) -> float:
        cluster = Cluster.uniform(servers=5, nics=3, rate=RATE)
        for server in servers:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
        made = timetable(cluster, 2, matched=matched, sparse=sparse)
        return simulate(made.lower(cluster, 2**24), alpha=ALPHA, per_chunk=PER_CHUNK).time_s

    assert seconds((3, 4), 1) == pytest.approx(seconds((0, 1), 0), rel=2e-2)
    assert seconds((1, 3), 2) == pytest.approx(seconds((0, 1), 0), rel=2e-2)
