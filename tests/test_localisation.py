"""Fault runs that tell what is at fault, a NIC or a path, and that go back to a NIC which has returned."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.fault_run import run as fault_run_module
from optcc.fault_run.results import FaultRun
from optcc.fault_run.run import run_with_faults
from optcc.reports.runs import fault_run_json, print_fault_run
from optcc.runtime.messages import Strike
from optcc.values.cluster import Cluster

NIC = "server1/nic1"


def run(servers: int, *strikes: Strike) -> FaultRun:
    plan = optcc.plan(Cluster.uniform(servers=servers, nics=2, rate=20_000_000), 1 << 20, segments=2)
    return run_with_faults(plan, strikes, repeat=1, local_rate=Fraction(10**12))


def test_between_two_servers_the_dead_nic_alone_is_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(2, Strike("cut", NIC, 0.4))
    assert told.exact
    assert told.hit
    assert told.lost == {NIC: 0}
    print_fault_run(told)
    said = capsys.readouterr().out
    assert f"found by probes: {NIC} lost." in said
    assert "it says that its link is down" in said


def test_a_broken_path_is_told_from_its_ends(capsys: pytest.CaptureFixture[str]) -> None:
    ends = ("server0/nic0", "server1/nic0")
    told = run(3, Strike("path", ends[0], 0.3, far=ends[1]))
    assert told.exact
    assert told.hit
    (verdict,) = told.verdicts
    assert (verdict.what, verdict.nics) == ("path", ends)
    (left_out,) = told.lost
    assert left_out in ends
    pairs = {frozenset((e.out, e.into)): e.rate for e in told.evidence}
    assert pairs[frozenset(ends)] is None
    assert sum(rate is None for rate in pairs.values()) == 1, "both work with others"
    used = {port.name for port in told.after_plan.schedule().ports if port.out_rate}
    assert used == {port.name for port in told.plan.schedule().ports} - {left_out}
    value = json.loads(json.dumps(fault_run_json(told)))
    assert value["verdicts"][0]["what"] == "path"
    print_fault_run(told)
    said = capsys.readouterr().out
    assert f"found by probes: path {ends[0]} - {ends[1]} broken." in said
    assert f"they do without {left_out}, which works" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server0/nic0@0.3", "not a fault"),
        ("server0/nic0,server0/nic1@0.3", "NICs of two servers"),
        ("server0/nic0,server1/nic9@0.3", "the plan does not use it"),
    ],
)
def test_paths_that_cannot_be(text: str, said: str) -> None:
    result = CliRunner().invoke(
        main, ["run", "uniform:servers=3,nics=2,rate=160Mb/s", "--size", "1MiB", "--path", text]
    )
    assert result.exit_code == 2, result.output
    assert said in result.stderr


def test_paths_of_real_nics_are_not_broken() -> None:
    told = ["run", "uniform:servers=3,nics=2,rate=160Mb/s", "--size", "1MiB", "--transport", "verbs"]
    result = CliRunner().invoke(main, [*told, "--path", "server0/nic0,server1/nic0@0.3"])
    assert result.exit_code == 2
    assert "--path: only emulated, expected --transport local, got 'verbs'" in result.stderr


FLAP_S = 9.0
"""Longer than the hit collective and the probes after it, which wait 1.5 s each for what does not come."""


@pytest.mark.long
def test_a_nic_that_returns_is_planned_with_again(capsys: pytest.CaptureFixture[str]) -> None:
    """One that does not is not: degraded by two, then by one."""
    stays = "server2/nic0"
    told = run(3, Strike("flap", NIC, 0.3, FLAP_S), Strike("cut", stays, 0.3))
    assert told.exact
    assert told.lost == {NIC: 0, stays: 0}
    assert told.returned == (NIC,)
    assert told.back_plan is not None
    assert told.back is not None
    assert told.back.exact

    def used(plan: optcc.Plan) -> set[str]:
        return {port.name for port in plan.schedule().ports if port.out_rate}

    whole = used(told.plan)
    assert used(told.after_plan) == whole - {NIC, stays}
    assert used(told.back_plan) == whole - {stays}
    assert told.before.bound_s < told.back.bound_s <= told.after.bound_s
    assert set(fault_run_json(told)["phases"]) == {"before", "during", "after", "back"}
    print_fault_run(told)
    assert f"back by the next boundary, by probes: {NIC}." in capsys.readouterr().out


@pytest.mark.long
def test_the_healthy_plan_is_back_when_all_have_returned() -> None:
    told = run(3, Strike("flap", NIC, 0.3, FLAP_S))
    assert told.lost == {NIC: 0}
    assert told.after_plan.plan_id != told.plan.plan_id
    assert told.returned == (NIC,)
    assert told.back_plan is not None
    assert told.back_plan.plan_id == told.plan.plan_id
    assert told.exact


@pytest.mark.long
def test_a_nic_that_is_not_back_is_not_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: at the next boundary the probes find it as dark as before."""
    monkeypatch.setattr(fault_run_module, "RETURN_S", 0.0)
    told = run(3, Strike("flap", NIC, 0.3, 300.0))
    assert told.lost == {NIC: 0}
    assert told.returned == ()
    assert told.back_plan is told.back is None
    assert told.exact
