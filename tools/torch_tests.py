"""torch's own tests of collectives and DDP against the backend "optcc", beside Gloo: writes docs/torch-tests.md.

    python -m tools.torch_tests [-o PAGE] [--only WORDS]        --only: tests with one of these words in their names

They come with torch (`torch.testing._internal.distributed.distributed_test`) and need its small package `expecttest`
(pip install expecttest). Exit status 1 when a test that passes over Gloo does not over optcc, and WHY says nothing of
it; 2 when something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import unittest
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.pages import table, write

RANKS = 3
"""torch's tests of groups want ranks 1 and 2."""

LIMIT_S = 120
"""For one test; torch's own is 300."""

WHY = {
    "test_get_backend": "It asks for the name of the backend, and wants `gloo`",
    "test_barrier_timeout_group": "The first call of a group connects the ranks, and waits for them for 60 s whatever"
    " the group's timeout; the test waits for 10 s",
    **dict.fromkeys(
        (
            "test_monitored_barrier_failure_order",
            "test_monitored_barrier_gloo",
            "test_monitored_barrier_gloo_rank_0_timeout",
            "test_monitored_barrier_gloo_subgroup",
            "test_monitored_barrier_wait_all_ranks",
        ),
        "`monitored_barrier` is refused, by torch itself: it is Gloo's own",
    ),
}
"""Tests that pass over Gloo and not over optcc: why."""

UNKNOWN = "**not explained**"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/torch-tests.md"))
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--tests", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend:
        print(json.dumps(tests(options.backend, options.tests, options.only)))
        return 0
    for module, way in (("torch", "make torch"), ("expecttest", "pip install expecttest")):
        if importlib.util.find_spec(module) is None:
            print(f"{module} is missing: {way}", file=sys.stderr)
            return 2
    gloo = in_process("gloo", "--only", *options.only)
    ours = in_process("optcc", "--tests", *(name for name, (state, _) in gloo.items() if state != "skipped"))
    text, good = page(gloo, ours)
    write(options.output, text, lambda row: "MPI" in row["reason"])  # what Gloo lacks; most of the others ask for GPUs
    return 0 if good else 1


def in_process(backend: str, *which: str) -> dict[str, tuple[str, str]]:
    """Of each test, what came of it (passed, failed, skipped) and why; in a process, since torch reads its settings as
    it is imported."""
    environment = os.environ | {"BACKEND": "gloo", "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"OMP_NUM_THREADS": "1", "TEMP_DIR": "/tmp"}
    command = [sys.executable, "-m", "tools.torch_tests", "--backend", backend, *which]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    said: dict[str, tuple[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return said


def tests(backend: str, names: list[str] | None, only: list[str]) -> dict[str, tuple[str, str]]:
    """The same, here. names : of tests; None: those with a word of `only`."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed as common

    import optcc.pytorch  # noqa: F401 - registers the backend

    common.TIMEOUT_DEFAULT = LIMIT_S
    common.TIMEOUT_OVERRIDE.clear()
    common.skip_if_small_worldsize = lambda test: test  # tests of groups ask for 8 ranks, and use ranks 1 and 2
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    class Ours(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
        """Ranks are forked from this process, which has imported torch."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *args: Any, **named: Any) -> None:
            with mock.patch.object(dist, "init_process_group", partial(of_backend, dist.init_process_group, backend)):
                super()._run(*args, **named)

    chosen = names or [n for n in unittest.TestLoader().getTestCaseNames(Ours) if any(word in n for word in only)]
    outcome: dict[str, tuple[str, str]] = {}
    for number, name in enumerate(chosen):
        result = unittest.TestResult()
        Ours(name).run(result)
        if result.skipped:
            outcome[name] = "skipped", result.skipped[0][1]
        elif result.wasSuccessful():
            outcome[name] = "passed", ""
        else:
            outcome[name] = "failed", (result.errors + result.failures)[0][1]
        print(f"{backend} {number + 1}/{len(chosen)} {name} {': '.join(outcome[name])}", file=sys.stderr, flush=True)
    return outcome


def of_backend(init: Callable[..., Any], name: str, *args: Any, **named: Any) -> Any:
    """The default group, of another backend than the tests say: what they ask of Gloo is asked of this one."""
    return init(**{**named, "backend": name})


def page(gloo: dict[str, tuple[str, str]], ours: dict[str, tuple[str, str]]) -> tuple[str, bool]:
    """docs/torch-tests.md; and whether all is as WHY says."""
    import torch

    failed: dict[str, list[str]] = defaultdict(list)
    skipped: dict[str, list[str]] = defaultdict(list)
    for name, (state, why) in gloo.items():
        if state == "skipped":
            skipped[" ".join(why.split()).replace("|", "/")].append(name)
    for name, (state, _) in ours.items():
        if state != "passed":
            both = gloo[name][0] != "passed"
            failed["Fails over Gloo here, too" if both else WHY.get(name, UNKNOWN)].append(name)
    passed = [name for name, (state, _) in ours.items() if state == "passed"]
    lines = [
        "# torch's own tests against the backend",
        "",
        f"Made by `python -m tools.torch_tests`: all {len(gloo)} of torch's `distributed_test` are run over Gloo,",
        f"{RANKS} ranks on the CPU; those that do not skip themselves then apply, and are run again with the backend",
        "optcc. Tests of groups, which torch runs with 8 ranks or not at all, are run with these, too.",
        "",
        f"torch {torch.__version__}: {len(ours)} apply, {len(passed)} of them pass over optcc, and",
        f"{sum(state == 'passed' for state, _ in gloo.values())} over Gloo.",
        "",
        "## What does not pass",
        "",
        *rows("why", failed),
        "",
        "## What passes",
        "",
        *table(["test"], [[short(name)] for name in passed]),
        "",
        "## What does not apply",
        "",
        "The reasons are torch's.",
        "",
        *rows("reason", skipped),
        "",
    ]
    return "\n".join(lines), UNKNOWN not in failed


def rows(head: str, found: dict[str, list[str]]) -> list[str]:
    """A table of reasons, most tests first."""
    if not found:
        return ["None."]
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return table([head, "tests"], [[why, ", ".join(map(short, names))] for why, names in ordered])


def short(name: str) -> str:
    """A test's name without what all have."""
    return f"`{name.removeprefix('test_')}`"


if __name__ == "__main__":
    sys.exit(main())
