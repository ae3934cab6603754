"""The matrix of faults over queue pairs, a process per rank: real links, packets and queue pairs are what is spoilt.

The rows are those of docs/failover.md; random moments have a file of their own (test_native_session), and so have
faults of single frames, by the engine alone (test_native_wires).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from types import ModuleType

import pytest

from optcc.runtime import RankFailedError
from optcc.runtime.control import launch
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.control.links import GRACE_S, SUSPECT_S
from optcc.runtime.evidence.probing import left_of
from optcc.runtime.messages import Note, Strike
from optcc.values.cluster import Cluster, Nic, Server
from tests.fabrics import ring
from tests.failover_runs import InconclusiveError
from tests.verbs.conftest import VIRTUAL_TIME

pytestmark = pytest.mark.rdma

RATE = 20_000_000
SILENT_S = SUSPECT_S + GRACE_S
"""After so long a NIC that swallows everything is left, in the least."""


@pytest.fixture
def forked(network: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Ranks are forked, which saves an interpreter's start each; NICs have the rate of `job`."""
    from lab.allreduce import Forked

    monkeypatch.setattr(launch, "start_rank", Forked)
    for nic in range(8):
        network.rate(nic, 8 * RATE)
    return network


def job(*lost: str, ranks: int = 4, nbytes: int = 1 << 18) -> Job:
    """Ranks with two NICs each, called as the lab's; a ring without the NICs that are lost."""
    servers = tuple(
        Server(f"server{r}", tuple(Nic(f"rxe{2 * r + g}", Fraction(RATE), Fraction(RATE)) for g in range(2)))
        for r in range(ranks)
    )
    cluster = Cluster(servers)
    for nic in lost:
        cluster = cluster.degrade(nic)
    return Job({"it": ring(cluster, nbytes // (64 * ranks) * 64 * ranks)}, "float32", "sum", False, "verbs")


def struck(done: Collective, *nics: str) -> list[Note]:
    """All of these strikes are in the notes, or the run says nothing."""
    notes = [note for note in done.notes if note.kind == "struck"]
    if sorted(note.nic for note in notes) != sorted(nics):
        raise InconclusiveError(f"inconclusive: {nics} were to be struck, {notes} were")
    return notes


def left(done: Collective, nic: str) -> list[Note]:
    """Of the wires that end at a NIC, that they are lost."""
    return [note for note in done.notes if note.kind == "lost" and nic in (note.nic, note.far)]


def lost(done: Collective) -> list[Note]:
    return [note for note in done.notes if note.kind == "lost"]


def check_told(done: Collective, nics: Sequence[str]) -> None:
    """Ranks have told at once that the links of these NICs are down."""
    strikes = {note.nic: note.at for note in struck(done, *nics)}
    told = {note.nic: note for note in done.notes if note.kind == "nic down"}
    assert {nic: note.cause for nic, note in told.items()} == dict.fromkeys(nics, "port event")
    if VIRTUAL_TIME:
        assert max(told[nic].at - at for nic, at in strikes.items()) < 0.03


def test_row01_a_link_that_goes_down(forked: ModuleType) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("cut", "server1/rxe2", 0.4)])
        assert all(done.exact)
        check_told(done, ["server1/rxe2"])
        assert {note.cause for note in left(done, "server1/rxe2")} >= {"port event", "peer's notice"}
        again = ranks.run("it")
    assert all(again.exact)
    assert again.ran[1].sent["server1/rxe2"] == 0 < again.ran[1].sent["server1/rxe3"]


def test_row08_a_paused_process_is_healthy(forked: ModuleType) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("pause", "server2/rxe4", 0.4, 3 * SILENT_S)])
    struck(done, "server2/rxe4")
    assert all(done.exact)
    assert done.seconds > 3 * SILENT_S
    assert lost(done) == []


def test_row10_a_server_without_nics_is_named_by_every_rank(forked: ModuleType) -> None:
    with pytest.raises(RankFailedError) as caught, Session(job()) as ranks:
        ranks.run("it", [Strike("cut", f"server1/rxe{nic}", 0.3) for nic in (2, 3)])
    assert caught.value.rank == 1
    assert "no wire left of 4" in caught.value.cause
    assert caught.value.seen_by == dict.fromkeys(range(4), str(caught.value))


