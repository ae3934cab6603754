"""Making it happen: schedules executed on real buffers.

Names are loaded on first use: the process of a rank needs only one rank's part, and there are many of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "optcc.runtime":
    raise ImportError(f"import optcc.runtime, not {__name__}: a second copy of every class would follow")

if TYPE_CHECKING:
    from optcc.runtime.control.launch import Collective, RunResult, Session, run_schedules
    from optcc.runtime.errors import GrowFailedError, RankFailedError

_HOME = {
    "Collective": "control.launch",
    "GrowFailedError": "errors",
    "RankFailedError": "errors",
    "RunResult": "control.launch",
    "Session": "control.launch",
    "run_schedules": "control.launch",
}

__all__ = ["Collective", "GrowFailedError", "RankFailedError", "RunResult", "Session", "run_schedules"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'optcc.runtime' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"optcc.runtime.{_HOME[name]}"), name)
    return value
