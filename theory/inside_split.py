"""How much of the buffer goes which way inside servers and between them: a linear program over kinds of parts.

With the GPUs of a server as one group, gathering is even and carrying follows live NIC rates. A byte of the buffer then
costs every NVLink port 2(G-1)/G, and a server's NICs the cost of a byte in nested rings. Where the NICs take longer,
that is the optimum (proof id inside-servers). Where NVLink does, part of the buffer should cost NVLink less and the
NICs more: parts whose groups are teams of G/2, G/4, ... GPUs. On rails that do not meet, parts have a rail to
themselves, or their groups' neighbours as guests on theirs.

What a byte of each kind of part costs every port and link is counted in a lowered schedule. Let A (resources, kinds)
hold these costs in seconds per byte. The shares y >= 0 of sum 1 that minimise the largest entry of A y are a linear
program: a zero-sum game of shares against prices. Any prices p >= 0 of sum 1 prove that no shares beat min(p A). The
solver's numbers are hints: shares are rounded to rationals, and time and bound are computed from these, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd

import numpy as np

from optcc.errors import InfeasibleError, InputError, OptccError
from optcc.schedule.columns import Schedule
from optcc.schedule.inside import (
    BufferPart,
    gpu_groups,
    inside_servers,
    shares_by_rate,
    shares_of_slot,
    slot_strength,
    usable,
    view,
)
from optcc.theory.ring_shares import Shares, nested_shares, ring_loads
from optcc.values.cluster import Cluster

Column = tuple[Fraction, ...]
"""Seconds that a byte of the buffer costs each resource."""

COUNTED_BYTES = 2**50
"""Size at which costs are counted: rounding to granules is far below anything that matters."""
FINE = 128
"""Chunks at which costs are counted: so many that GPUs that share a channel have as much of each section."""
MOST_ROWS = 600_000
"""Kinds with more transfers per segment are left out: no plan could hold them."""
LEAST_SHARE = Fraction(1, 64)
"""Smaller parts are more transfers than they are worth."""
_DENOMINATOR = 10**9


@dataclass(frozen=True)
class InsideSplit:
    """Parts, the seconds that they take per byte, and how far at most from the best mix of the kinds considered.

    gap : seconds_per_byte less the bound that the prices prove, over the bound; 0 in closed form
    """

    parts: tuple[BufferPart, ...]
    seconds_per_byte: Fraction
    gap: Fraction


def inside_split(cluster: Cluster) -> InsideSplit:
    """The best parts for `cluster`, in closed form where NVLink is not the limit and NICs are.

    Raises InfeasibleError where no kind of part joins all servers, InputError without GPUs as ranks or NVLink rates.
    """
    if not cluster.gpu_ranks:
        raise InputError("servers as ranks", where="--ranks", expected="gpu", got="server")
    for server in cluster.servers:
        if server.gpus > 1 and not server.nvlink_rate:
            raise InputError(
                "no NVLink rate",
                where=server.name,
                expected="the rate of a GPU's NVLink port, since GPUs are the ranks",
                got="none",
                hint="Give nvlink: in the YAML (nvlink= in a preset), or take servers as ranks.",
            )
    nvlink = max((2 * (1 - Fraction(1, s.gpus)) / s.nvlink_rate for s in cluster.servers if s.gpus > 1), default=0)
    if len(cluster.servers) == 1:
        return InsideSplit((BufferPart(Fraction(1), 1, {}),), Fraction(nvlink), Fraction(0))
    if _alike(cluster):
        rings, network = whole_servers(cluster)
        if network >= nvlink:
            return InsideSplit((BufferPart(Fraction(1), 1, rings),), network, Fraction(0))
    kinds = list(_kinds(cluster))
    if not kinds:
        raise InfeasibleError(
            "no part of the buffer can go between all servers inside this family",
            where="cluster",
            expected="a rail with a live NIC on every server, or rails that a spine joins",
            got="none",
            hint="Packed trees take any topology.",
        )
    shares, seconds, gap = mix([column for _, column in kinds])
    kept = [
        kind
        for kind, share in zip(kinds, _by_crowd([k for k, _ in kinds], shares), strict=True)
        if share >= LEAST_SHARE
    ]
    if len(kept) < len(kinds):
        kinds = kept
        shares, seconds, _ = mix([column for _, column in kinds])
    return InsideSplit(_merged([kind for kind, _ in kinds], shares), seconds, gap)


def parts_at_once(cluster: Cluster) -> tuple[BufferPart, ...]:
    """Parts without a program: whole servers if all carried data meets, else every place with the fewest guests, each
    as large as its slowest host is fast. Raises InfeasibleError where none joins all servers."""
    if not cluster.fabric.rails or _alike(cluster):
        return (BufferPart(Fraction(1), 1, whole_servers(cluster)[0]),)
    own, found = gpu_groups(cluster), dict[tuple[int, ...], tuple[BufferPart, Fraction]]()
    for part in _slots(cluster):
        if part.slots is None or part.slots in found:
            continue
        hosts = [group for i, group in enumerate(own) if i not in part.guests]
        slowest = min(usable(group.gpus[slot]) for group in hosts for slot in part.slots)
        rings = {len(hosts): Fraction(1)}
        with suppress(InfeasibleError):
            shares_of_slot(own, part.slots[0], part.guests)
            found[part.slots] = replace(part, rings=rings), slowest * len(part.slots)
    total = sum((weight for _, weight in found.values()), Fraction(0))
    if not total:
        raise InfeasibleError("no place that all servers have", where="cluster", expected="a rail", got="none")
    return tuple(replace(part, share=weight / total) for part, weight in found.values())


def whole_servers(cluster: Cluster) -> tuple[Shares, Fraction]:
    """Nested rings between whole servers: shares, and seconds per byte at the busiest NIC."""
    own = gpu_groups(cluster)
    rates = sorted(rank.out_rate for rank in view(cluster, own, shares_by_rate(own)).ranks)
    rings = nested_shares(rates)
    return rings, max(load / rate for load, rate in zip(ring_loads(rings, len(rates)), rates, strict=True))


def mix(columns: Sequence[Column]) -> tuple[tuple[Fraction, ...], Fraction, Fraction]:
    """(shares of the columns, seconds per byte of the busiest resource, gap to the bound of the prices), exact."""
    import cvxpy as cp  # takes a second to load, and most clusters need no mix

    rows = list(dict.fromkeys(zip(*columns, strict=True)))
    unit = max(map(max, rows))
    costs = np.array([[float(cost / unit) for cost in row] for row in rows])
    shares, time = cp.Variable(len(columns), nonneg=True), cp.Variable()
    fits = costs @ shares <= time
    program = cp.Problem(cp.Minimize(time), [fits, cp.sum(shares) == 1])
    program.solve(solver=cp.HIGHS)
    if shares.value is None:
        raise OptccError(f"the linear program over parts has no solution: {program.status}")
    found = _rational(shares.value.tolist())
    prices = _rational(np.abs(fits.dual_value).tolist())
    seconds = max(sum((c * x for c, x in zip(row, found, strict=True)), Fraction(0)) for row in rows)
    bound = min(
        sum((p * row[k] for p, row in zip(prices, rows, strict=True) if p), Fraction(0)) for k in range(len(columns))
    )
    return found, seconds, seconds / bound - 1


def _rational(values: Sequence[float]) -> tuple[Fraction, ...]:
    """Numbers of 0 or more with the sum 1 exactly: rounded, and the largest takes what is missing."""
    total = sum(values)
    found = [Fraction(round(max(value, 0.0) / total * _DENOMINATOR), _DENOMINATOR) for value in values]
    largest = max(range(len(found)), key=lambda i: found[i])
    found[largest] += 1 - sum(found, Fraction(0))
    return tuple(found)


def _alike(cluster: Cluster) -> bool:
    """Whether nothing but NICs and NVLink limits a part of whole servers. True on one fabric, or if all servers have
    the same part of their rate on each rail and GPU: carried data then meets on its rail.
    """
    if cluster.fabric.pod_oversubscription is not None:
        return False
    found = set()
    for server in cluster.servers if cluster.fabric.rails else ():
        if not (server.out_rate and server.in_rate):
            return False
        nics = [(server.gpu_of(i), i if nic.rail is None else nic.rail, nic) for i, nic in enumerate(server.nics)]
        parts = [(g, rail, x.out_rate / server.out_rate, x.in_rate / server.in_rate) for g, rail, x in nics if x.alive]
        if any(out != into for _, _, out, into in parts):
            return False
        found.add((server.gpus, *sorted(parts)))
    return len(found) <= 1


def _kinds(cluster: Cluster) -> Iterator[tuple[BufferPart, Column]]:
    """The kinds of parts that can be, each as a part of the whole buffer, and its costs."""
    whole = Fraction(1)
    for crowd in (*_crowds(cluster), *_slots(cluster)):
        own = gpu_groups(cluster, crowd.teams)
        try:
            carry = shares_of_slot(own, crowd.slots[0], crowd.guests) if crowd.slots else shares_by_rate(own)
        except InfeasibleError:
            continue
        # Rings of all groups, and of those that are stronger than some: nested rings need no others, and no guests.
        if crowd.slots:
            strength: list[tuple[Fraction, ...]] = [slot_strength(*pair) for pair in zip(own, carry, strict=True)]
        else:
            strength = [(rank.out_rate,) for rank in view(cluster, own, carry).ranks]
        hosts = sorted((x for i, x in enumerate(strength) if i not in crowd.guests), reverse=True)
        for ring in (size for size in range(1, len(hosts) + 1) if size == len(hosts) or hosts[size] < hosts[size - 1]):
            part = replace(crowd, share=whole, rings={ring: whole})
            try:
                schedule = inside_servers(cluster, [part], 1, FINE).lower(cluster, COUNTED_BYTES)
            except InfeasibleError:
                continue
            yield part, costs(cluster, schedule)


def _crowds(cluster: Cluster) -> Iterator[BufferPart]:
    """Whole servers, where all that they carry can meet; on one fabric also teams, as long as the rings over them are
    not too long to write down.
    """
    if cluster.fabric.rails and cluster.fabric.spine is None and not _alike(cluster):
        return
    gpus, most = gcd(*(s.gpus for s in cluster.servers)), max(s.gpus for s in cluster.servers)
    for teams in range(1, gpus + 1):
        rows = 2 * (len(cluster.servers) * teams) ** 2 * most // teams
        if teams == 1 or (cluster.fabric.flat and gpus % teams == 0 and rows <= MOST_ROWS):
            yield BufferPart(Fraction(1), teams, {})


def _slots(cluster: Cluster) -> Iterator[BufferPart]:
    """On rails: a place in all servers, as long as it has no NICs or slow ones in few of them, with these as guests.

    Places at which all servers have equal rates are taken together: what is best for one is best for all.
    """
    own, found = gpu_groups(cluster), dict[tuple[Fraction, ...], list[int]]()
    for slot in range(min(len(group.gpus) for group in own)) if cluster.fabric.rails else ():
        found.setdefault(tuple(usable(group.gpus[slot]) for group in own), []).append(slot)
    for rates, slots in found.items():
        for least in sorted({min(rate for rate in rates if rate), max(rates)} if any(rates) else ()):
            guests = tuple(i for i, rate in enumerate(rates) if rate < least)
            yield BufferPart(Fraction(1), 1, {}, tuple(slots), guests)


def costs(cluster: Cluster, schedule: Schedule) -> Column:
    """Seconds per byte of the buffer that `schedule` takes of every port out, every port in, and every link."""
    rates: dict[str, tuple[Fraction, Fraction]] = {}
    for server in cluster.servers:
        rates |= {f"{server.name}/{nic.name}": (nic.out_rate, nic.in_rate) for nic in server.nics}
        rates |= {f"{server.name}/gpu{g}/nvlink": (server.nvlink_rate,) * 2 for g in range(server.gpus)}
    exact = [rates[port.name] for port in schedule.ports]
    speeds = [*(out for out, _ in exact), *(into for _, into in exact), *cluster.uplinks.values()]
    moved, ports = [Fraction(0)] * len(speeds), len(schedule.ports)
    for route, nbytes in zip(schedule.routes, _route_bytes(schedule), strict=True):
        for lane in route.lanes:
            for resource in (lane.out, ports + lane.into, *(2 * ports + link for link in lane.links)):
                moved[resource] += lane.share * nbytes
    return tuple(b / speed / schedule.nbytes if b else Fraction(0) for b, speed in zip(moved, speeds, strict=True))


def _route_bytes(schedule: Schedule) -> list[int]:
    # Whole numbers throughout: sums in floating point would miss bytes of large buffers.
    moved = np.zeros(len(schedule.routes), np.int64)
    np.add.at(moved, schedule.route, schedule.length)
    return [int(nbytes) for nbytes in moved]


def _by_crowd(kinds: Sequence[BufferPart], shares: Sequence[Fraction]) -> list[Fraction]:
    """For every kind the share of all with its groups, or 0 if its own is."""
    total: dict[object, Fraction] = {}
    for kind, share in zip(kinds, shares, strict=True):
        total[_crowd(kind)] = total.get(_crowd(kind), Fraction(0)) + share
    return [share and total[_crowd(kind)] for kind, share in zip(kinds, shares, strict=True)]


def _merged(kinds: Sequence[BufferPart], shares: Sequence[Fraction]) -> tuple[BufferPart, ...]:
    """One part for all kinds of the same groups."""
    found: dict[object, list[tuple[BufferPart, Fraction]]] = {}
    for kind, share in zip(kinds, shares, strict=True):
        if share:
            found.setdefault(_crowd(kind), []).append((kind, share))
    parts = []
    for mine in found.values():
        total = sum((share for _, share in mine), Fraction(0))
        parts.append(replace(mine[0][0], share=total, rings={m: x / total for kind, x in mine for m in kind.rings}))
    return tuple(parts)


def _crowd(kind: BufferPart) -> object:
    return kind.teams, kind.slots, kind.guests
