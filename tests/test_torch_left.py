"""A rank is lost under torch: what is raised, and that those who are left go on, to the right weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.free_port import free_port
from tests.test_architecture import ROOT
from tests.torch_world import ranks

pytestmark = pytest.mark.torch


@pytest.mark.long
@pytest.mark.parametrize(("world", "victims"), [(3, [2]), (4, [0, 1])])
def test_calls_raise_and_those_who_are_left_go_on(world: int, victims: list[int]) -> None:
    """Also where torch's store was in the process that was killed; the second victim is then rank 0."""
    done = ranks(world, "-m", "tests.torch_left_process", *map(str, victims))
    assert [status for status, _ in done] == [-signal.SIGKILL if r in victims else 0 for r in range(world)]
    alive = list(range(world))
    told = {rank: json.loads(output) for rank, (status, output) in enumerate(done) if status == 0}
    for each, victim in enumerate(victims):
        number = alive.index(victim)  # of the victim, when it is killed
        alive.remove(victim)
        for rank in set(alive) & told.keys():
            said = told[rank]["lost"][each]
            assert said["backward"][0] in ("RankFailedError", "RuntimeError")  # torch's C++ knows no other of its own
            assert f"rank {number} failed" in said["backward"][1]
            for call in ("async", "blocking", "functional"):
                assert said[call][0] == "RankFailedError", call
                assert said[call][1].startswith(f"rank {number} failed")
            assert said["gradient"] == 600.0  # each of 300 elements has that of two rows on each rank, averaged
            assert said["sum"] == [sum(alive) + len(alive)] * 3
            assert said["ranks"] == alive
            if rank in alive[:2]:
                assert said["sent"] == [alive[0]], f"by rank {rank}"
                assert said["part"] == [2.0]
        texts = {said["lost"][each]["blocking"][1] for said in told.values()}
        assert len(texts) == 1, "all are told the same"
    for said in told.values():
        assert said["too early"][0] == "InputError"
        assert "no rank has failed" in said["too early"][1]
        assert said["gloo"] == ["InputError", "group: not a group of the backend optcc, got 'ProcessGroup'"]


@pytest.mark.long
def test_a_new_rank_comes_in_the_place_of_rank_0() -> None:
    where = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(2) as pool:
        nowhere = f"127.0.0.1:{free_port()}"
        old = pool.submit(ranks, 3, "-m", "tests.torch_left_process", "0", nowhere, where)
        new = pool.submit(newcomer, where)
        done, (status, output) = old.result(), new.result()
    assert [each for each, _ in done] == [-signal.SIGKILL, 0, 0]
    assert status == 0
    told = [json.loads(output) for _, output in (*done[1:], (status, output))]
    for rank, said in enumerate(told):
        assert said["sum"] == [6.0] * 3, rank
        assert said["gradient"] == 600.0
        assert said["gathered"] == ([0, 1, 2] if rank == 0 else [])
    for said in told[:2]:
        assert said["lost"][0]["ranks"] == [1, 2]
        assert said["nobody"][0] == "GrowFailedError"
        assert said["nobody"][1].endswith("the communicator of 2 ranks is as it was")
        assert said["as it was"] == [2.0] * 3


def newcomer(where: str) -> tuple[int, str]:
    """(exit status, output) of a process that comes as rank 2 of 3, once the others wait for it."""
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.torch_left_process", "join", where, "2", "3"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ, timeout=400)
    return done.returncode, done.stdout


@pytest.mark.long
def test_the_example_loses_a_nic_and_a_rank_and_ends_with_the_right_weights(tmp_path: Path) -> None:
    """It compares weights with those of one process that computes alone, and fails where they differ."""
    record = tmp_path / "record.json"
    done = ranks(3, "examples/survive_ddp.py", "--steps", "6", "--width", "512", "--record", str(record))
    assert [status for status, _ in done] == [0, 0, 0]
    assert done[2][1] == ""
    for rank, (_, output) in enumerate(done[:2]):
        assert f"rank {rank} goes on without another" in output
        assert "RankFailedError: rank 2 failed" in output
        assert f"rank {rank}: 6 steps, the right weights" in output
    told = json.loads(record.read_text())
    worlds = [world for _, world in told["ended"]]
    assert worlds in ([3, 3, 3, 3, 2, 2], [3, 3, 3, 2, 2, 2]), (
        "the last of three may end before others have its last step"
    )
    assert told["ended"][1][0] <= told["struck"] <= told["ended"][2][0], "in the third step"
