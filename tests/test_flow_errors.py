"""Flows over virtual wires: errors that end a run, and messages that do not."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from optcc.runtime.errors import FlowSeveredError, NicsLostError, TransportError
from optcc.runtime.flows import flows
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Cause
from tests import protocol_mutants
from tests.flow_runs import Watched, one_way


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
