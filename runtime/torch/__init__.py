"""Plans over torch.distributed: an executor of point-to-point messages, and a communication hook for DDP.

Import names from `optcc.pytorch`, which joins this to the planner. Link failures are left to the engine underneath
(Gloo, NCCL): the failover of `optcc.runtime` is not used here, and a lost rank is an error.

It is an executor of its own, beside the one that `optcc.torch_backend` runs over, on purpose. A hook has the process
group that its user has made, of Gloo or NCCL, and nothing but its calls: no wires of ours, no memory that ranks share,
and on GPUs no host copy, in the order of a stream. Who wants the runtime's failover takes the backend.

Imported by: pytorch.
Imports: plans, runtime.errors, schedule, simulation, values.
"""

from importlib.util import find_spec

from optcc.errors import InputError

if find_spec("torch") is None:
    hint = (
        "In a checkout of optcc: pip install '.[torch]' (with CUDA, 6 GB). For processors alone, before it: "
        "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    )
    raise InputError("torch is not installed", where="optcc.runtime.torch", hint=hint)

import torch
import torch.distributed as dist

from optcc.runtime.torch.hook import HookState
from optcc.runtime.torch.policy import Policy
from optcc.schedule.recipe import Costs

__all__ = ["Costs", "HookState", "Policy", "allreduce_hook"]


# Here and not in a file of postponed annotations: DDP looks at these and wants the classes themselves.
def allreduce_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For ``model.register_comm_hook(state, allreduce_hook)``: average `bucket` over all ranks, by plan or natively."""
    return state.reduce(bucket)
