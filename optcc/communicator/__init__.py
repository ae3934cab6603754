"""Collectives on the caller's own buffers: an object in every process of a job, called alike by all of them.

    with optcc.Communicator() as comm:  # in processes that torchrun, mpirun or srun have started
        comm.all_reduce(gradients, op="sum")

Names and arguments follow torch.distributed; docs/communicator.md is the guide. What callers see is in `interface`,
their buffers in `buffers`, each collective in `collectives`, which schedule it runs in `prepared`.

Imported by: torch_backend.
Imports: api, diagnose, discover, plans, runtime.control, runtime.devices, runtime.errors, runtime.forks,
    runtime.messages, runtime.native, schedule, values.
"""

from optcc.communicator.clusters import read_cluster
from optcc.communicator.handles import Handle
from optcc.communicator.interface import Communicator

__all__ = ["Communicator", "Handle", "read_cluster"]
