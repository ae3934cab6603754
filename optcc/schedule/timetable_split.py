"""Which part of what two ranks send each other goes by which rail, so that every NIC is equally busy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import fsum, sqrt

ROUNDS = 200
CLOSE = 1e-9
"""NICs whose times differ by no more than this part count as equally busy."""

Kinds = tuple[int, ...]
"""Places of a rank's live NICs."""


Split = Mapping[tuple[Kinds, Kinds], Mapping[int, float]]
"""By the live NICs of sender and receiver, rail -> part of what they exchange, sum 1."""


def rail_shares(members: Mapping[Kinds, int], shares: Mapping[Kinds, float]) -> Split:
    """The split with which all NICs of a rank are equally busy.

    members : how many ranks have these NICs; shares : the part of the data that each of them is the hub of

    Two ranks exchange the sum of their shares. A rail of m ranks has 1/(m - 1) of each NIC's time for each pair. From
    there each rank's use of each NIC is scaled until all its NICs are equally busy (iterative proportional fitting).
    Only exactly rounded operations in a fixed order, so that every rank has the same result.
    """
    kinds = sorted(members)
    return _fitted(tuple((kind, members[kind], shares[kind]) for kind in kinds))


@lru_cache(maxsize=256)
def _fitted(given: tuple[tuple[Kinds, int, float], ...]) -> Split:
    """Kept: a cluster has one for all timetables that are tried on it, and these are many."""
    members, shares = {kind: count for kind, count, _ in given}, {kind: share for kind, _, share in given}
    kinds = list(members)
    rails = sorted({rail for kind in kinds for rail in kind})
    peers = {rail: sum(members[kind] for kind in kinds if rail in kind) - 1 for rail in rails}
    scale = {(kind, rail): 1.0 for kind in kinds for rail in kind}

    def split(a: Kinds, b: Kinds) -> dict[int, float]:
        common = [rail for rail in a if rail in b]
        parts = [scale[a, rail] * scale[b, rail] / peers[rail] for rail in common]
        total = fsum(parts)
        return {rail: part / total for rail, part in zip(common, parts, strict=True)}

    for _ in range(ROUNDS):
        found = {(a, b): split(a, b) for a in kinds for b in kinds if a != b or members[a] > 1}
        worst = 0.0
        for a in kinds:
            loads = {rail: 0.0 for rail in a if peers[rail]}
            for b in kinds:
                count = members[b] - (a == b)
                for rail, part in found[a, b].items() if count else ():
                    loads[rail] += count * (shares[a] + shares[b]) * part
            mean = fsum(loads.values()) / max(1, len(loads))
            for rail, load in loads.items() if mean else ():
                worst = max(worst, abs(load / mean - 1))
                scale[a, rail] *= sqrt(mean / load) if load else 1.0
        if worst < CLOSE / 2:
            break
    return found


def common_rails(ranks: Sequence[Kinds]) -> bool:
    """Every two ranks have a rail in common."""
    kinds = sorted(set(ranks))
    return all(set(a) & set(b) for a in kinds for b in kinds)
