"""The torch.distributed backend "optcc": a process group whose collectives are a communicator's.

    import optcc.pytorch  # registers it
    torch.distributed.init_process_group("optcc")

`group` says which way each call goes. docs/pytorch.md is the guide. Needs torch.

Imported by: pytorch.
Imports: communicator, runtime.control, values.
"""

from optcc.torch_backend.options import NAME, Options
from optcc.torch_backend.start import communicator_of, grow, join, register_backend, shrink

__all__ = ["NAME", "Options", "communicator_of", "grow", "join", "register_backend", "shrink"]
