"""A rank's end of the control channel: one connection to the hub, with timeouts that the kernel keeps."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from optcc.runtime.codec import Json, encode
from optcc.runtime.control.connecting import (
    RETRY_S,
    TAG_BYTES,
    TAMPERED,
    TIMEOUT_S,
    Hello,
    HubLostError,
    Seal,
    TamperedError,
    connect,
    decoded,
    introduce,
    limit_waits,
    nonce,
    read_message,
)
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import PeerLateError, RankFailedError, TransportError
from optcc.runtime.forks import own
from optcc.runtime.messages import (
    FRAME_LIMIT,
    PARCEL,
    PAYLOAD_LIMIT,
    TO_RANK,
    AskCall,
    AskTime,
    Broken,
    FromRank,
    Halt,
    Halted,
    Here,
    Ran,
    Regroup,
    Renew,
    RunFailed,
    Share,
    SharedValues,
    Shrink,
    Time,
)

# One clock for a job: what a rank's monotonic clock says when the hub's says something else.
#
# Machines' monotonic clocks begin when they boot. A rank asks the hub for the time and takes the answer to be that of
# the middle of the round trip; of a few the shortest counts. The answer was made between the two ends of the round
# trip. So the offset is wrong by at most half of it, however unlike the two directions are (F. Cristian, "Probabilistic
# clock synchronization", Distributed Computing 3, 1989). Clocks drift apart later, by some 1e-5 of the time that
# passes: a rank asks again before every collective.

TRIPS = 8
"""Round trips, of which the shortest counts."""


@dataclass(frozen=True)
class Clock:
    """A rank's clock shows `offset_s` more than the hub's, give or take `error_s`.

    Both 0 where a measurement cannot tell the clocks apart: the processes of one machine share theirs.
    """

    offset_s: float = 0.0
    error_s: float = 0.0

    def here(self, hub_s: float) -> float:
        """A time of the hub's clock, by this one."""
        return hub_s + self.offset_s

    def hub(self, here_s: float) -> float:
        """A time of this clock, by the hub's."""
        return here_s - self.offset_s


def measured(ask: Callable[[], float], now: Callable[[], float], trips: int = TRIPS) -> Clock:
    """The clock `now`, held against the one that `ask` brings the time of, after whatever that takes."""
    shortest, offset = float("inf"), 0.0
    for _ in range(trips):
        sent = now()
        theirs = ask()
        back = now()
        if back - sent < shortest:
            shortest, offset = back - sent, (sent + back) / 2 - theirs
    return Clock(offset, shortest / 2) if abs(offset) > shortest / 2 else Clock()


def by_the_hub(ran: Ran, clock: Clock) -> Ran:
    """The same run, its times by the hub's clock."""
    return replace(
        ran,
        start_s=clock.hub(ran.start_s),
        end_s=clock.hub(ran.end_s),
        notes=[replace(note, at=clock.hub(note.at)) for note in ran.notes],
        landed={row: clock.hub(at) for row, at in ran.landed.items()},
        clock_error_s=clock.error_s,
    )


# The rank's end

log = logging.getLogger(__name__)


def late_text(what: str, within_s: float) -> str:
    """For people, what was awaited in vain."""
    return f"{what} has not come within {within_s:.3g} s"


HANG_UP_S = 1.0
"""For the hub to notice that a rank has said its last."""


