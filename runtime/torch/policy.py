"""When to leave the native AllReduce, and for which rates: a function of what all ranks know alike.

Every rank gathers the rates of all and calls `Switch.update` with the same vector. So all decide the same in the same
step without another message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from optcc.errors import InputError
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster, Nic, Server

Levels = tuple[int, ...]
"""Rank -> its rate as a share of a full one, in quanta; `quanta` for all that are full."""


@dataclass(frozen=True)
class Policy:
    """How readily to switch.

    Attributes
    ----------
    quanta : rates are rounded to this many parts of a full one
    enter, leave : the slowest rank's share of a full rate at which the plan is taken, and given up again
    hold : agreements in a row that must want the same before anything changes
    every : steps between two agreements
    gain : the least the plan must be faster than a ring in virtual time, or that bucket stays native
    """

    quanta: int = 16
    enter: float = 0.8
    leave: float = 0.875
    hold: int = 2
    every: int = 50
    gain: float = 1.05

    def __post_init__(self) -> None:
        checks = (
            ("quanta", 2 <= self.quanta <= 1024, "2 to 1024", self.quanta),
            ("enter and leave", 0 < self.enter <= self.leave <= 1, "0 < enter <= leave <= 1", (self.enter, self.leave)),
            ("hold", self.hold >= 1, "1 or more", self.hold),
            ("every", self.every >= 1, "1 or more", self.every),
            ("gain", self.gain >= 1, "1 or more", self.gain),
        )
        for name, holds, expected, got in checks:
            if not holds:
                raise InputError("out of range", where=f"Policy.{name}", expected=expected, got=str(got))

    def levels(self, rates: Sequence[float]) -> Levels:
        """Rates in bytes per second as levels, 1 to `quanta`. InputError for a rate that is none.

        From `leave` on a rate is a full one: a plan for more rates than there are is no better.
        """
        full = full_rate(rates)
        near = [max(1, round(self.quanta * rate / full)) for rate in rates]
        return tuple(self.quanta if level >= self.leave * self.quanta else level for level in near)


def full_rate(rates: Sequence[float]) -> float:
    """What a healthy link carries, bytes per second: the upper median. One lucky measurement makes nobody slow.

    Where more than half of the ranks are slow, slow counts as full; a plan gains little over a ring there.
    """
    for rank, rate in enumerate(rates):
        if not (math.isfinite(rate) and rate > 0):
            raise InputError("not a rate", where=f"rank {rank}", expected="bytes per second above 0", got=str(rate))
    return sorted(rates)[len(rates) // 2]


@dataclass
class Switch:
    """What is in force, `None` for native, and what is wanted instead so far."""

    policy: Policy
    current: Levels | None = None
    _wanted: Levels | None = field(default=None, repr=False)
    _streak: int = field(default=0, repr=False)

    def update(self, rates: Sequence[float]) -> bool:
        """Take in rank -> bytes per second; returns whether `current` has changed.

        While a plan is asked for, each rank's best counts: what disturbs a measurement makes it slower, never quicker.
        """
        wanted = self._want(self.policy.levels(rates))
        if _alike(wanted, self.current):
            self._streak = 0
            return False
        if self._streak and (wanted is None) == (self._wanted is None):
            self._streak += 1
            if wanted is not None and self._wanted is not None:
                wanted = tuple(map(max, wanted, self._wanted))
        else:
            self._streak = 1
        self._wanted = wanted
        if self._streak < self.policy.hold:
            return False
        self._streak = 0
        wanted = wanted and self._want(wanted)
        if _alike(wanted, self.current):
            return False
        self.current = wanted
        return True

    def _want(self, levels: Levels) -> Levels | None:
        share = min(levels) / self.policy.quanta
        degraded = share < self.policy.leave if self.current else share <= self.policy.enter
        return levels if degraded else None


def _alike(one: Levels | None, other: Levels | None) -> bool:
    """The same up to a quantum per rank, which is what a measurement cannot tell apart."""
    if one is None or other is None:
        return one is other
    return all(abs(a - b) <= 1 for a, b in zip(one, other, strict=True))


# What a user gives the hook, checked on each rank alone; the ranks then compare it (`meeting`).


@dataclass(frozen=True)
class Settings:
    """The same on all ranks. See `HookState` for what each means."""

    cluster: Cluster | None
    policy: Policy
    timeout_s: float
    costs: Costs | None


def settings_of(ranks: int, rates: Any, policy: Any, timeout_s: Any, costs: Any) -> Settings:
    """Raises InputError for what a group of `ranks` cannot use, whatever its type."""
    for name, value, kind in (("policy", policy, Policy), ("costs", costs, Costs)):
        if value is not None and not isinstance(value, kind):
            raise InputError(
                f"not {name}", where=name, expected=f"an optcc.pytorch.{kind.__name__}", got=type(value).__name__
            )
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 86400:
        raise InputError("time out of range", where="timeout_s", expected="seconds, above 0 to a day", got=timeout_s)
    cluster = rates if isinstance(rates, Cluster) or rates is None else _cluster_of_rates(rates)
    if cluster is not None and len(cluster.ranks) != ranks:
        raise InputError(
            "another number of ranks",
            where="rates",
            expected=str(ranks),
            got=len(cluster.ranks),
            hint="Give one for each rank of the model's process group, in their order",
        )
    return Settings(cluster, policy or Policy(), timeout_s, costs)


def _cluster_of_rates(rates: Any) -> Cluster:
    wanted = "a cluster, or bytes per second by rank"
    if isinstance(rates, str) or not isinstance(rates, Iterable):
        raise InputError("not rates", where="rates", expected=wanted, got=type(rates).__name__)
    servers = []
    for rank, given in enumerate(rates):
        try:
            rate = float(given)
        except (TypeError, ValueError):
            raise InputError("not a rate", where=f"rank {rank}", expected=wanted, got=repr(given)) from None
        if not 0 < rate < float("inf"):
            raise InputError("not a rate", where=f"rank {rank}", expected="bytes per second above 0", got=str(rate))
        servers.append(_server(rank, Fraction(rate)))
    return Cluster(tuple(servers))


def cluster_of(levels: Levels, full: float, quanta: int) -> Cluster:
    """Ranks as servers of one NIC; `full` in bytes per second."""
    whole = Fraction(max(1, round(full)))
    return Cluster(tuple(_server(rank, whole * level / quanta) for rank, level in enumerate(levels)))


def _server(rank: int, rate: Fraction) -> Server:
    return Server(f"rank{rank}", (Nic("link", rate, rate, rail=0),))
