"""The communicator over queue pairs: callers' buffers, small and large, and NICs whose links go down on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from tests.verbs.conftest import PACKAGES, needs_package
from tests.verbs.test_command import RATE

pytestmark = [pytest.mark.rdma, needs_package("click")]

START = """
import sys
import numpy as np
import optcc
from optcc.values.cluster import Cluster, Nic, Server
rank = int(sys.argv[1])
cluster = Cluster(tuple(
    Server(f"server{s}", tuple(Nic(f"rxe{2 * s + n}", "1Gb/s", "1Gb/s") for n in range(2))) for s in range(3)
))
comm = optcc.Communicator(cluster, transport="verbs", rendezvous="127.0.0.1:29700", rank=rank, world=3)
"""
ONE_BY_ONE = """
with comm:
    for count in (0, 5, 70_000, 300_000):
        x = np.arange(count, dtype=np.float32) % 1000 + rank
        assert np.array_equal(comm.all_reduce(x), np.arange(count, dtype=np.float32) % 1000 * 3 + 3), count
    comm.strike("cut", "server1/rxe2", 0.5)
    for _ in range(3):
        x = np.full(300_000, rank + 1)
        assert (comm.all_reduce(x) == 6).all()
    own = comm.broadcast(np.full(3, rank), 2)
    assert (own == 2).all()
    for _ in range(20):
        comm.barrier()
    print(*dict.fromkeys(event.kind for event in comm.events()), sep=",", end="")
"""


CONTRACT = """
from tests.communicator_contract import calls_of, play
with comm:
    wrong = play(comm, calls_of(11, 40, 3, 1 << 19), {8: ("server1/rxe2", 0.5), 25: ("server2/rxe5", 0.2)})
    assert wrong == [], wrong
    print(*dict.fromkeys(event.kind for event in comm.events()), sep=",", end="")
"""


def ranks(network: ModuleType, what: str) -> list[str]:
    """What three ranks print that do this."""
    for nic in range(6):
        network.rate(nic, RATE)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", START + what, str(rank)],
            env={**os.environ, "PYTHONPATH": f"{os.getcwd()}:{PACKAGES}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        said = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * 3, said
    return [told for told, _ in said]


def test_calls_over_queue_pairs_survive_a_nic(network: ModuleType) -> None:
    said = ranks(network, ONE_BY_ONE)
    assert {"struck", "nic down", "moved", "renewed"} <= set(said[1].split(","))
    assert all("renewed" in told for told in said)


def test_random_calls_over_queue_pairs(network: ModuleType) -> None:
    said = ranks(network, CONTRACT)
    assert {"struck", "nic down"} <= set(said[1].split(",")) & set(said[2].split(",")), "the faults met something"
