"""How long it takes from the fault to the last flow's first chunk on another wire, in virtual time: lost letters cost
little, and a black hole costs one deadline, however many flows come upon it, one after the other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from heapq import heappop
from typing import Any
from unittest import mock

import numpy as np
import pytest

from optcc.runtime import flows, layout
from optcc.runtime.arrivals import nothing_runs
from optcc.runtime.device import Op
from optcc.runtime.doubts import Doubts
from optcc.runtime.errors import FlowSeveredError
from optcc.runtime.messages import Note
from optcc.runtime.patience import Patience
from optcc.runtime.protocol import Sender, SenderState
from optcc.runtime.protocol.doubting import PROBES
from optcc.runtime.protocol.table import Commands
from optcc.runtime.protocol.words import Alive, Expired, Lost, Probe, Spread, Start, Tell, Timer
from optcc.runtime.stalls import Stalls
from optcc.runtime.virtual import VirtualRun
from optcc.runtime.virtual_wires import VirtualNet, VirtualWires
from optcc.runtime.wires import ECHOES, Cause
from optcc.schedule import Lane, Port, Route, Schedule
from tests import protocol_mutants
from tests.failover_runs import leaves, rings
from tests.test_stalls import moved_behind_a_queue

PATIENCE = Patience()
RTT_S = 0.001
"""Of a letter and its answer."""

WANTED_S = 0.03
"""From a port event to the first chunk on another wire."""


class Timed(VirtualRun):
    """A run whose letters take their time, and get lost as `loses` says: (kind, how many of it there were before)."""

    rtt_s = RTT_S

    def __init__(
        self, schedule: Schedule, loses: Callable[[str, int], bool] = lambda kind, nth: False, **how: Any
    ) -> None:
        self.schedule, self._loses, self.letters = schedule, loses, Counter[str]()
        self.buffers = [
            np.random.default_rng(rank).standard_normal(schedule.nbytes // 4).astype(np.float32)
            for rank in range(schedule.ranks)
        ]
        how = {"slot_bytes": 2048, "patience": PATIENCE, **how}
        with mock.patch.object(layout, "WINDOW", (1, 4)):
            super().__init__(schedule, self.buffers, Op.SUM, **how)

    def _post_for(self, rank: int) -> Callable[[int, object], None]:
        def post(to: int, value: Any) -> None:
            lost = self._loses(value[1], self.letters[value[1]])
            self.letters[value[1]] += 1
            if not lost:
                self.at(self.net.now + self.rtt_s / 2, lambda net: self.flows[to].letter(rank, value))

        return post

    def strike(self, at: float, nic: str, what: str, **how: Any) -> None:
        """Let a NIC be struck at its time."""
        number = next(i for i, port in enumerate(self.net.layout.nics) if port.name == nic)
        rank = self.net.layout.nics[number].rank
        self.at(at, lambda net: getattr(net.ends[rank], what)(number, **how))

    def settle(self, within_s: float = 5.0) -> None:
        """Go on after the end until nothing is waited for any more."""
        self.net.paused.clear()
        end = self.net.now + within_s
        while self._next() < np.inf:
            self.net.now = max(self.net.now, self._next())
            assert self.net.now < end, f"still asking: {self.letters}"
            while self._pending and self._pending[0][0] <= self.net.now:
                heappop(self._pending)[2](self.net)
            for each in self.flows:
                each.poll(self.net.now, nothing_runs)

    def _next(self) -> float:
        wakes = [flows.next_wake() for flows in self.flows]
        return min(*wakes, self.net.next_landing(), self._pending[0][0] if self._pending else np.inf)

    def moved(self) -> list[Note]:
        """Of all ranks, by time."""
        return sorted((n for f in self.flows for n in f.journal if n.kind == "moved"), key=lambda note: note.at)

    def finish(self) -> VirtualRun:
        """Run, and see that every rank has the bits that it would have had without a fault."""
        self.run()
        assert [buffer.tobytes() for buffer in self.buffers] == whole(self.schedule)[1]
        return self


@cache
def whole(schedule: Schedule) -> tuple[float, list[bytes]]:
    """Without a fault: seconds, and the bits on every rank."""
    run = Timed(schedule)
    return run.run(), [buffer.tobytes() for buffer in run.buffers]


def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over sockets: letters are all there is."""
    monkeypatch.setattr(VirtualWires, "ask_record", lambda self, wire, flow: False)


