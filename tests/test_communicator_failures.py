"""What a communicator survives, what it does not, and that all ranks are told the same."""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np
import pytest

import optcc
from optcc.communicator import interface, prepared
from optcc.errors import InputError
from optcc.runtime.errors import RankFailedError
from optcc.runtime.messages import Note, Renew
from tests.communicators import Ranks
from tests.control_star import eventually, together
from tests.free_port import free_port
from tests.rank_processes import heard, ran, started

TWO_NICS = "uniform:servers=3,nics=2,rate=1Gb/s"
LONG = 1 << 20
"""Elements of a call with many chunks."""


def numbers(rank: int) -> np.ndarray:
    """Sums of these are rounded, so that their order shows."""
    return np.random.default_rng(rank).normal(size=LONG).astype(np.float32)


def failed(found: list[Any], but: int | None = None) -> RankFailedError:
    """The one error that all ranks have raised."""
    errors = [each for rank, each in enumerate(found) if rank != but]
    assert all(isinstance(each, RankFailedError) for each in errors), found
    assert len({str(each) for each in errors}) == 1, "all say the same"
    return errors[0]


# --- NICs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_nic_dies_and_nobody_loses_anything(reproducible: bool) -> None:
    told: list[Note] = []
    with Ranks(3, TWO_NICS, reproducible=reproducible, tune=False, on_event=told.append) as ranks:
        healthy = ranks.good(lambda comm: comm.all_reduce(numbers(comm.rank)).tobytes())
        ranks.good(lambda comm: comm.strike("cut", "server1/nic0", 0.5))
        hit = ranks.good(lambda comm: comm.all_reduce(numbers(comm.rank)).tobytes())
        assert hit == healthy, "bit for bit"
        kinds = [event.kind for event in ranks.comms[1].events()]
        assert kinds.index("struck") < kinds.index("nic down") < kinds.index("moved"), "the fault met something"
        ranks.good(lambda comm: [comm.barrier() for _ in range(50)])
        for comm in ranks.comms:
            assert [event.text for event in comm.events() if event.kind == "renewed"] == ["server1/nic0"]
        after = ranks.good(lambda comm: comm.all_reduce(numbers(comm.rank)).tobytes())
        assert len(set(after)) == 1
        same_plans = after == healthy
        assert same_plans == reproducible
        assert all(comm._prepared.cluster.servers[1].out_rate == 125_000_000 for comm in ranks.comms)
        count = len(ranks.comms[1].events())
        ranks.good(lambda comm: comm.all_reduce(numbers(comm.rank)))
        assert len(ranks.comms[1].events()) == count, "the dead NIC is not used any more"
    assert {"nic down", "renewed"} <= {note.kind for note in told}


