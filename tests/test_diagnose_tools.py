"""Operators' tools as evidence: lists of ports, counters, Inspector's metrics, Mooncake's log; and whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, port
from optcc.diagnose.readers import gather
from optcc.diagnose.verdict import judge
from optcc.errors import InputError
from optcc.values.cluster import Cluster
from tests import diagnosis_texts, host_texts
from tests import tool_texts as tools

HOSTS = ["node1", "node2", "node3"]
NICS = {f"mlx5_{i}": 400 for i in range(4)}


def cluster() -> NicDirections:
    made = Cluster.uniform(servers=3, nics=4, rate="400Gb/s")
    servers = []
    for host, server in zip(HOSTS, made.servers, strict=True):
        nics = tuple(type(n)(f"mlx5_{i}", n.out_rate, n.in_rate, n.rail, n.gpu) for i, n in enumerate(server.nics))
        servers.append(type(server)(host, nics, 4))
    return NicDirections(Cluster(tuple(servers)))


PORTS = cluster()


def given(tmp_path: Path, **files: str) -> Evidence:
    """Of files by name; ``__`` stands for ``=`` and ``_of_`` for ``/`` before it."""
    sources = []
    for name, text in files.items():
        owner, _, file = name.rpartition("__")
        path = tmp_path / f"{file}.txt"
        path.write_text(text)
        sources.append(f"{owner.replace('_of_', '/')}={path}" if owner else str(path))
    return gather(sources, PORTS)


def slow(found: Evidence) -> dict[str, float]:
    """NIC -> the part of its rate at which its link runs."""
    assert all(o.kind == "link" for o in found.observations)
    return {PORTS.names[number // 2]: part for o in found.observations for number, part in o.used.items()}


SLOWER = {**NICS, "mlx5_1": 100}
DOWN = ["mlx5_3"]
LISTS = {
    "ibstat": host_texts.ibstat(SLOWER, DOWN),
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
    named = {f.nic: f.sure for f in judge(found, PORTS).findings}
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
    assert [(PORTS.names[s.nic or 0], s.what.split(" (")[0]) for s in found.signs] == [
        ("node1/mlx5_1", "symbol_error 65535 or more since the driver was loaded"),
        ("node1/mlx5_1", "link_downed 3 since the driver was loaded"),
        ("node1/mlx5_1", "port_rcv_errors 17 since the driver was loaded"),
    ]


def test_perfquery_by_the_lid_that_another_file_tells(tmp_path: Path) -> None:
    found = given(tmp_path, perf=tools.perfquery(lid=3, **COUNTERS), node3=tools.ibstatus(NICS))
    assert {PORTS.names[s.nic or 0] for s in found.signs} == {"node3/mlx5_2"}
    with pytest.raises(InputError, match=r"perfquery.*SERVER/NIC=.*sysfs"):
        given(tmp_path, alone=tools.perfquery(**COUNTERS))


def test_counters_twice(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        node1_of_mlx5_1__a=tools.perfquery(LinkDownedCounter=3),
        node1_of_mlx5_2__b=tools.perfquery(LinkDownedCounter=3),
        node1_of_mlx5_1__c=tools.perfquery(LinkDownedCounter=5, PortRcvErrors=0),
    )
    said = [(PORTS.names[s.nic or 0], s.what.split(" (")[0]) for s in found.signs]
    assert said[-1] == ("node1/mlx5_1", "link_downed 2 in between")


def test_counters_of_several_ports_in_one_file(tmp_path: Path) -> None:
    """As a loop over the NICs prints them, beside ibstat, which tells whose the LIDs are."""
    parts = [tools.perfquery(lid=i + 1, PortRcvErrors=10 * i) for i in range(4)]
    found = given(tmp_path, node2="".join(parts) + tools.ibstatus(SLOWER, DOWN))
    said = {PORTS.names[s.nic or 0]: s.what.split(" ")[1] for s in found.signs if "port_rcv_errors" in s.what}
    assert said == {"node2/mlx5_1": "10", "node2/mlx5_2": "20", "node2/mlx5_3": "30"}
    assert slow(found) == {"node2/mlx5_1": 0.25, "node2/mlx5_3": NOTHING}
    eth = [tools.ethtool_s(f"[root@node2 ~]# ethtool -S mlx5_{i}", link_down_events_phy=i) for i in range(4)]
    by_command = given(tmp_path, node2__e="".join(eth))
    assert [(PORTS.names[s.nic or 0], s.what.split(" ")[1]) for s in by_command.signs] == [
        (f"node2/mlx5_{i}", f"{i}") for i in (1, 2, 3)
    ]


def test_ethtool_s(tmp_path: Path) -> None:
    links = tools.rdma_link([*NICS])
    text = tools.ethtool_s("$ sudo ethtool -S ens3f0np0", link_down_events_phy=7)
    found = given(tmp_path, node2__e=text, node2__links=links)
    assert [(PORTS.names[s.nic or 0], s.what.split(" (")[0]) for s in found.signs] == [
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
