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

from collections.abc import Mapping, Sequence
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
    rates: Sequence[Fraction],
    groups: Sequence[int],
    uplinks: Sequence[Fraction | None],
    apart: int,
    inside: bool | None = None,
) -> ApartSplit:
    """The split with which the busiest of the other ranks and of the uplinks has least to do, by a linear program.

    Of all such splits one that treats equal ranks of equal groups alike: a mean of best ones is one.

    rates : bytes per second of each rank, each way; groups : of each rank its group, 0 to G-1 with G at least 2;
    uplinks : of each group bytes per second each way, None: no limit; apart : the rank apart; inside : None: whichever
    takes less

    Raises InfeasibleError where a rank or an uplink has no rate, or a group has no other rank.
    """
    members = [[r for r, own in enumerate(groups) if own == g and r != apart] for g in range(len(uplinks))]
    if not min(rates) or 0 in uplinks:
        raise InfeasibleError("no way to some rank", where="rates", expected="above 0", got="0")
    if not all(members):
        raise InfeasibleError("no other rank", where="groups", expected="another one in each", got=str(groups))
    alike: dict[_Kind, list[int]] = {}
    for group, own in enumerate(members):
        of_group = tuple(sorted(rates[r] for r in own))
        for r in own:
            alike.setdefault(_Kind(rates[r], group == groups[apart], uplinks[group], of_group), []).append(r)
    others, within = (_least(alike, len(uplinks), each) for each in (False, True))
    if inside is None:
        inside = within[0] < others[0] * (1 - GAIN)
    per_byte, parts = within if inside else others
    hubs, finals = [Fraction(0)] * len(rates), [Fraction(0)] * len(rates)
    for own, (x, y) in zip(alike.values(), parts, strict=True):
        for r in own:
            hubs[r], finals[r] = x, y
    for own in members:
        _to_one(hubs, own)
    _to_one(finals, range(len(rates)))
    return ApartSplit(per_byte, tuple(hubs), tuple(finals), inside)


class _Kind(NamedTuple):
    """What ranks have in common that may have the same parts: their rate, and of their group whether the rank apart is
    in its pod, the uplink, and all rates."""

    rate: Fraction
    home: bool
    uplink: Fraction | None
    of_group: tuple[Fraction, ...]


def _least(
    alike: Mapping[_Kind, Sequence[int]], groups: int, inside: bool
) -> tuple[float, list[tuple[Fraction, Fraction]]]:
    """(seconds per byte, x and y of each kind). Variables are these x, these y, and the seconds."""
    count, a = len(alike), 0.5 if inside else 0.0
    unit = float(max(kind.rate for kind in alike))  # numbers near 1
    above, least, sums = [], [], []
    whole = np.zeros(2 * count + 1)
    kinds: dict[tuple[object, ...], list[int]] = {}  # of groups: the kinds of their ranks
    for i, (kind, own) in enumerate(alike.items()):
        kinds.setdefault(kind[1:], []).append(i)
        line, below = np.zeros((2, 2 * count + 1))
        line[i] = len(kind.of_group) - 1 + a * kind.home
        line[count + i] = groups - 1 - a
        line[-1] = -float(kind.rate) / unit
        below[[count + i, i]] = 1, -1  # y <= x
        above += [line, below]
        least += [-1.0, 0.0]
        whole[count + i] = len(own)
    for own in kinds.values():
        kind = list(alike)[own[0]]
        gathered, crossing = np.zeros((2, 2 * count + 1))
        for i in own:
            many = kind.of_group.count(list(alike)[i].rate)
            gathered[i] = many
            crossing[count + i] = many * (groups - 2 + (1 - a) * (-1 if kind.home else 1))
        sums.append(gathered)
        if kind.uplink is not None:
            crossing[-1] = -float(kind.uplink) / unit
            above.append(crossing)
            least.append(-1.0 - (1 - a) * kind.home)
    cost = np.zeros(2 * count + 1)
    cost[-1] = 1
    found = linprog(cost, np.array(above), least, np.array([*sums, whole]), np.ones(len(sums) + 1))
    assert found.success, found.message  # equal parts always do
    parts = [Fraction(round(part * PARTS), PARTS) for part in found.x[:-1].tolist()]
    return float(found.x[-1]) / unit, list(zip(parts[:count], parts[count:], strict=True))


def _to_one(parts: list[Fraction], own: Sequence[int]) -> None:
    """Scale those of `own` to sum 1: they were rounded."""
    total = sum(parts[r] for r in own)
    for r in own:
        parts[r] /= total
