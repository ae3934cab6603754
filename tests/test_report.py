"""A measured run says what it ran on, and not what it might have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from optcc import runtime
from optcc.cli import main
from optcc.runtime.launch import RunResult
from optcc.schedule import Schedule

RUN = ["run", "uniform:servers=2,nics=2,rate=4Gb/s", "--size", "64KiB", "--repeat", "1"]


@pytest.mark.parametrize(
    ("transport", "clock_error_s", "title"),
    [
        ("local", 0.0, "on this machine (emulated NICs over loopback, rates divided by 8)"),
        ("local", 1e-5, "on several machines (emulated NICs over TCP, rates divided by 8)"),
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
