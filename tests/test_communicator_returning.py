"""All NICs of one rank are away for a while: the operation waits for one to be back, and loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator import prepared
from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster
from tests.communicators import Ranks

COUNT, TRIES = 300_000, 5000
QUICK = [(2, 1, 0.05), (3, 2, 0.3), (4, 1, 0.05), (3, 4, 0.05)]
"""Ranks, NICs of each, seconds away."""
REST = [(4, 4, 0.3), (2, 2, 3.0), (3, 1, 20.0)]
LONG = [pytest.param(*case, marks=pytest.mark.long) for case in REST]


def numbers(rank: int, call: int) -> np.ndarray:
    """Sums of these are rounded, so that their order shows."""
    return np.random.default_rng([rank, call]).normal(size=COUNT).astype(np.float32)


def sums(comm: optcc.Communicator, calls: range) -> list[bytes]:
    """Of these calls, bit for bit."""
    return [np.asarray(comm.all_reduce(numbers(comm.rank, call))).tobytes() for call in calls]


def kinds(comm: optcc.Communicator) -> set[str]:
    return {event.kind for event in comm.events()}


@pytest.mark.parametrize(("world", "nics", "away"), [*QUICK, *LONG])
def test_all_nics_of_a_rank_are_away_for_a_while(world: int, nics: int, away: float) -> None:
    cluster = Cluster.uniform(servers=world, nics=nics, rate="10Gb/s")

    with Ranks(world, cluster, reproducible=True) as ranks:
        whole = ranks.good(lambda comm: sums(comm, range(4)))

    def call(comm: optcc.Communicator) -> list[bytes]:
        found = sums(comm, range(1))
        for nic in range(nics):
            comm.strike("away", f"server1/nic{nic}", 0.3 + 0.1 * nic, away + 0.02 * nic)
        return found + sums(comm, range(1, 4))

    with Ranks(world, cluster, reproducible=True, timeout_s=60.0) as ranks:
        found = ranks.good(call)
        assert found == whole, "bit for bit"
        assert {"struck", "nic down", "waiting", "nic up", "made anew"} <= kinds(ranks.comms[1])
        assert "made anew" in kinds(ranks.comms[0])


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_nic_that_is_back_is_used_when_it_is_the_only_one(world: int) -> None:
    """One goes, plans do without it; it comes back, and the other one goes for good."""
    cluster = Cluster.uniform(servers=world, nics=2, rate="10Gb/s")
    lost = [("away", "server1/nic0", 0.2), ("cut", "server1/nic1", 0.0)]

    def call(comm: optcc.Communicator) -> list[Any]:
        found: list[Any] = []
        for at, (kind, nic, amount) in enumerate(lost):
            comm.strike(kind, nic, 0.4, amount)
            found += sums(comm, range(10 * at, 10 * at + 4))
            for _ in range(TRIES):  # all ranks hear of a plan in the same call
                if f"renewed {nic}" in {f"{event.kind} {event.text}" for event in comm.events()}:
                    break
                comm.barrier()
        return found + sums(comm, range(30, 33))

    with Ranks(world, cluster, reproducible=True) as ranks:
        whole = ranks.good(lambda comm: sums(comm, range(4)) + sums(comm, range(10, 14)) + sums(comm, range(30, 33)))
    with Ranks(world, cluster, reproducible=True, timeout_s=60.0) as ranks:
        assert ranks.good(call) == whole
        renewed = [event.text for event in ranks.comms[1].events() if event.kind == "renewed"]
        assert renewed[0] == "server1/nic0"
        assert renewed[-1] == "server1/nic1"


@pytest.mark.parametrize(("world", "family"), [(2, "nested-rings"), (3, "direct-exchange"), (4, "direct-exchange")])
def test_a_kept_plan_outlives_one_nic_after_another(world: int, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums have the bits of the run without a loss, by plans that could not be made for what is left."""

    def candidates(cluster: Cluster, nbytes: int, *costs: Any) -> list[Plan]:
        return [optcc.plan(cluster, nbytes, family=family, segments=1)]

    monkeypatch.setattr(prepared, "candidates", candidates)
    cluster = Cluster.uniform(servers=world, nics=4, rate="10Gb/s")
    with Ranks(world, cluster, reproducible=True) as ranks:
        whole = ranks.good(lambda comm: sums(comm, range(9)))

    def call(comm: optcc.Communicator) -> list[bytes]:
        found: list[bytes] = []
        for at, nic in enumerate(("server1/nic0", "server0/nic2", "server1/nic3")):
            comm.strike("cut", nic, 0.4)
            found += sums(comm, range(3 * at, 3 * at + 3))
        return found

    with Ranks(world, cluster, reproducible=True) as ranks:
        assert ranks.good(call) == whole
