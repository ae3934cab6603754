"""Flows one way over three virtual wires, and what was written on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest

from optcc.errors import SimulationError
from optcc.runtime.devices.host import Array, Op
from optcc.runtime.errors import FlowSeveredError, NicsLostError, TransportError
from optcc.runtime.flows import flows
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.measuring import virtual_run
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.messages import Note
from optcc.runtime.wires import layout
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Cause
from optcc.schedule import Lane, Port, Route, Schedule
from tests import protocol_mutants
from tests.flow_mutants import LooksOnlyWhenItSends

TIMEOUTS = Timeouts(progress=100.0, grace=50.0, answer=5.0)
NIC = {"rank0/nic0": 0, "rank0/nic1": 1, "rank0/nic2": 2, "rank1/nic0": 3, "rank1/nic1": 4, "rank1/nic2": 5}


def one_way(lengths: Sequence[int], shares: Sequence[Fraction] = (Fraction(1, 3),) * 3) -> Schedule:
    """Rank 0 sends to rank 1, one transfer after the other, over NICs of 8 bytes per second."""
    rows = len(lengths)
    return Schedule(
        ranks=2,
        nbytes=sum(lengths),
        ports=tuple(Port(name, nic // 3, 8.0, 8.0) for name, nic in NIC.items()),
        routes=(Route(0, 1, tuple(Lane(i, 3 + i, share) for i, share in enumerate(shares) if share)),),
        route=np.zeros(rows, np.int32),
        offset=np.cumsum([0, *lengths[:-1]]),
        length=np.array(lengths),
        reduce=np.zeros(rows, np.bool_),
        stage=np.ones(rows, np.uint8),
        segment=np.zeros(rows, np.int32),
        dep_ptr=np.zeros(rows + 1, np.int64),
        dep_idx=np.zeros(0, np.int64),
    )


class Watched(VirtualRun):
    """A one-way run with 8-byte chunks that remembers what was written: (time, wire, flow, seq)."""

    def __init__(self, schedule: Schedule, window: int = 64, timeouts: Timeouts = TIMEOUTS) -> None:
        buffers: list[Array] = [
            np.arange(schedule.nbytes // 4, dtype=np.int32),
            np.zeros(schedule.nbytes // 4, np.int32),
        ]
        with mock.patch.object(layout, "WINDOW", (1, window)):
            super().__init__(schedule, buffers, Op.SUM, slot_bytes=8, timeouts=timeouts)
        self.buffers = buffers
        self.writes: list[tuple[float, int, int, int]] = []
        end: Any = self.net.ends[0]
        write = end.write

        def watched(wire: int, flow: int, seq: int, *rest: Any) -> None:
            self.writes.append((self.net.now, wire, flow, seq))
            write(wire, flow, seq, *rest)

        end.write = watched

    def strike(self, at: float, nic: str, what: str, **how: Any) -> None:
        number = NIC[nic]
        self.at(at, lambda net: getattr(net.ends[number // 3], what)(number, **how))

    def finish(self) -> float:
        """Run, and see that all has come."""
        seconds = self.run()
        assert np.array_equal(*self.buffers)
        return seconds

    def by_nic(self, since: float = 0.0) -> list[int]:
        """Chunks by the NIC they left by."""
        left = Counter(self.net.layout.wires[wire].out for at, wire, _, _ in self.writes if at >= since)
        return [left[nic] for nic in range(3)]

    def again(self) -> dict[int, int]:
        """Flow -> chunks written more than once."""
        times = Counter((flow, seq) for _, _, flow, seq in self.writes)
        return dict(Counter(flow for (flow, _), count in times.items() if count > 1))

    def journal(self, kind: str) -> list[Note]:
        return [note for note in self.flows[0].journal if note.kind == kind]


# Flows over virtual wires: what is cut how, what moves where, what is waited for.


# --- shares ----------------------------------------------------------------------------------------------------------


def test_a_transfer_is_cut_by_the_shares() -> None:
    run = Watched(one_way([96]))
    assert run.finish() == pytest.approx(5, abs=1.1), "4 chunks of a second each, one after the other at both NICs"
    assert run.by_nic() == [4, 4, 4]
    run = Watched(one_way([96], (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))))
    run.finish()
    assert run.by_nic() == [6, 4, 2]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((Fraction(1, 3),) * 3, [0, 6, 6]),
        ((Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)), [0, 8, 4]),
        ((Fraction(1, 10), Fraction(9, 20), Fraction(9, 20)), [0, 6, 6]),
    ],
)
def test_what_comes_after_a_loss_is_cut_among_the_others(shares: Sequence[Fraction], expected: list[int]) -> None:
    run = Watched(one_way([96], shares))
    run.net.ends[0].cut(0)
    run.flows[0].poll(0.0, nothing_runs)
    run.finish()
    assert run.by_nic() == expected


def test_without_any_home_all_lanes_go_on_by_backups() -> None:
    run = Watched(one_way([96, 96], (Fraction(1), Fraction(0), Fraction(0))))
    run.strike(1.5, "rank0/nic0", "cut")
    run.finish()
    assert run.by_nic(2.0)[0] == 0
    assert sum(run.by_nic(1.5)) >= 22


def test_chunks_without_a_number_go_to_the_flows_that_are_left() -> None:
    run = Watched(one_way([240]), window=2)
    run.strike(2.5, "rank0/nic1", "cut")
    run.finish()
    (moved,) = run.journal("moved")
    posted = {seq for at, _, flow, seq in run.writes if flow == 1}
    assert len(posted) == 4, "two had landed, two were on their way; the other six went by the other flows"
    assert len({(flow, seq) for _, _, flow, seq in run.writes}) == 30
    assert moved.nbytes == 8 * run.again()[1]


def test_chunks_without_a_number_go_by_the_rates_of_the_flows_that_are_left() -> None:
    schedule = one_way([480])
    fast = tuple(replace(p, out_rate=24.0, in_rate=24.0) if p.name.endswith("nic0") else p for p in schedule.ports)
    run = Watched(replace(schedule, ports=fast), window=2)
    run.strike(0.5, "rank0/nic1", "cut")
    run.finish()
    by_flow = Counter(flow for flow, _ in {(flow, seq) for _, _, flow, seq in run.writes})
    # Of 20 each, 2 had numbers. The first is done with its own and all the others long before the last with its own.
    assert by_flow == {0: 20 + 18, 1: 2, 2: 20}


def test_a_second_loss_moves_the_queue_on() -> None:
    run = Watched(one_way([480]), window=2)
    run.strike(2.5, "rank0/nic1", "cut")
    run.strike(2.5, "rank0/nic0", "cut")
    run.strike(4.5, "rank1/nic2", "cut")
    run.finish()
    assert run.by_nic(5.0)[:2] == [0, 0]
    assert {note.cause for note in run.journal("moved")} >= {Cause.PORT, Cause.ERROR}


# --- failover --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["cut", "fail_out", "darken"])
@pytest.mark.parametrize("at", [0.5, 1.0, 3.5])
def test_healthy_flows_send_nothing_again(what: str, at: float) -> None:
    run = Watched(one_way([240]))
    run.strike(at, "rank0/nic2", what)
    run.finish()
    assert set(run.again()) == {2}
    assert [flow.sender.epoch for flow in run.flows[0]._outs.values()] == [0, 0, 1]
    assert [note.far for note in run.journal("moved")] == ["rank1/nic2"]


def test_what_was_acknowledged_is_not_sent_again() -> None:
    run = Watched(one_way([240]))
    run.strike(5.5, "rank1/nic0", "cut")
    run.finish()
    assert {seq for _, _, flow, seq in run.writes if flow == 0} == set(range(10))
    assert run.again() == {0: 5}, "chunks 0 to 4 had landed by 5.5 s"


def test_a_landed_chunk_is_not_sent_again_although_its_acknowledgement_is_lost() -> None:
    run = Watched(one_way([240]))
    run.strike(0.0, "rank1/nic0", "darken", data=False)
    run.finish()
    assert run.again() == {}
    (moved,) = run.journal("moved")
    assert (moved.cause, moved.nbytes) == (Cause.PROGRESS, 0)


def test_the_journal_tells_what_happened() -> None:
    run = Watched(one_way([240]))
    run.strike(2.5, "rank0/nic0", "cut", cause=Cause.DEVICE, detail="on fire")
    run.finish()
    down, *lost, fenced, moved = run.flows[0].journal
    assert (down.at, down.kind, down.nic, down.cause, down.text) == (
        2.5,
        "nic down",
        "rank0/nic0",
        "device fatal",
        "on fire",
    )
    assert {(note.kind, note.nic, note.far) for note in lost} == {
        ("lost", "rank0/nic0", f"rank1/nic{i}") for i in range(3)
    }
    assert (fenced.kind, fenced.nic, fenced.far) == ("fenced", "rank0/nic0", "rank1/nic0")
    assert (moved.kind, moved.nic, moved.far, moved.cause) == ("moved", "rank0/nic0", "rank1/nic0", "device fatal")
    assert moved.text == f"to rank0/nic1 -> rank1/nic1, {moved.nbytes // 8} chunks again"
    theirs = [note for note in run.flows[1].journal if note.kind == "lost"]
    assert {note.cause for note in theirs} == {"completion error"}
    assert {note.nic for note in theirs} == {f"rank1/nic{i}" for i in range(3)}


def test_sent_counts_what_is_sent_again() -> None:
    run = Watched(one_way([240]))
    run.strike(2.5, "rank0/nic0", "cut")
    run.finish()
    sent = run.flows[0].sent()
    assert sum(sent.values()) == 240 + sum(note.nbytes for note in run.journal("moved")) == 8 * len(run.writes)


# --- timeouts --------------------------------------------------------------------------------------------------------


def test_a_black_hole_is_noticed_by_its_deadline() -> None:
    run = Watched(one_way([240]))
    run.strike(2.25, "rank0/nic0", "darken")
    run.finish()
    (moved,) = run.journal("moved")
    assert moved.cause == Cause.PROGRESS
    wait = TIMEOUTS.progress + TIMEOUTS.grace
    assert wait - TIMEOUTS.progress / 4 <= moved.at - 2.25 <= wait, "looked at four times in a deadline"


def test_a_black_hole_behind_a_failover_is_noticed_too() -> None:
    """What is sent again after a wait for the answer may be stuck as well, although nothing new is sent."""
    run = Watched(one_way([240], (Fraction(1), Fraction(0), Fraction(0))))
    for nic in (0, 1):
        run.strike(5.0, f"rank0/nic{nic}", "darken")
    run.at(5.0, lambda net: net.paused.add(1))  # so that the answer takes longer than it takes to look around
    run.strike(5.0, "rank0/nic0", "cut")
    run.at(5.0 + 3 * TIMEOUTS.progress, lambda net: net.paused.discard(1))
    run.finish()
    assert [note.cause for note in run.journal("moved")] == [Cause.PORT, Cause.PROGRESS]
    assert run.journal("moved")[-1].text.startswith("to rank0/nic2"), "not by the black hole to another NIC"


@pytest.mark.parametrize("span", [0.5, 0.9])
def test_a_hole_that_heals_in_time_moves_nothing(span: float) -> None:
    run = Watched(one_way([240]))
    run.strike(2.5, "rank0/nic0", "darken")
    run.strike(2.5 + span * TIMEOUTS.progress, "rank0/nic0", "heal")
    run.finish()
    assert run.journal("moved") == run.journal("lost") == []
    assert run.again() == {}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("deadlines", [2, 20])
def test_a_paused_rank_moves_nothing(rank: int, deadlines: int) -> None:
    run = Watched(one_way([240]), window=3)
    run.at(2.5, lambda net: net.paused.add(rank))
    run.at(2.5 + deadlines * TIMEOUTS.progress, lambda net: net.paused.discard(rank))
    assert run.finish() > deadlines * TIMEOUTS.progress
    assert run.flows[0].journal == run.flows[1].journal == []


def test_an_idle_flow_is_not_looked_at() -> None:
    run = Watched(one_way([24]))
    run.finish()
    run.net.now += 10 * TIMEOUTS.progress
    for each in (*run.flows, *run.flows):
        each.poll(run.net.now, nothing_runs)
    assert [each.next_wake() for each in run.flows] == [float("inf")] * 2


def test_looking_only_when_it_sends_is_noticed() -> None:
    with mock.patch.object(virtual_run, "FlowTransport", LooksOnlyWhenItSends), pytest.raises(SimulationError):
        test_a_black_hole_behind_a_failover_is_noticed_too()


# Flows over virtual wires: errors that end a run, and messages that do not.


def test_no_way_left_is_a_typed_error_that_names_the_peer() -> None:
    run = Watched(one_way([240]))
    for nic in range(3):
        run.strike(2.5 + nic, f"rank1/nic{nic}", "cut")
    with pytest.raises(
        FlowSeveredError, match=r"lost rank 1: no wire left of 9; .* lost by completion error"
    ) as caught:
        run.run()
    assert (caught.value.peer, caught.value.blames) == (1, 1)


def test_a_rank_whose_own_nics_are_down_does_not_blame_its_peer() -> None:
    run = Watched(one_way([240]))
    for nic in range(3):
        run.strike(2.5 + nic, f"rank0/nic{nic}", "cut")
    with pytest.raises(NicsLostError, match=r"lost rank 1: no wire left of 9; .* by port event") as raised:
        run.run()
    assert raised.value.blames is None


def test_losing_all_nics_when_idle_fails_nothing() -> None:
    run = Watched(one_way([24]))
    run.finish()
    for nic in range(3):
        run.net.ends[0].cut(nic)
    for each in (*run.flows, *run.flows):
        each.poll(run.net.now, nothing_runs)
    assert run.journal("moved") == []
    run.flows[0].begin("it", {})
    with pytest.raises(FlowSeveredError):
        run.flows[0].post(run.engines[0]._program.sends[0], memoryview(bytes(24)), 0.0)


def test_what_no_lost_nic_explains_is_an_error_and_no_failover() -> None:
    run = Watched(one_way([240]))
    run.at(2.5, lambda net: net.ends[1].fail_nic("REM_ACCESS_ERR"))
    with pytest.raises(TransportError, match="REM_ACCESS_ERR"):
        run.run()
    assert run.flows[1].journal == []


@pytest.mark.parametrize(("at", "what"), [(0, "holds 0"), (16, "holds 99")])
def test_a_slot_that_holds_something_else_is_an_error(at: int, what: str) -> None:
    run = Watched(one_way([24]))

    def spoil(net: Any) -> None:
        end = net.ends[1]
        take = end.take

        def spoilt(arrived: Arrived) -> None:
            take(arrived)
            slot = end.slot(arrived.flow, arrived.seq)
            if at:
                slot[at] = 99
            else:
                slot[:HEADER_BYTES] = bytes(HEADER_BYTES)

        end.take = spoilt

    run.at(0.0, spoil)
    with pytest.raises(TransportError, match=f"the slot of chunk 0 {what}"):
        run.run()


def test_a_chunk_of_another_operation_is_an_error() -> None:
    run = Watched(one_way([24]))
    run.flows[1].begin("it", run.engines[1]._program.receives)
    with pytest.raises(TransportError, match="not the same call here and on rank 0"):
        run.run()


def test_letters_from_strangers_are_ignored_and_nonsense_is_not() -> None:
    run = Watched(one_way([24]))
    for rank, message in ((1, [99, "Ask", 1, 3]), (0, [0, "Answer", 1, 0, 0]), (7, [0, "Refuse", 1, 3])):
        run.flows[0].message(rank, message)
    run.flows[0].poll(0.0, nothing_runs)
    assert run.flows[0].journal == []
    run.flows[0].message(1, [0, "Ask", "x", 3])
    with pytest.raises(TransportError, match="not a message"):
        run.flows[0].poll(0.0, nothing_runs)


def test_a_repeated_notice_is_sent_again() -> None:
    """The first one may be lost: a receiver that is probed says again that its wire is lost."""
    run = Watched(one_way([240]))
    told: list[Any] = []
    send = run.flows[1]._send

    def lossy(to: int, value: Any) -> None:
        told.append(value[1])
        if told.count("Notice") != 1:
            send(to, value)

    run.flows[1]._send = lossy  # type: ignore[method-assign]
    run.at(2.25, lambda net: net.ends[1].news.append(flows.Failed(0, Cause.ERROR, "flushed")))
    run.strike(2.25, "rank0/nic0", "darken")
    run.finish()
    (moved,) = run.journal("moved")
    assert moved.cause == Cause.NOTICE


def told_by_a_probe() -> list[str]:
    """What a rank does about two probes that come together: credits on wires and messages, in order."""
    run = Watched(one_way([24]))
    order: list[str] = []
    far, wires = run.flows[1], run.net.ends[1]
    far._send = lambda to, value: order.append(value[1])  # type: ignore[method-assign]
    with mock.patch.object(wires, "credit", side_effect=lambda *_: order.append("credit")):
        for nonce in (1, 2):
            far.message(0, [0, "Probe", 0, nonce, False])
        far.poll(0.0, nothing_runs)
    return order


def test_a_credit_that_is_asked_for_is_on_its_wire_before_the_peer_hears_that_it_will_come() -> None:
    assert told_by_a_probe() == ["credit", "Alive", "Alive"], "of messages that came together one is enough"
    with mock.patch.object(flows, "Receiver", protocol_mutants.EchoesAfterwards):
        assert told_by_a_probe() == ["Alive", "credit", "Alive"], "the negative control"
