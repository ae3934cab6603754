"""The channels of a bundle: the GPUs that gather and carry, by place in the group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from optcc.schedule.inside_groups import Shares

Band = tuple[Fraction, Fraction]


class GpuTask(NamedTuple):
    """One GPU gathers, one carries `part` of a group's bytes in a channel; both by how far behind the group's place."""

    gather: int
    carry: int
    part: Fraction


@dataclass(frozen=True)
class Site:
    """A group in a channel: how many GPUs, and their tasks."""

    gpus: int
    tasks: tuple[GpuTask, ...]


@dataclass(frozen=True)
class Channel:
    """Part `low` to `high` of a bundle. sites : the work of each group; places : the GPU of each group whose channel it
    is."""

    low: Fraction
    high: Fraction
    sites: tuple[Site, ...]
    places: tuple[int, ...]


def channels(gather: Shares, carry: Shares) -> list[Channel]:
    """One channel for each GPU that gathers in most groups.

    In a group with other shares, the GPU does in its channel what its shares allow, and others do the rest. Those that
    can both gather and carry come first.
    """
    usual: dict[int, tuple[Fraction, ...]] = {}
    for row, _ in Counter(gather).most_common():
        usual.setdefault(len(row), row)
    ends = {end for row in usual.values() for end in (Fraction(0), *accumulate(row))}
    bands = list(pairwise(sorted(ends)))
    places = {size: [_place(row, low) for low, _ in bands] for size, row in usual.items()}

    @cache
    def dealt(gather: tuple[Fraction, ...], carry: tuple[Fraction, ...]) -> list[Site]:
        return _deal(bands, places[len(gather)], gather, carry)

    groups = [dealt(*shares) for shares in zip(gather, carry, strict=True)]
    return [
        Channel(*band, tuple(group[i] for group in groups), tuple(places[len(row)][i] for row in gather))
        for i, band in enumerate(bands)
    ]


def _place(shares: Sequence[Fraction], low: Fraction) -> int:
    """The GPU whose share contains position `low`."""
    return next(place for place, end in enumerate(accumulate(shares)) if low < end)


def _deal(
    bands: Sequence[Band], places: Sequence[int], gather: Sequence[Fraction], carry: Sequence[Fraction]
) -> list[Site]:
    """Deal the bands to pairs of a gathering and a carrying GPU, within the shares of both."""
    gpus, gathers, carries = len(gather), list(gather), list(carry)
    rest = [high - low for low, high in bands]
    taken: list[dict[tuple[int, int], Fraction]] = [{} for _ in bands]

    def take(band: int, gatherer: int, carrier: int) -> None:
        pair = (gatherer % gpus, carrier % gpus)
        part = min(rest[band], gathers[pair[0]], carries[pair[1]])
        if part:
            taken[band][pair] = taken[band].get(pair, Fraction(0)) + part
            rest[band] -= part
            gathers[pair[0]] -= part
            carries[pair[1]] -= part

    for other, turn in product(range(gpus), repeat=2):  # first GPUs that carry what they gather
        for band, place in enumerate(places):
            take(band, place + turn, place + turn + other)
    return [
        Site(
            gpus, tuple(GpuTask((g - place) % gpus, (c - place) % gpus, x / (high - low)) for (g, c), x in mine.items())
        )
        for (low, high), place, mine in zip(bands, places, taken, strict=True)
    ]
