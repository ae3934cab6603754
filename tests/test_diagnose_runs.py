"""Rows of one run are one measurement: what differs between runs accuses no healthy NIC, and hides no slow one."""

from __future__ import annotations

import math
import random

import pytest

from optcc.diagnose import fit
from optcc.diagnose.evidence import Evidence, NicDirections, Observation
from optcc.diagnose.fit import ALIKE, LEAST_NOISE, NOISE, Repeated, Sure, averages, spreads
from optcc.diagnose.readers import read_text
from optcc.diagnose.verdict import Outcome, Verdict, judge
from optcc.values.cluster import Cluster
from tests import diagnosis_texts as texts
from tests.diagnosis_rig import Lab
from tests.effort import cases

CLUSTERS = 200


def cluster(rng: random.Random, slow: int) -> Lab:
    """4 to 10 servers of 1 to 8 NICs, `slow` of them at 0 to 80 %; runs 0 to 3 % apart, rows of a run 0.3 %."""
    servers, nics = rng.randint(4 if not slow else 6, 10), rng.choice([1, 2, 3, 4, 8])
    places = rng.sample([(s, n) for s in range(servers) for n in range(nics)], slow)
    faults = {place: 0.0 if rng.random() < 0.15 else round(rng.uniform(0.01, 0.8), 3) for place in places}
    return Lab(servers, nics, faults, apart=rng.uniform(0, 0.03), reached=rng.uniform(0.85, 1.0), rng=rng)


def judged(lab: Lab, rng: random.Random) -> Verdict:
    """By what `optcc diagnose` asks for: in half of the clusters with collectives, in a third with each run twice."""
    ports = NicDirections(lab.cluster)
    files = [file for again in range(1 + (rng.random() < 1 / 3)) for file in _named(lab, again)]
    if rng.random() < 0.5:
        files = [file for file in files if "sendrecv" in file[0]]
    return judge(Evidence.together(read_text(text, name, ports) for name, text in files), ports)


def _named(lab: Lab, again: int) -> list[tuple[str, str]]:
    return [(f"{again}-{name}", text) for name, text in lab.survey()]


@pytest.mark.cases
def test_no_nic_of_a_healthy_cluster_is_accused() -> None:
    likely, tried = 0, cases(CLUSTERS)
    for seed in range(tried):
        rng = random.Random(seed)
        verdict = judged(cluster(rng, 0), rng)
        sure = {finding.sure for finding in verdict.findings}
        assert Sure.CERTAIN not in sure, seed
        likely += Sure.LIKELY in sure
    assert likely <= 0.02 * tried


@pytest.mark.cases
def test_slow_nics_are_named_exactly_between_runs_that_differ() -> None:
    exact, tried = 0, cases(CLUSTERS)
    for seed in range(tried):
        rng = random.Random(seed)
        lab = cluster(rng, rng.randint(1, 3))
        truth = {f"server{s}/nic{n}" for s, n in lab.faults}
        verdict = judged(lab, rng)
        assert not [f for f in verdict.findings if f.sure is Sure.CERTAIN and f.nic not in truth], seed
        exact += {finding.nic for finding in verdict.findings} == truth
    assert exact >= 0.95 * tried


def pair(a: int, b: int, part: float, where: str, row: int = 0) -> Observation:
    return Observation("sendrecv", f"{where}:{row}", {2 * n + way: part for n in (a, b) for way in (0, 1)}, run=where)


def test_rows_of_one_run_count_once() -> None:
    """A run of a hundred rows, however alike, is no surer than one of a single row."""
    one, hundred = (averages([pair(0, 1, 0.9, "a", row) for row in range(rows)], None)[0][0] for rows in (1, 100))
    assert (one.spread, one.repeats) == (hundred.spread, hundred.repeats)
    (twice,) = averages([pair(0, 1, 0.9, run) for run in "ab"], None)[0]
    assert twice.repeats == 2
    assert twice.spread < one.spread


