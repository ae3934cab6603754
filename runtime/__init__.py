"""Making it happen: schedules executed on real buffers."""

if __name__ != "optcc.runtime":
    raise ImportError(f"import optcc.runtime, not {__name__}: a second copy of every class would follow")

from optcc.runtime.errors import RankFailedError
from optcc.runtime.launch import Collective, RunResult, Session, run_schedules

__all__ = ["Collective", "RankFailedError", "RunResult", "Session", "run_schedules"]
