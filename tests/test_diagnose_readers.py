"""Evidence of NCCL's log and RAS, and of calibrations; and what is no evidence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, port
from optcc.diagnose.late import ENOUGH, late_ranks
from optcc.diagnose.loads import KINDS, RankPlace, Use, loads
from optcc.diagnose.ras import read_ras
from optcc.diagnose.readers import gather, read_text, watched
from optcc.diagnose.verdict import Outcome, judge
from optcc.discover.nccl_log import parse_log, wanted_by
from optcc.discover.pasted import cleaned, json_values
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server
from tests import diagnosis_texts, tool_texts
from tests import diagnosis_texts as texts
from tests import tool_texts as tools
from tests.diagnosis_texts import FUSED, PORTS, RATE, RATES
from tests.sysfs_trees import bonded
from tests.test_discover_texts import before


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


def test_a_speed_that_came_back_is_no_fault() -> None:
    back = texts.SLOWER.replace("400000 -> 100000", "100000 -> 400000")
    assert judge(read_text(texts.log(texts.SLOWER), "x", PORTS), PORTS).findings
    assert not judge(read_text(texts.log(texts.SLOWER, back), "x", PORTS), PORTS).findings


def test_ras() -> None:
    found = read_text(texts.RAS, "ras.txt", PORTS)
    assert [(s.server, s.what, s.grave) for s in found.signs] == [
        ("server1", "a process is dead for RAS", True),
        ("server0", "rank 0 is behind: it has launched 6649 of collectives, 3 ranks at 6650", False),
    ]
    assert "192.0.2.9" in found.unused[0]
    assert [s.server for s in read_text(texts.RAS_JSON, "ras.json", PORTS).signs] == ["server1", "server0"]


def test_calibration() -> None:
    found = read_text(texts.calibration(0.5), "cal.yaml", PORTS)
    assert len(found.observations) == 8
    assert found.observations[0].used == {0: pytest.approx(0.98)}
    (slow,) = judge(found, PORTS).findings
    assert (slow.nic, slow.out, slow.into) == ("server1/nic1", pytest.approx(0.5, rel=0.01), None)


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


def test_sizes_with_units_are_those_of_nccl_tests() -> None:
    plain = read_text(texts.table("all_reduce", 40000), "t", PORTS).observations
    table = texts.table("all_reduce", 40000).replace(f"{1 << 30:12d} {1 << 28:13d}", f"{'1G':>12} {'256M':>13}")
    assert read_text(table, "t", PORTS).observations == plain


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


FOUR = NicDirections(Cluster.uniform(servers=4, nics=2, rate="400Gb/s"))
WHO = "server1:100:250 [0] transport/net_ib.cc:1295 NCCL WARN "


def start(servers: int = 4) -> str:
    using = "NET/IB : Using [0]nic0:1/RoCE [1]nic1:1/RoCE [RO]; OOB eth0:192.0.2."
    return "".join(f"server{i}:100:200 [0] NCCL INFO {using}{i}<0>\n" for i in range(servers))


def ends(*nics: int) -> set[int]:
    return {port(nic, way) for nic in nics for way in (OUT, IN)}


GIDS = "localGid ::ffff:198.51.100.1 remoteGids::ffff:198.51.100.2"
ANY = (2, 3, 0, 1, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("said", "nics"),
    [
        ("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", ANY),
        (
            "NET/IB : Got completion from peer 192.0.2.3<4444> with error 12, opcode 0, len 0, vendor err 129",
            (2, 3, 6, 7),
        ),
        ("NET/IB : Got completion from peer 192.0.2.3<4444> with error 12, opcode 0, len 0 (Recv)", (2, 3, 6, 7)),
        (
            f"NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 len=0 (Recv) {GIDS}",
            (2, 3, 6, 7),
        ),
        (f"NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 {GIDS} hca nic1", (3, 7)),
        ("NET/IBP:Got completion from peer 192.0.2.3<4444> with status=12 opcode=32698 (Send)", (2, 3, 6, 7)),
        ("NET/IB/GIN: Got completion from peer 192.0.2.3<4444> with status=12 opcode=1 (Put) hca nic0", (2, 6)),
        (
            "NET/IB: Got completion from peer 192.0.2.3<4444> with status=IBV_WC_RETRY_EXC_ERR(12) hca nic1",
            (3, 7),
        ),
        ("NET/IB : Got completion from peer 203.0.113.9<4444> with status=12 opcode=0 hca nic1", (3, 1, 5, 7)),
    ],
)
def test_every_wording_of_a_failed_transfer(said: str, nics: tuple[int, ...]) -> None:
    found = read_text(start() + WHO + said + "\n", "job.log", FOUR)
    (seen,) = found.observations
    assert seen.failed
    assert set(seen.used) == ends(*nics)
    (sign,) = found.signs
    assert (sign.server, sign.nic) == ("server1", nics[0] if nics[0] == 3 or len(nics) == 2 else None)
    assert "no answer from the other side" in sign.what
    assert "1 failed transfers" in found.read[0]
    assert not found.unused


@pytest.mark.parametrize(
    ("said", "nic", "what"),
    [
        ("NET/IB : Got async event : port error", None, "port error"),
        ("IB Got async event : port error", None, "port error"),
        ("NET/IB : nic1:1 Got async event : port error", 3, "port error"),
        ("NET/IB : nic1:1 Got non-fatal async event: port error(10)", 3, "port error(10)"),
        ("NET/IB : nic1:1 async fatal event: device fatal(8)", 3, "device fatal(8)"),
        (
            "NET/IB : nic1:1 async fatal event on QP: fatal: local work queue catastrophic error",
            3,
            "fatal: local work queue",
        ),
        (
            "NET/IB : nic1:1 async fatal event on QP (0x7f0c): local access violation",
            3,
            "fatal: local access violation",
        ),
        ("NET/IB : nic1:1 Got async event : local catastrophic error", 3, "local catastrophic error"),
        (
            "Call to ibv_modify_qp failed with 110 Connection timed out, on dev nic1:1, curr state INIT",
            3,
            "ibv_modify_qp failed: 110 Connection timed out",
        ),
    ],
)
def test_every_wording_of_an_event(said: str, nic: int | None, what: str) -> None:
    line = WHO + said + "\n"
    found = read_text(start() + 5 * line, "job.log", FOUR)
    (sign,) = found.signs
    assert (sign.server, sign.nic, sign.grave) == ("server1", nic, True)
    assert what in sign.what
    assert "5 times" in sign.what
    assert not found.unused


def test_trouble_in_words_that_are_not_known_is_counted() -> None:
    lines = [
        WHO + "NET/IB : the flux capacitor of nic7 has come loose",
        WHO + "NET/IB : the flux capacitor of nic9 has come loose",
        "server1:100:250 [0] NCCL INFO NET/IB : QP 12 was reset by its keeper",
        "server1:100:250 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus",
        "server1:100:250 [0] NCCL INFO Could not find: libnccl-tuner.so",
        "server1:100:250 [0] NCCL INFO misc/socket.cc:84 -> 2",
        "server1:100:250 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file",
        "server1:100:250 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "server1:100:250 [0] NCCL INFO comm 0x55 rank 0 nranks 4 cudaDev 0 busId 1b000 - Abort COMPLETE",
        "step 17: loss 3.1, no error",
    ]
    found = read_text(start() + "\n".join(lines) + "\n", "job.log", FOUR)
    (said,) = found.unused
    assert said.startswith("job.log: 5 lines speak of trouble in words that are not known, such as line 5: ")
    assert "flux capacitor" in said
    assert sorted(parse_log(start() + "\n".join(lines)).unknown) == [5, 6, 7, 8, 9]
    assert not read_text(start(), "job.log", FOUR).unused


def test_timeouts_are_told_although_they_name_no_nic() -> None:
    line = "[rank3]: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5) ran for 600000 ms\n"
    (said,) = read_text(start() + 2 * line, "job.log", FOUR).unused
    assert said == "job.log: 2 timeouts of collectives, the first in line 5, where no NIC is named"


def test_addresses_of_one_file_count_for_all(tmp_path: Path) -> None:
    """Each server has a log of its own, as most launchers write them."""
    error = WHO + "NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 hca nic1\n"
    lines = start().splitlines(keepends=True)
    for i, line in enumerate(lines):
        (tmp_path / f"rank{i}.log").write_text(line + (error if i == 1 else ""))
    found = gather([str(tmp_path / f"rank{i}.log") for i in range(4)], FOUR)
    (seen,) = found.observations
    assert set(seen.used) == ends(3, 7)


def test_the_gid_of_an_error_elsewhere_tells_the_peer_s_nic() -> None:
    """Both ends of a link complain: each names its own NIC, so that the other's is known."""
    here = f"NET/IB : Got completion from peer 192.0.2.3<4> with status=12 opcode=0 len=0 vendor err 129 (Send) {GIDS}"
    back = "localGid ::ffff:198.51.100.2 remoteGids::ffff:198.51.100.1"
    there = f"NET/IB : Got completion from peer 192.0.2.1<4> with status=12 opcode=0 len=0 (Recv) {back} hca nic0"
    text = start() + WHO + here + " hca nic1\n" + WHO.replace("server1", "server3") + there + "\n"
    found = read_text(text, "job.log", FOUR)
    assert {frozenset(o.used) for o in found.observations} == {frozenset(ends(3, 6))}


