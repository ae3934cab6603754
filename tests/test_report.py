"""A measured run says what it ran on, and not what it might have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

import optcc
from optcc import runtime
from optcc.cli import main
from optcc.reports import runs
from optcc.reports.console import percent
from optcc.runtime.control.launch import RunResult
from optcc.schedule import Schedule

RUN = ["run", "uniform:servers=2,nics=2,rate=4Gb/s", "--size", "64KiB", "--repeat", "1"]


@pytest.mark.parametrize(
    ("transport", "clock_error_s", "title"),
    [
        ("local", 0.0, "on this machine (emulated NICs, rates divided by 8)"),
        ("verbs", 0.0, "on this machine (RDMA NICs over verbs)"),
        ("verbs", 1e-5, "on several machines (RDMA NICs over verbs)"),
    ],
)
def test_the_transport_and_the_machines(
    transport: str, clock_error_s: float, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(schedules: Mapping[str, Schedule], **how: Any) -> dict[str, RunResult]:
        assert how["transport"] == transport, "what is said is what ran"
        return {name: RunResult(name, (1.0,), (True, True), {}, (0.1,), clock_error_s) for name in schedules}

    monkeypatch.setattr(runtime, "run_schedules", measured)
    monkeypatch.setenv("COLUMNS", "200")
    told = CliRunner().invoke(main, [*RUN, "--transport", transport, "--json"])
    assert told.exit_code == 0, told.stderr
    value = json.loads(told.stdout)
    assert (value["transport"], value["clock_error_s"]) == (transport, clock_error_s)
    shown = CliRunner().invoke(main, [*RUN, "--transport", transport])
    assert title in " ".join(shown.stdout.split())
    assert ("the clocks of several machines" in shown.stdout) == (clock_error_s > 0)


@pytest.mark.parametrize(
    ("transport", "times", "busy"), [("local", 1.1, False), ("local", 2, True), ("verbs", 2, False)]
)
def test_what_the_processor_was_too_slow_for(
    transport: str, times: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then emulated NICs say nothing of schedules; real ones do."""

    def measured(schedules: Mapping[str, Schedule], **_: Any) -> dict[str, RunResult]:
        return {name: RunResult(name, (times * bound_s,), (True, True), {}, (0.1,), 0.0) for name in schedules}

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(runtime, "run_schedules", measured)
    bound_s = 1.0
    bound_s = json.loads(CliRunner().invoke(main, [*RUN, "--transport", transport, "--json"]).stdout)["bound_s"]
    shown = " ".join(CliRunner().invoke(main, [*RUN, "--transport", transport]).stdout.split())
    assert ("the processor was the limit" in shown) == busy
    assert ("optcc's plan is the ring" in shown or "No difference" in shown) != busy


@pytest.mark.parametrize(
    ("own", "ring", "said"),
    [
        ((1.0, 1.1), (1.5, 1.7), "1.52 times as fast as the ring"),
        ((1.5, 1.7), (1.0, 1.1), "The ring is 1.52 times as fast"),
        ((1.0, 1.2), (1.19, 1.7), "No difference beyond this run's spread"),
        ((1.0,), (2.0,), "No difference beyond this run's spread"),
    ],
)
def test_a_difference_is_claimed_beyond_the_spread_only(
    own: tuple[float, ...], ring: tuple[float, ...], said: str
) -> None:
    cluster = optcc.load_topology("uniform:servers=4,nics=4,rate=400Gb/s").cluster
    hurt = cluster.degrade("server1/nic0").degrade("server1/nic1")
    assert said in runs.compared_with_ring(optcc.plan(hurt, 2**22), own, ring)


def test_where_the_plan_is_the_ring_nothing_is_claimed() -> None:
    cluster = optcc.load_topology("uniform:servers=2,nics=2,rate=400Gb/s").cluster
    plan = optcc.plan(cluster, 2**22)
    assert "is the ring" in runs.compared_with_ring(plan, (1.0, 1.0), (2.0, 2.0))
    uneven = optcc.plan(cluster.degrade("server1/nic0", 0.5), 2**22)
    assert "is the ring" not in runs.compared_with_ring(uneven, (1.0, 1.0), (2.0, 2.0))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 %"),
        (5.54e-15, "0 %"),
        (-2.7e-15, "0 %"),
        (4e-7, "under 0.001 %"),
        (1e-5, "0.001 %"),
        (0.000966, "0.0966 %"),
        (0.0667, "6.67 %"),
        (-0.0667, "-6.67 %"),
        (1, "100 %"),
        (12.345, "1234 %"),
    ],
)
def test_per_cent_without_exponents(value: float, shown: str) -> None:
    assert percent(value) == shown
