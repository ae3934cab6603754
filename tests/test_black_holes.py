"""A black hole costs one deadline, however many flows come upon it, one after the other; what is none moves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from optcc.runtime.errors import FlowSeveredError
from optcc.runtime.flows import flows
from optcc.runtime.flows.progress_watchdog import ProgressWatchdog
from optcc.runtime.flows.suspicion import Suspicions
from optcc.runtime.protocol.events import Lost, Spread
from optcc.runtime.wires.contract import ECHOES, Cause
from optcc.runtime.wires.virtual import VirtualNet, VirtualWires
from optcc.schedule import Lane, Port, Route, Schedule
from tests import protocol_mutants
from tests.failover_runs import leaves, rings
from tests.test_stalls import moved_behind_a_queue
from tests.timed_runs import DEADLINE_S, MESSAGES_S, PAIR, TIMEOUTS, Timed, doubt_everything, unreadable, whole

SCHEDULES = (
    PAIR,
    rings(3, 2, 1 << 17, 8_000_000),
    rings(3, 3, 1 << 17, 20_000_000),
    rings(4, 2, 1 << 17, 8_000_000),
    leaves(1 << 17, 8_000_000),
)
PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)
FAULTS: dict[str, dict[str, bool]] = {"hole": {}, "no data": {"acks": False}, "no acks": {"data": False}}


def felt_by_all(**how: bool) -> list[float]:
    """`felt_s` of many runs."""
    found = []
    for schedule in SCHEDULES:
        nics = Counter(port.rank for port in schedule.ports)
        spare = [rank for rank in nics if nics[rank] > 1]
        found += [felt_s(schedule, part, rank, **how) for part in PARTS for rank in (spare[0], spare[-1])]
    return found


def felt_s(schedule: Schedule, part: float, rank: int, **how: bool) -> float:
    """From when a NIC turns into a black hole, so much of the run done, until the last flow has left it; 0: none."""
    run, at = Timed(schedule), part * whole(schedule)[0]
    name = next(port.name for port in schedule.ports if port.rank == rank)
    run.strike(at, name, "darken", **how)
    run.finish()
    assert all(name in (note.nic, note.far) for note in run.moved()), "only what the black hole has hit"
    return run.moved()[-1].at - at if run.moved() else 0.0


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_black_hole_costs_one_deadline(fault: str, readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not readable:
        unreadable(monkeypatch)
    bound = DEADLINE_S + MESSAGES_S
    if fault == "no data" and not readable:  # credits come through, so what begins to send later has to notice
        bound += TIMEOUTS.progress / 2 + TIMEOUTS.grace
    assert 0 < max(felt_by_all(**FAULTS[fault])) <= bound


def test_without_tests_of_what_shares_the_nic_it_costs_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was: flows that begin to send only when others have gone on have a deadline of their own."""
    monkeypatch.setattr(Suspicions, "spread", lambda self, flow, command: None)
    assert max(felt_by_all()) > 1.5 * DEADLINE_S


def test_flows_of_one_nic_are_in_doubt_together_and_moved_together() -> None:
    run = Timed(hub())
    run.strike(0.5, "rank0/nic0", "darken")
    run.finish()
    moved = [note for note in run.moved() if note.nic == "rank0/nic0"]
    assert {note.far[:5] for note in moved} == {"rank1", "rank2", "rank3"}
    assert {note.cause for note in moved} == {Cause.PROGRESS}
    assert moved[-1].at - moved[0].at <= MESSAGES_S
    assert moved[-1].at - 0.5 <= DEADLINE_S + MESSAGES_S


def hub() -> Schedule:
    """Rank 0 sends to three others; to the last two only when the first has all."""
    names = [f"rank{rank}/nic{nic}" for rank in range(4) for nic in range(2)]
    sizes = [16_000, 8_000, 8_000]
    return Schedule(
        ranks=4,
        nbytes=sum(sizes),
        ports=tuple(Port(name, int(name[4]), 20_000.0, 20_000.0) for name in names),
        routes=tuple(Route(0, to, (Lane(0, 2 * to, Fraction(1)),)) for to in (1, 2, 3)),
        route=np.arange(3, dtype=np.int32),
        offset=np.cumsum([0, *sizes[:-1]]),
        length=np.array(sizes),
        reduce=np.zeros(3, np.bool_),
        stage=np.ones(3, np.uint8),
        segment=np.zeros(3, np.int32),
        dep_ptr=np.array([0, 0, 0, 0]),
        dep_idx=np.zeros(0, np.int64),
    )


# --- what is no black hole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("deadlines", [2, 6.5])
def test_a_paused_rank_is_doubted_and_nothing_moves(rank: int, deadlines: float) -> None:
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run, at = Timed(schedule), 0.4 * whole(schedule)[0]
    run.at(at, lambda net: net.paused.add(rank))
    run.at(at + deadlines * TIMEOUTS.progress, lambda net: net.paused.discard(rank))
    run.finish()
    assert run.messages["Probe"] > 2, "or nothing was tried"
    assert run.messages["Suspect"] > 0, "and spread"
    assert run.moved() == []


