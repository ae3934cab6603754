"""Which path chunks take: what is asked for, what there is, and what is said where they differ."""

from __future__ import annotations

import pytest

from optcc.errors import InputError
from optcc.runtime.compiled.choice import ChunkPath, path_asked, path_of
from optcc.runtime.control.job import Job
from tests.compiled_runs import schedule_of


def test_what_is_not_compiled_is_said() -> None:
    assert path_of("compiled", "local", "cpu", "float32") == ChunkPath("compiled")
    assert path_of("compiled", "verbs", "cpu") == ChunkPath("compiled", over="verbs")
    assert path_of("python", "local", "cpu") == ChunkPath("python")
    assert str(path_of("compiled", "verbs", "cpu", "float16")) == "python (float16 is folded by numpy)"
    assert path_of("compiled", "local", "cuda", "bfloat16") == ChunkPath("compiled")


@pytest.mark.parametrize("asked", ["auto", "native"])
@pytest.mark.parametrize("transport", ["local", "tcp", "verbs"])
def test_host_memory_goes_by_the_native_engine(asked: str, transport: str) -> None:
    for dtype in (None, "float32", "bfloat16"):
        assert path_of(asked, transport, "cpu", dtype) == ChunkPath("native")


def test_what_has_no_such_path_is_refused() -> None:
    assert path_of("auto", "local", "cuda") == ChunkPath("native")
    for asked, transport, device in (
        ("native", "verbs", "cuda"), ("auto", "tcp", "cuda"), ("python", "tcp", "cpu"), ("compiled", "tcp", "cpu")
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"expected native, cpu, got '{asked}, {transport}, {device}'"):
            path_of(asked, transport, device)


def test_no_such_path() -> None:
    assert path_asked({}) == "auto"
    assert path_asked({"OPTCC_PATH": "compiled"}) == "compiled"
    with pytest.raises(InputError, match="OPTCC_PATH: no such path, expected auto or native or"):
        path_asked({"OPTCC_PATH": "fast"})
    with pytest.raises(InputError, match="--chunk-path: no such path"):
        Job({"it": schedule_of(weak=0, nics=1, nbytes=24_000)}, "float32", "sum", paced=False, path="fast")


def test_without_numba_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="numba is not installed"):
        path_of("compiled", "local", "cpu", "float32")
    assert path_of("auto", "local", "cuda", "float32") == ChunkPath("native")
