"""The NICs that explain measurements: named exactly, at their rates, and no surer than the evidence allows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import permutations

import pytest

from optcc.diagnose import fit as doubts
from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, Observation, Sign, port
from optcc.diagnose.fit import Sure, averages, problem
from optcc.diagnose.readers import read_text
from optcc.diagnose.verdict import Outcome, Verdict, judge
from optcc.values.cluster import Cluster
from tests.diagnosis_rig import Lab, random_faults
from tests.effort import cases


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


@pytest.mark.cases
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


@pytest.mark.cases
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
