"""From measured pairs of NICs to rates that a planner can use, and to the file that keeps them.

A pair is as fast as its slower end, so a NIC's rate one way is the best rate that any peer has measured. The planner
gets few rates, not one for each NIC. Measured rates within a tolerance of each other count as one; otherwise noise
alone would make every NIC a degraded one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median, quantiles

from optcc.discover.topology import Measured
from optcc.errors import InputError
from optcc.values.cluster import Cluster

LEAST_TOLERANCE = 0.02
MOST_TOLERANCE = 0.1
SPREADS = 3
"""Tolerance within which rates count as one, in spreads of repeated measurements, but at least 2 % and at most 10 %.
The middle half of normal noise spans 1.35 standard deviations, so 3 spreads are 4 standard deviations."""

DIGITS = 3
"""Of a rate that is kept."""


@dataclass(frozen=True)
class MeasuredPair:
    """From NIC `out` to NIC `into`, SERVER/NIC each: bytes per second in each repetition, None: nothing came through.

    together : all NICs of all ranks were busy, as in a collective
    """

    out: str
    into: str
    together: bool
    rates: tuple[float | None, ...]

    @property
    def rate(self) -> float:
        """The median; 0 where in half of the repetitions or more nothing came through."""
        return float(median(rate or 0.0 for rate in self.rates))

    @property
    def spread(self) -> float:
        """What the middle half of the repetitions spans, as a fraction of the median."""
        if len(self.rates) < 2 or not self.rate:
            return 0.0
        low, _, high = quantiles([rate or 0.0 for rate in self.rates], n=4, method="inclusive")
        return (high - low) / self.rate


@dataclass(frozen=True)
class NicRate:
    """One NIC, SERVER/NIC: bytes per second.

    nameplate : what the file says; out, into : measured with all NICs busy
    gain : how many times as fast it sends to the same NIC while all others are idle; None where that was not measured
    spread : of the measurements that count, as a fraction
    held_back : ways ("out", "in") that no fast enough peer has shown: the NIC may be faster
    """

    name: str
    nameplate: float
    out: float
    into: float
    gain: float | None
    spread: float
    held_back: tuple[str, ...] = ()


def nic_rates(cluster: Cluster, pairs: Sequence[MeasuredPair]) -> list[NicRate]:
    """What `pairs` show of every NIC of `cluster` that they include. Raises InputError where a way was not measured."""
    found = []
    for server in cluster.servers:
        for nic in server.nics:
            name = f"{server.name}/{nic.name}"
            out = [p for p in pairs if p.together and p.out == name]
            into = [p for p in pairs if p.together and p.into == name]
            if not out and not into:
                continue  # dead in the file, or on a rail of its own: nothing could be measured
            if not out or not into:
                raise InputError("not measured both ways", where=name, expected="a NIC that can reach it", got="none")
            best_out, best_in = max(out, key=lambda p: p.rate), max(into, key=lambda p: p.rate)
            gain = _gain(out, [p for p in pairs if not p.together and p.out == name])
            spread = max(best_out.spread, best_in.spread)
            found.append(NicRate(name, float(nic.out_rate), best_out.rate, best_in.rate, gain, spread))
    return _with_doubts(found, pairs)


def _gain(together: Sequence[MeasuredPair], alone: Sequence[MeasuredPair]) -> float | None:
    rates = {pair.into: pair.rate for pair in together}
    return max((pair.rate / rates[pair.into] for pair in alone if rates.get(pair.into)), default=None)


def _with_doubts(found: list[NicRate], pairs: Sequence[MeasuredPair]) -> list[NicRate]:
    """A slow NIC of which every peer is as slow the other way cannot be told from its peers."""
    rates = {nic.name: nic for nic in found}
    slow = 1 - MOST_TOLERANCE
    doubted = []
    for nic in found:
        peers = {
            "out": [rates[p.into].into for p in pairs if p.together and p.out == nic.name],
            "in": [rates[p.out].out for p in pairs if p.together and p.into == nic.name],
        }
        own = {"out": nic.out, "in": nic.into}
        # The peer's own rate is its best over all: it shows more only where that is faster than this NIC.
        held = tuple(way for way in own if own[way] < nic.nameplate * slow and max(peers[way]) <= own[way] / slow)
        doubted.append(replace(nic, held_back=held))
    return doubted


def tolerance_of(nics: Sequence[NicRate]) -> float:
    """Within which fraction of each other rates count as one."""
    return min(MOST_TOLERANCE, max(LEAST_TOLERANCE, SPREADS * float(median(nic.spread for nic in nics))))


def classes_of(rates: Sequence[float], tolerance: float) -> dict[float, Fraction]:
    """Each of `rates` -> the rate it counts as, in bytes per second, to three digits. Rates within `tolerance` of the
    fastest of their class count as their median. 0 stays 0.
    """
    found: dict[float, Fraction] = {}
    left = sorted(rates, reverse=True)
    while left:
        alike = [rate for rate in left if rate >= left[0] * (1 - tolerance)]
        left = left[len(alike) :]
        found |= dict.fromkeys(alike, _rounded(float(median(alike))))
    return found


def _rounded(rate: float) -> Fraction:
    if rate <= 0:
        return Fraction(0)
    bits = Fraction(rate) * 8
    step = Fraction(1)
    while bits >= step * 10**DIGITS:
        step *= 10
    return round(bits / step) * step / 8


def calibrated(cluster: Cluster, nics: Sequence[NicRate], tolerance: float) -> Cluster:
    """`cluster` with the measured rates, in classes. NICs that were not measured keep theirs."""
    classes = classes_of([rate for nic in nics for rate in (nic.out, nic.into)], tolerance)
    by_name = {nic.name: nic for nic in nics}
    servers = []
    for server in cluster.servers:
        new = []
        for nic in server.nics:
            seen = by_name.get(f"{server.name}/{nic.name}")
            new.append(replace(nic, out_rate=classes[seen.out], in_rate=classes[seen.into]) if seen else nic)
        servers.append(replace(server, nics=tuple(new)))
    return replace(cluster, servers=tuple(servers))


def measured_as(
    nics: Sequence[NicRate],
    *,
    date: str,
    transport: str,
    path: str,
    alpha_s: float | None,
    per_chunk_s: float | None,
    before: Mapping[str, Fraction],
) -> Measured:
    """What the file keeps beside the rates. `before` : nameplates of an earlier calibration, which stay."""
    return Measured(
        date,
        transport,
        None if alpha_s is None else Fraction(round(alpha_s * 10**9), 10**9),
        None if per_chunk_s is None else Fraction(round(per_chunk_s * 10**9), 10**9),
        Fraction(round(float(median(nic.spread for nic in nics)) * 10**4), 10**4),
        {nic.name: before.get(nic.name, Fraction(nic.nameplate)) for nic in nics},
        path,
    )
