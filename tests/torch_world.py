"""Ranks of a torch.distributed job over Gloo, each a process with a program of its own."""

from __future__ import annotations

import sys

from tests.free_port import free_port
from tests.rank_processes import heard, started


def ranks(world: int, *command: str, wait_s: float = 400, **environment: str) -> list[tuple[int, str]]:
    """(exit status, output) of so many ranks, which run Python with these arguments."""
    environ = {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment}
    processes = started(world, *command, **environ)
    said = heard(processes, wait_s)
    sys.stderr.writelines(complaint for _, complaint in said)
    return [(process.returncode, output) for process, (output, _) in zip(processes, said, strict=True)]
