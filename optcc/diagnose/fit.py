"""The least set of degraded NICs that explains the measurements, and their rates.

A port is at least as fast as the fastest measurement through it shows. So a port that explains a slow measurement at
all explains it at one rate: the most that was ever seen of it. That leaves a covering problem, small and exact: choose
NICs, as few as can be, so that every slow measurement has a port of the chosen ones whose rate is its pace. It is an
integer program, which HiGHS solves; a measurement may be left out at the price of `MOST_FOR_A_PATH` NICs, for the path
between two NICs can be slow where both are well. The rates follow by least squares, each way of each NIC for itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from optcc.diagnose.averages import Average

FALSE_ALARM = 0.05
"""The chance that any of the measurements of a healthy cluster counts as slow."""
LEAST_DEVIATIONS = 3.0
"""Standard deviations below the healthy pace from which a measurement is slow, however few there are."""
MOST_FOR_A_PATH = 2.5
"""NICs that are blamed before a measurement is left unexplained: two ends that are both slow are likelier than a path
that is slow while both its ends are not, three are not."""
WAY = 0.1
"""The price of the second way of a NIC beside the NIC's 1: a fault mostly hits both, and fewer ways are simpler."""
SOLVER_S = 20.0
"""Seconds for the integer program. On 128 servers of 8 NICs it takes less than one."""


