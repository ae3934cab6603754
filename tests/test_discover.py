"""Topologies as read: the examples, what is skipped, what is assumed."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.discover import Measured, Topology, apply_failures, load_topology, parse_fail
from optcc.discover.given import Given
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError
from optcc.plans.files import load_plan, save_plan
from optcc.values.cluster import Cluster, Nic, Server
from tests.one_source import read_nccl_xml
from tests.topology_texts import survives

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
XML = EXAMPLES / "h100-8x400g.nccl-topo.xml"
YAML = EXAMPLES / "two-degraded.yaml"
GBPS = Fraction(125_000_000)


def read(cpu_content: str, nic_rate: Fraction | None = None) -> Topology:
    return read_nccl_xml(f"<system><cpu>{cpu_content}</cpu></system>".encode(), "t.xml", Given(nic_rate))


def net(name: str, dev: int, speed: int = 400000, rest: str = 'gdr="1"') -> str:
    return f'<pci><nic><net name="{name}" dev="{dev}" speed="{speed}" {rest}/></nic></pci>'


def names(server: Server) -> list[str]:
    return [nic.name for nic in server.nics]


def test_example_xml() -> None:
    found = load_topology(str(XML), servers=4)
    assert [server.name for server in found.cluster.servers] == ["server0", "server1", "server2", "server3"]
    for server in found.cluster.servers:
        assert server.gpus == 8
        assert names(server) == [f"mlx5_{i}" for i in range(8)]
        assert all(nic.out_rate == nic.in_rate == 400 * GBPS for nic in server.nics)
        assert [nic.rail for nic in server.nics] == list(range(8))
        assert [nic.gpu for nic in server.nics] == list(range(8))
        assert server.nvlink_rate == 370_800_000_000  # 18 links of 20.6 GB/s
    (note,) = found.notes
    assert "mlx5_8" in note
    assert "GPU-direct" in note


def test_example_yaml() -> None:
    found = load_topology(str(YAML))
    assert found.notes == ()
    a, b, *healthy = found.cluster.servers
    assert (a.name, b.name) == ("a", "b")
    assert [server.name for server in healthy] == [f"healthy-{i}" for i in range(6)]
    assert a.out_rate == 7 * 400 * GBPS
    assert [nic.rail for nic in a.nics] == [0, 1, 2, 4, 5, 6, 7]
    assert (b.out_rate, b.in_rate) == (2900 * GBPS, 2700 * GBPS)
    assert all(server.out_rate == 3200 * GBPS and server.nvlink_rate == 370_800_000_000 for server in healthy)


def test_one_server_is_noted() -> None:
    found = load_topology(str(XML))
    assert len(found.cluster.servers) == 1
    assert "--servers N" in found.notes[-1]


def test_kind_is_found_by_content(tmp_path: Path) -> None:
    for source in (XML, YAML):
        copy = tmp_path / "topology"
        copy.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
        assert load_topology(str(copy)).cluster == load_topology(str(source)).cluster


@pytest.mark.parametrize(
    "content", [b"\xff\xfe<\x00s\x00", b"\x80\x81", "<système/>".encode("latin-1"), b"optcc: \xe9"]
)
@pytest.mark.parametrize("ending", ["xml", "yaml"])
def test_other_encodings_are_refused(tmp_path: Path, content: bytes, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not (well-formed XML|YAML|a topology)"):
        load_topology(str(path))


# NCCL XML


def test_management_ports_are_skipped_with_a_note() -> None:
    found = read(net("mlx5_0", 0) + net("eth0", 1, 25000) + net("mlx5_1", 2, 50000))
    assert names(found.cluster.servers[0]) == ["mlx5_0", "mlx5_1"]  # 50 is 1/8 of 400: kept
    assert any("<net eth0>: skipped as a management port, 25Gb/s" in note for note in found.notes)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ('gdr="0"', "no GPU-direct"),
        ("", "no GPU-direct"),
        ('gdr="1" keep="0"', "not in use"),
        ('gdr="1" net="0"', "fused NIC"),
    ],
)
def test_unused_nics_are_skipped_with_a_note(rest: str, reason: str) -> None:
    found = read(net("mlx5_0", 0) + net("mlx5_1", 1, rest=rest))
    assert names(found.cluster.servers[0]) == ["mlx5_0"]
    assert any("<net mlx5_1>: skipped" in note and reason in note for note in found.notes)


def test_without_gpu_direct_anywhere_all_are_kept() -> None:
    found = read(net("mlx5_0", 0, rest='gdr="0"') + net("mlx5_1", 1, rest=""))
    assert names(found.cluster.servers[0]) == ["mlx5_0", "mlx5_1"]
    assert any("no NIC has GPU-direct" in note for note in found.notes)


def test_a_skipped_nic_may_lack_a_speed() -> None:
    assert names(read(net("mlx5_0", 0) + net("eth0", 1, -1, 'gdr="0"')).cluster.servers[0]) == ["mlx5_0"]


def test_ports_of_one_nic_get_names_of_their_own_and_rails_by_dev() -> None:
    second, first = net("mlx5_0", 1, rest='port="2" gdr="1"'), net("mlx5_0", 0, rest='port="1" gdr="1"')
    (server,) = read(second + first + net("mlx5_1", 2, rest='port="2" gdr="1"')).cluster.servers
    assert [(nic.name, nic.rail) for nic in server.nics] == [("mlx5_0", 0), ("mlx5_0:2", 1), ("mlx5_1", 2)]


@pytest.mark.parametrize("speed", [-1, 0, 10_000_001])
def test_nic_rate_stands_in_for_a_speed_that_is_not_given(speed: int) -> None:
    found = read(net("mlx5_0", 0, speed) + net("mlx5_1", 1, 200000), nic_rate=400 * GBPS)
    assert [nic.out_rate for nic in found.cluster.servers[0].nics] == [400 * GBPS, 200 * GBPS]
    assert any("<net mlx5_0>" in note and "--nic-rate" in note for note in found.notes)


def test_a_nic_rate_without_use_is_noted(tmp_path: Path) -> None:
    for source in (str(XML), str(YAML), "uniform:servers=4,rate=400Gb/s"):
        assert any("--nic-rate was not used" in note for note in load_topology(source, nic_rate="1Gb/s").notes)


def test_gpus_that_share_a_switch_share_its_nics() -> None:
    gpus = "".join(f'<pci><gpu dev="{i}" rank="{i}"/></pci>' for i in range(2))
    switches = f"<pci>{gpus}{net('a', 0)}{net('b', 1)}<pci>{net('c', 2)}</pci></pci>"
    (server,) = read(switches + net("far", 3)).cluster.servers
    assert [nic.gpu for nic in server.nics] == [0, 1, 0, None]
    assert server.gpus == 2


def test_gpus_that_take_no_part_do_not_count() -> None:
    (server,) = read(net("a", 0) + '<pci><gpu dev="0"/></pci><pci><gpu dev="1" rank="0"/></pci>').cluster.servers
    assert server.gpus == 1


def test_without_gpus_one_per_nic_is_assumed() -> None:
    found = read(net("a", 0) + net("b", 1))
    assert found.cluster.servers[0].gpus == 2
    assert any("no <gpu>" in note for note in found.notes)


@pytest.mark.parametrize(
    ("sm", "per_link"),
    [
        (60, "18"),
        (70, "20"),
        (75, "20"),
        (80, "20"),
        (86, "12"),
        (87, "20"),
        (89, "20"),
        (90, "20.6"),
        (100, "40.1"),
        (103, "40.1"),
    ],
)
def test_nvlink_rate_is_nccls(sm: int, per_link: str) -> None:
    to_switch, to_gpu = '<nvlink count="2" tclass="0x068000"/>', '<nvlink count="1" tclass="0x030200"/>'
    links = f'{to_switch}{to_gpu}<nvlink count="9" tclass="0x068001"/>'  # the last joins a CPU and does not count
    (server,) = read(f'{net("a", 0)}<pci><gpu dev="0" sm="{sm}">{links}</gpu></pci>').cluster.servers
    assert server.nvlink_rate == 3 * Fraction(per_link) * 10**9


def test_nvlink_rate_is_the_least_of_the_gpus() -> None:
    gpus = '<gpu dev="0" sm="90"><nvlink count="18"/></gpu><gpu dev="1" sm="90"><nvlink count="6"/></gpu>'
    found = read(f"{net('a', 0)}<pci>{gpus}</pci>")
    assert found.cluster.servers[0].nvlink_rate == 6 * Fraction("20.6") * 10**9
    assert any("differ in NVLink rate" in note for note in found.notes)


def test_a_gpu_without_nvlink_does_not_take_it_from_the_others() -> None:
    links = ['<nvlink count="18"/>', "", '<nvlink count="18"/>']
    gpus = "".join(f'<gpu dev="{i}" sm="90" rank="{i}">{link}</gpu>' for i, link in enumerate(links))
    found = read(f"{net('a', 0)}<pci>{gpus}</pci>")
    assert found.cluster.servers[0].nvlink_rate == 18 * Fraction("20.6") * 10**9
    assert any("GPU1: has no NVLink" in note and "fault" in note for note in found.notes)
    assert not any("differ" in note for note in found.notes)
    none = read(f"{net('a', 0)}<pci>{gpus.replace('nvlink', 'other')}</pci>")
    assert none.cluster.servers[0].nvlink_rate == 0
    assert not any("NVLink" in note for note in none.notes)


# YAML and presets


def test_yaml_scalars_mean_what_is_written() -> None:
    text = """
        optcc: "1"
        servers:
        - {name: 12:30, gpus: '3', nics: [{name: yes, rate: 1Gb/s, rail: 7}, {name: 1.50, rate: 1Gb/s}]}
        - nics: [{name: 2001-99-99, rate: 1Gb/s}]
    """
    found = read_yaml(text.encode(), "t.yaml", Given())
    first, second = found.cluster.servers
    assert (first.name, first.gpus, names(first)) == ("12:30", 3, ["yes", "1.50"])
    assert [nic.rail for nic in first.nics] == [7, 1]
    assert (second.name, second.gpus, names(second)) == ("server1", 1, ["2001-99-99"])
    assert found.notes == (
        "t.yaml:5: $.servers[1]: no gpus; one GPU per NIC is assumed. To correct it: gpus: in the file.",
    )


def test_yaml_copies_get_names_of_their_own() -> None:
    nics = "nics: [{name: a, rate: 1Gb/s}]"
    text = f"optcc: 1\nservers: [{{name: x, count: 2, {nics}}}, {{count: 2, {nics}}}, {{name: y, {nics}}}, {{{nics}}}]"
    servers = read_yaml(text.encode(), "t.yaml", Given()).cluster.servers
    assert [server.name for server in servers] == ["x-0", "x-1", "server2", "server3", "y", "server5"]


def test_yaml_nic_rate_fills_what_is_missing() -> None:
    text = "optcc: 1\nservers: [{count: 2, gpus: 1, nics: [{name: a}, {name: b, rate: 1Gb/s}]}]"
    found = read_yaml(text.encode(), "t.yaml", Given(2 * GBPS))
    assert [nic.out_rate for nic in found.cluster.servers[1].nics] == [2 * GBPS, GBPS]
    assert found.notes == ("t.yaml: the rate given with --nic-rate is taken for the NICs without one (1 of them).",)


def test_preset() -> None:
    found = load_topology("uniform:servers=4, nics=2, rate=400Gb/s, gpus=8, nvlink=450GB/s")
    expected = Cluster.uniform(servers=4, nics=2, rate=400 * GBPS, gpus=8, nvlink_rate=450 * 10**9)
    assert (found.cluster, found.notes) == (expected, ())
    assert load_topology("uniform:servers=1,rate=1Gb/s", servers=3).cluster == Cluster.uniform(servers=3, rate=GBPS)
    assert load_topology("uniform:servers=3", nic_rate="1Gb/s").cluster == Cluster.uniform(servers=3, rate=GBPS)


# Failures


@pytest.mark.parametrize(
    ("text", "nic", "left"),
    [
        ("server1/mlx5_0", "server1/mlx5_0", "0"),
        ("server1/mlx5_0=0.37", "server1/mlx5_0", "37/100"),
        ("server1/mlx5_0:2=37%", "server1/mlx5_0:2", "37/100"),
        ("server1/mlx5_0=37.5%", "server1/mlx5_0", "3/8"),
        ("server1/mlx5_0=3/8", "server1/mlx5_0", "3/8"),
        ("a/b=1", "a/b", "1"),
        ("a/b=1.", "a/b", "1"),
        ("a/b=.5", "a/b", "1/2"),
        ("a/b=0", "a/b", "0"),
    ],
)
def test_parse_fail(text: str, nic: str, left: str) -> None:
    assert parse_fail(text) == (nic, Fraction(left))


def test_apply_failures() -> None:
    healthy = Cluster.uniform(servers=2, nics=2, rate=GBPS)
    hurt = apply_failures(healthy, ["server0/nic0", "server1/nic1=3/8"])
    assert hurt == healthy.degrade("server0/nic0").degrade("server1/nic1", Fraction(3, 8))
    assert apply_failures(healthy, []) is healthy


Edit = Callable[[bytes], bytes]


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    """One change: cut, delete, repeat, overwrite or insert, at a random place."""
    at, length = draw(st.floats(0, 1)), draw(st.integers(0, 60))
    kind = draw(st.sampled_from(["cut", "delete", "repeat", "overwrite", "insert"]))
    tokens = [
        b'"',
        b"<",
        b"</",
        b"/>",
        b">",
        b"&a;",
        b"<!DOCTYPE",
        b"-1",
        b"99999999999",
        b"nan",
        b"{",
        b"[",
        b": ",
        b"&a ",
        b"*a",
        b"\n",
        b"\t",
    ]
    new = draw(st.sampled_from(tokens) | st.binary(max_size=8))

    def edit(data: bytes) -> bytes:
        i = int(at * len(data))
        return {
            "cut": data[:i],
            "delete": data[:i] + data[i + length :],
            "repeat": data[: i + length] + data[i:],
            "overwrite": data[:i] + new + data[i + len(new) :],
            "insert": data[:i] + new + data[i:],
        }[kind]

    return edit


def loads_or_is_refused(reader: Callable[[bytes, str, Given], Topology], data: bytes) -> None:
    try:
        found = reader(data, "t", Given(400 * GBPS))
    except InputError as error:
        refusal = str(error)
    else:
        assert found.cluster.servers
        return
    assert refusal.startswith("t")
    assert len(refusal) < 2000


@given(st.lists(edits(), min_size=1, max_size=4))
def test_broken_xml_loads_or_is_refused(changes: list[Edit]) -> None:
    data = XML.read_bytes()
    for change in changes:
        data = change(data)
    loads_or_is_refused(read_nccl_xml, data)


@given(st.lists(edits(), min_size=1, max_size=4))
def test_broken_yaml_loads_or_is_refused(changes: list[Edit]) -> None:
    data = YAML.read_bytes()
    for change in changes:
        data = change(data)
    loads_or_is_refused(read_yaml, data)


@given(
    st.sampled_from([read_nccl_xml, read_yaml]),
    st.binary(),
    st.sampled_from([b"", b"<system>", b"optcc: 1\nservers: "]),
)
def test_any_bytes_load_or_are_refused(
    reader: Callable[[bytes, str, Given], Topology], data: bytes, start: bytes
) -> None:
    loads_or_is_refused(reader, start + data)


WORDS = [
    "name",
    "count",
    "gpus",
    "nvlink",
    "nics",
    "rate",
    "out",
    "in",
    "rail",
    "1",
    "-1",
    "400Gb/s",
    "",
    "null",
    "1e999",
]
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_any_yaml_tree_loads_or_is_refused(tree: object) -> None:
    servers = [{"nics": [tree]}, tree]
    for content in (tree, {"optcc": 1, "servers": tree}, {"optcc": 1, "servers": servers}):
        loads_or_is_refused(read_yaml, yaml.safe_dump(content).encode())


def test_paths_and_strings_are_one(tmp_path: Path) -> None:
    assert load_topology(XML, servers=4).cluster == load_topology(str(XML), servers=4).cluster
    plan, place = optcc.plan(load_topology(XML, servers=4).cluster, 2**20), tmp_path / "plan.json"
    save_plan(plan, place)
    assert load_plan(str(place)) == load_plan(place) == plan


@pytest.mark.parametrize(
    ("source", "options", "where"),
    [
        (5, {}, "source"),
        (b"topology.xml", {}, "source"),
        (None, {}, "source"),
        ("uniform:servers=2,nics=1,rate=1Gb/s", {"nic_rate": 5}, "nic_rate"),
        ("uniform:servers=2,nics=1,rate=1Gb/s", {"nics": ["mlx5_0"]}, "nics"),
        ("uniform:servers=2,nics=1,rate=1Gb/s", {"hosts": 5}, "hosts"),
    ],
)
def test_what_is_not_text_is_refused(source: Any, options: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refused:
        load_topology(source, **options)
    assert refused.value.where == where


CALIBRATED = """optcc: 1
measured: {date: 2026-11-20, transport: verbs, alpha: 3.1us, per_chunk: 0us, spread: 0.6%}
servers:
- {count: 2, nics: [{name: a, rate: 388Gb/s, nameplate: 400Gb/s, spread: 1%}, {name: b, rate: 1Gb/s, nameplate: 2Gb/s}]}
"""


@given(st.lists(edits(), min_size=1, max_size=4))
def test_a_broken_calibration_loads_or_is_refused(changes: list[Edit]) -> None:
    data = CALIBRATED.encode()
    for change in changes:
        data = change(data)
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(data)
        file.flush()
        survives(lambda: load_topology(file.name, nic_rate="1Gb/s"))


def test_a_calibration_that_is_wrong_names_the_field() -> None:
    for right, wrong, where in (
        ("2026-11-20", "today", "$.measured.date"),
        ("verbs", "pigeons", "$.measured.transport"),
        ("transport: verbs", "transport: verbs, path: fast", "$.measured.path"),
        ("3.1us", "3.1", "$.measured.alpha"),
        ("0.6%", "0.6", "$.measured.spread"),
        ("nameplate: 400Gb/s", "nameplate: much", "$.servers[0].nics[0].nameplate"),
        ("1%", "-1%", "$.servers[0].nics[0].spread"),
    ):
        with pytest.raises(InputError, match=re.escape(where)):
            read_yaml(CALIBRATED.replace(right, wrong, 1).encode(), "t.yaml", Given())


SERVERS = [
    Server("a b".replace(" ", "-"), (Nic("yes", 400 * GBPS, 300 * GBPS, 3), Nic("12:30", GBPS / 1000, GBPS)), 2, 10**9),
    Server("{x}", (Nic("'q'", 0 * GBPS, GBPS, gpu=0),), 1, pod="n:[1]"),
]


def test_what_is_written_is_read_back() -> None:
    measured = Measured(
        "2026-11-20", "local", GBPS / GBPS / 10**6, None, GBPS / GBPS / 100, {"{x}/'q'": 2 * GBPS}, "compiled"
    )
    cluster = Cluster(tuple(SERVERS))
    text = write_yaml(cluster, comments=["one\ntwo"], measured=measured, spreads={"{x}/'q'": 0.0123})
    found = read_yaml(text.encode(), "t.yaml", Given())
    # a rail that is not given is the position in the file
    assert [s.name for s in found.cluster.servers] == ["a-b", "{x}"]
    assert [[(n.name, n.out_rate, n.in_rate, n.gpu) for n in s.nics] for s in found.cluster.servers] == [
        [(n.name, n.out_rate, n.in_rate, n.gpu) for n in s.nics] for s in SERVERS
    ]
    assert [(s.gpus, s.nvlink_rate, s.pod) for s in found.cluster.servers] == [
        (s.gpus, s.nvlink_rate, s.pod) for s in SERVERS
    ]
    assert found.measured == measured


def test_from_xml_to_a_cluster_a_value_passes_few_files() -> None:
    """Counted once all modules are loaded."""
    passed = set[str]()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            passed.add(frame.f_code.co_filename)

    load_topology(XML, servers=4)
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        load_topology(XML, servers=4)
    finally:
        sys.setprofile(before)
    product = {
        Path(name).resolve() for name in passed if Path(name).resolve().is_relative_to(EXAMPLES.parent / "optcc")
    }
    assert 0 < len(product) <= 12, sorted(product)