# --- lost letters ----------------------------------------------------------------------------------------------------


PAIR = rings(2, 2, 1 << 16, 4_000_000)


def resumed_s(what: str, loses: Callable[[str, int], bool], patience: Patience = PATIENCE, **how: Any) -> float:
    """From the strike until the last flow goes on, with a NIC lost in the middle of a ring of two."""
    run = Timed(PAIR, loses, patience=patience)
    at = 0.4 * whole(PAIR)[0]
    run.strike(at, "server1/nic0", what, **how)
    run.finish()
    assert run.moved()
    return run.moved()[-1].at - at


def first_of(*lost: tuple[str, int]) -> Callable[[str, int], bool]:
    """Loses the first so many letters of some kinds."""
    return lambda kind, nth: nth < dict(lost).get(kind, 0)


@pytest.mark.parametrize(
    "lost", [(), (("Ask", 2),), (("Ask", 12),), (("Answer", 2),), (("Answer", 12),), (("Ask", 6), ("Answer", 6))]
)
def test_a_cut_with_lost_letters_is_over_in_30_ms(
    lost: tuple[tuple[str, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two flows are hit: of twelve lost letters each loses six."""
    unreadable(monkeypatch)
    seconds = resumed_s("cut", first_of(*lost))
    assert seconds < WANTED_S
    assert lost or seconds == pytest.approx(RTT_S, abs=RTT_S / 10)
    slow = replace(PATIENCE, first=PATIENCE.answer)
    assert not lost or resumed_s("cut", first_of(*lost), slow) >= PATIENCE.answer, "what it was with one timer"


def test_a_record_that_can_be_read_saves_the_answer() -> None:
    assert resumed_s("cut", lambda kind, nth: kind == "Answer") <= PATIENCE.first + RTT_S


def test_a_lost_notice_is_repeated_soon() -> None:
    """The receiver's end is lost and only the receiver knows."""
    told = resumed_s("fail_in", first_of(("Notice", 3)), told=True)
    assert RTT_S < told < WANTED_S
    never = resumed_s("fail_in", lambda kind, nth: kind == "Notice" and nth < 50, told=True)
    assert never > PATIENCE.progress / 2, "then the progress timer has to notice"


def test_nine_of_ten_are_over_in_30_ms_when_a_third_of_all_letters_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch)
    times = []
    for seed in range(60):
        rng = random.Random(seed)
        times.append(resumed_s("cut", lambda kind, nth, rng=rng: rng.random() < 0.3))
    assert sorted(times)[int(0.9 * len(times))] < WANTED_S
    assert max(times) < PATIENCE.answer


def test_a_peer_that_never_answers_is_asked_less_and_less_often() -> None:
    run = Timed(PAIR, lambda kind, nth: kind == "Ask" and nth < 60)
    run.strike(0.4 * whole(PAIR)[0], "server1/nic0", "cut")
    run.finish()
    assert run.moved()[-1].at > 10 * PATIENCE.answer, "30 questions for each of the two flows"


# --- letters slower than the first repetition ------------------------------------------------------------------------

SLOW = pytest.mark.parametrize("rtt_s", [0.01, 0.1, 0.4])


@SLOW
def test_slow_letters_leave_healthy_flows_alone_and_come_to_an_end(rtt_s: float) -> None:
    """Everything is doubted, and the answer to no probe comes before it has been repeated."""
    assert rtt_s > 2 * PATIENCE.first
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run = Timed(schedule)
    run.rtt_s = rtt_s
    for step in range(20):
        run.at(step * whole(schedule)[0] / 20, lambda net: doubt_everything(run))
    run.finish()
    run.settle()
    senders = [out.sender for each in run.flows for out in each._outs.values()]
    doubts = sum(sender._nonce for sender in senders)
    assert 0 < doubts < run.letters["Probe"] <= PROBES * doubts, "repeated, and not for ever"
    assert {sender.state for sender in senders} == {SenderState.ACTIVE}
    assert [note for each in run.flows for note in each.journal] == []


@SLOW
def test_a_cut_with_slow_letters_costs_a_round_trip(rtt_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch)
    run, at = Timed(PAIR), 0.4 * whole(PAIR)[0]
    run.rtt_s = rtt_s
    run.strike(at, "server1/nic0", "cut")
    run.finish()
    run.settle()
    assert run.moved()[-1].at - at == pytest.approx(rtt_s, rel=0.1)
    assert {note.cause for note in run.moved()} <= {Cause.PORT, Cause.ERROR, Cause.NOTICE}
    assert 2 < run.letters["Ask"] < 30


@SLOW
def test_a_black_hole_with_slow_letters_is_left_alone_by_the_others(rtt_s: float) -> None:
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run, at = Timed(schedule), 0.4 * whole(schedule)[0]
    run.rtt_s = rtt_s
    run.strike(at, "server1/nic0", "darken")
    run.finish()
    run.settle()
    assert {"server1/nic0" in (note.nic, note.far) for note in run.moved()} == {True}
    assert run.moved()[-1].at - at <= DEADLINE_S + 4 * rtt_s


class AsksForEver(Sender):
    """Nothing that comes through, and no answer, ends a doubt; every question is followed by the next."""

    __slots__ = ()

    def _doubt_again(self, event: Expired) -> Commands:
        return (Tell(Probe(self.epoch, self._nonce, False)), Start(Timer.ANSWER))

    def _alive(self, event: Alive) -> Commands:
        return ()

    def _shown(self, kind: type) -> Commands:
        return ()


class BelievesNoLateAnswer(Sender):
    """The wire is given up when the peer has not answered by the first repetition."""

    __slots__ = ()

    def _doubt_again(self, event: Expired) -> Commands:
        return self._leave(Cause.PROGRESS)


@pytest.mark.parametrize("mutant", [AsksForEver, BelievesNoLateAnswer])
def test_broken_doubts_are_noticed_by_slow_letters(mutant: type[Sender]) -> None:
    """The negative controls."""
    with mock.patch.object(flows, "Sender", mutant), pytest.raises((AssertionError, FlowSeveredError)):
        test_slow_letters_leave_healthy_flows_alone_and_come_to_an_end(0.1)


# --- black holes -----------------------------------------------------------------------------------------------------

DEADLINE_S = PATIENCE.progress + PATIENCE.grace
LETTERS_S = 4 * RTT_S
"""A probe and its answer, word to those who share the NIC, the question after the verdict: what comes on top."""

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
    bound = DEADLINE_S + LETTERS_S
    if fault == "no data" and not readable:  # credits come through, so what begins to send later has to notice
        bound += PATIENCE.progress / 2 + PATIENCE.grace
    assert 0 < max(felt_by_all(**FAULTS[fault])) <= bound


def test_without_tests_of_what_shares_the_nic_it_costs_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was: flows that begin to send only when others have gone on have a deadline of their own."""
    monkeypatch.setattr(Doubts, "spread", lambda self, flow, command: None)
    assert max(felt_by_all()) > 1.5 * DEADLINE_S


def test_flows_of_one_nic_are_in_doubt_together_and_moved_together() -> None:
    run = Timed(hub())
    run.strike(0.5, "rank0/nic0", "darken")
    run.finish()
    moved = [note for note in run.moved() if note.nic == "rank0/nic0"]
    assert {note.far[:5] for note in moved} == {"rank1", "rank2", "rank3"}
    assert {note.cause for note in moved} == {Cause.PROGRESS}
    assert moved[-1].at - moved[0].at <= LETTERS_S
    assert moved[-1].at - 0.5 <= DEADLINE_S + LETTERS_S


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
    run.at(at + deadlines * PATIENCE.progress, lambda net: net.paused.discard(rank))
    run.finish()
    assert run.letters["Probe"] > 2, "or nothing was tried"
    assert run.letters["Suspect"] > 0, "and spread"
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
                self.at(self.net.now + 3 * PATIENCE.grace, lambda net: net.paused.discard(rank))

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
    run.strike(at + heals * PATIENCE.progress, "server1/nic0", "heal")
    run.finish()
    assert run.letters["Probe"] > 0
    assert run.moved() == []


def test_doubt_alone_moves_nothing() -> None:
    """Every NIC is doubted all the time while all work: tests cost letters and nothing else."""
    schedule = rings(3, 2, 1 << 17, 8_000_000)
    run = Timed(schedule)
    for step in range(40):
        run.at(step * whole(schedule)[0] / 30, lambda net: doubt_everything(run))
    run.finish()
    assert run.letters["Suspect"] > 40
    assert run.letters["Alive"] > 40
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
    monkeypatch.setattr(Stalls, "_before", lambda self, flow: {})
    with pytest.raises((AssertionError, FlowSeveredError)):
        test_a_long_queue_in_doubt_moves_nothing()


def doubt_everything(run: VirtualRun) -> None:
    """As if every flow had come upon a black hole."""
    for each in run.flows:
        doubts: Any = each._doubts
        doubts._nics.clear()
        for flow in (*each._outs.values(), *each._ins.values()):
            machine: Any = getattr(flow, "sender", None) or flow.receiver  # type: ignore[union-attr]
            doubts.spread(None, Spread(machine.wire))


def test_believing_every_doubt_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a wire that is given up for a doubt."""
    monkeypatch.setattr(Doubts, "_test", lambda self, out: self._handle(out, Lost(out.sender.wire, Cause.PROGRESS)))
    with pytest.raises((AssertionError, FlowSeveredError)):
        test_doubt_alone_moves_nothing()


class Outage(Timed):
    """No letter arrives between these two moments; all of them do at the second."""

    away = (0.5, 3.5)

    def _post_for(self, rank: int) -> Callable[[int, Any], None]:
        def post(to: int, value: Any) -> None:
            now, (begin, end) = self.net.now, self.away
            self.letters[value[1]] += 1
            arrives = max(now + self.rtt_s / 2, end if begin <= now < end else 0.0)
            self.at(arrives, lambda net: self.flows[to].letter(rank, value))

        return post


def test_questions_that_come_together_are_echoed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control channel is away while NICs are doubted again and again."""
    run, said = Outage(rings(3, 2, 9 << 16, 100_000)), Counter[tuple[int, int, float]]()

    def doubt(net: VirtualNet) -> None:
        for each in run.flows:
            for flow in each._outs.values():
                each._doubts.spread(None, Spread(flow.sender.wire))  # type: ignore[arg-type]

    credit = VirtualWires.credit

    def counted(self: VirtualWires, wire: int, flow: int, folded: int) -> None:
        said[flow, folded, run.net.now] += 1
        credit(self, wire, flow, folded)

    monkeypatch.setattr(VirtualWires, "credit", counted)
    for i in range(1, 100):
        run.at(i * 0.05, doubt)
    run.finish()
    assert run.letters["Probe"] > 40, "doubts asked while nothing came"
    assert max(n for (_, _, at), n in said.items() if at >= Outage.away[1]) <= ECHOES
    assert not run.moved()
