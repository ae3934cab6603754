"""What the parts of `LocalWires` have of each other: its tables, and what one part calls of another."""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from optcc.runtime.engine.transport import Watch
from optcc.runtime.wires.contract import Arrived, Happening, Wire
from optcc.runtime.wires.lent import FarArena
from optcc.runtime.wires.local_ends import ReceivingEnd, SendingEnd
from optcc.runtime.wires.pacing import PortClocks
from optcc.runtime.wires.slots import Slots


class LocalParts(ABC):
    """One rank's ends of local wires."""

    _rank: int
    _wires: Sequence[Wire]
    _watch: Watch
    _clock: Callable[[], float]
    _clocks: PortClocks  # of its emulated NICs
    _slots: Slots
    _far: dict[int, Slots]  # other ranks' slots
    _far_arenas: dict[int, FarArena]  # of ranks that send here
    _news: list[Happening]  # for the next `poll`
    _out: dict[int, SendingEnd]  # by wire
    _in: dict[int, ReceivingEnd]  # likewise
    _ends: dict[int, SendingEnd | ReceivingEnd]  # by descriptor
    _epoll: select.epoll
    _dirty: set[int]  # incoming wires with acknowledgements or credits to send
    _full: set[int]  # outgoing wires with something unsent, for their ring has no room
    _stuck: dict[int, list[tuple[Any, ...]]]  # wire -> records that a black hole keeps
    _sleeps: int  # how often it has slept
    _look_at: float  # when to look at sockets next
    # Wires whose chunks, or whose acknowledgements and credits, do not come through: what would have landed.
    _no_data: dict[int, list[Arrived]]
    _no_acks: set[int]
    _unsaid: dict[int, dict[int, int]]  # such a wire -> flow -> its last chunk that has landed
    _calls: dict[tuple[int, int], int]  # incoming wire, flow -> the chunk to wake its sender for
    _asked: dict[tuple[int, int], int]  # outgoing wire, flow -> the chunk that was asked for
    _told: dict[tuple[int, int], int]  # the same -> what is below has been told
    _bug: str
    away: dict[int, float]  # NIC without a link -> when it has one again; inf: never

    @abstractmethod
    def _adopt(self, end: SendingEnd | ReceivingEnd) -> None:
        """See `LocalWires`."""

    @abstractmethod
    def _borrow(self, rank: int, fd: int) -> Slots:
        """See `LocalWires`."""

    @abstractmethod
    def _close(self, wire: int) -> None:
        """Close this end of a wire."""

    @abstractmethod
    def _fail(self, wire: int, detail: str) -> None:
        """A wire is lost."""

    @abstractmethod
    def _flush(self, out: SendingEnd) -> None:
        """Write what is unsent."""

    @abstractmethod
    def _read_rings(self) -> None:
        """Take in what has come."""

    @abstractmethod
    def _land(self, now: float) -> None:
        """What is through its emulated NICs."""

    @abstractmethod
    def _arrive(self, arrived: Sequence[Arrived]) -> None:
        """Chunks count as arrived."""

    @abstractmethod
    def _unstick(self, wire: int) -> None:
        """Take in what has come while the wire was a black hole."""

    @abstractmethod
    def _acknowledge(self, arrived: Sequence[Arrived]) -> None:
        """Tell how far flows have come."""

    @abstractmethod
    def _mark(self, wire: int, flow: int, seq: int) -> None:
        """Tell how far one flow has come."""

    @abstractmethod
    def _answer_call(self, wire: int, flow: int) -> None:
        """Wake the sender, if it wants to know."""

    @abstractmethod
    def _back(self, record: tuple[Any, ...]) -> None:
        """Take in a record that came back."""

    @abstractmethod
    def _wake(self, end: SendingEnd | ReceivingEnd, sleep: int) -> None:
        """Wake the peer in its `sleep`."""
