"""Trying an offer: which numbers of segments are tried, and which times count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from optcc import lower_bound
from optcc.planner import search
from optcc.planner.search import candidates, try_depths
from optcc.schedule.recipe import CandidateFamily
from optcc.schedule.tuned import LARGE
from optcc.values.cluster import Cluster

TIMES = {1: 2.038, 2: 1.736, 3: 1.643, 4: 1.751, 6: 1.747, 8: 1.681, 12: 1.7, 16: 1.76, 24: 1.9, 32: 2.0}
"""The best is between 2 and 4, of which doubling sees only the rims: both are slower than 8."""
DOUBLED, AROUND_8 = {1, 2, 4, 8, 16, 32}, {6, 12}


@dataclass(frozen=True)
class Depth:
    """In place of a recipe and of its schedule: a number of segments, and nothing else."""

    segments: int
    routes: tuple[Any, ...] = ()
    shared_links: bool = False

    def lower(self, cluster: Cluster, nbytes: int) -> Depth:
        return self

    def __len__(self) -> int:
        return self.segments


def listed(*segments: int) -> Any:
    """A shortlist of these."""
    return lambda: [Depth(each) for each in segments]


def climbed(
    times: Mapping[int, float], monkeypatch: pytest.MonkeyPatch, packets: Mapping[int, float] | None = None, **how: Any
) -> dict[int, float]:
    """What is tried of an offer that takes `times`, where receivers take packets `packets`, and the time of each."""

    def simulate(made: Depth, *, receivers: str | None = None, **costs: Fraction) -> SimpleNamespace:
        by_kind = {None: times, "packets": packets or times}
        return SimpleNamespace(time_s=by_kind[receivers][made.segments])

    monkeypatch.setattr(search, "simulate", simulate)
    cluster = Cluster.uniform(servers=4, nics=1, rate=10**9)
    make: Any = Depth
    tried = try_depths(CandidateFamily("any", make, **how), cluster, 2**30, alpha=Fraction(0), per_chunk=Fraction(0))
    return {candidate.transfers: candidate.time_s for candidate in tried}


def test_numbers_are_doubled_then_halved_between_the_best_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where two numbers in a row are slower, as one segment fills no pipeline."""
    known = {k: 2 + abs(k - 8) / 100 for k in range(1, 65)}
    assert set(climbed(known, monkeypatch)) == DOUBLED | AROUND_8
    assert set(climbed(known | {2: 1.5}, monkeypatch)) == {1, 2, 3, 4, 8}


def test_just_the_given_numbers_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each, however good their neighbours are."""
    assert climbed(TIMES, monkeypatch, shortlist=listed(4, 12, 24)) == {k: TIMES[k] for k in (4, 12, 24)}


def test_the_slower_kind_of_receivers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 is best by stripes, 4 by packets, and 6 by the worse of each."""
    packets = TIMES | {3: 1.9, 4: 1.6, 6: 1.7}
    tried = climbed(TIMES, monkeypatch, packets, shortlist=listed(3, 4, 6))
    assert tried == {3: 1.9, 4: 1.751, 6: 1.747}
    # What is slower already need not be looked at again.
    assert climbed(TIMES, monkeypatch, {3: 1.65}, shortlist=listed(3, 4, 6))[4] == TIMES[4]


@dataclass(frozen=True)
class Timed(Depth):
    """Takes `merged` seconds where each server's NICs are one, `apart` as they are, and more with other segments."""

    merged: float = 0.0
    apart: float = 0.0
    time_s: float = 0.0

    def lower(self, cluster: Cluster, nbytes: int) -> Timed:
        one = all(len(server.nics) == 1 for server in cluster.servers)
        return replace(self, time_s=(self.merged if one else self.apart) + self.segments / 10)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        return Fraction(0)


def test_what_only_seems_best_with_merged_nics_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many forms of it there are: of many ranks each one that seems best is run once more as it is."""
    monkeypatch.setattr(search, "simulate", lambda made, **costs: made)
    cluster = Cluster.uniform(servers=LARGE + 1, nics=2, rate=10**9)

    def offer(name: str, merged: float, apart: float, by_rate: bool) -> CandidateFamily:
        make: Any = lambda segments: Timed(segments, merged=merged, apart=apart)  # noqa: E731
        return CandidateFamily(
            name, make, shortlist=lambda: [make(segments) for segments in range(1, 30)], by_rate=by_rate
        )

    offered = [offer("seems", 1, 3, True), offer("is", 9, 2, False), offer("neither", 2.2, 2.2, True)]
    tried = candidates(offered, cluster, lower_bound(cluster, 2**30), alpha=Fraction(0), per_chunk=Fraction(0))
    assert (tried[0].recipe.apart, tried[0].time_s) == (2, 2.1)


def test_what_cannot_be_faster_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: the offer says that it takes no less than what was found."""
    monkeypatch.setattr(search, "simulate", lambda made, **costs: made)
    cluster, tried = Cluster.uniform(servers=4, nics=2, rate=10**9), list[str]()

    def offer(name: str, least_s: float) -> CandidateFamily:
        def make(segments: int) -> Any:
            tried.append(name)
            return Timed(segments, merged=3, apart=3)

        return CandidateFamily(name, make, shortlist=lambda: [make(1)], least_s=least_s)

    offered = [offer("slow", 3.2), offer("first", 1.0), offer("second", 3.0)]
    candidates(offered, cluster, lower_bound(cluster, 2**30), alpha=Fraction(0), per_chunk=Fraction(0))
    assert tried == ["first", "second"]
