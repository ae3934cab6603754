"""The conversation between the parent process and a rank: one command at a time to all ranks, one reply from each.

Besides, the parent may ask at any moment for a sign of life, or tell that the run has failed.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from optcc.runtime.errors import RankFailedError


@dataclass(frozen=True)
class Enlist:
    """The first command: who you are, where the job lies, your sockets by peer (descriptors), schedules' digests."""

    rank: int
    job_fd: int
    outgoing: Mapping[int, int]
    incoming: Mapping[int, int]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class Prepare:
    """Fill the buffer and get ready to run this algorithm."""

    algorithm: str


@dataclass(frozen=True)
class Go:
    """Run, starting at this time of the monotonic clock, which all processes of a machine share."""

    at: float


@dataclass(frozen=True)
class Check:
    """Compare the buffer with the reference."""


@dataclass(frozen=True)
class Quit:
    """The end."""


Command = Enlist | Prepare | Go | Check | Quit


@dataclass(frozen=True)
class Ping:
    """Are you alive?"""


@dataclass(frozen=True)
class Pong:
    """Alive: a number that grows with progress, and what is waited for."""

    progress: int
    waiting_for: str


@dataclass(frozen=True)
class Failed:
    """The verdict: this rank failed, so the run has."""

    rank: int
    cause: str


@dataclass(frozen=True)
class Saw:
    """The last word of a rank: the error it raised on the verdict."""

    text: str


@dataclass(frozen=True)
class Reply:
    """A command is done."""

    value: Any = None


@dataclass(frozen=True)
class Broken:
    """A rank cannot go on: because of itself, or because it lost rank `blames`."""

    cause: str
    blames: int | None = None


@dataclass(frozen=True)
class Ran:
    """Times of the monotonic clock, processor seconds, and bytes of payload sent by port."""

    start_s: float
    end_s: float
    cpu_s: float
    sent: Mapping[int, int]


class Control:
    """A rank's end of the conversation. Raises RankFailedError on a verdict, EOFError when the parent is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.state: Callable[[], Pong] = lambda: Pong(0, "starting")
        """What to answer to a ping."""

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._connection.fileno()

    def check(self) -> None:
        """Answer what the parent has asked meanwhile, without waiting."""
        while self._connection.poll():
            self._take()

    def command(self) -> Command:
        """Wait for the next command."""
        while True:
            command = self._take()
            if command is not None:
                return command

    def sleep_until(self, at: float) -> None:
        """Wait for a time of the monotonic clock."""
        while (left := at - time.monotonic()) > 0:
            if select.select([self._connection], [], [], left)[0]:
                self.check()

    def tell(self, message: Reply | Broken | Saw) -> None:
        """Send to the parent."""
        self._connection.send(message)

    def _take(self) -> Command | None:
        message: Command | Ping | Failed = self._connection.recv()
        match message:
            case Ping():
                self._connection.send(self.state())
                return None
            case Failed(rank, cause):
                raise RankFailedError(rank, cause)
            case _:
                return message
