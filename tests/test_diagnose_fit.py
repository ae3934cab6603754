"""The NICs that explain measurements: named exactly, at their rates, and no surer than the evidence allows."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations, permutations

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.diagnose import fit
from optcc.diagnose import fit as doubts
from optcc.diagnose.diagnosis import diagnose, diagnosis_json, metrics_text
from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, Observation, Sign, port
from optcc.diagnose.fit import ALIKE, LEAST_NOISE, NOISE, Repeated, Sure, averages, problem, spreads
from optcc.diagnose.log_evidence import ACS, BOND, DISABLED, MTU, NO_DIRECT, OFF, SOCKETS, causes_in
from optcc.diagnose.print_diagnosis import print_diagnosis
from optcc.diagnose.readers import read_text
from optcc.diagnose.verdict import Outcome, Verdict, judge
from optcc.fault_run import run as fault_run_module
from optcc.fault_run.results import FaultRun
from optcc.reports.runs import fault_run_json, print_fault_run
from optcc.runtime.messages import Strike
from optcc.values.cluster import Cluster
from tests import diagnosis_texts as texts
from tests.diagnosis_rig import Lab, random_faults
from tests.effort import cases
from tests.one_fault import survived


def judged(lab: Lab, files: Sequence[tuple[str, str]], noise: float | None = None) -> Verdict:
    ports = NicDirections(lab.cluster)
    return judge(Evidence.together(read_text(text, name, ports) for name, text in files), ports, noise)


def lab(faults: Mapping[tuple[int, int], float], servers: int = 4, nics: int = 2, **more: float) -> Lab:
    return Lab(servers, nics, faults, rng=random.Random(1), **more)  # type: ignore[arg-type]


def of(verdict: Verdict) -> dict[str, float]:
    return {finding.nic: finding.left for finding in verdict.findings}


def check(truth: Mapping[str, float], verdict: Verdict) -> tuple[bool, list[str]]:
    """Whether the NICs are named exactly; healthy NICs that are called certain, and rates off by more than 5 %."""
    wrong = [f.nic for f in verdict.findings if f.sure is Sure.CERTAIN and f.nic not in truth]
    wrong += [f.nic for f in verdict.findings if truth.get(f.nic) and abs(f.left / truth[f.nic] - 1) > 0.05]
    return of(verdict).keys() == truth.keys(), wrong


def test_random_degraded_clusters() -> None:
    exact, tried = 0, cases(100)
    for seed in range(tried):
        rng = random.Random(seed)
        one = Lab(8, 8, random_faults(rng, 8, 8), rng=rng)
        truth = {f"server{s}/nic{n}": left for (s, n), left in one.faults.items()}
        named, wrong = check(truth, judged(one, list(one.survey())))
        exact += named
        assert wrong == [], seed
    assert exact >= 0.95 * tried


def test_the_study_notices_a_wrong_name_and_a_wrong_rate() -> None:
    one = lab({(1, 0): 0.5})
    verdict = judged(one, list(one.survey()))
    assert check({"server1/nic0": 0.5}, verdict) == (True, [])
    assert check({"server1/nic0": 0.55}, verdict) == (True, ["server1/nic0"])
    assert check({"server2/nic0": 0.5}, verdict) == (False, ["server1/nic0"])


@pytest.mark.long
def test_128_servers() -> None:
    one = Lab(128, 8, {(17, 3): 0.4, (90, 0): 0.0}, rng=random.Random(5))
    verdict = judged(one, list(one.survey(far=(1, 2))))
    assert of(verdict) == {"server17/nic3": pytest.approx(0.4, rel=0.05), "server90/nic0": 0.0}


def test_a_healthy_cluster_below_nameplate_is_healthy() -> None:
    one = lab({}, reached=0.93)
    verdict = judged(one, list(one.survey()))
    assert verdict.outcome is Outcome.HEALTHY
    part = next(s.part for s in verdict.standards if s.kind == "sendrecv")
    assert part == pytest.approx(0.93, rel=0.02)
    assert 0.02 < verdict.noise < 0.04
    assert 0.5 < verdict.misfit < 1.5


def test_slow_collectives_do_not_become_the_standard() -> None:
    """Three of five AllReduces are slow, each over all servers: their median would make the healthy ones too fast."""
    one = lab({(0, 0): 0.3, (1, 1): 0.4, (2, 2): 0.5}, servers=4, nics=5, apart=0.01)
    verdict = judged(one, [(f"{nic}.txt", one.table("all_reduce", range(4), [nic])) for nic in range(5)])
    assert next(s.part for s in verdict.standards if s.kind == "all_reduce") == pytest.approx(1, rel=0.02)
    assert {round(finding.left, 1) for finding in verdict.findings} == {0.3, 0.4, 0.5}


def test_where_each_collective_has_a_slow_nic_none_is_the_standard() -> None:
    """An AllReduce for each rail, each of them slow: pairs tell the NICs, without pairs nothing is told."""
    one = lab({(0, 0): 0.3, (1, 1): 0.25, (2, 2): 0.4, (3, 3): 0.35, (0, 4): 0.3}, servers=6, nics=5)
    rails = [(f"{nic}.txt", one.table("all_reduce", range(6), [nic])) for nic in range(5)]
    verdict = judged(one, rails)
    assert (verdict.outcome, verdict.findings) == (Outcome.CANNOT_TELL, ())
    assert verdict.measure[0].why.startswith("of all_reduce none may be healthy: ")
    verdict = judged(one, [*rails, *one.survey()])
    assert of(verdict) == {f"server{s}/nic{n}": pytest.approx(left, rel=0.05) for (s, n), left in one.faults.items()}
    assert {finding.sure for finding in verdict.findings} == {Sure.CERTAIN}


@pytest.mark.parametrize(("part", "outcome"), [(0.8, Outcome.HEALTHY), (0.5, Outcome.CANNOT_TELL)])
def test_collectives_slower_than_pairs_blame_no_nic(part: float, outcome: Outcome) -> None:
    """Up to a point that is usual; beyond it something is slow that is no NIC, such as the switches."""
    well, slower = lab({}, nics=5), lab({}, nics=5, reached=part)
    pairs = [file for file in well.survey() if file[0].startswith("sendrecv")]
    rails = [(f"{nic}.txt", slower.table("all_reduce", range(4), [nic])) for nic in range(5)]
    verdict = judged(well, [*pairs, *rails])
    assert (verdict.outcome, verdict.findings, verdict.unmeasured) == (outcome, (), ())
    assert len(verdict.paths) == (0 if outcome is Outcome.HEALTHY else 5)


def test_tests_in_one_file_are_as_tests_in_files_of_their_own() -> None:
    """Also those that failed: the NIC at fault is one of those of its own test."""
    one = lab({(4, 0): 0.0}, servers=6, nics=1)
    pairs = [one.table("sendrecv", [server, (server + hop) % 6], [0]) for hop in (1, 2) for server in range(6)]
    apart = judged(one, [(f"{i}.txt", text) for i, text in enumerate(pairs)])
    together = judged(one, [("all.txt", "".join(pairs))])
    for verdict in (apart, together):
        assert [(f.nic, f.left, f.sure, f.explains) for f in verdict.findings] == [("server4/nic0", 0, Sure.CERTAIN, 4)]


def test_many_degraded_nics() -> None:
    rng = random.Random(2)
    places = rng.sample([(s, n) for s in range(16) for n in range(4)], 12)
    one = Lab(16, 4, {place: round(rng.uniform(0.05, 0.85), 2) for place in places}, rng=rng, apart=0.02)
    assert of(judged(one, list(one.survey()))) == {
        f"server{s}/nic{n}": pytest.approx(left, rel=0.05) for (s, n), left in one.faults.items()
    }


def test_a_nic_that_only_slower_ones_were_measured_with_is_not_called_well() -> None:
    one = lab({(1, 0): 0.2, (2, 0): 0.6}, servers=5, nics=1)
    pairs = [(0, 1), (1, 3), (1, 2), (0, 3), (0, 4), (3, 4)]
    verdict = judged(one, [(f"{a}-{b}.txt", one.table("sendrecv", [a, b], [0])) for a, b in pairs])
    assert of(verdict) == {"server1/nic0": pytest.approx(0.2, rel=0.05)}
    assert verdict.unmeasured == ("server2/nic0",)


def test_two_ends_of_one_slow_pair_are_not_told_apart_until_one_is_measured_alone() -> None:
    one = lab({(1, 0): 0.3})
    pair = ("a.txt", one.table("sendrecv", [0, 1], [0]))
    verdict = judged(one, [pair])
    (found,) = verdict.findings
    assert verdict.outcome is Outcome.CANNOT_TELL
    assert found.sure is Sure.POSSIBLE
    assert {found.nic, *found.twins} == {"server0/nic0", "server1/nic0"}
    assert "sendrecv_perf" in verdict.measure[0].command
    assert found.nic.partition("/")[0] in verdict.measure[0].command
    more = [(f"{peer}.txt", one.table("sendrecv", [1, peer], [0])) for peer in (2, 3)]
    assert [(f.nic, f.sure) for f in judged(one, [pair, more[0]]).findings] == [("server1/nic0", Sure.LIKELY)]
    assert [(f.nic, f.sure) for f in judged(one, [pair, *more]).findings] == [("server1/nic0", Sure.CERTAIN)]


def test_one_slow_allreduce_names_nothing_and_says_what_to_measure() -> None:
    one = lab({(1, 0): 0.3})
    verdict = judged(one, [("all_reduce.txt", one.table("all_reduce", range(4), range(2)))])
    assert verdict.outcome is Outcome.CANNOT_TELL
    assert [f.sure for f in verdict.findings] == [Sure.POSSIBLE]
    assert "for nic in nic0 nic1" in verdict.measure[0].command


def test_nothing_measured_is_not_healthy() -> None:
    verdict = judge(Evidence(), NicDirections(lab({}).cluster))
    assert verdict.outcome is Outcome.CANNOT_TELL
    assert verdict.measure


def test_a_path_is_slow_where_both_ends_are_fast_elsewhere() -> None:
    ports = NicDirections(Cluster.uniform(servers=4, nics=1, rate="400Gb/s"))
    seen = []
    for a, b in permutations(range(4), 2):
        part = 0.2 if (a, b) == (1, 2) else 0.97
        seen.append(Observation("sendrecv", f"{a}-{b}", {port(a, OUT): part, port(b, IN): part}))
    verdict = judge(Evidence(tuple(seen)), ports)
    assert not verdict.findings
    assert [path.where for path in verdict.paths] == ["1-2"]
    assert verdict.outcome is Outcome.CANNOT_TELL
    assert "server2,server1" in verdict.measure[0].command


def test_one_way_of_a_nic() -> None:
    ports = NicDirections(Cluster.uniform(servers=3, nics=1, rate="400Gb/s"))
    parts = {number: 0.4 if number == port(1, IN) else 0.98 for number in range(6)}
    seen = [Observation("calibrate", "c", {number: part}, spread=0.01) for number, part in parts.items()]
    (found,) = judge(Evidence(tuple(seen)), ports).findings
    assert (found.nic, found.out, found.sure) == ("server1/nic0", None, Sure.CERTAIN)
    assert found.into == pytest.approx(0.4 / 0.98, rel=0.01)
    suspected = judge(Evidence(tuple(seen)), ports).suspected(ports.cluster)
    assert suspected.servers[1].nics[0].in_rate < suspected.servers[1].nics[0].out_rate / 2


def test_all_nics_of_a_server_point_at_what_they_share() -> None:
    one = lab({(2, 0): 0.5, (2, 1): 0.5}, servers=6)
    said = judged(one, list(one.survey())).together
    assert [line.startswith("all 2 NICs of server2") for line in said] == [True]


def test_a_slow_rail_is_told_though_its_last_nics_cannot_be() -> None:
    """Where all pairs of a rail are slow alike, two of its NICs are not needed to explain that."""
    one = lab({(server, 1): 0.5 for server in range(6)}, servers=6)
    verdict = judged(one, list(one.survey()))
    assert {f.sure for f in verdict.findings} == {Sure.POSSIBLE}
    (said,) = verdict.together
    assert said.endswith("maybe all 6 NICs of rail 1: look for what they share, such as its switch")
    half = lab({(server, 1): 0.5 for server in range(3)}, servers=6)
    assert judged(half, list(half.survey())).together == ()


def test_what_only_shows_a_least_rate_is_no_fault() -> None:
    ports = NicDirections(Cluster.uniform(servers=3, nics=1, rate="400Gb/s"))
    seen = [Observation("counters", "c", {number: 0.1}, least=True) for number in range(6)]
    assert judge(Evidence(tuple(seen)), ports).outcome is Outcome.HEALTHY
    slow = Observation("sendrecv", "s", {port(0, OUT): 0.1, port(1, IN): 0.1})
    busy = Observation("counters", "c", {port(0, OUT): 0.9, port(0, IN): 0.9}, least=True)
    (found,) = judge(Evidence((slow, busy)), ports).findings
    assert (found.nic, found.sure) == ("server1/nic0", Sure.LIKELY)


def test_signs_stay_beside_the_nic_that_they_are_of() -> None:
    ports = NicDirections(Cluster.uniform(servers=3, nics=1, rate="400Gb/s"))
    down = [Observation("link", "l", {port(2, way): NOTHING}) for way in (OUT, IN)]
    signs = (Sign("l", "the port is DOWN", "server2", 2, True), Sign("r", "a process is dead", "server0"))
    verdict = judge(Evidence(tuple(down), signs), ports)
    assert [(f.nic, f.left, [s.what for s in f.signs]) for f in verdict.findings] == [
        ("server2/nic0", 0.0, ["the port is DOWN"])
    ]
    assert [sign.server for sign in verdict.signs] == ["server0"]


def test_certainty_needs_other_explanations_to_be_two_faults_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lab({(1, 0): 0.3})
    pair = [("a.txt", one.table("sendrecv", [0, 1], [0]))]
    monkeypatch.setattr(doubts, "CERTAIN_BY", 0.0)
    (found,) = judged(one, pair).findings
    assert found.sure is Sure.CERTAIN  # wrongly: what the bound of two faults is for


def test_noise_alone_is_not_slow() -> None:
    for seed in range(cases(50)):
        one = Lab(4, 4, {}, rng=random.Random(seed))
        assert not judged(one, list(one.survey())).findings, seed


def test_averages_tell_failed_runs_from_slow_ones() -> None:
    used = {0: 0.5, 3: 0.5}
    seen = [Observation("sendrecv", "a", used), Observation("sendrecv", "b", dict.fromkeys(used, NOTHING))]
    found, _, _ = averages(seen, 0.03)
    assert [average.failed for average in found] == [False, True]
    assert len(problem(found).slow) == 2


CLUSTERS = 200


def cluster(rng: random.Random, slow: int) -> Lab:
    """4 to 10 servers of 1 to 8 NICs, `slow` of them at 0 to 80 %; runs 0 to 3 % apart, rows of a run 0.3 %."""
    servers, nics = rng.randint(4 if not slow else 6, 10), rng.choice([1, 2, 3, 4, 8])
    places = rng.sample([(s, n) for s in range(servers) for n in range(nics)], slow)
    faults = {place: 0.0 if rng.random() < 0.15 else round(rng.uniform(0.01, 0.8), 3) for place in places}
    return Lab(servers, nics, faults, apart=rng.uniform(0, 0.03), reached=rng.uniform(0.85, 1.0), rng=rng)


def judged_runs(lab: Lab, rng: random.Random) -> Verdict:
    """By what `optcc diagnose` asks for: in half of the clusters with collectives, in a third with each run twice."""
    ports = NicDirections(lab.cluster)
    files = [file for again in range(1 + (rng.random() < 1 / 3)) for file in _named(lab, again)]
    if rng.random() < 0.5:
        files = [file for file in files if "sendrecv" in file[0]]
    return judge(Evidence.together(read_text(text, name, ports) for name, text in files), ports)


def _named(lab: Lab, again: int) -> list[tuple[str, str]]:
    return [(f"{again}-{name}", text) for name, text in lab.survey()]


def test_no_nic_of_a_healthy_cluster_is_accused() -> None:
    likely, tried = 0, cases(CLUSTERS)
    for seed in range(tried):
        rng = random.Random(seed)
        verdict = judged_runs(cluster(rng, 0), rng)
        sure = {finding.sure for finding in verdict.findings}
        assert Sure.CERTAIN not in sure, seed
        likely += Sure.LIKELY in sure
    assert likely <= 0.02 * tried


def test_slow_nics_are_named_exactly_between_runs_that_differ() -> None:
    exact, tried = 0, cases(CLUSTERS)
    for seed in range(tried):
        rng = random.Random(seed)
        lab = cluster(rng, rng.randint(1, 3))
        truth = {f"server{s}/nic{n}" for s, n in lab.faults}
        verdict = judged_runs(lab, rng)
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


def whole(
    groups: Sequence[Sequence[int]],
    nics: int,
    left: Mapping[int, float],
    kind: str = "all_gather",
    reached: float = 0.9,
) -> tuple[Observation, ...]:
    """One collective over all NICs of each group of servers; `left` : server -> the part that one of its NICs has."""
    rng = random.Random(1)
    seen = []
    for group in groups:
        part = reached * min(left.get(server, 1.0) for server in group) * (1 + rng.gauss(0, 0.01))
        used = {port(server * nics + nic, way): part for server in group for nic in range(nics) for way in (OUT, IN)}
        seen.append(Observation(kind, f"of {group}", used, servers=tuple(f"server{s}" for s in group)))
    return tuple(seen)


def verdict_of(servers: int, nics: int, seen: Sequence[Observation], causes: tuple[str, ...] = ()) -> Verdict:
    cluster = Cluster.uniform(servers=servers, nics=nics, rate="400Gb/s")
    return judge(Evidence(tuple(seen), causes=causes), NicDirections(cluster))


def printed(servers: int, nics: int, seen: Sequence[Observation], capsys: pytest.CaptureFixture[str],
            causes: tuple[str, ...] = ()) -> str:  # fmt: skip
    cluster = Cluster.uniform(servers=servers, nics=nics, rate="400Gb/s")
    print_diagnosis(diagnose(cluster, Evidence(tuple(seen), causes=causes)))
    return capsys.readouterr().out


@pytest.mark.parametrize(("servers", "nics"), [(3, 2), (4, 8), (6, 3)])
def test_a_server_is_named_where_its_nics_cannot_be_told_apart(servers: int, nics: int) -> None:
    seen = whole(list(combinations(range(servers), 2)), nics, {1: 0.4})
    verdict = verdict_of(servers, nics, seen)
    (one,) = verdict.servers
    assert (verdict.outcome, one.server, len(one.nics)) == (Outcome.DEGRADED, "server1", nics)
    assert one.left == pytest.approx(0.4, rel=0.05)
    assert one.sure is Sure.CERTAIN
    assert {finding.sure for finding in verdict.findings} == {Sure.POSSIBLE}


def test_two_servers_that_fit_alike_are_not_told_apart_either() -> None:
    """Every slow collective has both."""
    verdict = verdict_of(6, 4, whole([(0, 1), (0, 1, 2), (2, 3), (3, 4), (4, 5), (2, 5), (3, 5)], 4, {0: 0.4}))
    assert (verdict.outcome, verdict.servers) == (Outcome.CANNOT_TELL, ())


def test_a_server_and_a_nic_of_another_are_told_together(capsys: pytest.CaptureFixture[str]) -> None:
    lab = Lab(6, 2, {(4, 1): 0.3}, rng=random.Random(1), apart=0.01)
    ports = NicDirections(lab.cluster)
    pairs = Evidence.together(read_text(text, name, ports) for name, text in lab.survey() if "sendrecv" in name)
    rest = whole(list(combinations((0, 1, 2, 3, 5), 2)), 2, {1: 0.5})
    seen = [o for o in pairs.observations if {2, 3} <= {p // 2 for p in o.used} or 1 not in {p // 4 for p in o.used}]
    out = printed(6, 2, [*seen, *rest], capsys)
    assert out.startswith("server1 is slow: which of its NICs cannot be told; besides 1 NIC elsewhere\n")
    assert "server4/nic1" in out


@pytest.mark.parametrize("reached", [0.3, 0.45, 0.6, 0.68])
@pytest.mark.parametrize(("servers", "nics"), [(2, 4), (3, 1), (8, 4)])
def test_all_slow_alike_is_not_healthy(servers: int, nics: int, reached: float) -> None:
    lab = Lab(servers, nics, {}, rng=random.Random(2), apart=0.01, reached=reached)
    ports = NicDirections(lab.cluster)
    pairs = [(f"{a}-{b}-{n}.txt", lab.table("sendrecv", [a, b], [n])) for n in range(nics)
             for a, b in combinations(range(servers), 2)]  # fmt: skip
    verdict = judge(Evidence.together(read_text(text, name, ports) for name, text in pairs), ports)
    assert (verdict.outcome, verdict.findings) == (Outcome.CANNOT_TELL, ())
    (kind,) = verdict.alike
    assert (kind.kind, kind.alike) == ("sendrecv", True)
    assert kind.reached == pytest.approx(reached, rel=0.05)


def test_of_all_that_are_slow_alike_one_that_is_slower_is_named() -> None:
    lab = Lab(6, 3, {(2, 1): 0.6}, rng=random.Random(2), apart=0.01, reached=0.5)
    ports = NicDirections(lab.cluster)
    verdict = judge(Evidence.together(read_text(text, name, ports) for name, text in lab.survey()), ports)
    assert [(f.nic, f.sure) for f in verdict.findings] == [("server2/nic1", Sure.CERTAIN)]
    assert [kind.kind for kind in verdict.alike] == ["sendrecv"]


def test_a_nic_that_took_part_in_all_is_the_reason_rather_than_all() -> None:
    lab = Lab(6, 1, {(0, 0): 0.4}, rng=random.Random(2), apart=0.01)
    ports = NicDirections(lab.cluster)
    star = [(f"{other}.txt", lab.table("sendrecv", [0, other], [0])) for other in range(1, 6)]
    verdict = judge(Evidence.together(read_text(text, name, ports) for name, text in star), ports)
    assert ([f.nic for f in verdict.findings], verdict.alike) == (["server0/nic0"], ())


@pytest.mark.parametrize(("reached", "outcome"), [(0.65, Outcome.CANNOT_TELL), (0.85, Outcome.HEALTHY)])
def test_one_collective_far_below_nameplate_is_not_healthy(reached: float, outcome: Outcome) -> None:
    verdict = verdict_of(8, 8, whole([range(8)], 8, {}, reached=reached))
    assert (verdict.outcome, verdict.findings) == (outcome, ())
    assert [kind.alike for kind in verdict.alike] == [False] * (outcome is Outcome.CANNOT_TELL)


LINES = {
    NO_DIRECT: "n0:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0",
    DISABLED: "n0:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    SOCKETS: "n0:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0>",
    BOND: "n0:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_bond_0:1/RoCE [RO]; OOB eth0:192.0.2.1<0>",
    MTU: "n0:1:2 [0] NCCL INFO NET/IB: IbDev 0 Port 1 qpn 123 mtu 3 LID 5",
    ACS: "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+",
    OFF: "n0:1:2 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to LOC",
}


@pytest.mark.parametrize("cause", LINES)
def test_a_log_shows_what_slows_all_alike(cause: str) -> None:
    told = causes_in(f"first\n{LINES[cause]}\n{LINES[cause]}\n", "job.log")
    assert told == (f"{cause} (job.log:2, lines: 2)",)


@pytest.mark.parametrize(
    "line",
    [
        LINES[NO_DIRECT] + "/GDRDMA",
        "n0:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "n0:1:2 [0] NCCL INFO NET/IB: IbDev 0 Port 1 qpn 123 mtu 5 LID 5",
        "\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir-",
        "\tactive_mtu:\t\t4096 (5)",
        LINES[BOND] + "\nn0:1:2 [0] NCCL INFO NCCL_IB_QPS_PER_CONNECTION set by environment to 2",
        LINES[NO_DIRECT] + "\n" + LINES[NO_DIRECT] + "/GDRDMA",
    ],
)
def test_what_is_as_it_should_be_is_no_cause(line: str) -> None:
    assert causes_in(line, "job.log") == ()


def test_causes_are_printed_with_what_they_slow(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = list(combinations(range(4), 2))
    out = printed(4, 2, whole(pairs, 2, {}, reached=0.45), capsys, ("no GPU-direct RDMA (job.log:2)",))
    assert out.startswith("cannot tell: all are slow alike, all_gather at ")
    assert "slows all alike: no GPU-direct RDMA (job.log:2)" in out
    assert "look for no GPU-direct" in printed(4, 2, whole(pairs, 2, {}, reached=0.45), capsys)


def test_a_log_alone_with_a_cause_is_evidence() -> None:
    ports = NicDirections(Cluster.uniform(servers=2, nics=2, rate="400Gb/s"))
    assert len(read_text(LINES[ACS], "lspci.txt", ports).causes) == 1
    log = texts.log().replace("/GDRDMA", "")
    assert [c.startswith(NO_DIRECT) for c in read_text(log, "n.log", ports).causes] == [True]


@pytest.mark.parametrize("servers", [5, 16, 300])
def test_counts_are_whole(servers: int, capsys: pytest.CaptureFixture[str]) -> None:
    seen = whole([range(servers)], 4, {1: 0.1})
    out = printed(servers, 4, seen, capsys)
    first = out.splitlines()[0]
    assert f"of {4 * servers} NICs" in first
    assert f"the {4 * servers - 1} others" in first
    assert "server" not in first
    (one,) = verdict_of(servers, 4, seen).findings
    assert len(one.twins) == 4 * servers - 1


def test_many_things_said_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Every third pair is slow, though all NICs are fast with others."""
    rng = random.Random(1)
    seen = []
    for a, b in combinations(range(10), 2):
        part = (0.9 if (a + b) % 3 else 0.3) * (1 + rng.gauss(0, 0.005))
        seen.append(Observation("sendrecv", f"{a}-{b}", {port(n, way): part for n in (a, b) for way in (OUT, IN)}))
    out = printed(10, 1, seen, capsys)
    paths = len(verdict_of(10, 1, seen).paths)
    assert paths > 12
    assert f"and {paths - 12} more slow measurements" in out


