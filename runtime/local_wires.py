"""Wires between processes of one machine: chunks written straight into the far end's slots, NIC rates emulated.

As with an RDMA write with immediate, the sender puts a chunk into its landing slot, which is in shared memory, and what
goes over the wire, a socket per wire, is the notification. Credits go back on the same socket. What has landed is
marked in shared memory, which the sender looks at whenever it is awake; a message that wakes it comes only if it has
asked for one (`hasten`).

A connection that closes is a link that went down; notifications under way on it are lost, and with them their chunks.
A chunk counts as arrived when its emulated NICs are through with it, not when its bytes are here, so a NIC that dies in
the middle of a chunk loses it.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any, Self

from optcc.runtime.errors import TransportError
from optcc.runtime.local_ends import BACK, NOTICE, In, Out, Unsent
from optcc.runtime.local_faults import LocalFaults
from optcc.runtime.local_meeting import connect_ends
from optcc.runtime.pacing import Chunk, PortClocks, Rates
from optcc.runtime.slots import Slots
from optcc.runtime.transport import Watch
from optcc.runtime.wires import (
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

_CALL = 2**32 - 1  # instead of a chunk's bytes: wake me when this chunk, noticed before, has landed
_ACK, _CREDIT = 1, 2


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
        self._wires, self._flows, self._watch, self._clock = wires, flows, watch, clock
        self._clocks = PortClocks(rates)
        self._slots = self._slots_of(rank)
        self._far: dict[int, Slots] = {}  # other ranks' slots
        self._news: list[Happening] = []
        self._out: dict[int, Out] = {}
        self._in: dict[int, In] = {}
        self._dirty: set[int] = set()  # incoming wires with acknowledgements or credits to send
        # Wires whose chunks, or whose acknowledgements and credits, do not come through: what would have landed.
        self._no_data: dict[int, list[Arrived]] = {}
        self._no_acks: set[int] = set()
        self._unsaid: dict[int, dict[int, int]] = {}  # such a wire -> flow -> its last chunk that has landed
        self._calls: dict[tuple[int, int], int] = {}  # incoming wire, flow -> the chunk to wake its sender for
        self._asked: dict[tuple[int, int], int] = {}  # outgoing wire, flow -> the chunk that was asked for
        self._told: dict[tuple[int, int], int] = {}  # the same -> what is below has been told
        self._bug = ""
        self._epoll = select.epoll()
        self._ends: dict[int, Out | In] = {}  # by descriptor
        try:
            connect_ends(rank, wires, exchange, self._slots, self._borrow, self._adopt, clock)
            self._epoll.register(watch.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adopt(self, end: Out | In) -> None:
        if isinstance(end, In):
            self._in[end.wire] = end
        else:
            self._out[end.wire] = end
        end.sock.setblocking(False)
        self._ends[end.sock.fileno()] = end
        self._epoll.register(end.sock.fileno(), select.EPOLLIN)

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
        """At once, if the kernel takes the notification; else `poll` does it."""
        start, end = self._clocks.depart(self._wires[wire].out, len(payload), ready)
        out = self._out.get(wire)
        if out is None:
            return  # its loss has been reported
        out.unsent.append(Unsent(flow, seq, header, payload, start, end))
        self._flush(out)

    def free_at(self, wire: int, now: float) -> float:
        """When the emulated NIC is free, but not before what was written to this wire before is out."""
        out = self._out.get(wire)
        if out is not None and out.unsent:
            return math.inf
        return self._clocks.free_at(self._wires[wire].out)

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """Goes at once."""
        self._reply(wire, _CREDIT, flow, folded)
        self._send_replies()

    def hasten(self, wire: int, flow: int, seq: int) -> None:
        """Tell of this chunk's completion as soon as it has landed, and now how far the flow has come by this wire.

        Of what nobody has asked for only credits tell: a look at a mark, or a message, for every chunk costs too much.
        """
        out = self._out.get(wire)
        if out is None or self._asked.get((wire, flow)) == seq:
            return
        if out.far.landed(flow, wire) <= seq and wire not in self._no_data:
            try:
                out.sock.send(NOTICE.pack(flow, _CALL, seq, 0.0, 0.0))
            except BlockingIOError:
                self._await_room(out, True)
                return
            except OSError:
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
        """One wait, then whatever the sockets have or take; then what has landed by now."""
        if self._bug:
            raise TransportError(self._bug)
        if self._asked:
            self._see_landed()
        wake = -math.inf if self._news else min(until, self._clocks.next_landing())
        # select() and not epoll's own timeout, which Python rounds up to a millisecond; select's to a microsecond.
        timeout = None if wake == math.inf else max(0.0, wake - self._clock())
        if select.select([self._epoll], [], [], timeout)[0]:
            ready = self._epoll.poll(0)
            if self._watch.fileno() in dict(ready):
                self._watch.check()
                ready = self._epoll.poll(0)  # so that what had come when the watch spoke is told with it
            for fd, mask in ready:
                end = self._ends.get(fd)
                if end is None:
                    continue  # the watch again, at the next poll
                if isinstance(end, In):
                    if mask & ~select.EPOLLOUT:
                        self._receive(end)
                else:
                    if mask & select.EPOLLOUT:
                        self._flush(end)
                    if mask & ~select.EPOLLOUT:
                        self._hear(end)
        landed = self._clocks.landed(self._clock())
        if landed:
            arrived = [Arrived(wire, flow, seq, at) for at, (flow, seq, _, wire) in landed]
            self._arrive(self._held_back(arrived) if self._no_data else arrived)
        if self._asked:
            self._see_landed()
        if self._dirty:
            self._send_replies()
        news, self._news = self._news, []
        return news

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

    def _flush(self, out: Out) -> None:
        """Write what is unsent while its notifications find room, and ask to be woken for the rest."""
        if out.wire in self._no_data:
            return
        try:
            while out.unsent:
                flow, seq, header, payload, start, end = out.unsent[0]
                out.sock.send(b"")  # an error if the far end has closed: its slots are no longer there for this wire
                out.far.put(flow, seq, header, payload)
                out.sock.send(NOTICE.pack(flow, len(payload), seq, start, end))
                out.unsent.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(out.wire, str(error.strerror))
            return
        self._await_room(out, bool(out.unsent))

    def _await_room(self, end: Out | In, waits: bool) -> None:
        if waits != end.waits and not self._is_deaf(end):
            end.waits = waits
            self._epoll.modify(end.sock, select.EPOLLIN | (select.EPOLLOUT if waits else 0))

    def _hear(self, out: Out) -> None:
        """Read credits, which acknowledge, too. An acknowledgement is only to wake: the marks tell more."""
        for kind, flow, number in self._read(out, BACK):
            if kind == _CREDIT:
                self._tell(out.wire, flow, number)
                self._news.append(Credited(out.wire, flow, number))

    def _receive(self, end: In) -> None:
        """Read notifications; their chunks are here."""
        for flow, nbytes, seq, start, stop in self._read(end, NOTICE):
            if nbytes == _CALL and flow in self._slots:
                self._calls[end.wire, flow] = seq
                self._answer_call(end.wire, flow)
                continue
            if flow not in self._slots or HEADER_BYTES + nbytes > self._slots.size(flow):
                raise TransportError(f"a chunk of {nbytes} bytes for flow {flow} came on wire {end.wire}")
            self._clocks.arrive(self._wires[end.wire].into, Chunk(flow, seq, nbytes, end.wire), start, stop)

    def _read(self, end: Out | In, record: Struct) -> Iterable[tuple[Any, ...]]:
        """What has come, in whole records; the wire is lost when its other end is gone."""
        try:
            got = end.sock.recv(1 << 16)
        except BlockingIOError:
            return ()
        except OSError as error:
            self._fail(end.wire, str(error.strerror))
            return ()
        if not got:
            self._fail(end.wire, "closed by the other end")
            return ()
        data = end.partial + got
        whole = len(data) - len(data) % record.size
        end.partial = data[whole:]
        return record.iter_unpack(data[:whole])

    def _reply(self, wire: int, kind: int, flow: int, number: int) -> None:
        end = self._in.get(wire)
        if end is not None:
            end.replies += BACK.pack(kind, flow, number)
            self._dirty.add(wire)

    def _send_replies(self) -> None:
        """All that is to go back on each wire, in one piece; what finds no room waits for `poll`."""
        for wire in self._dirty - self._no_acks:
            end = self._in.get(wire)
            if end is None:
                continue
            try:
                del end.replies[: end.sock.send(end.replies)]
            except BlockingIOError:
                pass
            except OSError as error:
                self._fail(wire, str(error.strerror))
                continue
            self._await_room(end, bool(end.replies))
        self._dirty = {wire for wire in self._dirty if wire in self._in and self._in[wire].replies}

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
            for table in (self._calls, self._asked):
                for key in [key for key in table if key[0] == wire]:
                    del table[key]
            self._out.pop(wire, None)
            self._in.pop(wire, None)
            del self._ends[end.sock.fileno()]
            end.sock.close()
