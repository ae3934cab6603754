"""Evidence of NCCL's log and RAS, and of calibrations; and what is no evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, port
from optcc.diagnose.readers import gather, read_text, watched
from optcc.diagnose.verdict import judge
from optcc.discover.nccl_log import parse_log
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server
from tests import diagnosis_texts, tool_texts
from tests import diagnosis_texts as texts
from tests import tool_texts as tools
from tests.diagnosis_texts import FUSED, PORTS, RATE, RATES
from tests.test_discover_texts import bonded


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
