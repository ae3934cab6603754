"""Steps of unmodified DDP over the backend "optcc" against Gloo, both in the same four processes, in turns.

Writes docs/bench-torch-backend.md. Needs torch (make torch). Exit status 1 when weights differ by more than rounding or
optcc takes fewer steps per second than Gloo, 2 without torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
from statistics import median
from typing import Any

from benchmarks.pages import parser, quartiles, write
from tests.torch_world import ranks

RANKS = 4
MODELS = {"small: 1 MiB": (512, 1), "medium: 16 MiB": (1024, 4), "large: 64 MiB": (2048, 4)}
"""Name, with the bytes of float32 gradients -> width and number of square layers."""
WARM_UP = 3
SAME = 1e-5
"""Weights may differ by so much of the largest one: sums in another order round differently."""
WAIT_S = 900


def main() -> int:
    asked = parser(__doc__, "bench-torch-backend")
    asked.add_argument("--repeat", type=int, default=30, help="steps of each")
    asked.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.rank:
        print(json.dumps(one_rank(options.repeat)))
        return 0
    if importlib.util.find_spec("torch") is None:
        print("torch is missing; install it with: make torch", file=sys.stderr)
        return 2
    text, good = page(measured(options.repeat))
    write(options.output, text)
    return 0 if good else 1


def measured(repeat: int) -> dict[str, dict[str, Any]]:
    """What rank 0 says, by model."""
    said = ranks(RANKS, "-m", "benchmarks.bench_torch_backend", "--rank", "--repeat", str(repeat), wait_s=WAIT_S)
    found: dict[str, dict[str, Any]] = json.loads(said[0][1])
    return found


def one_rank(repeat: int) -> dict[str, dict[str, Any]]:
    """By model: seconds of each step of the slowest rank, by backend, and how far weights are apart."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import optcc.pytorch  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "optcc": dist.new_group(backend="optcc")}
    found = {}
    for name, (width, layers) in MODELS.items():
        models, descents = {}, {}
        for backend, group in groups.items():
            torch.manual_seed(0)
            net = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
            models[backend] = DistributedDataParallel(net, process_group=group)
            descents[backend] = torch.optim.SGD(net.parameters(), 1e-3)
        draw = torch.Generator().manual_seed(dist.get_rank())
        times: dict[str, list[float]] = {backend: [] for backend in groups}
        for step in range(WARM_UP + repeat):
            batch = torch.randn(4, width, generator=draw)
            for backend in ("gloo", "optcc") if step % 2 else ("optcc", "gloo"):
                dist.barrier()
                start = time.perf_counter()
                descents[backend].zero_grad()
                models[backend](batch).square().mean().backward()
                descents[backend].step()
                took = torch.tensor([time.perf_counter() - start])
                dist.all_reduce(took, dist.ReduceOp.MAX)  # the slowest rank's
                if step >= WARM_UP:
                    times[backend].append(float(took))
        pairs = zip(models["gloo"].parameters(), models["optcc"].parameters(), strict=True)
        apart = max(float((a - b).detach().abs().max() / a.detach().abs().max()) for a, b in pairs)
        found[name] = {**times, "apart": apart}
    dist.destroy_process_group()
    return found


def page(found: dict[str, dict[str, Any]]) -> tuple[str, bool]:
    """docs/bench-torch-backend.md, and whether all is as it should be."""
    import torch

    lines = [
        "# Steps of DDP over the backend, against Gloo",
        "",
        f"Made by `python -m benchmarks.bench_torch_backend`: {RANKS} processes of a machine train two equal models in",
        "unmodified DDP, on the same batches, in turns.",
        "One goes over the backend [optcc](pytorch.md#the-backend), local transport, able to fail over as always.",
        "The other goes over Gloo on the loopback interface.",
        "There is little to compute.",
        "Steps per second of the slowest rank, medians; the ratio is of neighbouring steps: median (quartiles).",
        "Above 1 optcc is faster.",
        "",
        "| gradients | optcc | Gloo | ratio | largest difference of weights |",
        "|---|---|---|---|---|",
    ]
    good = True
    for name, of in found.items():
        ratio, shown = quartiles(theirs / ours for ours, theirs in zip(of["optcc"], of["gloo"], strict=True))
        good &= ratio >= 1 and of["apart"] <= SAME
        rates = [f"{1 / median(of[backend]):.3g}/s" for backend in ("optcc", "gloo")]
        lines.append(f"| {name} | {' | '.join(rates)} | {shown} | {of['apart']:.0e} |")
    lines += ["", f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs.", ""]
    return "\n".join(lines), good


if __name__ == "__main__":
    sys.exit(main())
