"""Scripts of proofs/, which is no package, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

PROOFS = Path(__file__).resolve().parent.parent / "proofs"


def script(name: str) -> ModuleType:
    """A script of proofs/ as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, PROOFS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
