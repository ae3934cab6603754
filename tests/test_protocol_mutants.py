"""Bugs planted in the failover protocol, in its transport or in its world break what they should."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from optcc.runtime.protocol import ProtocolError, Sender
from optcc.runtime.protocol.table import Machine
from tests import protocol_net
from tests.protocol_interleavings import interleavings
from tests.protocol_mutants import FAILBACK_MUTANTS, MUTANTS
from tests.protocol_net import InvariantError, Net, run

KEPT = {f"I{n}" for n in range(1, 6)}
"""By wires that are found again: that is I13."""


def ends_with(mutant: type[Machine]) -> Any:
    return {"sender" if issubclass(mutant, Sender) else "receiver": mutant}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_breaks_its_invariant(mutant: type[Machine]) -> None:
    check = (mutant.__doc__ or "").partition(":")[0]
    seen: Counter[str] = Counter()
    for seed in range(5000):
        try:
            run(seed, **ends_with(mutant))
        except InvariantError as broken:
            seen[broken.check] += 1
            if broken.check == check:
                return
    pytest.fail(f"{check} held; broken: {dict(seen)}")


class KeepsTheOldLife(Net):
    """Wires that are made anew and still carry what was under way in their former life."""

    def _remake(self, path: protocol_net.Path) -> None:
        life, under_way = path.life, path.blocked
        super()._remake(path)
        if path.life != life:
            for flight in under_way:
                flight.life = path.life
            path.blocked = under_way
            self._later(self.rng.random(), self._late, path, path.life)


@pytest.mark.parametrize(
    ("net", "ends"),
    [(KeepsTheOldLife, {}), *((Net, ends_with(mutant)) for mutant in FAILBACK_MUTANTS)],
    ids=lambda what: what.__name__ if isinstance(what, type) else "-".join(end.__name__ for end in what.values()),
)
def test_a_planted_bug_in_failback_breaks_what_failback_must_keep(net: type[Net], ends: Any) -> None:
    """I13; and nothing breaks where no wire is found again, so that it is failback which is checked."""
    broken: set[str] = set()
    for seed in range(5000):
        world = net(seed, **ends)
        try:
            world.run()
        except (InvariantError, ProtocolError) as error:
            broken.add(error.check if isinstance(error, InvariantError) else "protocol")
            if not world.seen["found"]:
                pytest.fail(f"seed {seed}, in which no wire was found again: {error}")
            if broken & KEPT:
                return
    pytest.fail(f"I1 to I5 held; broken: {broken}")


class ReadsOnce(Net):
    """A transport that does not read a record again which it had asked for before the flow moved."""

    def _recorded_before(self, flow: Any, epoch: int) -> None:
        return


def test_a_record_of_an_old_epoch_must_be_read_again() -> None:
    with pytest.raises(AssertionError, match=r"lost by no progress|is healthy"):
        interleavings(range(2000), net=ReadsOnce)


class AnswersBeforeItLooks(Net):
    """A transport that reads messages before it looks at its wires."""

    def _deliver_letter(self, flow: Any, side: int, envelope: list[Any]) -> None:
        self._process(side, self._open, flow, side, envelope, turn=protocol_net.REST)


def test_letters_must_be_read_after_a_look_at_the_wires() -> None:
    with pytest.raises(AssertionError, match=r"lost by no progress|is healthy"):
        interleavings(range(5000), net=AnswersBeforeItLooks)


def test_without_a_receive_for_an_echo_a_credit_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_net, "ECHOES", 0)
    with pytest.raises(AssertionError, match="I18"):
        interleavings(range(2000))


def test_every_invariant_has_a_planted_bug() -> None:
    assert {(mutant.__doc__ or "").partition(":")[0] for mutant in MUTANTS} == {f"I{n}" for n in (*range(1, 12), 18)}
