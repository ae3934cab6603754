"""Verdicts that are wider than a NIC: a server, all slow alike and why, more than nameplate; counts that are whole."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

from optcc.diagnose.diagnosis import diagnose, diagnosis_json, metrics_text
from optcc.diagnose.evidence import IN, OUT, Evidence, NicDirections, Observation, port
from optcc.diagnose.fit import Sure
from optcc.diagnose.log_evidence import ACS, BOND, DISABLED, MTU, NO_DIRECT, OFF, SOCKETS, causes_in
from optcc.diagnose.print_diagnosis import print_diagnosis
from optcc.diagnose.readers import read_text
from optcc.diagnose.verdict import Outcome, Verdict, judge
from optcc.values.cluster import Cluster
from tests import diagnosis_texts as texts
from tests.diagnosis_rig import Lab


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
