"""The two machines of a flow by themselves, brought to where a test begins, and what is expected of them."""

from __future__ import annotations

from typing import Any

from optcc.runtime.protocol import Receiver, Sender
from optcc.runtime.protocol.events import (
    Acked,
    Ask,
    Credit,
    Event,
    Expired,
    Fence,
    Fenced,
    Landed,
    Lost,
    Probe,
    Read,
    Send,
    Spread,
    Start,
    Stop,
    Tell,
    Timer,
)
from optcc.runtime.protocol.table import Machine
from optcc.runtime.wires.contract import Cause

GRACED = [Stop(Timer.ANSWER), Start(Timer.GRACE)]
LEFT = [Stop(Timer.ANSWER), Fence(7)]
"""What is done when the peer is alive: time is given to the wire; and then the wire is given up."""


def fed(machine: Machine, *events: Event) -> list[Any]:
    """All commands that `events` bring about."""
    return [command for event in events for command in machine.handle(event)]


def sender(
    posted: int = 0, acked: int = 0, *, wires: tuple[int, ...] = (7, 8, 9), window: int = 4, asks: int = 3
) -> Sender:
    """A sender that has posted and has had acknowledged so many chunks."""
    machine = Sender(wires, window, asks=asks)
    for seq in range(posted):
        machine.handle(Credit(7, min(seq, acked)))
        machine.handle(Send())
        if seq < acked:
            machine.handle(Acked(7, seq))
    return machine


def receiver(
    landed: int = 0, *, wires: tuple[int, ...] = (7, 8, 9), window: int = 4, credit_every: int = 1
) -> Receiver:
    """A receiver at which so many chunks have landed, none folded."""
    machine = Receiver(wires, window, credit_every=credit_every)
    fed(machine, *(Landed(7, 0, seq) for seq in range(landed)))
    return machine


def moved_off(machine: Sender, cause: Cause = Cause.PORT) -> list[Any]:
    return fed(machine, Lost(machine.wire, cause), Fenced(machine.wire))


def question(epoch: int, wire: int, nth: int = 0) -> list[Any]:
    return [Tell(Ask(epoch, wire)), Read(wire), Start(Timer.ANSWER, nth)]


def probe(nonce: int, spread: bool = True, nth: int = 0) -> list[Any]:
    return [Tell(Probe(0, nonce, spread)), Start(Timer.ANSWER, nth)]


def doubtful(machine: Sender) -> Sender:
    assert fed(machine, Expired(Timer.PROGRESS)) == [Spread(7), *probe(1)]
    return machine
