"""How a rank on local wires waits, is woken, and hears that another one is gone.

Every wire has a socket. A byte on it wakes who sleeps, once a sleep; while both are awake nobody calls the kernel for a
chunk. And it tells when the other end is gone, which is looked at whenever there is nothing else to do, and every
LOOK_S.
"""

from __future__ import annotations

import math
import select

from optcc.runtime.wires.local_ends import ReceivingEnd, SendingEnd
from optcc.runtime.wires.local_parts import LocalParts
from optcc.runtime.wires.rings import fence

LOOK_S = 1e-3
"""At sockets and at the watch so often at least, and at a ring that was full: those who read it may be paused."""


class LocalWaits(LocalParts):
    """The part of `LocalWires` that sleeps and wakes."""

    def _wake(self, end: SendingEnd | ReceivingEnd, sleep: int) -> None:
        """A byte for the peer's `sleep`; one of another wire may find it deaf, so each wakes for itself."""
        end.woke = sleep
        try:
            end.sock.send(b"!")
        except BlockingIOError:
            pass  # full of such bytes
        except OSError as error:
            self._fail(end.wire, str(error.strerror))

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

    def _hear(self, end: SendingEnd | ReceivingEnd) -> None:
        """Bytes that woke; or the wire is lost, for its other end is gone."""
        try:
            if not end.sock.recv(1 << 12):
                self._fail(end.wire, "closed by the other end")
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(end.wire, str(error.strerror))