def test_addresses_that_two_files_dispute_are_not_known(tmp_path: Path) -> None:
    error = WHO + "NET/IB : Got completion from peer 192.0.2.3<4444> with status=12 opcode=0 hca nic1\n"
    (tmp_path / "a.log").write_text(start() + error)
    (tmp_path / "b.log").write_text(start().replace("192.0.2.3<", "192.0.2.2<").replace("192.0.2.2<", "192.0.2.3<", 1))
    found = gather([str(tmp_path / "a.log"), str(tmp_path / "b.log")], FOUR)
    assert set(found.observations[0].used) == ends(3, 1, 5, 7)


def test_channels_tell_the_peer_that_an_error_does_not_name() -> None:
    """A ring of four servers, in the words of NCCL 2.8: channels tell each process's NIC and its neighbours."""
    lines = start().splitlines()
    for h in range(4):
        for g in range(2):
            before, own, after = (2 * (i % 4) + g for i in (h - 1, h, h + 1))
            for one, other, way in ((own, after, "send"), (before, own, "receive")):
                ends_at = f"Channel 0{g} : {one}[1b000] -> {other}[1b000] [{way}] via NET/IB/{g}"
                lines.append(f"server{h}:{100 + g}:200 [{g}] NCCL INFO {ends_at}")
    error = "server1:101:250 [1] NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129"
    found = read_text("\n".join([*lines, error]) + "\n", "job.log", FOUR)
    (seen,) = found.observations
    assert set(seen.used) == ends(3, 1, 5)
    assert found.signs[0].nic == 3


HOSTS = ["node1", "node2", "node3"]
NICS = {f"mlx5_{i}": 400 for i in range(4)}


