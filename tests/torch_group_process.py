"""A rank that trains the same models three times: over Gloo, over optcc, over optcc with NICs that die in the middle.

Prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import optcc
import optcc.pytorch

CLUSTER = "uniform:servers={},nics=3,rate=1Gb/s"


def ddp(model: Any) -> Any:
    """Replicated; several buckets."""
    return DistributedDataParallel(model, bucket_cap_mb=0.5)


def fsdp(model: Any) -> Any:
    """Sharded by the class."""
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def sharded(model: Any) -> Any:
    """Sharded by the function, a layer by itself."""
    fully_shard(model[2])
    return fully_shard(model)


STRUCK = {ddp: "server1/nic0", fsdp: "server1/nic1", sharded: "server0/nic0"}
"""How a model is trained, and the NIC that dies meanwhile."""


def train(wrap: Callable[[Any], Any], nic: str | None) -> str:
    """The weights' hash after a few steps; `nic` dies in the third."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400))
    wrapped = wrap(model)
    descent = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(6):
        if step == 2 and nic:
            optcc.pytorch.communicator_of().strike("cut", nic, 0.3)
        descent.zero_grad()
        wrapped(torch.randn(8, 16, generator=draw)).square().mean().backward()
        descent.step()
    with FullyShardedDataParallel.summon_full_params(wrapped) if wrap is fsdp else nullcontext():
        weights = [(p.full_tensor() if wrap is sharded else p).clone() for p in wrapped.parameters()]
        return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in weights)).hexdigest()


def calls() -> Any:
    """What every collective gives, over whichever backend."""
    rank, world = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    for op in ("SUM", "PRODUCT", "MIN", "MAX", "BXOR"):
        x = torch.arange(5) + rank
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        found[f"all_reduce {op}"] = x.tolist()
    x = torch.full((4, 4), 1.0 + rank)[:, 1]  # with gaps
    dist.all_reduce(x)
    found["strided"] = x.tolist()
    x = torch.full((2,), 1 + 2j * rank)
    dist.all_reduce(x)
    found["complex"] = torch.view_as_real(x).tolist()
    x = torch.tensor([rank == 1, True])
    dist.broadcast(x, 1)
    found["broadcast"] = x.tolist()
    parts = [torch.zeros(3, dtype=torch.int32) for _ in range(world)]
    dist.all_gather(parts, torch.full((3,), rank, dtype=torch.int32))
    found["all_gather"] = [part.tolist() for part in parts]
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"of": rank})
    found["objects"] = objects
    whole = torch.zeros(world * 2)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    found["all_gather_into_tensor"] = whole.tolist()
    dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2].fill_(rank + 5.0))
    found["all_gather in place"] = whole.tolist()
    lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(world)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((1,), rank - 7.0)])
    found["all_gather_coalesced"] = [[each.tolist() for each in of_rank] for of_rank in lists]
    own = torch.zeros(2)
    dist.reduce_scatter_tensor(own, torch.arange(2.0 * world))
    found["reduce_scatter_tensor"] = own.tolist()
    dist.reduce_scatter(own, [torch.full((2,), float(to)) for to in range(world)])
    found["reduce_scatter"] = own.tolist()
    x = torch.arange(2.0 * world) + 1
    dist.reduce_scatter_tensor(x[2 * rank : 2 * rank + 2], x)
    found["reduce_scatter in place"] = x[2 * rank : 2 * rank + 2].tolist()
    own = torch.zeros(world * 2)
    dist.all_to_all_single(own, torch.arange(2.0 * world) + 10 * rank)
    found["all_to_all_single"] = own.tolist()
    splits = [1, 2] if rank == 0 else [2, 1]
    own = torch.zeros(3)
    dist.all_to_all_single(own, torch.arange(3.0) + 10 * rank, splits, splits)
    found["all_to_all_single unequal"] = own.tolist()
    x = torch.ones(300_000)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    found["work"] = [work.is_completed(), float(x.sum())]
    x = torch.full((2,), float(rank))
    dist.reduce(x, 0)
    found["reduce"] = x.tolist() if rank == 0 else []
    if rank == 0:
        dist.send(torch.arange(3), 1)
    if rank == 1:
        x = torch.zeros(3, dtype=torch.int64)
        dist.recv(x, 0)
        found["recv"] = x.tolist()
    group = dist.new_group([0, 1])
    if rank < 2:
        x = torch.tensor([rank])
        dist.all_reduce(x, group=group)
        found["group"] = x.tolist()
    dist.barrier()
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    said: dict[str, Any] = {}
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # One for all three groups: with a store of its own for each, a fast rank meets the one before, about to end.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0)
    for name in ("gloo", "optcc", "struck"):
        ours = name != "gloo"
        options = optcc.pytorch.Options(cluster=CLUSTER.format(world)) if ours else None
        dist.init_process_group(
            "optcc" if ours else "gloo", store=store, rank=rank, world_size=world, pg_options=options
        )
        said[name] = {wrap.__name__: train(wrap, STRUCK[wrap] if name == "struck" else None) for wrap in STRUCK}
        if name == "struck":
            said["events"] = [(event.kind, event.nic) for event in optcc.pytorch.communicator_of().events()]
        else:
            said[f"{name} calls"] = calls()
        dist.destroy_process_group()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