TREE = "server0:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"


def test_a_tree_on_two_servers_carries_the_buffer_once() -> None:
    """2 servers with 2 GPUs: 1 GiB over 2 NICs each way, where a ring passes 1.5 times as much."""

    def reached(log: str, nodes: str = "server1") -> float:
        text = texts.table("all_reduce", 40000, log=log).replace("server1", nodes)
        return max(read_text(text, "x.txt", texts.PORTS).observations[0].used.values())

    assert reached("") == pytest.approx(1.5 * reached(TREE))
    tuning = "server0:1:2 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo 0 proto 2 time 1.0\n"
    assert reached(tuning) == reached(TREE)
    assert reached(TREE.replace("Tree", "Ring")) == reached("")
    assert reached(TREE.replace("Tree", "^Tree")) == reached("")
    assert reached(TREE.replace("Tree", "Tree,Ring")) == reached("")


def test_more_than_nameplate_is_said_and_not_bent() -> None:
    """Eight AllReduces over pairs of servers at 1.7 times what a ring could: they are compared with each other."""
    pairs = [(a, (a + 1) % 8) for a in range(8)]
    seen = whole(pairs, 8, {}, kind="all_reduce", reached=1.7)
    verdict = verdict_of(8, 8, seen)
    assert verdict.outcome is Outcome.HEALTHY
    (kind,) = verdict.beyond
    assert kind.reached == pytest.approx(1.7, rel=0.05)
    assert "Tree" in kind.why
    assert next(s.part for s in verdict.standards) == pytest.approx(1.7, rel=0.03)
    slow = verdict_of(8, 8, whole(pairs, 8, {3: 0.4}, kind="all_reduce", reached=1.7))
    assert [server.server for server in slow.servers] == ["server3"]
    three = verdict_of(8, 8, whole([(0, 1, 2)], 8, {}, kind="all_reduce", reached=1.3))
    assert "rates are too low" in three.beyond[0].why


