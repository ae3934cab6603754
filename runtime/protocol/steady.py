"""What both ends of a flow do for every chunk while nothing fails: rules of the tables, without the words.

An event and its commands as words cost more than what they say, and every chunk would pay for them. So these methods
take an event's values and give back a number. Each stands for one rule, in its common case only:

* True (of `passes`, not negative; of `room`, positive): the machine is as `handle` would have left it, and the
  docstring says what it would have commanded.
* False (negative; of `room`, not positive): nothing has changed, the event is for `handle`.

The tables stay the authority: a test holds every method against them, over random interleavings and random events.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from optcc.runtime.protocol.table import Machine


class _Steady(Machine):
    """`steady` is the state in which all this holds; in others it may be a ghost's, or come too late."""

    __slots__ = ("_is_steady",)  # so that no event pays for a look at the class
    steady: ClassVar[StrEnum]
    _is_steady: bool

    def _go(self, state: Any) -> None:
        super()._go(state)
        self._is_steady = state is self.steady


class SteadySender(_Steady):
    """For `Sender`."""

    __slots__ = ("acked", "folded", "posted", "window", "wire")
    wire: int
    window: int
    posted: int
    acked: int
    folded: int

    def room(self) -> int:
        """Send, so many times in a row. Each would command Write(wire, epoch, posted, False), and count `posted` up
        first: whoever writes does both itself.
        """
        return self.window - self.posted + self.folded if self._is_steady else 0

    def acknowledged(self, wire: int, seq: int) -> bool:
        """Acked(wire, seq). It would command Release(acked)."""
        if wire != self.wire or not self.acked <= seq < self.posted or not self._is_steady:
            return False
        self.acked = seq + 1
        return True

    def credited(self, folded: int) -> bool:
        """Credit(wire, folded), of any wire. It would command nothing."""
        if not self.folded <= folded <= self.posted or not self._is_steady:
            return False
        self.folded = folded
        return True


class SteadyReceiver(_Steady):
    """For `Receiver`, likewise."""

    __slots__ = ("_returned", "credit_every", "epoch", "folded", "landed", "wire")
    wire: int
    credit_every: int
    epoch: int
    landed: int
    folded: int
    _returned: int

    def passes(self, wire: int, epoch: int, seq: int) -> int:
        """Landed(wire, epoch, seq), and Folded(seq) right after. They would command Deliver(seq); then Return(wire, n)
        if this gives n > 0, nothing if it gives 0.
        """
        if seq != self.landed or wire != self.wire or epoch != self.epoch or seq != self.folded or not self._is_steady:
            return -1
        self.landed = self.folded = seq = seq + 1
        if seq - self._returned < self.credit_every:
            return 0
        self._returned = seq
        return seq
