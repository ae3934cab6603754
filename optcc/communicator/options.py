"""Options of a communicator, which those that come of it by shrinking, growing and splitting take over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optcc.communicator.clusters import MessageCosts
from optcc.runtime.control.member import TIMEOUT_S
from optcc.runtime.messages import Note


@dataclass(frozen=True)
class CommunicatorOptions:
    """What holds for a communicator and for those that come of it; see `Communicator`."""

    costs: MessageCosts
    timeout_s: float = TIMEOUT_S
    return_s: float | None = None
    reproducible: bool = False
    tune: bool = True
    on_event: Callable[[Note], None] | None = None
