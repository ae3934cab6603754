"""Modules under the names that they had before there were rooms: imported from where they are now, with a warning."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "optcc.bound": "optcc.values.bound",
    "optcc.bound_with_costs": "optcc.values.bound_with_costs",
    "optcc.calibration": "optcc.discover.calibration",
    "optcc.cluster": "optcc.values.cluster",
    "optcc.faults": "optcc.simulation.faults",
    "optcc.plan_files": "optcc.plans.files",
    "optcc.rdma": "optcc.machine.rdma",
    "optcc.simulator": "optcc.simulation.simulator",
    "optcc.standby": "optcc.planner.standby",
    "optcc.timeline": "optcc.simulation.timeline",
    "optcc.units": "optcc.values.units",
    "optcc.usage": "optcc.simulation.usage",
    "optcc.verifier": "optcc.simulation.verifier",
}
"""Old name -> new one, of the modules that the documentation named."""


class _Alias(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        warnings.warn(f"{old} is {MOVED[old]} now", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(MOVED[old])  # the same module: no class is there twice


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias()) if fullname in MOVED else None


def install() -> None:
    """Make the old names importable. First in line: an old folder may still lie there, with nothing but bytecode."""
    sys.meta_path.insert(0, _Finder())
