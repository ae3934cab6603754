"""Direct exchange in two levels: along which tree each chunk of the data is summed up, and its result spread.

In each group one rank, the hub, gathers the chunk from its group; one of the hubs adds last, and the others send it
their sums. Or, in one level, one rank gathers it from all, of every group. A rank *apart* is in no group, as far as
sums go: to one half of the chunks it adds last of all, which that hub sends it for, and of the other half it sends its
data to the hub that adds last.

Every chunk, whatever its tree, is sent 2(P-1) times in all. So what is left to choose is who sends how often, and whose
turn it is is who has least to do so far: hubs in their groups, by their NICs; groups as those whose hub adds last, by
their NICs and uplinks. A chunk goes in one level, which takes work off all groups but one, if all are less busy then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple


class Tree(NamedTuple):
    """parents : towards whom each rank sends its sum, the last one -1
    steps : the work of the busiest rank or uplink up to this chunk, in chunks on each NIC
    even : the same if it were spread evenly in every group
    """

    parents: tuple[int, ...]
    steps: Fraction
    even: Fraction


def trees(
    groups: Sequence[int],
    nics: Sequence[int],
    uplinks: Sequence[Fraction | None],
    apart: int | None,
    chunks: int,
) -> Iterator[Tree]:
    """The trees of so many chunks, one after the other.

    groups : of each rank its group, 0 to G-1; nics : of each rank, how many it has; uplinks : of each group, how many
    chunks cross its border at a time, each way, None: any number; apart : the rank apart, None: there is none
    """
    ranks, count = len(groups), len(uplinks)
    whole = [[r for r in range(ranks) if groups[r] == g] for g in range(count)]
    members = [[r for r in own if r != apart] for own in whole]
    room = [sum(nics[r] for r in own) for own in members]
    kept = [0] * ranks
    sent, crossed, busy = [0] * ranks, [0] * count, [0] * count  # of ranks, over uplinks, and of groups

    def linked(across: Sequence[int]) -> float:
        """How busy the busiest uplink would be."""
        return max(
            [(crossed[g] + across[g]) / float(link) for g, link in enumerate(uplinks) if link is not None], default=0.0
        )

    def after(work: Sequence[int], across: Sequence[int]) -> float:
        """The same of groups and uplinks."""
        return max(linked(across), *((busy[g] + work[g]) / room[g] for g in range(count)))

    for chunk in range(chunks):
        hubs = [min(own, key=lambda r: (kept[r] / nics[r], r)) for own in members]
        two, one = [], []  # (work of groups, over uplinks) with each group's hub as the last
        for last in range(count):
            work, across = [2 * len(own) - 1 for own in members], [1] * count
            work[last] += count - 2
            across[last] += count - 2
            if apart is not None:
                work[last] += 1
                for group in {last, groups[apart]} if last != groups[apart] else ():
                    across[group] += 1
            two.append((work, across))
            work = [len(own) for own in members]
            across = list(work)
            work[last] += ranks - 2
            across[last] = ranks - len(members[last])
            one.append((work, across))
        last = min(
            range(count), key=lambda g: (max(sent[hubs[g]] / nics[hubs[g]], linked(two[g][1])), busy[g] / room[g])
        )
        direct = min(range(count), key=lambda g: after(*one[g]))
        # Half of what its group would get in one level: less is no matter.
        grouped = apart is not None or after(*two[last]) <= after(*one[direct]) + (ranks - 2) / (2 * room[direct])
        last = last if grouped else direct
        work, across = (two if grouped else one)[last]
        busy = [one + more for one, more in zip(busy, work, strict=True)]
        crossed = [one + more for one, more in zip(crossed, across, strict=True)]
        top = hubs[last]
        parents = [top if not grouped or r == hubs[g] or r == apart else hubs[g] for r, g in enumerate(groups)]
        parents[top] = -1
        if apart is not None and chunk < (chunks + 1) // 2:
            parents[top], parents[apart] = apart, -1
        for rank, parent in enumerate(parents):
            if parent >= 0:  # sums one way, results the other
                sent[rank] += 1
                sent[parent] += 1
                kept[rank] += 1
                kept[parent] += not grouped or parent not in (top, apart) or groups[rank] == groups[parent]
        if grouped:
            kept[top] += 1
        links = [Fraction(work) / link for work, link in zip(crossed, uplinks, strict=True) if link is not None]
        most = max(Fraction(work, own) for work, own in zip(sent, nics, strict=True))
        even = max(Fraction(work, own) for work, own in zip(busy, room, strict=True))
        yield Tree(tuple(parents), max([most, *links]), max([even, Fraction(chunk + 1, min(nics)), *links]))
