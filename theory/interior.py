"""Packing programs by an interior-point method: the most weight on columns that shared rows can take.

max sum x, A x <= 1, x >= 0, A >= 0 dense with few rows. Mehrotra's predictor-corrector ("On the implementation of a
primal-dual interior point method", SIAM J. Optimization 2, 1992), which stops where it is told to. This is the purpose:
prices from the middle of the optimal face, not from a corner, make column generation take few rounds. See Gondzio,
Gonzalez-Brevis, Munari, "New developments in the primal-dual column generation technique", EJOR 224, 2013.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Vector = NDArray[np.float64]

MAX_STEPS = 80
"""Several times the 10 to 40 that interior-point methods take for linear programs of any size."""
_TO_THE_EDGE = 0.99  # of the way to the nearest limit: short of it, as x and prices must stay positive
_LEAST_CENTRING = 1e-3  # keeps products of x and prices alike where Mehrotra's rule would ask for none
_STUCK = 1e-3  # a step so short that rounding has taken over


def most_weight(columns: NDArray[np.float64], gap: float) -> tuple[Vector, Vector]:
    """(weights of the columns, prices of the rows) with sum prices <= (1 + `gap`) sum weights, as far as that goes.

    columns : (rows, columns) >= 0, every row and every column with an entry above 0

    Weights may load a row beyond 1, and a column may cost less than 1, by rounding. Callers check what they need.
    """
    rows, count = columns.shape
    x = np.full(count, 0.5 / columns.sum(axis=1).max())
    prices = np.full(rows, 2 / columns.sum(axis=0).min())
    room, dear = 1 - columns @ x, columns.T @ prices - 1
    for _ in range(MAX_STEPS):
        if prices.sum() - x.sum() <= gap * x.sum():
            break
        direction = _newton(columns, x, room, prices, dear)
        mean = (x @ dear + room @ prices) / (rows + count)
        dx, dr, dp, dd = direction(-x * dear, -room * prices)
        primal, dual = min(_reach(x, dx), _reach(room, dr)), min(_reach(prices, dp), _reach(dear, dd))
        after = (x + primal * dx) @ (dear + dual * dd) + (room + primal * dr) @ (prices + dual * dp)
        centre = max((after / (rows + count) / mean) ** 3, _LEAST_CENTRING) * mean
        dx, dr, dp, dd = direction(centre - x * dear - dx * dd, centre - room * prices - dr * dp)
        primal = _TO_THE_EDGE * min(_reach(x, dx), _reach(room, dr))
        dual = _TO_THE_EDGE * min(_reach(prices, dp), _reach(dear, dd))
        if max(primal, dual) < _STUCK:
            break
        x, room = x + primal * dx, room + primal * dr
        prices, dear = prices + dual * dp, dear + dual * dd
    return x, prices


def _newton(
    columns: NDArray[np.float64], x: Vector, room: Vector, prices: Vector, dear: Vector
) -> Callable[[Vector, Vector], tuple[Vector, Vector, Vector, Vector]]:
    """Changes of (x, room, prices, dear) that meet all equations and change x dear and room prices as demanded."""
    normal = (columns * (x / dear)) @ columns.T
    normal[np.diag_indices(len(normal))] += room / prices
    scale = 1 / np.sqrt(normal.diagonal())
    scaled = normal * scale * scale[:, None]
    scaled[np.diag_indices(len(normal))] += 1e-14
    factor = cho_factor(scaled, lower=True, check_finite=False)
    short, paid = 1 - columns @ x - room, 1 - columns.T @ prices + dear

    def direction(xs: Vector, rs: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        right = columns @ ((xs + x * paid) / dear) + rs / prices - short
        change = scale * cho_solve(factor, scale * right)
        change += scale * cho_solve(factor, scale * (right - normal @ change))
        dearer = columns.T @ change - paid
        return (xs - x * dearer) / dear, (rs - room * change) / prices, change, dearer

    return direction


def _reach(value: Vector, change: Vector) -> float:
    """How far, at most 1, `value` can go along `change` and stay >= 0."""
    falling = change < 0
    return float(min(1.0, (value[falling] / -change[falling]).min(initial=np.inf)))
