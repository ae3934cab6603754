"""What is achievable: bounds, shares, and the convex programs behind them.

Imported by: api, cli, export, planner, reports, schedule, serve.
Imports: machine, schedule, simulation, values.
"""

if __name__ != "optcc.theory":
    raise ImportError(f"import optcc.theory, not {__name__}: a second copy of every class would follow")

from optcc.theory.bound_check import check_bound, check_bound_with_costs
from optcc.theory.bound_costs import bound_with_costs
from optcc.theory.bounds import lower_bound, program_bound
from optcc.theory.ring_shares import check_loads, nested_shares

__all__ = [
    "bound_with_costs",
    "check_bound",
    "check_bound_with_costs",
    "check_loads",
    "lower_bound",
    "nested_shares",
    "program_bound",
]
