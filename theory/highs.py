"""A linear program given to HiGHS as it is: cvxpy takes a second or two to load, longer than most of these to solve.

HiGHS: Huangfu and Hall, "Parallelizing the dual revised simplex method", Math. Prog. Computation 10, 2018; its
interior-point method is by Schork and Gondzio (IPX, 2020).
"""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from optcc.errors import OptccError

Floats = NDArray[np.float64]
LIMIT_S = 60.0
"""Of one attempt; the largest of docs/bench-program.md takes two seconds."""


def maximised(
    gain: Floats, rows: csr_array, low: Floats, high: Floats, *, vertex: bool
) -> tuple[Floats, Floats] | None:
    """(x, the rows' prices) at the most of gain @ x with low <= rows @ x <= high and x >= 0; None if none was found.

    gain : (columns,); rows : (rows, columns); low, high : (rows,), may be infinite; prices : (rows,), of any sign
    vertex : a vertex of the optimal face, with sparse prices; else the middle of it, by the interior-point method
    without crossover. Simplex where that ends undecided, as it may with tiny degenerate programs.

    Raises OptccError where HiGHS no longer knows an option.
    """
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = rows.shape
    # As a minimum: told to maximise, the interior-point method ends at vertices, up to a tolerance outside (1.15).
    program.col_cost_ = -gain
    program.col_lower_, program.col_upper_ = np.zeros(len(gain)), np.full(len(gain), highspy.kHighsInf)
    program.row_lower_, program.row_upper_ = low, high
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.num_row_, program.a_matrix_.num_col_ = rows.shape
    program.a_matrix_.start_, program.a_matrix_.index_, program.a_matrix_.value_ = rows.indptr, rows.indices, rows.data
    for options in ({"solver": "ipm", "run_crossover": "on" if vertex else "off"}, {"solver": "simplex"}):
        highs = highspy.Highs()
        for option, value in {"output_flag": False, "time_limit": LIMIT_S, **options}.items():
            if highs.setOptionValue(option, value) != highspy.HighsStatus.kOk:
                raise OptccError(f"HiGHS {highs.version()} does not take {option}={value}")
        highs.passModel(program)
        highs.run()
        if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            found = highs.getSolution()
            return np.array(found.col_value), np.array(found.row_dual)
    return None
