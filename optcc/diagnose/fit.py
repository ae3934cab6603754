"""From measurements to the least set of degraded NICs that explains them, their rates, and how sure that is.

Noise: rows of one run share what differs between runs: routes, clocks, the neighbours on the fabric. However alike they
are, they are one measurement. So the spread that counts is between runs. It shows where the same ports were measured
twice, and where measurements of healthy ports differ, for most are healthy. Slow ones must not widen it. So only what
lies within `WINDOW` standard deviations counts, and the variance is put right for what a normal law has outside.

Fit: a port is at least as fast as the fastest measurement through it shows. So a port that explains a slow measurement
at all explains it at one rate: the most that was ever seen of it. What remains is a covering problem, small and exact.
Choose the fewest NICs such that every slow measurement has a chosen port whose rate is its pace. It is an integer
program, which HiGHS solves; a measurement may be left out at the price of `MOST_FOR_A_PATH` NICs, for the path between
two NICs can be slow where both are well. The rates follow by least squares, each way of each NIC for itself.

Doubt: what else would explain the measurements, and at which price in faults more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist, fmean, median

import numpy as np

from optcc.diagnose.evidence import NOTHING, Observation
from optcc.errors import InputError

NOISE = 0.03
"""The spread where nothing was measured twice: from run to run large sizes of nccl-tests differ by 1 to 3 %."""
LEAST_NOISE = 0.015
"""No spread is taken to be less: that runs of one hour repeat better does not say that those of a week do."""
WORTH = 4.0
"""Deviations from which `NOISE` counts as known before any is seen, and likewise what other kinds show for a kind."""
WINDOW = 3.0
ROUNDS = 12
_INSIDE = NormalDist().cdf(WINDOW) - NormalDist().cdf(-WINDOW)
WITHIN = 1 - 2 * WINDOW * NormalDist().pdf(WINDOW) / _INSIDE
"""The variance of what a normal law of variance 1 has within `WINDOW`."""


@dataclass(frozen=True)
class Repeated:
    """What was measured of the same ports in the same proportion: the logarithm of the pace of each run."""

    kind: str
    paces: tuple[float, ...]

    @property
    def pace(self) -> float:
        return median(self.paces)


def upper_middle(paces: Sequence[float], spread: float, alike: float) -> float:
    """The median of those within `alike` standard deviations of the upper quartile: up to three of four may be slow."""
    reached = sorted(paces, reverse=True)[len(paces) // 4]
    return median(pace for pace in paces if abs(pace - reached) <= alike * spread)


def spreads(found: Sequence[Repeated], alike: float) -> tuple[dict[str, float], float]:
    """The standard deviation of one run's logarithm for each kind, and over all kinds.

    alike : standard deviations within which measurements tell the healthy pace of their kind
    """
    kinds: dict[str, list[Repeated]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    each: dict[str, float] = {}
    over_all, seen = NOISE, dict[str, tuple[float, float]]()
    for _ in range(ROUNDS):
        seen = {kind: _deviations(of, each.get(kind, over_all), alike) for kind, of in kinds.items()}
        over_all = _pooled(NOISE, list(seen.values()))
        each = {kind: _pooled(over_all, [one]) for kind, one in seen.items()}
    counts = {kind: count for kind, (_, count) in seen.items()}
    sure = {kind: _at_most(spread, counts[kind]) for kind, spread in each.items()}
    return sure, max(LEAST_NOISE, over_all)


def _pooled(before: float, seen: Sequence[tuple[float, float]]) -> float:
    """From sums of squares and how many deviations they are of, with what was believed before."""
    squares, count = sum(one[0] for one in seen), sum(one[1] for one in seen)
    return math.sqrt((WORTH * before**2 + squares) / (WORTH + count))


def _at_most(spread: float, count: float) -> float:
    """One standard error more than what `count` deviations show: of few, chance may have made a small one."""
    return max(LEAST_NOISE, spread * (1 + 1 / math.sqrt(2 * (WORTH + count))))


def _deviations(of: Sequence[Repeated], spread: float, alike: float) -> tuple[float, float]:
    """The sum of squared deviations of single runs, and of how many independent ones."""
    squares = count = 0.0
    for one in of:
        if len(one.paces) > 1:
            inside = [pace - one.pace for pace in one.paces if abs(pace - one.pace) <= WINDOW * spread]
            squares += sum(off * off for off in inside) / WITHIN
            count += max(0, len(inside) - 1)
    if len(of) > 1:
        middle = upper_middle([one.pace for one in of], max(spread, LEAST_NOISE), alike)
        off = [(one.pace - middle) * math.sqrt(len(one.paces)) for one in of]
        inside = [value for value in off if abs(value) <= WINDOW * spread]
        squares += sum(value * value for value in inside) / WITHIN
        count += max(0, len(inside) - 1)
    return squares, count


REACHED, REACHED_SPREAD = 0.9, 0.1
"""The part of nameplate that a healthy collective reaches, where nothing tells: headers and protocol take 3 to 8 %,
latency some more. 0.8 is twice the spread below 1."""
ENOUGH = 5
"""Measurements of a kind that tell what a healthy one reaches: the median of those that are like the upper quartile.
So three of four may be slow, as AllReduces over all servers are where few NICs are, and one of four too fast. Fewer
would make a fault the standard."""
ALIKE = 4.0
"""Standard deviations within which measurements are alike here: three for their own noise, one for the quartile's."""
LEAST_HEALTHY = 0.5
"""The part of nameplate below which what is reached by most over many servers is not taken for healthy: four times the
spread below `REACHED`. It only shows what ports can do at least, for each may include a slow one."""
FAR_BELOW = 0.7
"""The part of nameplate below which what all reach alike is not called healthy: twice the spread below `REACHED`."""
BEYOND = 1.1
"""The part of nameplate above which the topology's rates, or what a collective is thought to carry, are wrong."""
FEW = 3
"""Measurements without a NIC in common that tell that all are slow alike."""
TWO = " of two servers"
"""After the kind of an AllReduce: on two servers NCCL's Tree carries half of what its ring does, so that these are
compared with each other alone."""
OF_PAIRS = 0.9
"""Of what is reached over few ports, the part that is healthy over many. Where less is, or too few measurements tell,
the same as over few is assumed, give or take `REACHED_SPREAD`."""
EXACT = ("link",)
"""Kinds that are no measurements, but what a driver says: without noise, and of nameplate."""


