"""Recursive halving and doubling: few hops, for messages too large to be sent whole and too small for a part to each
rank.

Ranks are numbers in a mixed radix, as in `optcc.schedule.whole`. In a step the ranks that differ in one digit deal what
they hold among each other: each sums up one part, and keeps only that. When every digit has had its step, each holds
the sum of its own part, and the steps run backwards and hand sums out. Digits of two values are recursive halving and
doubling (Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005); one digit of P values is direct exchange in equal
parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from optcc.schedule.assemble import TemplateRow, assemble, even_cuts
from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.recipe import CandidateFamily, Costs
from optcc.schedule.whole import DigitRecipe, Digits, Ways, digit_lists, pair_rates
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.values.bound import Bound


def least_seconds(cluster: Cluster, nbytes: int, costs: Costs, digits: tuple[int, ...]) -> float:
    """No schedule of one segment with these digits takes less.

    Of the c ranks in the core each sends all but its own part, and hands on all but that: 2 (1 - 1/c) of the data each
    way. A partner's data comes before anything that the core rank sends, and its result is sent, too: either of them
    is the third time that the core rank's NICs carry everything, after or before which the partner's do.
    """
    numbers, ranks = Digits.of(pair_rates(cluster), digits), cluster.ranks
    each = 2 * max(0, nbytes - nbytes // len(numbers.core) - GRANULE)
    found = [each / min(ranks[rank].out_rate, ranks[rank].in_rate) for rank in numbers.core]
    for apart, partner in numbers.partners.items():
        found.append(nbytes / ranks[apart].out_rate + (each + nbytes) / ranks[partner].out_rate)
        found.append((each + nbytes) / ranks[partner].in_rate + nbytes / ranks[apart].in_rate)
    return float(max(found) + (costs.alpha + costs.per_chunk) * (4 if len(digits) > 1 else 1))


@dataclass(frozen=True)
class RecursiveHalving(DigitRecipe):
    """Recursive halving, then doubling."""

    family: ClassVar[str] = "halving"

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        way, numbers = Ways(cluster, self.striped), Digits.of(pair_rates(cluster), self.digits)
        sections = prod(self.digits)
        rows: list[TemplateRow] = []
        last: dict[int, list[tuple[int, int, int]]] = {rank: [] for rank in numbers.core}  # (row, sections it changed)

        def send(src: int, dst: int, route: int, hop: int, part: tuple[int, int], adds: bool) -> tuple[int, int, int]:
            """Append the message of these sections; returns it for `last` of `dst`."""
            begin, stop = part
            deps = tuple(row for row, first, end in last.get(src, ()) if first < stop and begin < end)
            stage = Stage.REDUCE_SCATTER if adds else Stage.ALLGATHER
            rows.append(TemplateRow(begin, route, hop, adds, stage, deps, sections=stop - begin))
            return len(rows) - 1, begin, stop

        whole = (0, sections)
        for rank, partner in sorted(numbers.partners.items()):
            last[partner].append(send(rank, partner, way(rank, partner), 0, whole, True))
        place = {rank: i for i, rank in enumerate(numbers.core)}
        held = [dict.fromkeys(numbers.core, whole)]  # before each step: the sections that a rank still sums up
        for which, digit in enumerate(self.digits):
            stride = prod(self.digits[:which])
            parts = {}
            for rank, (begin, stop) in held[-1].items():
                size = (stop - begin) // digit
                first = begin + place[rank] // stride % digit * size
                parts[rank] = (first, first + size)
            come = [
                (dst, send(src, dst, way(src, dst, turn, digit - 1), 1 + which, parts[dst], True))
                for src, turn, dst in numbers.step(which)
            ]
            for dst, landed in come:
                last[dst].append(landed)
            held.append(parts)
        hop = len(self.digits)
        for which in reversed(range(len(self.digits))):
            hop, turns = hop + 1, self.digits[which] - 1
            come = [
                (dst, send(src, dst, way(src, dst, turn, turns), hop, held[which + 1][src], False))
                for src, turn, dst in numbers.step(which)
            ]
            for dst, (row, begin, stop) in come:
                last[dst] = [each for each in last[dst] if not (begin <= each[1] and each[2] <= stop)]
                last[dst].append((row, begin, stop))
        for rank, partner in sorted(numbers.partners.items()):
            send(partner, rank, way(partner, rank), hop + 1, whole, False)
        cuts = even_cuts(0, nbytes, self.segments).tolist()
        bounds = np.stack([even_cuts(a, b, sections) for a, b in pairwise(cuts)])
        return assemble(cluster, nbytes, way.routes, [(rows, np.arange(self.segments), bounds)])

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        told = ("halving", f"steps of {list(self.digits)} servers, and back")
        return [told, *self._apart(cluster), ("segments", f"{self.segments}")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """Lists of two digits or more, each message on one NIC or on all."""
        rates = pair_rates(cluster)
        if cluster.gpu_ranks or len(rates) < 2 or not min(rates):
            return []
        nics = max(1, min(sum(1 for nic in rank.nics if nic.alive) for rank in cluster.ranks))
        lists = [digits for digits in digit_lists(len(rates), nics) if len(digits) > 1] or [(len(rates),)]
        least_s = min(least_seconds(cluster, bound.nbytes, costs, digits) for digits in lists)
        return [cls._candidate(lists[0], lists, costs, least_s)]
