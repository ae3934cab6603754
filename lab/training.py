"""Inside the lab: four ranks of examples/survive_ddp.py over soft-RoCE NICs of 1 Gb/s; /results/training.json.

tools/training_picture.py starts it and draws what it records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lab import network

RANKS, NICS = 4, 2
RATE = 1e9  # bits per second of a NIC
STEPS, WIDTH = 60, 4096
COMPUTE_S = 0.005
"""What a step computes: work takes no virtual time, so it is slept."""
WAIT_S = 3600.0  # of virtual time


def main() -> int:
    for nic in range(RANKS * NICS):
        network.rate(nic, RATE)
    servers = [
        {"name": f"server{s}", "nics": [{"name": f"rxe{NICS * s + n}", "rate": "1Gb/s"} for n in range(NICS)]}
        for s in range(RANKS)
    ]
    topology = Path("/tmp/topology.yaml")
    topology.write_text(f"optcc: 1\nservers: {json.dumps(servers)}\n")
    command = [sys.executable, "examples/survive_ddp.py", "--transport", "verbs", "--cluster", str(topology)]
    command += ["--steps", str(STEPS), "--width", str(WIDTH), "--compute", str(COMPUTE_S)]
    command += ["--record", "/results/training.json"]
    world = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29720", "GLOO_SOCKET_IFNAME": "lo"}
    world |= {"PYTHONPATH": f"{os.getcwd()}:/packages", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen(command, env={**os.environ, **world, "RANK": str(rank)}) for rank in range(RANKS)]
    return max(abs(rank.wait(WAIT_S)) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
