"""Evidence of sysfs: links, slots, ports of fused NICs, and counters between two readings."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcc.diagnose.evidence import OUT, NicDirections, port
from optcc.diagnose.readers import gather, read_text, watched
from optcc.diagnose.verdict import judge
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server
from tests import diagnosis_texts as texts
from tests.diagnosis_texts import FUSED, PORTS, RATE, RATES
from tests.test_discover_several import bonded


def test_links(tmp_path: Path) -> None:
    slots = {"nic1": ("5.0 GT/s PCIe", "32.0 GT/s PCIe")}
    tree = texts.sysfs(tmp_path / "sys", {**RATES, "other": "25 Gb/sec"}, {"nic0": "1: DOWN"}, slots)
    verdict = judge(gather([f"server1={tree}"], PORTS), PORTS)
    assert {f.nic: round(f.left, 2) for f in verdict.findings} == {"server1/nic0": 0.0, "server1/nic1": 0.16}
    assert verdict.findings[0].signs[0].what == "the port is DOWN"
    assert "5.0 GT/s x16, where 32.0 GT/s x16 is possible" in verdict.findings[1].signs[0].what
    slower = texts.sysfs(tmp_path / "s2", {"nic0": "100 Gb/sec (4X EDR)", "nic1": "400 Gb/sec"})
    (found,) = judge(gather([f"server1={slower}"], PORTS), PORTS).findings
    assert (found.nic, found.left, found.sure) == ("server1/nic0", 0.25, "certain")
    well = texts.sysfs(tmp_path / "s3", RATES)
    assert not judge(gather([f"server0={well}"], PORTS), PORTS).findings


def test_a_port_of_a_fused_nic_is_a_part_of_it(tmp_path: Path) -> None:
    """Down, slower, or not there at all; counted bytes add up."""
    half = "200 Gb/sec (4X HDR)"
    for name, ports, states in (
        ("down", {"nic0": half, "nic1": half, "nic2": "400 Gb/sec"}, {"nic1": "1: DOWN"}),
        ("gone", {"nic0": half, "nic2": "400 Gb/sec"}, {}),
    ):
        tree = texts.sysfs(tmp_path / name, ports, states)
        (found,) = judge(gather([f"server0={tree}"], FUSED), FUSED).findings
        assert (found.nic, found.left, found.sure) == ("server0/nic0+nic1", 0.5, "certain"), name
    slower = texts.sysfs(tmp_path / "slow", {"nic0": half, "nic1": "100 Gb/sec", "nic2": "400 Gb/sec"})
    assert [f.left for f in judge(gather([f"server0={slower}"], FUSED), FUSED).findings] == [0.75]
    log = texts.SLOWER.replace("400000 -> 100000", "200000 -> 100000")  # nic1 of server1
    (found,) = judge(read_text(log, "x", FUSED), FUSED).findings
    assert (found.nic, found.left) == ("server1/nic0+nic1", 0.75)
    words = 25 * 10**9 // 8  # a quarter of 400 Gb/s
    counters = {name: {"port_xmit_data": words} for name in ("nic0", "nic1")}
    after = texts.sysfs(tmp_path / "b", {"nic0": half, "nic1": half, "nic2": "400 Gb/sec"}, counters=counters)
    zero = {name: {"port_xmit_data": 0} for name in counters}
    before = texts.sysfs(tmp_path / "z", {"nic0": half, "nic1": half}, counters=zero)
    seen = gather([f"server0={before}", f"server0={after}"], FUSED, 1.0).observations
    assert [dict(o.used) for o in seen] == [{port(0, OUT): pytest.approx(0.5)}]


def test_a_bond_without_one_of_its_ports(tmp_path: Path) -> None:
    tree = bonded(tmp_path / "s", {"e0": "200000", "e1": "-1"})
    ports = NicDirections(
        Cluster((Server("a", (Nic("mlx5_bond_0", RATE, RATE),)), Server("b", (Nic("n", RATE, RATE),))))
    )
    (found,) = judge(gather([f"a={tree}"], ports), ports).findings
    assert (found.nic, found.left) == ("a/mlx5_bond_0", 0.5)
    assert found.signs[0].what == "2 ports of bond0 run at 200Gb/s together, e1 without a link"


def test_counters_between_two_readings(tmp_path: Path) -> None:
    words = 25 * 10**9 // 4  # half of 400 Gb/s for a second
    before = texts.sysfs(tmp_path / "a", RATES, counters={"nic0": {"port_xmit_data": 1000, "link_downed": 3}})
    after = texts.sysfs(
        tmp_path / "b",
        RATES,
        counters={"nic0": {"port_xmit_data": 1000 + 10 * words, "link_downed": 5, "symbol_error": 0}},
    )
    found = gather([f"server1={before}", f"server1={after}"], PORTS, interval_s=10)
    (seen,) = (o for o in found.observations if o.kind == "counters")
    assert (seen.used, seen.least) == ({port(2, OUT): pytest.approx(0.5)}, True)
    (sign,) = found.signs
    assert (sign.nic, sign.what, sign.grave) == (2, "link_downed 2 in between (the link went down)", True)
    once = gather([f"server1={after}"], PORTS)
    assert [(s.what, s.grave) for s in once.signs] == [
        ("link_downed 5 since the driver was loaded (the link went down)", False)
    ]


def test_watching_reads_twice(tmp_path: Path) -> None:
    tree = texts.sysfs(tmp_path / "a", RATES, counters={"nic1": {"symbol_error": 1}})
    counter = tree / "class/infiniband/nic1/ports/1/counters/symbol_error"

    def wait(seconds: float) -> None:
        counter.write_text(f"{1 + int(seconds)}\n")

    found = watched([f"server0={tree}"], PORTS, 4, wait)
    assert [s.what.split()[:2] for s in found.signs] == [["symbol_error", "4"]]
    with pytest.raises(InputError, match="nothing to watch"):
        watched([], PORTS, 4, wait)
