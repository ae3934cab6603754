"""Bundles of `optcc.schedule.inside` from parts: gathering and carrying GPUs, and nested rings between the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.schedule.effort import FREE_RUNS, MANY
from optcc.schedule.inside import Bundle, InsideServers
from optcc.schedule.inside_groups import (
    GpuGroup,
    Shares,
    even_shares,
    gpu_groups,
    shares_by_rate,
    shares_of_slot,
    usable,
    view,
)
from optcc.schedule.nested import NestedRings, Ordering
from optcc.schedule.nested_pace import two_segments_under_way
from optcc.schedule.recipe import MAX_SEGMENTS
from optcc.schedule.striped import StripedExchange
from optcc.values.cluster import Cluster


@dataclass(frozen=True)
class BufferPart:
    """A part of the buffer as the theory deals it out.

    share : of the buffer; teams : number of groups into which each server is divided
    rings : {ring size: share of the part} of nested rings between the groups
    slots : places among which the part is shared; only the GPUs there gather and carry, and only GPUs of equal place
        meet. None: all gather, and carry in proportion to NIC rates
    guests : groups that use all their NICs nevertheless
    """

    share: Fraction
    teams: int
    rings: Mapping[int, Fraction]
    slots: tuple[int, ...] | None = None
    guests: tuple[int, ...] = ()


def inside_servers(
    cluster: Cluster,
    parts: Sequence[BufferPart],
    segments: int,
    chunks: int | None = None,
) -> InsideServers:
    """The recipe with nested rings between groups, about `segments` deep in all parts together.

    chunks : None: `FREE_RUNS` a segment, for runs that cost nothing
    Raises InfeasibleError for parts that `cluster` has no NICs for.
    """
    bundles: list[Bundle] = []
    for part in parts:
        bundles += _slots(cluster, part, segments) if part.slots else [_whole(cluster, part, segments)]
    return InsideServers(tuple(bundles), chunks or min(MAX_SEGMENTS, FREE_RUNS * segments))


def inside_exchange(
    cluster: Cluster,
    shares: Sequence[Fraction],
    via: Sequence[tuple[int, Fraction]],
    segments: int,
    ways: int = 1,
    chunks: int | None = None,
) -> InsideServers:
    """The recipe with direct exchange between servers; among many their results are handed on.

    shares, via, ways : as in `StripedExchange`, of the servers; chunks : as in `inside_servers`
    Raises InfeasibleError for a server without NICs.
    """
    own = gpu_groups(cluster)
    inner = StripedExchange(segments, tuple(shares), tuple(via), ways)
    bundle = Bundle(Fraction(1), 1, even_shares(own), shares_by_rate(own), inner, len(own) > MANY)
    return InsideServers((bundle,), chunks or min(MAX_SEGMENTS, FREE_RUNS * segments))


def _whole(cluster: Cluster, part: BufferPart, segments: int) -> Bundle:
    """A part of all GPUs; with others beside it, which share its NICs, it is less deep."""
    own = gpu_groups(cluster, part.teams)
    carry = even_shares(own) if len(own) == 1 else shares_by_rate(own)
    inner = part_rings(cluster, part, carry, max(1, round(segments * part.share)))
    return Bundle(part.share, part.teams, even_shares(own), carry, inner)


def _slots(cluster: Cluster, part: BufferPart, segments: int) -> list[Bundle]:
    """A bundle for each slot of the part."""
    own, slots, found = gpu_groups(cluster, part.teams), part.slots or (), list[Bundle]()
    for slot in slots:
        carry = shares_of_slot(own, slot, part.guests)
        gather = tuple(tuple(Fraction(place == slot) for place in range(len(group.gpus))) for group in own)
        inner = part_rings(cluster, part, carry, segments)
        found.append(Bundle(part.share / len(slots), part.teams, gather, carry, inner, straight=True))
    return found


def slot_strength(group: GpuGroup, carry: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
    """Sort key of groups for the rings of a slot: the rate of their carrying GPUs, then of all."""
    carriers = [usable(gpu) for gpu, share in zip(group.gpus, carry, strict=True) if share]
    return sum(carriers, Fraction(0)), sum(map(usable, group.gpus), Fraction(0))


def part_rings(cluster: Cluster, part: BufferPart, carry: Shares, segments: int) -> NestedRings:
    """Nested rings of `part`. On a slot, guests count as the weakest, then the groups with the least total rate. These
    add first: only a group that has not sent yet can pass on their data. Sections are no finer for many leaves: each is
    many transfers inside servers.
    """
    from optcc.schedule.nested_order import nested_rings

    own = gpu_groups(cluster, part.teams)
    inner = nested_rings(view(cluster, own, carry), dict(part.rings), segments)
    leaves = len(own) - min(part.rings, default=len(own))
    inner = replace(inner, **two_segments_under_way(leaves, segments)._asdict())
    if part.slots is None:
        return inner
    strength = [(group not in part.guests, *slot_strength(own[group], carry[group])) for group in range(len(own))]
    order = sorted(range(len(own)), key=lambda group: strength[group])
    return replace(inner, order=tuple(order), orderings=(Ordering.LEAF_FIRST,))
