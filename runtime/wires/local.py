"""Wires between processes of one machine: chunks written straight into the far end's slots, NIC rates emulated.

As with an RDMA write with immediate, the sender puts a chunk into its landing slot and a notification into a ring; both
are in shared memory. Credits go back by another. What has landed is marked in shared memory, which the sender looks at
whenever it is awake; a message comes only if it has asked for one (`hasten`).

Every wire has a socket. A byte on it wakes who sleeps, once a sleep; while both are awake nobody calls the kernel for a
chunk. And it tells when the other end is gone, which is looked at whenever there is nothing else to do, and every
LOOK_S.

A connection that closes is a link that went down; notifications under way on it are lost, and with them their chunks. A
chunk counts as arrived when its emulated NICs have served it, not when its bytes are here. So a NIC that dies in the
middle of a chunk loses it.
"""

from __future__ import annotations

import errno
import math
import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from optcc.runtime.engine.transport import Watch
from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import (
    HEADER_BYTES,
    Arrived,
    Cause,
    Completed,
    Credited,
    Drained,
    Failed,
    FlowSpec,
    Happening,
    Wire,
)
from optcc.runtime.wires.local_ends import ReceivingEnd, SendingEnd, Unsent
from optcc.runtime.wires.local_faults import LocalFaults
from optcc.runtime.wires.local_meeting import connect_ends
from optcc.runtime.wires.pacing import Chunk, PortClocks, Rates
from optcc.runtime.wires.rings import Ring, fence
from optcc.runtime.wires.slots import Slots

_CALL = 2**32 - 1  # instead of a chunk's bytes: wake me when this chunk, noticed before, has landed
_ACK, _CREDIT = 1, 2
LOOK_S = 1e-3
"""At sockets and at the watch so often at least, and at a ring that was full: those who read it may be paused."""


