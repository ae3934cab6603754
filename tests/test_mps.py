"""The service through which ranks share a GPU, with a script in its place: started, used, ended whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optcc.errors import InputError
from optcc.runtime.devices import mps
from tests.test_architecture import ROOT

SERVICE = """#!/bin/sh
# -f: the service, which ends at "quit"; else what tells it
case "$1" in
  -f) echo "$CUDA_VISIBLE_DEVICES" > SEEN
      : > "$CUDA_MPS_PIPE_DIRECTORY/control"
      while [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/quit" ]; do sleep 0.02; done
      echo ended > ENDED ;;
  *) read line; : > "$CUDA_MPS_PIPE_DIRECTORY/$line" ;;
esac
"""
SILENT = """#!/bin/sh
[ "$1" != -f ] || echo "cannot share" > "$CUDA_MPS_LOG_DIRECTORY/control.log"
"""


def environ(folder: Path, script: str) -> dict[str, str]:
    """With the script first in the path."""
    command = folder / mps.COMMAND
    command.write_text(script.replace("ENDED", str(folder / "ended")).replace("SEEN", str(folder / "seen")))
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def await_end(folder: Path) -> None:
    until = time.monotonic() + 60
    while not (folder / "ended").exists():
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.02)


def test_it_serves_in_the_block(tmp_path: Path) -> None:
    with mps.mps_service(environ(tmp_path, SERVICE)) as inside:
        folder = Path(inside[mps.DIRECTORY])
        assert (folder / "control").exists()
        assert inside[mps.LOGS] == str(folder)
        assert not (tmp_path / "ended").exists()
    await_end(tmp_path)
    assert not folder.exists()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = "import os; from optcc.runtime.devices import mps\nwith mps.mps_service(os.environ): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], env=environ(tmp_path, SERVICE), cwd=ROOT, timeout=120, check=False)
    await_end(tmp_path)


def test_it_serves_all_gpus_and_ranks_choose(tmp_path: Path) -> None:
    with mps.mps_service({**environ(tmp_path, SERVICE), "CUDA_VISIBLE_DEVICES": "1"}) as inside:
        assert inside["CUDA_VISIBLE_DEVICES"] == "1"
    assert (tmp_path / "seen").read_text() == "\n"


def test_one_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "START_S", 2.0)
    refused = pytest.raises(
        InputError, match=r"MPS does not start, expected a socket .* within 2 s, got 'cannot share'"
    )
    with refused, mps.mps_service(environ(tmp_path, SILENT)):
        pass


def test_how_ranks_share(tmp_path: Path) -> None:
    there, nowhere = environ(tmp_path, SERVICE), {"PATH": str(tmp_path / "empty")}
    assert mps.sharing_of(4, 2, there) == mps.Sharing(True, "ranks share GPUs by MPS")
    assert mps.sharing_of(2, 2, there) == mps.Sharing(False, "each rank has a GPU of its own")
    assert not mps.sharing_of(4, 2, {**there, mps.DIRECTORY: "/elsewhere"}).mps
    assert mps.sharing_of(4, 2, nowhere).why == f"ranks take turns on a GPU, for there is no {mps.COMMAND} here"
