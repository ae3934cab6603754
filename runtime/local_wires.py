"""Wires between processes of one machine: real bytes over loopback TCP, a connection per wire, NIC rates emulated.

A connection that closes is a link that went down; what was under way on it is lost, as it would be. A chunk counts as
arrived when its emulated NICs are through with it, not when its bytes are here, so a NIC that dies in the middle of a
chunk loses it. Acknowledgements and credits go back on the same connection.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Self

from optcc.runtime.errors import TransportError
from optcc.runtime.pacing import Chunk, PortClocks, Rates
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
    PortDown,
    Wire,
)

_FRAME = Struct("<IIqdd")  # bytes that follow, flow, seq, when its first NIC starts and ends with it
_BACK = Struct("<IIq")  # kind, flow, number
_ACK, _CREDIT = 1, 2
_HELLO = Struct("<32sI")  # the listener's token, which wire

CONNECT_S = 10.0
"""For all connections of a rank to stand. They go to this machine, so only a peer that died makes it wait."""


class LocalWires:
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
        self._slots = {f: bytearray(s.window * _slot_bytes(s)) for f, s in enumerate(flows) if s.dst == rank}
        self._news: list[Happening] = []
        self._out: dict[int, _Out] = {}
        self._in: dict[int, _In] = {}
        self._dirty: set[int] = set()  # incoming wires with acknowledgements or credits to send
        self._dark: dict[int, list[Arrived]] = {}  # wires that carry nothing for now: what would have landed
        self._epoll = select.epoll()
        self._ends: dict[int, _Out | _In] = {}  # by descriptor
        try:
            self._connect(rank, exchange)
            self._epoll.register(watch.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, rank: int, exchange: Callable[[Any], list[Any]]) -> None:
        leaving = [w for w, wire in enumerate(self._wires) if wire.src == rank]
        entering = {w for w, wire in enumerate(self._wires) if wire.dst == rank}
        token = secrets.token_bytes(32)
        deadline = self._clock() + CONNECT_S
        with socket.create_server(("127.0.0.1", 0), backlog=max(1, len(entering))) as listener:
            listeners = exchange([listener.getsockname()[1], token.hex()])
            for w in leaving:
                port, theirs = listeners[self._wires[w].dst]
                sock = socket.create_connection(("127.0.0.1", port), CONNECT_S)
                sock.sendall(_HELLO.pack(bytes.fromhex(theirs), w))
                self._out[w] = self._adopt(_Out(w, sock))
            while entering:
                listener.settimeout(max(0.001, deadline - self._clock()))
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    missing = {self._wires[w].src for w in entering}
                    raise TransportError(f"ranks {sorted(missing)} did not connect within {CONNECT_S:g} s") from None
                with contextlib.ExitStack() as refuse:
                    refuse.callback(sock.close)
                    sock.settimeout(1.0)
                    with contextlib.suppress(OSError, struct.error):
                        shown, w = _HELLO.unpack(sock.recv(_HELLO.size, socket.MSG_WAITALL))
                        if hmac.compare_digest(shown, token) and w in entering:
                            refuse.pop_all()
                            entering.remove(w)
                            self._in[w] = self._adopt(_In(w, sock))
            exchange(None)  # nobody writes before all are connected, nor closes its listener before

    def _adopt(self, end: Any) -> Any:
        end.sock.setblocking(False)
        end.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ends[end.sock.fileno()] = end
        self._epoll.register(end.sock.fileno(), select.EPOLLIN)
        return end

    def register(self, memory: memoryview) -> None:
        """Sockets read from any memory."""

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        """Stamp and hand to the kernel, as far as it takes it now; `poll` hands it the rest."""
        nbytes = len(payload)
        start, end = self._clocks.depart(self._wires[wire].out, nbytes, ready)
        out = self._out.get(wire)
        if out is None:
            return  # its loss has been reported
        front = _FRAME.pack(HEADER_BYTES + nbytes, flow, seq, start, end) + header
        out.unsent += (memoryview(front), payload)
        self._flush(out)

    def free_at(self, wire: int, now: float) -> float:
        """When the emulated NIC is free, but not before the kernel has taken what was written to this wire before."""
        out = self._out.get(wire)
        if out is not None and out.unsent:
            return math.inf
        return self._clocks.free_at(self._wires[wire].out)

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """Goes at once."""
        self._reply(wire, _CREDIT, flow, folded)
        self._send_replies()

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """Nobody can read this rank's memory."""

    def ask_record(self, wire: int, flow: int) -> bool:
        """Not over sockets."""
        return False

    def fence(self, wire: int) -> None:
        """Close this end; what came on it and has not landed is lost."""
        self._close(wire)
        self._news.append(Drained(wire))

    def slot(self, flow: int, seq: int) -> memoryview:
        """Header and room for the payload."""
        spec = self._flows[flow]
        size = _slot_bytes(spec)
        at = seq % spec.window * size
        return memoryview(self._slots[flow])[at : at + size]

    def poll(self, until: float) -> list[Happening]:
        """One wait, then whatever the sockets have or take; then what has landed by now."""
        if self._news:
            until = -math.inf
        wake = min(until, self._clocks.next_landing())
        # select() and not epoll's own timeout, which Python rounds up to a millisecond; select's to a microsecond.
        timeout = None if wake == math.inf else max(0.0, wake - self._clock())
        if select.select([self._epoll], [], [], timeout)[0]:
            for fd, mask in self._epoll.poll(0):
                end = self._ends.get(fd)
                if end is None:
                    if fd == self._watch.fileno():
                        self._watch.check()
                elif isinstance(end, _In):
                    self._receive(end)
                else:
                    if mask & select.EPOLLOUT:
                        self._flush(end)
                    if mask & ~select.EPOLLOUT:
                        self._hear(end)
        for at, chunk in self._clocks.landed(self._clock()):
            arrived = Arrived(chunk.wire, chunk.flow, chunk.seq, at)
            if chunk.wire in self._dark:
                self._dark[chunk.wire].append(arrived)
            else:
                self._arrive(arrived)
        self._send_replies()
        news, self._news = self._news, []
        return news

    def _arrive(self, arrived: Arrived) -> None:
        self._news.append(arrived)
        self._reply(arrived.wire, _ACK, arrived.flow, arrived.seq)

    def close(self) -> None:
        """Close every connection."""
        for wire in [*self._out, *self._in]:
            self._close(wire)
        self._epoll.close()

    def _flush(self, out: _Out) -> None:
        """Give the kernel as much as it takes, and ask to be woken for the rest."""
        if out.wire in self._dark:
            return
        try:
            while out.unsent:
                sent = out.sock.sendmsg(out.unsent)
                while out.unsent and sent >= len(out.unsent[0]):
                    sent -= len(out.unsent.pop(0))
                if out.unsent:
                    out.unsent[0] = out.unsent[0][sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(out.wire, str(error.strerror))
            return
        if bool(out.unsent) != out.waits:
            out.waits = bool(out.unsent)
            self._epoll.modify(out.sock, select.EPOLLIN | (select.EPOLLOUT if out.waits else 0))

    def _hear(self, out: _Out) -> None:
        """Read acknowledgements and credits."""
        try:
            got = out.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(out.wire, str(error.strerror))
            return
        if not got:
            self._fail(out.wire, "closed by the other end")
            return
        data = out.partial + got
        whole = len(data) - len(data) % _BACK.size
        out.partial = data[whole:]
        for kind, flow, number in _BACK.iter_unpack(data[:whole]):
            self._news.append(Completed(out.wire, flow, number) if kind == _ACK else Credited(out.wire, flow, number))

    def _receive(self, end: _In) -> None:
        """Read what is there, chunks straight into their slots."""
        while True:
            try:
                got = end.sock.recv_into(end.missing)
            except BlockingIOError:
                return
            except OSError as error:
                self._fail(end.wire, str(error.strerror))
                return
            if got == 0:
                self._fail(end.wire, "closed by the other end")
                return
            end.missing = end.missing[got:]
            if len(end.missing):
                continue
            if end.chunk is None:
                nbytes, flow, seq, start, stop = _FRAME.unpack(end.front)
                if flow not in self._slots or not HEADER_BYTES <= nbytes <= _slot_bytes(self._flows[flow]):
                    raise TransportError(f"a chunk of {nbytes} bytes for flow {flow} came on wire {end.wire}")
                end.chunk = (Chunk(flow, seq, nbytes - HEADER_BYTES, end.wire), start, stop)
                end.missing = self.slot(flow, seq)[:nbytes]
            else:
                self._clocks.arrive(self._wires[end.wire].into, *end.chunk)
                end.chunk, end.missing = None, memoryview(end.front)

    def _reply(self, wire: int, kind: int, flow: int, number: int) -> None:
        end = self._in.get(wire)
        if end is not None:
            end.replies.append(_BACK.pack(kind, flow, number))
            self._dirty.add(wire)

    def _send_replies(self) -> None:
        """All that is to go back on each wire, in one piece.

        The kernel's buffer holds far more than a window of them, so it always takes them all.
        """
        for wire in self._dirty - self._dark.keys():
            end = self._in.get(wire)
            if end is None:
                continue
            data = b"".join(end.replies)
            end.replies.clear()
            try:
                sent = end.sock.send(data)
            except OSError as error:
                self._fail(wire, str(error.strerror))
                continue
            if sent < len(data):
                raise TransportError(f"the kernel took {sent} of {len(data)} bytes of acknowledgements")
        self._dirty &= self._dark.keys()

    def _fail(self, wire: int, detail: str) -> None:
        self._close(wire)
        self._news.append(Failed(wire, Cause.CLOSED, detail))

    def _close(self, wire: int) -> None:
        end = self._out.pop(wire, None) or self._in.pop(wire, None)
        if end is not None:
            self._clocks.forget(wire)
            del self._ends[end.sock.fileno()]
            if self._dark.pop(wire, None) is None:
                self._epoll.unregister(end.sock)
            end.sock.close()

    # --- faults, for tests and `optcc run --cut` ---------------------------------------------------------------------

    def cut(self, nic: int) -> None:
        """The link of a NIC of this rank goes down: its connections are reset, and it says so."""
        for wire in self._of(nic):
            end = self._out.get(wire) or self._in.get(wire)
            if end is not None:
                end.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._close(wire)
        self._news.append(PortDown(nic, Cause.PORT, "link down"))

    def darken(self, nic: int) -> None:
        """A black hole: whatever enters or leaves by this NIC is stuck, and nobody says so.

        It is not lost until the wire is fenced: a NIC would go on trying to send it, for a while.
        """
        for wire in self._of(nic):
            if wire not in self._dark:
                self._dark[wire] = []
                self._epoll.unregister((self._out.get(wire) or self._in[wire]).sock)

    def heal(self, nic: int) -> None:
        """The end of a black hole: what is not fenced goes on."""
        for wire in [wire for wire in self._of(nic) if wire in self._dark]:
            for arrived in self._dark.pop(wire):
                self._arrive(arrived)
            if wire in self._in:
                self._epoll.register(self._in[wire].sock, select.EPOLLIN)
            else:
                self._out[wire].waits = False
                self._epoll.register(self._out[wire].sock, select.EPOLLIN)
                self._flush(self._out[wire])

    def slow(self, nic: int, factor: float) -> None:
        """From now on the NIC works at `factor` times its rate."""
        rates = self._clocks.rates[nic]
        self._clocks.rates[nic] = Rates(rates.out * factor, rates.into * factor)

    def _of(self, nic: int) -> list[int]:
        return [w for w in (*self._out, *self._in) if nic in (self._wires[w].out, self._wires[w].into)]


class _Out:
    """The sending end of a wire."""

    def __init__(self, wire: int, sock: socket.socket) -> None:
        self.wire, self.sock = wire, sock
        self.unsent: list[memoryview] = []
        self.waits = False  # for the kernel to take more
        self.partial = b""  # of a reply


class _In:
    """The receiving end of a wire."""

    def __init__(self, wire: int, sock: socket.socket) -> None:
        self.wire, self.sock = wire, sock
        self.front = bytearray(_FRAME.size)
        self.missing = memoryview(self.front)
        self.chunk: tuple[Chunk, float, float] | None = None  # while its bytes arrive: it, and its stamps
        self.replies: deque[bytes] = deque()


def _slot_bytes(spec: FlowSpec) -> int:
    return HEADER_BYTES + spec.slot_bytes
