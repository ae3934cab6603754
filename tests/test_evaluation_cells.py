"""Cells of the evaluation, and the grids that they make; an evaluation that is interrupted goes on where it was."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import optcc
from optcc.cli import main
from optcc.errors import InputError, OptccError
from optcc.study import page
from optcc.study.cells import SweepCell, SweepJob, SweepResult, fingerprint, groups
from optcc.study.evaluation import ALPHA, FAULT_FREE, OPTCC, PER_CHUNK, SCHEMES, Case, bundled, case_of
from optcc.study.journal import Journal, journal_path
from optcc.study.page import percent, stragglers
from optcc.study.runner import compute
from optcc.study.training import TrainingJob
from optcc.values.cluster import Cluster
from tests.studied import MIB, TINY, outcomes


def run(servers: int, dead: tuple[int, ...], nbytes: int, scheme: str, **costs: Fraction) -> SweepResult:
    """What a job of the evaluation gives."""
    cluster = Cluster.uniform(servers=servers, nics=8, rate=50 * 10**9)
    failures = tuple(f"server{s}/nic{nic}=0" for s, count in enumerate(dead) for nic in range(count))
    job = SweepJob(fingerprint(cluster), failures, nbytes, ALPHA, PER_CHUNK, None, scheme, "packets", best=True)
    (found,) = compute(cluster, (replace(job, **costs),))  # type: ignore[arg-type]
    return found


def test_a_scheme_that_does_not_apply_has_no_time() -> None:
    found = run(4, (1, 1), MIB, "r2cc")
    assert math.isnan(found.time_s)
    assert "one degraded server" in (found.error or "")
    assert percent(found.time_s) == "-"
    assert found.bound_s


def test_cases_are_what_failures_say() -> None:
    cell = next(c for c in TINY.parts["several"] if len(c.job.failures) == 3)
    assert cell.job.failures == ("server0/nic0=0", "server0/nic1=0", "server1/nic1=0")
    assert case_of(cell) == Case(4, (2, 1), 64 * MIB, OPTCC, staggered=True)
    half = replace(cell, job=replace(cell.job, failures=("server0/nic0=1/2", "server1/nic0=1/2")))
    assert case_of(half) == Case(4, (1, 1), 64 * MIB, OPTCC, left=Fraction(1, 2))
    for failures in ((), ("server1/nic0=0",)):
        with pytest.raises(InputError, match="not a case of the page"):
            case_of(replace(cell, job=replace(cell.job, failures=failures)))
    assert case_of(half).of(FAULT_FREE) == Case(4, (), 64 * MIB, FAULT_FREE)


@pytest.mark.long
def test_a_job_has_its_own_costs() -> None:
    none = Fraction(0)
    free, latency, both = (
        run(4, (4,), 64 * MIB, "r2cc", **costs)
        for costs in ({"alpha_s": none, "per_chunk_s": none}, {"per_chunk_s": none}, {})
    )
    assert free.time_s < latency.time_s < both.time_s
    assert free.with_costs_s == free.bound_s
    assert free.with_costs_s < latency.with_costs_s < both.with_costs_s  # type: ignore[operator]
    assert all(each.over_bound > 1 and each.way in ("channels", "stripes") for each in (free, latency, both))
    ring = run(4, (), 64 * MIB, "ring")
    assert ring.bound_s == ring.fault_free_s
    assert ring.time_s == run(4, (), 64 * MIB, "balance").time_s > ring.bound_s  # type: ignore[operator]


def test_the_bound_with_costs_is_that_of_its_job() -> None:
    cluster = Cluster.uniform(servers=4, nics=8, rate=50 * 10**9)
    for nic in range(4):
        cluster = cluster.degrade(f"server0/nic{nic}")
    least = optcc.lower_bound_with_costs(cluster, 64 * MIB, alpha=ALPHA, per_chunk=PER_CHUNK)
    found = run(4, (4,), 64 * MIB, "balance")
    assert found.with_costs_s == float(least.seconds) > float(least.bound.seconds) == found.bound_s


def test_what_takes_longest_begins_first() -> None:
    found = groups(TINY.cells, {})
    of: dict[SweepJob, SweepCell] = {job: cell for cell in TINY.cells for job in cell.jobs}
    weights = [max(of[job].weight(job) for job in jobs) for jobs in found]
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) > 3
    assert sum(map(len, found)) + len(TINY.planning) == TINY.work


def test_grids_hold_what_the_tables_need() -> None:
    full, quick = bundled("full.yaml"), bundled("quick.yaml")
    for grid in (full, quick, TINY):
        cases = {*grid.stragglers, *grid.several, *grid.messages}
        assert {c.scheme for c in grid.stragglers} == set(SCHEMES)
        assert grid.size in grid.sizes
        assert PER_CHUNK in grid.per_chunks
        for case in grid.stragglers:
            assert case.per_chunk == PER_CHUNK or case.servers <= grid.most_servers
        assert {(p, d, o) for p, d in stragglers(grid) for o in grid.per_chunks} <= {
            (c.servers, *c.dead, c.per_chunk) for c in grid.stragglers
        }
        for fleet in grid.fleets:
            for scheme in (OPTCC, "balance"):
                chain = grid.chain(fleet.servers, scheme)
                assert [len(case.dead) for case in chain] == list(range(1, len(chain) + 1))
                assert chain
                assert cases.issuperset(chain)
    several = {(c.servers, c.dead, c.staggered) for c in full.failures}
    assert several >= {(p, dead, False) for p in (8, 16, 32) for dead in ((4, 4), (4, 2, 1))}
    assert several >= {(16, (1,) * 4, True), (32, (1,) * 8, False)}
    assert {cell.servers for cell in full.parts["stars"]} == {4, 8, 16, 32, 64}
    assert max(full.servers) * 8 == 1024
    assert [float(o) for o in full.per_chunks] == [float(o) for o in quick.per_chunks] == [0, 1e-7, 5e-7, 1e-6]


def test_a_plan_that_is_missing_ends_the_evaluation() -> None:
    found = {job.key: SweepResult(1.0) for cell in TINY.cells for job in cell.jobs}
    assert len(TINY.results(found)) > len(found)
    own = TINY.parts["several"][0].job
    with pytest.raises(OptccError, match=r"servers=4.*server0/nic0=0: no plan"):
        TINY.results(found | {own.key: SweepResult(1.0, error="no plan")})


def reproduce(output: Path) -> Result:
    return CliRunner().invoke(main, ["reproduce", "--quick", "--jobs", "1", "-o", str(output), "--json"])


def test_the_command_says_what_is_kept_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: object, journal: Journal[SweepResult], **__: object) -> page.Evaluation:
        if journal.results:
            return page.Evaluation("all of it", {}, 0, 1)
        journal.add({"a job": SweepResult(1.0), "another one": SweepResult(2.0)})
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "evaluate", evaluate)
    output = tmp_path / "page.md"
    stopped = reproduce(output)
    assert stopped.exit_code == 130
    assert f" results are kept in {journal_path(output)}. Give the same command again" in stopped.stderr
    assert "interrupted; 2 of " in stopped.stderr
    assert not output.exists()
    again = reproduce(output)
    assert "going on: 2 results" in again.stderr
    assert json.loads(again.stdout)["cells"] == 1
    assert output.read_text(encoding="utf-8") == "all of it"
    assert not journal_path(output).exists()


def test_what_is_kept_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(page, "page", lambda *args: args[3])
    with Journal(tmp_path / "page.md", "evaluation", SweepResult) as journal:
        journal.add({job.key: SweepResult(1.0) for cell in TINY.cells for job in cell.jobs})
        made: Any = page.evaluate(
            replace(TINY, planning=()), TrainingJob(), jobs=1, command="x", journal=journal,
            progress=lambda done, total: told.append((done, total)),
        )  # fmt: skip
    assert not told
    assert made.keys() >= outcomes().keys()


def test_results_of_other_code_are_refused_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "page.md"
    with Journal(output, "evaluation", SweepResult, code=page.code()) as kept:
        kept.add({"a job": SweepResult(1.0)})
    before = journal_path(output).read_bytes()
    monkeypatch.setattr(page, "code", lambda: "of another version")
    refused = reproduce(output)
    assert refused.exit_code == 2
    assert "begun by another version" in refused.stderr
    assert str(journal_path(output)) in refused.stderr
    assert journal_path(output).read_bytes() == before


def test_code_is_the_sources_and_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = page.code()
    assert first == page.code()
    with monkeypatch.context() as patch:
        patch.setattr(page, "package_version", lambda _: "0")
        assert page.code() != first
    package = tmp_path / "optcc"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n", encoding="utf-8")
    monkeypatch.setattr(page.optcc, "__file__", str(package / "__init__.py"))
    second = page.code()
    (package / "__init__.py").write_text("a = 2\n", encoding="utf-8")
    assert len({first, second, page.code()}) == 3


def test_what_another_command_keeps_is_not_read(tmp_path: Path) -> None:
    with Journal(tmp_path / "x", "sweep", SweepResult) as journal:
        journal.add({"a": SweepResult(1.0)})
    with pytest.raises(InputError, match="not a journal"):
        Journal(tmp_path / "x", "evaluation", SweepResult)
