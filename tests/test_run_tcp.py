"""`optcc run --transport tcp` as people type it, between addresses of the loopback interface; and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import loopback


def optcc_run(folder: Path, nics: Sequence[Sequence[str]], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Of servers whose NICs, at 1 Gb/s, have these names."""
    servers = [
        {"name": f"server{s}", "gpus": len(names), "nics": [{"name": name, "rate": "1Gb/s"} for name in names]}
        for s, names in enumerate(nics)
    ]
    topology = folder / "topology.yaml"
    topology.write_text(f"optcc: 1\nservers: {json.dumps(servers)}\n")
    return subprocess.run(
        [sys.executable, "-m", "optcc", "run", str(topology), "--transport", "tcp", *arguments],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def addresses(ranks: int, nics: int) -> list[list[str]]:
    return [[loopback.address(rank, nic, nics) for nic in range(nics)] for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "nics"), [(2, 2), (4, 1)])
def test_a_run_is_exact(tmp_path: Path, ranks: int, nics: int) -> None:
    done = optcc_run(tmp_path, addresses(ranks, nics), "--size", "1MiB", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["transport"] == "tcp"
    assert told["exact_per_rank"] == {f"server{rank}": True for rank in range(ranks)}
    assert told["algorithms"]["ring"]["exact"]


SOME = ("--size", "64KiB", "--repeat", "1")


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("mlx5_0", 2, "a NIC that is no interface of this machine"),
        ("eth99", 2, "a NIC that is no interface of this machine"),
        ("198.51.100.7", 1, "cannot listen at 198.51.100.7"),
    ],
)
def test_nics_that_are_not_here_are_refused(tmp_path: Path, name: str, status: int, says: str) -> None:
    nics = addresses(2, 1)
    nics[1] = [name]
    done = optcc_run(tmp_path, nics, *SOME)
    assert done.returncode == status
    assert says in done.stderr
    assert name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["cut", "hole"])
def test_faults_that_cannot_be_had_of_real_nics_are_refused(tmp_path: Path, kind: str) -> None:
    nics = addresses(2, 2)
    done = optcc_run(tmp_path, nics, *SOME, f"--{kind}", f"server1/{nics[1][0]}@0.4")
    assert done.returncode == 2
    assert f"{kind}: not over tcp, expected pause or kill" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    done = optcc_run(tmp_path, addresses(2, 2), *SOME, "--kill", "server1@0.4")
    assert done.returncode == 1
    assert "rank 1 failed: killed by signal 9" in done.stderr
    assert "Traceback" not in done.stderr
