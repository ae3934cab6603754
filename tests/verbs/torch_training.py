"""A rank that trains a model in unmodified DDP: over Gloo, over queue pairs, and with two links of these that go down.

python -m tests.verbs.torch_training RANK WORLD PORT; prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import optcc.pytorch
from optcc.values.cluster import Cluster, Nic, Server

LOST = ("server1/rxe2", "server0/rxe1")
"""A NIC of each of two servers, one after the other."""


def train(nics: Sequence[str]) -> str:
    """The weights' hash after a few steps; the first of `nics` dies in the third, the next one two steps later."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400))
    ddp = DistributedDataParallel(model)
    descent = torch.optim.SGD(ddp.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    lost = dict(zip((2, 4), nics, strict=False))
    for step in range(7):
        if step in lost:
            optcc.pytorch.communicator_of().strike("cut", lost[step], 0.3)
        descent.zero_grad()
        ddp(torch.randn(8, 16, generator=draw)).square().mean().backward()
        descent.step()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def main(rank: int, world: int, port: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cluster = Cluster(
        tuple(
            Server(f"server{s}", tuple(Nic(f"rxe{2 * s + n}", "1Gb/s", "1Gb/s") for n in range(2)))
            for s in range(world)
        )
    )
    ours = optcc.pytorch.Options(cluster=cluster, transport="verbs", reproducible=True)
    said: dict[str, object] = {}
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    for name in ("gloo", "whole", "cut"):
        backend, options = ("gloo", None) if name == "gloo" else ("optcc", ours)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, pg_options=options)
        said[name] = train(LOST if name == "cut" else ())
        if name == "cut":
            said["events"] = [(event.kind, event.nic) for event in optcc.pytorch.communicator_of().events()]
        dist.destroy_process_group()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