def test_metrics_have_the_server_and_what_all_reach() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate="400Gb/s")
    pairs = list(combinations(range(4), 2))
    text = metrics_text(diagnose(cluster, Evidence(whole(pairs, 2, {1: 0.4})))).decode()
    assert re.search(r'optcc_server_suspected_fraction\{server="server1",sure="certain"\} 0\.(39|40)', text)
    text = metrics_text(diagnose(cluster, Evidence(whole(pairs, 2, {}, reached=0.5)))).decode()
    assert 'optcc_slow_alike_ratio{kind="all_gather"} 0.' in text


def test_the_json_has_all_of_it() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate="400Gb/s")
    slow = whole(list(combinations(range(4), 2)), 2, {1: 0.4})
    value = diagnosis_json(diagnose(cluster, Evidence(slow, causes=("a cause",))))
    assert [(s["server"], s["sure"], s["nics"]) for s in value["servers"]] == [
        ("server1", "certain", ["server1/nic0", "server1/nic1"])
    ]
    assert value["causes"] == ["a cause"]
    alike = whole(list(combinations(range(4), 2)), 2, {}, reached=0.5)
    assert [a["kind"] for a in diagnosis_json(diagnose(cluster, Evidence(alike)))["slow_alike"]] == ["all_gather"]