class Napping(Timed):
    """Rank 1 does nothing for some graces, right after it has said that it is alive; over wires that its process
    acknowledges, as local ones do."""

    naps = 0

    def _post_for(self, rank: int) -> Callable[[int, object], None]:
        post = super()._post_for(rank)

        def post_and_nap(to: int, value: Any) -> None:
            post(to, value)
            if rank == 1 and value[1] == "Alive" and rank not in self.net.paused and self.naps < 3:
                self.naps += 1
                self.net.paused.add(rank)
                self.at(self.net.now + 3 * TIMEOUTS.grace, lambda net: net.paused.discard(rank))

        return post_and_nap


def napped() -> Napping:
    """Chunks take a fifth of a second, so that one is under way when the peer answers."""
    schedule = rings(2, 2, 1 << 16, 10_000)
    run = Napping(schedule)
    for step in range(10):
        run.at(step * whole(schedule)[0] / 10, lambda net: doubt_everything(run))
    run.finish()
    run.settle()
    assert run.naps == 3
    return run


def test_a_peer_that_is_paused_right_after_it_has_answered_moves_nothing() -> None:
    assert napped().moved() == []


def test_without_a_second_question_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(flows, "Sender", protocol_mutants.DoesNotAskAgain)
    assert {note.cause for note in napped().moved()} == {Cause.PROGRESS}


@pytest.mark.parametrize("heals", [1.05, 1.3])
def test_a_hole_that_heals_during_the_tests_moves_nothing(heals: float) -> None:
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run, at = Timed(schedule), 0.4 * whole(schedule)[0]
    run.strike(at, "server1/nic0", "darken")
    run.strike(at + heals * TIMEOUTS.progress, "server1/nic0", "heal")
    run.finish()
    assert run.messages["Probe"] > 0
    assert run.moved() == []


def test_doubt_alone_moves_nothing() -> None:
    """Every NIC is doubted all the time while all work: tests cost messages and nothing else."""
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run = Timed(schedule)
    for step in range(40):
        run.at(step * whole(schedule)[0] / 30, lambda net: doubt_everything(run))
    run.finish()
    assert run.messages["Suspect"] > 40
    assert run.messages["Alive"] > 40
    assert run.moved() == []
    assert run.net.now < 1.01 * whole(schedule)[0]


def test_a_long_queue_in_doubt_moves_nothing() -> None:
    """A minute's work before the flow at its NIC, and doubt all the time, with graces of four seconds."""
    run = moved_behind_a_queue()
    for step in range(60):
        run.at(2.0 + step, lambda net: doubt_everything(run))
    run.run()
    assert [note.cause for flows in run.flows for note in flows.journal if note.kind == "moved"] == [Cause.PORT]


def test_without_regard_to_the_queue_it_would_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(ProgressWatchdog, "_before", lambda self, flow: {})
    with pytest.raises((AssertionError, FlowSeveredError)):
        test_a_long_queue_in_doubt_moves_nothing()


def test_believing_every_doubt_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a wire that is given up for a doubt."""
    monkeypatch.setattr(Suspicions, "_test", lambda self, out: self._handle(out, Lost(out.sender.wire, Cause.PROGRESS)))
    with pytest.raises((AssertionError, FlowSeveredError)):
        test_doubt_alone_moves_nothing()


class Outage(Timed):
    """No message arrives between these two moments; all of them do at the second."""

    away = (0.5, 3.5)

    def _post_for(self, rank: int) -> Callable[[int, Any], None]:
        def post(to: int, value: Any) -> None:
            now, (begin, end) = self.net.now, self.away
            self.messages[value[1]] += 1
            arrives = max(now + self.rtt_s / 2, end if begin <= now < end else 0.0)
            self.at(arrives, lambda net: self.flows[to].message(rank, value))

        return post


def test_questions_that_come_together_are_echoed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control channel is away while NICs are doubted again and again."""
    run, said = Outage(rings(3, 2, 9 << 16, 100_000)), Counter[tuple[int, int, float]]()

    def doubt(net: VirtualNet) -> None:
        for each in run.flows:
            for flow in each._outs.values():
                each._suspicions.spread(None, Spread(flow.sender.wire))  # type: ignore[arg-type]

    credit = VirtualWires.credit

    def counted(self: VirtualWires, wire: int, flow: int, folded: int) -> None:
        said[flow, folded, run.net.now] += 1
        credit(self, wire, flow, folded)

    monkeypatch.setattr(VirtualWires, "credit", counted)
    for i in range(1, 100):
        run.at(i * 0.05, doubt)
    run.finish()
    assert run.messages["Probe"] > 40, "doubts asked while nothing came"
    assert max(n for (_, _, at), n in said.items() if at >= Outage.away[1]) <= ECHOES
    assert not run.moved()
