"""What a user gives the hook, checked on each rank alone; the ranks then compare it (`meeting`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from optcc.errors import InputError
from optcc.runtime.torch.policy import Levels, Policy
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster, Nic, Server


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
