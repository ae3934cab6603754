"""What is compiled is compiled once on a machine, by one process, before anybody waits; and people are told."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.errors import InputError
from optcc.runtime.compiled import compiling
from optcc.runtime.compiled.choice import ChunkPath, warm
from optcc.runtime.compiled.finding import examine_path
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import HubLostError

BOUND_S = 60.0
ONCE = "compiling what handles chunks: 15 to 30 s, once on this machine"
OTHER = "another process compiles what handles chunks: 15 to 30 s, once on this machine"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been compiled, or loaded; nothing really is, and nothing has been before."""
    done: list[str] = []
    monkeypatch.setattr(compiling, "_mark", lambda over: tmp_path / "kept" / "it.compiled")
    monkeypatch.setattr(compiling, "_compile_all", done.append)
    return done


def test_the_first_use_says_that_it_compiles_and_the_second_says_nothing(compiled: list[str]) -> None:
    said: list[str] = []
    assert not compiling.is_compiled()
    compiling.compile_all(said.append)
    assert (said, compiled) == ([ONCE], ["local"])
    assert compiling.is_compiled()
    compiling.compile_all(said.append)
    assert (said, compiled) == ([ONCE], ["local", "local"])  # the second loads what there is


def test_who_comes_meanwhile_waits_and_does_not_compile(compiled: list[str], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    lock = os.open(tmp_path / "kept" / "it.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    said: list[str] = []
    waits = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    late = threading.Thread(target=compiling.compile_all, args=(say,), daemon=True)
    late.start()
    assert waits.wait(BOUND_S)
    assert (said, compiled) == ([OTHER], [])
    (tmp_path / "kept" / "it.compiled").touch()  # the other one is through
    os.close(lock)
    late.join(BOUND_S)
    assert (said, compiled) == ([OTHER], ["local"])


def test_nobody_waits_for_ever(compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "LONGEST_S", 0.0)
    (tmp_path / "kept").mkdir()
    lock = os.open(tmp_path / "kept" / "it.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    said: list[str] = []
    compiling.compile_all(said.append)
    os.close(lock)
    assert (said[-1], compiled) == (ONCE, ["local"])


def test_where_nothing_can_be_kept_it_compiles_each_time(compiled: list[str], tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file where the directory should be")
    said: list[str] = []
    for _ in range(2):
        compiling.compile_all(said.append)
    assert (said, compiled) == ([ONCE, ONCE], ["local", "local"])


def test_a_machine_without_a_place_for_compiled_code_is_told_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    warm(ChunkPath("python"))  # asks for nothing
    monkeypatch.setattr("builtins.__import__", _no_locator)
    with pytest.raises(InputError, match=r"NUMBA_CACHE_DIR: compiled code cannot be kept, .*OPTCC_PATH=python"):
        warm(ChunkPath("compiled"))
    finding = examine_path({})
    assert (finding.present, finding.seen) == (False, "cannot cache function: no locator available")


_import = __import__


def _no_locator(name: str, *rest: object) -> object:
    if name == "optcc.runtime.compiled.compiling":
        raise RuntimeError("cannot cache function: no locator available")
    return _import(name, *rest)  # type: ignore[arg-type]


def test_the_doctor_says_which_path_runs_take(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine_path({}).seen == "to be compiled at the first use, 15 to 30 s"
    compiling.compile_all()
    assert (examine_path({}).present, examine_path({}).seen) == (True, "compiled")
    assert (examine_path({"OPTCC_PATH": "python"}).present, examine_path({"OPTCC_PATH": "python"}).seen) == (
        False,
        "OPTCC_PATH=python",
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for asked in ("auto", "compiled"):
        found = examine_path({"OPTCC_PATH": asked})
        assert (found.present, found.seen, found.get) == (False, "numba is not installed", "pip install numba")
    monkeypatch.setattr("sys.platform", "darwin")
    assert (examine_path({}).present, examine_path({}).get) == (False, "")


@pytest.mark.parametrize("command", ["run", "calibrate"])
@pytest.mark.parametrize(("transport", "expected"), [("local", ["local"]), ("verbs", ["verbs"])])
def test_a_rank_that_others_start_compiles_before_it_joins_and_only_what_its_transport_takes(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, command: str, transport: str, expected: list[str]
) -> None:
    done_by_then: list[list[str]] = []

    def join(*_: object, **__: object) -> None:
        done_by_then.append(list(compiled))
        raise HubLostError("nobody is there")

    monkeypatch.setattr(Control, "join", join)
    monkeypatch.setenv("OPTCC_SECRET", "0123456789abcdef")
    monkeypatch.setenv("OPTCC_PATH", "auto")
    joining = ["--transport", transport, "--rendezvous", "127.0.0.1:9", "--rank", "1", "--world", "2"]
    result = CliRunner().invoke(main, [command, "uniform:servers=2,nics=1", *joining])
    assert (result.exit_code, done_by_then) == (1, [expected])
    assert ("compiling" in result.stderr) == bool(expected)
