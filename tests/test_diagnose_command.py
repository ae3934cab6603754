"""`optcc diagnose` as people type it: what it prints, writes and refuses."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from benchmarks import bench_diagnosis
from optcc.cli import main
from optcc.cli.schema import diagnosis_schema
from optcc.reports import metrics
from tests import diagnosis_texts as texts
from tests.diagnosis_rig import Lab

TOPOLOGY = "uniform:servers=4,nics=4,rate=400Gb/s"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A survey of 4 servers with 4 NICs: server2/nic1 at a quarter, server0/nic3 dead."""
    folder = tmp_path_factory.mktemp("evidence")
    lab = Lab(4, 4, {(2, 1): 0.25, (0, 3): 0.0}, rng=random.Random(1))
    texts = [*lab.survey(), ("all_reduce.txt", lab.table("all_reduce", range(4), range(3)))]
    for name, text in texts:
        (folder / name).write_text(text)
    return [str(folder / name) for name, _ in texts]


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(main, ["diagnose", *words])
    assert done.exit_code == status, done.output
    return done.output


def value(*words: str, status: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["diagnose", *words, "--json"])
    assert done.exit_code == status, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    jsonschema.Draft202012Validator(json.loads(diagnosis_schema())).validate(found)
    return found


def test_the_schema_is_one_and_knows_every_field(files: list[str]) -> None:
    schema = json.loads(CliRunner().invoke(main, ["schema", "diagnosis"]).output)
    jsonschema.Draft202012Validator.check_schema(schema)
    found = value(TOPOLOGY, *files)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "more": 1}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "nics": [{**found["nics"][0], "sure": "perhaps"}]}, schema)


def test_json_names_the_nics_and_what_they_cost(files: list[str]) -> None:
    found = value(TOPOLOGY, *files)
    assert found["outcome"] == "degraded"
    assert [(nic["nic"], nic["sure"]) for nic in found["nics"]] == [
        ("server0/nic3", "certain"),
        ("server2/nic1", "certain"),
    ]
    assert found["nics"][0]["out_left"] == 0
    assert found["nics"][1]["out_left"] == pytest.approx(0.25, rel=0.05)
    assert {repair["nic"] for repair in found["repair_first"]} == {"server0/nic3", "server2/nic1"}
    assert found["unavoidable_overhead"] == pytest.approx(16 / 14.25 - 1, rel=0.01)  # of 16 NICs
    schemes = {scheme["scheme"]: scheme for scheme in found["keep_or_drain"]["schemes"]}
    assert schemes.keys() == {"optcc's plan", "the ring", "hot repair"}
    assert schemes["the ring"]["allreduce_overhead"] == pytest.approx(3, rel=0.05)
    assert found["keep_or_drain"]["keep"] is True
    assert found["keep_or_drain"]["drained"] == ["server0"]  # a dead NIC is worse than one at a quarter


def test_achieved_is_over_a_certified_bound(tmp_path: Path) -> None:
    lab = Lab(4, 4, {(2, 1): 0.25}, rng=random.Random(1), apart=0.001)
    (tmp_path / "a.txt").write_text(lab.table("all_reduce", range(4), range(4)))
    for name, text in lab.survey():
        (tmp_path / name).write_text(text)
    sources = [str(path) for path in sorted(tmp_path.glob("*.txt"))]
    (one,) = value(TOPOLOGY, *sources)["achieved"]
    assert one["healthy_bound_s"] == pytest.approx(2 * 3 / 4 * 2**30 / 200e9)
    assert one["of_healthy"] == pytest.approx(0.25 * (3 / 4) / (15 / 16), rel=0.02)  # 16 ranks send more than 4 must
    assert one["suspected_bound_s"] > one["healthy_bound_s"]
    costly = value(TOPOLOGY, *sources, "--alpha", "100us")["achieved"][0]
    assert costly["healthy_bound_with_costs_s"] > one["healthy_bound_with_costs_s"]
    assert costly["healthy_bound_s"] == one["healthy_bound_s"]


def test_people_read_the_verdict_first(files: list[str]) -> None:
    lines = run(TOPOLOGY, *files).splitlines()
    assert lines[0] == "2 degraded NICs explain what is slow"
    assert lines[2].split()[:2] == ["server0/nic3", "dead"]
    assert any(line.startswith(("keep ", "drain ")) for line in lines)


def test_a_nic_that_could_be_another_is_said_beside_those_that_are_sure(tmp_path: Path) -> None:
    lab = Lab(4, 2, {(1, 0): 0.25, (2, 1): 0.5}, rng=random.Random(1))
    for name, text in lab.survey():
        if "nic0" in name or name == "sendrecv-2-3-nic1.txt":
            (tmp_path / name).write_text(text)
    printed = run("uniform:servers=4,nics=2,rate=400Gb/s", *map(str, sorted(tmp_path.iterdir())))
    assert printed.startswith("2 degraded NICs explain what is slow; 1 of them could be another\n")
    assert "nothing shows these at full rate (not measured, or with slower NICs alone): server0/nic1" in printed


