"""What is achievable: bounds, shares, and the convex programs behind them."""

if __name__ != "optcc.theory":
    raise ImportError(f"import optcc.theory, not {__name__}: a second copy of every class would follow")

from optcc.theory.bounds import check_bound, lower_bound, program_bound
from optcc.theory.shares import check_loads, nested_shares

__all__ = ["check_bound", "check_loads", "lower_bound", "nested_shares", "program_bound"]
