"""Direct exchange in two levels, as the planner tries it: by pods, or by groups whose size is near their number.

With o the cost of a chunk and X the bound, in seconds, k steps cost k o. A plan takes the steps for the chunks of its
busiest server, rounded up, so good numbers of chunks fill this whole number. With few steps a plan takes longer, since
chunks take four hops. Beside a rank apart it always takes longer, since this rank waits for first sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil, isqrt, sqrt

from optcc.schedule.candidates import CandidateFamily, Costs
from optcc.schedule.effort import DEFAULT_SEGMENTS, LARGE, MOST_TRIED, TRIED_MOVES
from optcc.schedule.grouped import MAX_MOVES, GroupedExchange, grouped, links_of, lone, nics_of
from optcc.schedule.grouped_trees import trees
from optcc.schedule.nics import nic_rate
from optcc.schedule.pods import pod_numbers
from optcc.schedule.recipe import Recipe
from optcc.schedule.tuned import FEWEST, LANDS
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster


def grouped_candidates(cluster: Cluster, bound: Bound, costs: Costs) -> list[CandidateFamily]:
    """Pods, or groups of one fabric if there are many servers."""
    if not grouped(cluster):
        return []
    ranks = len(cluster.ranks)
    pods = cluster.fabric.pod_oversubscription is not None
    nics = [len(mine) for mine in nics_of(cluster)]
    groups = tuple(pod_numbers(cluster) if pods else _dealt(nics) if ranks > LARGE else [0] * ranks)
    if not max(groups):
        return []
    recipe = GroupedExchange(1, groups, lone(cluster, groups))
    # As many chunks as can be tried: of few, turns are too coarse to level the others.
    if recipe.apart is not None:
        finest = replace(recipe, segments=max(1, TRIED_MOVES // ranks))
        if finest.fluid_s(cluster, bound.nbytes) > bound.seconds:  # the others or their uplinks would be busier
            recipe = replace(recipe, apart=None)
    return [
        CandidateFamily(
            GroupedExchange.family,
            partial(_with_chunks, recipe),
            by_rate=False,
            shortlist=partial(_tried, recipe, cluster, bound, costs),
            least_s=_least_s(nics, nic_rate(cluster), bound, costs),
            deepest=MAX_MOVES // ranks,
        )
    ]


def _least_s(nics: Sequence[int], rate: Fraction, bound: Bound, costs: Costs) -> float:
    """Seconds below which no number of chunks n comes.

    The rank with fewest NICs, m of them, needs X for all data on these NICs. It sends every chunk, each of which costs
    o: X + o n/m. Before that, or as a hub beside that, it waits for or sends one chunk more, which lasts m X/n. The sum
    is least at X + 2 sqrt(o X).
    """
    alone = bound.nbytes / float(min(nics) * rate)
    return max(
        float(bound.seconds + 4 * costs.alpha),
        alone + 2 * sqrt(costs.per_chunk * alone) + float(costs.per_chunk + 2 * costs.alpha),
    )


def _tried(recipe: GroupedExchange, cluster: Cluster, bound: Bound, costs: Costs) -> list[Recipe]:
    """Recipes with the most promising numbers of chunks."""
    used = nics_of(cluster)
    nics, ranks = [len(mine) for mine in used], len(used)
    per_step = min(Fraction(sum(nics), 2 * (ranks - 1)), Fraction(min(nics)))  # chunks
    cost = float(costs.per_chunk / bound.seconds) if bound.seconds else 0.0
    # Beside a rank apart first sums come over two hops of LANDS steps each, and the end is the mirror image.
    lost = 2 * LANDS + 1 if recipe.apart is not None else 1
    best = sqrt(lost / cost) if cost else DEFAULT_SEGMENTS
    most = max(1, min(int(per_step * (2 * best + FEWEST)), TRIED_MOVES // ranks))
    if recipe.apart is not None:
        listed = [max(1, int(min(most, per_step * best * part))) for part in (1, 5 / 4, 4 / 5)]
    else:
        links = links_of(cluster, recipe.groups)
        made = trees(recipe.groups, nics, links, None, most)
        steps = [ceil(tree.steps) for tree in made]
        lasts = [max(k, (k + FEWEST) / 2) * (float(per_step) / n + cost) for n, k in enumerate(steps, 1)]
        listed = sorted(range(1, most + 1), key=lambda n: (lasts[n - 1], n))
    chosen, moves = [listed[0]], listed[0] * ranks
    for number in listed[1:]:
        moves += number * ranks
        if len(chosen) < MOST_TRIED and moves <= TRIED_MOVES:
            chosen.append(number)
    return [_with_chunks(recipe, number) for number in chosen]


def _with_chunks(of: GroupedExchange, chunks: int) -> GroupedExchange:
    return replace(of, segments=chunks)


def _dealt(nics: Sequence[int]) -> list[int]:
    """Groups whose size is near their number, of equal sizes where possible, and equally strong: ranks with fewer of
    `nics` are dealt out first."""
    ranks, root = len(nics), isqrt(len(nics))
    sizes = [size for size in range(2, ranks // 2 + 1) if ranks % size == 0 and root <= 2 * size and size <= 2 * root]
    count = ranks // min(sizes, key=lambda size: (max(size, ranks // size), -size)) if sizes else root
    found = [0] * ranks
    for place, rank in enumerate(sorted(range(ranks), key=lambda rank: (nics[rank], rank))):
        found[rank] = place % count
    return found
