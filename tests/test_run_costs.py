"""`optcc run` plans with what its runtime takes for a message and a chunk, and says where it knows that from."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc import api, load_topology
from optcc.cli import main
from optcc.cli.run import costs_of
from optcc.discover import Measured
from optcc.errors import InputError
from optcc.runtime.control.launch import Session

US = Fraction(1, 10**6)
MEASURED = Measured("2026-11-20", "local", 3 * US, 5 * US)
FILE = """optcc: 1
measured:
  date: 2026-11-20
  transport: {transport}
  alpha: 2us
  per_chunk: 50us
  spread: 0.1%
servers:
  - name: 'server0'
    nics: [{{name: 'nic0', rate: 400Gb/s}}]
  - name: 'server1'
    nics: [{{name: 'nic0', rate: 400Gb/s}}]
  - name: 'server2'
    nics: [{{name: 'nic0', rate: 400Gb/s}}]
"""


def test_what_is_stated_comes_before_what_is_measured() -> None:
    """By the clock of a runtime whose NICs are slower; measured times are the cluster's already."""
    costs = costs_of(None, "40us", MEASURED, "local", "python", Fraction(10))
    assert (costs.alpha, costs.per_chunk) == (3 * US, 4 * US)
    assert costs.line(Fraction(10)) == "planned for alpha 30 us (measured 2026-11-20), per chunk 40 us (stated)"


def test_another_transports_costs_are_not_this_ones() -> None:
    costs = costs_of(None, None, MEASURED, "verbs", "python", Fraction(1))
    assert (costs.alpha, costs.per_chunk) == (0, 0)
    assert costs.per_chunk_from == "measured over local only"
    assert costs_of(None, None, None, "verbs", "python", Fraction(1)).per_chunk_from == "not measured"


def test_another_paths_costs_are_not_this_ones() -> None:
    """Compiled code takes less for a chunk than Python does."""
    measured = replace(MEASURED, path="python")
    costs = costs_of(None, None, measured, "local", "compiled", Fraction(1))
    assert (costs.per_chunk, costs.per_chunk_from) == (0, "measured with the path python only")
    costs = costs_of(None, None, measured, "local", "python", Fraction(1))
    assert (costs.per_chunk, costs.per_chunk_from) == (5 * US, "measured 2026-11-20, path python")


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(InputError, match="--per-chunk"):
        costs_of(None, "many", None, "local", "python", Fraction(1))


@pytest.mark.parametrize("transport", ["local", "verbs"])
def test_the_plan_that_runs_is_the_one_for_these_costs(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cost of 50 us a chunk wants fewer and larger ones; a file of another transport changes nothing."""
    file = tmp_path / "measured.yaml"
    file.write_text(FILE.format(transport=transport))
    cluster = load_topology(str(file)).cluster
    costs = {"alpha": 2 * US, "per_chunk": 50 * US} if transport == "local" else {}
    expected = api.plan(cluster, 2**20, **costs)
    assert (expected.plan_id != api.plan(cluster, 2**20).plan_id) == (transport == "local"), "else nothing is shown"
    ran = CliRunner().invoke(main, ["run", str(file), "--size", "1MiB", "--repeat", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    value = json.loads(ran.stdout)
    assert value["nominal"]["plan_id"] == expected.plan_id
    assert value["planned_for"]["per_chunk_s"] == (50e-6 if costs else 0)
    assert ("measured 2026-11-20" if costs else "measured over verbs only") in ran.stderr


def test_a_plan_file_has_been_made_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "__init__", lambda *_: pytest.fail("nothing may start"))
    file = tmp_path / "plan.json"
    runner = CliRunner()
    assert runner.invoke(main, ["plan", "uniform:servers=2,nics=1,rate=1Gb/s", "-o", str(file)]).exit_code == 0
    refused = runner.invoke(main, ["run", str(file), "--per-chunk", "5us"])
    assert (refused.exit_code, "--per-chunk" in refused.stderr) == (2, True)
