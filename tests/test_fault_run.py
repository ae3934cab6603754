"""Fault runs over local processes: the fault is real, the result exact, the next plan goes by what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.errors import InputError
from optcc.fault_run import run as run_command
from optcc.fault_run.results import Failover, FaultRun, failovers_of, proved
from optcc.fault_run.run import DRAWN, _seen_to_die, check_together, moment_of, simulated_fault_run
from optcc.plans.plan import Plan
from optcc.runtime import RankFailedError
from optcc.runtime.control.launch import Collective
from optcc.runtime.control.links import GRACE_S, SUSPECT_S
from optcc.runtime.messages import Note, Ran, Strike
from optcc.simulation.faults import DETECT_S
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster
from tests.one_fault import failover_of, survived
from tests.rank_processes import Process, heard, started

RATE = 20_000_000
NIC = "server1/nic1"


def planned() -> Plan:
    """A fifth of a second, so that a fault meets it on a busy machine, too."""
    return optcc.plan(Cluster.uniform(servers=3, nics=3, rate=RATE), 8 << 20, segments=8)


def run(strike: Strike, *more: Strike) -> FaultRun:
    return survived(planned(), [strike, *more], repeat=1, local_rate=Fraction(10**12))


def test_a_cut_is_survived_and_planned_around() -> None:
    told = run(Strike("cut", NIC, 0.4))
    assert told.exact
    assert told.hit
    assert told.lost == {NIC: 0}
    (failover,) = told.failovers
    assert failover.nic == NIC
    assert failover.cause in ("port event", "connection closed")
    assert 0 <= failover.detected_s <= failover.resumed_s  # type: ignore[operator]
    assert 0 < failover.at_s < told.during.seconds[0]
    assert failover.replayed_bytes < told.plan.bound.nbytes
    assert told.after.bound_s > told.before.bound_s, "the bound of what is left"
    assert NIC not in {port.name for port in told.after_plan.schedule().ports if port.out_rate}
    assert [e for e in told.evidence if e.rate is None] == [e for e in told.evidence if NIC in (e.out, e.into)]
    wires = {(note.nic, note.far) for note in told.events if note.kind == "moved"}
    assert wires
    for wire in wires:
        seen = [note.kind for note in told.events if (note.nic, note.far) == wire]
        first = [kind for i, kind in enumerate(seen) if kind not in seen[:i]]
        assert first == ["lost", "fenced", "moved"], "a flow moves when its own end is drained"


def test_a_black_hole_is_found_by_progress() -> None:
    told = run(Strike("hole", NIC, 0.3))
    assert told.exact
    assert told.hit
    assert told.lost == {NIC: 0}
    assert told.failovers[0].cause == "no progress"
    assert told.failovers[0].detected_s > 0.5  # type: ignore[operator]


@pytest.mark.long
def test_a_slow_nic_is_measured_and_no_failover() -> None:
    told = run(Strike("slow", NIC, 0.3, 0.25))
    assert told.exact
    assert told.hit, "the probes are the proof"
    assert told.lost.keys() == {NIC}
    assert 0.2 <= told.lost[NIC] <= 0.26
    assert told.failovers[0].detected_s is None
    assert told.failovers[0].replayed_bytes == 0
    assert 0 < told.failovers[0].slowed_bytes < told.plan.bound.nbytes


@pytest.mark.long
def test_a_flap_that_is_ridden_out_is_proved_by_what_it_held_back() -> None:
    told = run(Strike("flap", NIC, 0.3, 0.05))
    assert told.exact
    assert told.hit
    assert told.failovers[0].detected_s is None
    assert told.failovers[0].held > 0
    assert [note.kind for note in told.events] == ["struck", "healed"]


@pytest.mark.long
def test_a_nic_that_is_gone_cannot_be_struck_again() -> None:
    told = run(Strike("cut", NIC, 0.3), Strike("hole", NIC, 0.6))
    assert told.exact
    first, second = told.failovers
    assert first.hit
    assert not second.hit
    assert second.at_s is not None
    assert second.at_s > first.at_s  # type: ignore[operator]
    assert second.detected_s is None
    assert not told.hit


def test_a_nic_that_comes_back_is_used_again() -> None:
    told = run(Strike("flap", NIC, 0.3, 2.5))  # longer than it takes to leave the NIC
    assert told.exact
    assert told.hit
    assert told.failovers[0].resumed_s is not None
    if told.lost:  # the probes came before the flap was over; the next ones did not
        assert (told.lost, told.returned) == ({NIC: 0}, (NIC,))
        assert told.back_plan
        assert told.back_plan.plan_id == told.plan.plan_id
    else:
        assert told.after_plan.plan_id == told.plan.plan_id


@pytest.mark.long
def test_a_fault_after_the_end_proves_nothing() -> None:
    told = run(Strike("cut", NIC, 1.0))
    assert told.exact
    assert not told.hit
    assert told.failovers[0].detected_s is None


def test_a_nic_that_the_plan_does_not_use() -> None:
    with pytest.raises(InputError, match="the plan uses no such NIC"):
        run(Strike("cut", "server9/nic0", 0.4))


CLI = ["run", "uniform:servers=3,nics=2,rate=160Mb/s", "--size", "1MiB", "--repeat", "1"]


def test_on_the_command_line() -> None:
    result = CliRunner().invoke(main, [*CLI, "--cut", "server1/nic1@0.4", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["exact"]
    assert value["conclusive"]
    assert value["failovers"][0].keys() == {
        *("nic", "kind", "at_s", "cause", "detected_s", "resumed_s", "replayed_bytes"),
        *("held", "slowed_bytes", "hit"),
    }
    assert value["failovers"][0]["hit"]
    assert value["error"] is None
    assert value["phases"].keys() == {"before", "during", "after"}
    assert value["nics_left"] == {"server1/nic1": 0.0}
    assert next(event["what"] for event in value["events"]) == "struck"
    assert value["after_plan_id"] not in (None, value["plan_id"])
    assert value["after_family"]
    result = CliRunner().invoke(main, [*CLI, "--cut", "server1/nic1@0.4"])
    assert result.exit_code == 0, result.output
    for said in (
        "struck",
        "fenced",
        "moved",
        "found by probes: server1/nic1 lost",
        "before",
        "during",
        "after",
        "exact",
    ):
        assert said in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if "new plan" in line)
    assert value["after_plan_id"] in line
    assert value["after_family"] in line
    assert value["plan_id"] in line, "and which it replaces"


@pytest.mark.long
def test_inconclusive_is_exit_status_3() -> None:
    result = CliRunner().invoke(main, [*CLI, "--cut", "server1/nic1@1"])
    assert result.exit_code == 3
    assert "inconclusive" in result.stderr
    result = CliRunner().invoke(main, [*CLI, "--flap", "server1/nic1@1=1us"])
    assert result.exit_code == 3, "the audit's"
    assert "server1/nic1: flap, which is not known to have struck" in result.stdout
    assert "same plan" in result.stdout


FATAL = {
    "kill": (["--kill", "server1@0.4"], "killed by signal 9 (Killed)", {"0", "2"}),
    "cut": (["--cut", "server1/nic0@0.4", "--cut", "server1/nic1@0.4"], "no wire left", {"0", "1", "2"}),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", FATAL)
def test_a_failure_is_told_up_to_where_it_came(kind: str) -> None:
    options, cause, survivors = FATAL[kind]
    result = CliRunner().invoke(main, [*CLI, *options, "--json"])
    assert result.exit_code == 1, result.output
    value = json.loads(result.stdout)
    error = value["error"]
    assert (error["type"], error["rank"]) == ("RankFailedError", 1)
    assert cause in error["cause"]
    assert error["seen_by"].keys() == survivors
    assert result.stderr.endswith(f"optcc: rank 1 failed: {error['cause']}\n")
    assert (value["exact"], value["conclusive"]) == (None, None), "no result, no verdict on the faults"
    assert [fault["kind"] for fault in value["failovers"]] == [kind] * (len(options) // 2)
    for fault in value["failovers"]:
        assert 0 < fault["at_s"] < error["at_s"]
        assert fault["detected_s"] >= 0
        assert fault["hit"] is None
    told = [event["what"] for event in value["events"]]
    assert told[0] == "struck"
    assert "lost" in told or kind == "kill", "the parent may see a process end before any rank has lost a wire"
    assert value["phases"].keys() == {"before"}
    assert value["phases"]["before"]["exact"]


def test_a_death_that_only_the_parent_has_seen() -> None:
    error = RankFailedError(1, "killed by signal 9 (Killed)", at_s=10.5)
    killed = Failover("server1", "kill", 0.25)
    told = _seen_to_die(killed, 10.0, error)
    assert (told.detected_s, told.cause) == (0.25, "killed by signal 9 (Killed)")
    for other in (replace(killed, detected_s=0.1), replace(killed, kind="cut"), replace(killed, at_s=None)):
        assert _seen_to_die(other, 10.0, error) == other


def test_a_failure_is_told_to_people() -> None:
    options, cause, _ = FATAL["cut"]
    result = CliRunner().invoke(main, [*CLI, *options])
    assert result.exit_code == 1
    (verdict,) = (line for line in result.stdout.splitlines() if "verdict" in line)
    assert "rank 1" in verdict
    assert cause in verdict
    for said in ("struck", "nic down", "lost", "server1/nic1: cut at ", "seen by ranks 0, 1, 2: rank 1 ", "before"):
        assert said in result.stdout


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--cut", "server1/nic1", "not a fault"),
        ("--cut", "server1/nic9@0.5", "the plan does not use it"),
        ("--cut", "server1/nic1@1.5", "0 to 1"),
        ("--cut", "server1/nic1@half", "not a fraction"),
        ("--cut", "server1/nic1@0.5=3", "not a fault"),
        ("--slow", "server1/nic1@0.5", "not a fault"),
        ("--slow", "server1/nic1@0.5=1", "above 0 and below 1"),
        ("--flap", "server1/nic1@0.5=soon", "soon"),
        ("--kill", "server9@0.5", "the plan does not use it"),
    ],
)
def test_faults_that_cannot_be(option: str, text: str, said: str) -> None:
    result = CliRunner().invoke(main, [*CLI, option, text])
    assert result.exit_code == 2, result.output
    assert said in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cut", "server1/nic1@0.2", "--flap", "server1/nic1@0.5=1ms"], "lost already"),
        (["--hole", "server1/nic1@0.5", "--cut", "server1/nic1@0.5"], "lost already"),
        (["--flap", "server1/nic1@0.5=1ms", "--cut", "server1/nic1@0.5"], "same moment"),
        (["--cut", "server1/nic1@0.2", "--cut", "server1/nic1@0.2"], "lost already"),
        (["--slow", "server1/nic1@0.2=0.5", "--slow", "server1/nic1@0.4=0.5"], "slow already"),
        (["--path", "server0/nic1,server1/nic1@0.2", "--path", "server1/nic1,server0/nic1@0.4"], "broken already"),
        (["--path", "server0/nic1,server1/nic1@0.2", "--flap", "server1/nic1@0.4=1ms"], "heal its path"),
        (["--cut", "server1/nic1@0.2", "--path", "server0/nic1,server1/nic1@0.4"], "lost already"),
        (["--kill", "server1@0.2", "--cut", "server1/nic1@0.4"], "killed before"),
    ],
)
def test_faults_that_cannot_both_be(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, [*CLI, *options])
    assert result.exit_code == 2, result.output
    assert said in result.stderr


def test_faults_that_go_together() -> None:
    check_together(
        [
            Strike("flap", NIC, 0.5, 0.1),
            Strike("flap", NIC, 0.5, 0.1),
            Strike("slow", NIC, 0.1, 0.5),
            Strike("cut", NIC, 0.8),
            Strike("cut", "server2/nic0", 0.8),
            Strike("kill", NIC, 0.9),
        ]
    )


def processes(world: int, *more: str) -> list[Process]:
    """What torchrun would start: the same command in all, with who is who in the environment."""
    return started(world, "-m", "optcc", *CLI, *more, TORCHELASTIC_RUN_ID="t")


@pytest.mark.long
def test_ranks_that_others_start() -> None:
    ends = heard(processes(3, "--cut", "server1/nic1@0.4", "--json"), 60, [0, 0, 0])
    value = json.loads(ends[0][0])
    assert value["exact"]
    assert value["conclusive"]
    assert [out for out, _ in ends[1:]] == ["", ""], "rank 0 reports"


@pytest.mark.long
def test_the_verdict_on_every_rank_that_others_start() -> None:
    ends = heard(processes(3, *FATAL["cut"][0]), 60, [1, 1, 1])
    assert "verdict" in ends[0][0]
    assert len({said.splitlines()[-1] for _, said in ends}) == 1, "the same words, after the notes of some"
    assert ends[0][1].splitlines()[-1].startswith("optcc: rank 1 failed: lost rank ")
    assert ends[0][1].count("\n") == 1, "an error without a traceback"
    assert [out for out, _ in ends[1:]] == ["", ""], "rank 0 reports"


@pytest.mark.long
def test_not_as_many_processes_as_ranks() -> None:
    first, second = processes(2)
    _, said = first.communicate(timeout=60)
    second.kill()  # it would look for rank 0 for a minute
    second.communicate()
    assert first.returncode == 2
    assert "not as many processes as ranks" in said


# Which notes belong to a fault, and which of them prove that the fault met something. No processes: notes are made up.


STRUCK, FAR = "server1/nic0", "server0/nic0"
START = 10.0


def collective(*notes: Note, seconds: float = 1.0, sent: int = 1000, error_s: float = 0.0) -> Collective:
    return Collective((Ran(START, START + seconds, 0.0, {STRUCK: sent}, list(notes), {}, error_s),), (True,))


def struck(at: float, kind: str = "cut", nic: str = STRUCK) -> Note:
    return Note(START + at, "struck", nic, cause=kind)


def lost(at: float, nbytes: int = 0, cause: str = "port event") -> list[Note]:
    """A wire that is lost, fenced, and whose flow moves."""
    return [
        Note(START + at, "lost", STRUCK, FAR, cause),
        Note(START + at + 0.01, "fenced", STRUCK, FAR),
        Note(START + at + 0.02, "moved", STRUCK, FAR, cause, "", nbytes),
    ]


def is_proved(strike: Strike, hit: Collective, lost: dict[str, Fraction] | None = None) -> bool:
    return proved(strike, failover_of(strike, hit), hit, collective(), lost or {})


HEALED = Note(START + 0.55, "healed", STRUCK, cause="flap", held=4)
SLOWED = Note(START + 1.0, "slowed", STRUCK, cause="slow", nbytes=500)
MEASURED = {STRUCK: Fraction(1, 2)}
PROOFS = {
    "flap": ([struck(0.5, "flap"), HEALED], {}),
    "hole": ([struck(0.5, "hole"), *lost(0.6, 100, "no progress")], {}),
    "cut": ([struck(0.5, "cut"), *lost(0.6, 100)], {}),
    "slow": ([struck(0.5, "slow"), SLOWED], MEASURED),
}


@pytest.mark.parametrize("kind", PROOFS)
def test_a_fault_that_met_something_is_proved(kind: str) -> None:
    notes, lost = PROOFS[kind]
    assert is_proved(Strike(kind, STRUCK, 0.5), collective(*notes), lost)


@pytest.mark.parametrize("kind", PROOFS)
def test_without_the_note_that_it_struck_nothing_is_proved(kind: str) -> None:
    """However late the collective was, and whatever else was noted and measured."""
    notes, lost = PROOFS[kind]
    hit = collective(*notes[1:], seconds=9.0, sent=0)
    assert failover_of(Strike(kind, STRUCK, 0.5), hit) == Failover(STRUCK, kind, None)
    assert not is_proved(Strike(kind, STRUCK, 0.5), hit, lost)


@pytest.mark.parametrize(
    "notes",
    [
        [struck(0.5, "flap", "server1/nic1"), HEALED],  # another NIC
        [struck(0.5, "hole"), HEALED],  # another fault
    ],
)
def test_the_note_of_another_strike_proves_nothing(notes: list[Note]) -> None:
    assert not is_proved(Strike("flap", STRUCK, 0.5), collective(*notes, seconds=9.0))


@pytest.mark.parametrize(
    ("kind", "after", "measured"),
    [
        ("flap", [], {}),
        ("flap", [Note(START + 0.55, "healed", STRUCK, cause="flap")], {}),  # held nothing back
        ("flap", [Note(START + 0.55, "healed", "server1/nic1", cause="flap", held=4)], {}),  # another NIC's
        ("hole", [], {}),
        ("hole", lost(0.6), {}),  # moved, and owed nothing
        ("cut", lost(0.6), {}),
        ("slow", [], MEASURED),  # slow by the probes, and nothing had left by it
        ("slow", [SLOWED], {}),  # not slow by the probes
    ],
)
def test_what_met_nothing_is_not_proved_however_late_all_was(
    kind: str, after: list[Note], measured: dict[str, Fraction]
) -> None:
    assert not is_proved(Strike(kind, STRUCK, 0.5), collective(struck(0.5, kind), *after, seconds=9.0), measured)


def test_less_traffic_than_usual_proves_a_loss() -> None:
    assert is_proved(Strike("cut", STRUCK, 0.5), collective(struck(0.5), *lost(0.6), sent=600))


FIRST = [struck(0.2, "hole"), *lost(0.3, 100, "no progress")]


def test_a_second_strike_is_not_credited_with_the_first() -> None:
    strikes = [Strike("hole", STRUCK, 0.2), Strike("receiver", STRUCK, 0.9)]
    hit = collective(*FIRST, struck(0.9, "receiver"), sent=600)
    first, second = failovers_of(strikes, hit.notes, hit.start_s)
    assert (first.at_s, first.cause, first.replayed_bytes) == (pytest.approx(0.2), "no progress", 100)
    assert first.detected_s == pytest.approx(0.1)
    assert second == Failover(STRUCK, "receiver", pytest.approx(0.9))
    assert proved(strikes[0], first, hit, collective(), {})
    assert not proved(strikes[1], second, hit, collective(), {})
    assert not proved(strikes[1], failovers_of(strikes, hit.notes, START)[1], hit, collective(), {})


def test_a_second_strike_has_what_follows_it() -> None:
    strikes = [Strike("hole", STRUCK, 0.2), Strike("receiver", STRUCK, 0.9)]
    hit = collective(*FIRST, struck(0.9, "receiver"), *lost(0.95, 7), sent=600)
    first, second = failovers_of(strikes, hit.notes, hit.start_s)
    assert (first.replayed_bytes, second.replayed_bytes) == (100, 7)
    assert second.detected_s == pytest.approx(0.05)
    assert proved(strikes[1], second, hit, collective(), {})


def test_traffic_that_the_first_strike_diverted_proves_nothing_of_the_second() -> None:
    strikes = [Strike("hole", STRUCK, 0.2), Strike("cut", STRUCK, 0.9)]
    hit = collective(*FIRST, struck(0.9), Note(START + 0.9, "nic down", STRUCK, cause="port event"), sent=600)
    second = failovers_of(strikes, hit.notes, hit.start_s)[1]
    assert second.detected_s is not None
    assert not proved(strikes[1], second, hit, collective(), {})


def test_a_nic_that_was_cut_cannot_be_hit_again() -> None:
    """What peers are late to notice comes of the cut."""
    strikes = [Strike("cut", STRUCK, 0.5), Strike("hole", STRUCK, 0.51)]
    hit = collective(struck(0.5), struck(0.51, "hole"), *lost(0.52, 100))
    assert failovers_of(strikes, hit.notes, START)[1] == Failover(STRUCK, "hole", pytest.approx(0.51))


@pytest.mark.parametrize(("sent", "hit_it"), [(600, True), (1000, False)])
def test_traffic_that_a_cut_diverted_is_its_own_whatever_struck_the_nic_later(sent: int, hit_it: bool) -> None:
    strikes = [Strike("cut", STRUCK, 0.5), Strike("hole", STRUCK, 0.8)]
    hit = collective(struck(0.5), *lost(0.52), struck(0.8, "hole"), sent=sent)
    both = failovers_of(strikes, hit.notes, START)
    assert proved(strikes[0], both[0], hit, collective(), {}) is hit_it
    assert not proved(strikes[1], both[1], hit, collective(), {})


def test_two_alike_are_told_apart_by_their_order() -> None:
    again = Note(START + 0.85, "healed", STRUCK, cause="flap", held=9)
    strikes = [Strike("flap", STRUCK, 0.8), Strike("flap", STRUCK, 0.5)]  # in any order
    notes = [struck(0.5, "flap"), HEALED, struck(0.8, "flap"), again]
    late, early = failovers_of(strikes, notes, START)
    assert (early.at_s, early.held) == (pytest.approx(0.5), 4)
    assert (late.at_s, late.held) == (pytest.approx(0.8), 9)
    late, early = failovers_of(strikes, notes[:2], START)
    assert (early.held, late) == (4, Failover(STRUCK, "flap", None))


def test_what_a_fault_did_up_to_the_end_is_its_own_though_others_struck_since() -> None:
    strikes = [Strike("slow", STRUCK, 0.5), Strike("cut", STRUCK, 0.8)]
    slow, cut = failovers_of(strikes, [struck(0.5, "slow"), struck(0.8), *lost(0.81, 7), SLOWED], START)
    assert (slow.slowed_bytes, slow.replayed_bytes) == (500, 0)
    assert (cut.slowed_bytes, cut.replayed_bytes) == (0, 7)


def test_a_broken_path_is_credited_with_its_own_wires_only() -> None:
    strike = Strike("path", STRUCK, 0.5, far=FAR)
    other = Note(START + 0.55, "moved", STRUCK, "server2/nic0", "port event", "", 9)
    elsewhere = Note(START + 0.5, "struck", STRUCK, "server2/nic0", "path")
    hit = collective(elsewhere, Note(START + 0.5, "struck", STRUCK, FAR, "path"), other, *lost(0.6, 100))
    found = failover_of(strike, hit)
    assert (found.detected_s, found.replayed_bytes) == (pytest.approx(0.1), 100)
    assert not is_proved(strike, collective(elsewhere, other, *lost(0.6, 100)))


@pytest.mark.parametrize(("error_s", "found"), [(0.0, None), (0.001, 0.0)])
def test_another_machine_may_seem_to_notice_before_the_fault(error_s: float, found: float | None) -> None:
    early = Note(START + 0.4985, "lost", FAR, STRUCK, "connection closed")
    failover = failover_of(Strike("cut", STRUCK, 0.5), collective(early, struck(0.5), error_s=error_s))
    assert failover.detected_s == found


# Pictures of fault runs: the fault of the real run at the same point of the simulated one.


CLUSTER = "uniform:servers=3,nics=2,rate=400Gb/s"


def plan() -> Plan:
    return optcc.plan(optcc.load_topology(CLUSTER).cluster, 3 << 18, segments=2)


def test_the_moment_is_when_the_server_has_done_its_part() -> None:
    """Counted here row by row: as many transfers have left or come before the moment as the part says."""
    made = plan()
    whole, s = simulate(made.schedule()), made.schedule()
    for rank in range(3):
        times = [whole.start[row] for row in range(len(s.src)) if s.src[row] == rank]
        times += [whole.finish[row] for row in range(len(s.src)) if s.dst[row] == rank]
        assert moment_of(whole, rank, 0) == 0
        for part in (0.1, 0.25, 0.5, 0.9):
            at = moment_of(whole, rank, part)
            assert sum(time <= at for time in times) >= part * len(times)
            assert sum(time < at for time in times) < part * len(times)
        assert moment_of(whole, rank, 1) <= sorted(times)[-2]  # something is left to be hit


def test_faults_of_the_run_are_faults_of_the_simulation() -> None:
    strikes = [Strike("slow", "server2/nic1", 0.3, 0.25), Strike("hole", "server1/nic0", 0.5)]
    made = plan()
    whole = simulate(made.schedule())
    simulation, (slow, hole) = simulated_fault_run(made, strikes)
    assert (slow.port, slow.at_s, slow.left) == ("server2/nic1", moment_of(whole, 2, 0.3), Fraction(1, 4))
    assert (hole.port, hole.at_s, hole.left) == ("server1/nic0", moment_of(whole, 1, 0.5), 0)
    assert hole.detect_s >= SUSPECT_S + GRACE_S
    assert simulation.time_s > whole.time_s + hole.detect_s
    cut, (fault,) = simulated_fault_run(made, [Strike("cut", "server1/nic0", 0.5)])
    assert fault.detect_s == DETECT_S
    assert whole.time_s + float(DETECT_S) < cut.time_s < simulation.time_s


@pytest.mark.parametrize("kind", ["flap", "path", "kill"])
def test_kinds_that_the_simulator_does_not_know_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match=f"--{kind} is not drawn.*expected {' or '.join(f'--{k}' for k in DRAWN)}"):
        simulated_fault_run(plan(), [Strike(kind, "server1/nic0", 0.4, 1.0)])


def test_a_run_without_an_end_is_refused() -> None:
    strikes = [Strike("cut", f"server1/nic{i}", 0.4 + i / 10) for i in range(2)]
    with pytest.raises(InputError, match="no way is left, so no end can be drawn"):
        simulated_fault_run(plan(), strikes)


def test_the_picture_is_there_before_the_run_and_in_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []

    def attempt(made: Plan, strikes: list[Strike], **options: object) -> None:
        assert out.exists()
        ran.append(strikes)
        raise InputError("not today")

    monkeypatch.setattr(run_command, "attempt", attempt)
    out = tmp_path / "drill.svg"
    words = ["run", CLUSTER, "--size", "768KiB", "--timeline", str(out)]
    done = CliRunner().invoke(main, [*words, "--cut", "server1/nic0@0.4", "--slow", "server2/nic1@0.3=0.25"])
    assert "not today" in done.stderr
    assert len(ran) == 1
    picture = out.read_text()
    assert "rates divided by 800" in picture
    assert "<!-- dies -->" in picture
    assert "slows to 25%" in picture
    out.unlink()
    done = CliRunner().invoke(main, [*words, "--flap", "server1/nic0@0.4=1s"])
    assert "is not drawn" in done.stderr
    assert (len(ran), out.exists()) == (1, False)
