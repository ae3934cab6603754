"""What the tests of DDP's own options have a rank do: the same training natively and with the hook."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

RATES = [1e6, 5e5, 1e6, 1e6]


def _net(kind: str, dtype: str = "float64") -> Any:
    """A small module, alike on all ranks; `forward(batch)` gives a number to descend."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(3)
    real = getattr(torch, dtype)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = torch.nn.Linear(6, 24).to(real), torch.nn.Linear(24, 2).to(real)
            if kind == "sparse":
                self.table = torch.nn.Embedding(12, 6, sparse=True).to(real)
            if kind == "frozen and empty":
                self.frozen = torch.nn.Parameter(torch.arange(3), requires_grad=False)
                self.empty = torch.nn.Parameter(torch.ones(0, dtype=torch.float16))
            if kind == "complex":
                self.phase = torch.nn.Parameter(torch.ones(6, dtype=torch.complex128))
            if kind == "norm":
                self.norm = torch.nn.BatchNorm1d(24).to(real)

        def forward(self, batch: Any) -> Any:
            if kind == "sparse":
                batch = batch + self.table(batch[:, 0].abs().long() % 12)
            if kind == "complex":
                batch = (self.phase * batch).abs()
            inner = self.stem(batch)
            if kind == "norm":
                inner = self.norm(inner)
            out = checkpoint(self.head, inner.relu(), use_reentrant=True) if kind == "checkpoint" else self.head(inner)
            if kind == "frozen and empty":
                out = out + self.empty.sum().to(real) * self.frozen.sum()
            return out.square().mean()

    return Net()


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: (module, options of DDP, options of the training)
    "join": ("plain", {}, {"join": {}}),
    "join by active": ("plain", {}, {"join": {"divide_by_initial_world_size": False}}),
    "join by active, buffers and unused": (
        "norm",
        {"find_unused_parameters": True},
        {"join": {"divide_by_initial_world_size": False}},
    ),
    "sparse": ("sparse", {}, {}),
    "sparse, join by active": ("sparse", {}, {"join": {"divide_by_initial_world_size": False}}),
    "static graph": ("plain", {"static_graph": True}, {}),
    "reentrant checkpoint": ("checkpoint", {"static_graph": True}, {}),
    "bucket views": ("plain", {"gradient_as_bucket_view": True}, {}),
    "skipped unused": ("plain", {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}, {}),
    "frozen and empty": ("frozen and empty", {}, {}),
    "complex": ("complex", {}, {}),
    "compiled": ("plain", {}, {"compiled": True}),
    "no sync": ("plain", {}, {"no_sync": True}),
}


def equal_native(_: int) -> dict[str, tuple[float, int]]:
    """Every case: (largest difference of a weight from native DDP, buckets by plan)."""
    found = {}
    for name, (kind, ddp, how) in CASES.items():
        native, _none = _trained(kind, ddp, None, **how)
        planned, by_plan = _trained(kind, ddp, RATES, **how)
        same, never = _trained(kind, ddp, [1e6] * 4, **how)
        assert never == 0
        bits = max(float((a - b).abs().max()) for a, b in zip(native, same, strict=True) if a.numel())
        assert bits == 0, f"{name}: natively to the last bit, but {bits} apart"
        apart = max(float((a - b).abs().max()) for a, b in zip(native, planned, strict=True) if a.numel())
        found[name] = (apart, by_plan)
    return found


def _trained(
    kind: str,
    ddp: dict[str, Any],
    rates: list[float] | None,
    join: dict[str, Any] | None = None,
    compiled: bool = False,
    no_sync: bool = False,
) -> tuple[list[Any], int]:
    """Weights after a few steps, of which later ranks have more under `join`; buckets by plan."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from tests.torch_ranks import hooked

    rank, net = dist.get_rank(), _net(kind)
    model: Any = DistributedDataParallel(net, bucket_cap_mb=None if compiled else 0.001, **ddp)
    whole = model
    if compiled:
        model = torch.compile(model, backend="eager")
    state = None if rates is None else hooked(model, rates=rates, timeout_s=60.0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    data = torch.Generator().manual_seed(rank)
    with whole.join(**join) if join is not None else nullcontext():
        for _ in range(2 + (rank if join is not None else 0)):
            if no_sync:
                with whole.no_sync():
                    model(torch.randn(4, 6, generator=data, dtype=torch.float64)).backward()
            model(torch.randn(4, 6, generator=data, dtype=torch.float64)).backward()
            optimizer.step()
            optimizer.zero_grad()
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    by_plan = 0 if state is None else state.by_plan
    if state is not None:
        state.close()
    return weights, by_plan


def refused(_: int) -> dict[str, str]:
    """What `register` says of every model that it cannot serve; nothing is made meanwhile."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
    from torch.nn.parallel import DataParallel, DistributedDataParallel
    from torch.nn.parallel.distributed import _MixedPrecision

    def net() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def fsdp(strategy: Any) -> Any:
        return FullyShardedDataParallel(net(), sharding_strategy=strategy, device_id=torch.device("cpu"))

    def sharded() -> Any:
        whole = net()
        fully_shard(whole, mesh=init_device_mesh("cpu", (4,)))
        return whole

    def hooked_already() -> Any:
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, allreduce_hook)
        return model

    def hooked_by_name() -> Any:
        model = DistributedDataParallel(net())
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        return model

    def optimized_in_backward() -> Any:
        whole = net()
        for parameter in whole.parameters():
            parameter._in_backward_optimizers = []
        return DistributedDataParallel(whole)

    def delayed() -> Any:
        whole = torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.ones(3))})
        listed = [(".a", whole["a"])]
        other = torch.ones(3, requires_grad=True)
        return DistributedDataParallel(whole, delay_all_reduce_named_params=listed, param_to_hook_all_reduce=other)

    def by_python() -> Any:
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            return DistributedDataParallel(net())

    makers: dict[str, Callable[[], Any]] = {
        "plain": net,
        "data parallel": lambda: DataParallel(net()),
        "sharded": lambda: fsdp(ShardingStrategy.FULL_SHARD),
        "not sharded": lambda: fsdp(ShardingStrategy.NO_SHARD),
        "sharded anew": sharded,
        "compiled plain": lambda: torch.compile(net(), backend="eager"),
        "rates instead": lambda: RATES,
        "none": lambda: None,
        "mixed": lambda: DistributedDataParallel(net(), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16)),
        "hooked": hooked_already,
        "hooked by name": hooked_by_name,
        "optimized": optimized_in_backward,
        "delayed": delayed,
        "python": by_python,
    }
    pair = dist.new_group([0, 1])
    said = {name: _refusal(make(), RATES) for name, make in makers.items()}
    said["group"] = _refusal(DistributedDataParallel(net()), RATES, group=pair)
    backwards = dist.new_group([3, 2, 1, 0], sort_ranks=False)
    said["order"] = _refusal(DistributedDataParallel(net(), process_group=backwards), RATES)
    return said


