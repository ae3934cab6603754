"""Each kind of evidence: what is read of it, what is refused, and that broken files give a message."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from optcc.diagnose.evidence import Evidence
from optcc.diagnose.loads import KINDS, RankPlace, Use, loads
from optcc.diagnose.ports import IN, OUT, NicDirections, port
from optcc.diagnose.readers import READERS, gather, read_text, watched
from optcc.diagnose.verdict import judge
from optcc.discover.nccl_log import parse_log, wanted_by
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server
from tests import diagnosis_texts as texts
from tests.effort import cases
from tests.mutations import mutated
from tests.test_discover_several import bonded

PORTS = NicDirections(Cluster.uniform(servers=2, nics=2, rate="400Gb/s"))
GIB = 1 << 30
US = 1e-6


def whole(part: float) -> dict[int, float]:
    """Every port of both servers at `part`."""
    return {number: pytest.approx(part, rel=1e-3) for number in range(8)}


@pytest.mark.parametrize(
    ("kind", "carried"),
    [  # bytes that cross each server's boundary for each byte of 4 ranks on 2 servers, over two NICs
        ("all_reduce", 1.5 / 2),
        ("all_gather", 0.75 / 2),
        ("reduce_scatter", 0.75 / 2),
        ("broadcast", 1 / 2),
        ("reduce", 1 / 2),
        ("alltoall", 2 * 0.5 / 2),
    ],
)
def test_a_row_of_nccl_tests(kind: str, carried: float) -> None:
    found = read_text(texts.table(kind, 40000), "x.txt", PORTS)
    first, second = found.observations
    assert first.kind == kind
    assert first.used == whole(carried * GIB / (40000 * US) / 50e9)
    assert second.time_s == pytest.approx(40400 * US)
    assert (first.where, first.nbytes, first.servers) == ("x.txt:14", GIB, ("server0", "server1"))
    assert found.read == (f"x.txt: {kind}, 4 ranks on 2 servers over 4 NICs, 2 measurements",)


def test_sendrecv_uses_the_nics_beside_the_gpus_at_the_boundary() -> None:
    found = read_text(texts.table("sendrecv", 40000), "x.txt", PORTS)
    # Rank 1 sends to rank 2, and rank 3 to rank 0.
    assert set(found.observations[0].used) == {port(1, OUT), port(2, IN), port(3, OUT), port(0, IN)}


@pytest.mark.parametrize(("kind", "way"), [("gather", IN), ("scatter", OUT)])
def test_gather_and_scatter_use_one_way_of_the_root(kind: str, way: int) -> None:
    found = read_text(texts.table(kind, 40000, root=0), "x.txt", PORTS)
    assert set(found.observations[0].used) == {port(0, way), port(1, way), port(2, 1 - way), port(3, 1 - way)}


def test_the_loads_of_every_kind_balance() -> None:
    members = [RankPlace(f"server{s}", g) for s in range(2) for g in range(2)]
    use = Use.equally({"server0": [0, 1], "server1": [2, 3]})
    for kind in KINDS:
        found = loads(kind, GIB, members, use, PORTS)
        sent, taken = (sum(b for p, b in found.items() if p % 2 == way) for way in (OUT, IN))
        assert sent == pytest.approx(taken), kind
        assert sent > 0


def test_a_job_of_one_server_says_nothing() -> None:
    text = texts.table("all_reduce", 40000).replace("server1", "server0")
    assert "uses no NIC" in read_text(text, "x.txt", PORTS).unused[0]


def test_channels_in_the_log_say_which_nics_carry_how_much() -> None:
    log = texts.log().replace("NET/IB/1/", "NET/IB/0/")
    found = read_text(texts.table("all_reduce", 40000, log=log), "x.txt", PORTS)
    assert set(found.observations[0].used) == {port(n, way) for n in (0, 2) for way in (OUT, IN)}
    assert found.observations[0].used[0] == pytest.approx(1.5 * GIB / (40000 * US) / 50e9)


@pytest.mark.parametrize(
    ("hca", "names"),
    [("nic1", [1, 10]), ("=nic1", [1]), ("^nic1", [0]), ("^=nic1", [0, 10]), ("=nic0:1,nic10", [0, 10])],
)
def test_nccl_ib_hca(hca: str, names: list[int]) -> None:
    assert list(wanted_by(hca, {0: "nic0", 1: "nic1", 10: "nic10"})) == names


def test_nccl_ib_hca_in_the_log_and_on_the_command_line() -> None:
    said = texts.table("all_reduce", 40000, log="server0:1:2 [0] NCCL INFO NCCL_IB_HCA set to =nic1\n")
    asked = "$ mpirun -x NCCL_IB_HCA==nic1 all_reduce_perf\n" + texts.table("all_reduce", 40000)
    for text in (said, asked):
        found = read_text(text, "x.txt", PORTS)
        assert {p // 2 for p in found.observations[0].used} == {1, 3}


def test_several_tests_in_one_file() -> None:
    both = texts.table("all_reduce", 40000) + texts.table("alltoall", 50000)
    assert [o.kind for o in read_text(both, "x.txt", PORTS).observations] == ["all_reduce"] * 2 + ["alltoall"] * 2


def test_a_collective_that_is_not_named() -> None:
    text = texts.table("all_reduce", 40000).replace("# Collective test starting: all_reduce_perf\n", "")
    nameless = read_text(text, "x.txt", PORTS)
    assert not nameless.observations
    assert "does not say its collective" in nameless.unused[0]
    assert read_text(text, "all_gather-1.txt", PORTS).observations[0].kind == "all_gather"
    busbw = text.replace(f"{GIB / 40000 / 1e3:7.2f} {GIB / 40000 / 1e3:7.2f}", f"{26.84:7.2f} {40.26:7.2f}")
    assert read_text(busbw.replace("    1.00    1.00      0", ""), "x.txt", PORTS).observations[0].kind == "all_reduce"


def test_old_tables_without_redop() -> None:
    text = texts.table("all_gather", 40000).replace("   redop", "").replace("     sum", "")
    text = text.replace("    root ", "").replace("      -1 ", " ")
    assert read_text(text, "x.txt", PORTS).observations[0].time_s == pytest.approx(40000 * US)


def test_small_sizes_and_wrong_results() -> None:
    small = read_text(texts.table("all_reduce", 100, nbytes=1 << 20), "x.txt", PORTS)
    assert not small.observations
    assert "measure with -b 256M" in small.unused[0]
    (sign,) = read_text(texts.table("all_reduce", 40000, wrong=3), "x.txt", PORTS).signs
    assert (sign.what, sign.grave) == ("all_reduce gave 3 wrong results", True)


def test_json_of_nccl_tests() -> None:
    found = read_text(texts.json_table(40000), "x.json", PORTS)
    assert [o.kind for o in found.observations] == ["all_reduce"] * 2
    assert found.observations[0].used == whole(0.75 * GIB / (40000 * US) / 50e9)


def test_a_host_that_the_topology_does_not_have() -> None:
    text = texts.table("all_reduce", 40000).replace("server1", "elsewhere")
    with pytest.raises(InputError, match=r"x.txt:1: a host that the topology does not have, .*'elsewhere'.*--hosts"):
        read_text(text, "x.txt", PORTS)
    qualified = texts.table("all_reduce", 40000).replace("server1", "server1.example.net")
    assert read_text(qualified, "x.txt", PORTS).observations[0].servers == ("server0", "server1")


@pytest.mark.parametrize("line", [texts.ERROR_12, texts.OLD_ERROR_12])
def test_error_12_is_between_two_nics_of_a_rail(line: str) -> None:
    found = read_text(texts.log(line), "job.log", PORTS)
    (seen,) = found.observations
    assert seen.failed
    assert set(seen.used) == {port(n, way) for n in (1, 3) for way in (OUT, IN)}
    assert "transport retries exceeded" in found.signs[0].what
    verdict = judge(found, PORTS)
    assert {verdict.findings[0].nic, *verdict.findings[0].twins} == {"server0/nic1", "server1/nic1"}


def test_events_in_the_log() -> None:
    found = read_text(texts.log(texts.PORT_ERROR, texts.SLOWER), "job.log", PORTS)
    assert [(s.nic, s.what, s.grave) for s in found.signs] == [
        (2, "event: port error(10)", True),
        (3, "event: speed changed from 400 to 100 Gb/s", False),
    ]
    verdict = judge(found, PORTS)
    assert [(f.nic, f.left) for f in verdict.findings] == [("server1/nic1", pytest.approx(0.25))]


def test_flushed_requests_name_nobody() -> None:
    flushed = texts.ERROR_12.replace("RETRY_EXC_ERR(12)", "WR_FLUSH_ERR(5)")
    assert not read_text(texts.log(flushed), "job.log", PORTS).observations


def test_a_log_of_other_hosts_is_said() -> None:
    found = read_text(texts.log(texts.ERROR_12).replace("server0", "elsewhere"), "job.log", PORTS)
    assert not found.observations
    assert "elsewhere" in found.unused[0]


def test_a_test_that_failed() -> None:
    rows = "server0: Test timeout (300s) common.cu:523\n"
    text = texts.TABLE.format(kind="sendrecv", log="", rows=rows)
    (seen,) = read_text(text, "x.txt", PORTS).observations
    assert seen.failed
    silent = read_text(texts.TABLE.format(kind="sendrecv", log="", rows=""), "x.txt", PORTS)
    assert "without an error" in silent.unused[0]


def test_inspector_takes_the_rank_that_came_last(tmp_path: Path) -> None:
    for rank in range(4):
        times = {1: 40000 + 1000 * rank, 2: 50000 - 1000 * rank}
        (tmp_path / f"{rank}.log").write_text(texts.inspector(rank, times))
    sources = [str(tmp_path / f"{rank}.log") for rank in range(4)]
    found = gather(sources, PORTS)
    assert [o.time_s for o in found.observations] == [pytest.approx(40000 * US), pytest.approx(47000 * US)]
    assert found.observations[0].used == whole(0.75 * GIB / (40000 * US) / 50e9)
    some = gather(sources[:2], PORTS)
    assert not some.observations
    assert "records of 1 of its 2 servers" in some.unused[0]


def test_inspector_without_gpus_is_not_placed(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"{rank}.log").write_text(texts.inspector(rank, {1: 40000}, ranks=2))
    found = gather([str(tmp_path / f"{rank}.log") for rank in range(2)], PORTS)
    assert "which GPU is whose" in found.unused[0]


def test_ras() -> None:
    found = read_text(texts.RAS, "ras.txt", PORTS)
    assert [(s.server, s.what, s.grave) for s in found.signs] == [
        ("server1", "a process is dead for RAS", True),
        ("server0", "a rank is behind the others in collectives", False),
    ]
    assert "192.0.2.9" in found.unused[0]
    assert [s.server for s in read_text(texts.RAS_JSON, "ras.json", PORTS).signs] == ["server1", "server0"]


def test_calibration() -> None:
    found = read_text(texts.calibration(0.5), "cal.yaml", PORTS)
    assert len(found.observations) == 8
    assert found.observations[0].used == {0: pytest.approx(0.98)}
    (slow,) = judge(found, PORTS).findings
    assert (slow.nic, slow.out, slow.into) == ("server1/nic1", pytest.approx(0.5, rel=0.01), None)


RATE = Fraction(50 * 10**9)
RATES = dict.fromkeys(("nic0", "nic1"), "400 Gb/sec (4X NDR)")


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


FUSED = NicDirections(
    Cluster((*(Server(f"server{s}", (Nic("nic0+nic1", RATE, RATE), Nic("nic2", RATE, RATE))) for s in range(2)),))
)


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


def test_a_speed_that_came_back_is_no_fault() -> None:
    back = texts.SLOWER.replace("400000 -> 100000", "100000 -> 400000")
    assert judge(read_text(texts.log(texts.SLOWER), "x", PORTS), PORTS).findings
    assert not judge(read_text(texts.log(texts.SLOWER, back), "x", PORTS), PORTS).findings


def test_channels_over_a_fused_nic_load_its_ports() -> None:
    """Where the topology has the ports apart, and where it has them as one."""
    made = "server{}:100:200 [0] NCCL INFO NET/IB : Made virtual device [{}] name=nic0+nic1 speed=800000 ndevs=2"
    fused = [made.format(server, number) for server in range(2) for number in range(2)]
    text = texts.table("all_reduce", 40000, log=texts.log(*fused))
    apart = read_text(text, "x", PORTS).observations[0]
    assert len(set(map(round, (1e6 * part for part in apart.used.values())))) == 1
    assert len(apart.used) == 8
    assert read_text(text, "x", FUSED).observations[0].used.keys() == {
        port(0, OUT),
        port(0, IN),
        port(2, OUT),
        port(2, IN),
    }


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


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (["{tmp}/nothing.txt"], "cannot be read"),
        (["{tmp}/poem.txt"], "no evidence that is known"),
        (["{tmp}"], "whose sysfs"),
        (["server1={tmp}"], "cannot be read as sysfs"),
        (["server1={tmp}/sys"] * 3, "too many copies"),
    ],
)
def test_what_is_no_evidence_is_refused(sources: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("shall I compare thee\n")
    texts.sysfs(tmp_path / "sys", RATES)
    if sources[0].endswith("{tmp}"):
        tmp_path = tmp_path / "empty"
        tmp_path.mkdir()
    with pytest.raises(InputError, match=says):
        gather([source.format(tmp=tmp_path) for source in sources], PORTS)


# Broken files

SAMPLES = {
    "table": texts.table("all_reduce", 40000, log=texts.log(texts.ERROR_12)),
    "json": texts.json_table(40000),
    "log": texts.log(texts.ERROR_12, texts.OLD_ERROR_12, texts.PORT_ERROR, texts.SLOWER),
    "ras": texts.RAS,
    "ras-json": texts.RAS_JSON,
    "calibration": texts.calibration(0.5),
}


def survives(read: Callable[[], Evidence]) -> None:
    """Evidence that can be judged, or a message."""
    try:
        found = read()
    except InputError as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 2000
    if message:
        return
    assert all(len(line) < 2000 for line in (*found.read, *found.unused))
    for seen in found.observations:
        assert all(0 <= number < 8 and 0 < part < 1e30 for number, part in seen.used.items())
    judge(found, PORTS)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.cases
def test_broken_files_are_read_or_refused(name: str) -> None:
    for seed in range(cases(1700)):
        text = mutated(SAMPLES[name], random.Random(seed))
        survives(lambda text=text: read_text(text, "x", PORTS))  # type: ignore[misc]


@pytest.mark.cases
def test_broken_inspector_files_are_read_or_refused(tmp_path: Path) -> None:
    whole = "".join(texts.inspector(rank, {1: 40000, 2: 41000}) for rank in range(4))
    path = tmp_path / "x.log"
    for seed in range(cases(1000)):
        path.write_text(mutated(whole, random.Random(seed)))
        survives(lambda: gather([str(path)], PORTS))


@pytest.mark.cases
def test_broken_sysfs_is_read_or_refused(tmp_path: Path) -> None:
    tree = texts.sysfs(tmp_path / "s", RATES, counters={"nic0": {"port_xmit_data": 1000, "link_downed": 3}})
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    for seed in range(cases(500)):
        rng = random.Random(seed)
        path = rng.choice(files)
        was = path.read_bytes()
        path.write_bytes(mutated(was.decode(), rng).encode())
        survives(lambda: gather([f"server0={tree}"], PORTS))
        path.write_bytes(was)


def test_the_mutations_can_find_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(text: str, source: str, ports: NicDirections) -> Evidence:
        return Evidence(read=(text.splitlines()[40],))

    monkeypatch.setattr("optcc.diagnose.readers.READERS", [READERS[0].__class__("x", lambda text: True, fragile)])
    with pytest.raises(IndexError):
        test_broken_files_are_read_or_refused("ras")


def test_every_sample_is_read_whole() -> None:
    for name, text in SAMPLES.items():
        found = read_text(text, name, PORTS)
        assert found.observations or found.signs, name
    assert parse_log(SAMPLES["log"]).failures
