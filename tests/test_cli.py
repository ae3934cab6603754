"""The command line as a contract: JSON keys, exit statuses, and nothing on stdout but the result."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optcc.cli import main
from optcc.cli.options import COMMANDS
from tests.plan_cases import again, parts

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "h100-8x400g.nccl-topo.xml"
PRESET = "uniform:servers=4,nics=8,rate=400Gb/s"
TOPOLOGY = (EXAMPLE.parent / "two-degraded.yaml").read_text(encoding="utf-8")


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def value(*args: object) -> dict[str, Any]:
    result = call(*args, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("dead", [1, 2, 4, 6])
@pytest.mark.parametrize("servers", [4, 16])
def test_bound_of_dead_nics(dead: int, servers: int) -> None:
    nics = [nic.get("name") for nic in ET.parse(EXAMPLE).iter("net") if nic.get("speed") == "400000"]
    failures = [arg for name in nics[:dead] for arg in ("--fail", f"server1/{name}")]
    found = value("bound", EXAMPLE, "--servers", servers, *failures, "--size", "1GiB")
    slow = 8 / (8 - dead)
    expected = max(servers / (servers - 1 + 1 / slow), slow * servers / (2 * (servers - 1))) - 1
    assert found["overhead"] == pytest.approx(expected, abs=1e-9)
    assert found["overhead"] == pytest.approx(found["bound_s"] / found["fault_free_s"] - 1, abs=1e-12)
    assert {"bound_s", "fault_free_s", "overhead", "bottleneck", "certificate"} <= set(found)


def test_bound_of_one_nic_at_37_percent() -> None:
    found = value("bound", PRESET, "--fail", "server1/nic3=0.37")
    assert found["overhead"] == pytest.approx(32 / (31 + 0.37) - 1, abs=1e-12)


def test_several_degraded_servers() -> None:
    fails = [f"server{s}/nic{i}" for s in (0, 2) for i in range(4)] + ["server3/nic7"]
    found = value("bound", PRESET, *(arg for f in fails for arg in ("--fail", f)))
    assert found["overhead"] == pytest.approx(max(6 / (32 - 9), 1 / 4) / (6 / 32) - 1, abs=1e-12)


def test_bound_in_words() -> None:
    shown = call("bound", PRESET, "--fail", "server1/nic0").stdout
    for part in ("4.156 ms", "3.23 %", "traffic", "12.4Tb/s"):
        assert part in shown


def test_plan_verify_simulate(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    made = value("plan", PRESET, "--fail", "server1/nic0", "--size", "64MiB", "--segments", 32, "-o", path)
    assert {"bound_s", "family", "shares", "segments", "plan_id"} <= set(made)
    assert made["segments"] == 32
    assert sum(Fraction(share["share"]) for share in made["shares"]) == 1
    assert parts(path.read_bytes())[0]["plan_id"] == made["plan_id"]

    assert call("verify", path).stdout.startswith("correct: ")
    assert value("verify", path, "--algorithm", "ring")["correct"] is True

    ours, ring = value("simulate", path), value("simulate", path, "--algorithm", "ring")
    assert ours["ratio"] == pytest.approx(ours["time_s"] / ours["bound_s"])
    assert 1 <= ours["ratio"] < 1.05 < ring["ratio"]
    assert value("simulate", path, "--alpha", "5us")["time_s"] > ours["time_s"]


@pytest.mark.long
def test_costs_choose_the_segments(tmp_path: Path) -> None:
    args = ("plan", "uniform:servers=8,nics=1,rate=400Gb/s", "--fail", "server0/nic0=0.5", "--size", "64MiB")
    few, many = (value(*args, "--per-chunk", cost)["segments"] for cost in ("1us", "10ns"))
    assert 2 <= few < many
    times = {}
    for k in (few // 4, few, 8 * few):
        asked = ("--per-chunk", "1us") if k == few else ("--segments", max(1, k))
        call(*args, *asked, "-o", tmp_path / "a.plan")
        times[k] = value("simulate", tmp_path / "a.plan", "--per-chunk", "1us")["time_s"]
    assert min(times, key=lambda k: times[k]) == few


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    result = call("plan", EXAMPLE, "--servers", 4, "-o", tmp_path / "a.plan", "--json")
    assert json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert "note: " in result.stderr
    assert "wrote " in result.stderr


@pytest.mark.parametrize("ending", ["svg", "json"])
def test_timeline(tmp_path: Path, ending: str) -> None:
    call("plan", PRESET, "--fail", "server1/nic0", "--segments", 8, "-o", tmp_path / "a.plan")
    out = tmp_path / f"timeline.{ending}"
    assert call("simulate", tmp_path / "a.plan", "--timeline", out).exit_code == 0
    if ending == "json":
        trace = json.loads(out.read_text())["traceEvents"]
        assert {event["ph"] for event in trace} == {"M", "X"}
        assert all(event["dur"] > 0 for event in trace if event["ph"] == "X")
    else:
        ET.parse(out)
        drawn = out.read_text()  # text is drawn as outlines, and named in comments
        for words in ("summing (reduce-scatter)", "to a degraded server", "simulated time", "bound ", "server1/nic"):
            assert words in drawn


def test_run_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "timeline.svg"
    fails = ("--fail", "server1/nic0", "--fail", "server1/nic1")
    args = ("run", "uniform:servers=4,nics=4,rate=400Gb/s", *fails, "--size", "4MiB", "--repeat", 2, "--timeline", out)
    found = value(*args)
    assert {"achieved_s", "bound_s", "ratio", "exact", "algorithms"} <= set(found)
    assert found["exact"] is True
    assert set(found["algorithms"]) == {"optcc", "ring"}
    assert found["ratio"] >= 0.999
    assert found["bound_s"] == pytest.approx(found["nominal"]["bound_s"] * found["slowdown"])
    assert out.exists()


def test_run_of_a_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    call("plan", "uniform:servers=3,nics=2,rate=400Gb/s", "--size", "1MiB", "-o", path)
    shown = call("run", path, "--repeat", 1, "--dtype", "int32", "--op", "max")
    assert shown.exit_code == 0, shown.stderr
    assert "server2 exact" in shown.stdout
    assert call("run", path, "--size", "2MiB").exit_code == 2


def test_a_wrong_result_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    import optcc.api

    real = optcc.api.run

    def spoilt(*args: Any, **kwargs: Any) -> Any:
        outcome = real(*args, **kwargs)
        result = outcome.results["optcc"]
        object.__setattr__(result, "exact", (False, *result.exact[1:]))
        return outcome

    monkeypatch.setattr(optcc.api, "run", spoilt)
    result = call("run", "uniform:servers=2,rate=1Gb/s", "--size", "64KiB", "--repeat", 1, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["exact"] is False
    assert "a result is wrong" in result.stderr


def test_verify_finds_a_wrong_plan(tmp_path: Path) -> None:
    """A whole plan with a fitting id, which overwrites where it should add."""
    path = tmp_path / "a.plan"
    call("plan", PRESET, "--size", "1MiB", "-o", path)
    header, columns = parts(path.read_bytes())
    path.write_bytes(again(header, {**columns, "reduce": 0 * columns["reduce"]}))
    result = call("verify", path)
    assert result.exit_code == 1
    assert "the contribution of rank" in result.stderr


def test_doctor() -> None:
    parts = {part["part"]: part for part in value("doctor")["parts"]}
    assert parts["numpy"]["present"]
    assert {"cupy", "libibverbs", "torch", "starlette", "uvicorn", "GPUs"} <= set(parts)
    assert all(part["gives"] for part in parts.values())
    assert all(part["get"] for part in parts.values() if not part["present"])


def test_help_of_every_command() -> None:
    for command in COMMANDS:
        assert call(command, "--help").exit_code == 0


def test_a_nic_dies_while_a_plan_is_simulated(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    made = value("plan", PRESET, "--size", "64MiB", "-o", path)
    whole = value("simulate", path)
    assert whole["replayed_bytes"] == 0
    half = f"{made['bound_s'] / 2 * 1e6:.3f}us"
    hurt = value("simulate", path, "--fault", f"server1/nic0@{half}", "--detect", "10us")
    slow = value("simulate", path, "--fault", f"server1/nic0@{half}=1/2")
    assert hurt["replayed_bytes"] > 0
    assert whole["time_s"] < slow["time_s"]
    assert whole["time_s"] < hurt["time_s"]
    for port in hurt["ports"]:
        assert port["busy_s"] + port["forced_idle_s"] + port["idle_s"] == pytest.approx(hurt["time_s"])


def test_a_fault_after_the_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    call("plan", PRESET, "--size", "64MiB", "-o", path)
    late = ("--fault", "server1/nic4@1s", "--fault", "server2/nic1@2s=1/2")
    early = ("--fault", "server1/nic0@1us=1/2")
    assert value("simulate", path, *late, *early)["faults_too_late"] == [
        {"port": "server1/nic4", "at_s": 1, "left": 0},
        {"port": "server2/nic1", "at_s": 2, "left": 0.5},
    ]
    shown = call("simulate", path, *late).stdout
    assert "over at 251.7 us, before server1/nic4 fails at 1 s: it costs nothing" in shown
    assert "over at 251.7 us, before server2/nic1 slows down at 2 s: it costs nothing" in shown
    assert "costs nothing" not in call("simulate", path, *early).stdout


@pytest.mark.parametrize(
    ("nic", "what"), [("server1/nic0", "already dead in this plan"), ("server1/nic9", "no such NIC")]
)
def test_a_nic_that_cannot_die(tmp_path: Path, nic: str, what: str) -> None:
    path = tmp_path / "a.plan"
    preset = "uniform:servers=4,nics=3,rate=400Gb/s"
    call("plan", preset, "--fail", "server1/nic0", "--fail", "server2/nic2", "--size", "1MiB", "-o", path)
    for left in ("", "=1/2"):
        refused = call("simulate", path, "--fault", f"{nic}@0us{left}")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{what}, expected a live NIC of server1: server1/nic1, server1/nic2, got '{nic}'" in refused.stderr
    assert call("simulate", path, "--fault", "server2/nic0@0us").exit_code == 0


def test_a_simulation_says_which_costs_it_assumed(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    call("plan", PRESET, "--size", "1MiB", "--alpha", "5us", "--per-chunk", "1us", "-o", path)
    assert "latency 0 s (--alpha), 0 s for each chunk (--per-chunk)" in call("simulate", path).stdout
    costs = ("--alpha", "5us", "--per-chunk", "1500ns")
    assert "latency 5 us (--alpha), 1.5 us for each chunk (--per-chunk)" in call("simulate", path, *costs).stdout
    free, costly = value("simulate", path), value("simulate", path, *costs)
    assert (free["alpha_s"], free["per_chunk_s"]) == (0, 0)
    assert (costly["alpha_s"], costly["per_chunk_s"]) == (5e-6, 1.5e-6)


def test_a_simulation_says_when_a_death_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    call("plan", PRESET, "--size", "1MiB", "-o", path)
    dying = ("--fault", "server1/nic0@1us", "--detect", "30us")
    assert "a death is noticed after 30 us (--detect)" in call("simulate", path, *dying).stdout
    assert value("simulate", path, *dying)["detect_s"] == 3e-5
    assert "detect_s" not in value("simulate", path)


def test_what_is_read_is_not_overwritten(tmp_path: Path) -> None:
    topology, plan = tmp_path / "t.yaml", tmp_path / "plan.json"
    topology.write_text(TOPOLOGY, encoding="utf-8")
    assert call("plan", topology, "--size", "1MiB", "-o", plan).exit_code == 0
    link = tmp_path / "link.json"
    link.symlink_to(plan)
    before = plan.read_bytes()
    for args, option in (
        (("plan", topology, "--size", "1MiB", "-o", topology), "-o"),
        (("export", plan, "--format", "mscclpp", "-o", link), "-o"),
        (("simulate", plan, "--timeline", plan), "--timeline"),
    ):
        refused = call(*args)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{option}: would overwrite what is read, expected another file" in refused.stderr
    assert (topology.read_text(encoding="utf-8"), plan.read_bytes()) == (TOPOLOGY, before)
    long = "uniform:servers=" + "0" * 300 + "2,nics=1,rate=1Gb/s"  # no path at all
    assert call("plan", long, "--size", "1MiB", "-o", plan).exit_code in {0, 2}


def test_nobody_reads_the_output() -> None:
    command = [sys.executable, "-m", "optcc", "bound", PRESET]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert (running.stderr.read(), running.wait(60)) == ("", 141)


def test_a_plan_says_what_it_takes() -> None:
    found = value("plan", PRESET, "--fail", "server1/nic0", "--size", "16M", "--alpha", "5us", "--per-chunk", "1us")
    assert found["simulated_ratio"] == pytest.approx(found["simulated_s"] / found["bound_s"])
    assert found["simulated_ratio"] > 1
    assert (found["alpha_s"], found["per_chunk_s"]) == (5e-6, 1e-6)
    told = call(
        "plan", PRESET, "--fail", "server1/nic0", "--size", "16M", "--alpha", "5us", "--per-chunk", "1us"
    ).stdout
    assert "% over the bound" in told
    assert "latency 5 us, 1 us for each chunk" in told


def test_a_plan_takes_what_simulate_says_of_its_file(tmp_path: Path) -> None:
    costs = ("--alpha", "5us", "--per-chunk", "1us")
    path = tmp_path / "a.plan"
    made = value("plan", PRESET, "--fail", "server1/nic0", "--size", "16M", *costs, "-o", path)
    assert value("simulate", path, *costs)["time_s"] == made["simulated_s"]
    ready = value("simulate", path, *costs, "--service", "ready")
    assert (ready["time_s"], ready["in_order_s"]) == (made["simulated_ready_s"], made["simulated_s"])
    assert ready["time_s"] >= ready["in_order_s"]
    longer = f"{ready['time_s'] / ready['in_order_s']:.2f} times that where NICs serve what is ready first"
    assert longer in call("simulate", path, *costs, "--service", "ready").stdout


def test_jitter_is_drawn_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    value("plan", PRESET, "--fail", "server1/nic0", "--size", "16M", "-o", path)
    plain, first, again, other = (
        value("simulate", path, *more)
        for more in ((), ("--jitter", "10%"), ("--jitter", "0.1"), ("--jitter", "10%", "--seed", "1"))
    )
    assert first["time_s"] == again["time_s"] != other["time_s"]
    assert plain["time_s"] < first["time_s"]
    assert (first["jitter"], first["seed"]) == (0.1, 0)
    assert "jitter" not in plain
    assert "10 % of jitter from stripe to stripe, drawn by seed 1" in " ".join(
        call("simulate", path, "--jitter", "10%", "--seed", "1").stdout.split()
    )
    for wrong, what in ((("--seed", "1"), "nothing to draw"), (("--jitter", "200%"), "not a fraction")):
        result = call("simulate", path, *wrong)
        assert result.exit_code == 2
        assert what in result.stderr


def test_a_plan_of_too_many_transfers_is_not_simulated_for_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("plan", "uniform:servers=3,nics=1,rate=400Gb/s", "--family", "nested-rings", "--segments", "2")
    monkeypatch.setattr("optcc.reports.console.MOST_SIMULATED", 24)
    assert value(*asked)["simulated_s"] is not None
    monkeypatch.setattr("optcc.reports.console.MOST_SIMULATED", 23)
    found = value(*asked)
    assert found["simulated_s"] is found["simulated_ratio"] is found["simulated_ready_s"] is None
    assert "optcc simulate PLAN does" in call(*asked).stdout


def test_no_latency_may_be_written_as_0() -> None:
    asked = ("plan", PRESET, "--fail", "server1/nic0", "--size", "1M")
    assert value(*asked, "--alpha", "0", "--per-chunk", "0")["plan_id"] == value(*asked)["plan_id"]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["server3/nic[0-3]"], ["server3/nic0", "server3/nic1", "server3/nic2", "server3/nic3"]),
        (["server3/nic[0,2,5-6]"], ["server3/nic0", "server3/nic2", "server3/nic5", "server3/nic6"]),
        (["server[0-2]/nic7"], ["server0/nic7", "server1/nic7", "server2/nic7"]),
        (["server*/nic0"], ["server0/nic0", "server1/nic0", "server2/nic0", "server3/nic0"]),
        (["server1/nic?=50%"], [f"server1/nic{i}=0.5" for i in range(8)]),
        (["server1=50 %"], [f"server1/nic{i}=1/2" for i in range(8)]),
        (["server1=150Gb/s"], [f"server1/nic{i}=150G" for i in range(8)]),
        (["server1/nic0=150Gb/s"], ["server1/nic0=3/8"]),
    ],
)
def test_failures_by_pattern(patterns: list[str], names: list[str]) -> None:
    def bound(failures: list[str]) -> dict[str, Any]:
        return value("bound", PRESET, *(arg for name in failures for arg in ("--fail", name)))

    assert bound(patterns) == bound(names)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        ("server3", "takes no part in an AllReduce"),
        ("server3", "such as server1=37%"),
        ("server3=0%", "Leave the server out"),
        ("server[2-5]/nic0", "got 'server4'"),
        ("server1/nic[6-9]", "got 'nic8'"),
        ("server1/nic[3-1]", "the lower one first"),
        ("server1/nic0=500Gb/s", "at most 400Gb/s"),
        ("server1/nic0=many", "or a rate such as 150Gb/s"),
    ],
)
def test_failures_that_cannot_be(failure: str, says: str) -> None:
    result = call("bound", PRESET, "--fail", failure)
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("options", [["--fail", "server3"], ["--size", "many"], ["--cut", "server1/nic0@no"]])
def test_a_run_that_cannot_be_is_refused(options: list[str]) -> None:
    assert call("run", PRESET, *options).exit_code == 2


def test_what_is_fault_free_is_said_only_where_failures_are_told() -> None:
    assert "no failure was given" in call("bound", EXAMPLE.parent / "two-degraded.yaml").stdout
    assert "unavoidable overhead" in call("bound", PRESET, "--fail", "server1/nic0").stdout


def test_rails_that_limit_are_told_by_nics_and_servers() -> None:
    told = call("bound", "uniform:servers=4,nics=4,rate=400G,fabric=rails", "--fail", "server1/nic0").stdout
    assert (
        "nic1, nic2, nic3 of each of server0, server2 and server3 (rails 1, 2, 3), receiving: 30 % of the limit" in told
    )


def test_a_gap_of_rounding_is_none() -> None:
    asked = ("plan", "uniform:servers=4,nics=4,rate=400G,fabric=rails", "--fail", "server[0-1]/nic0", "--size", "1G")
    assert "this family stays" not in call(*asked).stdout
    above = ("plan", PRESET, "--fail", "server1/nic0", "--size", "1G", "--family", "trees")
    assert "this family stays" in call(*above).stdout


def test_piped_output_has_no_trailing_blanks_and_wraps_only_where_columns_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = call("bound", EXAMPLE.parent / "two-degraded.yaml").stdout.splitlines()
    assert [line for line in wide if line != line.rstrip()] == []
    assert max(map(len, wide)) > 80
    monkeypatch.setenv("COLUMNS", "60")
    narrow = call("bound", EXAMPLE.parent / "two-degraded.yaml").stdout.splitlines()
    assert max(map(len, narrow)) <= 60


def test_planning_tells_what_it_tries() -> None:
    from optcc import api, load_topology

    cluster = load_topology("uniform:servers=4,nics=2,rate=400Gb/s").cluster.degrade("server1/nic0")
    told: list[str] = []
    made = api.plan(cluster, "16MiB", alpha="5us", progress=told.append)
    assert f"{made.family}, {made.segments} segment{'s' * (made.segments != 1)}" in told
    assert len({step.partition(",")[0] for step in told}) > 1  # families: one that cannot be faster is not tried
    assert made == api.plan(cluster, "16MiB", alpha="5us")
