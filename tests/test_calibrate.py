"""Measured rates: which are measured, what is concluded from them, what the file keeps, and that plans go by it."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

import optcc
from optcc.cli import main
from optcc.discover import load_topology
from optcc.discover.calibration import MeasuredPair, calibrated, classes_of, measured_as, nic_rates, tolerance_of
from optcc.discover.yaml_file import write_yaml
from optcc.errors import InputError
from optcc.runtime.measuring.calibrate import MOST_BYTES, burst, chain, measure, rounds_of
from optcc.schedule import Port
from optcc.schedule.routes import ports_of
from optcc.values.cluster import Cluster, Fabric

GBPS = Fraction(125_000_000)
SIZE = 2**20


def uniform(servers: int, nics: int) -> Cluster:
    return Cluster.uniform(servers=servers, nics=nics, rate=400 * GBPS)


def shown(cluster: Cluster, noise: float = 0.0, seed: int = 0, alone: float = 1.0) -> list[MeasuredPair]:
    """What `rounds_of` would measure on a cluster with these rates: the slower end, times normal noise."""
    rate = random.Random(seed)
    pairs: dict[tuple[str, str, bool], list[float | None]] = {}
    for together, one in rounds_of(ports_of(cluster)):
        for out, into in one.pairs:
            both = min(out.out_rate, into.in_rate) * (1.0 if together else alone)
            pairs[out.name, into.name, together] = [both * rate.gauss(1, noise) for _ in range(5)]
    return [MeasuredPair(*key, tuple(rates)) for key, rates in pairs.items()]


def as_measured(cluster: Cluster, pairs: list[MeasuredPair]) -> Cluster:
    nics = nic_rates(cluster, pairs)
    return calibrated(cluster, nics, tolerance_of(nics))


# What is measured


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (8, 8), (4, 4, 4), (8, 7, 8, 8), (3, 1, 2), (2, 5), (1, 2, 4)])
@pytest.mark.parametrize("rails", [False, True])
def test_every_nic_is_measured_both_ways_and_never_twice_at_once(counts: tuple[int, ...], rails: bool) -> None:
    preset = ",fabric=rails" if rails else ""
    cluster = load_topology(f"uniform:servers={len(counts)},nics={max(counts)},rate=1Gb/s{preset}").cluster
    ports = [p for p in ports_of(cluster) if int(p.name.rpartition("nic")[2]) < counts[p.rank]]
    seen = Counter[tuple[bool, str, str]]()
    for together, one in rounds_of(ports):
        outs, intos = [o.name for o, _ in one.pairs], [i.name for _, i in one.pairs]
        assert len(set(outs)) == len(outs)
        assert len(set(intos)) == len(intos)
        assert all(o.rank != i.rank and (not rails or o.rail == i.rail) for o, i in one.pairs)
        seen.update((together, "out", name) for name in outs)
        seen.update((together, "in", name) for name in intos)
    reached = {p.name for p in ports if not rails or sum(p.rail == q.rail for q in ports) > 1}
    if not rails:
        assert {name for together, _, name in seen if together} == {p.name for p in ports}
    for way in ("out", "in"):
        assert {name for together, w, name in seen if together and w == way} <= reached


def test_two_peers_each_way_tell_a_nic_from_its_peer() -> None:
    """With three ranks every NIC meets two ranks each way; with two, two NICs of the other."""
    for cluster in (uniform(3, 2), uniform(5, 1), uniform(2, 2)):
        peers: dict[tuple[str, str], set[str]] = {}
        for together, one in rounds_of(ports_of(cluster)):
            for out, into in one.pairs if together else ():
                peers.setdefault((out.name, "out"), set()).add(into.name)
                peers.setdefault((into.name, "in"), set()).add(out.name)
        assert all(len(names) == 2 for names in peers.values())


def test_probes_of_fast_nics_stay_small() -> None:
    for _, one in rounds_of(ports_of(Cluster.uniform(servers=2, nics=2, rate=10**12)), probe_s=10.0):
        assert max(one.schedule.length) <= MOST_BYTES


def test_a_chain_waits_and_a_burst_does_not() -> None:
    ports = ports_of(uniform(2, 1))
    hops = chain(ports, (ports[0], ports[1]), 4)
    assert [(int(s), int(d)) for s, d in zip(hops.src, hops.dst, strict=True)] == [(0, 1), (1, 0), (0, 1), (1, 0)]
    assert [list(hops.dep_idx[a:b]) for a, b in itertools.pairwise(hops.dep_ptr)] == [[], [0], [1], [2]]
    assert not len(burst(ports, (ports[0], ports[1]), 4).dep_idx)


def test_nobody_to_measure_against() -> None:
    with pytest.raises(InputError, match="nobody"):
        measure(ports_of(uniform(1, 4)))
    with pytest.raises(InputError, match="nobody"):
        measure(on_rails([{0}, {1}]))


def on_rails(rails: Sequence[Iterable[int]]) -> list[Port]:
    """Live NICs of servers of 8, of which each has these rails left."""
    whole = ports_of(Cluster(uniform(len(rails), 8).servers, fabric=Fabric(rails=True)))
    return [port for port in whole if port.rail in set(rails[port.rank])]


@given(st.lists(st.frozensets(st.integers(0, 7)), min_size=1, max_size=7))
@example([frozenset(range(8)) - {3}, frozenset(range(8)) - {5}])
@example([frozenset(range(8)) - dead for dead in ({3}, set(), {5}, {5})])
def test_whoever_is_left_on_a_rail_is_measured(rails: list[frozenset[int]]) -> None:
    """Dead NICs shift the places of those behind them; rails stay."""
    ports = on_rails(rails)
    on = Counter(port.rail for port in ports)
    reached = {port.name for port in ports if on[port.rail] > 1}
    seen: dict[tuple[bool, str], set[str]] = {}
    for together, one in rounds_of(ports):
        assert one.pairs
        assert all(out.rail == into.rail and out.rank != into.rank for out, into in one.pairs)
        for way, ends in zip(("out", "into"), zip(*one.pairs, strict=True), strict=True):
            assert len({end.name for end in ends}) == len(ends)
            assert together or len({end.rank for end in ends}) == len(ends)
            seen.setdefault((together, way), set()).update(end.name for end in ends)
    several = max(Counter(port.rank for port in ports).values(), default=0) > 1
    for together in (True, False) if several else (True,):
        for way in ("out", "into"):
            assert seen.get((together, way), set()) == reached


# What is concluded


@pytest.mark.parametrize("servers", [2, 3, 8])
@pytest.mark.parametrize("noise", [0.0, 0.002, 0.01])
def test_a_slow_nic_is_found_within_two_percent_and_alone(servers: int, noise: float) -> None:
    """37 % slow, found as if it had been said with --fail; the others count as one, whatever the noise."""
    truth = uniform(servers, 4).degrade("server1/nic2", Fraction(63, 100))
    found = as_measured(uniform(servers, 4), shown(truth, noise))
    rates = {f"{s.name}/{n.name}": n for s in found.servers for n in s.nics}
    slow = rates.pop("server1/nic2")
    assert float(slow.out_rate / (252 * GBPS)) == pytest.approx(1, abs=0.02)
    assert float(slow.in_rate / (252 * GBPS)) == pytest.approx(1, abs=0.02)
    assert len({(n.out_rate, n.in_rate) for n in rates.values()}) == 1, "noise has made NICs differ"
    assert float(rates["server0/nic0"].out_rate / (400 * GBPS)) == pytest.approx(1, abs=0.02)


def test_without_classes_noise_makes_every_nic_differ() -> None:
    """The control of the test above: what the classes are for."""
    cluster = uniform(8, 4)
    nics = nic_rates(cluster, shown(cluster, 0.01))
    apart = calibrated(cluster, nics, 0.0)
    assert len({n.out_rate for s in apart.servers for n in s.nics}) > 5  # 33 rates, to three digits
    together = calibrated(cluster, nics, tolerance_of(nics))
    assert len({n.out_rate for s in together.servers for n in s.nics}) == 1


def test_a_nic_that_is_slow_one_way_is_so_in_the_file() -> None:
    cluster = uniform(3, 2)
    slow = cluster.servers[0].nics[1]
    truth = cluster.with_nic(0, 1, type(slow)(slow.name, slow.out_rate / 2, slow.in_rate, slow.rail, slow.gpu))
    assert as_measured(cluster, shown(truth)) == truth


def test_a_lost_nic_is_dead() -> None:
    cluster = uniform(3, 2)
    lost = [
        MeasuredPair(p.out, p.into, p.together, (None,) * 5) if "server2/nic0" in (p.out, p.into) else p
        for p in shown(cluster)
    ]
    found = as_measured(cluster, lost)
    assert [n.alive for n in found.servers[2].nics] == [False, True]
    assert sum(n.alive for s in found.servers for n in s.nics) == 5


def test_what_was_not_measured_keeps_its_rate() -> None:
    cluster = uniform(3, 2)
    seen = [p for p in shown(cluster) if "server0/nic1" not in (p.out, p.into)]
    assert as_measured(cluster, seen) == cluster
    assert len(nic_rates(cluster, seen)) == 5
    with pytest.raises(InputError, match="both ways"):
        nic_rates(cluster, [p for p in shown(cluster) if p.out != "server0/nic1"])


def test_two_lone_nics_cannot_be_told_apart_and_it_is_said() -> None:
    truth = uniform(2, 1).degrade("server1/nic0", Fraction(1, 2))
    nics = nic_rates(uniform(2, 1), shown(truth))
    assert all(nic.held_back == ("out", "in") for nic in nics)
    told = nic_rates(uniform(3, 1), shown(uniform(3, 1).degrade("server1/nic0", Fraction(1, 2))))
    assert not any(nic.held_back for nic in told)


def test_faster_alone_is_seen_on_the_same_pair() -> None:
    nics = nic_rates(uniform(3, 2), shown(uniform(3, 2).degrade("server0/nic0", Fraction(1, 2)), alone=1.7))
    assert all(nic.gain == pytest.approx(1.7) for nic in nics)


@pytest.mark.parametrize(
    ("rates", "tolerance", "counts"),
    [
        ([100.0, 99.0, 98.5, 63.0], 0.02, [99, 99, 99, 63]),
        ([100.0, 97.5, 95.0, 92.5], 0.03, [98.75, 98.75, 93.75, 93.75]),  # a class does not creep along a chain
        ([0.0, 0.0, 5.0], 0.02, [0, 0, 5]),
        ([], 0.02, []),
    ],
)
def test_classes(rates: list[float], tolerance: float, counts: list[float]) -> None:
    found = classes_of(rates, tolerance)
    assert [float(found[rate]) for rate in rates] == pytest.approx(counts)


def test_the_median_and_the_middle_half_ignore_an_outlier() -> None:
    pair = MeasuredPair("a/b", "c/d", True, (100.0, 101.0, 5.0, 99.0, 100.0))
    assert pair.rate == 100.0
    assert pair.spread == pytest.approx(0.01)
    assert MeasuredPair("a/b", "c/d", True, (None, None, 1.0)).rate == 0


# What is kept, and that plans go by it


def saved(truth: Cluster, path: Path, noise: float = 0.004) -> str:
    cluster = uniform(len(truth.servers), len(truth.servers[0].nics))
    nics = nic_rates(cluster, shown(truth, noise))
    measured = measured_as(
        nics,
        date="2026-11-20",
        transport="verbs",
        path="python",
        alpha_s=3.1e-6,
        per_chunk_s=4e-7,
        before={"server0/nic0": 500 * GBPS},
    )
    text = write_yaml(calibrated(cluster, nics, tolerance_of(nics)), measured=measured)
    path.write_text(text)
    return str(path)


def test_the_file_keeps_what_was_measured(tmp_path: Path) -> None:
    found = load_topology(saved(uniform(3, 2), tmp_path / "c.yaml"))
    assert found.measured is not None
    assert (found.measured.date, found.measured.transport) == ("2026-11-20", "verbs")
    assert (found.measured.alpha_s, found.measured.per_chunk_s) == (Fraction(31, 10**7), Fraction(4, 10**7))
    assert found.measured.nameplate["server0/nic0"] == 500 * GBPS, "an earlier calibration's nameplate stays"
    assert found.measured.nameplate["server2/nic1"] == 400 * GBPS
    assert "rates measured 2026-11-20 (verbs), nameplate 500Gb/s, 400Gb/s" in found.read[-1]


def test_a_slow_nic_changes_the_plan_and_a_whole_one_does_not(tmp_path: Path) -> None:
    """The file's plan is the plan of the cluster with that failure; without one, of the cluster without."""
    healthy, hurt = uniform(4, 2), uniform(4, 2).degrade("server2/nic1", Fraction(63, 100))
    slow = load_topology(saved(hurt, tmp_path / "slow.yaml", noise=0)).cluster
    whole = load_topology(saved(healthy, tmp_path / "whole.yaml", noise=0.004)).cluster
    plans = {
        name: optcc.plan(cluster, SIZE)
        for name, cluster in (("healthy", healthy), ("hurt", hurt), ("slow", slow), ("whole", whole))
    }
    recipes = {name: plan.recipe for name, plan in plans.items()}
    assert recipes["slow"] == recipes["hurt"] != recipes["healthy"] == recipes["whole"]
    assert plans["slow"].bound.overhead > 0
    assert plans["slow"].bound.seconds == pytest.approx(plans["hurt"].bound.seconds, rel=0.02)
    assert plans["whole"].bound.overhead == 0


