"""What ranks run is compiled before anybody waits for them, all of it, and the doctor says whether it has been."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.machine import kernels, native
from optcc.runtime.compiled import compiling
from optcc.runtime.compiled.choice import ChunkPath, warm
from optcc.runtime.compiled.finding import examine_path
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import HubLostError


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been compiled, or loaded; nothing really is."""
    done: list[str] = []
    monkeypatch.setattr(compiling, "compile_all", done.append)
    return done


def test_chunks_by_python_need_nothing(compiled: list[str]) -> None:
    warm(ChunkPath("python"))
    assert compiled == []


def test_the_doctor_says_which_path_runs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = {"OPTCC_PATH": "compiled"}
    monkeypatch.setattr(compiling, "is_compiled", lambda: False)
    assert examine_path(compiled).seen == "compiled, which takes 15 to 30 s at the first use"
    monkeypatch.setattr(compiling, "is_compiled", lambda: True)
    assert (examine_path(compiled).present, examine_path(compiled).seen) == (True, "compiled")
    monkeypatch.setattr(kernels, "cache_places", lambda: ())
    found = examine_path(compiled)
    assert (found.seen, found.get) == ("compiled, by each process anew: no folder keeps it", "NUMBA_CACHE_DIR")
    python = examine_path({"OPTCC_PATH": "python"})
    assert (python.present, python.seen) == (True, "python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = examine_path(compiled)
    assert (found.present, found.get) == (False, "pip install numba")
    for environ in ({}, {"OPTCC_PATH": "auto"}, {"OPTCC_PATH": "native"}):  # needs no numba
        assert (examine_path(environ).present, examine_path(environ).seen) == (True, "native")


def test_the_doctor_says_that_the_library_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    native.library.cache_clear()
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "liboptcc.so")
    found = examine_path({})
    assert (found.present, found.seen, found.get) == (False, "auto: no compiled code", native.WAY_OUT)


@pytest.mark.parametrize("command", ["run", "calibrate"])
@pytest.mark.parametrize("transport", ["local", "verbs"])
@pytest.mark.parametrize("path", ["auto", "compiled"])
def test_a_rank_that_others_start_compiles_before_it_joins_and_only_what_its_transport_takes(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, command: str, transport: str, path: str
) -> None:
    done_by_then: list[list[str]] = []

    def join(*_: object, **__: object) -> None:
        done_by_then.append(list(compiled))
        raise HubLostError("nobody is there")

    monkeypatch.setattr(Control, "join", join)
    monkeypatch.setenv("OPTCC_SECRET", "0123456789abcdef")
    monkeypatch.setenv("OPTCC_PATH", path)
    joining = ["--transport", transport, "--rendezvous", "127.0.0.1:9", "--rank", "1", "--world", "2"]
    result = CliRunner().invoke(main, [command, "uniform:servers=2,nics=1", *joining])
    assert (result.exit_code, done_by_then) == (1, [[transport] if path == "compiled" else []])
