"""What the derivations of the optimum and its rivals say for given numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy as sp

from optcc.theory.derivations import K, P, X, exact, rivals


def compare(ranks: int, lost: Fraction) -> dict[str, Any]:
    """T/T0 of every scheme, exact, with `ranks` ranks and the share `lost` of one rank's rate gone; K to infinity.

    Hot repair moves one lost NIC's share to one other NIC, so it is in the table only where X = 1/N, N >= 2 NICs.
    """
    values = {P: sp.Integer(ranks), X: exact(lost)}
    one_nic = lost.numerator == 1 and lost.denominator >= 2
    return {
        r.id: sp.limit(r.expression.subs(values), K, sp.oo) for r in rivals() if one_nic or "hot-repair" not in r.id
    }