def cluster() -> NicDirections:
    made = Cluster.uniform(servers=3, nics=4, rate="400Gb/s")
    servers = []
    for host, server in zip(HOSTS, made.servers, strict=True):
        nics = tuple(type(n)(f"mlx5_{i}", n.out_rate, n.in_rate, n.rail, n.gpu) for i, n in enumerate(server.nics))
        servers.append(type(server)(host, nics, 4))
    return NicDirections(Cluster(tuple(servers)))


NODES = cluster()


def given(tmp_path: Path, **files: str) -> Evidence:
    """Of files by name; ``__`` stands for ``=`` and ``_of_`` for ``/`` before it."""
    sources = []
    for name, text in files.items():
        owner, _, file = name.rpartition("__")
        path = tmp_path / f"{file}.txt"
        path.write_text(text)
        sources.append(f"{owner.replace('_of_', '/')}={path}" if owner else str(path))
    return gather(sources, NODES)


def slow(found: Evidence) -> dict[str, float]:
    """NIC -> the part of its rate at which its link runs."""
    assert all(o.kind == "link" for o in found.observations)
    return {NODES.names[number // 2]: part for o in found.observations for number, part in o.used.items()}


SLOWER = {**NICS, "mlx5_1": 100}
DOWN = ["mlx5_3"]
LISTS = {
    "ibstat": tool_texts.ibstat(SLOWER, DOWN),
    "ibstatus": tools.ibstatus(SLOWER, DOWN),
    "ibv_devinfo": tools.devinfo(SLOWER, DOWN),
}


@pytest.mark.parametrize("tool", LISTS)
@pytest.mark.parametrize("how", ["SERVER=FILE", "the file's name", "pdsh"])
def test_lists_of_ports(tool: str, how: str, tmp_path: Path) -> None:
    text = LISTS[tool]
    if how == "pdsh":
        lines = [f"{host}: {line}" for host in ("node1", "node2") for line in text.splitlines()]
        found = given(tmp_path, all="\n".join(lines) + "\n")
        servers = ["node1", "node2"]
    else:
        found = given(tmp_path, **({"node2__a": text} if how == "SERVER=FILE" else {"node2": text}))
        servers = ["node2"]
    expected = {f"{s}/{nic}": part for s in servers for nic, part in (("mlx5_1", 0.25), ("mlx5_3", NOTHING))}
    assert slow(found) == expected
    named = {f.nic: f.sure for f in judge(found, NODES).findings}
    assert named == dict.fromkeys(expected, "certain")


@pytest.mark.parametrize("old", [False, True])
def test_rdma_link(old: bool, tmp_path: Path) -> None:
    assert slow(given(tmp_path, node3=tools.rdma_link([*NICS], DOWN, old))) == {"node3/mlx5_3": NOTHING}


@pytest.mark.parametrize("one_line", [False, True])
def test_a_whole_fabric(one_line: bool, tmp_path: Path) -> None:
    text = tools.fabric([*HOSTS, "storage"], NICS, {"node1 mlx5_2": 200, "node3 mlx5_0": 0}, one_line)
    found = given(tmp_path, fabric=text)
    assert slow(found) == {"node1/mlx5_2": 0.5, "node3/mlx5_0": NOTHING}
    assert "1 hosts that the topology does not have" in found.unused[0]


def test_hca_1_is_the_first(tmp_path: Path) -> None:
    text = tools.fabric(["node2"], {"HCA-1": 400, "HCA-2": 40})
    assert slow(given(tmp_path, fabric=text)) == {"node2/mlx5_1": 0.1}


@pytest.mark.parametrize(("speed", "part"), [("IB-EDR", 0.25), ("200G", 0.5), ("IB-NDR", None), ("400GbE", None)])
def test_mlxlink(speed: str, part: float | None, tmp_path: Path) -> None:
    expected = {} if part is None else {"node1/mlx5_2": part}
    assert slow(given(tmp_path, node1_of_mlx5_2__a=tools.mlxlink(speed))) == expected
    asked = tools.mlxlink(speed, command="[root@node1 ~]# mlxlink -d mlx5_2 -p 1")
    assert slow(given(tmp_path, node1__b=asked)) == expected
    with pytest.raises(InputError, match=r"mlxlink.*SERVER/NIC="):
        given(tmp_path, node1__c=tools.mlxlink(speed))


def test_what_mlxlink_advises_is_a_sign(tmp_path: Path) -> None:
    text = tools.mlxlink("IB-NDR", advice="Bad signal integrity")
    (sign,) = given(tmp_path, node1_of_mlx5_2__a=text).signs
    assert (sign.what, sign.server, sign.nic) == ("mlxlink: Bad signal integrity", "node1", 2)
    down = given(tmp_path, node1_of_mlx5_2__b=tools.mlxlink("N/A", state="Polling"))
    assert slow(down) == {"node1/mlx5_2": NOTHING}
    assert [s.what for s in down.signs] == ["the port has no link"]


def test_ethtool_of_an_interface(tmp_path: Path) -> None:
    text = "Settings for ens1f0np0:\n\tSpeed: 100000Mb/s\n\tDuplex: Full\n\tLink detected: yes\n"
    links = tools.rdma_link([*NICS])
    found = given(tmp_path, node2__eth=text, node2__links=links)
    assert slow(found) == {"node2/mlx5_1": 0.25}, "rdma link tells which NIC the interface is"


COUNTERS = {"SymbolErrorCounter": 65535, "LinkDownedCounter": 3, "PortRcvErrors": 17}


def test_perfquery(tmp_path: Path) -> None:
    found = given(tmp_path, node1_of_mlx5_1__a=tools.perfquery(**COUNTERS))
    assert [(NODES.names[s.nic or 0], s.what.split(" (")[0]) for s in found.signs] == [
        ("node1/mlx5_1", "symbol_error 65535 or more since the driver was loaded"),
        ("node1/mlx5_1", "link_downed 3 since the driver was loaded"),
        ("node1/mlx5_1", "port_rcv_errors 17 since the driver was loaded"),
    ]


def test_perfquery_by_the_lid_that_another_file_tells(tmp_path: Path) -> None:
    found = given(tmp_path, perf=tools.perfquery(lid=3, **COUNTERS), node3=tools.ibstatus(NICS))
    assert {NODES.names[s.nic or 0] for s in found.signs} == {"node3/mlx5_2"}
    with pytest.raises(InputError, match=r"perfquery.*SERVER/NIC=.*sysfs"):
        given(tmp_path, alone=tools.perfquery(**COUNTERS))


def test_counters_twice(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        node1_of_mlx5_1__a=tools.perfquery(LinkDownedCounter=3),
        node1_of_mlx5_2__b=tools.perfquery(LinkDownedCounter=3),
        node1_of_mlx5_1__c=tools.perfquery(LinkDownedCounter=5, PortRcvErrors=0),
    )
    said = [(NODES.names[s.nic or 0], s.what.split(" (")[0]) for s in found.signs]
    assert said[-1] == ("node1/mlx5_1", "link_downed 2 in between")


def test_counters_of_several_ports_in_one_file(tmp_path: Path) -> None:
    """As a loop over the NICs prints them, beside ibstat, which tells whose the LIDs are."""
    parts = [tools.perfquery(lid=i + 1, PortRcvErrors=10 * i) for i in range(4)]
    found = given(tmp_path, node2="".join(parts) + tools.ibstatus(SLOWER, DOWN))
    said = {NODES.names[s.nic or 0]: s.what.split(" ")[1] for s in found.signs if "port_rcv_errors" in s.what}
    assert said == {"node2/mlx5_1": "10", "node2/mlx5_2": "20", "node2/mlx5_3": "30"}
    assert slow(found) == {"node2/mlx5_1": 0.25, "node2/mlx5_3": NOTHING}
    eth = [tools.ethtool_s(f"[root@node2 ~]# ethtool -S mlx5_{i}", link_down_events_phy=i) for i in range(4)]
    by_command = given(tmp_path, node2__e="".join(eth))
    assert [(NODES.names[s.nic or 0], s.what.split(" ")[1]) for s in by_command.signs] == [
        (f"node2/mlx5_{i}", f"{i}") for i in (1, 2, 3)
    ]


def test_ethtool_s(tmp_path: Path) -> None:
    links = tools.rdma_link([*NICS])
    text = tools.ethtool_s("$ sudo ethtool -S ens3f0np0", link_down_events_phy=7)
    found = given(tmp_path, node2__e=text, node2__links=links)
    assert [(NODES.names[s.nic or 0], s.what.split(" (")[0]) for s in found.signs] == [
        ("node2/mlx5_3", "link_downed 7 since the driver was loaded")
    ]
    with pytest.raises(InputError, match=r"no such NIC.*ibdev2netdev"):
        given(tmp_path, node2__alone=text)


def test_a_host_that_the_topology_lacks(tmp_path: Path) -> None:
    lines = [f"{host}: {line}" for host in ("node1", "other") for line in LISTS["ibstatus"].splitlines()]
    with pytest.raises(InputError, match=r"a host that the topology does not have.*other"):
        given(tmp_path, all="\n".join(lines) + "\n")


def test_a_server_that_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ibstatus's output, which does not name its server.*SERVER="):
        given(tmp_path, ports=LISTS["ibstatus"])
    with pytest.raises(InputError, match=r"no such NIC.*node1.*mlx5_9"):
        given(tmp_path, node1_of_mlx5_9__a=tools.perfquery())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#bytes     #iterations    BW peak[MB/sec]\n 65536 5000 11000\n", "perftest's output.*sendrecv_perf"),
        ("1: lo: <LOOPBACK,UP> mtu 65536\n2: eth0: <BROADCAST,UP> mtu 1500\n", "ip link's output.*sysfs"),
        ("\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\n", "nvidia-smi's matrix.*before the evidence"),
        ("[ 12.5] mlx5_core 0000:1a:00.0 ens1f0np0: Link down\n", "the kernel's log.*sysfs"),
    ],
)
def test_other_tools_are_named_with_the_way_out(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"(?s)no evidence that is known.*{says}"):
        given(tmp_path, x=text)


