"""What ranks run is compiled before anybody waits for them, all of it, and the doctor says whether it has been."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.machine import kernels
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
    monkeypatch.setattr(compiling, "is_compiled", lambda: False)
    assert examine_path({}).seen == "to be compiled at the first use, 15 to 30 s"
    monkeypatch.setattr(compiling, "is_compiled", lambda: True)
    assert (examine_path({}).present, examine_path({}).seen) == (True, "compiled")
    monkeypatch.setattr(kernels, "cache_places", lambda: ())
    assert (examine_path({}).seen, examine_path({}).get) == (
        "to be compiled by each process: no folder keeps it",
        "NUMBA_CACHE_DIR",
    )
    python = examine_path({"OPTCC_PATH": "python"})
    assert (python.present, python.seen) == (False, "OPTCC_PATH=python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for asked in ("auto", "compiled"):
        found = examine_path({"OPTCC_PATH": asked})
        assert (found.present, found.seen, found.get) == (False, "numba is not installed", "pip install numba")
    monkeypatch.setattr("sys.platform", "darwin")
    assert (examine_path({}).present, examine_path({}).get) == (False, "")


@pytest.mark.parametrize("command", ["run", "calibrate"])
@pytest.mark.parametrize("transport", ["local", "verbs"])
def test_a_rank_that_others_start_compiles_before_it_joins_and_only_what_its_transport_takes(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, command: str, transport: str
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
    assert (result.exit_code, done_by_then) == (1, [[transport]])