@dataclass(frozen=True)
class Average:
    """Measurements that are alike as one.

    logs : port -> the logarithm of the part of its healthy rate at which it ran, healthy being 0
    spread : of these, one standard deviation; repeats : runs; servers : how many took part, 0 where it is not said
    """

    kind: str
    logs: Mapping[int, float]
    spread: float
    repeats: int
    where: str
    least: bool
    servers: int = 0

    @property
    def pace(self) -> float:
        """The logarithm of what was reached, over what the healthy cluster gives: 0, or below where it was slow."""
        return max(self.logs.values())

    @property
    def failed(self) -> bool:
        """Nothing came through."""
        return self.pace <= math.log(2 * NOTHING)


@dataclass(frozen=True)
class Standard:
    """What a kind of measurement reaches on healthy ports: the part of nameplate; measured here, or assumed.

    doubt : one standard deviation of its logarithm
    low : what was reached at most is too little for a healthy cluster: which of its measurements are slow is not known
    own : no kind that uses fewer ports was measured
    best : the most that was reached, as a part of nameplate, at the place `where`
    """

    kind: str
    part: float
    measured: bool
    doubt: float = 0.0
    low: bool = False
    own: bool = True
    best: float = 0.0
    where: str = ""

    @property
    def slow_alike(self) -> bool:
        """What all reach alike is far below nameplate."""
        return self.own and self.measured and self.part < FAR_BELOW

    @property
    def far_below(self) -> bool:
        """Nothing that was measured comes near nameplate, though it may be too little to say that all are alike."""
        return self.own and self.kind not in EXACT and 2 * NOTHING < self.best < FAR_BELOW


def kind_of(seen: Observation) -> str:
    """What it is compared with."""
    return seen.kind + TWO if seen.kind == "all_reduce" and len(set(seen.servers)) == 2 else seen.kind


