"""The checker of the examples, which checks a bound's file without optcc."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


@cache
def stranger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_bound_example", ROOT / "examples" / "check_bound.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_stranger(text: str) -> str | None:
    """What examples/check_bound.py has against the file; None where it is right."""
    try:
        stranger().check(json.loads(text))
    except SystemExit as complaint:
        return str(complaint.code)
    return None
