"""Pictures of fault runs: the fault of the real run at the same point of the simulated one."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.errors import InputError
from optcc.fault_run import run
from optcc.fault_run.run import DRAWN, moment_of, simulated_fault_run
from optcc.plans.plan import Plan
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import Strike
from optcc.simulation.faults import DETECT_S
from optcc.simulation.simulator import simulate

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
    assert hole.detect_s == Timeouts().progress + Timeouts().grace
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

    monkeypatch.setattr(run, "attempt", attempt)
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