def averages(observations: Sequence[Observation], noise: float | None) -> tuple[list[Average], list[Standard], float]:
    """The averages, what was taken for healthy, and the spread of one run as a fraction.

    noise : that spread, where the caller knows it
    """
    groups: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
    for seen in observations:
        groups[_alike(seen)].append(seen)
    raw = [_mean_of_runs(group) for group in groups.values()]
    each, spread = spreads([Repeated(one.kind, one.paces) for one in raw if one.noisy], ALIKE)
    if noise is not None:
        each, spread = {}, noise
    kinds: dict[str, list[Average]] = defaultdict(list)
    for one in raw:
        kinds[one.kind].append(one.average(each.get(one.kind, spread)))
    found, standards, slow = list[Average](), list[Standard](), set[int]()
    # What uses few ports first: of what uses many, each may have a slow one, and then none tells what is healthy.
    pairs, ports = 0.0, 0.0
    for kind, of in sorted(kinds.items(), key=lambda item: _width(item[1])):
        standard = _standard(kind, [average for average in of if slow.isdisjoint(average.logs)])
        own = not pairs
        best = max((one for one in of if not one.least), key=lambda one: one.pace, default=None)
        if _width(of) > ports and not (standard.measured and standard.part >= OF_PAIRS * pairs) and pairs:
            standard = Standard(kind, pairs, False, REACHED_SPREAD)
        elif standard.measured and standard.part > pairs:
            pairs, ports = standard.part, _width(of)
        if best is not None:
            standard = replace(standard, own=own, best=math.exp(best.pace), where=best.where)
        standards.append(standard)
        found += [_against(average, standard) for average in of]
        slow = _slow_ports(found)
    return found, standards, spread


def _width(raw: Sequence[Average]) -> float:
    """Ports of one measurement."""
    return median(len(average.logs) for average in raw)


def _slow_ports(averages: Iterable[Average]) -> set[int]:
    """The ports that were seen, and never at their healthy rate."""
    seen, well = set[int](), set[int]()
    for average in averages:
        if not average.least:
            seen.update(average.logs)
        well.update(port for port, log in average.logs.items() if log >= -ALIKE * max(average.spread, LEAST_NOISE))
    return seen - well


def _alike(seen: Observation) -> tuple[object, ...]:
    """The same kind, the same ports in the same proportion; failed ones apart, for a run that works says it can."""
    top = max(seen.used.values())
    loads = tuple(sorted((port, round(part / top, 3)) for port, part in seen.used.items()))
    return (kind_of(seen), seen.least, seen.failed, seen.spread > 0, loads)


@dataclass(frozen=True)
class _Raw:
    """Alike measurements before anything is known of noise: the mean over runs, each the median of its rows.

    paces : of each run, the logarithm of the part of nameplate; own : a spread that the measurements say themselves
    """

    kind: str
    logs: Mapping[int, float]
    paces: tuple[float, ...]
    own: float
    where: str
    least: bool
    servers: int

    @property
    def noisy(self) -> bool:
        return self.kind not in EXACT and not self.least and max(self.paces) > math.log(2 * NOTHING)

    def average(self, spread: float) -> Average:
        exact = self.kind in EXACT and not self.own
        one = 0.0 if exact else max(self.own, spread)
        spread, repeats = one / math.sqrt(len(self.paces)), len(self.paces)
        return Average(self.kind, self.logs, spread, repeats, self.where, self.least, self.servers)


def _mean_of_runs(group: Sequence[Observation]) -> _Raw:
    first = group[0]
    runs: dict[str, list[Observation]] = defaultdict(list)
    for seen in group:
        runs[seen.run or f"{seen.where} {len(runs)}"].append(seen)
    each = [
        {port: median(math.log(max(seen.used[port], NOTHING)) for seen in run) for port in first.used}
        for run in runs.values()
    ]
    logs = {port: fmean(run[port] for run in each) for port in first.used}
    paces = tuple(max(run.values()) for run in each)
    return _Raw(kind_of(first), logs, paces, first.spread, first.where, first.least, len(set(first.servers)))


