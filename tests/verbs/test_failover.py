"""The matrix of faults over queue pairs: real links, packets and queue pairs are what is spoilt.

The rows are those of `tests/failover_matrix.py`, which says what each proves; ranks are threads. Rows that are about
processes have sessions of forked ranks (`lab/allreduce.py`). Row 12 is about the pure machines alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime import RankFailedError
from optcc.runtime.control import launch
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.evidence.probing import left_of
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import Note, Strike
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import Cause, Drained, PortDown
from optcc.schedule import Schedule
from optcc.schedule.nested import nested_rings
from optcc.values.cluster import Cluster, Nic, Server
from tests import failover_cuts, failover_runs
from tests.fabrics import ring
from tests.failover_cuts import cut
from tests.failover_matrix import ROWS, cases, every
from tests.failover_rig import Rig
from tests.failover_runs import InconclusiveError
from tests.verbs.conftest import VIRTUAL_TIME
from tests.verbs.jobs import Jobs
from tests.verbs.ranks import Ranks
from tests.wires_contract import count, until

pytestmark = pytest.mark.rdma

GIVES_UP_S = 0.117
"""Of a NIC with timeout 12 and 6 retries; its last attempt comes one timeout earlier, after 0.1 s."""

VARIANTS: Mapping[int, tuple[Mapping[str, Any], ...]] = {
    **{number: row.variants for number, row in ROWS.items()},
    3: tuple({"heals": heals, "retry_s": GIVES_UP_S * 0.8} for heals in (0.5, 0.9, 1.6)),
    16: ({"failovers": 30}, {"failovers": 1000}),
}
SETTINGS = {3: VerbsSettings(timeout=12)}
"""Row 3 is about the NIC's own retries; for the others they must not be what is noticed."""


def leaf(ranks: int, nbytes: int, segments: int, rate: int, weak: int) -> Schedule:
    """What `tests.broken_schedules.nested` makes. The lab's guest has numpy alone, so no planner: with one server at
    half rate the plan is a ring of the others, and a leaf."""
    assert weak == 1
    cluster = Cluster.uniform(servers=ranks, nics=2, rate=rate // 2).degrade("server0/nic0")
    return nested_rings(cluster, {ranks - 1: Fraction(1)}, segments).lower(cluster, nbytes)


FOLDING_S = 0.1
"""A rank that folds for a millisecond at a time has a window of chunks to fold before it hears of anything."""

CUTS = Timeouts()
"""For random cuts: the runtime's own."""


@pytest.fixture(autouse=True)
def adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_runs, "nested", leaf)
    monkeypatch.setattr(failover_cuts, "TIMEOUTS", CUTS)


@pytest.mark.parametrize(("number", "how"), cases(every(VARIANTS), pytest.mark.whole))
def test_row(network: ModuleType, number: int, how: Mapping[str, Any]) -> None:
    jobs = Jobs(network, SETTINGS[number]) if number in SETTINGS else Jobs(network)
    assert ROWS[number].run(jobs, **how)


def test_a_strike_that_misses_proves_nothing(network: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "strike", lambda *_, **__: None)
    with pytest.raises(InconclusiveError):
        ROWS[9].run(Jobs(network), **ROWS[9].variants[0])


def test_a_queue_pair_that_is_left_is_noticed(network: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """I17."""
    kept: list[Any] = []
    close = Rig.__exit__

    def leaking(self: Rig, *how: object) -> None:
        kept.append(next(iter(self.ends[0]._ends.values())).queue_pair)
        close(self, *how)

    monkeypatch.setattr(Rig, "__exit__", leaking)
    with pytest.raises(AssertionError, match="queue pairs were left"):
        ROWS[16].run(Jobs(network), failovers=30)


@pytest.mark.parametrize("cuts", [8, pytest.param(50, marks=[pytest.mark.whole])])
def test_random_cuts(network: ModuleType, cuts: int) -> None:
    """Over the path that is a reference; the engine's have more (test_native_wires)."""
    hits = []
    for seed in range(cuts):
        try:
            hits.append(cut(Jobs(network), seed))
        except InconclusiveError:
            continue
        except Exception as error:
            raise AssertionError(f"cut({seed}): {error}") from error
    assert len(hits) > cuts // 2
    # Virtual time, to the first chunk on another wire. A lost message costs time, and so do folds that take long.
    calm = [hit for hit in hits if hit.messages and not hit.folding]
    told = [seconds for hit in calm for cause, seconds in hit.moved if cause in (Cause.PORT, Cause.DEVICE, Cause.ERROR)]
    assert told
    assert not VIRTUAL_TIME or max(told) < 0.03
    stuck = [seconds for hit in hits if hit.messages for cause, seconds in hit.waited if cause is Cause.PROGRESS]
    assert stuck
    assert not VIRTUAL_TIME or max(stuck) < CUTS.progress + CUTS.grace + FOLDING_S
    # From the strike, by whichever flow comes upon it last; a second black hole may be come upon after the first.
    alone = [hit for hit in hits if hit.messages and len(hit.kinds) == 1]
    felt = [seconds for hit in alone for cause, seconds in hit.moved if cause is Cause.PROGRESS]
    assert felt
    assert not VIRTUAL_TIME or max(felt) < CUTS.progress + CUTS.grace + FOLDING_S


# --- rows that need processes ----------------------------------------------------------------------------------------


@pytest.fixture
def forked(network: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Ranks are forked, which saves an interpreter's start each; NICs have the rate of `job`."""
    from lab.allreduce import Forked

    monkeypatch.setattr(launch, "start_rank", Forked)
    for nic in range(8):
        network.rate(nic, 8 * RATE)
    return network


RATE = 20_000_000


def job(*lost: str) -> Job:
    """Four ranks with two NICs each, called as the lab's; a ring without the NICs that are lost."""
    servers = tuple(
        Server(f"server{r}", tuple(Nic(f"rxe{2 * r + g}", Fraction(RATE), Fraction(RATE)) for g in range(2)))
        for r in range(4)
    )
    cluster = Cluster(servers)
    for nic in lost:
        cluster = cluster.degrade(nic)
    return Job({"it": ring(cluster, 1 << 18)}, "float32", "sum", False, "verbs", 8192, path="python")


def struck(done: Collective, *nics: str) -> list[Note]:
    """All of these strikes are in the notes, or the run says nothing."""
    notes = [note for note in done.notes if note.kind == "struck"]
    if sorted(note.nic for note in notes) != sorted(nics):
        raise InconclusiveError(f"inconclusive: {nics} were to be struck, {notes} were")
    return notes


def moved(done: Collective) -> list[Note]:
    return [note for note in done.notes if note.kind == "moved"]


def test_row08_a_paused_process_is_healthy(forked: ModuleType) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("pause", "server2/rxe4", 0.4, 2.5 * Timeouts.progress)])
    struck(done, "server2/rxe4")
    assert all(done.exact)
    assert done.seconds > 2 * Timeouts.progress
    assert moved(done) == []


