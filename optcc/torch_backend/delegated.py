"""The calls of a group that do not go by its communicator: to Gloo, or refused by name, as `CALLS` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from optcc.errors import InputError
from optcc.torch_backend.calls import CALLS, Call, Way
from optcc.torch_backend.options import NAME, devices


class Delegated(dist.ProcessGroup):  # type: ignore[misc]
    """A process group that has these calls; a subclass has the others.

    gloo : torch's Gloo group of the same ranks
    """

    def __init__(self, rank: int, world: int, gloo: Any) -> None:
        super().__init__(rank, world)
        self.gloo = gloo
        # torch keeps the group's name and sequence number there, and asks it what the group can do besides.
        for device in devices():
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)


def _to_gloo(method: str) -> Callable[..., Any]:
    def call(self: Delegated, *args: Any, **named: Any) -> Any:
        return getattr(self.gloo, method)(*args, **named)

    return call


def _refused(method: str, call: Call) -> Callable[..., Any]:
    def refuse(self: Delegated, *args: Any, **named: Any) -> Any:
        raise InputError(f"{method} is not a call of this backend", where=NAME, hint=f"{call.note}.")

    return refuse


for _call in CALLS:
    for _method in _call.methods:
        if _call.way is Way.GLOO:
            setattr(Delegated, _method, _to_gloo(_method))
        elif _call.way is Way.REFUSED:
            setattr(Delegated, _method, _refused(_method, _call))
