"""Bundles of `optcc.schedule.inside` from parts: gathering and carrying GPUs, and nested rings between the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

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


HAND_ON_FROM = 32
"""Number of servers from which on two more hops inside are negligible beside those of a ring, and dependencies are
not."""
EXCHANGE_CHUNKS = ((16, 24), (MAX_SEGMENTS, 12))
"""(servers, chunks of a channel) in direct exchange up to this number of servers. Fewer chunks leave NVLink idle before
the first results, more cost it time. The best of some that were simulated."""
EXCHANGE_HAND_ON_FROM = 64
"""Number of servers from which on a hub's results wait for too many transfers."""
LEAST_CHUNK = 2**23
"""Least bytes of a channel that are worth a separate chunk where chunks have a cost."""
MOST_TRANSFERS = 4_000_000
"""Limit of transfers between GPUs of different servers, in one plan: lowered in some seconds, in about a gigabyte."""


def inside_servers(
    cluster: Cluster,
    parts: Sequence[BufferPart],
    segments: int,
    *,
    chunks: int | None = None,
    hand_on: bool | None = None,
) -> InsideServers:
    """The recipe with nested rings between groups, about `segments` deep in all parts together.

    chunks : None: `chunks_for` segments where chunks cost nothing
    hand_on : None: in large clusters
    Raises InfeasibleError for parts that `cluster` has no NICs for.
    """
    on = len(cluster.servers) >= HAND_ON_FROM if hand_on is None else hand_on
    bundles: list[Bundle] = []
    for part in parts:
        bundles += _slots(cluster, part, segments, on) if part.slots else [_whole(cluster, part, segments, on)]
    return InsideServers(tuple(bundles), chunks_for(cluster, segments) if chunks is None else chunks)


def inside_exchange(
    cluster: Cluster,
    shares: Sequence[Fraction],
    via: Sequence[tuple[int, Fraction]],
    segments: int,
    *,
    chunks: int | None = None,
    hand_on: bool | None = None,
) -> InsideServers:
    """The recipe with direct exchange between servers.

    shares, via : as in `StripedExchange`, of the servers
    chunks : None: by `EXCHANGE_CHUNKS`; hand_on : None: in large clusters
    Raises InfeasibleError for a server without NICs.
    """
    own = gpu_groups(cluster)
    inner = StripedExchange(segments, tuple(shares), tuple(via))
    fine = chunks or next(count for most, count in EXCHANGE_CHUNKS if len(own) <= most)
    on = len(own) >= EXCHANGE_HAND_ON_FROM if hand_on is None else hand_on
    return InsideServers((Bundle(Fraction(1), 1, even_shares(own), shares_by_rate(own), inner, on),), fine)


def chunks_for(cluster: Cluster, segments: int, nbytes: int | None = None) -> int:
    """Chunks of a channel inside servers: 8, fewer with few segments, more with many.

    nbytes : of the buffer, where every chunk has a cost: then no chunk is less than `LEAST_CHUNK`
    """
    fine = max(min(8, 2 * segments), segments // 2)
    if nbytes is None:
        return fine
    return max(1, min(fine, nbytes // max(server.gpus for server in cluster.servers) // LEAST_CHUNK))


def deepest(cluster: Cluster, parts: Sequence[BufferPart]) -> int:
    """Segments up to which a recipe of `parts` has no more than `MOST_TRANSFERS` between servers; 1 at least.

    A ring of m of q groups takes 2(q-1)m transfers a segment in each channel.
    """
    every = Fraction(0)
    for part in parts:
        own = gpu_groups(cluster, part.teams)
        channels = len(part.slots) if part.slots else max(len(group.gpus) for group in own)
        depth = Fraction(1) if part.slots else part.share
        every += 2 * (len(own) - 1) * sum(part.rings) * channels * depth
    return max(1, int(MOST_TRANSFERS / every)) if every else MAX_SEGMENTS


def _whole(cluster: Cluster, part: BufferPart, segments: int, hand_on: bool) -> Bundle:
    """A part of all GPUs; with others beside it, which share its NICs, it is less deep."""
    own = gpu_groups(cluster, part.teams)
    carry = even_shares(own) if len(own) == 1 else shares_by_rate(own)
    inner = part_rings(cluster, part, carry, max(1, round(segments * part.share)))
    return Bundle(part.share, part.teams, even_shares(own), carry, inner, hand_on)


def _slots(cluster: Cluster, part: BufferPart, segments: int, hand_on: bool) -> list[Bundle]:
    """A bundle for each slot of the part."""
    own, slots, found = gpu_groups(cluster, part.teams), part.slots or (), list[Bundle]()
    for slot in slots:
        carry = shares_of_slot(own, slot, part.guests)
        first = (slot - hand_on) % len(own[0].gpus)
        gather = tuple(tuple(Fraction(place == first) for place in range(len(group.gpus))) for group in own)
        inner = part_rings(cluster, part, carry, segments)
        found.append(Bundle(part.share / len(slots), part.teams, gather, carry, inner, hand_on, straight=True))
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
