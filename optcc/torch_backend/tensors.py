"""Tensors as the arrays that a communicator takes, and torch's operations by the communicator's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from optcc.errors import InputError
from optcc.torch_backend.options import NAME

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}

_TYPES = {
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
"""Types that the communicator reduces; any other is moved as bytes, and reduced by Gloo."""

_COMPLEX = {torch.complex64, torch.complex128}
"""Summed as pairs of real numbers."""


def op_of(opts: Any, tensors: Sequence[torch.Tensor]) -> str | None:
    """The communicator's name of an operation on these tensors; None: Gloo has to do it.

    opts : torch's options of the call, which have a `reduceOp`
    """
    name = _OPS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    whole = all(t.dtype in _TYPES or (t.dtype in _COMPLEX and name in ("sum", "avg")) for t in tensors)
    return name if whole and not any(t.is_sparse for t in tensors) else None


class HostArray:
    """A tensor as an array that the communicator takes: its own memory, or a copy where that is not on the host or has
    gaps.

    as_bytes : only moved, whatever its type

    Raises InputError for a sparse tensor and for a view that is conjugated or negated lazily.
    """

    def __init__(self, tensor: torch.Tensor, as_bytes: bool = False) -> None:
        tensor = tensor.detach()
        if tensor.is_sparse:
            raise InputError("a sparse tensor", where=NAME, expected="dense tensors", hint="Use the backend gloo.")
        if tensor.is_conj() or tensor.is_neg():
            raise InputError("a conjugated view", where=NAME, hint="Give tensor.resolve_conj().resolve_neg().")
        self._tensor, host = tensor, tensor
        self.copied = tensor.device.type != "cpu" or not tensor.is_contiguous()
        if self.copied:
            host = tensor.to("cpu", memory_format=torch.contiguous_format, copy=True)
        self._host = host
        flat = host.view(-1)
        if as_bytes:
            flat = flat.view(torch.uint8)
        elif flat.dtype in _COMPLEX:
            flat = torch.view_as_real(flat).view(-1)
        self.array = flat

    def back(self) -> None:
        """Into the tensor, where it is a copy."""
        if self.copied:
            self._tensor.copy_(self._host)

    def part_from(self, other: HostArray) -> None:
        """Become a copy where both share memory: torch's users may gather in place, into what holds the input."""
        one, two = self.array, other.array
        if one.data_ptr() < two.data_ptr() + two.nbytes and two.data_ptr() < one.data_ptr() + one.nbytes:
            self.array = one.clone()
