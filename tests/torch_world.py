"""Ranks of a torch.distributed job over Gloo, each a process with a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.free_port import free_port
from tests.test_architecture import ROOT


def ranks(world: int, *command: str, wait_s: float = 400, **environment: str) -> list[tuple[int, str]]:
    """(exit status, output) of so many ranks, which run Python with these arguments."""
    environ = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment}
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environ, "RANK": str(rank)},
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=wait_s)[0] for process in started]
        return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]
    finally:
        for process in started:
            process.kill()