@pytest.mark.parametrize("call", ["broadcast", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_nic_dies_in_any_collective(call: str) -> None:
    """Of large buffers, that go where they are, with nothing around them."""

    def made(comm: optcc.Communicator) -> bytes:
        if call == "broadcast":
            return comm.broadcast(numbers(comm.rank), 1).tobytes()
        long, short = numbers(comm.rank)[: LONG // 3 * 3], np.empty(LONG // 3, np.float32)
        if call == "all_gather":
            return comm.all_gather(long, np.empty(3 * long.size, np.float32)).tobytes()
        if call == "reduce_scatter":
            return comm.reduce_scatter(long, short).tobytes()
        return comm.all_to_all(long, np.empty_like(long)).tobytes()

    with Ranks(3, TWO_NICS) as ranks:
        healthy = ranks.good(made)
        ranks.good(lambda comm: comm.strike("cut", "server1/nic0", 0.5))
        assert ranks.good(made) == healthy
        kinds = [event.kind for event in ranks.comms[1].events()]
        assert kinds.index("struck") < kinds.index("nic down"), "the fault met something"
        ranks.good(lambda comm: [comm.barrier() for _ in range(50)])
        assert ranks.good(made) == healthy


def test_nics_die_on_two_servers_one_after_the_other() -> None:
    with Ranks(3, TWO_NICS, reproducible=True) as ranks:
        healthy = ranks.good(lambda comm: comm.all_reduce(numbers(comm.rank)).tobytes())
        for nic in ("server0/nic1", "server2/nic0"):
            ranks.good(lambda comm, nic=nic: comm.strike("cut", nic, 0.3))
            for _ in range(4):
                assert ranks.good(lambda comm: comm.all_reduce(numbers(comm.rank)).tobytes()) == healthy
            ranks.good(lambda comm: [comm.barrier() for _ in range(50)])
        last = [[event.text for event in comm.events() if event.kind == "renewed"][-1] for comm in ranks.comms]
        assert last == ["server0/nic1, server2/nic0"] * 3


def test_a_new_plan_that_was_heard_of_in_the_middle_of_a_call_is_taken_up_after_it() -> None:
    """The word is read with what else comes then."""
    with Ranks(2, timeout_s=10.0) as ranks:
        ranks.good(lambda comm: comm.barrier())
        ranks.comms[0]._member.timeout_s = 60.0  # the other one's timeout ends before

        def call(comm: optcc.Communicator) -> None:
            member = comm._member
            with member._lock:
                member._control.renewals.append(Renew(member.operation, []))
                comm.barrier()

        ranks.good(call)
        assert [[event.kind for event in comm.events()] for comm in ranks.comms] == [["renewed"]] * 2


@pytest.mark.parametrize("limit", [{"return_s": 0.3}, {"timeout_s": 2.0}])
def test_the_last_nic_of_a_server_dies(limit: dict[str, float]) -> None:
    """It waits for its return as long as it may; then it is the one that has failed."""
    with Ranks(3, "uniform:servers=3,nics=1,rate=1Gb/s", **limit) as ranks:
        ranks.good(lambda comm: comm.all_reduce(numbers(comm.rank)))
        ranks.good(lambda comm: comm.strike("cut", "server1/nic0", 0.5))

        def call(comm: optcc.Communicator) -> None:
            for _ in range(2):  # a rank that was done already is told by its next call
                comm.all_reduce(numbers(comm.rank))

        error = failed(ranks.each(call))
        assert error.rank == 1
        assert "no wire left of 1" in str(error)
        assert "none has come back" in str(error)


# --- ranks -----------------------------------------------------------------------------------------------------------


def processes(dies: int) -> list[list[str]]:
    """What each of three processes has printed."""
    port = free_port()
    ranks = [ran("-m", "tests.communicator_process", rank, 3, port, dies) for rank in range(3)]
    return [out.splitlines() for out, _ in heard(ranks, 240)]


def test_a_killed_rank_is_the_same_error_on_all_others_which_go_on() -> None:
    first, killed, last = processes(dies=1)
    assert killed == ["6.0"]
    assert first[0] == last[0] == "6.0"
    assert first[1] == first[2] == last[1] == last[2], "again, too"
    assert first[1].startswith("1 rank 1 failed: ")
    assert first[3] == "0 2 4.0 2.0"
    assert last[3] == "1 2 4.0 2.0"


def test_without_rank_0_the_others_go_on() -> None:
    """The lowest rank that lives has the hub from then on."""
    killed, *others = processes(dies=0)
    assert killed == ["6.0"]
    for place, lines in enumerate(others):
        assert lines[1] == lines[2] == "0 rank 0 failed: its process, which held the control channel, is gone"
        assert lines[3] == f"{place} 2 5.0 2.0"


def test_a_rank_that_leaves_by_an_exception_ends_the_others_calls() -> None:
    ranks = Ranks(3)

    def call(comm: optcc.Communicator) -> None:
        with comm:
            comm.barrier()
            if comm.rank == 1:
                raise ValueError("boom")
            comm.all_reduce(np.zeros(LONG))

    found = ranks.each(call)
    assert isinstance(found[1], ValueError)
    assert str(failed(found, but=1)) == "rank 1 failed: left: ValueError: boom"


def test_calls_that_differ_are_told_on_all_ranks() -> None:
    with Ranks(3) as ranks:
        ranks.good(lambda comm: comm.barrier())
        error = failed(ranks.each(lambda comm: comm.all_reduce(np.zeros(10 + (comm.rank == 2)))))
        calls = "rank 2: all_reduce(float64, 11, sum); rank 0: all_reduce(float64, 10, sum)"
        assert str(error) == f"rank 2 failed: called something else than the others: {calls}"


def test_a_rank_that_plans_has_told_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 plans until the others have been told what two of the three have called."""
    told, plan = threading.Event(), prepared.candidates
    monkeypatch.setattr(prepared, "candidates", lambda *given: told.wait(60) and plan(*given))

    def call(comm: optcc.Communicator) -> None:
        try:
            comm.barrier() if comm.rank == 1 else comm.all_reduce(np.zeros(LONG))
        finally:
            if comm.rank:
                told.set()

    with Ranks(3) as ranks:
        error = failed(ranks.each(call))
    calls = "rank 1: barrier(); rank 0: all_reduce(float64, 1048576, sum)"
    assert str(error) == f"rank 1 failed: called something else than the others: {calls}"


@pytest.mark.parametrize("comes", [True, False])
def test_whose_call_decides_between_two_others_is_awaited(comes: bool) -> None:
    """Rank 2 comes late: its call says that rank 0 is the odd one. It comes too late: the two calls are told."""
    with Ranks(3, timeout_s=300 if comes else 4) as ranks:
        ranks.good(lambda comm: comm.barrier())
        hub, over = ranks.comms[0]._member._ties.overseer.hub, threading.Event()
        assert hub

        def call(comm: optcc.Communicator) -> None:
            if comm.rank == 2:
                assert eventually(lambda: bool(hub.differ), 60)
                over.wait(0.5 if comes else 60)
            try:
                comm.barrier() if comm.rank == 0 else comm.all_reduce(np.zeros(10))
            finally:
                over.set()

        error = failed(ranks.each(call))
    calls = ["rank 0: barrier()", "rank 1: all_reduce(float64, 10, sum)"]
    calls = calls if comes else calls[::-1]
    assert str(error) == f"rank {1 - comes} failed: called something else than the others: {'; '.join(calls)}"


def test_a_rank_that_does_not_come_has_failed() -> None:
    with Ranks(3, timeout_s=1.0) as ranks:
        ranks.good(lambda comm: comm.barrier())
        over = threading.Event()

        def call(comm: optcc.Communicator) -> None:
            if comm.rank == 1:
                assert over.wait(60)
            try:
                comm.barrier()
            finally:
                over.set()

        error = failed(ranks.each(call))
        assert error.rank == 1
        assert error.cause.startswith("has not come to operation 2; elsewhere: not done within 1 s: ")


def test_ranks_that_are_not_started_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "JOIN_S", 0.5)
    with pytest.raises(RankFailedError, match=r"rank 1 failed: not there: 2 of 3 ranks have not come .*: 1, 2"):
        optcc.Communicator(rendezvous=f"127.0.0.1:{free_port()}", rank=0, world=3, timeout_s=0.5)


@pytest.mark.long
def test_the_example_runs() -> None:
    """Its ranks as torchrun starts them."""
    said = [out for out, _ in heard(started(4, "examples/survive.py"), 240, [0] * 4)]
    assert said[1].startswith("rank 1 of 4: exact; ")
    assert "nic down" in said[1]


# --- groups ----------------------------------------------------------------------------------------------------------


def test_split() -> None:
    with Ranks(4) as ranks:

        def call(comm: optcc.Communicator) -> tuple[int, int, float, float] | None:
            part = comm.split(None if comm.rank == 3 else comm.rank % 2, key=-comm.rank)
            if part is None:
                comm.barrier()
                return None
            with part:
                own = float(part.all_reduce(np.array([comm.rank + 1.0]))[0])
                comm.barrier()  # both are there at the same time
                return part.rank, part.world, own, float(part.all_reduce(np.full(100_000, 1.0))[0])

        assert ranks.good(call) == [(1, 2, 4.0, 2.0), (0, 1, 2.0, 1.0), (0, 2, 4.0, 2.0), None]


@pytest.mark.parametrize(("kind", "nic"), [("hammer", "server0/nic0"), ("cut", "server0/nic7")])
def test_a_fault_run_that_cannot_be_is_refused(kind: str, nic: str) -> None:
    with optcc.Communicator() as comm, pytest.raises(InputError, match="no such fault"):
        comm.strike(kind, nic)


def test_one_whose_control_connection_is_cut_hears_what_the_hub_says() -> None:
    """Not that the hub is gone, for it lives; and who has gone on."""
    with Ranks(3) as ranks:
        ranks.good(lambda comm: comm.barrier())
        with ranks.comms[1]._member._control._socket() as sock:
            sock.shutdown(socket.SHUT_RDWR)
        error = failed(ranks.each(lambda comm: [comm.barrier() for _ in range(1000)]))
        assert str(error) == "rank 1 failed: its process has ended, or its connection was cut"
        left = ranks.each(lambda comm: comm.shrink())
        assert [left[0].world, left[2].world] == [2, 2]
        assert str(left[1]).startswith("shrink: rank 1 is not among those that go on: ranks 0, 2 have gone on")
        together(left[0].close, left[2].close)


def test_nobody_to_shrink() -> None:
    with Ranks(2) as ranks:
        for error in ranks.each(lambda comm: comm.shrink()):
            assert isinstance(error, InputError)
            assert str(error) == "shrink: no rank has failed, expected a call after RankFailedError"


def test_the_first_call_waits_as_long_as_any_other_one() -> None:
    """Before there are wires, too."""
    with Ranks(2, timeout_s=0.5) as ranks:
        found = ranks.each(lambda comm: comm.all_reduce(np.zeros(8)) if comm.rank == 0 else None)
        assert isinstance(found[0], RankFailedError)
        assert "within 0.5 s" in str(found[0])
