"""Flows over virtual wires: what is cut how, what moves where, what is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import pytest

from optcc.errors import SimulationError
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.measuring import virtual_run
from optcc.runtime.wires.contract import Cause
from tests.flow_mutants import LooksOnlyWhenItSends
from tests.flow_runs import TIMEOUTS, Watched, one_way

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
