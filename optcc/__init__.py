"""optcc: how fast AllReduce can be on a degraded GPU cluster, which schedule gets there, and whether it does.

>>> import optcc
>>> from fractions import Fraction
>>> cluster = optcc.Cluster.uniform(servers=8, nics=8, rate=Fraction(50_000_000_000))
>>> hurt = cluster.degrade("server1/nic0")
>>> round(float(optcc.lower_bound(hurt, 2**30).overhead), 4)
0.0159
>>> plan = optcc.plan(hurt, 2**30)
>>> optcc.verify(plan.schedule()).transfers
26880

Names are loaded on first use, so that a process that only runs schedules imports numpy and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from optcc.api import lower_bound, lower_bound_with_costs, plan, run
    from optcc.communicator import Communicator
    from optcc.discover import load_topology
    from optcc.errors import (
        CertificateError,
        InfeasibleError,
        InputError,
        OptccError,
        SimulationError,
        VerifyError,
    )
    from optcc.planner.standby.answers import Replanned
    from optcc.planner.standby.planner import Planner
    from optcc.plans.plan import Plan
    from optcc.runtime import GrowFailedError, RankFailedError, RunResult
    from optcc.schedule import Schedule
    from optcc.simulation.simulator import Simulation, simulate
    from optcc.simulation.verifier import Verified, verify
    from optcc.theory import check_bound
    from optcc.values.bound import Bound, Certificate, check_certificate
    from optcc.values.bound_with_costs import BoundWithCosts
    from optcc.values.cluster import Cluster, Fabric, Nic, Rank, Server

_HOME = {
    "RunResult": "runtime",
    "GrowFailedError": "runtime",
    "RankFailedError": "runtime",
    "check_bound": "theory",
    "SimulationError": "errors",
    "Fabric": "values.cluster",
    "CertificateError": "errors",
    "Bound": "values.bound",
    "BoundWithCosts": "values.bound_with_costs",
    "Certificate": "values.bound",
    "Cluster": "values.cluster",
    "Communicator": "communicator",
    "InfeasibleError": "errors",
    "InputError": "errors",
    "Nic": "values.cluster",
    "OptccError": "errors",
    "Plan": "plans.plan",
    "Planner": "planner.standby.planner",
    "Replanned": "planner.standby.answers",
    "Rank": "values.cluster",
    "Schedule": "schedule",
    "Server": "values.cluster",
    "Simulation": "simulation.simulator",
    "Verified": "simulation.verifier",
    "VerifyError": "errors",
    "check_certificate": "values.bound",
    "load_topology": "discover",
    "lower_bound": "api",
    "lower_bound_with_costs": "api",
    "plan": "api",
    "run": "api",
    "simulate": "simulation.simulator",
    "verify": "simulation.verifier",
}

__all__ = [
    "Bound",
    "BoundWithCosts",
    "Certificate",
    "CertificateError",
    "Cluster",
    "Communicator",
    "Fabric",
    "GrowFailedError",
    "InfeasibleError",
    "InputError",
    "Nic",
    "OptccError",
    "Plan",
    "Planner",
    "Rank",
    "RankFailedError",
    "Replanned",
    "RunResult",
    "Schedule",
    "Server",
    "Simulation",
    "SimulationError",
    "Verified",
    "VerifyError",
    "check_bound",
    "check_certificate",
    "load_topology",
    "lower_bound",
    "lower_bound_with_costs",
    "plan",
    "run",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'optcc' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"optcc.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
