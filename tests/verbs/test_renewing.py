"""Wires made anew over queue pairs: what they carry, and what is known of one that is not connected yet."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from optcc.runtime.wires.contract import Arrived, Drained, FlowSpec, Wire
from tests.verbs.ranks import Ranks
from tests.wires_contract import count, header, landed, until

pytestmark = pytest.mark.rdma

WIRES = (Wire(0, 1, 0, 0), Wire(0, 1, 1, 1))
FLOW = FlowSpec(0, 1, (0, 1), 8, 4096)


@pytest.fixture
def job() -> Iterator[Ranks]:
    """Both ends of wire 0 are fenced."""
    with Ranks(WIRES, [FLOW]) as ranks:
        for rank in (0, 1):
            ranks.ranks[rank].fence(0)
        for rank in (0, 1):
            until(ranks, rank, count(Drained, 1))
        yield ranks


def write(job: Ranks, wire: int, seqs: range) -> list[tuple[int, int, int]]:
    """Chunks of the flow over a wire; which have landed."""
    for seq in seqs:
        job.ranks[0].write(wire, 0, seq, header(0, seq), job.memory[0][seq * 64 : seq * 64 + 4096], job.now())
    job.ranks[0].flush()
    return landed(until(job, 1, count(Arrived, len(seqs))))


def test_a_wire_made_anew_carries_what_follows(job: Ranks) -> None:
    sender, receiver = job.ranks
    for life in range(3):
        first = 4 * life
        assert write(job, 1, range(first, first + 2)) == [(1, 0, first), (1, 0, first + 1)], "the other one goes on"
        there = sender.renew(0)
        here = receiver.renew(0)
        assert receiver.join(0, there)
        assert sender.join(0, here)
        assert not sender.join(0, here), "once"
        assert write(job, 0, range(first + 2, first + 4)) == [(0, 0, first + 2), (0, 0, first + 3)]
        for rank in (0, 1):
            job.ranks[rank].fence(0)
        for rank in (0, 1):
            until(job, rank, count(Drained, 1))


def test_compiled_code_knows_where_to_write_while_a_wire_waits_to_be_connected(job: Ranks) -> None:
    pytest.importorskip("numba", reason="numba of .venv (make setup; LAB=1 make test-verbs)")
    from optcc.runtime.compiled.verbs_tables import VerbsFlows

    sender = job.ranks[0]
    layout = SimpleNamespace(flows=[FLOW])
    flows: Any = SimpleNamespace(_outs={0: None}, _ins={}, _ends=SimpleNamespace(layout=layout))
    whole = VerbsFlows(flows, sender).tables.flows["slots"].tolist()
    assert whole[0] > 0
    assert sender.renew(0), "its end is new, and joined to none"
    assert VerbsFlows(flows, sender).tables.flows["slots"].tolist() == whole