def test_row11_all_ranks_run_the_same_plan_next(forked: ModuleType) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("cut", "server1/rxe2", 0.3), Strike("cut", "server2/rxe5", 0.3)])
        strikes = struck(done, "server1/rxe2", "server2/rxe5")
        assert all(done.exact)
        assert {note.nic for note in moved(done)} >= {"server1/rxe2", "server2/rxe5"}
        assert max(note.at for note in moved(done)) - max(note.at for note in strikes) < 0.03
        ranks.adopt(job("server1/rxe2", "server2/rxe5"))
        again = ranks.run("it")
    assert all(again.exact)
    assert moved(again) == []
    assert not any(rank.sent.get(nic) for rank in again.ran for nic in ("server1/rxe2", "server2/rxe5"))


NIC_KINDS = ("fatal", "post", "retries", "receiver", "no data", "no acks", "hole")


@pytest.mark.parametrize("kind", NIC_KINDS)
def test_row13_what_a_nic_may_do_in_processes(forked: ModuleType, kind: str) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike(kind, "server3/rxe6", 0.4)])
    (strike,) = struck(done, "server3/rxe6")
    assert all(done.exact)
    causes = {note.cause for note in moved(done) if "server3/rxe6" in (note.nic, note.far)}
    expected = {"fatal": "device fatal", "post": "device fatal", "retries": "completion error"}
    assert causes & {expected.get(kind, "no progress"), "peer's notice", "completion error"}
    assert kind not in expected or expected[kind] in causes
    assert strike.at < min(note.at for note in moved(done))


def test_row13_an_address_that_changes_after_a_flap(forked: ModuleType) -> None:
    """Wires that are made anew have other addresses: the NIC carries its share again."""
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("flap", "server1/rxe2", 0.4, 1.2 * (Timeouts.progress + Timeouts.grace))])
        struck(done, "server1/rxe2")
        assert all(done.exact)
        assert moved(done), "a flap that is longer than the deadline"
        forked.heal(2)
        forked.cut(2)
        forked.readdress(2)
        forked.restore(2)
        time.sleep(2.0)
        ranks.adopt(job())
        again = ranks.run("it")
    assert all(again.exact)
    assert moved(again) == []
    assert again.ran[1].sent["server1/rxe2"] == pytest.approx(again.ran[1].sent["server1/rxe3"], rel=0.01)


ENDS = (("kill", "killed by signal 9 (Killed)"), ("status", "server2/rxe4: remote access error"))


@pytest.mark.parametrize(("kind", "cause"), ENDS)
def test_row13_an_end_is_the_same_on_every_rank(forked: ModuleType, kind: str, cause: str) -> None:
    with pytest.raises(RankFailedError) as caught, Session(job()) as ranks:
        ranks.run("it", [Strike(kind, "server2/rxe4", 0.4)])
    assert str(caught.value) == f"rank 2 failed: {cause}"
    assert set(caught.value.seen_by.values()) == {str(caught.value)}
    assert set(caught.value.seen_by) == {0, 1, 3} | ({2} if kind == "status" else set())


def test_row15_a_slow_nic_is_planned_for_and_not_left(forked: ModuleType) -> None:
    with Session(job()) as ranks:
        done = ranks.run("it", [Strike("slow", "server1/rxe2", 0.3, 0.25)])
        struck(done, "server1/rxe2")
        assert all(done.exact)
        assert moved(done) == []
        ports = job().schedules["it"].ports
        left = left_of(ports, ranks.probe(ports))
    measured = {name: float(part) for name, part in left.items() if part < Fraction(4, 5)}
    assert set(measured) == {"server1/rxe2"}
    assert 0.23 < measured["server1/rxe2"] < 0.27, "virtual time: a quarter"


def test_what_cannot_be_done_outside_the_lab_is_refused(network: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks() as ranks:
        monkeypatch.delenv("OPTCC_LAB")
        with pytest.raises(InputError, match="cannot be done to real NICs"):
            ranks.ranks[0].darken(0)
        ranks.ranks[0].cut(0)  # without the lab: its queue pairs
        seen = ranks.ranks[0].poll(ranks.now())
        assert [s.nic for s in seen if isinstance(s, PortDown)] == [0]
        ranks.ranks[0].fence(0)
        until(ranks, 0, count(Drained, 1))