def test_the_costs_of_a_plan_are_those_measured_unless_said(tmp_path: Path) -> None:
    path = saved(uniform(3, 2), tmp_path / "c.yaml")
    with_measured = CliRunner().invoke(main, ["plan", path, "--size", "1MiB"])
    assert "--alpha 3.1 us as measured" in with_measured.stderr
    assert "rates measured 2026-11-20" in with_measured.stderr
    without = CliRunner().invoke(main, ["plan", path, "--size", "1MiB", "--alpha", "0us", "--per-chunk", "0us"])
    assert "as measured" not in without.stderr
    assert with_measured.exit_code == without.exit_code == 0


def test_a_local_calibration_end_to_end(tmp_path: Path) -> None:
    """Real processes and transfers over emulated NICs, of which one is slow: found within 2 %, and planned for. What
    others' work on the machine has spoilt is measured again."""
    path = tmp_path / "c.yaml"
    picture = tmp_path / "c.svg"
    options = ["--repeat", "3", "--probe", "20ms", "-o", str(path), "--picture", str(picture), "--json"]
    preset = "uniform:servers=3,nics=2,rate=400Gb/s"
    expected = pytest.approx([252, 252, 400, 400], rel=0.02)
    for _ in range(4):
        done = CliRunner().invoke(main, ["calibrate", preset, "--slow", "server1/nic0=0.63", *options])
        assert done.exit_code == 0, done.output
        result = json.loads(done.stdout)
        nics = {nic["nic"]: nic for nic in result["nics"]}
        kept = [
            nics[name][f"kept_{way}_bytes_per_s"] * 8e-9
            for name in ("server1/nic0", "server0/nic0")
            for way in ("out", "in")
        ]
        if kept == expected:
            break
    assert kept == expected
    assert result["emulated"]
    assert result["alpha_s"] >= 0
    found = load_topology(str(path)).cluster
    assert sum(n.out_rate < 300 * GBPS for s in found.servers for n in s.nics) == 1
    assert found.pristine is not None
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize("option", ["-o", "--picture"])
def test_a_bad_place_costs_no_measurements(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optcc.runtime.measuring.calibrate.measure", lambda *_, **__: pytest.fail("measured"))
    path = tmp_path / "none" / "c.svg"
    done = CliRunner().invoke(main, ["calibrate", "uniform:servers=2,rate=1Gb/s", option, str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{path}: cannot be written, expected a folder that exists, got" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["uniform:servers=1,rate=1Gb/s"], "nobody to measure against"),
        (["uniform:servers=2,rate=1Gb/s", "--slow", "server9/nic0=0.5"], "no such server"),
        (["uniform:servers=2,rate=1Gb/s", "--slow", "server0/nic0=0"], "a dead NIC is not slow"),
        (["uniform:servers=2,rate=1Gb/s", "--slow", "server0/nic0=0.5", "--transport", "verbs"], "--transport local"),
        (["uniform:servers=2,rate=1Gb/s", "--probe", "1us"], "1ms to 10s"),
        (["uniform:servers=2,rate=1Gb/s", "--picture", "x.doc"], "not a picture"),
        (["uniform:servers=2,rate=1Gb/s", "--local-rate", "0Gb/s"], "a rate of nothing"),
    ],
)
def test_bad_input_is_told(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["calibrate", *arguments])
    assert (done.exit_code, says in done.stderr) == (2, True), done.output
