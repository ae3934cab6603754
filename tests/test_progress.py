"""Commands that may take seconds say on a terminal what they do, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.plans.files import save_plan
from optcc.reports import console
from optcc.values.cluster import Cluster

PLAN = "a.plan"
RAILS = "uniform:servers=4,nics=2,rate=400Gb/s,fabric=rails"


@pytest.fixture(autouse=True)
def _where_a_plan_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    save_plan(optcc.plan(Cluster.uniform(servers=4, nics=2, rate="400Gb/s"), "1MiB"), Path(PLAN))


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["bound", RAILS, "--fail", "server1/nic0", "--repair-first"], ["bound"]),
        (["verify", PLAN], ["verifying"]),
        (["simulate", PLAN], ["simulating"]),
        (["export", PLAN, "--format", "perfetto", "-o", "plan.json"], ["exporting"]),
        (["export", PLAN, "--format", "perfetto", "-o", "-"], []),
    ],
)
def test_what_is_being_done(args: list[str], what: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    @contextmanager
    def working(doing: str) -> Iterator[Callable[[str], None]]:
        said.append(doing)
        yield lambda step: None

    monkeypatch.setattr(console, "working", working)
    result = CliRunner().invoke(main, args)
    assert (result.exit_code, said) == (0, what), result.stderr


def test_the_spinner_is_on_the_terminal_and_the_result_alone_on_stdout() -> None:
    terminal, its_end = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-m", "optcc", "verify", PLAN]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=its_end, env=env, timeout=600, check=True)
    finally:
        os.close(its_end)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(terminal)
    assert b"verifying" in shown
    assert done.stdout.startswith(b"correct: ")
    assert [line.split(b":")[0] for line in done.stdout.splitlines()] == [b"correct", b"bound"]

    piped = subprocess.run(command, capture_output=True, env=env, timeout=600, check=True)
    assert (piped.stdout, piped.stderr) == (done.stdout, b"")


def test_where_there_is_no_terminal_what_takes_long_is_told_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "FIRST_LINE_S", 0.01)
    said, end = "", time.monotonic() + 60
    with console.working("planning") as tell:
        tell("its segments")
        while "so far" not in said:
            assert time.monotonic() < end
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert said.startswith("note: planning: its segments, 0 s so far\n")