NIC = "server1/nic1"


def run(servers: int, *strikes: Strike) -> FaultRun:
    plan = optcc.plan(Cluster.uniform(servers=servers, nics=2, rate=20_000_000), 1 << 20, segments=2)
    return survived(plan, strikes, repeat=1, local_rate=Fraction(10**12))


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


@pytest.mark.parametrize("option", ["--cut", "--hole", "--slow"])
def test_nics_over_tcp_are_not_harmed(option: str) -> None:
    told = ["run", "uniform:servers=3,nics=2,rate=160Mb/s", "--size", "1MiB", "--transport", "tcp"]
    result = CliRunner().invoke(main, [*told, option, f"server0/nic0@0.3{'=0.5' if option == '--slow' else ''}"])
    assert result.exit_code == 2
    assert f"{option[2:]}: not over tcp, expected pause or kill" in result.stderr


FLAP_S = 25.0
"""Longer than the hit collective and the probes after it, which took 12 s on a machine with ten times its work; less
than `RETURN_S`."""


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
def test_a_nic_that_is_not_back_is_not_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: at the next boundary the probes find it as dark as before."""
    monkeypatch.setattr(fault_run_module, "RETURN_S", 0.0)
    told = run(3, Strike("flap", NIC, 0.3, 300.0))
    assert told.lost == {NIC: 0}
    assert told.returned == ()
    assert told.back_plan is told.back is None
    assert told.exact
