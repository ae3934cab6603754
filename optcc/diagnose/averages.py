"""Repeated measurements as one, held against what the healthy cluster gives, with the noise of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from optcc.diagnose.evidence import NOTHING, Observation
from optcc.diagnose.noise import LEAST_NOISE, NOISE, Repeated, spreads, upper_middle

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
    raw = [_mean(group) for group in groups.values()]
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


def _mean(group: Sequence[Observation]) -> _Raw:
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
