"""What verbs promise, by the InfiniBand specification: over the lab's soft NICs and over played ones, the same.

No upper bound of any time is asserted: what must come is waited for, what must not is given time to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from optcc.machine.rdma import rdma_ports
from tests.verbs import libibverbs as verbs
from tests.verbs.contract_rig import (
    ACCESS,
    ADD,
    ALL,
    FENCE,
    FLUSH,
    INLINE,
    INV_REQ,
    LOC_LEN,
    LOC_PROT,
    LOCAL,
    MEMORY,
    RECV,
    RECV_IMM,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    RETRY,
    RNR_RETRY,
    SEND,
    SEND_IMM,
    SIGNALED,
    SOLICITED,
    SUCCESS,
    SWAP,
    UC,
    UD,
    WRITE_IMM,
    Done,
    End,
    payload,
)
from tests.verbs.libibverbs import VerbsError, call, keys, make

pytestmark = pytest.mark.rdma
SIZES = (0, 1, 8, 4095, 4096, 4097, 100_003, 300_000)


class Pair:
    """Ends `a` and `b` on two NICs, connected."""

    def __init__(self, *, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None, **how: Any) -> None:
        found = [address for port in rdma_ports() if (address := port.address()) is not None]
        if len(found) < 2:
            assert "OPTCC_LAB" not in os.environ, "soft and played NICs are there"
            pytest.skip("fewer than two of this machine's ports have addresses (LAB=1 make test-verbs: soft ones)")
        qp_rights = how.pop("qp_rights", ALL)
        self.ends = self.a, self.b = End(found[0], **a or {}), End(found[1], **b or {})
        for end, far in ((self.a, self.b), (self.b, self.a)):
            end.initialise(qp_rights)
            end.to(far, **how)

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
def made() -> Iterator[list[Pair]]:
    """Pairs that are closed after the test."""
    pairs: list[Pair] = []
    yield pairs
    for pair in pairs:
        pair.close()


@pytest.fixture
def pair(made: list[Pair]) -> Pair:
    made.append(Pair())
    return made[0]


def make_pair(made: list[Pair], **how: Any) -> Pair:
    made.append(Pair(**how))
    return made[-1]


def fine(found: list[Done]) -> list[int]:
    assert [done for done in found if done.status] == []
    return [done.wr_id for done in found]


# ---- bytes ----


@pytest.mark.parametrize("size", SIZES)
def test_a_send_lands_in_the_oldest_receive(pair: Pair, size: int) -> None:
    sent = payload(size, 1)
    pair.a.fill(0, sent)
    pair.b.receive(5, [(64, 300_000)])
    pair.b.receive(6, [(400_000, 100)])
    assert pair.a.post(SEND, 9, [(0, size)] if size else []) == 0
    (got,) = pair.b.wait(1)
    assert got[:4] == (5, SUCCESS, RECV, size)
    assert pair.b.bytes_at(64, size) == sent
    assert pair.b.bytes_at(64 + size, 8) == bytes(8), "not a byte more"
    assert fine(pair.a.wait(1)) == [9]
    assert pair.b.quiet(0.01) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_write_goes_where_it_says_and_tells_nobody(pair: Pair, size: int) -> None:
    sent = payload(size, 2)
    pair.a.fill(7, sent)
    pair.b.receive(5, [(0, 8)])
    assert pair.a.write(3, [(7, size)], pair.b, 129) == 0
    assert fine(pair.a.wait(1)) == [3]
    assert pair.b.bytes_at(129, size) == sent
    assert pair.b.bytes_at(121, 8) == bytes(8) == pair.b.bytes_at(129 + size, 8)
    assert pair.b.quiet(0.01) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_read_brings_what_is_there(pair: Pair, size: int) -> None:
    there = payload(size, 3)
    pair.b.fill(50, there)
    assert pair.a.read(4, [(600, size)], pair.b, 50) == 0
    assert fine(pair.a.wait(1)) == [4]
    assert pair.a.bytes_at(600, size) == there
    assert pair.a.bytes_at(600 + size, 8) == bytes(8)


def test_immediate_values_come_with_sends_and_writes(pair: Pair) -> None:
    pair.a.fill(0, payload(5000, 4))
    pair.b.receive(1, [(0, 5000)])
    pair.b.receive(2)
    assert pair.a.post(SEND_IMM, 1, [(0, 5000)], imm=0x01020304) == 0
    assert pair.a.write(2, [(0, 4500)], pair.b, 8192, opcode=WRITE_IMM, imm=0x0A0B0C0D) == 0
    first, second = pair.b.wait(2)
    assert first[:5] == (1, SUCCESS, RECV, 5000, 0x01020304)
    assert second[:5] == (2, SUCCESS, RECV_IMM, 4500, 0x0A0B0C0D)
    assert first.flags & second.flags & 2
    assert pair.b.bytes_at(8192, 4500) == payload(4500, 4)
    assert fine(pair.a.wait(2)) == [1, 2]


def test_lists_are_gathered_and_scattered(pair: Pair) -> None:
    for i, (offset, length) in enumerate([(0, 5000), (90_000, 1), (20_000, 9000)]):
        pair.a.fill(offset, payload(length, i))
    pair.b.receive(1, [(100, 3), (50_000, 6000), (70_000, 9000)])
    assert pair.a.post(SEND, 1, [(0, 5000), (90_000, 1), (20_000, 9000)]) == 0
    assert pair.b.wait(1)[0].length == 14_001
    sent = payload(5000, 0) + payload(1, 1) + payload(9000, 2)
    assert pair.b.bytes_at(100, 3) + pair.b.bytes_at(50_000, 6000) + pair.b.bytes_at(70_000, 7998) == sent
    assert pair.b.bytes_at(70_000 + 7998, 100) == bytes(100)


def test_inline_bytes_are_taken_at_once(pair: Pair) -> None:
    for i in range(32):
        pair.a.fill(0, payload(64, i))
        assert pair.a.write(i, [(0, 64)], pair.b, 64 * i, flags=SIGNALED | INLINE, key=0) == 0
        pair.a.fill(0, bytes(64))
    assert fine(pair.a.wait(32)) == list(range(32))
    assert pair.b.bytes_at(0, 64 * 32) == b"".join(payload(64, i) for i in range(32))


def test_atomics_tell_what_was_there(pair: Pair) -> None:
    pair.b.fill(64, (1000).to_bytes(8, "little"))
    assert pair.a.atomic(ADD, 1, 0, pair.b, 64, 2**64 - 1) == 0
    assert pair.a.atomic(SWAP, 2, 8, pair.b, 64, 999, 31) == 0
    assert pair.a.atomic(SWAP, 3, 16, pair.b, 64, 999, 32) == 0
    assert fine(pair.a.wait(3)) == [1, 2, 3]
    assert [pair.a.number_at(offset) for offset in (0, 8, 16)] == [1000, 999, 31]
    assert pair.b.number_at(64) == 31


# ---- order and completions ----


def test_messages_and_completions_keep_their_order(pair: Pair) -> None:
    for i in range(200):
        pair.b.receive(1000 + i, [(2048 * i, 2048)])
    sent, done = 0, list[int]()
    while len(done) < 200:
        while sent < 200 and sent - len(done) < 100:
            pair.a.fill(2048 * sent, payload(1 + 10 * sent, sent))
            assert pair.a.post(SEND, sent, [(2048 * sent, 1 + 10 * sent)]) == 0
            sent += 1
        done += fine(pair.a.wait(1))
    assert done == list(range(200))
    got = pair.b.wait(200)
    assert fine(got) == list(range(1000, 1200))
    assert [g.length for g in got] == [1 + 10 * i for i in range(200)]
    for i in range(200):
        assert pair.b.bytes_at(2048 * i, 1 + 10 * i) == payload(1 + 10 * i, i), i


def test_only_what_is_signaled_completes(pair: Pair) -> None:
    for i in range(64):
        assert pair.a.write(i, [(0, 100)], pair.b, 0, flags=SIGNALED if i % 8 == 7 else 0) == 0
    assert fine(pair.a.wait(8)) == list(range(7, 64, 8))
    assert pair.a.quiet() == []


def test_a_queue_pair_may_signal_all(made: list[Pair]) -> None:
    pair = make_pair(made, a={"signal_all": True})
    for i in range(5):
        assert pair.a.write(i, [(0, 100)], pair.b, 0, flags=0) == 0
    assert fine(pair.a.wait(5)) == list(range(5))


def test_a_full_queue_takes_no_more(made: list[Pair], network: ModuleType) -> None:
    pair = make_pair(made, a={"sends": 4})
    network.lose(1, "in")
    errors = [pair.a.write(i, [(0, 100)], pair.b, 0) for i in range(600)]
    assert errors[:4] == [0] * 4
    assert errors[-1] != 0, "devices may take a few more than they were asked for, not 600"


def test_a_fence_waits_for_what_was_read(pair: Pair, network: ModuleType) -> None:
    network.rate(1, 1e8)
    pair.b.fill(0, payload(300_000, 5))
    pair.b.receive(1, [(400_000, 64)])
    assert pair.a.read(1, [(0, 300_000)], pair.b, 0) == 0
    assert pair.a.post(SEND, 2, [(300_000 - 64, 64)], flags=SIGNALED | FENCE) == 0
    assert fine(pair.a.wait(2)) == [1, 2]
    assert fine(pair.b.wait(1)) == [1]
    assert pair.b.bytes_at(400_000, 64) == payload(300_000, 5)[-64:]


def test_a_channel_speaks_once_for_each_time_it_is_asked(pair: Pair) -> None:
    assert not pair.b.told(0)
    for i in range(3):
        pair.b.receive(i, [(0, 8)])
    pair.b.arm()
    assert pair.a.post(SEND, 1, [(0, 8)]) == 0
    assert pair.b.told(10)
    assert pair.a.post(SEND, 2, [(0, 8)]) == 0
    pair.b.wait(2)
    assert not pair.b.told(0.05)
    pair.b.arm()
    assert pair.a.post(SEND, 3, [(0, 8)]) == 0
    assert pair.b.told(10)


def test_a_channel_asked_for_solicited_events_is_silent_about_others(pair: Pair) -> None:
    for i in range(2):
        pair.b.receive(i, [(0, 8)])
    pair.b.arm(solicited_only=True)
    assert pair.a.post(SEND, 1, [(0, 8)]) == 0
    assert fine(pair.b.wait(1)) == [0]
    assert not pair.b.told(0.05)
    assert pair.a.post(SEND, 2, [(0, 8)], flags=SIGNALED | SOLICITED) == 0
    assert pair.b.told(10)


def test_an_overrun_of_a_completion_queue_is_an_event(made: list[Pair]) -> None:
    pair = make_pair(made, a={"entries": 4, "signal_all": True})
    for i in range(100):
        if pair.a.write(i, [(0, 8)], pair.b, 0):
            break
    assert verbs.EVENT_CQ_ERR in pair.a.events(verbs.EVENT_CQ_ERR)


# ---- rights and bounds ----


def refused(pair: Pair, status: int) -> None:
    """The one request that was posted is refused so; then both queue pairs are in error."""
    first, *rest = pair.a.wait(1)
    assert first.status == status
    assert {done.status for done in rest} <= {FLUSH}
    assert pair.a.state() == verbs.QPS_ERR
    pair.b.events(verbs.EVENT_QP_ACCESS_ERR if status == ACCESS else verbs.EVENT_QP_REQ_ERR)


@pytest.mark.parametrize("size", [2, 5000])
def test_a_write_beyond_a_region_writes_nothing(pair: Pair, size: int) -> None:
    pair.a.fill(0, payload(size, 6))
    assert pair.a.write(1, [(0, size)], pair.b, MEMORY - size + 1) == 0
    assert pair.a.wait(1)[0].status == ACCESS
    assert pair.a.state() == verbs.QPS_ERR
    assert pair.b.bytes_at(MEMORY - 4, 4) == bytes(4)


def test_a_read_beyond_a_region_is_refused(pair: Pair) -> None:
    assert pair.a.read(1, [(0, 9)], pair.b, MEMORY - 8) == 0
    assert pair.a.wait(1)[0].status == ACCESS


def test_a_key_of_nobody_is_refused(pair: Pair) -> None:
    assert pair.a.write(1, [(0, 9)], pair.b, 0, rkey=pair.b.rkey ^ 0x5500) == 0
    assert pair.a.wait(1)[0].status == ACCESS


def test_a_region_that_is_no_more_cannot_be_reached(pair: Pair) -> None:
    region = make("ibv_reg_mr", pair.b.domain, pair.b.base, 4096, ALL)
    key = keys(region)[1]
    assert pair.a.write(1, [(0, 9)], pair.b, 0, rkey=key) == 0
    assert fine(pair.a.wait(1)) == [1]
    call("ibv_dereg_mr", region)
    assert pair.a.write(2, [(0, 9)], pair.b, 0, rkey=key) == 0
    assert pair.a.wait(1)[0].status == ACCESS


@pytest.mark.parametrize("what", ["write", "read", "atomic"])
def test_a_region_allows_what_it_was_registered_for(made: list[Pair], what: str) -> None:
    lacks = {"write": REMOTE_WRITE, "read": REMOTE_READ, "atomic": REMOTE_ATOMIC}[what]
    pair = make_pair(made, b={"rights": ALL & ~lacks})
    pair.a.fill(0, payload(8, 7))
    if what == "atomic":
        assert pair.a.atomic(ADD, 1, 0, pair.b, 0, 1) == 0
    else:
        assert getattr(pair.a, what)(1, [(0, 8)], pair.b, 0) == 0
    assert pair.a.wait(1)[0].status == ACCESS
    assert pair.b.bytes_at(0, 8) == bytes(8)


def test_a_queue_pair_allows_what_it_was_told(made: list[Pair]) -> None:
    pair = make_pair(made, qp_rights=LOCAL | REMOTE_READ)
    assert pair.a.read(1, [(0, 8)], pair.b, 0) == 0
    assert fine(pair.a.wait(1)) == [1]
    assert pair.a.write(2, [(0, 8)], pair.b, 0) == 0
    assert pair.a.wait(1)[0].status in (INV_REQ, ACCESS)


def test_a_local_key_of_nobody_is_an_error_after_what_came_before(pair: Pair) -> None:
    assert pair.a.write(1, [(0, 8)], pair.b, 0) == 0
    assert pair.a.write(2, [(0, 8)], pair.b, 0, key=pair.a.lkey ^ 0x5500) == 0
    assert pair.a.write(3, [(0, 8)], pair.b, 0) == 0
    assert [(done.wr_id, done.status) for done in pair.a.wait(3)] == [(1, SUCCESS), (2, LOC_PROT), (3, FLUSH)]


def test_a_message_longer_than_its_receive_fails_at_both_ends(pair: Pair) -> None:
    pair.b.receive(7, [(0, 100)])
    assert pair.a.post(SEND, 1, [(0, 101)]) == 0
    assert pair.a.wait(1)[0].status == INV_REQ
    assert pair.b.wait(1)[0][:2] == (7, LOC_LEN)


def test_an_operand_that_is_not_aligned_is_refused(pair: Pair) -> None:
    assert pair.a.atomic(ADD, 1, 0, pair.b, 4, 1) == 0
    assert pair.a.wait(1)[0].status in (INV_REQ, ACCESS)
    assert pair.b.bytes_at(0, 16) == bytes(16)


# ---- errors, states, a second life ----


def test_an_error_flushes_what_was_posted_both_ways_and_what_is_posted_then(pair: Pair, network: ModuleType) -> None:
    network.lose(1, "in")
    for i in range(3):
        pair.a.receive(10 + i, [(0, 8)])
        assert pair.a.write(i, [(0, 8)], pair.b, 0, flags=0) == 0
    pair.a.modify(verbs.QPS_ERR)
    found = pair.a.wait(6)
    assert {done.status for done in found} == {FLUSH}
    assert [done.wr_id for done in found if done.wr_id < 10] == [0, 1, 2]
    assert [done.wr_id for done in found if done.wr_id >= 10] == [10, 11, 12]
    assert pair.a.write(4, [(0, 8)], pair.b, 0, flags=0) == 0
    pair.a.receive(14, [(0, 8)])
    assert sorted((done.wr_id, done.status) for done in pair.a.wait(2)) == [(4, FLUSH), (14, FLUSH)]


def test_a_queue_pair_that_is_reset_has_a_second_life(pair: Pair) -> None:
    for life in range(3):
        for end in pair.ends if life else ():
            end.modify(verbs.QPS_RESET)
            end.initialise()
        for end, far in ((pair.a, pair.b), (pair.b, pair.a)):
            if life:
                end.to(far, first=1000 * life, expects=1000 * life)
        pair.a.fill(0, payload(9000, life))
        pair.b.receive(life, [(9000 * life, 9000)])
        assert pair.a.post(SEND, life, [(0, 9000)]) == 0
        assert fine(pair.b.wait(1)) == [life] == fine(pair.a.wait(1))
        assert pair.b.bytes_at(9000 * life, 9000) == payload(9000, life)


def test_states_come_in_order_with_all_that_they_need(made: list[Pair]) -> None:
    pair = make_pair(made)
    pair.a.modify(verbs.QPS_RESET)
    for state, given in ((verbs.QPS_RTS, {}), (verbs.QPS_INIT, {"port_num": 1}), (verbs.QPS_RTR, {})):
        with pytest.raises(VerbsError):
            pair.a.modify(state, **given)
    assert pair.a.write(1, [(0, 8)], pair.b, 0) != 0
    pair.a.initialise()
    assert pair.a.receive(1, [(0, 8)]) == 0
    assert pair.a.state() == verbs.QPS_INIT


def test_a_receive_that_is_missing_is_waited_for(made: list[Pair]) -> None:
    pair = make_pair(made, rnr_timer=14)
    pair.a.fill(0, payload(6000, 8))
    for i in range(3):
        assert pair.a.post(SEND, i, [(0, 6000)]) == 0
    assert pair.a.quiet(0.03) == []
    for i in range(3):
        pair.b.receive(i, [(6000 * i, 6000)])
    assert fine(pair.b.wait(3)) == [0, 1, 2] == fine(pair.a.wait(3))
    assert pair.b.bytes_at(0, 18_000) == payload(6000, 8) * 3


def test_a_receive_that_stays_missing_is_an_error(made: list[Pair]) -> None:
    pair = make_pair(made, rnr_retries=1)
    for i in range(2):
        assert pair.a.post(SEND, i, [(0, 100)]) == 0
    assert [done[:2] for done in pair.a.wait(2)] == [(0, RNR_RETRY), (1, FLUSH)]


# ---- faults of the network ----


def test_a_silent_far_end_costs_all_retries_and_nothing_comes_after(made: list[Pair], network: ModuleType) -> None:
    pair = make_pair(made, timeout=12, retries=3)
    network.lose(1, "in")
    before = time.monotonic()
    pair.a.fill(0, payload(500, 9))
    for i in range(3):
        assert pair.a.write(i, [(0, 500)], pair.b, 1000 * i, flags=0) == 0
    assert [done[:2] for done in pair.a.wait(3)] == [(0, RETRY), (1, FLUSH), (2, FLUSH)]
    assert time.monotonic() - before > 3 * 4.096e-6 * 2**12
    network.heal(1)
    time.sleep(0.05)
    assert pair.b.bytes_at(0, 3000) == bytes(3000), "a path that heals brings nothing of what was given up"


def test_packets_that_are_lost_are_sent_again(made: list[Pair], network: ModuleType) -> None:
    pair = make_pair(made, timeout=12, retries=6)
    before = network.troubles()
    network.lose(0, "out", "data", one_in=8)
    for i in range(60):
        pair.b.receive(i, [(5000 * i, 5000)])
        pair.a.fill(5000 * i, payload(5000, i))
    for i in range(60):
        assert pair.a.post(SEND, i, [(5000 * i, 5000)]) == 0
    assert fine(pair.b.wait(60)) == list(range(60)) == fine(pair.a.wait(60))
    for i in range(60):
        assert pair.b.bytes_at(5000 * i, 5000) == payload(5000, i), i
    assert network.troubles() != before, "some were lost"


def test_an_operand_is_added_once_however_often_it_is_asked_for(made: list[Pair], network: ModuleType) -> None:
    pair = make_pair(made, timeout=13, retries=6)
    network.lose(0, "in", "acks")
    for i in range(3):
        assert pair.a.atomic(ADD, i, 8 * i, pair.b, 0, 1) == 0
    assert pair.a.quiet(0.08) == []
    network.heal(0)
    assert fine(pair.a.wait(3)) == [0, 1, 2]
    assert [pair.a.number_at(8 * i) for i in range(3)] == [0, 1, 2]
    assert pair.b.number_at(0) == 3


def test_what_was_lost_of_a_read_is_asked_for_again(made: list[Pair], network: ModuleType) -> None:
    pair = make_pair(made, timeout=12, retries=6)
    network.lose(0, "in", "acks", one_in=6)
    pair.b.fill(0, payload(400_000, 10))
    for i in range(8):
        assert pair.a.read(i, [(50_000 * i, 50_000)], pair.b, 50_000 * i) == 0
    assert fine(pair.a.wait(8)) == list(range(8))
    assert pair.a.bytes_at(0, 400_000) == payload(400_000, 10)


def test_a_link_that_goes_and_comes_is_told(pair: Pair, network: ModuleType) -> None:
    assert pair.a.look() == verbs.PORT_ACTIVE
    network.cut(0)
    pair.a.events(verbs.EVENT_PORT_ERR)
    assert pair.a.look() != verbs.PORT_ACTIVE
    network.restore(0)
    pair.a.events(verbs.EVENT_PORT_ACTIVE)
    assert pair.a.look() == verbs.PORT_ACTIVE
    assert not {verbs.EVENT_PORT_ERR, verbs.EVENT_PORT_ACTIVE} & set(pair.b.events())


def test_a_short_cut_of_the_far_end_heals(made: list[Pair], network: ModuleType) -> None:
    pair = make_pair(made, timeout=15, retries=6)
    network.cut(1)
    pair.a.fill(0, payload(40_000, 11))
    assert pair.a.write(1, [(0, 40_000)], pair.b, 0) == 0
    time.sleep(0.02)
    network.restore(1)
    assert fine(pair.a.wait(1)) == [1]
    assert pair.b.bytes_at(0, 40_000) == payload(40_000, 11)


def test_queue_pairs_share_the_rate_of_their_nic(made: list[Pair], network: ModuleType) -> None:
    pairs = [make_pair(made) for _ in range(2)]
    for nic in (0, 1):
        network.rate(nic, 80e6)
    before = time.monotonic()
    for pair in pairs:
        assert pair.a.write(1, [(0, 250_000)], pair.b, 0) == 0
    for pair in pairs:
        assert fine(pair.a.wait(1)) == [1]
    assert time.monotonic() - before > 0.045, "500 kB at 80 Mb/s take 50 ms, less what shapers let through at first"


# ---- unreliable connections ----


@pytest.fixture
def loose(made: list[Pair]) -> Pair:
    """A pair over an unreliable connection."""
    return make_pair(made, a={"kind": UC}, b={"kind": UC})


@pytest.mark.parametrize("size", SIZES)
def test_an_unreliable_connection_carries_sends_and_writes(loose: Pair, size: int) -> None:
    sent = payload(size, 12)
    loose.a.fill(0, sent)
    loose.b.receive(5, [(64, 300_000)])
    loose.b.receive(6)
    assert loose.a.post(SEND_IMM, 1, [(0, size)], imm=7) == 0
    assert loose.a.write(2, [(0, size)], loose.b, 400_000, opcode=WRITE_IMM, imm=8) == 0
    assert fine(loose.a.wait(2)) == [1, 2]
    first, second = loose.b.wait(2)
    assert first[:5] == (5, SUCCESS, RECV, size, 7)
    assert second[:5] == (6, SUCCESS, RECV_IMM, size, 8)
    assert loose.b.bytes_at(64, size) == sent == loose.b.bytes_at(400_000, size)
    assert loose.b.bytes_at(64 + size, 8) == bytes(8)


def test_an_unreliable_connection_neither_reads_nor_adds(loose: Pair) -> None:
    assert loose.a.read(1, [(0, 8)], loose.b, 0) != 0
    assert loose.a.atomic(ADD, 2, 0, loose.b, 0, 1) != 0
    assert loose.a.state() == verbs.QPS_RTS


def test_what_is_lost_of_an_unreliable_connection_is_gone_and_nobody_is_told(loose: Pair, network: ModuleType) -> None:
    for i in range(3):
        loose.b.receive(10 + i, [(100_000 * i, 100_000)])
    loose.a.fill(0, payload(100_000, 13))
    network.lose(0, "out")
    assert loose.a.post(SEND, 1, [(0, 100_000)]) == 0
    assert fine(loose.a.wait(1)) == [1], "it is out, and that is all that is promised"
    network.heal(0)
    assert loose.a.post(SEND, 2, [(0, 100_000)]) == 0
    assert loose.b.wait(1)[0][:4] == (10, SUCCESS, RECV, 100_000), "the next message takes the oldest receive"
    assert loose.b.bytes_at(0, 100_000) == payload(100_000, 13)
    assert loose.b.quiet() == []
    assert loose.a.state() == verbs.QPS_RTS == loose.b.state()


def test_a_message_with_a_hole_is_dropped_whole(loose: Pair, network: ModuleType) -> None:
    """Some messages lack a packet; those that come are whole, in order, each once, and take one receive each."""
    size, at_once = 100_000, 9
    payloads = [payload(size, i) for i in range(at_once)]
    for i, data in enumerate(payloads):
        loose.a.fill(size * i, data)
    posted, came = 0, list[int]()
    for _ in range(20):
        while posted - len(came) < at_once + 1:
            loose.b.receive(posted, [(size * (posted % (at_once + 1)), size)])
            posted += 1
        network.lose(0, "out", one_in=60)
        for i in range(at_once):
            assert loose.a.post(SEND_IMM, i, [(size * i, size)], imm=i) == 0
        assert fine(loose.a.wait(at_once)) == list(range(at_once))
        network.heal(0)
        assert loose.a.post(SEND_IMM, 0, [(0, 8)], imm=at_once) == 0
        assert fine(loose.a.wait(1)) == [0]
        found = loose.b.wait(1)
        while found[-1].imm != at_once:
            found += loose.b.wait(1)
        assert fine(found) == list(range(len(came), len(came) + len(found)))
        seen = [done.imm for done in found]
        assert seen == sorted(set(seen))
        for done in found[:-1]:
            assert loose.b.bytes_at(size * (done.wr_id % (at_once + 1)), done.length) == payloads[done.imm]
        came += seen
    assert 20 < len(came) < 20 * (at_once + 1), "some came, some did not"


def test_an_unreliable_connection_drops_what_nobody_has_asked_for(loose: Pair) -> None:
    assert loose.a.post(SEND, 1, [(0, 8)]) == 0
    assert loose.a.write(2, [(0, 8)], loose.b, 0, rkey=loose.b.rkey ^ 0x5500) == 0
    assert fine(loose.a.wait(2)) == [1, 2]
    assert loose.b.quiet() == []
    loose.b.receive(5, [(0, 8)])
    assert loose.a.post(SEND, 3, [(0, 8)]) == 0
    assert fine(loose.b.wait(1)) == [5]


# ---- datagrams ----


def test_datagrams_come_with_who_sent_them_or_not_at_all() -> None:
    found = [address for port in rdma_ports() if (address := port.address()) is not None]
    a, b = ends = [End(nic, kind=UD, inline=0) for nic in found[:2]]
    for end in ends:
        end.modify(verbs.QPS_INIT, pkey_index=0, port_num=end.nic.port, qkey=0x11111111)
        end.modify(verbs.QPS_RTR)
        end.modify(verbs.QPS_RTS, sq_psn=1)
    handle = a.handle_to(b)
    for i in range(3):
        b.receive(i, [(4096 * i, 1000)])
    for i, (size, qkey) in enumerate([(960, 0x22222222), (960, 0x11111111), (10, 0x11111111)]):
        a.fill(0, payload(size, i))
        assert a.post(SEND, i, [(0, size)], a=handle, b=b.number | qkey << 32) == 0
        assert fine(a.wait(1)) == [i]
    first, second = b.wait(2)
    assert (first.length, second.length) == (1000, 50)
    assert first.src_qp == a.number
    assert b.bytes_at(40, 960) == payload(960, 1)
    assert b.quiet(0.01) == []
    call("ibv_destroy_ah", handle)
    for end in ends:
        end.close()
