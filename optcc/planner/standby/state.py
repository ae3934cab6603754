"""What is known of the job's NICs, as a value, and what an event makes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic
from optcc.values.units import parse_rate

Rate = str | int | Fraction


@dataclass(frozen=True)
class Places:
    """Where each NIC of a cluster is, by its name SERVER/NIC: (server, index in it)."""

    cluster: Cluster
    by_name: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, cluster: Cluster) -> Places:
        """All NICs of `cluster`."""
        named = {
            f"{server.name}/{nic.name}": (s, i)
            for s, server in enumerate(cluster.servers)
            for i, nic in enumerate(server.nics)
        }
        return cls(cluster, named)

    def __getitem__(self, nic: str) -> tuple[int, int]:
        place = self.by_name.get(nic) if isinstance(nic, str) else None
        if place is None:
            self.cluster.degrade(str(nic)[:600])  # which says what is wrong with the name
            raise InputError("not a NIC", where="nic", expected="SERVER/NIC", got=str(nic)[:600])
        return place


@dataclass(frozen=True)
class State:
    """The cluster after `events` events."""

    cluster: Cluster
    events: int = 0

    @cached_property
    def deviations(self) -> frozenset[tuple[str, Fraction, Fraction]]:
        """(NIC, rate out, rate in) of every NIC that is not what it was without failures."""
        found = set()
        for server, whole in zip(self.cluster.servers, self.cluster.fault_free.servers, strict=True):
            if server is not whole:
                pairs = zip(server.nics, whole.nics, strict=True)
                found |= {(f"{server.name}/{n.name}", n.out_rate, n.in_rate) for n, w in pairs if n != w}
        return frozenset(found)

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """Of every place in servers at which several have a NIC that is dead or slow, how many: direct exchange
        depends on places."""
        found: Counter[int] = Counter()
        for server, whole in zip(self.cluster.servers, self.cluster.fault_free.servers, strict=True):
            if server is not whole:
                pairs = zip(server.nics, whole.nics, strict=True)
                found.update(i for i, (nic, was) in enumerate(pairs) if nic != was)
        return tuple(sorted(count for count in found.values() if count > 1))

    def after(self, place: tuple[int, int], rate: Fraction | None) -> State:
        """The NIC at `place` has at most `rate` bytes per second each way; None: what it had without failures."""
        s, i = place
        pristine = self.cluster.fault_free
        whole = pristine.servers[s].nics[i]
        nic = whole if rate is None else limited(whole, rate)
        changed = self.cluster.with_nic(s, i, nic)
        if changed.servers[s] == pristine.servers[s]:
            # The very same object: what is as it was is found by identity.
            changed = replace(changed, servers=(*changed.servers[:s], pristine.servers[s], *changed.servers[s + 1 :]))
        same = all(now is was for now, was in zip(changed.servers, pristine.servers, strict=True))
        return State(pristine if same else replace(changed, pristine=pristine), self.events + 1)


def limited(nic: Nic, rate: Fraction) -> Nic:
    """`nic` with at most `rate` bytes per second each way."""
    return replace(nic, out_rate=min(nic.out_rate, rate), in_rate=min(nic.in_rate, rate))


def rate_of(rate: Rate, nic: str, whole: Nic) -> Fraction:
    """Bytes per second of what a caller gave for a NIC, "180Gb/s" or a number.

    Raises InputError for what is no rate, and for more than the NIC's rate without failures. The latter is a mistake in
    the topology, the base of every bound so far.
    """
    where = f"rate of {nic}"
    if isinstance(rate, str):
        value = parse_rate(rate, where)
    elif isinstance(rate, (int, Fraction)) and not isinstance(rate, bool) and rate >= 0:
        value = Fraction(rate)
    else:
        raise InputError("not a rate", where=where, expected="bytes per second or such as 180Gb/s", got=str(rate)[:60])
    most = max(whole.out_rate, whole.in_rate)
    if value > most:
        raise InputError(
            "more than the NIC has without failures",
            where=where,
            expected=f"at most {most} bytes/s",
            got=str(value),
            hint="Make a new planner where the topology was wrong.",
        )
    return value
