"""The matrix of faults over local wires. `make bench-failover` runs it for longer and writes docs/bench-failover.md."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest import mock

import pytest

import optcc
from optcc.runtime import RankFailedError
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.evidence.probing import left_of
from optcc.runtime.flows import flows
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import Note, Strike
from optcc.runtime.protocol import Receiver, Sender
from optcc.values.cluster import Cluster
from tests import failover_leaks, failover_rig, protocol_mutants
from tests.failover_cuts import cut
from tests.failover_matrix import ROWS, cases, every
from tests.failover_rig import Rig
from tests.failover_runs import TRIES, InconclusiveError, conclusive
from tests.flow_mutants import FoldsTwice, NoFence
from tests.test_wires import connect


@pytest.mark.parametrize(("number", "how"), cases(every(), pytest.mark.long))
def test_row(number: int, how: Mapping[str, Any]) -> None:
    assert conclusive(lambda: ROWS[number].run(connect, **how))


def test_random_cuts(request: pytest.FixtureRequest) -> None:
    """A few of the thousand of `make bench-failover`."""
    first = int(request.config.getoption("--hypothesis-seed"))
    hits = []
    for seed in range(first, first + 12):
        try:
            hits.append(cut(connect, seed))
        except InconclusiveError:
            continue
        except Exception as error:
            raise AssertionError(f"cut({seed}): {error}") from error
    assert len(hits) > 6
    assert all(hit.moved for hit in hits)


# --- the matrix can fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 7, 8, 9, 10, 13, 14])
def test_a_strike_that_misses_proves_nothing(number: int) -> None:
    with mock.patch.object(Rig, "strike"), mock.patch.object(time, "sleep"), pytest.raises(InconclusiveError):
        ROWS[number].run(connect, **ROWS[number].variants[0])


def caught(number: int, variant: int) -> str:
    """What a row finds. A bug shows when the fault hits at its moment, which not every run brings about."""
    for _ in range(TRIES):
        try:
            ROWS[number].run(connect, **ROWS[number].variants[variant])
        except InconclusiveError:
            continue
        except (AssertionError, RankFailedError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def test_a_sound_protocol_is_not_caught() -> None:
    assert not caught(1, 1)


@pytest.mark.parametrize(
    ("number", "variant", "mutant"),
    [
        (1, 1, protocol_mutants.ResumesByItself),
        (2, 2, protocol_mutants.TrustsTheLast),
        (4, 1, protocol_mutants.AsksOnce),
        (7, 0, protocol_mutants.ForgetsTheLast),
        (8, 0, protocol_mutants.Impatient),
        (9, 1, protocol_mutants.ClaimsTooMuch),
        (10, 0, protocol_mutants.ReusesAnEpoch),
        (6, 0, protocol_mutants.LeavesAnyway),
    ],
)
def test_the_matrix_catches_a_broken_protocol(
    number: int, variant: int, mutant: type[Sender | Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover_rig, "BOUND_S", 2.0)
    monkeypatch.setattr(flows, "Sender" if issubclass(mutant, Sender) else "Receiver", mutant)
    assert caught(number, variant)


@pytest.mark.parametrize(
    ("number", "variant", "mutant", "says"),
    [(3, 2, NoFence, "ghosts|holds|cannot be|but the next"), (9, 1, FoldsTwice, "does not expect|twice|fault-free")],
)
def test_the_matrix_catches_a_broken_transport(
    number: int, variant: int, mutant: type, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, mutant.__mro__[1].__name__, mutant)
    assert re.search(says, caught(number, variant))


class Leaf:
    """One object that Python's collector sees."""


LEAKS: Mapping[str, tuple[Callable[[], Any], str, int]] = {
    "descriptor": (lambda: os.dup(0), "descriptors were left", 30),
    "memory": (lambda: mmap.mmap(-1, 4096), "maps were left", 30),
    "an object each time": (Leaf, "objects were left", 500),
}


@pytest.mark.long
@pytest.mark.parametrize("what", LEAKS)
def test_a_leak_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I17. Every generation leaves one; some 18 flows move in each."""
    leak, says, failovers = LEAKS[what]
    kept: list[Any] = []
    close = Rig.__exit__
    monkeypatch.setattr(Rig, "__exit__", lambda self, *how: (kept.append(leak()), close(self, *how)))
    with pytest.raises(AssertionError, match=says):
        ROWS[16].run(connect, failovers=failovers)
    if what == "descriptor":
        for fd in kept:
            os.close(fd)


@pytest.mark.long
def test_a_measure_that_sees_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    held = failover_leaks.held
    for blind, says in (("maps", "no memory is seen"), ("descriptors", "no descriptors are seen")):
        with monkeypatch.context() as patch:
            patch.setattr(failover_leaks, "held", lambda blind=blind: replace(held(), **{blind: 0}))
            with pytest.raises(AssertionError, match=says):
                ROWS[16].run(connect, failovers=30)


# --- rows that need processes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Four ranks with two NICs each, for strikes that end with the wires: a cut NIC is still cut for later jobs."""
    with Session(job()) as ranks:
        yield ranks


TIMES = 5
"""Runs, at most, until a strike hits: on a busy machine it may come when the NIC has nothing more to do, which says
nothing."""
FLAP_S = 1.2 * (Timeouts.progress + Timeouts.grace)


def job(rate: int = 2_000_000, lost: Sequence[str] = ()) -> Job:
    cluster = Cluster.uniform(servers=4, nics=2, rate=rate)
    for nic in lost:
        cluster = cluster.degrade(nic)
    return Job({"it": optcc.plan(cluster, 1 << 18, segments=4).schedule()}, "float32", "sum", True, slot_bytes=8192)


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
    done = session.run("it", [Strike("pause", "server2/nic0", 0.4, 2.5 * Timeouts.progress)])
    struck(done, "server2/nic0")
    assert all(done.exact)
    assert done.seconds > 2 * Timeouts.progress
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
