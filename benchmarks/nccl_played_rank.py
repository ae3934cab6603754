"""A rank of bench_nccl_played: sums by NCCL through torch, told what to do by its folder's job.json.

Prints a line of JSON for each call, with times of the machine's one clock in seconds. Exit status 3: a call never end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcc.fabric.played import PlayedFabric

STRUCK, AFTER_S = 4, 0.05
"""The call in which a NIC breaks, and how far into it."""
GIVEN_UP_S = 20.0
"""A call that takes longer does not end."""
STUCK = 3


def hurt(fabric: PlayedFabric, rate: int, half: Sequence[int]) -> None:
    """Let NICs have this rate, in bytes per second, and those of some hosts half of it."""
    for name in fabric.every():
        host = int(name.partition("/")[0].removeprefix("host"))
        fabric.set(name, rate=rate // (2 if host in half else 1))


def strike(fabric: PlayedFabric, breaks: str, broken: int, away_s: float) -> None:
    """Break the first NICs of host 1, for so many seconds or for good."""
    nics = [f"host1/{name}" for name in fabric.names[:broken]]
    say(struck=time.monotonic())
    for nic in nics:
        fabric.lose(nic) if breaks == "silent" else fabric.down(nic)
    if away_s:
        time.sleep(away_s)
        for nic in nics:
            fabric.up(nic)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def meet(store: Any, name: str, nodes: int) -> None:
    """Wait for all ranks, out of NCCL's sight."""
    store.add(name, 1)
    bound = time.monotonic() + GIVEN_UP_S
    while store.add(name, 0) < nodes:
        if time.monotonic() > bound:
            raise SystemExit(f"not all ranks came to {name}")
        time.sleep(1e-3)


def main(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    job = json.loads((folder / "job.json").read_text())
    nodes = job["nodes"]
    fabric = PlayedFabric(os.environ["PLAYED_FABRIC"])
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / "store"), nodes)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=nodes, device_id=device)
    say(about=f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}")
    for number, step in enumerate(job["steps"]):
        index = torch.arange(step["nbytes"] // 4, device=device) % 97
        expected = (index * nodes + sum(range(nodes))).float()
        buffer = torch.empty_like(expected)
        if rank == 0:
            hurt(fabric, job["rate"], step["half"])
        for call in range(step["calls"]):
            torch.add(index, rank, out=buffer)
            torch.cuda.synchronize()
            meet(store, f"{number}-{call}", nodes)
            if job["breaks"] and call == STRUCK and rank == 0:
                threading.Timer(AFTER_S, strike, (fabric, job["breaks"], job["broken"], job["away_s"])).start()
            start = time.monotonic()
            dist.all_reduce(buffer)
            done = torch.cuda.Event()
            done.record()
            while not done.query():
                if time.monotonic() - start > GIVEN_UP_S:
                    os._exit(STUCK)  # the collective is on the GPU still
                time.sleep(1e-4)
            end = time.monotonic()
            say(step=number, call=call, start=start, end=end, exact=torch.equal(buffer, expected))
        del index, expected, buffer
    meet(store, "end", nodes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
