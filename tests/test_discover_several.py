"""One cluster of many hosts, and of tools that tell NICs alone or GPUs alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.discover import Topology, load_topology
from optcc.errors import InputError
from tests import host_texts as texts
from tests.effort import cases
from tests.mutations import mutated
from tests.test_discover_rails import beside, gpu, hosts, net, rails
from tests.test_discover_sysfs import card, interface, rdma
from tests.topology_texts import hopper, legend, matrix, survives

GBPS = 10**9 // 8
FOUR = [f"mlx5_{i}" for i in range(4)]
SMI = matrix(8, [f"NIC{i}" for i in range(8)], hopper) + legend([f"mlx5_{i}" for i in range(8)])


def dump(*nics: str) -> str:
    return f"<system><cpu>{beside(*nics)}</cpu></system>"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def names(found: Topology) -> list[str]:
    return [server.name for server in found.cluster.servers]


def nics(found: Topology) -> list[dict[str, int]]:
    """Of each server: NIC -> Gb/s."""
    return [{nic.name: int(nic.out_rate / GBPS) for nic in server.nics} for server in found.cluster.servers]


def said(found: Topology, *parts: str) -> bool:
    return any(all(part in note for part in parts) for note in found.notes)


# Many files


@pytest.mark.parametrize("way", ["folder", "pattern", "files", "named"])
def test_a_server_of_each_file(way: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "dumps", {f"node{i}.site.xml": dump(*FOUR) for i in (2, 1, 3)})
    paths = [str(path) for path in sorted(folder.iterdir())]
    sources = {
        "folder": [str(folder)],
        "pattern": [str(folder / "node*.xml")],
        "files": paths,
        "named": [f"node{i}={path}" for i, path in enumerate(paths, 1)],
    }[way]
    found = load_topology(sources)
    assert names(found) == ["node1", "node2", "node3"]
    assert nics(found) == [dict.fromkeys(FOUR, 400)] * 3


def test_unlike_hosts_keep_their_rails_and_what_one_lacks_is_said(tmp_path: Path) -> None:
    bare = "".join(net(name, dev) for dev, name in enumerate(("mlx5_0", "mlx5_3")))  # no GPU near: by name
    said_rails = "".join(f"<pci>{gpu(g)}{net(FOUR[g], g, rail=g)}</pci>" for g in range(4))
    folder = written(
        tmp_path / "d",
        {
            "a.xml": dump(*FOUR),
            "b.xml": dump("mlx5_1", "mlx5_3"),  # by the GPU beside
            "c.xml": f"<system><cpu>{bare}</cpu></system>",
            "d.xml": f"<system><cpu>{said_rails}</cpu></system>",
        },
    )
    found = load_topology(str(folder))
    whole = {name: rail for rail, name in enumerate(FOUR)}
    assert rails(found) == [whole, {"mlx5_1": 1, "mlx5_3": 3}, {"mlx5_0": 0, "mlx5_3": 3}, whole]
    assert [server.gpus for server in found.cluster.servers] == [4, 4, 2, 4]
    assert said(found, "b: lacks mlx5_0, which most servers have")
    assert not said(found, "a: lacks")
    assert found.read[-1].startswith("rails: as the file says, else by the GPU beside")


def test_several_hosts_in_a_dump_beside_another_file(tmp_path: Path) -> None:
    two = hosts(beside(*FOUR), beside(*FOUR))
    folder = written(tmp_path / "d", {"domain.xml": two, "node9.xml": dump(*FOUR)})
    assert names(load_topology(str(folder))) == ["domain-0", "domain-1", "node9"]


def test_trees_of_several_hosts(tmp_path: Path) -> None:
    for host, rate in (("node1", "400 Gb/sec (4X NDR)"), ("node2", "200 Gb/sec (4X HDR)")):
        rdma(tmp_path / "dumps" / host / "sys", 0x10, "mlx5_0", rate)
        (tmp_path / "dumps" / host / "sys/class/net").mkdir(parents=True)
    found = load_topology(str(tmp_path / "dumps"))
    assert (names(found), nics(found)) == (["node1", "node2"], [{"mlx5_0": 400}, {"mlx5_0": 200}])
    assert names(load_topology(str(tmp_path / "dumps/node1"))) == ["server0"]


def test_many_hosts_are_told_in_few_lines(tmp_path: Path) -> None:
    folder = written(tmp_path / "d", {f"n{i:03}.txt": texts.ibstat(dict.fromkeys(FOUR, 400)) for i in range(40)})
    found = load_topology(str(folder))
    assert len(found.cluster.servers) == 40
    assert len(found.read) < 15
    assert "n000 to n039 (40): 4 GPUs, 4 NICs of 400Gb/s" in found.read
    assert len(found.notes) < 6


def test_topo_takes_many_and_writes_one(tmp_path: Path) -> None:
    written(tmp_path / "d", {"a.xml": dump(*FOUR), "b.xml": dump(*FOUR[:3])})
    words = ["topo", str(tmp_path / "d/a.xml"), f"second={tmp_path / 'd/b.xml'}", "-o", str(tmp_path / "t.yaml")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    again = load_topology(str(tmp_path / "t.yaml"))
    assert names(again) == ["a", "second"]
    assert again.cluster == load_topology(words[1:3]).cluster
    bound = CliRunner().invoke(main, ["bound", str(tmp_path / "d"), "--size", "1GiB"])
    assert bound.exit_code == 0, bound.output


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (["{d}/a.xml", "{d}/a.xml"], "two servers of one name"),
        (["{d}/none*.xml"], "no file"),
        (["{d}/empty"], "no file"),
        (["{d}/a.xml", "uniform:servers=2,nics=1,rate=1Gb/s"], "a preset among several sources"),
        (["{d}/a.xml", "{d}/rails.yaml"], "a whole cluster among several sources"),
        (["a/b={d}/a.xml"], "cannot be read"),
        (["n={d}/ibstat.txt", "n={d}/other.txt"], "two texts of one kind for one server"),
        (["n={d}/a.xml", "n={d}/ibstat.txt"], "a server told whole, and a part of it"),
        (["n={d}/rocm.txt"], "GPUs without NICs"),
        (["n={d}/links.json"], "the rates of NICs are not told"),
        (["n={d}/down.txt"], "no NIC with a link"),
        (["n={d}/cut.txt", "n={d}/ibstat.txt"], "a table of links that is not whole"),
        (["n={d}/twice.txt"], "a port twice"),
    ],
)
def test_what_cannot_be_one_cluster_is_refused(sources: list[str], says: str, tmp_path: Path) -> None:
    ibstat = texts.ibstat({"mlx5_0": 400})
    folder = written(
        tmp_path / "d",
        {
            "a.xml": dump(*FOUR),
            "ibstat.txt": ibstat,
            "other.txt": texts.ibstat({"mlx5_1": 400}),
            "twice.txt": ibstat + ibstat,
            "down.txt": texts.ibstat({"mlx5_0": 400}, down=["mlx5_0"]),
            "rocm.txt": texts.rocm_smi(4),
            "cut.txt": "\n".join(line for line in texts.rocm_smi(4).splitlines() if not line.startswith("GPU3")),
            "links.json": texts.rdma_link(FOUR),
            "rails.yaml": "optcc: 1\nfabric: {rails: true}\nservers:\n- {name: x, nics: [{name: n, rate: 1Gb/s}]}\n",
        },
    )
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=says):
        load_topology([source.format(d=folder) for source in sources])


# Texts in which several hosts speak


def labelled(host: str, text: str) -> str:
    return "".join(f"{host}: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("way", ["pdsh", "dshbak", "ansible"])
def test_hosts_of_one_text(way: str, tmp_path: Path) -> None:
    whole, less = texts.ibstat(dict.fromkeys(FOUR, 400)), texts.ibstat({"mlx5_0": 400, "mlx5_2": 100})
    rule = "-" * 16
    text = {
        "pdsh": labelled("n1", whole) + labelled("n2", whole) + labelled("n3", less),
        "dshbak": f"{rule}\nn1,n2\n{rule}\n{whole}{rule}\nn3\n{rule}\n{less}",
        "ansible": f"n1 | CHANGED | rc=0 >>\n{whole}n2 | CHANGED | rc=0 >>\n{whole}n3 | SUCCESS | rc=0 >>\n{less}",
    }[way]
    (tmp_path / "all.txt").write_text(text)
    found = load_topology(str(tmp_path / "all.txt"))
    assert names(found) == ["n1", "n2", "n3"]
    assert nics(found)[2] == {"mlx5_0": 400, "mlx5_2": 100}
    assert rails(found)[2] == {"mlx5_0": 0, "mlx5_2": 2}


def test_hosts_of_one_text_are_added_to_by_another(tmp_path: Path) -> None:
    (tmp_path / "nics.txt").write_text(
        "".join(labelled(f"n{i}", texts.ibstat(dict.fromkeys(FOUR, 200))) for i in (1, 2))
    )
    (tmp_path / "gpus.txt").write_text("".join(labelled(f"n{i}", texts.rocm_smi(8)) for i in (1, 2)))
    found = load_topology([str(tmp_path / "nics.txt"), str(tmp_path / "gpus.txt")])
    assert [(s.name, s.gpus, len(s.nics)) for s in found.cluster.servers] == [("n1", 8, 4), ("n2", 8, 4)]


# Tools that tell a part of a host


def test_ibstat(tmp_path: Path) -> None:
    path = tmp_path / "ibstat.txt"
    path.write_text(texts.ibstat({**dict.fromkeys(FOUR, 400), "mlx5_4": 25}, ["mlx5_1"], models={"mlx5_4": "MT4117"}))
    found = load_topology(str(path))
    assert nics(found) == [{"mlx5_0": 400, "mlx5_2": 400, "mlx5_3": 400}]
    assert said(found, "mlx5_1: skipped, its link is down", "--fail server0/mlx5_1")
    assert said(found, "mlx5_4: skipped as a management port")
    assert said(found, "no GPU is told of")
    with_it = load_topology(str(path), nics="mlx5_[0-3]")
    assert list(nics(with_it)[0]) == FOUR


def test_two_ports_of_a_card(tmp_path: Path) -> None:
    one = texts.ibstat({"mlx5_0": 200})
    two = one[one.index("\tPort 1") :].replace("Port 1", "Port 2").replace("Rate: 200", "Rate: 100")
    (tmp_path / "t").write_text(one + two)
    assert nics(load_topology(str(tmp_path / "t"))) == [{"mlx5_0": 200, "mlx5_0:2": 100}]


@pytest.mark.parametrize("text", [texts.ibdev2netdev(FOUR, ["mlx5_2"]), texts.rdma_link(FOUR, ["mlx5_2"])])
def test_lists_of_links_have_no_rates(text: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    found = load_topology(str(tmp_path / "t"), nic_rate="200Gb/s,mlx5_3=100Gb/s")
    assert nics(found) == [{"mlx5_0": 200, "mlx5_1": 200, "mlx5_3": 100}]


@pytest.mark.parametrize("text", [texts.rocm_smi(8), texts.amd_smi(8)])
def test_amd_gpus_beside_nics(text: str, tmp_path: Path) -> None:
    written(tmp_path, {"gpus.txt": text, "nics.txt": texts.ibstat(dict.fromkeys(FOUR, 400))})
    found = load_topology([f"n={tmp_path}/gpus.txt", f"n={tmp_path}/nics.txt"])
    (server,) = found.cluster.servers
    assert (server.name, server.gpus, len(server.nics)) == ("n", 8, 4)
    assert any("8 GPUs, joined by xGMI" in line for line in found.read)


def test_nvidia_smi_with_the_rates_of_ibstat(tmp_path: Path) -> None:
    eight = {f"mlx5_{i}": 400 if i else 200 for i in range(8)}
    written(tmp_path, {"topo.txt": SMI, "ibstat.txt": texts.ibstat(eight, down=["mlx5_5"])})
    sources = [f"n={tmp_path}/topo.txt", f"n={tmp_path}/ibstat.txt"]
    found = load_topology(sources)
    del eight["mlx5_5"]
    assert nics(found) == [eight]
    assert rails(found)[0]["mlx5_6"] == 6
    assert said(found, "mlx5_5: skipped, its link is down", "--fail n/mlx5_5")
    assert nics(load_topology(sources, nic_rate="mlx5_1=100Gb/s", nics="mlx5_[15]")) == [{"mlx5_1": 100, "mlx5_5": 400}]


def test_nccl_log(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(texts.nccl_log(["n1", "n2"], FOUR, gpus=4))
    found = load_topology(str(path))
    assert (names(found), nics(found)) == (["n1", "n2"], [dict.fromkeys(FOUR, 400)] * 2)
    assert [nic.gpu for nic in found.cluster.servers[1].nics] == [0, 1, 2, 3]
    assert found.read[-1] == "rails: by the GPU beside the NIC"


def test_logs_of_a_jobs_processes_add_to_each_other(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        for g in range(4):
            text = texts.nccl_log(["n1", "n2"], FOUR, gpus=4, of=f"{host}:{100 + g}:")
            (tmp_path / f"nccl.{host}.{g}.log").write_text(text)
    found = load_topology(str(tmp_path))
    assert [(s.name, s.gpus, [nic.gpu for nic in s.nics]) for s in found.cluster.servers] == [
        (host, 4, [0, 1, 2, 3]) for host in ("n1", "n2")
    ]


def test_a_log_may_be_long_and_nothing_else(tmp_path: Path) -> None:
    log, rest = texts.nccl_log(["n1", "n2"], FOUR, gpus=4), "n1:100:200 [0] NCCL INFO more of the same\n" * 60_000
    (tmp_path / "job.log").write_text(log + rest)
    assert names(load_topology(str(tmp_path / "job.log"))) == ["n1", "n2"]
    with pytest.raises(InputError, match="too large for a topology"):
        load_topology(str(tmp_path / "job.log"), documents_only=True)
    (tmp_path / "t.yaml").write_text("# more of the same\n" * 150_000)
    with pytest.raises(InputError, match="too large for a topology"):
        load_topology(str(tmp_path / "t.yaml"))


# Ports of a NIC: fused ones, and bonds


def test_a_fused_nic_counts_once_and_a_host_that_has_one_of_its_ports_is_told(tmp_path: Path) -> None:
    fused = texts.nccl_log(["n1", "n2"], ["mlx5_0", "mlx5_1"], 200_000, gpus=1, fused="mlx5_0+mlx5_1")
    alone = texts.nccl_log(["n3"], ["mlx5_1"], 200_000, gpus=1)
    written(tmp_path / "d", {"ab.log": fused, "c.log": alone})
    found = load_topology(str(tmp_path / "d"))
    assert nics(found) == [{"mlx5_0+mlx5_1": 400}, {"mlx5_0+mlx5_1": 400}, {"mlx5_1": 200}]
    assert said(found, "n3: mlx5_1 alone, where most servers have mlx5_0+mlx5_1")
    assert [list(server.values()) for server in rails(found)] == [[0], [0], [0]]


def bonded(root: Path, speeds: Mapping[str, str], mode: str = "802.3ad 4") -> Path:
    """A sysfs with mlx5_bond_0, whose driver tells the rate of one port, over bond0 of these interfaces."""
    card(root, 0x20, 0, "0x030200", "0x10de")
    rdma(root, 0x10, "mlx5_bond_0", "200 Gb/sec (4X HDR)")
    port = next(root.rglob("mlx5_bond_0/ports/1"))
    for place, text in (("gids/0", "fe80::1"), ("gid_attrs/ndevs/0", "bond0"), ("gid_attrs/types/0", "RoCE v2")):
        (port / place).parent.mkdir(parents=True, exist_ok=True)
        (port / place).write_text(text + "\n")
    for bus, (name, speed) in enumerate(speeds.items(), 0x30):
        interface(root, bus, name, speed, "down" if speed == "-1" else "up")
    bond = root / "devices/virtual/net/bond0/bonding"
    bond.mkdir(parents=True)
    (bond / "slaves").write_text(" ".join(speeds) + "\n")
    (bond / "mode").write_text(mode + "\n")
    (root / "class/net/bond0").symlink_to("../../devices/virtual/net/bond0")
    return root


def test_a_bond_is_as_fast_as_its_ports_with_a_link(tmp_path: Path) -> None:
    whole = load_topology(str(bonded(tmp_path / "a", {"e0": "200000", "e1": "200000"})))
    assert nics(whole) == [{"mlx5_bond_0": 400}]
    assert said(whole, "mlx5_bond_0: a bond of 2 ports, 400Gb/s together")
    half = load_topology(str(bonded(tmp_path / "b", {"e0": "200000", "e1": "-1"})))
    assert nics(half) == [{"mlx5_bond_0": 200}]
    assert said(half, "degraded, a bond with e1 of its 2 ports without a link: 200Gb/s of 400Gb/s", "mlx5_bond_0=0.5")
    backup = load_topology(str(bonded(tmp_path / "c", {"e0": "200000", "e1": "200000"}, "active-backup 1")))
    assert nics(backup) == [{"mlx5_bond_0": 200}]


def test_a_bond_of_which_its_ports_are_not_told_is_doubted(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(texts.ibstat({"mlx5_bond_0": 200, "mlx5_bond_1": 200}))
    found = load_topology(str(tmp_path / "t"))
    assert said(found, "mlx5_bond_0 and 1 more: a bond by its name") or said(found, "mlx5_bond_0: a bond by its name")
    assert not said(load_topology(str(tmp_path / "t"), nic_rate="mlx5_bond_*=400Gb/s"), "a bond by its name")


# Broken texts

SAMPLES = {
    "ibstat": texts.ibstat(dict.fromkeys(FOUR, 400), down=["mlx5_3"]),
    "ibdev2netdev": texts.ibdev2netdev(FOUR),
    "rdma-link": texts.rdma_link(FOUR),
    "rocm-smi": texts.rocm_smi(2),
    "amd-smi": texts.amd_smi(2),
    "nccl-log": texts.nccl_log(["n1", "n2"], FOUR[:2], gpus=2, fused="mlx5_0+mlx5_1"),
    "smi": SMI,
    "pdsh": labelled("n1", texts.ibstat({"mlx5_0": 400})) + labelled("n2", texts.ibstat({"mlx5_0": 400})),
    "dshbak": "\n".join(["-" * 16, "n1,n2", "-" * 16, texts.ibstat({"mlx5_0": 400})]),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.cases
def test_broken_texts_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Beside a whole one, as a part of its server or as another."""
    path, other = tmp_path / "x.txt", tmp_path / "y.txt"
    other.write_text(texts.ibstat(dict.fromkeys(FOUR[:2], 400)))
    for seed in range(cases(300)):
        rng = random.Random(seed)
        path.write_text(mutated(SAMPLES[name], rng))
        sources = rng.choice([[str(path)], [f"n={path}", f"n={other}"], [f"m={path}", str(other)]])
        survives(lambda: load_topology(sources, nic_rate="400Gb/s"))  # noqa: B023


def test_every_sample_is_read_whole(tmp_path: Path) -> None:
    other = tmp_path / "y.txt"
    other.write_text(texts.ibdev2netdev(FOUR[:2]))
    for name, text in SAMPLES.items():
        (tmp_path / name).write_text(text)
        gpus = name in ("rocm-smi", "amd-smi")
        found = load_topology([f"n={tmp_path / name}", *([f"n={other}"] if gpus else [])], nic_rate="*=400Gb/s")
        assert all(nic.out_rate == Fraction(400 * GBPS) for s in found.cluster.servers for nic in s.nics), name