class Control:
    """A rank's end of the conversation. A context manager.

    Every method raises RankFailedError on the verdict, with the same text on all ranks, and HubLostError when the hub
    is gone. What has been tampered with on the way is believed no more, and this rank has failed.

    ours, theirs : what seals this rank's messages, and the hub's
    """

    def __init__(
        self, connection: Connection, rank: int, world: int, ours: Seal | None = None, theirs: Seal | None = None
    ) -> None:
        self.rank, self.world = rank, world
        self._ours, self._theirs = ours or Seal(), theirs or Seal()
        self.clock: Clock | None = None
        """This process's monotonic clock, held against the hub's; None: not yet, see `synchronize`."""
        self.operation: Callable[[], int] = lambda: 0
        """Which operation this rank has begun last."""
        self.patience_s = math.inf
        """What all ranks together may take for an exchange, and the hub for the rest of a long message."""
        self.on_ask: Callable[[int], None] = lambda operation: None
        """Called with an operation when the hub asks what this rank has called as that."""
        self.halts = 0
        """So many Renew are still to come; this rank may begin no other operation before."""
        self.renewals: deque[Renew] = deque()
        """Those that have come, each at its point: another rank may be past that of the first."""
        self.parcels: deque[bytes] = deque()
        """Payloads of bytes that the hub has shipped."""
        self.regrouped: Regroup | None = None
        self._connection = connection
        self._sending = threading.Lock()  # a rank's second thread tells, too
        self._goes_on = False  # has said Shrink
        self._failed: RunFailed | None = None  # the verdict, once it has been read
        self._turn = 0
        self._shared: dict[int, list[Json]] = {}
        self._asked = 0
        self._times: dict[int, float] = {}

    @classmethod
    def join(
        cls,
        place: Membership,
        within_s: float,
        limit_s: float = TIMEOUT_S,
        lives: Callable[[], bool] | None = None,
    ) -> Control:
        """Find the hub and be let in; tries until `within_s` have passed.

        lives : of a hub that has listened already, whether its process is there; who is refused there, or finds that
            it is not, tries no more. None: it may be started later

        limit_s : afterwards, what the hub may take for a message that it reads; `patience_s` to begin with

        Raises RefusedError when the hub refuses or does not know the secret, HubLostError when none answers.
        """
        end = time.monotonic() + within_s
        while True:
            try:
                return cls.once(place, max(RETRY_S, end - time.monotonic()), limit_s)
            except (OSError, EOFError) as error:
                ended = lives and (isinstance(error, ConnectionRefusedError) or not lives())
                if ended or time.monotonic() + RETRY_S > end:
                    where = f"{place.address[0]}:{place.address[1]}"
                    raise HubLostError(f"no hub answers at {where} within {within_s:.3g} s: {error}") from error
            time.sleep(RETRY_S)

    @classmethod
    def once(cls, place: Membership, within_s: float, limit_s: float) -> Control:
        """One attempt of `join`, in which the hub may take so long to answer.

        Raises BlockingIOError or TimeoutError when it takes longer, another OSError or EOFError where there is none.
        """
        connection = connect(place.address, within_s)
        try:
            hello = Hello(place.job, place.rank, place.world, nonce())
            control = cls(connection, place.rank, place.world, *introduce(connection, place.secret.encode(), hello))
            control.patience_s = limit_s
            with control._socket() as sock:
                limit_waits(sock, limit_s)
            return control
        except BaseException:
            connection.close()
            raise

    @classmethod
    def inherited(cls, fd: int, rank: int, world: int) -> Control:
        """Over a socket of which the process that started this one has the other end, by `Overseer.attach`."""
        with socket.socket(fileno=fd) as sock:
            limit_waits(sock, TIMEOUT_S)
            control = cls(own(Connection(sock.detach())), rank, world)
        control.tell(Here())
        return control

    def heir(self, rank: int, world: int) -> Control:
        """Of a new group's rank, over the same connection."""
        heir = Control(self._connection, rank, world, self._ours, self._theirs)
        heir._sending = self._sending
        return heir

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        with self._sending:
            self._connection.close()

    def fileno(self) -> int:
        """The descriptor to wait for; when it can be read, `check` is due."""
        return self._connection.fileno()

    @property
    def host(self) -> str:
        """This machine's address on the network that the hub is on."""
        with self._socket() as sock:
            return str(sock.getsockname()[0])

    def _socket(self) -> socket.socket:
        """The same connection, as a socket that is to be closed."""
        return socket.socket(fileno=os.dup(self.fileno()))

    def check(self) -> None:
        """Take in what has come meanwhile, without waiting: messages are handed on, all else is kept.

        What comes behind Regroup is for the new group's `heir`.
        """
        while self.regrouped is None and select.select([self._connection], [], [], 0)[0]:
            self._take()

    def tell(self, message: FromRank) -> None:
        """Send to the hub; nothing but Shrink behind Shrink, for it would be taken for a word of the next group's."""
        data = encode(message)
        if len(data) > FRAME_LIMIT:
            raise TransportError(f"{len(data)} bytes in one message, at most {FRAME_LIMIT} can be sent")
        try:
            with self._sending:
                self._goes_on = self._goes_on or isinstance(message, Shrink)
                if self._goes_on and not isinstance(message, Shrink):
                    return
                self._connection.send_bytes(self._ours.seal(data))
        except OSError as error:
            raise HubLostError(f"lost the hub: {error}") from error

    def hang_up(self, within_s: float = HANG_UP_S) -> None:
        """Say no more, and wait a moment for the hub to hang up, too.

        A connection that is closed while something is unread is reset, and what was said last may be lost with it.
        """
        end = time.monotonic() + within_s
        with contextlib.suppress(OSError), self._socket() as sock:  # that takes a descriptor, of which none may be left
            sock.shutdown(socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0 and self._wait(left) and sock.recv(1 << 16):
                pass

    def exchange(self, value: Json, wait: Callable[[Callable[[], bool], str], None] | None = None) -> list[Json]:
        """The values that all ranks give here, by rank. All ranks call this equally often.

        wait : called with what is awaited, and in words, returns when it is so; None: nothing else is done meanwhile,
            and PeerLateError is raised when they do not come together within `patience_s`
        """
        if self._failed:  # which was read in a wait for something that came just before it
            raise RankFailedError(self._failed.rank, self._failed.cause)
        turn = self._turn = self._turn + 1
        self.tell(Share(turn, value))
        (wait or self._until)(lambda: turn in self._shared, f"what all ranks say in exchange {turn}")
        return self._shared.pop(turn)

    def synchronize(self, now: Callable[[], float] = time.monotonic) -> None:
        """Measure `clock` anew, in a few round trips."""

        def ask() -> float:
            turn = self._asked = self._asked + 1
            self.tell(AskTime(turn))
            self._until(lambda: turn in self._times, "the hub's time", math.inf)
            return self._times.pop(turn)

        self.clock = measured(ask, now)

    def _until(self, done: Callable[[], bool], what: str, within_s: float | None = None) -> None:
        """Wait until it is so, `within_s` seconds at most, None: `patience_s`, inf: for as long as the hub is there."""
        within_s = self.patience_s if within_s is None else within_s
        end = time.monotonic() + within_s
        while not done():
            if time.monotonic() > end:
                raise PeerLateError(None, late_text(what, within_s))
            if self._wait(max(0.0, end - time.monotonic())):
                self._take()

    def _wait(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._connection], [], [], None if timeout_s == math.inf else timeout_s)[0])

    def _take(self) -> None:
        try:
            data = self._theirs.unseal(read_message(self._connection, PAYLOAD_LIMIT + TAG_BYTES, self.patience_s))
        except TamperedError as error:
            log.warning("rank %d: %s: %s", self.rank, TAMPERED, error)
            with contextlib.suppress(HubLostError):
                self.tell(Broken(TAMPERED))
            raise RankFailedError(self.rank, TAMPERED) from error
        if data.startswith(PARCEL):
            self.parcels.append(data[len(PARCEL) :])
            return
        match decoded(data, TO_RANK):
            case RunFailed() as failed:
                self._failed = failed
                raise RankFailedError(failed.rank, failed.cause)
            case Halt():
                self.halts += 1
                self.tell(Halted(self.operation()))
            case AskCall(operation):
                self.on_ask(operation)
            case Regroup() as regrouped:
                self.regrouped = regrouped
            case SharedValues(turn, values):
                self._shared[turn] = values
            case Time(turn, at):
                self._times[turn] = at
            case Renew() as renewal:
                self.renewals.append(renewal)
                self.halts -= 1
