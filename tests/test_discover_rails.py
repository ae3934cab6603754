"""Which rail a NIC is on: what the file says, the GPU beside it, its name on other hosts, its position, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.discover import Topology, load_topology
from optcc.discover.given import Given
from optcc.discover.rails import FIX
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError
from optcc.values.cluster import Cluster
from tests.one_source import read_nccl_xml
from tests.test_discover_sysfs import card, rdma
from tests.topology_texts import legend, matrix


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
