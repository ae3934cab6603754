"""optcc under PyTorch: DDP's gradients go by a plan where links are unequal, and natively where they are not.

Needs torch (the extra `torch`). In a script that torchrun starts, after `init_process_group`:

    model = DistributedDataParallel(model)
    optcc.pytorch.register(model)

docs/pytorch.md says what is measured, when it switches, and what a lost rank looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from optcc.cluster import Cluster, Nic, Server
from optcc.errors import InputError
from optcc.plans import Plan
from optcc.runtime.torch import Costs, HookState, Policy, allreduce_hook
from optcc.schedule.nested import NestedRings

__all__ = ["Costs", "HookState", "Policy", "all_reduce_state", "allreduce_hook", "register"]


def all_reduce_state(rates: Cluster | Sequence[float] | None = None, **options: Any) -> HookState:
    """The hook's state, for ``model.register_comm_hook(state, allreduce_hook)``. Made by all ranks together.

    rates : a cluster whose ranks are the group's (`optcc.load_topology` reads the file of `optcc calibrate`); or
        bytes per second by rank; None: measured, every `policy.every` steps
    options : group, policy, timeout_s, costs, rate: see `optcc.runtime.torch.HookState`
    """
    cluster = rates if isinstance(rates, Cluster) or rates is None else _cluster(rates)
    return HookState(_plan, cluster=cluster, **options)


def register(model: Any, rates: Cluster | Sequence[float] | None = None, **options: Any) -> HookState:
    """Register the hook with `model`, a DistributedDataParallel; returns its state.

    rates : bytes per second by rank, a cluster, or None; options : both as in `all_reduce_state`
    """
    state = all_reduce_state(rates, **options)
    model.register_comm_hook(state, allreduce_hook)
    return state


def _cluster(rates: Sequence[float]) -> Cluster:
    for rank, rate in enumerate(rates):
        if not 0 < rate < float("inf"):
            raise InputError("not a rate", where=f"rank {rank}", expected="bytes per second above 0", got=str(rate))
    nics = [Nic("link", Fraction(rate), Fraction(rate), rail=0) for rate in map(Fraction, rates)]
    return Cluster(tuple(Server(f"rank{r}", (nic,)) for r, nic in enumerate(nics)))


def _plan(cluster: Cluster, nbytes: int, costs: Costs, segments: int | None) -> Plan:
    """Nested rings where the cluster has them: few ranks send to one at a time.

    Direct exchange and trees are as fast in virtual time, but over TCP many senders to one receiver overflow its queue
    (1.0 times native DDP, where nested rings are 1.4 times as fast: docs/pytorch.md).
    """
    from optcc.api import plan

    deep: dict[str, Any] = {"segments": segments} if segments is not None else asdict(costs)
    try:
        return plan(cluster, nbytes, family=NestedRings.family, **deep)
    except InputError:
        return plan(cluster, nbytes, **deep)