def test_row11_all_ranks_run_the_same_plan_next(forked: ModuleType) -> None:
    nics = ["server1/rxe2", "server2/rxe5"]
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("cut", nic, 0.3) for nic in nics])
        assert all(done.exact)
        check_told(done, nics)
        ranks.adopt(job(*nics))
        again = ranks.run("it")
    assert all(again.exact)
    assert lost(again) == []
    assert not any(rank.sent.get(nic) for rank in again.ran for nic in nics)


@pytest.mark.parametrize("kind", ["hole", "no data"])
def test_row13_a_nic_that_swallows_what_it_is_given_is_left(forked: ModuleType, kind: str) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike(kind, "server3/rxe6", 0.4)])
    (strike,) = struck(done, "server3/rxe6")
    assert all(done.exact)
    notes = left(done, "server3/rxe6")
    assert {note.cause for note in notes} & {"no progress", "completion error"}
    assert strike.at < min(note.at for note in notes)
    assert [note for note in lost(done) if note not in notes] == [], "and no other"


def test_row13_acknowledgements_come_by_any_wire(forked: ModuleType) -> None:
    """Those of the engine. The NIC misses its own, and says so after seconds: this takes less."""
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("no acks", "server3/rxe6", 0.4)])
    struck(done, "server3/rxe6")
    assert all(done.exact)


@pytest.mark.parametrize("kind", ["fatal", "post", "retries", "receiver", "status"])
def test_row13_what_only_emulated_nics_do_is_refused(forked: ModuleType, kind: str) -> None:
    with pytest.raises(RankFailedError, match=r"rank 1 failed: fault: .* here"), Session(job(ranks=2)) as ranks:
        ranks.run("it", [Strike(kind, "server1/rxe2", 0.4)])


@pytest.mark.parametrize("seconds", [0.02, 4 * SILENT_S], ids=["shorter than the deadline", "longer"])
def test_row13_an_address_that_changes_after_a_flap(forked: ModuleType, seconds: float) -> None:
    """Wires that are made anew have other addresses: the NIC carries its share again."""
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("flap", "server1/rxe2", 0.4, seconds)])
        struck(done, "server1/rxe2")
        assert all(done.exact)
        forked.heal(2)
        forked.cut(2)
        forked.readdress(2)
        forked.restore(2)
        time.sleep(0.5)
        ranks.adopt(job())
        again = ranks.run("it")
    assert all(again.exact)
    assert lost(again) == []
    assert again.ran[1].sent["server1/rxe2"] > 0


def test_row14_a_link_that_returns_carries_again(forked: ModuleType) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("away", "server1/rxe2", 0.2, 0.1)])
        assert all(done.exact)
        check_told(done, ["server1/rxe2"])
        for _ in range(20):
            time.sleep(0.2)
            again = ranks.run("it")
            assert all(again.exact)
            if again.ran[1].sent["server1/rxe2"]:
                break
    assert again.ran[1].sent["server1/rxe2"] > 0


def test_row13_a_killed_process_is_named_by_every_rank(forked: ModuleType) -> None:
    with pytest.raises(RankFailedError) as caught, Session(job()) as ranks:
        ranks.run("it", [Strike("kill", "server2/rxe4", 0.4)])
    assert str(caught.value) == "rank 2 failed: killed by signal 9 (Killed)"
    assert caught.value.seen_by == dict.fromkeys((0, 1, 3), str(caught.value))


def test_row15_a_slow_nic_is_planned_for_and_not_left(forked: ModuleType) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("slow", "server1/rxe2", 0.3, 0.25)])
        struck(done, "server1/rxe2")
        assert all(done.exact)
        assert lost(done) == []
        ports = job().schedules["it"].ports
        parts = left_of(ports, ranks.probe(ports))
    measured = {name: float(part) for name, part in parts.items() if part < Fraction(4, 5)}
    if not VIRTUAL_TIME:
        assert "server1/rxe2" in measured
        return
    assert set(measured) == {"server1/rxe2"}
    assert 0.23 < measured["server1/rxe2"] < 0.27, "virtual time: a quarter"


def test_what_proves_nothing_and_what_is_not_told_are_noticed(forked: ModuleType) -> None:
    with Session(job(ranks=2)) as ranks:
        whole = ranks.run("it")
        with pytest.raises(InconclusiveError, match="to be struck"):
            check_told(whole, ["server1/rxe2"])
        slow = ranks.run("it", [Strike("slow", "server1/rxe2", 0.3, 0.5)])
        with pytest.raises(AssertionError, match="port event"):
            check_told(slow, ["server1/rxe2"])
