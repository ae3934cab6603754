"""Processes in a torch.distributed job over Gloo, which call functions when told; and what the tests have them do."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

ANSWER_S = 120
"""Bounds every wait of the parent; torch takes seconds to import on a loaded machine."""


class Raised(NamedTuple):
    """What a rank raised."""

    kind: str
    text: str
    trace: str


class Ranks:
    """`world` processes. A context manager; kills what is left."""

    def __init__(self, world: int) -> None:
        # Processes fork from one that has imported torch, which takes longer than all that they do.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", "optcc.pytorch", "tests.torch_ranks"])
        self._stack = ExitStack()
        meeting = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "ranks"
        self._ranks: list[tuple[Any, Any]] = []
        for rank in range(world):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, str(meeting), theirs), daemon=True)
            process.start()
            self._stack.callback(process.join, 10)
            self._stack.callback(process.kill)
            self._ranks.append((process, mine))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def each(self, call: Callable[..., Any], *args: Any) -> list[Any]:
        """``call(rank, *args)`` on all ranks; their results, Raised where there was an exception, None of the dead."""
        for _, pipe in self._ranks:
            pipe.send((call, args))
        return [self._answer(rank) for rank in range(len(self._ranks))]

    def _answer(self, rank: int) -> Any:
        _, pipe = self._ranks[rank]
        if not pipe.poll(ANSWER_S):
            raise TimeoutError(f"rank {rank} does not answer")
        try:
            return pipe.recv()
        except EOFError:
            return None


def good(answers: Sequence[Any]) -> Sequence[Any]:
    """The answers of ranks none of which raised."""
    for answer in answers:
        assert not isinstance(answer, Raised), answer.trace
    return answers


def _serve(rank: int, world: int, meeting: str, pipe: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    while True:
        try:
            call, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(call(rank, *args))
        except Exception as error:
            pipe.send(Raised(type(error).__name__, str(error), traceback.format_exc()))


def sum_by(rank: int, schedule: Any, turns: Any, dtype: str) -> tuple[bool, float, bytes]:
    """Run a schedule: (whether it equals the native AllReduce, largest difference, the result's bytes)."""
    import torch
    import torch.distributed as dist

    from optcc.runtime.torch.book import walk_of

    kind = getattr(torch, dtype)
    count = schedule.nbytes // kind.itemsize
    seed = torch.Generator().manual_seed(rank)
    mine = (
        torch.randn(count, generator=seed, dtype=torch.float64).to(kind)
        if kind.is_floating_point
        else torch.randint(-(2**20), 2**20, (count,), generator=seed).to(kind)  # wraps around where it must
    )
    native = mine.to(torch.float64) if kind.is_floating_point else mine.clone()
    dist.all_reduce(native)
    walk = walk_of(schedule, turns, dist.group.WORLD, kind.itemsize, mine.device)
    walk.run(mine)
    apart = float((mine.to(torch.float64) - native).abs().max()) if count else 0.0
    return torch.equal(mine, native.to(kind)), apart, bytes(mine.view(torch.uint8).numpy())


def sum_on_gpus(rank: int, schedule: Any, turns: Any, dtype: str) -> list[bool]:
    """Run a schedule on GPU `rank` over NCCL, five times: whether each result, the replayed ones too, is the native."""
    import torch
    import torch.distributed as dist

    from optcc.runtime.torch.book import walk_of

    kind, device = getattr(torch, dtype), torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl")
    count = schedule.nbytes // kind.itemsize
    mine = torch.randint(-30, 30, (count,), generator=torch.Generator().manual_seed(rank)).to(device, kind)
    native, buffer = mine.clone(), mine.clone()
    dist.all_reduce(native, group=group)
    walk = walk_of(schedule, turns, group, kind.itemsize, device, round_s=1e-6)
    same = []
    with torch.cuda.stream(torch.cuda.Stream(device)):
        for _ in range(5):
            # On one rank memory moves, as it may when DDP makes its buckets anew.
            buffer = mine.clone() if rank == 1 else buffer.copy_(mine)
            walk.run(buffer)
            torch.cuda.synchronize()
            same.append(torch.equal(buffer, native))
    return same


def train(rank: int, dtype: str, rates: list[float] | None, local: bool = False) -> tuple[list[bytes], int, list[int]]:
    """Six steps of a small model: (its weights as float64 bytes, buckets by plan, bytes of planned buckets).

    rates : of the hook, None: plain DDP; local : without any communication, which must show
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    kind = getattr(torch, dtype)
    torch.manual_seed(7)

    class Net(torch.nn.Module):
        """Its second branch is used in every other step only: `find_unused_parameters` is for that."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 48))
            self.head, self.other = torch.nn.Linear(48, 3), torch.nn.Linear(48, 3)

        def forward(self, batch: torch.Tensor, other: bool) -> torch.Tensor:
            inner = self.stem(batch)
            return self.head(inner) + (self.other(inner) if other else 0)

    net = Net().to(kind)
    model: Any = net if local else DistributedDataParallel(net, bucket_cap_mb=0.004, find_unused_parameters=True)
    state = None
    if rates is not None:
        state = hooked(model, rates=rates, timeout_s=60)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    for step in range(6):
        optimizer.zero_grad()
        for last in (False, True):  # two halves of a batch, summed before they travel
            batch = torch.randn(8, 16, generator=data, dtype=torch.float64).to(kind)
            loss = model(batch, step % 2 == 0).square().mean()
            if last or local:
                loss.backward()
            else:
                with model.no_sync():
                    loss.backward()
        optimizer.step()
    dist.barrier()
    weights = [bytes(p.detach().to(torch.float64).numpy()) for p in net.parameters()]
    if state is None:
        return weights, 0, []
    planned = [n for n, plan in state.book.plans.items() if plan] if state.book else []
    state.close()
    return weights, state.by_plan, planned


def deep(cluster: Any, nbytes: int, *_: Any) -> Any:
    """A planner for buckets of a few kilobytes, which would otherwise go natively, and rightly."""
    import optcc

    return optcc.plan(cluster, nbytes, segments=8)


def hooked(model: Any, *, rates: list[float] | None = None, **options: Any) -> Any:
    """Give a model the hook; returns its state. Messages cost nothing."""
    from optcc.pytorch import Costs, HookState, Policy, allreduce_hook

    free = Costs(Fraction(0), Fraction(0))
    state = HookState(model, deep, rates=rates, costs=free, **{"policy": Policy(gain=1.0)} | options)
    model.register_comm_hook(state, allreduce_hook)
    return state


def small(rates: list[float] | None, **options: Any) -> tuple[Any, Any]:
    """A model of one bucket in DDP with the hook: its state, and a function that takes a step."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    state = hooked(model, rates=rates, **options)

    def step() -> None:
        model.zero_grad()
        model(torch.ones(2, 64)).sum().backward()

    return state, step


def switching(rank: int, script: list[list[float]]) -> list[tuple[Any, int]]:
    """A step for each vector of rates in `script`; after each (levels in force, buckets by plan so far)."""
    from optcc.pytorch import Policy

    told = iter(script)
    state, step = small(None, policy=Policy(every=1, hold=2, gain=1.0), rate=lambda *_: next(told)[rank])
    seen = []
    for _ in script:
        step()
        seen.append((state.levels, state.by_plan))
    state.close()
    return seen


def told(rank: int) -> tuple[list[str], str]:
    """A step where no plan is faster: what is logged, and what the state says of itself."""
    import logging

    from optcc.pytorch import Policy

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("optcc.pytorch")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    state, step = small([1e6] * 4, policy=Policy())
    step()
    state_says = state.describe()
    state.close()
    log.removeHandler(handler)
    return said, state_says


def given(rank: int, rates: list[list[float]]) -> None:
    """Make a hook for rates that may differ from rank to rank."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from optcc.pytorch import register

    register(DistributedDataParallel(torch.nn.Linear(4, 4)), rates[rank])


def no_plan(rank: int) -> None:
    """A planner that finds none, on rank 0 alone."""
    from optcc.errors import InputError
    from optcc.pytorch import HookState
    from optcc.runtime.torch.book import Book

    def refuse(*_: Any) -> Any:
        raise InputError("no family has a schedule", where="cluster")

    import torch

    state = HookState(_ddp(), refuse, rates=_half())
    Book(state._group, _half(), refuse, None, 1.0).walk(torch.zeros(10))  # type: ignore[arg-type]


def apart(rank: int) -> float:
    """Two groups of two ranks, of which the second comes later: a gradient's sum of this rank's group."""
    import time

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    time.sleep(1.5 * (rank // 2))
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), process_group=pairs[rank // 2])
    state = hooked(model, rates=[1e6, 5e5], timeout_s=60.0)
    model(torch.full((1, 1), float(rank))).sum().backward()
    state.close()
    return float(model.module.weight.grad) * 2


def one_raises(rank: int, culprit: int) -> str:
    """Rank `culprit` cannot tell its rate, by a mistake in a user's function; what this rank's failure says."""

    def rate(*_: Any) -> float:
        if rank == culprit:
            raise ValueError("no such counter")
        return 1e6

    state, step = small(None, rate=rate, timeout_s=20.0)
    failure = _failure_of(step)
    state.close()
    return str(failure)


def made_and_hung_up(rank: int, culprit: int, late: int) -> tuple[float, float]:
    """As above, where rank `late` is long about its connections: when this rank had made them, and closed them."""
    import time

    from optcc.runtime.torch import hook

    make, hang_up, at = hook.group_like, hook.hang_up, dict[str, float]()

    def made(*args: Any, **options: Any) -> Any:
        group = make(*args, **options)
        time.sleep(2.0 if rank == late else 0.0)
        at["made"] = time.monotonic()
        return group

    def hung_up(group: Any) -> None:
        at["hung up"] = time.monotonic()
        hang_up(group)

    hook.group_like, hook.hang_up = made, hung_up
    one_raises(rank, culprit)
    return at["made"], at["hung up"]


def bug_in_planner(rank: int) -> None:
    """A planner that breaks, on rank 0 alone."""
    import torch

    from optcc.pytorch import HookState
    from optcc.runtime.torch.book import Book

    def broken(*_: Any) -> Any:
        raise KeyError("rates")

    state = HookState(_ddp(), broken, rates=_half())
    Book(state._group, _half(), broken, None, 1.0).walk(torch.zeros(10))  # type: ignore[arg-type]


def _ddp() -> Any:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(torch.nn.Linear(4, 4))


def _half() -> Any:
    from optcc.values.cluster import Cluster

    return Cluster.uniform(servers=4, nics=1, rate=10**9).degrade("server1/nic0", Fraction(1, 2))


def measure(rank: int) -> float:
    """This rank's rate, measured."""
    import torch
    import torch.distributed as dist

    from optcc.runtime.torch.probe import probe

    return probe(dist.group.WORLD, torch.device("cpu"), nbytes=2**16)


def fails(rank: int, culprit: int, how: str, planned: bool) -> tuple[int, str, float]:
    """Two good steps, then rank `culprit` is "late" or "dies"; what this rank raises: (rank blamed, text, seconds)."""
    import time

    import torch
    import torch.distributed as dist

    import optcc.pytorch  # noqa: F401

    rates = [1e6, 5e5, 1e6, 1e6] if planned else [1e6] * 4
    if rank == 0:
        from optcc.simulation.simulator import simulate

        simulate(deep(_half(), 4096).schedule())  # imports and compiles, which may take longer than the bound
    dist.barrier()
    state, step = small(rates, timeout_s=4.0)
    step()
    step()
    assert state.by_plan == (2 if planned else 0)
    if rank == culprit:
        if how == "dies":
            os._exit(1)
        time.sleep(9.0)  # beyond the bound of a wait, and the grace after it
    start = time.monotonic()
    first = _failure_of(step) or _failure_of(step)
    took = time.monotonic() - start
    second = _failure_of(lambda: state.reduce(_Bucket(torch.zeros(4))))  # what has failed stays failed
    state.close()
    assert first is not None
    assert second is not None
    assert str(first) == str(second)
    return first.rank, str(first), took


def _failure_of(call: Callable[[], Any]) -> Any:
    from optcc.runtime.errors import RankFailedError

    try:
        call()
    except RankFailedError as error:
        return error
    return None


class _Bucket:
    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def buffer(self) -> Any:
        return self._buffer

    def index(self) -> int:
        return 0
