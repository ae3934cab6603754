"""Direct exchange in lockstep that the planner tries: the numbers of steps that suit a cluster's numbers of NICs."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.ladder import LARGE, MANY, Ladder
from optcc.plans import MIN_CHUNK
from optcc.schedule.lockstep import MAX_CHUNKS, MAX_STEPS, LockstepExchange, applies_lockstep, lockstep_nics
from optcc.schedule.lockstep_steps import chunks_of, fewest_steps

TRIED, VARIANTS = (6, 4, 2), (4, 2, 1)
"""So many numbers of steps, and variants of each; of more than `LARGE` ranks; and of more than twice as many."""
FEW = 16
"""Twice as many variants where no more steps than these are tried: a plan so short takes little to find, and by luck
one is some per cent faster than the others (measured)."""
DEEPEST, FREE = 3, 64
"""Steps up to so many times the root of the bound in chunks' costs, or of that where chunks cost nothing."""


def lockstep_ladders(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> list[Ladder]:
    """The numbers of steps that lose least, to chunks that are shorter than their steps and to what chunks cost. When
    data is due it must have landed, which a formula does not know; so some are tried, each in a few variants."""
    ranks = len(cluster.ranks)
    if ranks > MANY or not applies_lockstep(cluster):
        return []
    nics = tuple(sorted(map(len, lockstep_nics(cluster))))
    fewest = fewest_steps(nics)
    chunks = sqrt(bound.seconds / per_chunk) if per_chunk else FREE
    deepest = min(MAX_STEPS, MAX_CHUNKS // sum(nics))
    if fewest > deepest:
        return []
    most = max(fewest, int(min(DEEPEST * chunks, deepest, bound.nbytes // (MIN_CHUNK * ranks))))
    cost = float(per_chunk / bound.seconds) if bound.seconds else 0.0
    lost = {steps: float(chunks_of(nics, steps)[1]) for steps in range(fewest, most + 1)}
    best = sorted(lost, key=lambda steps: (lost[steps] + steps * cost, steps))
    size = (ranks > LARGE) + (ranks > 2 * LARGE)
    only = best[: TRIED[size]]

    def ladder(variant: int) -> Ladder:
        return Ladder(
            LockstepExchange.family,
            lambda segments: LockstepExchange(segments, variant),
            by_rate=False,
            only=only,
            both=True,
        )

    return [ladder(variant) for variant in range(VARIANTS[size] * (2 if max(only) <= FEW else 1))]
