"""Ctrl-C: exit status 130 and one line, whatever the command was doing, and nothing half done left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import optcc.api
import optcc.study.page
from optcc.cli import main
from optcc.errors import InputError
from optcc.files.writing import check_place


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.mark.parametrize("error", [KeyboardInterrupt, click.Abort])
def test_an_interrupt_is_not_a_wrong_result(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def lower_bound(*_: object) -> None:
        raise error

    monkeypatch.setattr(optcc.api, "lower_bound", lower_bound)
    stopped = call("bound", "uniform:servers=2,nics=1,rate=1Gb/s")
    assert (stopped.exit_code, stopped.stdout, stopped.stderr) == (130, "", "optcc: interrupted\n")


def test_a_signal_in_the_middle_of_a_calibration() -> None:
    source = "uniform:servers=2,nics=2,rate=1Gb/s"
    command = [sys.executable, "-m", "optcc", "calibrate", source, "--probe", "10s", "--repeat", "100"]  # an hour of it
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while len(_children(process.pid)) < 2:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            ranks = _children(process.pid)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    # A rank that was still joining says that it cannot.
    assert [line for line in errors.splitlines() if not line.startswith("a rank cannot join")] == ["optcc: interrupted"]
    deadline = time.monotonic() + 30
    while left := [rank for rank in ranks if Path(f"/proc/{rank}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.parametrize("before", [None, "a page that was there"])
def test_an_interrupted_evaluation_leaves_the_place_as_it_was(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optcc.study.page, "evaluate", interrupted)
    page = tmp_path / "page.md"
    if before is not None:
        page.write_text(before)
    stopped = call("reproduce", "--quick", "-o", page)
    assert stopped.exit_code == 130
    assert "optcc: interrupted" in stopped.stderr
    assert (page.read_text() if page.exists() else None) == before
    assert len(list(tmp_path.iterdir())) == (before is not None)


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    check_place(tmp_path / "new")
    (tmp_path / "file").touch()
    check_place(tmp_path / "file")
    for place in (tmp_path / "none" / "new", tmp_path / "file" / "new", Path("/proc/new")):
        with pytest.raises(InputError, match="cannot be written, expected a folder that exists, got"):
            check_place(place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anything, hence the question's answer is made up."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="Permission denied"):
        check_place(tmp_path / "file")