def test_inspector_s_metrics(tmp_path: Path) -> None:
    """Three servers of four GPUs: the fastest GPU of a collective tells its pace."""
    rates = {"node1": 88.0, "node2": 90.0, "node3": 89.0}
    files = {
        host: "".join(tools.metrics(host, gpu, rate - gpu, nodes=3, ranks=12) for gpu in range(4))
        for host, rate in rates.items()
    }
    found = given(tmp_path, **files)
    (seen,) = found.observations
    busbw = 90e9 / (4 * 50e9)
    healthy = {number: pytest.approx(busbw, rel=0.2) for number in range(24)}
    assert seen.kind == "all_reduce"
    assert seen.used == healthy
    assert seen.time_s == pytest.approx(2**30 * 2 * 11 / 12 / 90e9)
    some = given(tmp_path, node1=files["node1"])
    assert not some.observations
    assert "metrics of 1 servers, and 3 take part" in some.unused[0]


def test_mooncake_s_log(tmp_path: Path) -> None:
    """The servers by the addresses that NCCL's log, or a GID table, tells."""
    log = "".join(
        f"{host}:1:2 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.{i + 1}<0>\n" for i, host in enumerate(HOSTS)
    )
    found = given(tmp_path, engine=tools.mooncake("192.0.2.1", "mlx5_2", "192.0.2.3", "mlx5_0"), job=log)
    (seen,) = found.observations
    assert set(seen.used) == {port(n, way) for n in (2, 8) for way in (OUT, IN)}
    assert "transport retries exceeded" in found.signs[0].what
    flushed = tools.mooncake("192.0.2.1", "mlx5_2", "192.0.2.3", "mlx5_0", "Work Request Flushed Error")
    assert not given(tmp_path, engine=flushed, job=log).observations
    named = given(tmp_path, node2__e=tools.mooncake("10.0.0.7", "mlx5_2", "10.0.0.9", "mlx5_0"))
    assert not named.observations, "10.0.0.7 is not known to be node2"


