"""Fault runs over local processes: the fault is real, the result exact, the next plan goes by what was found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.errors import InputError
from optcc.fault_run.results import Failover, FaultRun
from optcc.fault_run.run import _seen_to_die, check_together, run_with_faults
from optcc.plans.plan import Plan
from optcc.runtime import RankFailedError
from optcc.runtime.messages import Strike
from optcc.values.cluster import Cluster
from tests.free_port import free_port

RATE = 20_000_000
NIC = "server1/nic1"


def planned() -> Plan:
    """A fifth of a second, so that a fault meets it on a busy machine, too."""
    return optcc.plan(Cluster.uniform(servers=3, nics=3, rate=RATE), 8 << 20, segments=8)


def run(strike: Strike, *more: Strike) -> FaultRun:
    return run_with_faults(planned(), [strike, *more], repeat=1, local_rate=Fraction(10**12))


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
    told = run(Strike("flap", NIC, 0.3, 2.5))  # longer than the timeouts of the flows
    assert told.exact
    assert told.hit
    assert told.failovers[0].resumed_s is not None
    assert told.lost == {}
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


def processes(world: int, *more: str) -> list[subprocess.Popen[str]]:
    """What torchrun would start: the same command three times, with who is who in the environment."""
    told = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "t"}
    told["MASTER_PORT"] = str(free_port())
    return [
        subprocess.Popen(
            [sys.executable, "-m", "optcc", *CLI, *more],
            env={**os.environ, **told, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


@pytest.mark.long
def test_ranks_that_others_start() -> None:
    ranks = processes(3, "--cut", "server1/nic1@0.4", "--json")
    ends = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], ends
    value = json.loads(ends[0][0])
    assert value["exact"]
    assert value["conclusive"]
    assert [out for out, _ in ends[1:]] == ["", ""], "rank 0 reports"


@pytest.mark.long
def test_the_verdict_on_every_rank_that_others_start() -> None:
    ranks = processes(3, *FATAL["cut"][0])
    ends = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1, 1], ends
    assert "verdict" in ends[0][0]
    assert len({said.splitlines()[-1] for _, said in ends}) == 1, "the same words, after the notes of some"
    assert ends[0][1].splitlines()[-1].startswith("optcc: rank 1 failed: lost rank ")
    assert ends[0][1].count("\n") == 2, "a note, and an error without a traceback"
    assert [out for out, _ in ends[1:]] == ["", ""], "rank 0 reports"


@pytest.mark.long
def test_not_as_many_processes_as_ranks() -> None:
    first, second = processes(2)
    _, said = first.communicate(timeout=60)
    second.kill()  # it would look for rank 0 for a minute
    second.communicate()
    assert first.returncode == 2
    assert "not as many processes as ranks" in said
