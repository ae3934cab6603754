"""A rank of a few, of which some are killed one after the other: what each call of the others raises, and that they go
on as fewer.

The arguments are the ranks that are killed, by their numbers at the start, and two places, where nobody comes, and
where the others take as many new ones in; or `join`, such a place, a number and the size of the group. torch's store is
in rank 0's process. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.nn.parallel import DistributedDataParallel

import optcc.pytorch


def raised(call: Callable[[], Any]) -> list[str]:
    """(type, first line) of what it raises."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error).splitlines()[0]]
    return []


def backward(ddp: Any) -> None:
    """A step of it, on ones."""
    ddp.zero_grad()
    ddp(torch.ones(2, 300)).sum().backward()


def lost(victim: int, share: int, ddp: Any) -> dict[str, Any]:
    """What is said while `victim` is killed, and by those that go on. share : this rank at the start"""
    if share == victim:
        dist.all_reduce(torch.ones(300_000), async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    said: dict[str, Any] = {}
    said["backward"] = raised(lambda: backward(ddp))
    said["async"] = raised(lambda: dist.all_reduce(torch.ones(3), async_op=True).wait())
    said["blocking"] = raised(lambda: dist.all_reduce(torch.ones(3)))
    said["functional"] = raised(lambda: funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD).sum().item())
    optcc.pytorch.shrink()
    ddp = DistributedDataParallel(ddp.module)
    backward(ddp)
    said["gradient"] = float(ddp.module.bias.grad.sum())
    x = torch.full((3,), float(share + 1))
    dist.all_reduce(x)
    said["sum"] = x.tolist()
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, share)
    said["ranks"] = objects
    y = torch.tensor([share])
    if dist.get_rank() == 0:
        dist.send(y, 1)
    elif dist.get_rank() == 1:
        dist.recv(y, 0)
    said["sent"] = y.tolist()
    part = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        z = torch.ones(1)
        dist.all_reduce(z, group=part)
        said["part"] = z.tolist()
    return said


def grown(said: dict[str, Any]) -> None:
    """What is said in the group with new ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(torch.nn.Linear(300, 300))  # with the weights of rank 0
    backward(ddp)
    said["gradient"] = float(ddp.module.bias.grad.sum())
    x = torch.full((3,), float(rank + 1))
    dist.all_reduce(x)
    said["sum"] = x.tolist()
    objects: list[Any] = [None] * world
    dist.gather_object(rank, objects if rank == 0 else None)  # by Gloo
    said["gathered"] = objects if rank == 0 else []
    dist.destroy_process_group()
    print(json.dumps(said), flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    said: dict[str, Any] = {}
    if sys.argv[1] == "join":
        optcc.pytorch.join(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return grown(said)
    dist.init_process_group("optcc")
    share = dist.get_rank()
    said["too early"] = raised(optcc.pytorch.shrink)
    model = torch.nn.Linear(300, 300)
    ddp = DistributedDataParallel(model)
    backward(ddp)
    said["lost"] = []
    world, victims = dist.get_world_size(), [int(each) for each in sys.argv[1:] if each.isdigit()]
    for victim in victims:
        said["lost"].append(lost(victim, share, ddp))
        ddp = DistributedDataParallel(model)
    if len(sys.argv) > 1 + len(victims):
        said["nobody"] = raised(lambda: optcc.pytorch.grow(world, sys.argv[-2], within_s=0.2))
        x = torch.ones(3)
        dist.all_reduce(x)
        said["as it was"] = x.tolist()
        optcc.pytorch.grow(world, sys.argv[-1])
        return grown(said)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    said["gloo"] = raised(optcc.pytorch.shrink)
    print(json.dumps(said), flush=True)
    return None


if __name__ == "__main__":
    main()
