"""Direct exchange in two levels: the tree along which each chunk of the data is summed up, and its result spread.

In each group one rank, the hub, gathers the chunk from its group; one of the hubs adds last, and the others send it
their sums. Or, in one level, one rank gathers the chunk from all ranks of every group. A rank *apart* is in no group
when sums are formed. For one half of the chunks it adds last of all: the hub sends it the sum. For the other half it
sends its data to the hub that adds last.

Every chunk, whatever its tree, is sent 2(P-1) times in all. So the choice is who sends how often, and the turn goes to
the rank or group with the least work so far. Hubs take turns in their groups, by their NICs. Groups take turns to have
the hub that adds last, by their NICs and uplinks. A chunk goes in one level, which takes work off all groups but one,
if all are less busy then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple


class GroupTree(NamedTuple):
    """parents : towards whom each rank sends its sum, the last one -1
    steps : the work of the busiest rank or uplink up to this chunk, in chunks on each NIC
    even : `steps` if the work were spread evenly in every group
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
) -> Iterator[GroupTree]:
    """The trees of `count` chunks, in order.

    groups : of each rank its group, 0 to G-1; nics : of each rank, how many it has; uplinks : of each group, how many
    chunks cross its border at a time, each way, None: any number; apart : the rank apart, None: there is none
    """
    ranks, every = len(groups), range(len(uplinks))
    members = [[r for r in range(ranks) if groups[r] == group and r != apart] for group in every]
    sizes, room = [len(own) for own in members], [sum(nics[r] for r in own) for own in members]
    alike = {count: [r for r in range(ranks) if nics[r] == count] for count in {*nics}}
    ways = [_two_levels(sizes, last, None if apart is None else groups[apart]) for last in every]
    direct = [_one_level(sizes, last) for last in every]
    gathered, added_last = [0] * ranks, [0] * ranks  # what each has sent, as one of its group, and for all groups
    busy, crossed, lasts = ([0] * len(every) for _ in range(3))  # of groups: sent, over uplinks, how often the last

    def linked(way: GroupWork) -> float:
        """How busy the busiest uplink would be."""
        links = enumerate(uplinks)
        return max([(crossed[g] + way.across[g]) / float(link) for g, link in links if link is not None], default=0.0)

    def after(way: GroupWork) -> float:
        """How busy the busiest group or uplink would be."""
        return max(linked(way), *((busy[g] + way.sent[g]) / room[g] for g in every))

    for chunk in range(chunks):
        hubs = [min(own, key=lambda r: (gathered[r] / nics[r], r)) for own in members]
        load = [(gathered[r] + added_last[r]) / nics[r] for r in hubs]
        # With two groups it has no more to do than the other one.
        last = min(every, key=lambda g: (max(load[g], linked(ways[g])) * (len(every) > 2), lasts[g] / room[g]))
        way, other = ways[last], min(every, key=lambda g: after(direct[g]))
        # It is worth half of what it gives the one hub to do.
        two = apart is not None or after(way) <= after(direct[other]) + Fraction(ranks - 2, 2 * room[other])
        if not two:
            last, way = other, direct[other]
        busy = [one + more for one, more in zip(busy, way.sent, strict=True)]
        crossed = [one + more for one, more in zip(crossed, way.across, strict=True)]
        top = hubs[last]
        lasts[last] += 1
        parents = [
            hubs[group] if two and rank not in (hubs[group], apart) else top for rank, group in enumerate(groups)
        ]
        parents[top] = -1
        if apart is not None and chunk < (chunks + 1) // 2:
            parents[top], parents[apart] = apart, -1
        gathered = [one + 1 for one in gathered]
        for rank, size in zip(hubs, sizes, strict=True) if two else [(top, ranks - 1)]:
            gathered[rank] += size - 1
        added_last[top] += (len(every) - 2 + (apart is not None)) * two
        links = [Fraction(work) / link for work, link in zip(crossed, uplinks, strict=True) if link is not None]
        sent = max(Fraction(max(gathered[r] + added_last[r] for r in own), count) for count, own in alike.items())
        even = max(Fraction(work, own) for work, own in zip(busy, room, strict=True))
        yield GroupTree(tuple(parents), max([sent, *links]), max([even, Fraction(chunk + 1, min(nics)), *links]))


class GroupWork(NamedTuple):
    """What a chunk gives groups to send, and their uplinks to carry each way."""

    sent: list[int]
    across: list[int]


def _two_levels(sizes: Sequence[int], last: int, home: int | None) -> GroupWork:
    """In groups of so many the hub of group `last` adds last; `home` : the group that the rank apart is a pod with."""
    sent, across = [2 * size - 1 for size in sizes], [1] * len(sizes)
    sent[last] += len(sizes) - 2 + (home is not None)
    across[last] += len(sizes) - 2
    if home not in (None, last):
        across[last] += 1
        across[home] += 1
    return GroupWork(sent, across)


def _one_level(sizes: Sequence[int], last: int) -> GroupWork:
    """A rank of group `last` gathers from all."""
    sent, across = list(sizes), list(sizes)
    sent[last] += sum(sizes) - 2
    across[last] = sum(sizes) - sizes[last]
    return GroupWork(sent, across)
