"""Who commands the ranks: gathers them, gives all one command at a time, watches over them until all have replied."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from queue import Empty
from typing import Any, Self

from optcc.errors import InputError
from optcc.runtime.control.connecting import Address
from optcc.runtime.control.failure_detector import PING_S, FailureDetector
from optcc.runtime.control.interface import listening_address
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.router import Door, Gone, Heard, Joined, Router
from optcc.runtime.control.transports import demand_one_machine
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.messages import (
    Broken,
    Command,
    FromRank,
    Ping,
    Pong,
    RankJournal,
    Reply,
    RunFailed,
    Saw,
    Told,
    ToRank,
    TurnAway,
)

FAREWELL_S = 3.0
"""For ranks to report the verdict, or to leave after Quit, before they are left alone or killed."""


class Hub:
    """The commanding end of the control channel with `ranks` ranks. A context manager.

    Parameters
    ----------
    door : where it listens for ranks that others start; None: nowhere, all come by `attach`
    obituary : called with a rank that has hung up, says how it ended; for who has started it
    """

    def __init__(
        self,
        ranks: int,
        door: Door | None = None,
        *,
        obituary: Callable[[int], str] = lambda rank: "closed its control connection",
    ) -> None:
        try:
            self._board = Router(ranks, door)
        except OSError as error:
            where = f"{door.host}:{door.port}" if door else "a pair of sockets"
            raise TransportError(f"cannot listen for ranks at {where}: {error}") from error
        self._ranks = range(ranks)
        self._obituary = obituary
        self._present: set[int] = set()
        self._journals: dict[int, RankJournal] = {}
        self._saw: dict[int, str] = {}
        self._told: dict[int, Told] = {}

    @classmethod
    def of(cls, membership: Membership, interface: str | None = None, **settings: Any) -> Hub:
        """The hub that rank 0 of a job on several machines runs, at `interface` or else at the agreed address."""
        host = listening_address(membership.address[0], interface)
        door = Door(membership.job, membership.secret.encode(), host, membership.address[1])
        return cls(membership.world, door, **settings)

    def __enter__(self) -> Self:
        self._board.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._board.__exit__()

    @property
    def address(self) -> Address:
        """Where it listens. Only of a hub with a door."""
        assert self._board.address
        return self._board.address

    def attach(self, rank: int) -> socket.socket:
        """A rank's end of a connection of its own, for its process to inherit; nobody else can get at it.

        For `Control`. Close it once the process has started, so that its end is noticed.
        """
        return self._board.attach(rank)

    def gather(self, within_s: float) -> None:
        """Wait until all ranks are there.

        Raises RankFailedError for one that has left again, TransportError naming those that have not come in time.
        """
        end = time.monotonic() + within_s
        while missing := [rank for rank in self._ranks if rank not in self._present]:
            left = end - time.monotonic()
            if left <= 0:
                raise TransportError(self.absence(missing, within_s))
            for rank, message in self._hear(left):
                if isinstance(message, Gone | Broken):
                    raise self.failure(rank, message.cause if isinstance(message, Broken) else self._obituary(rank))

    def agree(self, mine: Told, transport: str, within_s: float) -> None:
        """All ranks that others have started were told the same as this process, on the same machine where the
        transport needs that; after `gather`. InputError on all of them where it is otherwise."""
        end = time.monotonic() + within_s
        others = self._ranks[1:]
        while (missing := [rank for rank in others if rank not in self._told]) and time.monotonic() < end:
            for rank, message in self._hear(end - time.monotonic()):
                if isinstance(message, Gone) and rank in missing:
                    raise self.failure(rank, self._obituary(rank))
        if missing:
            raise TransportError(self.absence(missing, within_s))
        try:
            for rank in others:
                told = self._told[rank]
                if told.wrong:
                    raise InputError(told.wrong, where=f"rank {rank}")
                for name in {**mine.terms, **told.terms}:
                    expected, got = mine.terms.get(name, "nothing"), told.terms.get(name, "nothing")
                    if expected != got:
                        what = f"rank {rank} was given something else than rank 0"
                        raise InputError(what, where=name, expected=expected, got=got)
            machines = [mine.machine, *(self._told[rank].machine for rank in others)]
            demand_one_machine(transport, machines, "--transport")
        except InputError as error:
            self.refuse(error)
            raise

    def refuse(self, error: InputError, within_s: float = 0.0) -> None:
        """The job is not run: tell the ranks that are there, or come within so many seconds, and let them go."""
        end = time.monotonic() + within_s
        while len(self._present) < len(self._ranks) - 1 and time.monotonic() < end:
            for _ in self._hear(PING_S):
                pass
        got = None if error.got is None else str(error.got)
        self.send(self._ranks, TurnAway(error.what, error.where, error.expected, got, error.hint))
        end = time.monotonic() + FAREWELL_S
        while self._present and time.monotonic() < end:
            for _ in self._hear(PING_S):
                pass

    def absence(self, missing: Collection[int], within_s: float) -> str:
        """For people: these ranks have not come."""
        names = ", ".join(map(str, sorted(missing)[:8])) + (", ..." if len(missing) > 8 else "")
        where = "to {}:{} ".format(*self._board.address) if self._board.address else ""
        return f"{len(missing)} of {len(self._ranks)} ranks have not come {where}within {within_s:.3g} s: {names}"

    def order(self, command: Command, patience_s: float) -> list[Any]:
        """Give all ranks a command; returns the values of their replies, by rank. Raises like `replies`."""
        self.send(self._ranks, command)
        return self.replies(patience_s)

    def replies(self, patience_s: float) -> list[Any]:
        """Wait for one reply of every rank; returns their values, by rank.

        Raises RankFailedError when a rank dies or raises, or when for `patience_s` a rank does not answer or nothing
        moves on any of them.
        """
        values: dict[int, Any] = {}
        detector = FailureDetector(len(self._ranks), patience_s, time.monotonic())
        for rank in detector.pending - self._present:
            detector.heard(rank, Broken(self._obituary(rank)), time.monotonic())
        while detector.pending:
            for rank, message in self._hear(PING_S):
                if isinstance(message, Gone):
                    message = Broken(self._obituary(rank))
                if isinstance(message, Reply | Pong | Broken):
                    detector.heard(rank, message, time.monotonic())
                if isinstance(message, Reply):
                    values[rank] = message.value
            now = time.monotonic()
            verdict = detector.verdict(now)
            if verdict:
                raise self.failure(*verdict)
            asked = detector.to_ask(now)
            if asked:
                self.send(asked, Ping())
        return [values[rank] for rank in self._ranks]

    def send(self, ranks: Iterable[int], message: ToRank) -> None:
        """Say something to some ranks, without waiting. A rank that is gone is noticed by `replies`."""
        self._board.send(ranks, message)

    def ship(self, data: bytes) -> None:
        """Send all ranks a payload, without waiting; they take it by `Control.payload`, before the next is sent."""
        self._board.ship(self._ranks, data)

    def failure(self, failed: int, cause: str) -> RankFailedError:
        """Tell every rank the verdict and collect their last words."""
        said = time.monotonic()
        self.send(self._ranks, RunFailed(failed, cause))
        end = said + FAREWELL_S
        while self._present - self._saw.keys() and (left := end - time.monotonic()) > 0:
            for _ in self._hear(left):
                pass
        return RankFailedError(failed, cause, dict(sorted(self._saw.items())), self._journals, said)

    def _hear(self, timeout_s: float) -> Iterator[tuple[int, FromRank | Joined | Gone]]:
        """What ranks have said within the timeout, or had said before; who is present is kept up to date."""
        inbox = self._board.inbox
        heard: list[Heard] = []
        try:
            heard.append(inbox.get(timeout=timeout_s))
            while True:
                heard.append(inbox.get_nowait())
        except Empty:
            pass
        for rank, message in heard:
            if isinstance(message, Gone):
                self._present.discard(rank)
            else:
                self._present.add(rank)
            if isinstance(message, Told):
                self._told[rank] = message
            if isinstance(message, RankJournal):
                self._journals[rank] = message
            if isinstance(message, Saw):  # before the verdict, of a rank that has come to it by itself
                self._saw[rank] = message.text
            yield rank, message
