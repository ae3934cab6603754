"""The doctor on torch and the serve extra: there, missing, or broken, and then what to install."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.machine.finding import PartFinding
from optcc.reports import doctor
from optcc.reports.doctor import examine_torch


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    find = importlib.util.find_spec

    def find_but(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_but)


def pretend_torch(monkeypatch: pytest.MonkeyPatch, gloo: bool, nccl: bool) -> None:
    """A torch of another build; the real one takes seconds to load and has one answer."""
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.__dict__.update(__version__="9.9+test", distributed=distributed, __spec__=ModuleSpec("torch", None))
    answers = {"is_available": True, "is_gloo_available": gloo, "is_nccl_available": nccl}
    distributed.__dict__.update({name: (lambda here=here: here) for name, here in answers.items()})
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)


@pytest.mark.parametrize(("gloo", "nccl"), [(True, False), (True, True), (False, False)])
def test_a_torch_tells_its_version_and_backends(gloo: bool, nccl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_torch(monkeypatch, gloo, nccl)
    result = CliRunner().invoke(main, ["doctor", "--json"])
    assert result.exit_code == 0, result.stderr
    parts = {part["part"]: part for part in json.loads(result.stdout)["parts"]}
    assert (parts["torch"]["present"], parts["torch"]["seen"]) == (True, "9.9+test")
    assert (parts["torch Gloo"]["present"], parts["torch NCCL"]["present"]) == (gloo, nccl)
    shown = CliRunner().invoke(main, ["doctor"]).stdout
    assert ("for torch NCCL: a build of torch with CUDA" in shown) == (not nccl)


def test_no_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch")
    (found,) = examine_torch()
    assert (found.part, found.present, found.seen) == ("torch", False, "not installed")
    assert found.get == "make torch (for processors), or the extra `torch` (with CUDA, 6 GB)"


def test_a_torch_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_torch(monkeypatch, True, True)

    def fails(name: str) -> ModuleType:
        raise OSError("libcudart.so.13: cannot open shared object file\nmore")

    monkeypatch.setattr("optcc.reports.doctor.importlib.import_module", fails)
    (found,) = examine_torch()
    assert not found.present
    assert found.seen == "cannot be loaded: OSError: libcudart.so.13: cannot open shared object file"


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_the_serve_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> PartFinding:
        return {finding.part: finding for finding in doctor.examine()}[library]

    assert found().present
    assert found().seen[0].isdigit()
    without(monkeypatch, library)
    assert not found().present
    assert "extra `serve`" in found().get
