"""Rows of the matrix of faults over the local transport, a process per rank (docs/failover.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

import optcc
from optcc.runtime import RankFailedError
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.evidence.probing import left_of
from optcc.runtime.messages import Note, Strike
from optcc.values.cluster import Cluster
from tests.failover_runs import InconclusiveError


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Four ranks with two NICs each, for strikes that end with the wires: a cut NIC is still cut for later jobs."""
    with Session(job()) as ranks:
        yield ranks


TIMES = 5
"""Runs, at most, until a strike hits: on a busy machine it may come when the NIC has nothing more to do, which says
nothing."""
FLAP_S = 1.5
"""Longer than it takes to leave a NIC that swallows everything, at the rate of `job`."""


def job(rate: int = 2_000_000, lost: Sequence[str] = ()) -> Job:
    cluster = Cluster.uniform(servers=4, nics=2, rate=rate)
    for nic in lost:
        cluster = cluster.degrade(nic)
    return Job({"it": optcc.plan(cluster, 1 << 18, segments=4).schedule()}, "float32", "sum", True)


def struck(done: Collective, *nics: str) -> list[Note]:
    """All of these strikes are in the notes, or the run says nothing."""
    notes = [note for note in done.notes if note.kind == "struck"]
    if sorted(note.nic for note in notes) != sorted(nics):
        raise InconclusiveError(f"inconclusive: {nics} were to be struck, {notes} were")
    return notes


def moved(done: Collective) -> list[Note]:
    return [note for note in done.notes if note.kind == "moved"]


def test_row11_all_ranks_run_the_same_plan_next() -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("cut", "server1/nic0", 0.3), Strike("cut", "server2/nic1", 0.3)])
        struck(done, "server1/nic0", "server2/nic1")
        assert all(done.exact)
        assert {note.nic for note in moved(done)} >= {"server1/nic0", "server2/nic1"}
        ranks.adopt(job(lost=["server1/nic0", "server2/nic1"]))
        again = ranks.run("it")
    assert all(again.exact)
    assert moved(again) == []
    assert not any(rank.sent.get(nic) for rank in again.ran for nic in ("server1/nic0", "server2/nic1"))


@pytest.mark.parametrize("kind", ["fatal", "post", "retries", "receiver", "no data", "no acks"])
def test_row13_what_a_nic_may_do_in_processes(session: Session, kind: str) -> None:
    for _ in range(TIMES):
        session.adopt(job())
        done = session.run("it", [Strike(kind, "server3/nic0", 0.4)])
        (strike,) = struck(done, "server3/nic0")
        assert all(done.exact)
        if moved(done) or kind == "no acks":  # acknowledgements come by any wire, so that nobody misses these
            break
    if kind == "no acks":
        return
    causes = {note.cause for note in moved(done) if "server3/nic0" in (note.nic, note.far)}
    expected = {"fatal": "device fatal", "post": "device fatal", "retries": "completion error"}
    assert expected.get(kind, {"receiver": "connection closed"}.get(kind, "no progress")) in causes
    assert strike.at < min(note.at for note in moved(done))


def flapped(ranks: Session, seconds: float) -> None:
    """A collective in which server1/nic0 swallows everything for so long, and over."""
    done = ranks.run("it", [Strike("flap", "server1/nic0", 0.4, seconds)])
    (strike,) = struck(done, "server1/nic0")
    assert all(done.exact)
    assert moved(done), "a flap that is longer than the deadline"
    time.sleep(max(0.0, strike.at + min(seconds, FLAP_S) - time.monotonic()))


def check_back(again: Collective) -> None:
    """I13: on wires made anew nothing is lost, doubled or moved, and server1/nic0 carries what its like carries."""
    assert all(again.exact), "a wrong result"
    assert moved(again) == [], "a flow has moved"
    sent = again.ran[1].sent
    assert sent.get("server1/nic0", 0) == sent["server1/nic1"] > 0, "the NIC is not in use"


def test_row13_an_address_that_changes_after_a_flap() -> None:
    """Wires that are made anew have other addresses: the NIC carries its share again."""
    with Session(job()) as ranks:
        flapped(ranks, FLAP_S)
        ranks.adopt(job())
        again = ranks.run("it")
        check_back(again)
        with pytest.raises(AssertionError, match="a wrong result"):
            check_back(replace(again, exact=(*again.exact[:-1], False)))
        ranks.adopt(job(lost=["server1/nic0"]))
        with pytest.raises(AssertionError, match="not in use"):
            check_back(ranks.run("it"))


def test_a_nic_that_is_not_back_fails_the_check() -> None:
    with Session(job()) as ranks:
        flapped(ranks, 60.0)
        ranks.adopt(job())
        with pytest.raises(AssertionError, match="a flow has moved"):
            check_back(ranks.run("it"))


@pytest.mark.parametrize(
    ("kind", "cause"), [("kill", "killed by signal 9 (Killed)"), ("status", "server2/nic0: remote access error")]
)
def test_row13_an_end_is_the_same_on_every_rank(kind: str, cause: str) -> None:
    with pytest.raises(RankFailedError) as caught, Session(job()) as ranks:
        ranks.run("it", [Strike(kind, "server2/nic0", 0.4)])
    assert str(caught.value) == f"rank 2 failed: {cause}"
    assert set(caught.value.seen_by.values()) == {str(caught.value)}
    assert set(caught.value.seen_by) == {0, 1, 3} | ({2} if kind == "status" else set())


def test_row10_a_server_without_nics_is_named_by_every_rank() -> None:
    with pytest.raises(RankFailedError) as caught, Session(job()) as ranks:
        ranks.run("it", [Strike("cut", f"server1/nic{nic}", 0.3) for nic in range(2)])
    assert caught.value.rank == 1
    assert "no wire left of 4" in caught.value.cause
    assert caught.value.seen_by == dict.fromkeys(range(4), str(caught.value))


def test_row08_a_paused_process_is_healthy(session: Session) -> None:
    session.adopt(job())
    done = session.run("it", [Strike("pause", "server2/nic0", 0.4, 2.5 * FLAP_S)])
    struck(done, "server2/nic0")
    assert all(done.exact)
    assert done.seconds > 2 * FLAP_S
    assert moved(done) == []


@pytest.mark.long
def test_row15_a_slow_nic_is_planned_for_and_not_left() -> None:
    with Session(job(rate=20_000_000)) as ranks:
        done = ranks.run("it", [Strike("slow", "server1/nic0", 0.3, 0.25)])
        struck(done, "server1/nic0")
        assert all(done.exact)
        assert moved(done) == []
        ports = job(rate=20_000_000).schedules["it"].ports
        left = left_of(ports, ranks.probe(ports))
    measured = {name: float(part) for name, part in left.items() if part < Fraction(4, 5)}
    assert set(measured) == {"server1/nic0"}
    assert 0.1 < measured["server1/nic0"] < 0.3, "a quarter, or less on a busy machine"
