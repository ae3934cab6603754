"""A rank whose callbacks call collectives and wait for them; and DDP with torch's PowerSGD hook, which does so too.

Prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import optcc.pytorch


def nested(depth: int, others: int) -> list[float]:
    """Sums of sums ... of the ranks, and of what is under way meanwhile. Gloo has two threads, and depth 1."""
    rank = float(dist.get_rank())
    x = torch.full((4,), rank)

    def deeper(level: int) -> Any:
        def then(done: Any) -> Any:
            again = done.value()[0] + 1
            future = dist.all_reduce(again, async_op=True).get_future()
            return (future.then(deeper(level - 1)) if level > 1 else future).wait()

        return then

    future = dist.all_reduce(x, async_op=True).get_future().then(deeper(depth))
    rest = [torch.full((300_000,), rank + number) for number in range(others)]
    works = [dist.all_reduce(each, async_op=True) for each in rest]
    found = future.wait()
    for work in works:
        work.wait()
    value = found[0] if isinstance(found, list) else found
    return [float(value[0]), *(float(each[-1]) for each in rest)]


def waits_for_later() -> list[float]:
    """A callback that waits for a collective that was called before the callback runs, by torch's future."""
    one, two = torch.ones(300_000), torch.full((3,), 2.0)
    first = dist.all_reduce(one, async_op=True).get_future()
    second = dist.all_reduce(two, async_op=True).get_future()
    return [float(first.then(lambda done: done.value()[0][0] + second.wait()[0][0]).wait())]


def powersgd(buckets_mb: float) -> tuple[str, list[float]]:
    """(The weights' hash, losses) of a few steps with compressed gradients."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 64))
    ddp = DistributedDataParallel(model, bucket_cap_mb=buckets_mb)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    descent = torch.optim.SGD(ddp.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(6):
        batch = torch.randn(16, 64, generator=draw)
        loss = (ddp(batch) - batch).square().mean()
        descent.zero_grad()
        loss.backward()
        descent.step()
        losses.append(loss.item())
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(weights).hexdigest(), losses


def gathered() -> list[list[float]]:
    """torch puts what it gathers where the backend says that tensors may be."""
    rank, world = dist.get_rank(), dist.get_world_size()
    spec = ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(world)])
    whole = torch.empty(2 * world, 3) if rank == 0 else None
    sharded_tensor.ones(spec, 2 * world, 3).gather(out=whole)
    return [] if whole is None else whole.tolist()


def main() -> None:
    warnings.simplefilter("ignore")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0)
    said: dict[str, Any] = {}
    groups = []  # a group whose last user is a callback on its own thread would end by joining that thread (torch 2.13)
    for name in ("gloo", "optcc"):
        dist.init_process_group(name, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
        groups.append(dist.group.WORLD)
        said[name] = {"gathered": gathered(), "nested": nested(1, 0), "powersgd": powersgd(25.0)}
        if name == "optcc":
            said["busy"] = [nested(depth, 3) for depth in (1, 2, 3)]
            said["later"] = waits_for_later()
            said["many buckets"] = powersgd(0.01)
            said["kept"] = optcc.pytorch.communicator_of()._options.reproducible
        dist.destroy_process_group()
    print(json.dumps(said), flush=True)
    del groups


if __name__ == "__main__":
    main()
