"""Faults at random moments of a `Session`'s collectives over queue pairs, by the native engine; kept and new plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

import optcc
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Session
from optcc.runtime.messages import Strike
from optcc.values.cluster import Cluster, Nic, Server
from tests.effort import cases
from tests.test_failover_session import NBYTES, RATE, STALL_S, Scene, kinds_of, play, scenes
from tests.verbs.conftest import needs_package

pytestmark = [pytest.mark.rdma, needs_package("click")]

KINDS = ("cut", "away", "hole", "no data", "no acks", "flap", "slow", "pause", "kill")
"""What can be done to links and packets, and to processes."""


def device(name: str, nics: int) -> str:
    """server1/nic0 of servers with two NICs is server1/rxe2."""
    server, _, nic = name.partition("/nic")
    return f"{server}/rxe{nics * int(server.removeprefix('server')) + int(nic)}"


def over_devices(scene: Scene) -> Scene:
    def of(strike: Strike) -> Strike:
        return replace(strike, nic=device(strike.nic, scene.nics))

    return replace(scene, strikes=tuple(map(of, scene.strikes)))


def job(scene: Scene, lost: Sequence[str]) -> Job:
    cluster = Cluster(
        tuple(
            Server(f"server{s}", tuple(Nic(f"rxe{scene.nics * s + n}", RATE, RATE) for n in range(scene.nics)))
            for s in range(scene.ranks)
        )
    )
    for nic in lost:
        cluster = cluster.degrade(nic)
    schedule = optcc.plan(cluster, NBYTES, segments=2).schedule()
    return Job({"it": schedule}, "float32", "sum", False, "verbs")


def prepare(network: Any, scene: Scene) -> None:
    """All is whole, and NICs have the rate of `job`."""
    network.whole()
    for nic in range(scene.ranks * scene.nics):
        network.rate(nic, 8 * RATE)


SHAPES = [(2, 1), (2, 3), (4, 2), (4, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strikes_at_random_moments(network: ModuleType, shape: tuple[int, int], request: pytest.FixtureRequest) -> None:
    """With `--whole` 50 for each cluster."""
    seed, (ranks, nics), each = int(request.config.getoption("--hypothesis-seed") or 0), shape, cases(50)
    kinds = kinds_of(seed, each * SHAPES.index(shape), each, KINDS)
    hit = 0
    for scene in map(over_devices, scenes(seed, ranks, nics, kinds)):
        try:
            prepare(network, scene)
            hit += play(scene, job)
        except Exception as error:
            raise AssertionError(f"{scene}: {type(error).__name__}: {error}") from error
    assert hit > 0, "nothing has hit"


def test_the_only_nic_is_silent_for_a_while(network: ModuleType) -> None:
    """It sends again what was lost by its own timer, later than datagrams come through: its wire is left, and back."""
    scene = Scene(2, 1, (Strike("flap", "server1/rxe1", 0.2, 0.4),), (False,))
    prepare(network, scene)
    with Session(job(scene, []), stall_s=STALL_S) as ranks:
        done = ranks.run("it", scene.strikes)
        assert all(done.exact)
        assert done.seconds > 0.4
        assert all(ranks.run("it").exact)
