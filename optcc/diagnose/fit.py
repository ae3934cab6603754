"""The least set of degraded NICs that explains the measurements, and their rates.

A port is at least as fast as the fastest measurement through it shows. So a port that explains a slow measurement at
all explains it at one rate: the most that was ever seen of it. What remains is a covering problem, small and exact.
Choose the fewest NICs such that every slow measurement has a chosen port whose rate is its pace. It is an integer
program, which HiGHS solves; a measurement may be left out at the price of `MOST_FOR_A_PATH` NICs, for the path between
two NICs can be slow where both are well. The rates follow by least squares, each way of each NIC for itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from optcc.diagnose.averages import Average
from optcc.errors import InputError

FALSE_ALARM = 0.05
"""The chance that any of the measurements of a healthy cluster counts as slow."""
LEAST_DEVIATIONS = 3.0
"""Standard deviations below the healthy pace from which a measurement is slow, however few there are."""
DEGRADED = 0.05
"""The part of its healthy rate from which a NIC that lacks it is degraded: less is of no consequence, and what differs
between healthy machines is often as much."""
MOST_FOR_A_PATH = 2.5
"""NICs that are blamed before a measurement is left unexplained. Two slow ends are likelier than a slow path between
two healthy ends; three slow NICs are not."""
RARITY = 6.0
"""How rare a degraded NIC is, in units in which a measurement `z` standard deviations low has `z`^2 / 2: one in 400. A
measurement that noise alone explains nearly as well costs less than a NIC."""
MOST_FOR_A_NIC = 5.0
"""Likewise of a measurement of one NIC alone: no path is to blame, so that the measurement would have to be wrong."""
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

    def of_nic(self, nic: int) -> set[int]:
        """What a NIC could explain, either way."""
        return {i for port in (2 * nic, 2 * nic + 1) for i in self.explains.get(port, ())}


def problem(averages: Sequence[Average], degraded: float = DEGRADED) -> Problem:
    """What is slow, and who could be the reason. degraded : the part of its rate that a NIC lacks to be called so."""
    limit = max(LEAST_DEVIATIONS, NormalDist().inv_cdf(1 - FALSE_ALARM / max(1, len(averages))))
    through: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for average in averages:
        for port, log in average.logs.items():
            through[port].append((log, average.spread))
    most = math.log(1 - degraded)
    slow = tuple(
        i
        for i, average in enumerate(averages)
        if not average.least and average.pace < min(most, -limit * average.spread)
    )
    asked = {port for i in slow for port in averages[i].logs}
    levels = {port: _level(through[port], limit) for port in asked}
    suspects = {port: level for port, level in levels.items() if level[0] < min(most, -limit * level[1])}
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
    nics = sorted({port // 2 for port in given.explains} - set(without))
    chosen, paths, price = _cover(given, nics)
    # A way that nothing shows to be well counts as slow where it would explain something, too: faults mostly hit both.
    rates = _rates(given, [port for port in given.explains if port // 2 in chosen])
    return Fit(rates, paths, price, _misfit(given, rates), given.limit)


def _cover(given: Problem, nics: Sequence[int]) -> tuple[set[int], tuple[int, ...], float]:
    """The NICs, the averages left out, and the price."""
    if not given.slow:
        return set(), (), 0.0
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    row = {average: i for i, average in enumerate(given.slow)}
    n, m = len(nics), len(given.slow)
    # Columns: NICs, averages left out. Rows: every slow average has a NIC, or is left out.
    entries = {(row[i], k) for k, nic in enumerate(nics) for i in given.of_nic(nic)}
    entries |= {(i, n + i) for i in range(m)}
    rows, columns = np.array(sorted(entries)).T
    matrix = coo_array((np.ones(len(rows)), (rows, columns)), shape=(m, n + m)).tocsr()
    costs = np.concatenate(
        [[1 + 1e-3 * _strain(given, nic) for nic in nics], [_unexplained(given.averages[i]) for i in given.slow]]
    )
    found = milp(
        costs,
        constraints=LinearConstraint(matrix, 1, np.inf),
        integrality=np.ones(n + m),
        bounds=Bounds(0, 1),
        options={"time_limit": SOLVER_S},
    )
    if found.status != 0:
        raise InputError(
            "the least explanation was not found in time",
            where="diagnose",
            expected=f"one within {SOLVER_S:g} s",
            got=f"{m} slow measurements, {n} NICs",
            hint="Give fewer measurements: those of one part of the cluster.",
        )
    taken = np.round(found.x).astype(bool)
    chosen = {nic for k, nic in enumerate(nics) if taken[k]}
    paths = tuple(given.slow[i] for i in range(m) if taken[n + i])
    return chosen, paths, len(chosen) + sum(_unexplained(given.averages[i]) for i in paths)


def _unexplained(average: Average) -> float:
    """The price of leaving a slow measurement out, in NICs: noise, or the path, or a measurement that is wrong."""
    most = MOST_FOR_A_NIC if len({port // 2 for port in average.logs}) == 1 else MOST_FOR_A_PATH
    return min(most, (average.pace / average.spread) ** 2 / 2 / RARITY) if average.spread else most


def _strain(given: Problem, nic: int) -> float:
    """How badly a NIC explains what it does: the mean square residual, at most 9. It breaks ties and no more: a
    thousandth of it stays below the price of a NIC."""
    squares = [
        ((given.averages[i].logs[port] - given.levels[port][0]) / max(given.averages[i].spread, 1e-3)) ** 2
        for port in (2 * nic, 2 * nic + 1)
        for i in given.explains.get(port, ())
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
