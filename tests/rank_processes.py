"""Jobs whose ranks are processes of their own: started, as torchrun starts them or otherwise, and heard out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.free_port import free_port

ROOT = Path(__file__).resolve().parent.parent

Process = subprocess.Popen[str]


def ran(*arguments: object, env: dict[str, str] | None = None) -> Process:
    """A process that runs Python with these arguments; what it reads, says and complains of is piped."""
    command, pipe = [sys.executable, *map(str, arguments)], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=env)


def started(world: int, *arguments: object, **environ: str) -> list[Process]:
    """Ranks that do so, with the environment that torchrun gives them."""
    told = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port() - 1), **environ}
    return [ran(*arguments, env={**os.environ, **told, "RANK": str(rank)}) for rank in range(world)]


def heard(ranks: Sequence[Process], within_s: float, statuses: Sequence[int] = ()) -> list[tuple[str, str]]:
    """What each has said and complained of by its end, for which it has so long.

    statuses : with which they are to end, by rank; empty: any
    """
    try:
        said = [rank.communicate(timeout=within_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert not statuses or [rank.returncode for rank in ranks] == list(statuses), said
    return said
