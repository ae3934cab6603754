"""A NIC lost when no collective runs: while wires are made, between a plan and its wires, and as everything ends."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from optcc.runtime.control.launch import Session
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.evidence.probing import left_of
from optcc.runtime.messages import Strike
from tests.failover_rig import Rig
from tests.failover_runs import InconclusiveError, all_right, of, rings
from tests.verbs import ranks
from tests.verbs.jobs import Jobs, addresses
from tests.verbs.test_failover import forked, job, moved, struck

pytestmark = pytest.mark.rdma

__all__ = ["forked"]  # a fixture


@pytest.mark.parametrize("step", [1, 2], ids=["addresses told", "connected"])
def test_connecting(network: ModuleType, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The collective runs on what is left; the NIC carries nothing in it."""
    cut: list[int] = []
    of_rank = ranks.Gather.of

    def watched(gather: Any, rank: int) -> Any:
        exchange, calls = of_rank(gather, rank), [0]

        def then_cut(value: Any) -> list[Any]:
            calls[0] += 1
            told = exchange(value)
            if rank == 0 and calls[0] == step and not cut:
                cut.append(0)
                network.cut(0)  # server0/nic0
            return told

        return then_cut

    monkeypatch.setattr(ranks.Gather, "of", watched)
    with Rig({"it": rings()}, Jobs(network)) as rig:
        assert cut, "inconclusive: not cut"
        for _ in range(2):
            all_right(rig.run())
        assert any(note.nic == "server0/nic0" for note in rig.notes("lost") + rig.notes("nic down"))
        gone = {w for w, wire in enumerate(rig.layout.wires) if rig.nics["server0/nic0"] in (wire.out, wire.into)}
        landed = [flow for flow in rig.acked if rig.flows[rig.layout.flows[flow].src]._outs[flow].sender.wire in gone]
        assert not landed, "nothing came through by it"
        assert of(rig, "server0/nic0")


def test_replanning(forked: ModuleType) -> None:
    """A second NIC goes when the next plan, which needs it, is there, and its wires are not."""
    with Session(job()) as session:
        done = session.run("it", [Strike("cut", "server1/rxe2", 0.3)])
        struck(done, "server1/rxe2")
        ports = job().schedules["it"].ports
        left = left_of(ports, session.probe(ports))
        assert {name for name, part in left.items() if part == 0} == {"server1/rxe2"}
        forked.cut(5)
        session.adopt(job("server1/rxe2"))
        again = session.run("it")
        assert all(done.exact)
        assert all(again.exact)
        assert {nic for note in moved(again) for nic in (note.nic, note.far)} >= {"server2/rxe5"}, "the plan has it"
        left = left_of(ports, session.probe(ports))
        assert {name for name, part in left.items() if part == 0} == {"server1/rxe2", "server2/rxe5"}
        session.adopt(job("server1/rxe2", "server2/rxe5"))
        last = session.run("it")
    assert all(last.exact)
    assert moved(last) == []


def test_an_address_that_changed_is_read_anew(network: ModuleType) -> None:
    """While somebody holds the old one, the new one has another index; by the old index there is no way any more."""
    before = addresses()[2]
    with ranks.Ranks():
        network.cut(2)
        network.readdress(2)
        network.restore(2)
        assert addresses()[2].gid_index != before.gid_index
    with Rig({"it": rings(2, 2)}, Jobs(network)) as rig:
        all_right(rig.run())
        assert rig.notes("lost") == []


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