def _refusal(model: Any, *args: Any, **options: Any) -> str:
    """What `register` says; empty where it takes the model. Nothing may have been made by a refusal."""
    import torch.distributed as dist

    from optcc.errors import InputError
    from optcc.pytorch import register

    before = len(dist.distributed_c10d._world.pg_names), threading.active_count()
    try:
        register(model, *args, **options).close()
    except InputError as error:
        assert before == (len(dist.distributed_c10d._world.pg_names), threading.active_count())
        return str(error)
    return ""


def odd_one(rank: int) -> dict[str, str]:
    """What this rank is told where rank 2 alone calls `register` otherwise, or not at all."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from optcc.pytorch import Policy

    def told(*args: Any, **options: Any) -> str:
        return _refusal(DistributedDataParallel(torch.nn.Linear(4, 4)), *args, **options)

    odd = rank == 2
    said = {
        "rates": told([0.0, 1.0, 1.0, 1.0] if odd else RATES),
        "words": told("fast" if odd else RATES),
        "number": told([None] * 4 if odd else RATES),
        "measured": told(None if odd else RATES),
        "policy": told(RATES, policy=Policy(every=7 if odd else 50)),
        "no policy": told(RATES, policy="often" if odd else None),
        "time": told(RATES, timeout_s="60" if odd else 60.0),
    }
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    said["plain"] = _refusal(model.module if odd else model, RATES)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    said["absent"] = "" if odd else _refusal(model, RATES, timeout_s=5.0)
    return said


def lives(rank: int) -> dict[str, bool]:
    """What holds over a state's life: which of these is so on this rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
    from torch.nn.parallel import DistributedDataParallel

    from optcc.pytorch import all_reduce_state, allreduce_hook, register
    from tests.torch_ranks import hooked

    def gradient(model: Any, inner: Any) -> float:
        inner.zero_grad()
        model(torch.full((1, 1), float(rank))).sum().backward()
        return float(inner.weight.grad)

    def one() -> Any:
        return torch.nn.Linear(1, 1, bias=False)

    so: dict[str, bool] = {}
    lone = [dist.new_group([member]) for member in range(4)][rank]  # and ranks 0 and 1 are in one more
    two = dist.new_group([0, 1])
    if rank < 2:
        pair = DistributedDataParallel(one(), process_group=two)
        with hooked(pair, rates=RATES[:2]) as state:
            so["the model's group"] = gradient(pair, pair.module) == 0.5 and state.native is two
    first, second = DistributedDataParallel(one()), DistributedDataParallel(one())
    states = [hooked(model, rates=RATES) for model in (first, second)]
    (first(torch.full((1, 1), float(rank))) + second(torch.full((1, 1), 2.0 * rank))).sum().backward()
    so["two models"] = (float(first.module.weight.grad), float(second.module.weight.grad)) == (1.5, 3.0)
    so["both by plan"] = [state.by_plan for state in states] == [1, 1]
    so["a copy"] = gradient(other := copy.deepcopy(first), other.module) == 1.5 and states[0].by_plan == 1
    states[0].close()
    states[0].close()
    so["natively once closed"] = gradient(first, first.module) == 1.5 and states[0].by_plan == 1
    so["not twice"] = "has a communication hook already" in _refusal(first, RATES)
    third = DistributedDataParallel(one())
    third.register_comm_hook(states[1], allreduce_hook)
    try:
        gradient(third, third.module)
    except Exception as error:
        so["not another's state"] = "not the model" in str(error)
    states[1].close()
    halved = DistributedDataParallel(one())
    with all_reduce_state(halved, RATES) as state:
        halved.register_comm_hook(state, fp16_compress_wrapper(allreduce_hook))
        so["halves around it"] = gradient(halved, halved.module) == 1.5
    single = DistributedDataParallel(one(), process_group=lone)
    with register(single, [1e6]) as state:
        so["one rank"] = gradient(single, single.module) == float(rank) and state.describe() == "native"
    return so
