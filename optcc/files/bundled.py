"""The examples that come with optcc, whether installed or in a checkout: topologies, programs.

``optcc/examples`` is a relative link to ``examples/`` in a checkout, and a folder of the package once installed.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from optcc.errors import InputError

PREFIX = "example:"
"""Before the name of an example, where a topology is asked for."""
EXAMPLES = {
    "h100-8x400g.nccl-topo.xml": "a server in NCCL's topology XML: 8 GPUs, 8 NICs of 400 Gb/s",
    "two-degraded.yaml": "eight servers in optcc's YAML, two of them degraded; its comments explain every field",
    "walk_plan.c": "prints a plan by the reader in C",
    "replan.c": "a client of `optcc serve` in C",
    "check_bound.py": "checks a file of `optcc bound --json` without optcc",
    "survive.py": "sums that survive a NIC, with optcc.Communicator",
    "survive_rank.py": "training that loses rank 0 and takes a new rank in, and ends with the right weights",
    "survive_ddp.py": "DDP that loses a NIC and a rank, and ends with the right weights",
    "train_ddp.py": "DDP with optcc's hook",
    "slow-job/job.txt": "nccl-tests of a job that got slow: all GPUs",
    "slow-job/rails.txt": "the same over one NIC of each server at a time",
    "slow-job/pairs.txt": "pairs of servers over the NICs in question",
    "monitoring/optcc.rules.yml": "alert rules for Prometheus",
    "monitoring/optcc.dashboard.json": "a dashboard for Grafana",
    "monitoring/healthy.prom": "recorded metrics: nothing is degraded",
    "monitoring/degraded.prom": "recorded metrics: two slow NICs",
    "monitoring/drain.prom": "recorded metrics: a server that is to be drained",
    "monitoring/dead.prom": "recorded metrics: a dead NIC",
    "monitoring/lost.prom": "recorded metrics: a rank that a job has lost",
    "monitoring/path.prom": "recorded metrics: a slow path",
    "monitoring/thin.prom": "recorded metrics: evidence that does not tell",
    "slurm/optcc-health-check": "a prolog or health check for Slurm",
    "kubernetes/optcc-nic-health.yaml": "a DaemonSet that sets node conditions",
    "kubernetes/nvsentinel-values.yaml": "NVSentinel's policies for these conditions",
}
"""File -> what it is."""


def example_name(name: str, where: str) -> str:
    """The file's name for `name`, which may be what is before its first dot. Raises InputError for any other."""
    for file in EXAMPLES:
        if name in (file, file.partition(".")[0]):
            return file
    raise InputError("no such example", where=where, expected=f"one of {', '.join(EXAMPLES)}", got=name)


def example_path(name: str, where: str) -> Path:
    """Where the example lies; `name` as for `example_name`."""
    return Path(str(files("optcc") / "examples" / example_name(name, where)))


def located(source: str) -> str:
    """`source`, or the path of the example that ``example:NAME`` stands for."""
    if not source.startswith(PREFIX):
        return source
    return str(example_path(source.removeprefix(PREFIX), source))
