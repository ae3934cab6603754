"""How many files of the product a value passes on its way: a budget for each walk, counted by running it.

A walk is traced in a warm process: it ran before with other values, so that nothing is imported any more. One file is
counted once, however often the walk comes back to it. Bytes in host memory go by the native engine, whose files in C
are not counted.

    python -m tests.test_walks      prints every walk
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import optcc
from tests.communicators import WAIT_S
from tests.free_port import free_port
from tests.test_architecture import ROOT
from tests.torch_ranks import Ranks as TorchRanks
from tests.torch_ranks import good


class Walk(NamedTuple):
    """A budget, in files. most : what the walk takes today, which may only become less; aim : what it should take."""

    most: int
    aim: int


BUDGETS = {
    "bound of a preset": Walk(14, 10),
    "bound of an XML": Walk(18, 16),
    "bound in Python": Walk(5, 5),
    "plan": Walk(27, 15),
    "XML to cluster": Walk(11, 11),
    "all_reduce, first": Walk(34, 30),
    "all_reduce, steady": Walk(16, 12),
    "torch backend, steady": Walk(17, 14),
    "DDP hook, first step": Walk(28, 20),
}
"""Of walks with several ranks three more than they take, since waiting for each other takes some."""

XML = str(ROOT / "examples" / "h100-8x400g.nccl-topo.xml")
PRESET = "uniform:servers=8,nics=8,rate=400Gb/s"
FOLDERS = tuple(f"{os.path.realpath(ROOT / folder)}{os.sep}" for folder in ("optcc", "theory", "runtime"))


def files_of(call: Callable[[], object]) -> list[str]:
    """The product's files in which functions ran in this thread while `call()` did, in the order of first calls."""
    passed: dict[str, None] = {}
    known: dict[str, bool] = {}

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if name not in known:
                known[name] = os.path.realpath(name).startswith(FOLDERS)
            if known[name] and frame.f_code.co_name != "<module>":
                passed[name] = None

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return [str(Path(os.path.realpath(name)).relative_to(os.path.realpath(ROOT))) for name in passed]


def warm(walk: Callable[[str], object]) -> list[str]:
    """The files of ``walk("server1/nic0")``, or of another NIC, once it has gone there before."""
    walk("server0")
    return files_of(lambda: walk("server1"))


def steady(call: Callable[[], object]) -> list[str]:
    """The files of every one of several calls."""
    call()
    return of_all([files_of(call) for _ in range(5)])


def of_all(calls: Sequence[list[str]]) -> list[str]:
    """The files that all of `calls` passed: one that has to wait for another rank passes some more."""
    return [file for file in calls[0] if all(file in files for files in calls)]


def command(*words: str) -> None:
    """A command of optcc in this process, its output thrown away."""
    from optcc.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(list(words), standalone_mode=False)


def bound(topology: str, nic: str, *more: str) -> Callable[[str], object]:
    return lambda server: command("bound", topology, *more, "--fail", f"{server}/{nic}")


def in_python(server: str) -> object:
    return optcc.lower_bound(CLUSTER.degrade(f"{server}/nic0"), "1GiB").seconds


CLUSTER = optcc.Cluster.uniform(servers=8, nics=8, rate="400Gb/s")
PAIR = optcc.Cluster.uniform(servers=2, nics=2, rate="1Gb/s").degrade("server1/nic0")
HERE: dict[str, Callable[[str], object]] = {
    "bound of a preset": bound(PRESET, "nic0"),
    "bound of an XML": bound(XML, "mlx5_0", "--servers", "8"),
    "bound in Python": in_python,
    "plan": lambda server: command("plan", PRESET, "--fail", f"{server}/nic0"),
    "XML to cluster": lambda server: optcc.load_topology(XML, servers=8 if server == "server0" else 7),
}
"""Walks of one thread."""


def all_reduce() -> dict[str, list[str]]:
    """Rank 0's way from a new communicator to the end of its first call, and through a later one."""

    def rank(where: str, number: int) -> list[list[str]]:
        made: list[optcc.Communicator] = []
        x = np.ones(1000, np.float32)

        def first() -> None:
            made.append(optcc.Communicator(PAIR, rendezvous=where, rank=number, world=2))
            made[0].all_reduce(x)

        with contextlib.ExitStack() as stack:
            found = [files_of(first)]
            stack.callback(made[0].close)
            found.append(steady(lambda: made[0].all_reduce(x)))
            assert (x == 2**7).all()
        return found

    rounds: list[list[list[str]]] = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            both = [pool.submit(rank, f"127.0.0.1:{port}", number) for port in [free_port()] for number in (0, 1)]
            mine, _ = (each.result(WAIT_S) for each in both)
            rounds.append(mine)
    first, later = map(of_all, zip(*rounds[1:], strict=True))
    return {"all_reduce, first": first, "all_reduce, steady": later}


def through_torch(_: int) -> dict[str, list[str]]:
    """On a rank of torch.distributed: a call of the backend, and a DDP hook's first step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import optcc.pytorch

    group = dist.new_group(backend="optcc")
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    later = steady(lambda: dist.all_reduce(x, group=group))
    assert bool((x == 2**7).all())

    def step() -> list[str]:
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        state = optcc.pytorch.register(model, [1e9, 5e8])
        loss = model(torch.ones(2, 64)).sum()
        with torch.autograd.set_multithreading_enabled(False):  # the hook is called in this thread
            found = files_of(loss.backward)
        state.close()
        return found

    step()
    return {"torch backend, steady": later, "DDP hook, first step": step()}


def too_long(walks: dict[str, list[str]]) -> dict[str, list[str]]:
    """The walks that pass more files than they may."""
    return {name: files for name, files in walks.items() if len(files) > BUDGETS[name].most}


@pytest.mark.parametrize("name", HERE)
def test_a_walk_keeps_to_its_budget(name: str) -> None:
    assert too_long({name: warm(HERE[name])}) == {}


def test_an_all_reduce_keeps_to_its_budget() -> None:
    walks = all_reduce()
    assert too_long(walks) == {}
    assert 3 < len(walks["all_reduce, steady"]) < len(walks["all_reduce, first"])


@pytest.fixture
def two() -> Iterator[TorchRanks]:
    with TorchRanks(2) as ranks:
        yield ranks


@pytest.mark.torch
def test_torch_keeps_to_its_budgets(two: TorchRanks) -> None:
    walks = good(two.each(through_torch))[0]
    assert too_long(walks) == {}
    assert all(len(files) > 3 for files in walks.values())


def test_a_walk_through_one_file_more_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from optcc.files import reading  # of a room that no bound passes

    files = warm(in_python)
    monkeypatch.setitem(BUDGETS, "bound in Python", Walk(len(files), 1))
    assert too_long({"bound in Python": files}) == {}

    def longer(server: str) -> object:
        reading.text_of(b"")
        return in_python(server)

    more = warm(longer)
    assert set(more) - set(files) == {"optcc/files/reading.py"}
    assert too_long({"bound in Python": more}) == {"bound in Python": more}


def main() -> None:
    walks: dict[str, Any] = {name: warm(walk) for name, walk in HERE.items()} | all_reduce()
    with TorchRanks(2) as ranks:
        walks |= good(ranks.each(through_torch))[0]
    for name, files in walks.items():
        print(f"{name}: {len(files)} files, at most {BUDGETS[name].most}, aim {BUDGETS[name].aim}")
        print("".join(f"  {file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
