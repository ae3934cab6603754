"""A rank of three, of which the last one ends: what each call of the others raises, and that they go on as two.

Prints one JSON object.
"""

from __future__ import annotations

import json
import os
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


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    said: dict[str, Any] = {}
    dist.init_process_group("optcc")
    rank = dist.get_rank()
    said["too early"] = raised(optcc.pytorch.shrink)
    model = torch.nn.Linear(300, 300)
    ddp = DistributedDataParallel(model)
    backward(ddp)
    if rank == 2:
        os._exit(0)
    said["backward"] = raised(lambda: backward(ddp))
    said["async"] = raised(lambda: dist.all_reduce(torch.ones(3), async_op=True).wait())
    said["blocking"] = raised(lambda: dist.all_reduce(torch.ones(3)))
    said["functional"] = raised(lambda: funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD).sum().item())
    optcc.pytorch.shrink()
    ddp = DistributedDataParallel(model)
    backward(ddp)
    said["gradient"] = float(model.bias.grad.sum())
    x = torch.full((3,), float(rank + 1))
    dist.all_reduce(x)
    said["sum"] = x.tolist()
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, rank)
    said["ranks"] = objects
    y = torch.tensor([rank])
    if rank == 0:
        dist.send(y, 1)
    else:
        dist.recv(y, 0)
    said["received"] = y.tolist()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    said["gloo"] = raised(optcc.pytorch.shrink)
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
