"""The plan of a size class is the one that was fastest, the same on every rank."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import optcc
from optcc.communicator.clusters import PER_CHUNK, message_costs
from optcc.communicator.prepared import ROUNDS, SMALL, Trial, candidates, fastest
from tests.communicators import Ranks

SIZE = 2 * SMALL
CLUSTER = optcc.Cluster.uniform(servers=4, nics=2, rate="100Gb/s").degrade("server1/nic0", "50%")


def test_over_nics_the_planner_offers_three_depths() -> None:
    costs = {"alpha": Fraction(0), "per_chunk": Fraction(30, 10**6)}
    first, *others = candidates(CLUSTER, 2**26, "verbs", **costs)
    assert first == optcc.plan(CLUSTER, 2**26, **costs)
    assert {plan.family for plan in others} == {first.family}
    depths = [plan.segments for plan in others]
    assert depths == [4 * first.segments, max(1, first.segments // 4)]


def test_on_one_machine_plans_have_one_segment() -> None:
    plans = candidates(CLUSTER, 2**26, "local", Fraction(0), Fraction(0))
    assert len({plan.plan_id for plan in plans}) == 2
    assert {plan.segments for plan in plans} == {1}


def test_a_call_took_as_long_as_on_the_rank_that_came_last() -> None:
    """Rank 0 waits for rank 1 in every call of the first plan, which is the faster one."""
    seconds = [[[9.0, 9.0], [2.0, 2.0]], [[1.0, 1.5], [3.0, 2.5]]]
    assert fastest(seconds) == [1.0, 2.0]


def test_each_plan_is_measured_as_often_before_one_is_chosen() -> None:
    trial = Trial(candidates(CLUSTER, 2**26, "local", Fraction(0), Fraction(0)))
    tried = []
    while not trial.choose(lambda mine: [mine]):
        tried.append(trial.now)
        trial.took([3.0, 2.0][trial.now], 1)
    assert tried == [0, 1] * ROUNDS
    assert trial.now == 1
    trial.took(100.0, 1)
    assert not trial.choose(lambda mine: [mine])
    assert trial.now == 1, "chosen once"


@pytest.mark.parametrize("best", [0, 1])
def test_all_ranks_keep_the_same_plan(best: int) -> None:
    """Only rank 0 finds a difference; the others have come later to every call."""
    with Ranks(3) as ranks:

        def call(comm: optcc.Communicator) -> tuple[int, set[float]]:
            prepared = comm._prepared

            def took(nbytes: int, seconds: float) -> None:
                (trial,) = prepared.trials.values()
                trial.took(1.0 if comm.rank == 0 and trial.now == best else 2.0, nbytes)

            prepared.took = took  # type: ignore[method-assign]
            sums = set()
            for _ in range(2 * ROUNDS + 2):
                sums |= {*comm.all_reduce(np.full(SIZE, comm.rank + 1, np.uint8)).tolist()}
            (trial,) = prepared.trials.values()
            return trial.now, sums

        assert ranks.good(call) == [(best, {6})] * 3


@pytest.mark.parametrize("options", [{"tune": False}, {"reproducible": True}])
def test_nothing_is_tried_where_that_is_not_wanted(options: dict[str, bool]) -> None:
    with Ranks(3, **options) as ranks:

        def call(comm: optcc.Communicator) -> int:
            comm.all_reduce(np.zeros(SIZE, np.uint8))
            (trial,) = comm._prepared.trials.values()
            return len(trial.plans)

        assert ranks.good(call) == [1] * 3


@pytest.mark.parametrize(
    ("transport", "costs"), [("verbs", (Fraction(31, 10**7), Fraction(4, 10**7))), ("local", (0, PER_CHUNK))]
)
def test_plans_are_made_for_what_a_file_has_measured(
    tmp_path: Path, transport: str, costs: tuple[Fraction, Fraction]
) -> None:
    """Over this transport; else for what the runtime takes."""
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "optcc: 1\nmeasured: {date: 2026-11-20, transport: verbs, alpha: 3.1us, per_chunk: 0.4us, spread: 1%}\n"
        "servers: [{name: a, nics: [{name: nic0, rate: 100Gb/s}]}]\n"
    )
    for given in (str(path), path):
        assert message_costs(given, transport) == (transport, *costs)
    assert message_costs(None, transport) == message_costs(CLUSTER, transport) == (transport, 0, PER_CHUNK)


def test_what_another_engine_took_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    for engine, costs in (("python", PER_CHUNK), ("native", Fraction(40, 10**6))):
        path.write_text(
            f"optcc: 1\nmeasured: {{date: 2026-11-20, transport: local, path: {engine}, per_chunk: 40us}}\n"
            "servers: [{name: a, nics: [{name: nic0, rate: 100Gb/s}]}]\n"
        )
        assert message_costs(path, "local").per_chunk == costs