def test_thin_evidence_says_what_to_measure(files: list[str]) -> None:
    one = [name for name in files if name.endswith("sendrecv-1-2-nic1.txt")]
    printed = run(TOPOLOGY, *one)
    assert printed.startswith("cannot tell which NIC is slow: ")
    assert "measure: tells server" in printed
    assert "sendrecv_perf -b 256M" in printed
    found = value(TOPOLOGY, *one)
    assert (found["outcome"], found["repair_first"], found["keep_or_drain"]) == ("cannot tell", [], None)
    assert run(TOPOLOGY).startswith("cannot tell: nothing measured")


@pytest.mark.parametrize(("faults", "status"), [({(2, 1): 0.25}, 1), ({}, 0)])
def test_check_gives_the_exit_status(faults: dict[tuple[int, int], float], status: int, tmp_path: Path) -> None:
    lab = Lab(4, 2, faults, rng=random.Random(1))
    for name, text in lab.survey():
        (tmp_path / name).write_text(text)
    sources = [str(path) for path in tmp_path.iterdir()]
    run("uniform:servers=4,nics=2,rate=400Gb/s", *sources, "--check", status=status)
    run("uniform:servers=4,nics=2,rate=400Gb/s", "--check", status=3)


def test_check_server_tells_what_to_drain(tmp_path: Path) -> None:
    """All NICs of server1 are down, one of server2 is."""
    down = "1: DOWN"
    texts.sysfs(tmp_path / "one", dict.fromkeys(("nic0", "nic1"), "400 Gb/sec (4X NDR)"), {"nic0": down, "nic1": down})
    texts.sysfs(tmp_path / "two", dict.fromkeys(("nic0", "nic1"), "400 Gb/sec (4X NDR)"), {"nic0": down})
    topology, one, two = "uniform:servers=4,nics=2,rate=400Gb/s", f"server1={tmp_path}/one", f"server2={tmp_path}/two"
    run(topology, one, two, "--check-server", "server1", status=1)
    run(topology, one, two, "--check-server", "server2")
    run(topology, two, "--check-server", "server2.example")  # a host by its whole name
    run(topology, "--check-server", "server1", status=3)
    assert "a host that the topology does not have" in run(topology, "--check-server", "server9", status=2)
    assert "one or the other" in run(topology, "--check-server", "server1", "--check", status=2)


def test_the_picture_marks_what_is_slow(files: list[str], tmp_path: Path) -> None:
    run(TOPOLOGY, *files, "--picture", str(tmp_path / "p.svg"))
    assert (tmp_path / "p.svg").read_text().count("<path") > 16
    run(TOPOLOGY, *files, "--picture", str(tmp_path / "p.txt"), status=2)


def test_costs_of_the_job_are_options(files: list[str]) -> None:
    asked = ("--step", "20s", "--exposed", "50%", "--restart", "5min", "--restarts", "1", "--repair", "2h")
    found = value(TOPOLOGY, *files, *asked, "--spares", "2")["keep_or_drain"]
    assert (found["step_s"], found["exposed"], found["restart_s"], found["repair_s"]) == (20, 0.5, 300, 7200)
    assert (found["restarts"], found["spares"]) == (1, 2)
    assert (found["drain_at_once_s"], found["drain_lost_per_day_s"]) == (300, 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing.txt"], "cannot be read"),
        (["--noise", "0"], "--noise: out of range"),
        (["--step", "0"], "--step: a step of no time"),
        (["--watch", "10s"], "--watch: nothing to watch"),
        (["--watch", "10s", "--interval", "1s"], "one or the other"),
        (["--watch", "2h"], "--watch: out of range"),
        (["--interval", "0"], "--interval: no time"),
        (["--prometheus", "-", "--json"], "two results on standard output"),
    ],
)
def test_what_cannot_be_is_told(words: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["diagnose", TOPOLOGY, *words])
    assert done.exit_code == 2
    assert says in done.output


def test_a_topology_that_was_calibrated_is_healthy_at_its_nameplates(tmp_path: Path) -> None:
    (tmp_path / "cal.yaml").write_text(texts.calibration(0.5))
    found = value(str(tmp_path / "cal.yaml"), str(tmp_path / "cal.yaml"))
    assert [(nic["nic"], round(nic["out_left"], 2)) for nic in found["nics"]] == [("server1/nic1", 0.5)]


@pytest.mark.long
def test_slow_nics_planted_on_local_wires_are_named() -> None:
    """Measured by optcc calibrate over emulated NICs; the benchmark makes 20 of these."""
    run_of = bench_diagnosis.planted(0)
    assert run_of.exact, run_of
    assert run_of.error < 0.05
    assert not replace(run_of, named={**run_of.named, "server9/nic9": 0.5}).exact


def test_metrics_are_written_whole(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "optcc.prom"
    run(TOPOLOGY, *files, "--prometheus", str(path))
    lines = path.read_text().splitlines()
    assert 'optcc_nic_suspected_fraction{nic="nic3",server="server0",sure="certain"} 0.0' in lines
    assert 'optcc_diagnosis_outcome{outcome="degraded"} 1.0' in lines
    assert {line.split()[2] for line in lines if line.startswith("# TYPE")} == {m.name for m in metrics.DIAGNOSIS}


def test_without_the_package_the_extra_is_named(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    done = CliRunner().invoke(main, ["diagnose", TOPOLOGY, *files, "--prometheus", str(tmp_path / "x.prom")])
    assert done.exit_code == 2
    assert "pip install prometheus-client" in done.output
    assert not (tmp_path / "x.prom").exists()
