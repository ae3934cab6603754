"""Plans travel: the same content gives the same id and schedule, and a changed file is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.plans.files import load_plan, save_plan
from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster
from tests.conftest import clusters


@given(cluster=clusters(min_ranks=1, symmetric=False), nbytes=st.integers(1, 2**40))
def test_round_trip(cluster: Cluster, nbytes: int) -> None:
    plan = optcc.plan(cluster, nbytes)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.plan_id == plan.plan_id


def test_ids_tell_plans_apart() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=1000)
    plans = [
        optcc.plan(cluster, 4096),
        optcc.plan(cluster, 4104),
        optcc.plan(cluster, 4096, segments=3),
        optcc.plan(cluster.degrade("server0/nic0"), 4096),
        optcc.plan(cluster, 4096).baseline("ring"),
    ]
    assert len({p.plan_id for p in plans[:4]}) == 4
    assert plans[0].plan_id == optcc.plan(cluster, 4096).plan_id


def test_a_plan_is_small() -> None:
    cluster = Cluster.uniform(servers=8, nics=8, rate=50_000_000_000).degrade("server1/nic0")
    assert len(optcc.plan(cluster, 2**30).to_json()) < 20_000


@given(data=st.data())
def test_an_edited_plan_is_noticed(data: st.DataObject) -> None:
    raw = json.loads(optcc.plan(Cluster.uniform(servers=4, rate=1000).degrade("server0/nic0", 0.5), 4096).to_json())
    field = data.draw(st.sampled_from(sorted(raw)))
    others = [value for value in (None, 7, "x", [], {}, [0, 0], -1, 1.5) if value != raw[field]]
    raw[field] = data.draw(st.sampled_from(others))
    with pytest.raises(InputError):
        Plan.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    "place", [(), ("bound",), ("cluster", 0), ("cluster", 0, "nics", 1), ("recipe",), ("recipe", "shares", 0)]
)
def test_an_added_field_is_noticed(place: tuple[str | int, ...]) -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=1000).degrade("server0/nic0")
    raw = inner = json.loads(optcc.plan(cluster, 4096, family="nested-rings").to_json())
    for step in place:
        inner = inner[step]
    inner["added"] = 1
    with pytest.raises(InputError, match="changed after it was made"):
        Plan.from_json(json.dumps(raw))


@given(text=st.text(max_size=200))
def test_any_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(InputError):
        Plan.from_json(text)


def test_scaled_plan_scales_its_bound() -> None:
    from optcc.values.bound import check_certificate

    plan = optcc.plan(Cluster.uniform(servers=4, nics=2, rate=1000).degrade("server0/nic0"), 4096)
    slow = plan.scaled(plan.bound.seconds / 100)
    check_certificate(slow.cluster, slow.bound)
    assert slow.fluid_s == slow.bound.seconds == 100
    assert slow.bound.overhead == plan.bound.overhead


def test_save_is_whole_or_not_at_all(tmp_path: Path) -> None:
    plan = optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(optcc.OptccError, match="cannot be written"):
        save_plan(plan, tmp_path / "missing" / "plan.json")


def test_segments_follow_the_size() -> None:
    cluster = Cluster.uniform(servers=8, rate=1000)
    assert optcc.plan(cluster, 2**30).recipe.segments == 64
    assert optcc.plan(cluster, 2**20).recipe.segments == 8
    assert optcc.plan(cluster, 100).recipe.segments == 1


@pytest.mark.parametrize("segments", [0, -1, 10**9])
def test_segments_out_of_range(segments: int) -> None:
    with pytest.raises(InputError, match="--segments"):
        optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096, segments=segments)


def test_unknown_baseline() -> None:
    with pytest.raises(InputError, match="unknown algorithm"):
        optcc.plan(Cluster.uniform(servers=3, rate=1000), 4096).baseline("magic")


def test_sizes_and_times_as_text() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate="400Gb/s").degrade("server1/nic0")
    assert optcc.lower_bound(cluster, "64MiB") == optcc.lower_bound(cluster, 2**26)
    plan = optcc.plan(cluster, "1MiB", alpha="5us", per_chunk="1us")
    assert plan == optcc.plan(cluster, 2**20, alpha=Fraction(5, 10**6), per_chunk=1e-6)
    schedule = plan.schedule()
    assert optcc.simulate(schedule, alpha="5us").time_s == optcc.simulate(schedule, alpha=5e-6).time_s
    with optcc.Planner(cluster, ["1MiB", 2**10], alpha="5us", per_chunk="1us", background="off") as planner:
        assert planner.sizes == (2**10, 2**20)
        assert planner.plan("1MiB") == planner.current.plans[2**20]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cluster: optcc.lower_bound(cluster, "1Gib"),
        lambda cluster: optcc.plan(cluster, "much"),
        lambda cluster: optcc.plan(cluster, None),
        lambda cluster: optcc.plan(cluster, 2.5),
        lambda cluster: optcc.plan(cluster, "1MiB", alpha="5"),
        lambda cluster: optcc.plan(cluster, "1MiB", per_chunk="-1us"),
        lambda cluster: optcc.plan(cluster, "1MiB", segments="4"),
        lambda cluster: optcc.simulate(optcc.plan(cluster, "1MiB").schedule(), alpha="5"),
        lambda cluster: optcc.run(optcc.plan(cluster, "1MiB"), local_rate="1Gib"),
        lambda cluster: optcc.Planner(cluster, "much", background="off"),
        lambda cluster: optcc.Planner(cluster, "1MiB", alpha="5", background="off"),
        lambda cluster: cluster.degrade("server0/nic0", "half"),
        lambda cluster: cluster.degrade(0),
    ],
)
def test_other_text_is_refused(wrong: Callable[[Cluster], object]) -> None:
    with pytest.raises(InputError):
        wrong(Cluster.uniform(servers=2, nics=2, rate="400Gb/s"))


def test_reprs_are_a_line() -> None:
    plan = optcc.plan(Cluster.uniform(servers=16, nics=8, rate="400Gb/s").degrade("server1/nic0"), "256MiB")
    family, depth = plan.recipe.family, plan.recipe.segments
    assert repr(plan) == f"<Plan {plan.plan_id}: {family}, {depth} segments, 256MiB per rank, 16 ranks, bound 1.268 ms>"
    assert repr(plan.schedule()).startswith("<Schedule: ")
    on_rails = optcc.load_topology("uniform:servers=4,nics=4,rate=400Gb/s,fabric=rails").cluster.degrade("server1/nic0")
    for value in (plan.schedule(), plan.bound, plan.cluster, optcc.lower_bound(on_rails, "1GiB")):
        assert len(repr(value)) < 300
