"""The closed form kept up to date: what one server's new rates change in the bound and in nested rings, and no more.

`lower_bound` and `nested_shares` go over every NIC and every rank, which takes tens of milliseconds for 128 servers of
8. Servers of equal NICs fall into few groups, and the closed forms need only the groups: the same numbers, exactly, in
time that grows with their number. Proof ids cut, traffic, nested-rings.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from optcc.errors import InputError
from optcc.theory.bounds import lower_bound
from optcc.theory.shares import Shares
from optcc.values.bound import Bound, Certificate, Direction, in_words
from optcc.values.cluster import Cluster, Server

Signature = tuple[tuple[Fraction, Fraction], ...]
"""A server as the closed form and the simulator see it: (out, in) of its live NICs, in order, bytes per second."""
HubSplit = tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]
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
        total = sum((rate * len(members) for rate, members in self.levels), Fraction(0))
        return max(1 / self.levels[0][0], 2 * (self.ranks - 1) / total)

    @cached_property
    def loads(self) -> tuple[tuple[Fraction, tuple[int, ...]], ...]:
        """(bytes sent per byte of data, servers that send as much), weakest first: `nested_loads`, level by level.

        At least three servers, of rates above 0.
        """
        found: list[tuple[Fraction, tuple[int, ...]]] = []
        excess, left = Fraction(2 * (self.ranks - 1)), self.ranks
        for place, (rate, members) in enumerate(self.levels):
            load = max(Fraction(1), rate * self.rings_s)
            if excess / left <= load:
                rest = (index for _, others in self.levels[place:] for index in others)
                return (*found, (excess / left, tuple(sorted(rest))))
            found.append((load, members))
            excess, left = excess - load * len(members), left - len(members)
        return tuple(found)

    def shares(self) -> Shares:
        """`nested_shares` of the usable rates: loads differ, and a ring has a share, only where one level ends."""
        p = self.ranks
        if p == 2:
            return {2: Fraction(1)}
        shares: Shares = {}
        ring, below = p, Fraction(1)
        for load, members in self.loads:
            if load > below:
                shares[ring] = (load - below) * Fraction(ring, p - 2)
            ring, below = ring - len(members), load
        return dict(sorted(shares.items()))

    def hub_split(self) -> HubSplit:
        """`optcc.theory.hubs.hub_split` of the usable rates. At least three servers, of rates above 0."""
        p, top = self.ranks, max(load for load, _ in self.loads)
        shares, parts = [Fraction(0)] * p, dict[int, Fraction]()
        for load, members in self.loads:
            share = (load - 1) / (p - 2)
            for index in members:
                shares[index] = share
                if load < top:
                    parts[index] = max(Fraction(0), (1 - (p - 1) * share / (1 - share)) / 2)
        total = max(Fraction(1), sum(parts.values(), Fraction(0)))
        return tuple(shares), tuple((index, parts[index] / total) for index in sorted(parts))

    def bound(self, cluster: Cluster, nbytes: int, fault_free_s: Fraction) -> Bound:
        """`lower_bound(cluster, nbytes)`; `cluster` is the one tallied and `fault_free_s` its fault-free seconds.

        Raises as `lower_bound` does.
        """
        found: list[Certificate] = []
        directions: tuple[Direction, ...] = ("out", "in")
        for side, direction in enumerate(directions):
            rate, first = min((_rates(sign)[side], members[0]) for sign, members in self.groups.items())
            if not rate:
                return lower_bound(cluster, nbytes)  # which says who is cut off
            everyone, total = tuple(range(self.ranks)), self.sum_out if side == 0 else self.sum_in
            found.append(Certificate("cut", direction, (first,), nbytes, rate))
            found.append(Certificate("traffic", direction, everyone, 2 * (self.ranks - 1) * nbytes, total))
        certificate = max(found, key=lambda c: (c.seconds, c.kind == "traffic"))
        return Bound(nbytes, certificate.seconds, fault_free_s, in_words(cluster, certificate), certificate)