def test_a_table_is_a_run() -> None:
    """Also of several in one file."""
    both = texts.table("all_reduce", 40000) + texts.table("all_reduce", 41000)
    seen = read_text(both, "x.txt", texts.PORTS).observations
    (average,) = averages(seen, None)[0]
    assert (len(seen), average.repeats) == (4, 2)


def test_the_row_in_the_middle_stands_for_a_run() -> None:
    rows = [pair(0, 1, part, "a", row) for row, part in enumerate([0.9, 0.91, 0.1])]
    (average,) = averages(rows, NOISE)[0]
    (alone,) = averages(rows[:1], NOISE)[0]
    assert average.pace == pytest.approx(alone.pace)


@pytest.mark.parametrize("apart", [0.02, 0.03, 0.06])
def test_the_spread_between_runs_is_found(apart: float) -> None:
    rng = random.Random(3)
    found = [Repeated("sendrecv", (rng.gauss(0, apart),)) for _ in range(200)]
    slow = [Repeated("sendrecv", (math.log(0.5) + rng.gauss(0, apart),)) for _ in range(40)]
    each, over_all = spreads([*found, *slow], ALIKE)
    assert over_all == pytest.approx(apart, rel=0.15)
    assert each["sendrecv"] >= over_all


def test_the_spread_of_the_same_ports_measured_twice_is_found() -> None:
    """Where all ports differ, as on a fabric of unequal paths, only repeats tell."""
    rng = random.Random(4)
    pairs = [Repeated("sendrecv", (at + rng.gauss(0, 0.04), at + rng.gauss(0, 0.04))) for at in range(-99, 0)]
    assert spreads(pairs, ALIKE)[1] == pytest.approx(0.04, rel=0.15)


def test_no_spread_is_believed_to_be_less_than_runs_of_weeks_have() -> None:
    still = [Repeated("sendrecv", (0.0, 0.0)) for _ in range(1000)]
    assert spreads(still, ALIKE) == ({"sendrecv": LEAST_NOISE}, LEAST_NOISE)
    assert spreads([], ALIKE) == ({}, NOISE)
    few = spreads([Repeated("sendrecv", (0.0,))] * 3, ALIKE)[0]["sendrecv"]
    assert few > 0.02  # three that agree show little


def test_kinds_have_their_own_spread() -> None:
    rng = random.Random(5)
    steady = [Repeated("sendrecv", (rng.gauss(0, 0.01),)) for _ in range(100)]
    loose = [Repeated("alltoall", (rng.gauss(0, 0.08),)) for _ in range(100)]
    each, _ = spreads([*steady, *loose], ALIKE)
    assert each["alltoall"] > 3 * each["sendrecv"]


def test_the_studies_notice_a_spread_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what rows of one run show as the noise, healthy NICs are accused."""
    monkeypatch.setattr(fit, "LEAST_NOISE", 0.003)
    monkeypatch.setattr("optcc.diagnose.fit.spreads", lambda found, alike: ({}, 0.003))
    monkeypatch.setattr("optcc.diagnose.verdict.DEGRADED", 0.001)
    ports = NicDirections(Lab(8, 4, {}).cluster)
    accused = 0
    for seed in range(3):
        lab = Lab(8, 4, {}, rng=random.Random(seed))
        seen = Evidence.together(read_text(text, name, ports) for name, text in lab.survey())
        accused += len(judge(seen, ports, degraded=0.001).findings)
    assert accused


def test_what_is_degraded_is_an_option() -> None:
    """Three at 93 %, measured with three others each, of twelve that repeat well."""
    ports = NicDirections(Cluster.uniform(servers=12, nics=1, rate="400Gb/s"))
    seen = [
        pair(a, b, 0.9 * (0.93 if a == 5 or b == 5 else 1), f"{a}-{b}-{run}")
        for a in range(12) for b in range(a) for run in range(6)
    ]  # fmt: skip
    named = judge(Evidence(tuple(seen)), ports)
    assert [(f.nic, round(f.left, 2)) for f in named.findings] == [("server5/nic0", 0.93)]
    spared = judge(Evidence(tuple(seen)), ports, degraded=0.1)
    assert (spared.outcome, spared.findings) == (Outcome.HEALTHY, ())
