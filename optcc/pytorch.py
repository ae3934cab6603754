"""optcc under PyTorch: DDP's gradients go by a plan where links are unequal, and natively where they are not.

Needs torch (the extra `torch`). In a script that torchrun starts, after `init_process_group`:

    model = DistributedDataParallel(model)
    optcc.pytorch.register(model)

Importing it also makes the backend "optcc" known, whose collectives survive NICs. docs/pytorch.md says which of them is
for whom, what is measured, when it switches, and what a lost rank looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.runtime.torch import Costs, HookState, Policy, allreduce_hook
from optcc.runtime.torch.hook import unwrapped
from optcc.schedule.nested import NestedRings
from optcc.torch_backend import Options, communicator_of, grow, join, register_backend, shrink
from optcc.values.cluster import Cluster

__all__ = [
    "Costs",
    "HookState",
    "Options",
    "Policy",
    "all_reduce_state",
    "allreduce_hook",
    "communicator_of",
    "grow",
    "join",
    "register",
    "shrink",
]

register_backend()  # of torch.distributed: init_process_group("optcc")


def register(model: Any, rates: Cluster | Sequence[float] | None = None, **options: Any) -> HookState:
    """Give `model` the hook; returns its state. Called by all ranks of the model's process group.

    model : a DistributedDataParallel, or what ``torch.compile`` made of one
    rates : bytes per second by rank of the model's group; or a cluster whose ranks are the group's
        (`optcc.load_topology` reads the file of `optcc calibrate`); or None: measured, every `policy.every` steps
    options : group, policy, timeout_s, costs, rate: see `HookState`

    Raises InputError, before anything is made, for any other model (FSDP, DataParallel, a plain module). A model that
    takes no hook (it has one, or `mixed_precision`) raises it, too. Another group than the model's is an InputError,
    too. It is raised on all ranks if one was given other arguments or does not call within `timeout_s` seconds.
    """
    state = all_reduce_state(model, rates, **options)
    unwrapped(model).register_comm_hook(state, allreduce_hook)
    return state


def all_reduce_state(model: Any, rates: Cluster | Sequence[float] | None = None, **options: Any) -> HookState:
    """What `register` does but for the last step: ``model.register_comm_hook(state, allreduce_hook)``.

    It is for hooks around ours: torch's ``fp16_compress_wrapper(allreduce_hook)``.

    rates : bytes per second by rank, a cluster, or None; options and errors too are those of `register`
    """
    return HookState(model, _plan, rates=rates, **options)


def _plan(cluster: Cluster, nbytes: int, costs: Costs, segments: int | None) -> Plan:
    """Nested rings where the cluster has them: few ranks send to one at a time.

    Direct exchange and trees are as fast in virtual time, but over TCP many senders to one receiver overflow its queue.
    They reach 1.0 times native DDP, where nested rings reach 1.4 times (docs/pytorch.md).
    """
    from optcc.api import plan

    deep: dict[str, Any] = {"segments": segments} if segments is not None else costs._asdict()
    try:
        return plan(cluster, nbytes, family=NestedRings.family, **deep)
    except InputError:
        return plan(cluster, nbytes, in_place=True, **deep)