@dataclass(frozen=True)
class Rate:
    """What is left of one way of a NIC, as a fraction of its healthy rate, and one standard deviation of its
    logarithm.

    explains : indices of the averages that it sets the pace of
    """

    left: float
    spread: float
    explains: tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """The chosen ports and their rates.

    paths : indices of slow averages that no NIC explains
    price : of the choice, in NICs; misfit : root mean square of residuals over their expected spread, 1 where noise
    is all that is left
    limit : deviations from which a measurement counts as slow
    """

    rates: Mapping[int, Rate]
    paths: tuple[int, ...]
    price: float
    misfit: float
    limit: float

    @property
    def nics(self) -> tuple[int, ...]:
        """The degraded NICs, by number."""
        return tuple(sorted({port // 2 for port in self.rates}))


@dataclass(frozen=True)
class Problem:
    """Slow averages, and for each port that could explain any of them, which.

    levels : port -> (logarithm of the most that was seen of it, its spread)
    """

    averages: Sequence[Average]
    slow: tuple[int, ...]
    levels: Mapping[int, tuple[float, float]]
    explains: Mapping[int, tuple[int, ...]]
    limit: float


def problem(averages: Sequence[Average]) -> Problem:
    """What is slow, and who could be the reason."""
    limit = max(LEAST_DEVIATIONS, NormalDist().inv_cdf(1 - FALSE_ALARM / max(1, len(averages))))
    through: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for average in averages:
        for port, log in average.logs.items():
            through[port].append((log, average.spread))
    slow = tuple(
        i for i, average in enumerate(averages) if not average.least and average.pace < -limit * average.spread
    )
    asked = {port for i in slow for port in averages[i].logs}
    levels = {port: _level(through[port], limit) for port in asked}
    suspects = {port: level for port, level in levels.items() if level[0] < -limit * level[1] and level[0] < 0}
    explains: dict[int, list[int]] = defaultdict(list)
    for i in slow:
        for port, log in averages[i].logs.items():
            if port in suspects and _agree(log, averages[i].spread, suspects[port], limit):
                explains[port].append(i)
    return Problem(averages, slow, levels, {port: tuple(found) for port, found in explains.items()}, limit)


def _level(seen: Sequence[tuple[float, float]], limit: float) -> tuple[float, float]:
    """The most that was seen of a port: the mean of what agrees with the best, weighted by certainty."""
    best = max(seen)
    alike = [one for one in seen if _agree(*one, best, limit)]
    return _mean(alike)


def _mean(seen: Sequence[tuple[float, float]]) -> tuple[float, float]:
    exact = [log for log, spread in seen if not spread]
    if exact:
        return max(exact), 0.0
    weights = [spread**-2 for _, spread in seen]
    total = sum(weights)
    return sum(w * log for w, (log, _) in zip(weights, seen, strict=True)) / total, total**-0.5


def _agree(log: float, spread: float, level: tuple[float, float], limit: float) -> bool:
    return abs(log - level[0]) <= limit * math.hypot(spread, level[1]) + 1e-9


def fit(given: Problem, without: Collection[int] = ()) -> Fit:
    """The cheapest explanation that blames none of the NICs `without`."""
    ports = [port for port in given.explains if port // 2 not in set(without)]
    chosen, paths, price = _cover(given, ports)
    rates = _rates(given, chosen)
    return Fit(rates, paths, price, _misfit(given, rates), given.limit)


def _cover(given: Problem, ports: Sequence[int]) -> tuple[list[int], tuple[int, ...], float]:
    """The ports, the averages left out, and the price."""
    if not given.slow:
        return [], (), 0.0
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    nics = sorted({port // 2 for port in ports})
    column = {nic: i for i, nic in enumerate(nics)}
    row = {average: i for i, average in enumerate(given.slow)}
    n, p, m = len(nics), len(ports), len(given.slow)
    # Columns: NICs, ports, averages left out. Rows: every slow average has a port or is left out; a port has its NIC.
    entries = [(row[i], n + k, 1.0) for k, port in enumerate(ports) for i in given.explains[port]]
    entries += [(i, n + p + i, 1.0) for i in range(m)]
    entries += [(m + k, column[port // 2], 1.0) for k, port in enumerate(ports)]
    entries += [(m + k, n + k, -1.0) for k in range(p)]
    rows, columns, values = (np.array(each) for each in zip(*entries, strict=True))
    matrix = coo_array((values, (rows, columns)), shape=(m + p, n + p + m)).tocsr()
    # Of equally many ports the ones that agree better: what remains of a tie is broken by the residuals.
    costs = np.concatenate(
        [np.ones(n), [WAY + 1e-3 * _strain(given, port) for port in ports], np.full(m, MOST_FOR_A_PATH)]
    )
    least = np.concatenate([np.ones(m), np.zeros(p)])
    found = milp(
        costs,
        constraints=LinearConstraint(matrix, least, np.inf),
        integrality=np.ones(n + p + m),
        bounds=Bounds(0, 1),
        options={"time_limit": SOLVER_S},
    )
    taken = np.round(found.x).astype(bool)
    chosen = [port for k, port in enumerate(ports) if taken[n + k]]
    paths = tuple(given.slow[i] for i in range(m) if taken[n + p + i])
    price = float(len({port // 2 for port in chosen}) + WAY * len(chosen) + MOST_FOR_A_PATH * len(paths))
    return chosen, paths, price


def _strain(given: Problem, port: int) -> float:
    """The mean square residual of what a port explains, at most 9: a thousandth of it stays below any other price."""
    level, _ = given.levels[port]
    squares = [
        ((given.averages[i].logs[port] - level) / max(given.averages[i].spread, 1e-3)) ** 2
        for i in given.explains[port]
    ]
    return min(9.0, sum(squares) / len(squares))


def _rates(given: Problem, chosen: Sequence[int]) -> dict[int, Rate]:
    """Least squares over what each port explains; both ways of a NIC together where they agree."""
    explains = {port: given.explains[port] for port in chosen}
    means = {}
    for port, which in explains.items():
        seen = [(given.averages[i].logs[port], given.averages[i].spread) for i in which]
        means[port] = _mean(seen)
    rates = {}
    for port, (log, spread) in means.items():
        other = means.get(port ^ 1)
        if other is not None and _agree(log, spread, other, given.limit):
            log, spread = _mean([(log, spread), other])
        rates[port] = Rate(min(1.0, math.exp(log)), spread, explains[port])
    return rates


def predicted(average: Average, rates: Mapping[int, Rate]) -> float:
    """The logarithm of the pace that `rates` give a measurement, over the healthy one."""
    top = average.pace
    return min(math.log(max(rates[p].left, 1e-9)) + top - log if p in rates else top - log for p, log in
               average.logs.items())  # fmt: skip


def _misfit(given: Problem, rates: Mapping[int, Rate]) -> float:
    residuals = []
    for average in given.averages:
        if average.least or average.failed or not average.spread:
            continue
        residuals.append((average.pace - predicted(average, rates)) / average.spread)
    return float(np.sqrt(np.mean(np.square(residuals)))) if residuals else 0.0