class LocalWires(LocalFaults):
    """One rank's ends. `exchange` is an all-gather over the ranks of the job.

    rates : by NIC; inf is as fast as the machine goes
    """

    def __init__(
        self,
        rank: int,
        wires: Sequence[Wire],
        flows: Sequence[FlowSpec],
        rates: Sequence[Rates],
        *,
        exchange: Callable[[Any], list[Any]],
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._wires, self._flows, self._watch, self._clock = rank, wires, flows, watch, clock
        self._clocks = PortClocks(rates)
        self._slots = self._slots_of(rank)
        self._far: dict[int, Slots] = {}  # other ranks' slots
        self._news: list[Happening] = []
        self._out: dict[int, SendingEnd] = {}
        self._in: dict[int, ReceivingEnd] = {}
        self._dirty: set[int] = set()  # incoming wires with acknowledgements or credits to send
        self._full: set[int] = set()  # outgoing wires with something unsent, for their ring has no room
        self._stuck: dict[int, list[tuple[Any, ...]]] = {}  # wire -> records that a black hole keeps
        self._notices: list[Ring] = []  # to read
        self._backs: list[Ring] = []  # likewise
        self._sleeps = 0
        self._look_at = -math.inf  # when to look at sockets next
        # Wires whose chunks, or whose acknowledgements and credits, do not come through: what would have landed.
        self._no_data: dict[int, list[Arrived]] = {}
        self._no_acks: set[int] = set()
        self._unsaid: dict[int, dict[int, int]] = {}  # such a wire -> flow -> its last chunk that has landed
        self._calls: dict[tuple[int, int], int] = {}  # incoming wire, flow -> the chunk to wake its sender for
        self._asked: dict[tuple[int, int], int] = {}  # outgoing wire, flow -> the chunk that was asked for
        self._told: dict[tuple[int, int], int] = {}  # the same -> what is below has been told
        self._bug = ""
        self._epoll = select.epoll()
        self._ends: dict[int, SendingEnd | ReceivingEnd] = {}  # by descriptor
        try:
            connect_ends(rank, wires, exchange, self._slots, self._borrow, self._adopt, clock)
            self._open_rings()
            self._epoll.register(watch.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adopt(self, end: SendingEnd | ReceivingEnd) -> None:
        if isinstance(end, ReceivingEnd):
            self._in[end.wire] = end
        else:
            self._out[end.wire] = end
        end.sock.setblocking(False)
        self._ends[end.sock.fileno()] = end
        self._epoll.register(end.sock.fileno(), select.EPOLLIN)

    def _open_rings(self) -> None:
        """One pair for each rank that sends here, and for each that this one sends to, however many wires there are."""
        backs = {}
        for src in self._slots.senders:
            self._notices.append(self._slots.notices(src))
            backs[src] = self._slots.backs(src)
        notices = {}
        for dst, far in self._far.items():
            notices[dst] = far.notices(self._rank)
            self._backs.append(far.backs(self._rank))
        for wire, out in self._out.items():
            out.notices = notices[self._wires[wire].dst]
        for wire, end in self._in.items():
            end.src = self._wires[wire].src
            end.backs = backs[end.src]

    def _borrow(self, rank: int, fd: int) -> Slots:
        """The slots of another rank. It lends them with every wire; once is enough."""
        if rank in self._far:
            os.close(fd)
        else:
            self._far[rank] = self._slots_of(rank, fd)
        return self._far[rank]

    def _slots_of(self, rank: int, fd: int | None = None) -> Slots:
        """This rank's slots; those of another, which lends `fd`."""
        return Slots(rank, self._flows, fd)

    def register(self, memory: memoryview) -> None:
        """Any memory will do."""

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        """At once, if there is room for the notification; else `poll` does it."""
        start, end = self._clocks.depart(self._wires[wire].out, len(payload), ready)
        out = self._out.get(wire)
        if out is None:
            return  # its loss has been reported
        if out.unsent or wire in self._no_data or not self._put(out, flow, seq, header, payload, start, end):
            out.unsent.append(Unsent(flow, seq, header, payload, start, end))

    def _put(self, out: SendingEnd, flow: int, seq: int, header: bytes, payload: Any, start: float, end: float) -> bool:
        """A chunk into its slot and a notification into the ring; False: that has no room. Both not, on a lost wire."""
        far, wire = out.far, out.wire
        if far.is_closed(wire):
            self._fail(wire, os.strerror(errno.EPIPE))
            return True
        far.put(flow, seq, header, payload)
        if not out.notices.put(flow, len(payload), seq, start, end, wire):
            self._full.add(wire)
            return False
        fence()
        sleep = far.sleeps()
        if sleep and sleep != out.woke:
            self._wake(out, sleep)
        return True

    def _wake(self, end: SendingEnd | ReceivingEnd, sleep: int) -> None:
        """A byte for the peer's `sleep`; one of another wire may find it deaf, so each wakes for itself."""
        end.woke = sleep
        try:
            end.sock.send(b"!")
        except BlockingIOError:
            pass  # full of such bytes
        except OSError as error:
            self._fail(end.wire, str(error.strerror))

    def free_at(self, wire: int, now: float) -> float:
        """When the emulated NIC is free, but not before what was written to this wire before is out."""
        out = self._out.get(wire)
        if out is not None and out.unsent:
            return math.inf
        return self._clocks.free_at(self._wires[wire].out)

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """Goes at once."""
        self._reply(wire, _CREDIT, flow, folded)
        self._send_replies(wire)

    def hasten(self, wire: int, flow: int, seq: int) -> None:
        """Tell of this chunk's completion as soon as it has landed, and now how far the flow has come by this wire.

        Of what nobody has asked for only credits tell: a look at a mark, or a message, for every chunk costs too much.
        """
        out = self._out.get(wire)
        if out is None or self._asked.get((wire, flow)) == seq:
            return
        if out.far.landed(flow, wire) <= seq and wire not in self._no_data:
            if not out.notices.put(flow, _CALL, seq, 0.0, 0.0, wire):
                self._full.add(wire)
                return
            fence()
            sleep = out.far.sleeps()
            if sleep and sleep != out.woke:
                self._wake(out, sleep)
                if wire not in self._out:
                    return  # gone, as `poll` will tell
        self._asked[wire, flow] = seq

    def landed(self, wire: int, flow: int) -> int:
        """What is below has landed of an outgoing flow, as far as it can be seen now: nobody is asked or woken."""
        out = self._out.get(wire)
        return out.far.landed(flow, wire) if out is not None and wire not in self._no_acks else 0

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """Nobody can read this rank's memory."""

    def ask_record(self, wire: int, flow: int) -> bool:
        """Not over sockets."""
        return False

    def fence(self, wire: int) -> None:
        """Close this end; what came on it and has not landed is lost. What the sending end writes, it writes at once,
        so it has none under way: after this no byte of an old write goes anywhere.
        """
        self._close(wire)
        self._news.append(Drained(wire))

    def slot(self, flow: int, seq: int) -> memoryview:
        """Header and room for the payload."""
        return self._slots.slot(flow, seq)

    def poll(self, until: float) -> list[Happening]:
        """What is in the rings; a wait only if there is nothing; then what has landed by now."""
        if self._bug:
            raise TransportError(self._bug)
        self._read_rings()
        if self._full:
            self._flush_full()
        now = self._clock()
        self._land(now)
        if self._asked:
            self._see_landed()
        if not self._news or until == -math.inf or now >= self._look_at:
            wake = -math.inf if self._news else min(until, self._clocks.next_landing())
            if self._full or self._dirty - self._no_acks:
                wake = min(wake, now + LOOK_S)
            if (until == -math.inf or now >= self._look_at) if wake <= now else self._sleep(wake - now):
                self._look(now)
            self._land(self._clock())
            if self._asked:
                self._see_landed()
        if self._dirty:
            for wire in [*self._dirty]:
                self._send_replies(wire)
        news, self._news = self._news, []
        return news

    def _sleep(self, seconds: float) -> bool:
        """Until a socket or the watch speaks, at most so long; not if something has come. Whether one spoke."""
        self._sleeps += 1
        self._say_sleep(self._sleeps)
        fence()
        before = len(self._news)
        self._read_rings()
        # What has come and is under way yet, as emulated NICs have it, lands later, but maybe before the time is over.
        came = len(self._news) > before
        if not came:
            seconds = min(seconds, self._clocks.next_landing() - self._clock())
        # select() and not epoll's own timeout, which Python rounds up to a millisecond; select's to a microsecond.
        timeout = None if seconds == math.inf else max(0.0, seconds)
        spoke = bool(select.select([self._epoll], [], [], 0.0 if came else timeout)[0])
        self._say_sleep(0)
        return spoke

    def _say_sleep(self, nth: int) -> None:
        self._slots.sleep(nth)
        for far in self._far.values():
            far.sleep(nth, self._rank)

    def _look(self, now: float) -> None:
        """At the watch and at all sockets; what was said before any of them spoke is told before."""
        self._look_at = now + LOOK_S
        ready = self._epoll.poll(0)
        if self._watch.fileno() in dict(ready):
            self._watch.check()
            ready = self._epoll.poll(0)  # so that what had come when the watch spoke is told with it
        self._read_rings()
        self._land(self._clock())
        for fd, _ in ready:
            end = self._ends.get(fd)
            if end is not None:  # else the watch again, at the next look
                self._hear(end)

    def _land(self, now: float) -> None:
        """What is through its emulated NICs."""
        landed = self._clocks.landed(now)
        if landed:
            arrived = [Arrived(wire, flow, seq, at) for at, (flow, seq, _, wire) in landed]
            self._arrive(self._held_back(arrived) if self._no_data else arrived)

    def _held_back(self, arrived: Iterable[Arrived]) -> list[Arrived]:
        """Keep what a black hole keeps; returns the rest."""
        through: list[Arrived] = []
        for chunk in arrived:
            self._no_data.get(chunk.wire, through).append(chunk)
        return through

    def _arrive(self, arrived: Sequence[Arrived]) -> None:
        self._news += arrived
        self._acknowledge(arrived)

    def _acknowledge(self, arrived: Sequence[Arrived]) -> None:
        """By the last one of each flow on each wire, which stands for those before it."""
        for (wire, flow), seq in {(wire, flow): seq for wire, flow, seq, _ in arrived}.items():
            self._mark(wire, flow, seq)

    def _mark(self, wire: int, flow: int, seq: int) -> None:
        """Tell how far a flow has come; wake its sender, if it wants to know."""
        if self._no_acks and wire in self._no_acks:
            self._unsaid.setdefault(wire, {})[flow] = seq
            return
        self._slots.mark(flow, wire, seq)
        if self._calls:
            self._answer_call(wire, flow)

    def _answer_call(self, wire: int, flow: int) -> None:
        seq = self._calls.get((wire, flow), math.inf)
        if self._slots.landed(flow, wire) > seq:
            self._reply(wire, _ACK, flow, self._calls.pop((wire, flow)))

    def _see_landed(self) -> None:
        """What the marks say of what was asked for."""
        for (wire, flow), seq in [*self._asked.items()]:
            if wire not in self._no_acks:
                landed = self._out[wire].far.landed(flow, wire)
                self._tell(wire, flow, landed)
                if landed > seq:
                    del self._asked[wire, flow]

    def _tell(self, wire: int, flow: int, landed: int) -> None:
        if landed > self._told.get((wire, flow), 0):
            self._told[wire, flow] = landed
            self._news.append(Completed(wire, flow, landed - 1))

    def close(self) -> None:
        """Close every connection, let go of the slots."""
        if self._epoll.closed:
            return
        for wire in [*self._out, *self._in]:
            self._close(wire)
        for slots in (self._slots, *self._far.values()):
            slots.close()
        self._far.clear()
        self._epoll.close()

    def _flush(self, out: SendingEnd) -> None:
        """Write what is unsent while there is room for its notifications."""
        self._full.discard(out.wire)
        while out.unsent and out.wire not in self._no_data:
            if not self._put(out, *out.unsent[0]):
                return
            if out.wire not in self._out:
                return  # it was lost
            out.unsent.popleft()

    def _flush_full(self) -> None:
        for wire in [*self._full]:
            out = self._out.get(wire)
            if out is None:
                self._full.discard(wire)
            else:
                self._flush(out)

    def _read_rings(self) -> None:
        """Notifications, whose chunks are here; and what has come back."""
        for ring in self._notices:
            records = ring.take()
            if records:
                self._notice(records)
        for ring in self._backs:
            for record in ring.take():
                self._back(record)

    def _notice(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Chunks, or the wish to be told."""
        now, passes = self._clock(), self._clocks.passes
        arrived: list[Arrived] = []
        for record in records:
            flow, nbytes, seq, start, stop, wire = record
            if wire not in self._in:
                continue  # lost with its wire
            if wire in self._no_data:
                self._stuck.setdefault(wire, []).append(record)
            elif nbytes == _CALL and flow in self._slots:
                self._arrive(arrived)
                arrived = []
                self._calls[wire, flow] = seq
                self._answer_call(wire, flow)
            elif flow not in self._slots or HEADER_BYTES + nbytes > self._slots.size(flow):
                raise TransportError(f"a chunk of {nbytes} bytes for flow {flow} came on wire {wire}")
            else:
                into = self._wires[wire].into
                at = passes(into, stop, now)
                if at < math.inf:
                    arrived.append(Arrived(wire, flow, seq, at))
                else:
                    self._clocks.arrive(into, Chunk(flow, seq, nbytes, wire), start, stop)
        if arrived:
            self._arrive(arrived)

    def _back(self, record: tuple[Any, ...]) -> None:
        """A credit, which acknowledges, too. An acknowledgement is only to wake: the marks tell more."""
        kind, flow, number, wire = record
        if wire not in self._out:
            return
        if wire in self._no_acks:
            self._stuck.setdefault(wire, []).append(record)
        elif kind == _CREDIT:
            self._tell(wire, flow, number)
            self._news.append(Credited(wire, flow, number))

    def _unstick(self, wire: int) -> None:
        """What a black hole has kept comes through."""
        records = self._stuck.pop(wire, ())
        if wire in self._in:
            self._notice(records)
        else:
            for record in records:
                self._back(record)

    def _hear(self, end: SendingEnd | ReceivingEnd) -> None:
        """Bytes that woke; or the wire is lost, for its other end is gone."""
        try:
            if not end.sock.recv(1 << 12):
                self._fail(end.wire, "closed by the other end")
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(end.wire, str(error.strerror))

    def _reply(self, wire: int, kind: int, flow: int, number: int) -> None:
        end = self._in.get(wire)
        if end is not None:
            end.replies.append((kind, flow, number))
            self._dirty.add(wire)

    def _send_replies(self, wire: int) -> None:
        """All that is to go back on a wire; what finds no room waits for `poll`."""
        end = self._in.get(wire)
        if end is None:
            self._dirty.discard(wire)
            return
        if wire in self._no_acks:
            return
        sent = 0
        for kind, flow, number in end.replies:
            if not end.backs.put(kind, flow, number, wire):
                break
            sent += 1
        del end.replies[:sent]
        if not end.replies:
            self._dirty.discard(wire)
        fence()
        sleep = self._slots.sleeps(end.src)
        if sleep and sleep != end.woke:
            self._wake(end, sleep)

    def _fail(self, wire: int, detail: str) -> None:
        self._close(wire)
        self._news.append(Failed(wire, Cause.CLOSED, detail))

    def _close(self, wire: int) -> None:
        end = self._out.get(wire) or self._in.get(wire)
        if end is not None:
            self._clocks.forget(wire)
            if not self._is_deaf(end):
                self._epoll.unregister(end.sock)
            self._no_data.pop(wire, None)
            self._no_acks.discard(wire)
            self._unsaid.pop(wire, None)
            self._stuck.pop(wire, None)
            if wire in self._in:
                self._slots.close_wire(wire)
            for table in (self._calls, self._asked):
                for key in [key for key in table if key[0] == wire]:
                    del table[key]
            self._out.pop(wire, None)
            self._in.pop(wire, None)
            del self._ends[end.sock.fileno()]
            end.sock.close()
