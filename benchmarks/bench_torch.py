"""Steps of DDP training over real TCP links, one of them slow: the native AllReduce against optcc's hook, in turns.

Writes docs/bench-torch.md. Needs torch (make torch), and Linux with unprivileged user namespaces, `ip` and `tc`
(Debian: iproute2). Exit status 1 when a target is missed or weights differ, 2 when something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pages import parser, quartiles, write

ROOT = Path(__file__).resolve().parent.parent
RANKS = 4
SLOW = 1
"""The rank whose link is slowed."""
TARGET = 1.3
EVERY, HOLD = 3, 2
"""Steps between two agreements on rates, and how many must agree: switched after a few steps, within the warm-up."""
WARM_UP = EVERY * (HOLD + 2) + 1
SAME = 1e-5
"""Weights may differ by so much of the largest one: sums in another order round differently."""
WAIT_S = 200


def missing() -> str | None:
    """What this machine lacks, for people."""
    if importlib.util.find_spec("torch") is None:
        return "torch is missing; install it with: make torch"
    for tool in ("unshare", "ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is missing; on Debian it is in {'util-linux' if tool == 'unshare' else 'iproute2'}"
    tried = subprocess.run(
        ["unshare", "-Urnm", "sh", "-c", "mount -t tmpfs tmpfs /run && ip link add v0 type veth peer name v1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if tried.returncode:
        return f"no network namespaces here ({tried.stderr.strip()}); they need unprivileged user namespaces and veth"
    return None


def bench(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All scenarios; runs inside namespaces of its own."""
    rate = f"{options.rate}mbit"
    _links("up", str(RANKS), rate)
    environment = os.environ | {
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    found = []
    with ExitStack() as stack:
        ranks = []
        for rank in range(RANKS):
            command = ["ip", "netns", "exec", f"rank{rank}", sys.executable, "-m", "benchmarks.bench_torch", "--rank"]
            command += ["--repeat", str(options.repeat), "--layers", str(options.layers)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment | {"RANK": str(rank)},
                cwd=ROOT,
            )
            stack.callback(process.kill)
            ranks.append(process)
        for name, slowed in (
            ("all links equal", rate),
            (f"rank {SLOW}'s link at half rate", f"{options.rate // 2}mbit"),
        ):
            _links("rate", str(SLOW), slowed)
            for process in ranks:
                assert process.stdin
                process.stdin.write(name + "\n")
                process.stdin.flush()
            lines = [process.stdout.readline() if process.stdout else "" for process in ranks]
            if not all(lines):
                raise SystemExit("a rank has ended early")
            found.append(json.loads(lines[0]))
        for process in ranks:
            assert process.stdin
            process.stdin.close()
            process.wait(WAIT_S)
    return found


def _links(*arguments: str) -> None:
    subprocess.run([ROOT / "tools" / "slow_link.sh", *arguments], check=True, timeout=60)


def one_rank(options: argparse.Namespace) -> None:
    """Train two equal models in turns, one natively and one by the hook; a scenario per line of stdin."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from optcc.pytorch import Policy, register

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def model() -> Any:
        torch.manual_seed(0)
        width = 1024
        return DistributedDataParallel(
            torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(options.layers)))
        )

    models = {"native": model(), "optcc": model()}
    state = register(models["optcc"], policy=Policy(every=EVERY, hold=HOLD))
    optimizers = {name: torch.optim.SGD(m.parameters(), 1e-3) for name, m in models.items()}
    data = torch.Generator().manual_seed(rank)

    def step(name: str, batch: Any) -> float:
        dist.barrier()
        start = time.perf_counter()
        optimizers[name].zero_grad()
        models[name](batch).square().mean().backward()
        optimizers[name].step()
        took = torch.tensor([time.perf_counter() - start])
        dist.all_reduce(took, dist.ReduceOp.MAX)  # the slowest rank's
        return float(took)

    for line in sys.stdin:
        times: dict[str, list[float]] = {"native": [], "optcc": []}
        probes: list[float] = []
        for i in range(WARM_UP + options.repeat):
            batch = torch.randn(4, 1024, generator=data)
            agreed = state.steps % EVERY == 0
            for name in ("native", "optcc") if i % 2 else ("optcc", "native"):
                took = step(name, batch)
                if i >= WARM_UP and not (name == "optcc" and agreed):
                    times[name].append(took)
                elif i >= WARM_UP:
                    probes.append(took)
        pairs = zip(models["native"].parameters(), models["optcc"].parameters(), strict=True)
        apart = max(float((a - b).detach().abs().max() / a.detach().abs().max()) for a, b in pairs)
        plans = state.book.plans if state.book else {}
        result = {
            "name": line.strip(),
            **times,
            "probes": probes,
            "apart": apart,
            "rates": state.rates,
            "levels": state.levels,
            "plans": {n: plan and f"{plan.family}, {plan.segments} segments" for n, plan in plans.items()},
            "bytes": 4 * sum(p.numel() for p in models["native"].parameters()),
        }
        print(json.dumps(result), flush=True)
    state.close()
    dist.destroy_process_group()


def page(found: list[dict[str, Any]], options: argparse.Namespace) -> tuple[str, bool]:
    """docs/bench-torch.md, and whether all is as it should be."""
    import torch

    size = found[0]["bytes"] / 2**20
    lines = [
        "# DDP steps with a slow link, against native DDP",
        "",
        f"Made by `make bench-torch`: {RANKS} Gloo processes on one machine, each in a network namespace behind a",
        f"link of {options.rate} Mb/s (veth, tbf both ways, real TCP). A model with {size:.0f} MiB of float32",
        "gradients, little to compute. Two equal models train in turns on the same batches, one in plain DDP, one",
        "with optcc's hook, which measures the links itself. Time of the slowest rank, medians; the ratio is of",
        "neighbouring steps: median (quartiles), above 1 optcc is faster. Steps in which links are measured are",
        "apart, in the last column.",
        "",
        "| links | native DDP | optcc | ratio | optcc uses | largest difference of weights | step with a measurement |",
        "|---|---|---|---|---|---|---|",
    ]
    good = True
    for scenario in found:
        native, ours = scenario["native"], scenario["optcc"]
        ratio, shown = quartiles(a / b for a, b in zip(native, ours, strict=False))
        degraded = scenario is found[-1]
        uses = "native AllReduce" if scenario["levels"] is None else "; ".join(map(str, scenario["plans"].values()))
        good &= scenario["apart"] <= SAME and (ratio >= TARGET if degraded else scenario["levels"] is None)
        cells = [
            scenario["name"],
            f"{median(native):.2f} s",
            f"{median(ours):.2f} s",
            shown,
            uses,
            f"{scenario['apart']:.1e}",
            f"{median(scenario['probes']):.2f} s" if scenario["probes"] else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    measured = ", ".join(f"{8 * rate / 1e6:.0f}" for rate in found[-1]["rates"])
    sent = found[0]["bytes"] / (options.rate * 125_000)
    lines += [
        "",
        f"Target: {TARGET} times as fast at half rate. With links alone to wait for it would be 1.5: a ring needs 3.0",
        f"times the {sent:.2f} s in which a full link carries the gradients once, the plan 2.0 times. Headers of TCP",
        f"and IP cost 5 %. Rates as the hook measured them last, by rank, in Mb/s: {measured}.",
        "",
        f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs.",
        "",
    ]
    return "\n".join(lines), good


def main() -> int:
    asked = parser(__doc__, "bench-torch")
    asked.add_argument("--repeat", type=int, default=12)
    asked.add_argument("--rate", type=int, default=200, help="Mb/s of a healthy link")
    asked.add_argument("--layers", type=int, default=4, help="of 4 MiB each")
    asked.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.rank:
        one_rank(options)
        return 0
    if options.inside:
        print(json.dumps(bench(options)))
        return 0
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 2
    command = ["unshare", "-Urnm", "--kill-child", sys.executable, "-m", "benchmarks.bench_torch", "--inside"]
    command += ["--repeat", str(options.repeat), "--rate", str(options.rate), "--layers", str(options.layers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode:
        return 1
    text, good = page(json.loads(done.stdout), options)
    write(options.output, text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
