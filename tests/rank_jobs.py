"""Jobs whose ranks are processes that run a scenario of tests/rank_scenarios.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.free_port import free_port
from tests.test_architecture import ROOT

WAIT_S = 300
"""For processes that take seconds on an idle machine."""


def job(world: int, scenario: str, *arguments: object) -> list[list[dict[str, Any]]]:
    """By rank, all that it has said. Ranks that live on until they hear otherwise do so until the others have ended."""
    environ = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.rank_scenarios", scenario, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environ, "RANK": str(rank)},
        )
        for rank in range(world)
    ]
    try:
        living = started[1] if scenario == "left" else None
        said = ["" for _ in started]
        for rank, process in enumerate(started):
            if process is not living:
                said[rank] = process.communicate(timeout=WAIT_S)[0]
        if living:
            said[1] = living.communicate(timeout=WAIT_S)[0]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [[json.loads(line) for line in lines.splitlines()] for lines in said]
