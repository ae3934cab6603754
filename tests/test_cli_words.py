"""What people type on the command line, and what they read there."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import EXAMPLE, PRESET, call, value


def test_a_plan_says_what_it_takes() -> None:
    found = value("plan", PRESET, "--fail", "server1/nic0", "--size", "16M", "--alpha", "5us", "--per-chunk", "1us")
    assert found["simulated_ratio"] == pytest.approx(found["simulated_s"] / found["bound_s"])
    assert found["simulated_ratio"] > 1
    assert (found["alpha_s"], found["per_chunk_s"]) == (5e-6, 1e-6)
    told = call(
        "plan", PRESET, "--fail", "server1/nic0", "--size", "16M", "--alpha", "5us", "--per-chunk", "1us"
    ).stdout
    assert "% over the bound" in told
    assert "latency 5 us, 1 us for each chunk" in told


def test_a_plan_takes_what_simulate_says_of_its_file(tmp_path: Path) -> None:
    costs = ("--alpha", "5us", "--per-chunk", "1us")
    path = tmp_path / "p.json"
    made = value("plan", PRESET, "--fail", "server1/nic0", "--size", "16M", *costs, "-o", path)
    assert value("simulate", path, *costs)["time_s"] == made["simulated_s"]
    ready = value("simulate", path, *costs, "--service", "ready")
    assert (ready["time_s"], ready["in_order_s"]) == (made["simulated_ready_s"], made["simulated_s"])
    assert ready["time_s"] >= ready["in_order_s"]
    longer = f"{ready['time_s'] / ready['in_order_s']:.2f} times that where NICs serve what is ready first"
    assert longer in call("simulate", path, *costs, "--service", "ready").stdout


def test_a_plan_of_too_many_transfers_is_not_simulated_for_the_report() -> None:
    preset = "uniform:servers=300,nics=1,rate=400Gb/s"
    found = value("plan", preset, "--family", "nested-rings", "--segments", "64")
    assert found["simulated_s"] is found["simulated_ratio"] is found["simulated_ready_s"] is None
    assert "optcc simulate PLAN does" in call("plan", preset, "--family", "nested-rings", "--segments", "64").stdout


def test_no_latency_may_be_written_as_0() -> None:
    asked = ("plan", PRESET, "--fail", "server1/nic0", "--size", "1M")
    assert value(*asked, "--alpha", "0", "--per-chunk", "0")["plan_id"] == value(*asked)["plan_id"]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["server3/nic[0-3]"], ["server3/nic0", "server3/nic1", "server3/nic2", "server3/nic3"]),
        (["server3/nic[0,2,5-6]"], ["server3/nic0", "server3/nic2", "server3/nic5", "server3/nic6"]),
        (["server[0-2]/nic7"], ["server0/nic7", "server1/nic7", "server2/nic7"]),
        (["server*/nic0"], ["server0/nic0", "server1/nic0", "server2/nic0", "server3/nic0"]),
        (["server1/nic?=50%"], [f"server1/nic{i}=0.5" for i in range(8)]),
        (["server1=50 %"], [f"server1/nic{i}=1/2" for i in range(8)]),
        (["server1=150Gb/s"], [f"server1/nic{i}=150G" for i in range(8)]),
        (["server1/nic0=150Gb/s"], ["server1/nic0=3/8"]),
    ],
)
def test_failures_by_pattern(patterns: list[str], names: list[str]) -> None:
    def bound(failures: list[str]) -> dict[str, Any]:
        return value("bound", PRESET, *(arg for name in failures for arg in ("--fail", name)))

    assert bound(patterns) == bound(names)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        ("server3", "takes no part in an AllReduce"),
        ("server3", "such as server1=37%"),
        ("server3=0%", "Leave the server out"),
        ("server[2-5]/nic0", "got 'server4'"),
        ("server1/nic[6-9]", "got 'nic8'"),
        ("server1/nic[3-1]", "the lower one first"),
        ("server1/nic0=500Gb/s", "at most 400Gb/s"),
        ("server1/nic0=many", "or a rate such as 150Gb/s"),
    ],
)
def test_failures_that_cannot_be(failure: str, says: str) -> None:
    result = call("bound", PRESET, "--fail", failure)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_run_that_cannot_be_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache that is empty that takes half a minute."""
    warmed: list[object] = []
    monkeypatch.setattr("optcc.runtime.compiled.choice.warm", warmed.append)
    for options in (["--fail", "server3"], ["--size", "many"], ["--cut", "server1/nic0@no"]):
        assert call("run", PRESET, *options).exit_code == 2
    assert not warmed


def test_what_is_fault_free_is_said_only_where_failures_are_told() -> None:
    assert "no failure was given" in call("bound", EXAMPLE.parent / "two-degraded.yaml").stdout
    assert "unavoidable overhead" in call("bound", PRESET, "--fail", "server1/nic0").stdout


def test_rails_that_limit_are_told_by_nics_and_servers() -> None:
    told = call("bound", "uniform:servers=4,nics=4,rate=400G,fabric=rails", "--fail", "server1/nic0").stdout
    assert (
        "nic1, nic2, nic3 of each of server0, server2 and server3 (rails 1, 2, 3), receiving: 30 % of the limit" in told
    )


def test_a_gap_of_rounding_is_none() -> None:
    asked = ("plan", "uniform:servers=4,nics=4,rate=400G,fabric=rails", "--fail", "server[0-1]/nic0", "--size", "1G")
    assert "this family stays" not in call(*asked).stdout
    above = ("plan", PRESET, "--fail", "server1/nic0", "--size", "1G", "--family", "trees")
    assert "this family stays" in call(*above).stdout


def test_piped_output_has_no_trailing_blanks_and_wraps_only_where_columns_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = call("bound", EXAMPLE.parent / "two-degraded.yaml").stdout.splitlines()
    assert [line for line in wide if line != line.rstrip()] == []
    assert max(map(len, wide)) > 80
    monkeypatch.setenv("COLUMNS", "60")
    narrow = call("bound", EXAMPLE.parent / "two-degraded.yaml").stdout.splitlines()
    assert max(map(len, narrow)) <= 60


def on_a_terminal(*args: object) -> tuple[str, str]:
    """What a command prints on stdout, a pipe, and on stderr, a terminal."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "optcc", *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, env=environment) as running:
        os.close(its)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # the terminal's other end is closed
            pass
        os.close(ours)
        assert running.stdout is not None
        printed = running.stdout.read().decode()
        assert running.wait(60) == 0, said
    return printed, said.decode()


def test_a_terminal_sees_what_is_tried() -> None:
    args = ("plan", "uniform:servers=4,nics=2,rate=400Gb/s", "--size", "16M", "--alpha", "5us", "--json")
    printed, said = on_a_terminal(*args)
    assert json.loads(printed)["family"]
    assert "planning: simulated once more" in said  # the last step is always shown, those before where there is time
    assert call(*args).stderr == ""


def test_planning_tells_what_it_tries() -> None:
    from optcc import api, load_topology

    cluster = load_topology("uniform:servers=4,nics=2,rate=400Gb/s").cluster.degrade("server1/nic0")
    told: list[str] = []
    made = api.plan(cluster, "16MiB", alpha="5us", progress=told.append)
    assert f"{made.recipe.family}, {made.recipe.segments} segment{'s' * (made.recipe.segments != 1)}" in told
    assert len({step.partition(",")[0] for step in told}) > 1  # families: one that cannot be faster is not tried
    assert made == api.plan(cluster, "16MiB", alpha="5us")
