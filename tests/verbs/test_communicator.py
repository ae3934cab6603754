"""The communicator over queue pairs: callers' buffers, small and large, and NICs whose links go down on the way."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.rank_processes import heard, ran
from tests.verbs.conftest import command_environment, needs_package
from tests.verbs.test_command import RATE

WHOLE = pytest.mark.whole
pytestmark = [pytest.mark.rdma, needs_package("click")]

START = """
import sys
import numpy as np
import optcc
from optcc.values.cluster import Cluster, Nic, Server
rank, world, nics, kept = map(int, sys.argv[1:])
cluster = Cluster(tuple(
    Server(f"server{s}", tuple(Nic(f"rxe{nics * s + n}", "1Gb/s", "1Gb/s") for n in range(nics))) for s in range(world)
))
comm = optcc.Communicator(
    cluster, transport="verbs", rendezvous="127.0.0.1:29700", rank=rank, world=world, reproducible=bool(kept)
)
"""
ONE_BY_ONE = """
with comm:
    for count in (0, 5, 70_000, 300_000):
        x = np.arange(count, dtype=np.float32) % 1000 + rank
        total = np.arange(count, dtype=np.float32) % 1000 * world + sum(range(world))
        assert np.array_equal(comm.all_reduce(x), total), count
    for nic in ("server1/rxe2", "server0/rxe1"):
        comm.strike("cut", nic, 0.5)
        for _ in range(4):
            x = np.full(300_000, rank + 1)
            assert (comm.all_reduce(x) == world * (world + 1) // 2).all()
    own = comm.broadcast(np.full(3, rank), world - 1)
    assert (own == world - 1).all()
    for _ in range(20):
        comm.barrier()
    print(*dict.fromkeys(event.kind for event in comm.events()), sep=",", end="")
"""


CONTRACT = """
from optcc.runtime.devices.host import dtype_of
from tests.communicator_contract import calls_of, play
calls = calls_of(11, 40, world, 1 << 19)
long = [call.number for call in calls if call.count * dtype_of(call.dtype).itemsize >= 1 << 16]
with comm:
    wrong = play(comm, calls, {long[1]: ("server1/rxe2", 0.5), long[-2]: ("server2/rxe5", 0.2)})
    assert wrong == [], wrong
    print(*dict.fromkeys(event.kind for event in comm.events()), sep=",", end="")
"""


AWAY = """
with comm:
    expected = world * (world + 1) // 2
    for away in (0.05, 0.3, 3):
        for nic in range(nics):
            comm.strike("away", f"server1/rxe{nics + nic}", 0.2 + 0.1 * nic, away + 0.1 * nic)
        for _ in range(3):
            assert (comm.all_reduce(np.full(300_000, rank + 1)) == expected).all(), away
    print(*dict.fromkeys(event.kind for event in comm.events()), sep=",", end="")
"""


def ranks(network: ModuleType, what: str, world: int, *, nics: int = 2, kept: bool) -> list[str]:
    """What `world` ranks print that do this. `kept` : sums are rounded the same whatever NICs fail."""
    for nic in range(nics * world):
        network.rate(nic, RATE)
    env = command_environment()
    started = [ran("-c", START + what, rank, world, nics, int(kept), env=env) for rank in range(world)]
    return [told for told, _ in heard(started, 200, [0] * world)]


@pytest.mark.parametrize(
    ("world", "kept"),
    [(3, True), *(pytest.param(*case, marks=WHOLE) for case in ((2, True), (3, False)))],
)
def test_calls_over_queue_pairs_survive_one_nic_and_another(network: ModuleType, world: int, kept: bool) -> None:
    said = ranks(network, ONE_BY_ONE, world, kept=kept)
    assert {"struck", "nic down", "moved", "renewed"} <= set(said[1].split(","))
    assert {"struck", "nic down"} <= set(said[0].split(","))
    assert all("renewed" in told for told in said)


@pytest.mark.parametrize(("world", "kept"), [pytest.param(3, False, marks=WHOLE), (4, True)])
def test_random_calls_over_queue_pairs(network: ModuleType, world: int, kept: bool) -> None:
    said = ranks(network, CONTRACT, world, kept=kept)
    assert {"struck", "nic down"} <= set(said[1].split(",")) & set(said[2].split(",")), "the faults met something"


@pytest.mark.parametrize(("world", "nics"), [(3, 2), *(pytest.param(*case, marks=WHOLE) for case in ((2, 1), (3, 4)))])
def test_all_nics_of_a_rank_are_away_for_a_while(network: ModuleType, world: int, nics: int) -> None:
    said = ranks(network, AWAY, world, nics=nics, kept=True)
    assert {"struck", "nic down", "waiting", "nic up", "made anew"} <= set(said[1].split(","))
    assert "made anew" in said[0]
