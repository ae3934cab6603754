"""One end of a wire: a queue pair, what waits to be posted on it, and what has been posted.

What waits goes in chains, as many requests by one call as there are. Only the last of a chain asks for a completion,
and only once in `VerbsSettings.signals` requests. A queue pair completes sends in the order in which they were posted.
So a completion vouches for all before it, and an error tells exactly how far things went. In the error state a queue
pair gives back all that was posted, as flushed; when the last has come back, nothing can enter or leave any more.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from optcc.runtime.verbs.closing import close_each, closed_if_it_fails
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.posting import CHAIN, NOTHING, Element, ReceiveChain, SendChain
from optcc.runtime.verbs.queue_pair import Endpoint, QueuePair
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.verbs.structs import WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM
from optcc.runtime.wires.contract import HEADER_BYTES


class EndState(Enum):
    """Of one end."""

    OPEN = "open"
    LOST = "lost"  # it has failed, and has not been fenced yet
    FENCING = "fencing"
    DRAINED = "drained"
    FRESH = "fresh"  # made anew, and not connected yet


OPEN, LOST, FENCING, DRAINED, FRESH = EndState
"""Looked up once: in Python 3.11 `EndState.OPEN` is a call, and every chunk would make ten of them."""


class PostedWork(NamedTuple):
    """A send under way: chunk `seq` of `flow`, or a read of the record of `flow` (seq -1), or of nothing (flow -1)."""

    serial: int
    flow: int
    seq: int


class ChunkWrite(NamedTuple):
    """What `End.write` is given: `payload` is (address, bytes), `to` an address of the far end."""

    flow: int
    seq: int
    header: bytes
    payload: tuple[int, int]
    to: int
    immediate: int


class End:
    """The queue pair, its posted work and its state.

    Parameters
    ----------
    sends : requests that may be under way, and not known to be done; receives : that are posted

    Attributes
    ----------
    remote : base and key of the far end's memory, once connected
    work : what is under way or, where nobody has asked, done
    under_way : chunks given to `write` that are not known to be done
    receives : posted, and not come back
    """

    def __init__(
        self, wire: int, nic: VerbsNic, sends: int, receives: int, first_packet: int, settings: VerbsSettings
    ) -> None:
        self.wire, self.nic, self.state = wire, nic, OPEN
        self._sends, self.remote = sends, (0, 0)
        self.work: deque[PostedWork] = deque()
        self._chained: list[PostedWork] = []  # what the chain will post
        self.under_way = self.receives = 0
        self._waiting: deque[ChunkWrite] = deque()
        self._owed: dict[int, int] = {}  # flow -> immediate value of its latest credit
        self._serial = 0
        self._told = 0  # the last serial that asks for a completion
        self._asked = False  # the next chain is to ask for one
        # With half a queue at most between two completions there is always one to come when it is full.
        self._every = max(1, min(settings.signals, sends // 2))
        self._forgot = False
        self.headers, self.headers_at = memoryview(b""), 0  # `sends` places for headers, and where they lie
        # One more than what is kept count of: the mark that ends a fence.
        self.queue_pair = QueuePair(nic, sends + 1, receives, first_packet)
        self._chain, self._receives = SendChain(nic, self.queue_pair), ReceiveChain(nic)
        with closed_if_it_fails(self.close):  # nobody else can, and its NIC does not close before
            self.receive(receives)

    @property
    def endpoint(self) -> Endpoint:
        """For the other end."""
        return self.queue_pair.endpoint

    @property
    def is_open(self) -> bool:
        """Whether it works, as far as is known."""
        return self.state is OPEN

    @property
    def waits(self) -> bool:
        """Whether something waits to be posted."""
        return bool(self._waiting or self._owed or self._asked)

    @property
    def has_room(self) -> bool:
        """Whether one more send may be posted."""
        return len(self.work) < self._sends

    @property
    def will_tell(self) -> bool:
        """Whether a completion will come without being asked for."""
        return bool(self.work) and self.work[0].serial <= self._told

    def connect(self, peer: Endpoint, remote: tuple[int, int], settings: VerbsSettings) -> None:
        """Connect to the far end. Raises VerbsError where there is no way to it."""
        self.queue_pair.connect(peer, settings)
        self.remote = remote

    def receive(self, count: int) -> None:
        """Post receives: so many more immediate values may come."""
        self._receives.post(self.queue_pair, count)
        self.receives += count

    def write(self, chunk: ChunkWrite) -> None:
        """A chunk, to be posted by the next `flush`."""
        self.under_way += 1
        self._waiting.append(chunk)

    def owe(self, flow: int, immediate: int) -> None:
        """A credit, a write of no bytes; the latest of a flow replaces one that still waits."""
        self._owed[flow] = immediate

    def ask(self) -> None:
        """Tell of the completion of all that was given so far."""
        if self._waiting or self._told < self._serial:
            self._asked = True
            self.flush()

    def flush(self) -> None:
        """Post what waits, as far as there is room, a chain by each call. Raises VerbsError."""
        while self.waits and self.state is OPEN:
            room = min(CHAIN, self._sends - len(self.work))
            if not room:
                return
            while self._owed and self._chain.length < room:
                immediate = self._owed.pop(next(iter(self._owed)))
                self._add(-1, -1, WR_RDMA_WRITE_WITH_IMM, self.remote[0], immediate)
            while self._waiting and self._chain.length < room:
                self._add_chunk(self._waiting.popleft())
            if not self._chain.length:  # only a completion is asked for, and nothing that was posted will bring one
                self._add(-1, -1, WR_RDMA_WRITE, self.remote[0])
            self._post(tell=self._asked and not self._waiting)

    def read(self, flow: int, into: int, size: int, source: int) -> None:
        """Post an RDMA READ of `size` bytes at `source` of the far end, which asks for a completion."""
        self._add(flow, -1, WR_RDMA_READ, source, 0, Element(into, size, self.nic.memory.lkey))
        self._post(tell=True)

    def _add_chunk(self, chunk: ChunkWrite) -> None:
        flow, seq, header, (address, nbytes), to, immediate = chunk
        # Numbers of work are consecutive, so of `sends` places this one is not in use.
        place = (self._serial + self._chain.length + 1) % self._sends * HEADER_BYTES
        self.headers[place : place + HEADER_BYTES] = header
        first = Element(self.headers_at + place, HEADER_BYTES, self.nic.memory.lkey)
        second = Element(address, nbytes, self.nic.payload_key)
        self._add(flow, seq, WR_RDMA_WRITE_WITH_IMM, to, immediate, first, second)

    def _add(
        self,
        flow: int,
        seq: int,
        operation: int,
        to: int,
        immediate: int = 0,
        first: Element = NOTHING,
        second: Element = NOTHING,
    ) -> None:
        """One more request to the chain; `flow`, `seq` as of `PostedWork`."""
        serial = self._serial + self._chain.length + 1
        self._chain.add(serial, operation, to, self.remote[1], immediate, first, second)
        self._chained.append(PostedWork(serial, flow, seq))

    def _post(self, tell: bool) -> None:
        chained, self._chained = self._chained, []
        serial = chained[-1].serial
        tell = tell or serial - self._told >= self._every
        self._chain.post(tell)
        self._serial = serial
        self.work += chained
        if tell:
            self._told = serial
            self._asked = self._asked and bool(self._waiting)

    def fence(self) -> None:
        """Into the error state; everything posted comes back, the last thing a mark posted here."""
        self.state = FENCING
        self._drop()
        if self._forgot:
            return  # nothing can enter or leave any more, and from reset no way leads to the error state
        self.queue_pair.fail()
        if self.work:
            # Sends that asked for no completion may be done already, and then never come back by themselves.
            self._add(-1, -1, WR_RDMA_WRITE, self.remote[0])
            self._post(tell=True)

    def abandon(self) -> None:
        """Destroy the queue pair, and take everything posted for come back."""
        self.state = FENCING
        self.queue_pair.close()
        self._drop()
        self.work.clear()
        self.receives = 0

    def forget(self) -> None:
        """Reset the queue pair: what was posted never comes back, what arrives is not answered, nobody is told."""
        self.state, self._forgot = LOST, True
        self.queue_pair.reset()
        self._drop()
        self.work.clear()
        self.under_way = self.receives = 0

    def done(self, serial: int) -> list[PostedWork]:
        """All work up to `serial`, taken off the list."""
        taken = []
        while self.work and self.work[0].serial <= serial:
            work = self.work.popleft()
            self.under_way -= work.seq >= 0
            taken.append(work)
        return taken

    @property
    def is_empty(self) -> bool:
        """Whether everything that was posted has come back."""
        return not self.work and not self.receives

    def close(self) -> None:
        """Destroy the queue pair. Raises VerbsError."""
        close_each(f"wire {self.wire}", [self.queue_pair.close])

    def _drop(self) -> None:
        """What waits is not posted any more."""
        self._waiting.clear()
        self._owed.clear()
        self._asked = False
