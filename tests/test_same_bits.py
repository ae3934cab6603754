"""Golden bits: the native engine rounds as the reference in Python does, by a plan of every family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optcc.communicator import prepared
from optcc.plans.plan import Plan
from optcc.schedule.families import FAMILIES
from optcc.values.cluster import Cluster
from tests.communicators import Ranks
from tests.fabrics import pods_of
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


def sums(family: str, path: str, monkeypatch: pytest.MonkeyPatch, transport: str = "local") -> list[bytes]:
    """By rank, what an all_reduce by a plan of the family gives; and then one of the same ranks the other way round."""
    made: list[str] = []

    def candidates(cluster: Cluster, nbytes: int, *costs: object) -> list[Plan]:
        found = next(plan for plan in offered(cluster, nbytes, 2) if plan.family == family)
        made.append(found.family)
        return [found]

    with monkeypatch.context() as patch:
        patch.setenv("OPTCC_PATH", path)
        patch.setattr(prepared, "candidates", candidates)
        with Ranks(4, cluster_of(family), transport=transport) as ranks:
            found = ranks.good(
                lambda comm: b"".join(comm.all_reduce(numbers(r)).tobytes() for r in (comm.rank, 3 - comm.rank))
            )
    assert {*made} == {family}
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_native_engine_has_the_bits_of_the_reference(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native = sums(family, "native", monkeypatch)
    assert native == [native[0]] * 4, "all ranks have the same"
    if not FAMILIES[family].beside:  # the reference folds in place
        assert native == sums(family, "python", monkeypatch)


def test_another_order_of_folds_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared could differ: other families round otherwise, and so do the same ranks the other way round."""
    ring, trees = (sums(family, "native", monkeypatch)[0] for family in ("ring", "trees"))
    assert ring != trees
    assert ring[: 4 * COUNT] != ring[4 * COUNT :]
    exact = np.sum([numbers(rank).astype(np.float64) for rank in range(4)], axis=0)
    for found in (ring, trees):
        assert np.allclose(np.frombuffer(found[: 4 * COUNT], np.float32), exact, atol=1e-5)
