"""The steady paths of both ends against the tables: the same states, the same commands, whatever happens."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from optcc.runtime.protocol import ProtocolError, Receiver, ReceiverState, Sender
from optcc.runtime.protocol.events import (
    Acked,
    Alive,
    Answer,
    Ask,
    Credit,
    Deliver,
    Doubt,
    Event,
    Expired,
    Fenced,
    Folded,
    Found,
    Heard,
    Landed,
    Lost,
    Notice,
    Probe,
    Refuse,
    Release,
    Return,
    Send,
    Timer,
    Write,
)
from optcc.runtime.protocol.table import Commands, Machine
from optcc.runtime.wires.contract import Cause
from tests.protocol_net import run, state_of

WIRES = (7, 8, 9)


class DifferError(AssertionError):
    """The steady path and the table do not do the same."""


def steady(machine: Any, event: Event) -> Commands | None:
    """What the steady path makes of an event, in words; None: it is for `handle`."""
    match event:
        case Send():
            if machine.room() > 0:
                machine.posted += 1
                return (Write(machine.wire, machine.epoch, machine.posted - 1, False),)
        case Acked(wire, seq):
            return (Release(machine.acked),) if machine.acknowledged(wire, seq) else None
        case Credit(_, folded):
            return () if machine.credited(folded) else None
        case Landed(wire, epoch, seq):
            back = machine.passes(wire, epoch, seq)
            if back >= 0:
                return (Deliver(seq), *((Return(machine.wire, back),) if back else ()))
    return None


def by_table(machine: Any, event: Event, handle: Callable[[Any, Event], Commands]) -> Commands:
    """The same by the table alone; a chunk that passes is folded at once."""
    commands = handle(machine, event)
    if isinstance(event, Landed) and commands:
        commands += handle(machine, Folded(event.seq))
    return commands


def compare(machine: Any, event: Event, handle: Callable[[Any, Event], Commands], taken: Counter[str]) -> None:
    """Do an event the steady way, if that takes it, on copies; the machine stays as it is."""
    quick, slow = twin(machine), twin(machine)
    before = state_of(machine)
    commands = steady(quick, event)
    name = type(event).__name__
    if commands is None:
        taken[f"{name} left"] += 1
        if state_of(quick) != before:
            raise DifferError(f"{event} is left to the table, but changes {before} to {state_of(quick)}")
        return
    taken[name] += 1
    try:
        expected = by_table(slow, event, handle)
    except ProtocolError as error:
        raise DifferError(f"{event} in {before} cannot be, says the table: {error}") from error
    if (commands, state_of(quick)) != (expected, state_of(slow)):
        raise DifferError(f"{event} in {before}: {commands}, {state_of(quick)}; table: {expected}, {state_of(slow)}")


def twin(machine: Any) -> Any:
    """A copy whose sets are its own."""
    other = copy.copy(machine)
    for name, value in state_of(machine).items():
        setattr(other, name, value)
    return other


def watched(kind: type[Machine], taken: Counter[str]) -> Any:
    """Of every event, both ways are compared."""

    class Watched(kind):  # type: ignore[valid-type, misc]
        __slots__ = ()

        def handle(self, event: Event) -> Commands:
            compare(self, event, kind.handle, taken)
            commands: Commands = super().handle(event)
            return commands

    return Watched


def wild(rng: random.Random, machine: Any) -> Event:
    """Any event, possible or not, near where the machine is."""
    wire = rng.choice((*WIRES, machine.wire, machine.wire))
    epoch = machine.epoch + rng.choice((0, 0, 0, 0, -1, 1))
    if isinstance(machine, Sender):
        posted, acked, folded = (
            rng.choice((n, n, n - 1, n + 1)) for n in (machine.posted, machine.acked, machine.folded)
        )
        often: list[Event] = [
            Send(),
            Acked(wire, acked),
            Acked(wire, posted - 1),
            Credit(wire, acked),
            Credit(wire, folded),
        ]
        rare: list[Event] = [
            *(Lost(wire, Cause.PORT), Notice(wire, Cause.ERROR), Found(wire), Fenced(wire)),
            *(Expired(timer) for timer in Timer),
            *(Doubt(rng.random() < 0.5), Heard(epoch)),
            *(Answer(epoch, acked, folded), Refuse(epoch, wire), Alive(epoch, rng.randrange(3), acked, folded)),
        ]
    else:
        landed, folded = (rng.choice((n, n, n - 1, n + 1)) for n in (machine.landed, machine.folded))
        often = [Landed(wire, epoch, landed), Landed(machine.wire, machine.epoch, machine.landed), Folded(folded)]
        probe = Probe(epoch, rng.randrange(3), rng.random() < 0.5)
        rare = [Lost(wire, Cause.PORT), Found(wire), Fenced(wire), Ask(epoch, wire), probe]
    return rng.choice(often if rng.random() < 0.8 else rare)


def storm(kind: type[Machine], seeds: range) -> Counter[str]:
    """Random events, most of which cannot be; a machine goes on after what it refuses."""
    taken: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        window = rng.randint(1, 5)
        more = {"credit_every": rng.randint(1, window)} if issubclass(kind, Receiver) else {}
        machine: Any = watched(kind, taken)(WIRES, window, **more)
        for _ in range(60):
            try:
                machine.handle(wild(rng, machine))
            except ProtocolError:
                taken["refused"] += 1
    return taken


@pytest.mark.parametrize("kind", [Sender, Receiver])
def test_any_events(kind: type[Machine]) -> None:
    taken = storm(kind, range(300))
    events = {"Send", "Acked", "Credit"} if kind is Sender else {"Landed"}
    for event in events:
        assert taken[event] > 100, taken
        assert taken[f"{event} left"] > 100, taken
    assert taken["refused"] > 100


def test_whole_lives_of_flows() -> None:
    """The interleavings of tests/test_protocol.py, failovers and all."""
    taken: Counter[str] = Counter()
    for seed in range(100):
        run(seed, sender=watched(Sender, taken), receiver=watched(Receiver, taken))
    assert min(taken[event] for event in ("Send", "Acked", "Credit", "Landed")) > 100, taken


@pytest.mark.parametrize("sent", range(5))
def test_there_is_room_for_as_many_events(sent: int) -> None:
    sender = Sender(WIRES, 4)
    for _ in range(sent):
        sender.handle(Send())
    for seq in range(sent, sent + sender.room()):
        assert sender.handle(Send()) == (Write(WIRES[0], 0, seq, False),)
    with pytest.raises(ProtocolError):
        sender.handle(Send())


class SendsWithoutASlot(Sender):
    """Does not look at the window."""

    __slots__ = ()

    def room(self) -> int:
        return 1


class TrustsAnyWire(Sender):
    """Takes an acknowledgement of a wire that it has left."""

    __slots__ = ()

    def acknowledged(self, wire: int, seq: int) -> bool:
        return super().acknowledged(self.wire, seq)


class AcknowledgesLess(Sender):
    """Off by one."""

    __slots__ = ()

    def acknowledged(self, wire: int, seq: int) -> bool:
        if not super().acknowledged(wire, seq):
            return False
        self.acked = seq
        return True


class BelievesAnyCredit(Sender):
    """Takes credits back."""

    __slots__ = ()

    def credited(self, folded: int) -> bool:
        self.folded = folded
        return True


class LeavesATrace(Sender):
    """Changes something although it leaves the event to the table."""

    __slots__ = ()

    def credited(self, folded: int) -> bool:
        self.folded = max(self.folded, folded)
        return False


class TakesGhosts(Receiver):
    """Does not look at the epoch."""

    __slots__ = ()

    def passes(self, wire: int, epoch: int, seq: int) -> int:
        return super().passes(wire, self.epoch, seq)


class CreditsLate(Receiver):
    """One chunk too late."""

    __slots__ = ()

    def passes(self, wire: int, epoch: int, seq: int) -> int:
        self._returned -= -1
        back = super().passes(wire, epoch, seq)
        self._returned += -1
        return back


class CreditsWhileItFences(Receiver):
    """Is steady while it moves."""

    __slots__ = ()

    def passes(self, wire: int, epoch: int, seq: int) -> int:
        if self.state is not ReceiverState.FENCING:
            return super().passes(wire, epoch, seq)
        if (wire, epoch, seq) != (self.wire, self.epoch, self.landed) or seq != self.folded:
            return -1
        self.landed = self.folded = self._returned = seq + 1
        return seq + 1


PLANTED = (
    *(SendsWithoutASlot, TrustsAnyWire, AcknowledgesLess, BelievesAnyCredit, LeavesATrace),
    *(TakesGhosts, CreditsLate, CreditsWhileItFences),
)


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_difference_is_noticed(kind: type[Machine]) -> None:
    with pytest.raises(DifferError):
        storm(kind, range(500))
