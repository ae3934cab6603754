"""A NIC lost when no collective runs: while wires are made, between a plan and its wires, and as everything ends."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from optcc.runtime.control.launch import Session
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.evidence.probing import left_of
from optcc.runtime.messages import Strike
from optcc.runtime.native.wires import QueuePairWires
from tests.failover_runs import InconclusiveError
from tests.verbs.conftest import addresses
from tests.verbs.test_failover import forked, job, left, lost, struck

pytestmark = pytest.mark.rdma

__all__ = ["forked"]  # a fixture


@pytest.mark.parametrize("step", [0, 1, 2], ids=["before devices are opened", "addresses told", "connected"])
def test_connecting(forked: ModuleType, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The collective runs on what is left; the NIC carries nothing in it."""
    opened = QueuePairWires.__init__

    def watched(self: Any, opening: Any, *rest: Any) -> None:
        exchange, calls = opening.exchange, [0]

        def cut_at(number: int) -> None:
            if opening.rank == 0 and number == step:
                forked.cut(0)  # server0/rxe0

        def then_cut(value: Any) -> list[Any]:
            told: list[Any] = exchange(value)
            calls[0] += 1
            cut_at(calls[0])
            return told

        cut_at(0)
        object.__setattr__(opening, "exchange", then_cut)
        opened(self, opening, *rest)

    monkeypatch.setattr(QueuePairWires, "__init__", watched)
    with Session(job()) as session:
        for _ in range(2):
            done = session.run("it")
            assert all(done.exact)
            assert done.ran[0].sent["server0/rxe0"] == 0 < done.ran[0].sent["server0/rxe1"]
    forked.restore(0)


def test_replanning(forked: ModuleType) -> None:
    """A second NIC goes when the next plan, which needs it, is there, and its wires are not."""
    with Session(job()) as session:
        done = session.run("it", [Strike("cut", "server1/rxe2", 0.3)])
        struck(done, "server1/rxe2")
        ports = job().schedules["it"].ports
        parts = left_of(ports, session.probe(ports))
        assert {name for name, part in parts.items() if part == 0} == {"server1/rxe2"}
        forked.cut(5)
        session.adopt(job("server1/rxe2"))
        again = session.run("it")
        assert all(done.exact)
        assert all(again.exact)
        assert left(again, "server2/rxe5"), "the plan has it"
        assert again.ran[2].sent["server2/rxe5"] == 0
        parts = left_of(ports, session.probe(ports))
        assert {name for name, part in parts.items() if part == 0} == {"server1/rxe2", "server2/rxe5"}
        session.adopt(job("server1/rxe2", "server2/rxe5"))
        last = session.run("it")
    assert all(last.exact)
    assert lost(last) == []


def test_an_address_that_changed_is_read_anew(forked: ModuleType) -> None:
    """While somebody holds the old one, the new one has another index; by the old index there is no way any more."""
    before = addresses()[2]
    with Session(job()) as session:
        forked.cut(2)
        forked.readdress(2)
        forked.restore(2)
        assert addresses()[2].gid_index != before.gid_index
        session.adopt(job())
        done = session.run("it")
    assert all(done.exact)
    assert lost(done) == []
    assert done.ran[1].sent["server1/rxe2"] > 0


@pytest.mark.parametrize("nics", [(2,), (2, 3)], ids=["one NIC", "all of a server's"])
def test_shutdown(forked: ModuleType, monkeypatch: pytest.MonkeyPatch, nics: tuple[int, ...]) -> None:
    """Between the last collective and the order to go: all ranks end as they should."""
    ended: list[int | None] = []
    end = Session._end

    def watched(self: Any) -> None:
        ended.extend(process.poll() for process in self._processes)
        end(self)

    monkeypatch.setattr(Session, "_end", watched)
    ship = Overseer.ship

    def cut_first(self: Any, data: bytes) -> None:
        if not data:  # the end
            for nic in nics:
                forked.cut(nic)
        ship(self, data)

    monkeypatch.setattr(Overseer, "ship", cut_first)
    with Session(job()) as session:
        done = session.run("it")
    assert all(done.exact)
    if not ended:
        raise InconclusiveError("nobody has ended")
    assert ended == [0, 0, 0, 0]
