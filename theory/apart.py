"""Direct exchange in two levels beside one rank that is in no group: who is the hub of how much, who adds last.

As in `optcc.theory.groups`, but the rank apart is the hub of nothing and exchanges with one other rank for each byte:
with the one that adds last, or, where `inside` says so, for half of the data with its own group's hub. Be x a rank's
part as a hub of its group of S ranks, y what it adds last to of that, Y the sum of y in its group, G the number of
groups, a the part of the data for which the rank apart stays inside its group. Each way a rank has

    1 + (S-1) x + (G-1-a) y, and a x in the group of the rank apart,

bytes for each byte of the data: raw data 1-x, sums x-y, totals (G-1) y, results (S-1) x, and what it exchanges with the
rank apart, (1-a) y and a x. Its uplink carries 1-Y of sums, (G-1) Y of totals, and of what the rank apart exchanges
(1-a) Y in other groups, (1-a)(1-Y) in its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from optcc.errors import InfeasibleError

PARTS = 10**6
"""Parts are rounded to one in so many."""
GAIN = 1 / 200
"""The rank apart stays inside its group where that gains more than so much: its hubs would be busier than others."""


class ApartSplit(NamedTuple):
    """What `apart_split` finds.

    per_byte : seconds that the busiest of the others, or of the uplinks, needs for each byte
    hubs : each rank's part of the data as a hub of its group, sum 1 in every group, 0 of the rank apart
    finals : each rank's part of the data to which it adds last, sum 1
    inside : whether the rank apart stays in its group for half of the data
    """

    per_byte: float
    hubs: tuple[Fraction, ...]
    finals: tuple[Fraction, ...]
    inside: bool


def apart_split(
    rates: Sequence[Fraction], groups: Sequence[int], uplinks: Sequence[Fraction | None], apart: int
) -> ApartSplit:
    """The split with which the busiest of the other ranks and of the uplinks has least to do, by a linear program.

    rates : bytes per second of each rank, each way; groups : of each rank its group, 0 to G-1 with G at least 2;
    uplinks : of each group bytes per second each way, None: no limit; apart : the rank apart

    Raises InfeasibleError where a rank or an uplink has no rate, or a group has no other rank.
    """
    sizes = [sum(own == g and r != apart for r, own in enumerate(groups)) for g in range(len(uplinks))]
    if not min(rates) or 0 in uplinks or not min(sizes):
        raise InfeasibleError(
            "no way to some rank, or a group without hubs", where="rates", expected="above 0", got="0"
        )
    others, within = (_least(rates, groups, uplinks, apart, sizes, inside) for inside in (False, True))
    inside = bool(within[0] < others[0] * (1 - GAIN))
    per_byte, hubs, finals = within if inside else others
    # Of all best splits one in which equal ranks of equal groups have equal parts: a mean of best ones is one.
    kinds = [(rates[r], *_kind(group, rates, groups, uplinks, apart)) for r, group in enumerate(groups)]
    alike: dict[object, list[int]] = {}
    for r, kind in enumerate(kinds):
        if r != apart:
            alike.setdefault(kind, []).append(r)
    exact = [[Fraction(0)] * len(rates) for _ in range(2)]
    for own in alike.values():
        for found, parts in zip(exact, (hubs, finals), strict=True):
            mean = Fraction(round(sum(parts[r] for r in own) / len(own) * PARTS), PARTS)
            for r in own:
                found[r] = mean
    for group in range(len(sizes)):
        _to_one(exact[0], [r for r, own in enumerate(groups) if own == group])
    _to_one(exact[1], range(len(rates)))
    return ApartSplit(per_byte, tuple(exact[0]), tuple(exact[1]), inside)


def _kind(
    group: int, rates: Sequence[Fraction], groups: Sequence[int], uplinks: Sequence[Fraction | None], apart: int
) -> tuple[object, ...]:
    """What groups have in common of which each could have the other's part."""
    return (
        group == groups[apart],
        uplinks[group],
        tuple(sorted(rate for r, (rate, own) in enumerate(zip(rates, groups, strict=True)) if own == group)),
    )


def _to_one(parts: list[Fraction], own: Sequence[int]) -> None:
    """Scale those of `own` to sum 1."""
    total = sum(parts[r] for r in own)
    for r in own:
        parts[r] /= total


def _least(
    rates: Sequence[Fraction],
    groups: Sequence[int],
    uplinks: Sequence[Fraction | None],
    apart: int,
    sizes: Sequence[int],
    inside: bool,
) -> tuple[float, list[float], list[float]]:
    """(seconds per byte, x, y). Variables are x and y of every rank, and the seconds."""
    count, home, a = len(rates), groups[apart], 0.5 if inside else 0.0
    unit = float(max(rates))  # numbers near 1
    above, least = [], []
    for r, group in enumerate(groups):
        if r == apart:
            continue
        line = np.zeros(2 * count + 1)
        line[r] = sizes[group] - 1 + a * (group == home)
        line[count + r] = len(uplinks) - 1 - a
        line[-1] = -float(rates[r]) / unit
        above.append(line)
        least.append(-1.0)
        below = np.zeros(2 * count + 1)  # y <= x
        below[[count + r, r]] = 1, -1
        above.append(below)
        least.append(0.0)
    for group, uplink in enumerate(uplinks):
        if uplink is not None:
            line, own = np.zeros(2 * count + 1), group == home
            line[[count + r for r, g in enumerate(groups) if g == group]] = (
                len(uplinks) - 2 + (1 - a) * (-1 if own else 1)
            )
            line[-1] = -float(uplink) / unit
            above.append(line)
            least.append(-1.0 - (1 - a) * own)
    sums = np.zeros((len(uplinks) + 1, 2 * count + 1))
    for r, group in enumerate(groups):
        sums[group, r] = sums[-1, count + r] = r != apart
    cost = np.zeros(2 * count + 1)
    cost[-1] = 1
    limits = [(0, 0 if i % count == apart else 1) for i in range(2 * count)] + [(0, None)]
    found = linprog(cost, np.array(above), least, sums, np.ones(len(sums)), limits)
    assert found.success, found.message  # equal parts always do
    return found.x[-1] / unit, found.x[:count].tolist(), found.x[count:-1].tolist()