def _standard(kind: str, raw: Sequence[Average]) -> Standard:
    if kind in EXACT:
        return Standard(kind, 1.0, False)
    of = [average for average in raw if not average.least and not average.failed]
    paces = sorted((average.pace for average in of), reverse=True)
    assumed = Standard(kind, REACHED, False, REACHED_SPREAD)
    if not paces:
        return assumed
    # What was reached once can be reached; what lies between that and nameplate is little then.
    best = Standard(kind, math.exp(paces[0]), True, NOISE)
    spread = max(LEAST_NOISE, *(one.spread for one in of))
    reached = upper_middle(paces, spread, ALIKE)
    found = Standard(kind, math.exp(reached), True)
    many = len(paces) >= ENOUGH
    if many and not found.slow_alike:
        return found
    if best.part > REACHED:
        return best
    if many and found.part < LEAST_HEALTHY and max(one.servers for one in of) > 2 and not _in_common(of):
        return replace(assumed, low=True)
    alike = [one for one in of if abs(one.pace - reached) <= ALIKE * spread]
    if not found.slow_alike or len(alike) < (ENOUGH if many else FEW) or _in_common(alike):
        return assumed
    if not many:
        return replace(found, doubt=NOISE) if len(alike) == len(of) else assumed
    return found


def _in_common(of: Sequence[Average]) -> bool:
    """Whether one NIC took part in all, and so may be the reason that they are slow."""
    return bool(set.intersection(*({port // 2 for port in one.logs} for one in of)))


def _against(average: Average, standard: Standard) -> Average:
    if average.failed:
        return average
    shift = math.log(standard.part)
    logs = {port: log - shift for port, log in average.logs.items()}
    spread, least = math.hypot(average.spread, standard.doubt), average.least or standard.low
    return replace(average, logs=logs, spread=spread, least=least)


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


CERTAIN_BY = 2.0
"""Faults more that every explanation without this NIC needs. A healthy NIC is called certain only where the truth has
two faults more than the simplest explanation."""
AS_GOOD = 0.5
"""Explanations within half a NIC of each other are as good."""
MOST_ASKED = 128
"""NICs for which another explanation is looked for; of more the first, the others stay undecided."""


class Sure(StrEnum):
    """How sure: `CERTAIN` no other explanation without two faults more, `LIKELY` others need more faults, `POSSIBLE`
    others are as good."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class NicConfidence:
    """Of one NIC: how sure, and which explanation is the best one without it.

    more : faults that it needs beyond the chosen one; instead : the NICs that it blames and the chosen one does not
    twins : NICs each of which could take this one's place
    """

    sure: Sure
    more: float
    instead: tuple[int, ...]
    twins: tuple[int, ...]


def doubts(given: Problem, found: Fit) -> dict[int, NicConfidence]:
    """For each NIC of `found`."""
    return {nic: _doubt(given, found, nic) for nic in found.nics[:MOST_ASKED]} | {
        nic: NicConfidence(Sure.POSSIBLE, 0.0, (), ()) for nic in found.nics[MOST_ASKED:]
    }


def how_sure(more: float) -> Sure:
    """By the faults more that the best other explanation needs."""
    return Sure.CERTAIN if more >= CERTAIN_BY else Sure.POSSIBLE if more <= AS_GOOD else Sure.LIKELY


def _doubt(given: Problem, found: Fit, nic: int) -> NicConfidence:
    other = fit(given, without=[nic])
    more = other.price - found.price
    instead = tuple(n for n in other.nics if n not in found.nics)
    sure = how_sure(more)
    twins = _twins(given, found, nic) if sure is Sure.POSSIBLE else ()
    return NicConfidence(sure, more, instead, twins)


def _twins(given: Problem, found: Fit, nic: int) -> tuple[int, ...]:
    """NICs each of which alone explains all that is explained by `nic` alone."""
    others = {i for other in found.nics if other != nic for i in given.of_nic(other)}
    needed = given.of_nic(nic) - others
    candidates = {port // 2 for port in given.explains} - set(found.nics)
    twins = [other for other in candidates if needed <= given.of_nic(other)]
    return tuple(sorted(twins))
