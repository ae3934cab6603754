"""Nested rings: how much of the data each ring pattern carries, in closed form, exact.

In pattern m the m strongest ranks form a ring and the other P-m are leaves. A leaf sends and receives each byte
of the pattern once; a ring rank (m+P-2)/m times. Source and proof: proofs/README.md, id nested-rings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from optcc.errors import CertificateError, InputError

Shares = dict[int, Fraction]


def nested_loads(rates: Sequence[Fraction]) -> list[Fraction]:
    """Bytes each rank may send per byte of data at the optimum of `rates` (ascending, bytes/s): sums to 2(P-1).

    L_i = max(1, B_i T*/n), the largest lowered to a common level. P >= 3.
    """
    p = len(rates)
    per_byte = max(1 / rates[0], 2 * (p - 1) / sum(rates, Fraction(0)))
    loads = [max(Fraction(1), rate * per_byte) for rate in rates]
    excess_of = Fraction(2 * (p - 1))
    below = Fraction(0)
    for i, load in enumerate(loads):
        level = (excess_of - below) / (p - i)
        if level <= load:
            return loads[:i] + [level] * (p - i)
        below += load
    return loads


def nested_shares(rates: Sequence[Fraction]) -> Shares:
    """Share of the data in each ring pattern, {ring size m: share}, zero shares left out; sums to 1.

    `rates` in bytes per second, one per rank, any order: the usable rate of a rank, min(out, in). Raises
    InputError when one is not positive. One rank needs no ring: {}. Two ranks: {2: 1}.
    """
    if not rates or min(rates) <= 0:
        raise InputError("a rank without bandwidth", where="rates", expected="rates > 0", got=str(list(rates)))
    p, ascending = len(rates), sorted(Fraction(r) for r in rates)
    if p <= 2:
        return {2: Fraction(1)} if p == 2 else {}
    loads = nested_loads(ascending)
    shares = {m: (loads[p - m] - loads[p - m - 1]) * Fraction(m, p - 2) for m in range(1, p)}
    shares[p] = (loads[0] - 1) * Fraction(p, p - 2)
    return {m: share for m, share in shares.items() if share}


def ring_loads(shares: Mapping[int, Fraction], ranks: int) -> list[Fraction]:
    """Bytes sent (and received) per byte of data by each rank, weakest first, when patterns have `shares`."""
    loads = []
    for i in range(ranks):
        load = Fraction(0)
        for m, share in shares.items():
            load += share * (Fraction(m + ranks - 2, m) if i >= ranks - m else 1)
        loads.append(load)
    return loads


def check_loads(shares: Mapping[int, Fraction], rates: Sequence[Fraction], seconds_per_byte: Fraction) -> None:
    """Raise CertificateError unless `shares` carry all the data within `rates` in `seconds_per_byte`, exactly.

    rates : bytes per second of each rank, in any order; seconds_per_byte : of the data, T / n

    This is the primal half of the optimum's certificate: with a lower bound of the same value it proves both.
    """
    if sum(shares.values()) != 1 or min(shares.values()) < 0 or not all(1 <= m <= len(rates) for m in shares):
        raise CertificateError(f"shares {dict(shares)} do not split the data")
    for load, rate in zip(ring_loads(shares, len(rates)), sorted(rates), strict=True):
        if load > rate * seconds_per_byte:
            raise CertificateError(f"a rank of {rate} B/s would have to send {load} bytes per byte of data")
