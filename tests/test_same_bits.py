"""Golden bits: communicators round as a plain walk through the transfers does, by a plan of every family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optcc.communicator import prepared
from optcc.plans.plan import Plan
from optcc.runtime.devices.host import Op
from optcc.schedule.families import FAMILIES
from optcc.values.cluster import Cluster
from tests.communicators import Ranks
from tests.fabrics import pods_of
from tests.native_replay import expected
from tests.test_families import offered

COUNT = 70_000
"""Elements: more bytes than go by the one tree of small calls."""
RATE = 1_250_000_000


def clusters() -> list[Cluster]:
    """Of four ranks; every family takes one of them."""
    servers = Cluster.uniform(servers=4, nics=2, rate=RATE)
    gpus = Cluster.uniform(servers=2, nics=2, gpus=2, rate=RATE, nvlink_rate=10 * RATE)
    return [servers.degrade("server0/nic1"), pods_of(servers, 2), replace(gpus, gpu_ranks=True)]


def cluster_of(family: str) -> Cluster:
    """The first that the family takes."""
    return next(each for each in clusters() if any(plan.family == family for plan in offered(each, 4 * COUNT, 2)))


def numbers(rank: int) -> np.ndarray:
    """Sums of these are rounded, so that their order shows."""
    return np.random.default_rng(rank).normal(size=COUNT).astype(np.float32)


def sums(family: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, list[bytes]]:
    """A plan of the family; by rank, what an all_reduce by it gives, and then one of the same ranks the other way
    round."""
    made: list[Plan] = []

    def candidates(cluster: Cluster, nbytes: int, *costs: object) -> list[Plan]:
        found = next(plan for plan in offered(cluster, nbytes, 2) if plan.family == family)
        made.append(found)
        return [found]

    with monkeypatch.context() as patch:
        patch.setattr(prepared, "candidates", candidates)
        with Ranks(4, cluster_of(family)) as ranks:
            found = ranks.good(
                lambda comm: b"".join(comm.all_reduce(numbers(r)).tobytes() for r in (comm.rank, 3 - comm.rank))
            )
    return made[0], found


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_are_those_of_a_plain_walk(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = sums(family, monkeypatch)
    assert found == [found[0]] * 4, "all ranks have the same"
    schedule = plan.schedule().resized(4 * COUNT)
    walked = [expected(schedule, [numbers(r) for r in order], Op.SUM) for order in (range(4), range(3, -1, -1))]
    assert found == [b"".join(each[rank].tobytes() for each in walked) for rank in range(4)]


def test_another_order_of_folds_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared could differ: other families round otherwise, and so do the same ranks the other way round."""
    ring, trees = (sums(family, monkeypatch)[1][0] for family in ("ring", "trees"))
    assert ring != trees
    assert ring[: 4 * COUNT] != ring[4 * COUNT :]
    exact = np.sum([numbers(rank).astype(np.float64) for rank in range(4)], axis=0)
    for found in (ring, trees):
        assert np.allclose(np.frombuffer(found[: 4 * COUNT], np.float32), exact, atol=1e-5)
