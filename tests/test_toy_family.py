"""A family is one file and one line in the registry: here is one, which plans, verifies, simulates, exports and serves
like any other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import optcc
from optcc.export.formats import write
from optcc.planner.standby import Basis, Planner
from optcc.plans.files import load_plan, save_plan
from optcc.schedule import Schedule
from optcc.schedule.assemble import TemplateRow, assemble, even_cuts
from optcc.schedule.columns import Stage
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import CandidateFamily, Costs, Recipe, require
from optcc.schedule.routes import Routes
from optcc.theory.ring_shares import GroupCounts
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster

COSTS = {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}


@dataclass(frozen=True)
class Star(Recipe):
    """One rank adds everything up and hands the result out."""

    family: ClassVar[str] = "star"
    segments: int
    hub: int

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        way, rows, sums = Routes(cluster), list[TemplateRow](), list[int]()
        others = [rank for rank in range(len(cluster.ranks)) if rank != self.hub]
        for rank in others:
            rows.append(TemplateRow(0, way(rank, self.hub), 0, True, Stage.REDUCE_SCATTER, ()))
            sums.append(len(rows) - 1)
        rows += [TemplateRow(0, way(self.hub, rank), 1, False, Stage.ALLGATHER, tuple(sums)) for rank in others]
        cuts = even_cuts(0, nbytes, self.segments)
        return assemble(
            cluster, nbytes, way, [(rows, np.arange(self.segments), np.stack([cuts[:-1], cuts[1:]], axis=1))]
        )

    def check(self, cluster: Cluster) -> None:
        require(0 <= self.hub < len(cluster.ranks), "hub", f"0 to {len(cluster.ranks) - 1}", self.hub)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        return [("hub", cluster.ranks[self.hub].name)]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        return [CandidateFamily(cls.family, lambda segments: cls(segments, 0))]

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> Star:
        return Star(self.segments, to[self.hub])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, Star.family, Star)


CLUSTER = Cluster.uniform(servers=4, nics=2, rate=50 * 10**9).degrade("server1/nic0")


def test_it_is_planned_verified_and_simulated() -> None:
    plan = optcc.plan(CLUSTER, 2**20, family="star", **COSTS)
    assert isinstance(plan.recipe, Star)
    optcc.verify(plan.schedule())
    assert optcc.simulate(plan.schedule(), **COSTS).time_s > float(plan.bound.seconds)
    assert float(plan.fluid_s) >= float(plan.bound.seconds)
    assert optcc.plan(CLUSTER, 2**20, **COSTS).recipe.family != "star"  # it is tried, and is slower


def test_it_is_the_plan_where_it_is_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in [name for name in FAMILIES if name != "star"]:
        monkeypatch.delitem(FAMILIES, family)
    assert optcc.plan(CLUSTER, 2**20, **COSTS).recipe.family == "star"


def test_it_travels_as_a_file(tmp_path: Path) -> None:
    plan = optcc.plan(CLUSTER, 2**20, family="star", segments=2)
    save_plan(plan, tmp_path / "a.plan")
    assert load_plan(tmp_path / "a.plan") == plan


@pytest.mark.parametrize("form", ["mscclpp", "chakra", "perfetto"])
def test_it_is_exported(form: str, tmp_path: Path) -> None:
    plan = optcc.plan(CLUSTER, 2**20, family="star", segments=1)
    assert write(plan, form, tmp_path / "out").as_json()


def test_it_is_prepared_for_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in [name for name in FAMILIES if name != "star"]:
        monkeypatch.delitem(FAMILIES, family)
    whole = Cluster.uniform(servers=4, nics=2, rate=50 * 10**9)
    with Planner(whole, 2**20, lookahead=1, background="off", **COSTS) as planner:
        planner.prepare()
        answer = planner.fail("server2/nic1")
        assert answer.basis is Basis.PREPARED
        assert isinstance(answer.plan.recipe, Star)
        optcc.verify(answer.plan.schedule())
