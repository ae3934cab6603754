"""One cluster of many hosts, and of tools that tell NICs alone or GPUs alone."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cli import main
from optcc.discover import Topology, load_topology
from optcc.discover.given import Given, expand_hosts
from optcc.discover.rails import FIX
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError
from optcc.values.cluster import Cluster
from tests import host_texts as texts
from tests.effort import cases
from tests.mutations import mutated
from tests.one_source import read_nccl_xml
from tests.test_discover_sysfs import card, interface, rdma
from tests.topology_texts import hopper, legend, matrix, survives


def gpu(dev: int) -> str:
    return f'<pci><gpu dev="{dev}" sm="90" rank="{dev}"/></pci>'


def net(name: str, dev: int, rest: str = "", rail: int | str | None = None) -> str:
    rest += "" if rail is None else f' rail="{rail}"'
    return f'<pci><nic><net name="{name}" dev="{dev}" speed="400000" gdr="1" {rest}/></nic></pci>'


def beside(*nics: str, rail: int | None = None) -> str:
    """A host of four GPUs, each behind a switch of its own, with the NIC mlx5_N beside GPU N where it is listed."""
    mine = [f"mlx5_{g}" for g in range(4)]
    each = [net(name, nics.index(name), rail=rail) if name in nics else "" for name in mine]
    return "".join(f"<pci>{gpu(g)}{nic}</pci>" for g, nic in enumerate(each))


def alone(*nics: str) -> str:
    """A host without GPUs."""
    return "".join(net(name, dev) for dev, name in enumerate(nics))


def hosts(*bodies: str) -> str:
    cpus = "".join(f'<cpu host_hash="0x{i + 1:x}">{body}</cpu>' for i, body in enumerate(bodies))
    return f"<system>{cpus}</system>"


def read(text: str, nics: str | None = None) -> Topology:
    return read_nccl_xml(text.encode(), "t.xml", Given.parse(nics=nics))


def rails(found: Topology | Cluster) -> list[dict[str, int | None]]:
    cluster = found if isinstance(found, Cluster) else found.cluster
    return [{nic.name: nic.rail for nic in server.nics} for server in cluster.servers]


def notes(found: Topology) -> list[str]:
    return [str(a) for a in found.assumed if a.fix == FIX]


FULL = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
PLANES = 'plane="7"', 'plane="9"'
LATER = {"mlx5_2": 2, "mlx5_3": 3}


def test_the_gpu_beside_a_nic_tells_its_rail() -> None:
    found = read(hosts(beside(*FULL), beside("mlx5_2", "mlx5_3"), beside("mlx5_0", "mlx5_1")))
    assert rails(found) == [{**LATER, "mlx5_0": 0, "mlx5_1": 1}, LATER, {"mlx5_0": 0, "mlx5_1": 1}]
    (note,) = notes(found)
    assert "server1: rails are numbered by the GPU beside the NIC, not by position: mlx5_2 on rail 2" in note
    assert "rails: by the GPU beside the NIC" in found.read


def test_one_host_that_lacks_a_nic_in_the_middle() -> None:
    assert rails(read(hosts(beside("mlx5_0", "mlx5_2", "mlx5_3")))) == [{"mlx5_0": 0, **LATER}]


def test_what_the_file_says_comes_before_the_gpu() -> None:
    def said(*numbers: int) -> str:
        return "".join(f"<pci>{gpu(i)}{net(f'mlx5_{i}', i, rail=n)}</pci>" for i, n in enumerate(numbers))

    found = read(hosts(said(5, 6), said(5, 7)))
    assert rails(found) == [{"mlx5_0": 5, "mlx5_1": 6}, {"mlx5_0": 5, "mlx5_1": 7}]
    assert any("beside GPU1 on rails 6 (server0/mlx5_1), 7 (server1/mlx5_1)" in note for note in notes(found))
    assert "rails: as the file says" in found.read


def test_rails_that_the_file_says_for_some_nics_number_the_others_too() -> None:
    """Rails count from 1 here: the NICs beside GPUs 1 and 2 are on rails 2 and 3."""
    first = "".join(f"<pci>{gpu(i)}{net(f'mlx5_{i}', i, rail=i + 1)}</pci>" for i in range(4))
    found = read(hosts(first, beside("mlx5_1", "mlx5_2")))
    assert rails(found)[1] == {"mlx5_1": 2, "mlx5_2": 3}
    assert "rails: as the file says, else by the GPU beside the NIC" in found.read
    short = read(hosts(first.partition(f"<pci>{gpu(2)}")[0], beside("mlx5_1", "mlx5_3")))
    assert rails(short)[1] == {"mlx5_1": 2, "mlx5_3": 4}, "3 would be a rail of the file's, and another one maybe"


@pytest.mark.parametrize("value", ["x", "-2", "99999", ""])
def test_a_rail_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"t.xml:1: <net mlx5_0>.*rail 0 to 32767"):
        read(hosts(net("mlx5_0", 0, rail=value)))


def test_an_undefined_rail_is_none() -> None:
    assert rails(read(hosts(beside("mlx5_1", rail=-1)))) == [{"mlx5_1": 1}]


def test_nics_of_one_rail_and_different_planes_do_not_meet() -> None:
    both = "".join(
        f"<pci>{gpu(i)}{net(f'p{i}a', 2 * i, PLANES[0], i)}{net(f'p{i}b', 2 * i + 1, PLANES[1], i)}</pci>"
        for i in range(2)
    )
    found = read(hosts(both))
    assert rails(found) == [{"p0a": 0, "p0b": 1, "p1a": 2, "p1b": 3}]
    (note,) = notes(found)
    assert "2 planes" in note


def test_nics_beside_one_gpu_are_on_one_rail_and_said_to_be() -> None:
    found = read(hosts(f"<pci>{gpu(0)}{net('a', 0)}{net('b', 1)}</pci><pci>{gpu(1)}{net('c', 2)}</pci>"))
    assert rails(found) == [{"a": 0, "b": 0, "c": 1}]
    assert any("reach each other: 2 on rail 0" in note for note in notes(found))


def test_names_tell_rails_where_no_gpu_does() -> None:
    found = read(hosts(alone(*FULL), alone("mlx5_2", "mlx5_3")))
    assert rails(found)[1] == LATER
    assert any("by the NIC's name on other hosts" in note for note in notes(found))
    none_has_all = read(hosts(alone("a", "b"), alone("b", "c"), alone("c", "a")))
    assert rails(none_has_all) == [{"a": 0, "b": 1}, {"b": 1, "c": 2}, {"c": 2, "a": 0}]


def test_names_tell_which_of_two_gpus_behind_one_switch() -> None:
    """Two GPUs and two NICs behind each switch: the NIC that is left is beside both."""

    def pairs(*names: str) -> str:
        both = ((gpu(0) + gpu(1), ("a", "b")), (gpu(2) + gpu(3), ("c", "d")))
        nics = [("".join(net(n, names.index(n)) for n in mine if n in names), gpus) for gpus, mine in both]
        return "".join(f"<pci>{gpus}{here}</pci>" for here, gpus in nics)

    found = read(hosts(pairs("a", "b", "c", "d"), pairs("b", "c"), pairs("d", "a", "b")))
    assert rails(found)[1:] == [{"b": 1, "c": 2}, {"a": 0, "b": 1, "d": 3}]


def test_position_is_what_is_left_and_said_where_hosts_differ() -> None:
    same = read(hosts(alone("a", "b"), alone("x", "y")))
    assert rails(same) == [{"a": 0, "b": 1}, {"x": 0, "y": 1}]
    assert notes(same) == []
    assert "rails: by position" in same.read
    fewer = read(hosts(alone("a", "b"), alone("x")))
    assert rails(fewer)[1] == {"x": 0}
    assert any("nothing but position" in note for note in notes(fewer))
    renamed = read(hosts(alone("a", "b", "c"), alone("a", "new", "c")))
    assert rails(renamed)[1] == {"a": 0, "new": 1, "c": 2}


def test_a_host_that_lost_a_gpu_keeps_rails_by_name() -> None:
    """The driver numbers the GPUs behind the lost one anew; the NICs keep their names."""
    lost = "".join(f"<pci>{gpu(dev)}{net(f'mlx5_{dev + 1}', dev)}</pci>" for dev in range(3))
    assert rails(read(hosts(beside(*FULL), lost)))[1] == {"mlx5_1": 1, **LATER}


def test_nics_left_out_do_not_move_others() -> None:
    for nics in ("^mlx5_1", "mlx5_0,mlx5_[2-3]"):
        assert rails(read(hosts(beside(*FULL)), nics)) == [{"mlx5_0": 0, **LATER}]
        assert rails(read(hosts(alone(*FULL)), nics)) == [{"mlx5_0": 0, **LATER}]
    pair = hosts(f"<pci>{gpu(0)}{gpu(1)}{net('a', 0)}{net('b', 1)}</pci>")
    assert rails(read(pair, "^a")) == [{"b": 1}]
    broken = hosts(beside(*FULL).replace('name="mlx5_1" dev="1" speed="400000"', 'name="mlx5_1" dev="1" speed="-1"'))
    assert rails(read(broken, "^mlx5_1")) == [{"mlx5_0": 0, **LATER}]


def test_a_false_lower_bound_was_here(tmp_path: Path) -> None:
    """Server0 is the hub on four rails, of 400 Gb/s each; with rails by position the bound was a third too high."""
    source, written = tmp_path / "t.xml", tmp_path / "t.yaml"
    source.write_text(hosts(beside(*FULL), beside("mlx5_2", "mlx5_3"), beside("mlx5_0", "mlx5_1")))
    done = CliRunner().invoke(main, ["topo", str(source), "-o", str(written)])
    assert done.exit_code == 0, done.output
    written.write_text(written.read_text() + "fabric: {rails: true}\n")
    cluster = load_topology(written).cluster
    assert rails(cluster)[1] == LATER
    assert float(optcc.lower_bound(cluster, 2**30).seconds) == pytest.approx(2**30 / 100e9, rel=1e-5)
    plan = optcc.plan(cluster, 2**22)
    optcc.verify(plan.schedule())
    ports = plan.schedule().ports
    used = {(ports[out].rail, ports[into].rail) for out, into in _lanes(plan.schedule())}
    assert used
    assert all(out == into for out, into in used)


def _lanes(schedule: optcc.Schedule) -> Sequence[tuple[int, int]]:
    return [(lane.out, lane.into) for route in schedule.routes for lane in route.lanes]


YAML = """optcc: 1
fabric: {rails: true}
servers:
- {name: a, nics: [{name: mlx5_0, rate: 1Gb/s}, {name: mlx5_1, rate: 1Gb/s}, {name: mlx5_2, rate: 1Gb/s}]}
- {name: b, count: 2, nics: [{name: mlx5_2, rate: 1Gb/s}]}
- {name: c, gpus: 4, nics: [{name: x, rate: 1Gb/s, gpu: 2}, {name: y, rate: 1Gb/s, rail: 0}]}
"""


def test_yaml_without_rails_is_read_alike() -> None:
    found = read_yaml(YAML.encode(), "t.yaml", Given())
    assert rails(found)[1:] == [{"mlx5_2": 2}, {"mlx5_2": 2}, {"x": 2, "y": 0}]
    assert found.cluster.servers[1].nics is found.cluster.servers[2].nics, "equal servers share their NICs"
    assert any("b-0: rails are numbered by the NIC's name" in note for note in notes(found))
    again = read_yaml(write_yaml(found.cluster).encode(), "t.yaml", Given())
    assert again.cluster == found.cluster
    assert again.notes == ()
    assert notes(read_yaml(YAML.replace("rails: true", "rails: false").encode(), "t.yaml", Given())) == []


def test_nvidia_smi_and_sysfs_tell_by_the_gpu(tmp_path: Path) -> None:
    def cell(row: str, column: str) -> str:
        nic, other = sorted((row, column), reverse=True)
        return "PIX" if nic.startswith("NIC") and other == f"GPU{(0, 2, 3)[int(nic[3:])]}" else "SYS"

    text = tmp_path / "topo.txt"
    names = ["mlx5_0", "mlx5_2", "mlx5_3"]
    text.write_text(matrix(4, ["NIC0", "NIC1", "NIC2"], cell) + legend(names))
    assert rails(load_topology(text, nic_rate="400Gb/s")) == [{"mlx5_0": 0, **LATER}]
    assert rails(load_topology(text, nic_rate="400Gb/s", nics="mlx5_2")) == [{"mlx5_2": 2}]
    root = tmp_path / "sys"
    for i in range(4):
        card(root, 0x10 * (i + 1), 0, "0x030200", "0x10de")
        if i != 1:
            rdma(root, 0x10 * (i + 1), f"mlx5_{i}")
    assert rails(load_topology(root)) == [{"mlx5_0": 0, **LATER}]
    assert rails(load_topology(root, nics="^mlx5_2")) == [{"mlx5_0": 0, "mlx5_3": 3}]


@pytest.mark.parametrize(
    ("text", "names"),
    [("a,b", ["a", "b"]), ("z1,a2.example.org,b-3_x", ["z1", "a2.example.org", "b-3_x"])],
)
def test_hosts_without_ranges_need_no_library(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[001-004,007],login", ["node001", "node002", "node003", "node004", "node007", "login"]),
        ("g-[1-2]x[0,1]", ["g-1x0", "g-1x1", "g-2x0", "g-2x1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("b[1-2],a[1-2]", ["b1", "b2", "a1", "a2"]),
    ],
)
def test_ranges_are_expanded_in_order(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names
    cluster = load_topology("uniform:servers=1,rate=1Gb/s", hosts=text).cluster
    assert [server.name for server in cluster.servers] == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("host1:8,host2:8", ["host1", "host2"]),
        ("h1.example.org:4,h2:16,h3", ["h1.example.org", "h2", "h3"]),
        ("host1 slots=8 max_slots=16\nhost2 slots=8\n", ["host1", "host2"]),
        ("# by hand\n\nb:8\na:8 # spare\nc\n", ["b", "a", "c"]),
        ("n1\nn1\nn2\nn2\n", ["n1", "n2"]),
        ("host1 slots = 8", ["host1"]),
        ("node[1-2] slots=8\nnode[4-5]:8\n", ["node1", "node2", "node4", "node5"]),
    ],
)
def test_mpirun_s_lists_and_host_files(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


def test_a_host_file_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("host1 slots=8\nhost2 slots=8\nhost3 slots=8\n")
    args = ["topo", "uniform:servers=3,nics=2,rate=400Gb/s", "--hosts", str(path), "--json"]
    found = json.loads(CliRunner().invoke(main, args).stdout)
    assert [server["name"] for server in found["servers"]] == ["host1", "host2", "host3"]


@pytest.mark.parametrize(
    "text",
    [
        "host1:8:9",
        "host1 slots=abc\nhost2 slots=8",
        "rank 0=host1 slot=0\nrank 1=host2 slot=0",
        "[fd00::1]:8,[fd00::2]:8",
        "host1:",
        "a slots=8, b slots=8",
        "a\n-b\n",
        "\n#\n ",
        "",
        "a,",
        "@all",
        "a[",
        "a]",
        "a*",
        "a!b",
        "n[3-1]",
        "n[1-2/2]",
        "n[]",
        "a b",
        "n[1-70000]",
        "é",
        "x" * 70000,
    ],
)
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--hosts"):
        expand_hosts(text)


@given(st.text(alphabet="ab1029[]-,@*!&^/. ", max_size=30))
def test_any_text_is_a_list_of_hosts_or_refused(text: str) -> None:
    try:
        names = expand_hosts(text)
    except InputError:
        return
    assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize("text", ["fd77::10", "[fd77::10]:8,host2", "fe80::1%eth0", "fd77::10 slots=8\nhost2 slots=8"])
def test_ipv6_addresses_are_named(text: str) -> None:
    with pytest.raises(InputError, match="an IPv6 address in a list of hosts"):
        expand_hosts(text)


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