def test_a_log_in_a_file_of_its_own_tells_the_nics_of_a_table(tmp_path: Path) -> None:
    """As NCCL_DEBUG_FILE writes it, one for each process; where two differ, nothing is known."""
    table = diagnosis_texts.table("all_reduce", 40000).replace("server0", "node1").replace("server1", "node3")
    using = "NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.1<0>"
    logs = {f"log{i}": f"{host}:1:2 [0] NCCL INFO {using}\n" for i, host in enumerate(["node1", "node1", "node3"])}
    for used, files in (
        ({0, 1, 8, 9}, logs),
        ({0, 1, 8, 9}, {**logs, "log1": logs["log1"].replace("node1", "node2")}),
        ({0, 1, 8, 9}, {}),  # those beside the two GPUs
    ):
        found = given(tmp_path, table=table, **files)
        assert {number // 2 for number in found.observations[0].used} == used
    one = {name: log.replace(" [1]mlx5_0:1/IB", "") for name, log in logs.items()}
    assert {number // 2 for number in given(tmp_path, table=table, **one).observations[0].used} == {1, 9}
    disputed = {**one, "log1": one["log1"].replace("mlx5_1", "mlx5_0")}
    assert {number // 2 for number in given(tmp_path, table=table, **disputed).observations[0].used} == {0, 1, 9}


def test_a_gid_of_another_file(tmp_path: Path) -> None:
    """ibv_devinfo -v of one server tells which NIC an error's GID is."""
    error = diagnosis_texts.OLD_ERROR_12.replace("server0", "node1").replace(" hca nic1", "")
    error = error.replace("remoteGids::ffff:192.0.2.2", "remoteGids::ffff:198.51.100.3").replace(
        "192.0.2.2", "192.0.2.99"
    )
    loose = given(tmp_path, job=error + "\n")
    assert len(loose.observations[0].used) == 24, "any NIC of node1, any of the others on its rails"
    told = given(tmp_path, job=error + "\n", node3=tools.devinfo(NICS))
    ours, theirs = {port(n, w) for n in range(4) for w in (OUT, IN)}, {port(10, w) for w in (OUT, IN)}
    assert set(told.observations[0].used) == ours | theirs


# Timings of collectives, by nccl-tests and by NCCL's Inspector: which NICs they load, and what is missing.


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


def test_channels_of_other_communicators_do_not_count() -> None:
    """Ranks 0 and 1 of pairs are other processes than ranks 0 and 1 of the job, and use nic1."""
    lines = []
    for pid, gpu, ranks in ((100, 0, (0, 2)), (101, 1, (1, 3))):
        for h, rank in enumerate(ranks):
            who = f"server{h}:{pid}:200 [{gpu}] NCCL INFO"
            start = f"comm 0x{{}}{rank} rank {{}} nranks {{}} cudaDev {gpu} nvmlDev {gpu} busId 1b000 - Init START"
            lines.append(f"{who} {start.format(1, rank, 4)}")
            lines += [f"{who} Channel 00/0 : {rank}[{gpu}] -> {9}[0] [send] via NET/IB/0/GDRDMA"]
            lines += [f"{who} Channel 00/0 : {9}[0] -> {rank}[{gpu}] [receive] via NET/IB/0/GDRDMA"]
            lines.append(f"{who} {start.format(2, h, 2)}")
            lines += [f"{who} Channel 00/0 : {h}[{gpu}] -> {1 - h}[0] [send] via NET/IB/1/GDRDMA"] * 4
            lines += [f"{who} Channel 00/0 : {1 - h}[0] -> {h}[{gpu}] [receive] via NET/IB/1/GDRDMA"] * 4
    using = [line for line in texts.log().splitlines() if "Using" in line]
    found = read_text(texts.table("all_reduce", 40000, log="\n".join([*using, *lines]) + "\n"), "x.txt", PORTS)
    assert {number // 2 for number in found.observations[0].used} == {0, 2}


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


# Which rank is late, missing, ahead or behind: told as records have it, and held against no NIC.


LATE_PORTS = NicDirections(Cluster.uniform(servers=3, nics=2, gpus=2, rate="400Gb/s"))
HEALTHY_US = 19000


def seen(late: dict[int, float], ranks: int, collectives: int, jitter: float = 2e-4) -> list[dict[int, float]]:
    """What each rank sees of collectives of 19 ms, where ranks come so many seconds later than they could."""
    rng = random.Random(1)
    found = []
    for _ in range(collectives):
        came = {rank: late.get(rank, 0.0) + rng.uniform(0, jitter) for rank in range(ranks)}
        end = max(came.values()) + HEALTHY_US * 1e-6
        found.append({rank: end - at for rank, at in came.items()})
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_a_rank_that_always_comes_late_is_told(ranks: int) -> None:
    (one,) = late_ranks(seen({1: 0.2}, ranks, 20))
    assert (one.rank, one.times, one.of) == (1, 20, 20)
    assert one.by_s == pytest.approx(0.2, rel=0.02)
    assert "rank 1 comes late: last in 20 of 20 collectives, 2" in str(one)


def test_a_whole_server_that_comes_late_is_told() -> None:
    assert {one.rank for one in late_ranks(seen({4: 0.2, 5: 0.2, 6: 0.2, 7: 0.2}, 16, 20))} == {4, 5, 6, 7}


def test_nobody_is_late_where_all_come_together_or_by_turns() -> None:
    assert late_ranks(seen({}, 8, 50)) == ()
    turns = [seen({number % 4: 0.2}, 4, 1)[0] for number in range(40)]
    assert late_ranks(turns) == ()
    assert late_ranks(seen({1: 0.2}, 4, ENOUGH - 1)) == ()
    assert late_ranks(seen({1: 0.0015}, 4, 20)) == ()  # less than a tenth of the collective


def inspected(tmp_path: Path, late: dict[int, float], without: dict[int, range] | None = None) -> list[str]:
    """Files of 6 ranks on 3 servers, 20 collectives; `without` : rank -> collectives of which its record is missing."""
    collectives, missing = seen(late, 6, 20), without or {}
    for rank in range(6):
        times = {n: round(each[rank] * 1e6) for n, each in enumerate(collectives) if n not in missing.get(rank, ())}
        text = texts.inspector(rank, times, ranks=6, nodes=2)
        record = text.replace(texts.HOSTS[0], f"server{rank // 2}").replace(texts.HOSTS[1], f"server{rank // 2}")
        (tmp_path / f"{rank}.log").write_text(record.replace('"nnodes": 2', '"nnodes": 3'))
    return [str(tmp_path / f"{rank}.log") for rank in range(6) if (tmp_path / f"{rank}.log").read_text().strip()]


def test_the_late_rank_of_a_running_job_is_told_and_no_nic_is_blamed(tmp_path: Path) -> None:
    found = gather(inspected(tmp_path, {3: 0.2}), LATE_PORTS)
    ((what, server, nic),) = [(sign.what, sign.server, sign.nic) for sign in found.signs]
    assert (what.startswith("rank 3 comes late"), server, nic) == (True, "server1", None)
    verdict = judge(found, LATE_PORTS)
    assert (verdict.outcome, len(verdict.signs)) == (Outcome.HEALTHY, 1)


def test_collectives_of_one_communicator_are_one_run(tmp_path: Path) -> None:
    verdict = judge(gather(inspected(tmp_path, {}), LATE_PORTS), LATE_PORTS)
    assert (verdict.measured, verdict.averaged) == (20, 1)


def test_a_rank_without_records_may_be_the_late_one(tmp_path: Path) -> None:
    """Rank 3 comes late, and its file is missing: what the others saw is no measurement of their NICs."""
    found = gather(inspected(tmp_path, {3: 0.2}, {3: range(20)}), LATE_PORTS)
    assert {seen.least for seen in found.observations} == {True}
    assert "no records of 1 of its 6 ranks, 3: any of them may have come last" in found.unused[0]
    assert judge(found, LATE_PORTS).findings == ()
    whole = gather(inspected(tmp_path, {3: 0.2}), LATE_PORTS)
    assert {seen.least for seen in whole.observations} == {False}


def test_single_records_that_are_missing_are_counted(tmp_path: Path) -> None:
    found = gather(inspected(tmp_path, {3: 0.2}, {3: range(4), 5: range(3, 6)}), LATE_PORTS)
    assert [seen.least for seen in found.observations].count(True) == 6
    assert "6 collectives without the records of all ranks" in found.unused[0]


def test_inspector_says_that_a_tree_was_used(tmp_path: Path) -> None:
    for rank in range(4):
        text = texts.inspector(rank, {1: 40000}).replace('"coll_sn"', '"coll_algo": "TREE", "coll_sn"')
        (tmp_path / f"{rank}.log").write_text(text)
    found = gather([str(tmp_path / f"{rank}.log") for rank in range(4)], texts.PORTS)
    assert max(found.observations[0].used.values()) == pytest.approx(0.5 * (1 << 30) / 0.04 / 50e9)


def test_the_late_process_of_nccl_tests_is_told() -> None:
    """Two processes with two GPUs each; process 1 is 50 ms behind."""
    value = json.loads(texts.json_table(40000))
    times = [[90000.0 + n for n in range(20)], [40000.0 + n for n in range(20)]]
    value["results"][0]["out_of_place_per_iter"] = {"per_process_max_times_us": times}
    (sign,) = read_text(json.dumps(value), "x.json", texts.PORTS).signs
    assert sign.what.startswith("rank 2 comes late: last in 20 of 20 collectives, 50 ms")
    assert sign.server == "server1"
    value["results"][0]["out_of_place_per_iter"] = {"per_process_max_times_us": [times[0], times[0]]}
    assert read_text(json.dumps(value), "x.json", texts.PORTS).signs == ()


MISMATCH = """Job summary
===========

Warnings
========

#0-0 (0123456789abcdef) MISMATCH
  Communicator ranks have different AllGather operation counts
{lines}
"""
PLACE = "GPU 0 managed by process 30{0} on node server{0}"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ["4 ranks have launched up to operation 640", "2 ranks have launched up to operation 641",
             f"Rank 2 -- {PLACE.format(1)}", f"Rank 3 -- {PLACE.format(1)}"],
            [("server1", f"rank {r} is ahead: it has launched 641 of AllGather, 4 ranks at 640: the others are late")
             for r in (2, 3)],
        ),
        (
            ["5 ranks have launched up to operation 64",
             f"Rank 4 has launched up to operation 60 -- {PLACE.format(2)}"],
            [("server2", "rank 4 is behind: it has launched 60 of AllGather, 5 ranks at 64")],
        ),
        (
            ["4 ranks have launched up to operation 7", f"Rank 0 has launched up to operation 8 -- {PLACE.format(0)}",
             f"Rank 5 has not launched any operations -- {PLACE.format(2)}"],
            [("server0",
              "rank 0 is ahead: it has launched 8 of AllGather, 4 ranks at 7, 1 rank at 0: the others are late"),
             ("server2", "rank 5 is behind: it has launched 0 of AllGather, 4 ranks at 7, 1 rank at 8")],
        ),
        (
            ["5 ranks have launched up to operation 641", "1 rank has launched up to operation 640",
             f"Rank 3 -- {PLACE.format(1)}"],
            [("server1", "rank 3 is behind: it has launched 640 of AllGather, 5 ranks at 641")],
        ),
        (
            ["some ranks have launched up to operation 641", "1 rank has launched up to operation 640",
             f"Rank 3 -- {PLACE.format(1)}"],
            [("server1", "rank 3 has launched 640 of AllGather, which is not what the others have")],
        ),
    ],
)  # fmt: skip
def test_ranks_ahead_and_behind_are_told_apart(lines: list[str], told: list[tuple[str, str]]) -> None:
    found = read_ras(MISMATCH.format(lines="\n".join(f"  {line}" for line in lines)), "ras.txt", LATE_PORTS)
    assert [(sign.server, sign.what) for sign in found.signs] == told
    assert not any(sign.grave for sign in found.signs)


def test_a_status_that_differs_is_told() -> None:
    text = MISMATCH.replace("AllGather operation counts", "status").format(
        lines=f"  5 ranks have status RUNNING\n  Rank 1 has status FINALIZE -- {PLACE.format(0)}"
    )
    (sign,) = read_ras(text, "ras.txt", LATE_PORTS).signs
    assert sign.what == "rank 1 has status FINALIZE; 5 ranks with RUNNING"


@pytest.mark.parametrize(("odd", "word"), [(101, "ahead"), (99, "behind")])
def test_json_of_ras_counts_collectives(odd: int, word: str) -> None:
    counts = [{"AllReduce": odd if rank == 3 else 100, "Broadcast": 4} for rank in range(6)]
    ranks = [{"rank": r, "host": f"server{r // 2}", "collective_counts": each} for r, each in enumerate(counts)]
    (sign,) = read_ras(json.dumps({"communicators": [{"ranks": ranks}]}), "ras.json", LATE_PORTS).signs
    assert (sign.server, sign.what.startswith(f"rank 3 is {word}: it has launched {odd}")) == ("server1", True)


def test_json_of_ras_tells_a_rank_in_another_state() -> None:
    ranks = [{"rank": r, "host": f"server{r // 2}", "status": {"abort_flag": r == 3}} for r in range(6)]
    (sign,) = read_ras(json.dumps({"communicators": [{"ranks": ranks}]}), "ras.json", LATE_PORTS).signs
    assert (sign.server, sign.what) == ("server1", "rank 3 has status ABORT; 5 ranks with RUNNING")


def test_trouble_without_a_process_is_told() -> None:
    text = MISMATCH.format(lines="").partition("#0-0")[0] + "TIMEOUT\n  Encountered 2 communication timeouts\n"
    found = read_ras(text, "ras.txt", LATE_PORTS)
    assert not found.signs
    assert found.unused == ("ras.txt:7: TIMEOUT in RAS, without a process",)


# Evidence as it is pasted and logged: what stands around it changes nothing.


TIME = "2026-11-20T10:00:00.123456789Z "
DATE = "Fri Nov 20 10:00:00 2026"


def boxed(key: str) -> Callable[[str], str]:
    return lambda text: "".join(json.dumps({key: f"{line}\n", "stream": "stdout"}) + "\n" for line in text.splitlines())


WRAPS: dict[str, Callable[[str], str]] = {
    "mpirun --tag-output": before("[1,0]<stdout>:"),
    "mpirun --tag-output --timestamp-output": before(f"{DATE}[1,0]<stdout>:"),
    "mpirun --timestamp-output": before(f"{DATE}<stdout>: "),
    "prterun": before("[prterun-node1-4711@1,12]<stdout>: "),
    "srun -l": before("0: "),
    "srun -l, wide": before("  0: "),
    "mpiexec -l": before("[0] "),
    "kubectl logs --prefix": before("[pod/nccl-launcher-x7k2p/main] "),
    "kubectl logs --prefix --timestamps": before("[pod/nccl-launcher-x7k2p/main] " + TIME),
    "containerd": before(TIME + "stdout F "),
    "journalctl": before("Nov 20 10:00:00 node1 job[17]: "),
    "journalctl -o short-iso-precise": before("2026-11-20T10:00:00.123456+0000 node1 job[17]: "),
    "ts": before("Nov 20 10:00:00 "),
    "Go's log": before("2026/11/20 10:00:00 "),
    "seconds": before("[12345.678901] "),
    "Ray": before("(RayTrainWorker pid=123, ip=192.0.2.1) "),
    "torchrun --tee": before("[default0]:"),
    "torch": before("[rank0]: "),
    "pdsh": before("server0: "),
    "compose": before("worker-1  | "),
    "quoted": before("> "),
    "quoted mpirun": before("> [1,0]<stdout>:"),
    "fenced": lambda text: f"It says\n```text\n{text}```\nwhat now?\n",
    "docker": boxed("log"),
    "journalctl -o json": boxed("MESSAGE"),
    "colours": lambda text: "".join(f"\x1b[1;32m{line}\x1b[0m\n" for line in text.splitlines()),
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "slurm's task, time": before("0: 2026-11-20 10:00:00.123 "),
    "Intel MPI": before("[0#123:124@node1] "),
    "MPICH": before("[proxy:0:0@node1] "),
    "torchrun's role": before("[my_role3]:"),
    "stern": before("nccl-launcher-x7k2p main "),
    "journalctl -o short-full": before("Fri 2026-11-20 10:00:00 UTC node1 job[17]: "),
    "journalctl -o short-unix": before("1795000000.123456 node1 job[17]: "),
    "Python's logging": before("2026-11-20 10:00:00,123 - INFO - "),
    "GitLab": before("2026-11-20T10:00:00.123456Z 00O "),
    "GitHub": before("job\tRun tests\t2026-11-20T10:00:00.1234567Z "),
    "SkyPilot": before("(worker1, rank=1, pid=1234, ip=192.0.2.1) "),
    "rank 0:": before("rank 0: "),
    "Outlook": before("| "),
    "cat -n": lambda text: "".join(f"{i:6d}\t{line}\n" for i, line in enumerate(text.splitlines(), 1)),
    "Slack": lambda text: f"Ann 10:02\n```{text}```\n",
    "a web page": lambda text: text.replace("  ", "\xa0 "),
    "Windows twice": lambda text: text.replace("\n", "\r\r\n"),
    "banner": lambda text: f"Last login: Fri Nov 20\nNCCL version 2.28.9+cuda13.0\n{text}\n[root@n01 ~]# \n",
}
TEXTS = {
    "table": texts.table("all_reduce", 40000, log=texts.log()),
    "json": json.dumps(json.loads(texts.json_table(40000)), indent=1) + "\n",
    "log": texts.log(texts.ERROR_12, texts.OLD_ERROR_12, texts.PORT_ERROR, texts.SLOWER),
    "ras": texts.RAS,
    "ras-json": json.dumps(json.loads(texts.RAS_JSON), indent=1) + "\n",
    "inspector": "".join(texts.inspector(rank, {1: 40000, 2: 41000}) for rank in range(4)),
}


def said(found: Evidence) -> list[object]:
    """Without the places, whose lines banners move."""
    seen = [(o.kind, tuple(o.used.items()), o.time_s, o.servers) for o in found.observations]
    return [seen, [(s.what, s.server, s.nic, s.grave) for s in found.signs], len(found.unused)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_what_stands_around_evidence_changes_nothing(name: str, wrap: str, tmp_path: Path) -> None:
    plain, pasted = tmp_path / "plain.txt", tmp_path / "pasted.txt"
    plain.write_text(TEXTS[name])
    pasted.write_bytes(WRAPS[wrap](TEXTS[name]).encode())
    whole = gather([str(plain)], PORTS)
    assert whole.observations or whole.signs
    assert said(gather([str(pasted)], PORTS)) == said(whole)


def test_utf_16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes(TEXTS["table"].encode(encoding))
        assert len(gather([str(path)], PORTS).observations) == 2


def test_a_prefix_on_some_lines_only(tmp_path: Path) -> None:
    """As where one process of a job prints through srun, and another straight to the file."""
    lines = TEXTS["table"].splitlines()
    path = tmp_path / "x.txt"
    path.write_text("".join(f"{'[1,0]<stdout>:' if i % 3 else ''}{line}\n" for i, line in enumerate(lines)))
    assert len(gather([str(path)], PORTS).observations) == 2


def test_tables_with_different_prefixes_in_one_file(tmp_path: Path) -> None:
    ways = ("mpirun --tag-output", "srun -l", "kubectl logs --prefix", "banner")
    path = tmp_path / "x.txt"
    path.write_text("".join(WRAPS[way](TEXTS["table"]) for way in ways))
    assert len(gather([str(path)], PORTS).observations) == 8


def test_content_that_looks_like_a_prefix_stays() -> None:
    links = "".join(f"link mlx5_{n}/1 state ACTIVE physical_state LINK_UP netdev ens{n}np0 \n" for n in range(8))
    priorities = "".join(f"     rx_prio{n}_bytes: 0\n" for n in range(8))
    metrics = "".join(f'nccl_bytes_total{{rank="{n}"}} {n}\n' for n in range(8)) + "# EOF\n"
    json_lines = '{\n "0": {"a": 1},\n' + "".join(f' "{n}": {{"a": 1}},\n' for n in range(1, 8)) + ' "x": {}\n}\n'
    for text in (links, priorities, metrics, json_lines):
        assert cleaned(text) == text
    counters = "rx_packets: 12\ntx_packets: 13\nrx_errors: 0\n"  # no host speaks once only
    yaml = "optcc: 1\nservers:\n  - name: a\n    gpus: 2\n"
    for text in (counters, yaml, TEXTS["ras"], TEXTS["json"], texts.calibration()):
        assert cleaned(text) == text


def test_json_in_a_text() -> None:
    text = 'banner {\n[root@n01 ~]# cat\n{"a": 1}\n [2, 3]\n{"cut": \n'
    assert json_values(text) == [(3, {"a": 1}), (4, [2, 3])]


def test_several_tests_as_json_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(TEXTS["json"] + "done\n" + TEXTS["json"].replace("all_reduce_perf", "alltoall_perf"))
    assert [o.kind for o in gather([str(path)], PORTS).observations] == ["all_reduce"] * 2 + ["alltoall"] * 2


def test_json_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(TEXTS["json"][:-20])
    with pytest.raises(InputError, match="not JSON"):
        gather([str(path)], PORTS)
