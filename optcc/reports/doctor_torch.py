"""What of PyTorch is here. Its backends are known only to a torch that is loaded, which takes seconds."""

from __future__ import annotations

import importlib
import importlib.util

from optcc.machine.findings import PartFinding

_GIVES = "optcc.pytorch: plans over torch.distributed, a hook for DDP"
_GET = "make torch (for processors), or the extra `torch` (with CUDA, 6 GB)"
_BACKENDS = (
    ("gloo", "Gloo", "torch.distributed between processors", "a build of torch with Gloo: make torch"),
    ("nccl", "NCCL", "torch.distributed between GPUs", "a build of torch with CUDA or ROCm (pip install torch)"),
)


def examine_torch() -> list[PartFinding]:
    """torch and its version; where it loads, Gloo and NCCL too, as far as this build has them."""
    if importlib.util.find_spec("torch") is None:
        return [PartFinding("torch", False, "not installed", _GIVES, _GET)]
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except Exception as error:  # a library that it misses, or a build for other processors
        first = (str(error).splitlines() or [""])[0]
        return [
            PartFinding("torch", False, f"cannot be loaded: {type(error).__name__}: {first}", _GIVES, "install it anew")
        ]
    found = [PartFinding("torch", True, str(torch.__version__), _GIVES)]
    for name, title, gives, get in _BACKENDS:
        here = distributed.is_available() and getattr(distributed, f"is_{name}_available")()
        found.append(PartFinding(f"torch {title}", here, "in this build" if here else "not in this build", gives, get))
    return found
