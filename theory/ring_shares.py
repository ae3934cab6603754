"""Nested rings: how much of the data each ring pattern carries, in closed form, exact.

In pattern m the m strongest ranks form a ring and the other P-m are leaves. A leaf sends and receives each byte
of the pattern once; a ring rank (m+P-2)/m times. Source and proof: proofs/README.md, id nested-rings.

Servers of equal NICs fall into few groups, and the closed forms need only the groups. `GroupCounts` keeps them up to
date: what one server's new rates change in the bound and in nested rings, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice

from optcc.errors import CertificateError, InputError
from optcc.theory.bounds import largest_term, lower_bound
from optcc.values.bound import Bound, in_words
from optcc.values.cluster import Cluster, Server

Shares = dict[int, Fraction]


Levels = Sequence[tuple[Fraction, int]]
"""(usable rate min(out, in) in bytes per second, or load; how many ranks have it), weakest first."""


def level_loads(levels: Levels) -> list[tuple[Fraction, int]]:
    """(bytes that a rank may send per byte of data at the optimum, how many ranks), weakest first: sums to 2(P-1).

    L_i = max(1, B_i T*/n), the largest lowered to a common level. P >= 3, rates above 0.
    """
    ranks = sum(count for _, count in levels)
    per_byte = rings_s(levels)
    found: list[tuple[Fraction, int]] = []
    excess, left = Fraction(2 * (ranks - 1)), ranks
    for rate, count in levels:
        load = max(Fraction(1), rate * per_byte)
        if excess / left <= load:
            return [*found, (excess / left, left)]
        found.append((load, count))
        excess, left = excess - load * count, left - count
    return found


def rings_s(levels: Levels) -> Fraction:
    """Seconds per byte of nested rings in the fluid limit, T*/n, for levels of rates above 0."""
    ranks, total = sum(count for _, count in levels), sum((rate * count for rate, count in levels), Fraction(0))
    return max(1 / levels[0][0], 2 * (ranks - 1) / total)


def level_shares(levels: Levels) -> Shares:
    """`nested_shares` of levels of rates: loads differ, and a ring has a share, only where one level ends. P >= 2."""
    ranks = sum(count for _, count in levels)
    if ranks == 2:
        return {2: Fraction(1)}
    shares: Shares = {}
    ring, below = ranks, Fraction(1)
    for load, count in level_loads(levels):
        if load > below:
            shares[ring] = (load - below) * Fraction(ring, ranks - 2)
        ring, below = ring - count, load
    return dict(sorted(shares.items()))


def nested_shares(rates: Sequence[Fraction]) -> Shares:
    """Share of the data in each ring pattern, {ring size m: share}, zero shares left out; sums to 1.

    `rates` in bytes per second, one per rank, any order: the usable rate of a rank, min(out, in). Raises
    InputError when one is not positive. One rank needs no ring: {}. Two ranks: {2: 1}.
    """
    if not rates or min(rates) <= 0:
        raise InputError("a rank without bandwidth", where="rates", expected="rates > 0", got=str(list(rates)))
    if len(rates) == 1:
        return {}
    return level_shares([(Fraction(rate), 1) for rate in sorted(rates)])


def ring_loads(shares: Mapping[int, Fraction], ranks: int) -> list[Fraction]:
    """Bytes sent (and received) per byte of data by each rank, weakest first, when patterns have `shares`."""
    loads = []
    for i in range(ranks):
        load = Fraction(0)
        for m, share in shares.items():
            load += share * (Fraction(m + ranks - 2, m) if i >= ranks - m else 1)
        loads.append(load)
    return loads


def check_loads(shares: Mapping[int, Fraction], rates: Sequence[Fraction], seconds_per_byte: Fraction) -> None:
    """Raise CertificateError unless `shares` carry all the data within `rates` in `seconds_per_byte`, exactly.

    rates : bytes per second of each rank, in any order; seconds_per_byte : of the data, T / n

    This is the primal half of the optimum's certificate: with a lower bound of the same value it proves both.
    """
    if sum(shares.values()) != 1 or min(shares.values()) < 0 or not all(1 <= m <= len(rates) for m in shares):
        raise CertificateError(f"shares {dict(shares)} do not split the data")
    for load, rate in zip(ring_loads(shares, len(rates)), sorted(rates), strict=True):
        if load > rate * seconds_per_byte:
            raise CertificateError(f"a rank of {rate} B/s would have to send {load} bytes per byte of data")


HubSplit = tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]


def hub_split(cluster: Cluster) -> HubSplit:
    """(each rank's part of the data as a hub, (slow rank, part of the full ranks' data that it adds last to)).

    Rates are the smaller of out and in. A rank of load L (proof id nested-rings) is the hub of x = (L - 1)/(P - 2): it
    receives (P-1) x of raw data and 1 - x of results, and sends the reverse. A slow rank that adds last to part b of
    the others' data receives (P-1) x + b (1-x) before, and (1-b)(1-x) after; it sends the reverse, so that all four
    are half its load at b = 1/2 - (P-1) x / (2 (1-x)). That is exact for one slow rank. Several add last to less, for
    1 - x counts each other's data, too: halves differ, but less has to wait.
    Three ranks or more, rates above 0.
    """
    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    order = sorted(range(len(rates)), key=lambda r: (rates[r], r))
    return level_hubs([(rates[r], 1) for r in order], order)


def level_hubs(levels: Levels, order: Sequence[int]) -> HubSplit:
    """`hub_split` of levels of rates; `order`: the ranks, weakest first."""
    p, loads, ranks = len(order), level_loads(levels), iter(order)
    shares, parts = [Fraction(0)] * p, dict[int, Fraction]()
    for load, count in loads:
        share = (load - 1) / (p - 2)
        for r in islice(ranks, count):
            shares[r] = share
            if load < loads[-1][0]:
                parts[r] = max(Fraction(0), (1 - (p - 1) * share / (1 - share)) / 2)
    total = max(Fraction(1), sum(parts.values(), Fraction(0)))
    return tuple(shares), tuple((r, parts[r] / total) for r in sorted(parts))


Signature = tuple[tuple[Fraction, Fraction], ...]
"""A server as the closed form and the simulator see it: (out, in) of its live NICs, in order, bytes per second."""
Key = frozenset[tuple[Signature, int]]


def signature(server: Server) -> Signature:
    """Equal for servers that differ in names, rails, GPUs and dead NICs only."""
    return tuple((nic.out_rate, nic.in_rate) for nic in server.nics if nic.alive)


def _rates(sign: Signature) -> tuple[Fraction, Fraction]:
    return sum((out for out, _ in sign), Fraction(0)), sum((into for _, into in sign), Fraction(0))


@dataclass(frozen=True)
class GroupCounts:
    """A cluster on one non-blocking fabric with servers as ranks, at least two, by groups of equal servers.

    groups : signature -> indices of its servers, ascending
    sum_out, sum_in : bytes per second of all NICs together
    """

    groups: dict[Signature, tuple[int, ...]]
    sum_out: Fraction
    sum_in: Fraction

    @classmethod
    def of(cls, cluster: Cluster) -> GroupCounts:
        """Count `cluster`. Raises InputError where there is no closed form."""
        if cluster.gpu_ranks or not cluster.fabric.flat or len(cluster.servers) < 2:
            raise InputError("no closed form", where="cluster", expected="2 or more servers as ranks, a flat fabric")
        members: dict[Signature, list[int]] = {}
        for index, server in enumerate(cluster.servers):
            members.setdefault(signature(server), []).append(index)
        rates = [(_rates(sign), len(found)) for sign, found in members.items()]
        return cls(
            {sign: tuple(found) for sign, found in members.items()},
            sum((out * count for (out, _), count in rates), Fraction(0)),
            sum((into * count for (_, into), count in rates), Fraction(0)),
        )

    def moved(self, index: int, old: Server, new: Server) -> GroupCounts:
        """Server number `index` was `old` and is `new`."""
        before, after = signature(old), signature(new)
        groups = dict(self.groups)
        left = tuple(i for i in groups.pop(before) if i != index)
        if left:
            groups[before] = left
        groups[after] = tuple(sorted((*groups.get(after, ()), index)))
        (out_was, in_was), (out_is, in_is) = _rates(before), _rates(after)
        return GroupCounts(groups, self.sum_out - out_was + out_is, self.sum_in - in_was + in_is)

    @cached_property
    def key(self) -> Key:
        """Equal for clusters that are each other with the servers relabelled."""
        return frozenset((sign, len(members)) for sign, members in self.groups.items())

    @cached_property
    def ranks(self) -> int:
        """How many servers."""
        return sum(map(len, self.groups.values()))

    @cached_property
    def levels(self) -> tuple[tuple[Fraction, tuple[int, ...]], ...]:
        """(usable rate min(out, in), servers of that rate, ascending), weakest first."""
        found: dict[Fraction, tuple[int, ...]] = {}
        for sign, members in self.groups.items():
            rate = min(_rates(sign))
            found[rate] = tuple(sorted((*found[rate], *members))) if rate in found else members
        return tuple(sorted(found.items()))

    @property
    def order(self) -> tuple[int, ...]:
        """Servers from weakest to strongest, as nested rings take them."""
        return tuple(index for _, members in self.levels for index in members)

    @cached_property
    def rings_s(self) -> Fraction:
        """Seconds per byte of nested rings in the fluid limit, T*/n. Rates must be above 0."""
        return rings_s([(rate, len(members)) for rate, members in self.levels])

    def shares(self) -> Shares:
        """`nested_shares` of the usable rates."""
        return level_shares([(rate, len(members)) for rate, members in self.levels])

    def hub_split(self) -> HubSplit:
        """`hub_split` of the usable rates. At least three servers, of rates above 0."""
        return level_hubs([(rate, len(members)) for rate, members in self.levels], self.order)

    def bound(self, cluster: Cluster, nbytes: int, fault_free_s: Fraction) -> Bound:
        """`lower_bound(cluster, nbytes)`; `cluster` is the one tallied and `fault_free_s` its fault-free seconds.

        Raises as `lower_bound` does.
        """
        slowest = [min((_rates(sign)[side], members[0]) for sign, members in self.groups.items()) for side in (0, 1)]
        if not all(rate for rate, _ in slowest):
            return lower_bound(cluster, nbytes)  # which says who is cut off
        certificate = largest_term(self.ranks, nbytes, slowest, (self.sum_out, self.sum_in))
        return Bound(nbytes, certificate.seconds, fault_free_s, in_words(cluster, certificate), certificate)
