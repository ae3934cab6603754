"""Ranks that are processes of one machine: real bytes over loopback TCP, at emulated NIC rates or unlimited."""

from __future__ import annotations

import math
import select
import socket
from collections import Counter
from collections.abc import Callable, Mapping

from optcc.runtime.pacing import Pacing, Stripes
from optcc.runtime.program import Move, Program
from optcc.runtime.transport import Landing, Place, Watch
from optcc.runtime.wire import Incoming, Outgoing
from optcc.schedule import Schedule


class LocalTransport:
    """One rank in one run. `outgoing` and `incoming` are non-blocking stream sockets, by peer.

    Payloads are not buffered here: sockets read and write the rank's own memory. So a copy may be written before its
    emulated landing, and a posted payload may be read for some time after. Both are safe for the reason that
    `Transport` gives: what overwrites bytes that a rank has sent has been caused by their arrival, all of them, and
    they had been read here by then.
    """

    def __init__(
        self,
        schedule: Schedule,
        program: Program,
        stripes: Stripes,
        pacing: Pacing,
        *,
        outgoing: Mapping[int, socket.socket],
        incoming: Mapping[int, socket.socket],
        watch: Watch,
        clock: Callable[[], float],
    ) -> None:
        self._program, self._stripes, self._pacing = program, stripes, pacing
        self._watch, self._clock = watch, clock
        stamps: Counter[tuple[int, int]] = Counter()  # a start and an end per lane
        for route in schedule.routes:
            stamps[route.src, route.dst] = max(stamps[route.src, route.dst], 2 * len(route.lanes))
        self._outgoing = {peer: Outgoing(sock, peer, stamps[program.rank, peer]) for peer, sock in outgoing.items()}
        self._incoming = {
            sock.fileno(): Incoming(sock, peer, stamps[peer, program.rank]) for peer, sock in incoming.items()
        }
        self._peer_of = [route.dst for route in schedule.routes]
        self._watched = watch.fileno()
        self._posted: Counter[tuple[int, int]] = Counter()

    def free_at(self, route: int, now: float) -> float:
        """When the ports are free, but not before the kernel has taken what was posted to that peer before.

        So at most one message per peer waits here, and the choice of the next is made late.
        """
        return self._pacing.free_at(route, now) if self._outgoing[self._peer_of[route]].clear else math.inf

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        """Stamp and send."""
        self._posted[move.route, move.length] += 1
        self._outgoing[move.peer].send(move.row, self._pacing.depart(move, ready), payload)

    def poll(self, until: float, place: Place) -> list[Landing]:
        """One wait, then whatever the sockets have or take; returns what has landed by then."""
        wake = min(until, self._pacing.next_landing())
        full = [link.sock for link in self._outgoing.values() if not link.clear]
        # select() and not epoll: Python rounds epoll's timeout up to a millisecond, select's to a microsecond.
        timeout = None if wake == math.inf else max(0.0, wake - self._clock())
        readable, writable, _ = select.select([self._watched, *self._incoming], full, [], timeout)
        if writable:
            for link in self._outgoing.values():
                link.flush()
        for fd in readable:
            if fd == self._watched:
                self._watch.check()
            else:
                for row, stamps in self._incoming[fd].receive(place):
                    self._pacing.arrive(self._program.receives[row], stamps)
        return self._pacing.landed(self._clock())

    @property
    def drained(self) -> bool:
        """Whether the kernel has taken everything."""
        return all(link.clear for link in self._outgoing.values())

    def sent(self) -> dict[int, int]:
        """Bytes of payload that left by each port so far: port index -> bytes."""
        total: Counter[int] = Counter()
        for kind, times in self._posted.items():
            for stripe in self._stripes[kind]:
                total[stripe.out] += times * stripe.nbytes
        return dict(total)
