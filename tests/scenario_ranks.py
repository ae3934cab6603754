"""Starts the ranks of a scenario of `rank_scenarios`, a process each."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.free_port import free_port
from tests.test_architecture import ROOT


def started(world: int, scenario: str, *arguments: object) -> list[subprocess.Popen[str]]:
    """All of them, by rank, as torchrun starts ranks; what they read, say and complain of is piped."""
    environ = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.rank_scenarios", scenario, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environ, "RANK": str(rank)},
        )
        for rank in range(world)
    ]
