"""Direct exchange in two levels: who is the hub of how much, inside groups of ranks and between them.

In each group every byte has a hub that gathers it from its group and spreads the result there. Of the G hubs of a byte,
one of each group, one adds last: the others send it their sums, and it sends them the total. A rank of a group of S
that is the hub of x and adds last to y receives (S-1) x + (G-1) y of data and sums, and 1 - x + x - y of results, so
1 + (S-1) x + (G-2) y in all, and sends as much. With rate r it has time for that if it is at most r T, for each byte.
Summed over a group of total rate R, where x is 1 in all, and Y of the data are added last to: 2S - 1 + (G-2) Y <= R T.
Its uplink carries 1 - Y of sums and (G-1) Y of totals: 1 + (G-2) Y. Where neither a slow rank, nor a group, nor an
uplink limits, the sum over groups is 2(P-1) = T sum R, the bound of one fabric: nothing is lost by having two levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from optcc.errors import InfeasibleError


def group_split(
    rates: Sequence[Fraction], groups: Sequence[int], uplinks: Sequence[Fraction | None]
) -> tuple[Fraction, tuple[Fraction, ...], tuple[Fraction, ...]]:
    """(seconds per byte, x of each rank, Y of each group), with which that is least.

    rates : bytes per second of each rank, each way; groups : of each rank its group, 0 to G-1 with G at least 2;
    uplinks : of each group bytes per second each way, None: no limit

    Raises InfeasibleError where a rank or an uplink has no rate.
    """
    count = len(uplinks)
    of = [[rate for rate, group in zip(rates, groups, strict=True) if group == g] for g in range(count)]
    if not min(rates) or 0 in uplinks:
        raise InfeasibleError("no way to some rank", where="rates", expected="above 0", got="0")
    # Of each group lines a T - b that (G-2) Y may not be above.
    lines = [[(sum(mine, Fraction(0)), 2 * len(mine) - 1)] for mine in of]
    for own, uplink in zip(lines, uplinks, strict=True):
        own += [(uplink, 1)] if uplink is not None else []
    per_byte = max(1 / min(rates), *(b / a for own in lines for a, b in own))
    if count == 2:
        return per_byte, _hubs(per_byte, rates, groups, of), (Fraction(1, 2), Fraction(1, 2))

    def parts() -> list[tuple[Fraction, Fraction]]:
        """Of each group the most that Y may be, and how fast that grows with T."""
        found = []
        for own in lines:
            a, b = min(own, key=lambda line: line[0] * per_byte - line[1])
            most = (a * per_byte - b) / (count - 2)
            found.append((most, a / (count - 2)) if most < 1 else (Fraction(1), Fraction(0)))
        return found

    # Concave in T, in finitely many pieces: Newton's steps end at the least T at which all parts add up to 1.
    while (total := sum((most for most, _ in parts()), Fraction(0))) < 1:
        per_byte += (1 - total) / sum((slope for _, slope in parts()), Fraction(0))
    finals = tuple(most / total for most, _ in parts())
    return per_byte, _hubs(per_byte, rates, groups, of), finals


def _hubs(
    per_byte: Fraction, rates: Sequence[Fraction], groups: Sequence[int], of: Sequence[Sequence[Fraction]]
) -> tuple[Fraction, ...]:
    """In proportion to the time that is left to each rank after what everybody must send."""
    room = [sum(mine, Fraction(0)) * per_byte - len(mine) for mine in of]
    # Most ranks of a group are alike.
    found = {
        (rate, group): (rate * per_byte - 1) / room[group] if room[group] else Fraction(1, len(of[group]))
        for rate, group in dict.fromkeys(zip(rates, groups, strict=True))
    }
    return tuple(found[each] for each in zip(rates, groups, strict=True))
