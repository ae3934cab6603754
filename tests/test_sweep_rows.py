"""What the rows of a sweep say, and draws that follow their model."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

import optcc
from optcc import Cluster, Plan, SimulationError
from optcc.simulation.simulator import Receivers
from optcc.study import runner
from optcc.study.cells import COLUMNS, SweepJob
from optcc.study.failures import Counted
from tests.test_sweep import SMALL, counting, rows_of, swept


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[SweepJob]:
    return counting(monkeypatch)


@pytest.mark.long
def test_a_row_holds_what_the_verbs_give(tmp_path: Path) -> None:
    swept(SMALL, "-o", tmp_path / "t.csv", "--jobs", 1, "--fail", "server1/nic0", "--size", "4MiB", "--alpha", "5us")
    ours, ring = rows_of(tmp_path / "t.csv")
    healthy = optcc.load_topology(SMALL).cluster
    alpha = Fraction(5, 10**6)
    plan = optcc.plan(healthy.degrade("server1/nic0"), 4 * 2**20, alpha=alpha)

    def best_ring(cluster: Cluster) -> Plan:  # of all depths, each by hand
        deep = [optcc.plan(cluster, 4 * 2**20, segments=k).baseline("ring") for k in range(1, 33)]
        return min(deep, key=lambda plan: optcc.simulate(plan.schedule(), alpha=alpha).time_s)

    reference_s = optcc.simulate(best_ring(healthy).schedule(), alpha=alpha).time_s
    for row, chosen in ((ours, plan), (ring, best_ring(plan.cluster))):
        time_s = optcc.simulate(chosen.schedule(), alpha=alpha).time_s
        assert float(row["simulated_s"]) == time_s
        assert float(row["reference_s"]) == reference_s
        assert float(row["overhead"]) == pytest.approx(time_s / reference_s - 1)
        assert float(row["ratio"]) == pytest.approx(time_s / float(plan.bound.seconds))
        assert float(row["bound_s"]) == float(plan.bound.seconds)
        assert float(row["unavoidable_overhead"]) == float(plan.bound.overhead)
        assert (row["family"], row["segments"]) == (chosen.family, str(chosen.segments))
        assert (row["failures"], row["failed"], row["error"]) == ("server1/nic0=0", "1", "")
    assert (ours["algorithm"], ring["algorithm"]) == ("optcc", "ring")
    assert list(ours) == list(COLUMNS)


def test_receivers_serve_stripes_or_packets(tmp_path: Path) -> None:
    """What `simulate` gives with either, on a cluster where they differ."""
    costs = {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}
    options = ["--fail", "server0/nic0", "--size", "16MiB", "--alpha", "5us", "--per-chunk", "1us", "--jobs", "1"]
    options += ["--algorithm", "optcc"]
    hurt = optcc.load_topology(SMALL).cluster.degrade("server0/nic0")
    schedule = optcc.plan(hurt, 2**24, **costs).schedule()
    found = {}
    for receivers in get_args(Receivers):
        swept(SMALL, *options, "-o", tmp_path / f"{receivers}.csv", "--receivers", receivers)
        (row,) = rows_of(tmp_path / f"{receivers}.csv")
        found[receivers] = float(row["simulated_s"])
        assert row["receivers"] == receivers
        assert found[receivers] == optcc.simulate(schedule, **costs, receivers=receivers).time_s
    assert found["packets"] != found["stripes"]
    swept(SMALL, *options, "-o", tmp_path / "usual.csv")
    assert (tmp_path / "usual.csv").read_bytes() == (tmp_path / "stripes.csv").read_bytes()


def test_with_nothing_failed_what_only_repairs_is_the_ring(tmp_path: Path) -> None:
    rivals = "hot-repair,r2cc,optcc-published"
    swept(SMALL, "-o", tmp_path / "t.csv", "--jobs", 1, "--size", "1MiB", "--algorithm", rivals, "--alpha", "5us")
    assert [(row["overhead"], row["error"]) for row in rows_of(tmp_path / "t.csv")] == [("0.0", "")] * 3


def test_a_fresh_sweep_has_no_rows_yet_whatever_cannot_be_done(tmp_path: Path) -> None:
    told = swept(SMALL, "-o", tmp_path / "t.csv", "--jobs", 1, "--size", "1MiB", "--fail-count", "1,9").output
    assert len(rows_of(tmp_path / "t.csv")) == 4
    assert "wrote" in told
    assert "going on" not in told


def test_what_cannot_be_done_is_a_row_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grid.yaml").write_text(
        f"optcc-sweep: 1\ntopologies: ['{SMALL}', 'uniform:servers=3,nics=1,rate=100Gb/s']\n"
        "failures: [{nics: server1/nic1}, {count: 1..3}]\nsizes: 1MiB\nalgorithms: optcc\n",
        encoding="utf-8",
    )
    swept(tmp_path / "grid.yaml", "-o", tmp_path / "t.csv", "--jobs", 1)
    errors = [(row["servers"], row["failed"], row["error"]) for row in rows_of(tmp_path / "t.csv")]
    parts = ["", "", "at least one live NIC", "3 NICs cannot fail: one-server has 2"]
    parts += ["no such NIC in server1", "at least one live NIC", "2 NICs cannot fail: one-server has 1", "3 NICs"]
    assert len(errors) == len(parts)
    for (*_, error), part in zip(errors, parts, strict=True):
        assert part in error
        assert bool(part) == bool(error)

    def fail(*_: object, **__: object) -> None:
        raise SimulationError("no time")

    monkeypatch.setattr(runner, "simulate", fail)
    result = swept(SMALL, "-o", tmp_path / "u.csv", "--jobs", 1, "--size", "1MiB", "--algorithm", "optcc", "--json")
    (row,) = rows_of(tmp_path / "u.csv")
    assert (row["error"], row["simulated_s"], row["overhead"], bool(row["bound_s"])) == ("no time", "", "", True)
    assert json.loads(result.stdout)["errors"] == 1


def test_bounds_alone(tmp_path: Path) -> None:
    options = ("--quantity", "bound", "--ranks", "gpu", "--fail-count", "0..1", "--jobs", 1)
    swept(f"{SMALL},nvlink=450GB/s", "-o", tmp_path / "t.csv", *options)
    rows = rows_of(tmp_path / "t.csv")
    assert [(row["quantity"], row["algorithm"], row["simulated_s"], row["ranks"]) for row in rows] == [
        ("bound", "", "", "8")
    ] * 2
    assert float(rows[0]["unavoidable_overhead"]) == 0 < float(rows[1]["unavoidable_overhead"])


def test_counted_failures_are_where_they_are_said_to_be() -> None:
    cluster = Cluster.uniform(servers=3, nics=2, rate=10**9).degrade("server1/nic0")
    (one,) = Counted((2,), place="one-server").sets(cluster, 0)
    (spread,) = Counted((4,), place="spread").sets(cluster, 0)
    assert [nic for nic, _ in one.nics] == ["server0/nic0", "server0/nic1"]
    assert [nic for nic, _ in spread.nics] == ["server0/nic0", "server2/nic0", "server0/nic1", "server1/nic1"]
    drawn = [s.nics for s in Counted((3,), place="random", draws=20).sets(cluster, 5)]
    assert drawn[:4] == [s.nics for s in Counted((3,), place="random", draws=4).sets(cluster, 5)]
    assert len(set(drawn)) > 5
    assert all(len({nic for nic, _ in nics}) == 3 and ("server1/nic0", 0) not in nics for nics in drawn)


def test_equal_draws_are_computed_once(tmp_path: Path, counted: list[SweepJob]) -> None:
    options = ("--monte-carlo", 60, "--mttf", "1h", "--repair-time", "5min", "--size", "256KiB", "--jobs", 1)
    swept(SMALL, "-o", tmp_path / "t.csv", "--algorithm", "optcc", *options)
    drawn = {row["failures"] for row in rows_of(tmp_path / "t.csv")}
    assert len(rows_of(tmp_path / "t.csv")) == 60
    assert len(counted) == len(set(counted)) == len(drawn) + 1  # the ring without failures
    assert len(drawn) < 60
    counted.clear()
    swept(SMALL, "-o", tmp_path / "u.csv", "--quantity", "bound", *options)  # where draws are alike but for names, too
    assert len(counted) == len(set(counted)) < len(drawn) / 2
    alone = [float(row["bound_s"] or "inf") for row in rows_of(tmp_path / "u.csv")]
    assert alone == [float(row["bound_s"] or "inf") for row in rows_of(tmp_path / "t.csv")]


def test_monte_carlo_from_end_to_end(tmp_path: Path) -> None:
    options = ("--monte-carlo", 200, "--mttf", "1h", "--repair-time", "1.5h", "--seed", 11, "--size", "256KiB")
    result = swept(SMALL, "-o", tmp_path / "t.csv", *options, "--jobs", 1, "--histogram", tmp_path / "h.svg", "--json")
    ours, ring = json.loads(result.stdout)["monte_carlo"]
    rows = [row for row in rows_of(tmp_path / "t.csv") if row["algorithm"] == "optcc"]
    assert [ours["algorithm"], ring["algorithm"]] == ["optcc", "ring"]
    assert ours["draws"] == len(rows) == 200
    assert ours["expected_failed"] == pytest.approx(8 * 1.5 / 9.5)
    assert ours["mean_failed"] == sum(int(row["failed"]) for row in rows) / 200
    dead = [row for row in rows if not row["unavoidable_overhead"]]
    assert ours["stopped"] == len(dead) > 0
    for name in ("unavoidable_overhead", "overhead"):
        values = sorted(float(row[name]) for row in rows if row[name])
        assert ours[name]["mean"] == pytest.approx(sum(values) / len(values))
        assert ours[name]["p50"] == values[99]
        assert ours[name]["max"] is None
    drawn = (tmp_path / "h.svg").read_text(encoding="utf-8")
    for words in ("unavoidable", "optcc", "ring", "simulated", "seed 11", "200 draws"):
        assert words in drawn
    shown = swept(SMALL, "-o", tmp_path / "u.csv", *options, "--jobs", 1).stdout
    for words in ("seed 11", "draws cut a server off", "infinite", "dead NICs"):
        assert words in shown
