"""The failover protocol in a world where everything fails, in random interleavings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from optcc.runtime.protocol import Receiver, Sender
from optcc.runtime.protocol.events import Ask, Event, Expired, Found
from optcc.runtime.protocol.receiver import ReceiverState
from optcc.runtime.protocol.sender import SenderState
from optcc.runtime.protocol.table import Commands, Machine
from tests.effort import cases
from tests.protocol_interleavings import SEED, interleavings, too_rare
from tests.protocol_net import FIRST, Net

BLOCKS, BLOCK = 10, cases(10_000)


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_interleavings(block: int) -> None:
    first = SEED + block * BLOCK
    seen = interleavings(range(first, first + BLOCK))
    assert too_rare(seen, BLOCK) == [], seen


def test_a_world_that_is_too_kind_is_noticed() -> None:
    runs = 500

    class NothingFails(Net):
        def _fault(self, path: Any, kind: str) -> None:
            return

    assert set(too_rare(interleavings(range(runs), net=NothingFails), runs)) >= {"moved", "landed late", "found"}


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = Net(12), Net(12)
    assert (first.run().seen, first.steps, first.now) == (second.run().seen, second.steps, second.now)


def traced(kind: type[Machine], taken: Counter[Any]) -> Any:
    class Traced(kind):  # type: ignore[valid-type, misc]
        __slots__ = ()

        def handle(self, event: Event) -> Commands:
            before = self.state
            commands: Commands = super().handle(event)
            taken[before, type(event), self.state] += 1
            return commands

    return Traced


OF_RETURNS = {
    SenderState.WAITING,
    (SenderState.STRANDED, Found),
    (SenderState.STRANDED, Expired),
    (ReceiverState.CUT, Ask, ReceiverState.OPEN),
}
"""States, events in a state, and transitions of a wire that comes back: the world has none that does, and
`test_protocol_sender` and `test_protocol_receiver` play each of them."""


@pytest.mark.long
def test_the_world_takes_every_transition_and_no_other() -> None:
    by_kind: dict[type[Machine], Counter[Any]] = {Sender: Counter(), Receiver: Counter()}
    interleavings(range(10_000), sender=traced(Sender, by_kind[Sender]), receiver=traced(Receiver, by_kind[Receiver]))
    for kind, taken in by_kind.items():
        declared = {(state, event, to) for (state, event), rule in kind.TABLE.items() for to in rule.to}
        assert set(taken) - declared == set()
        here = {(s, e, t) for s, e, t in declared if not {s, t, (s, e), (s, e, t)} & OF_RETURNS}
        assert {(s, e.__name__, t) for s, e, t in here - set(taken) if s != t} == set()
        at_work = {key for key, rule in kind.TABLE.items() if rule.does.__name__ != "_ignore"}
        at_work = {(s, e) for s, e in at_work if s not in OF_RETURNS and (s, e) not in OF_RETURNS}
        assert {(s, e.__name__) for s, e in at_work - {key[:2] for key in taken}} == set()


def test_letters_are_often_slower_than_the_first_repetition() -> None:
    assert sum(Net(seed).message_delay > FIRST for seed in range(200)) > 100
