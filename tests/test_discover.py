"""Topologies as read: the examples, what is skipped, what is assumed."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import optcc
from optcc.cli import main
from optcc.discover import Measured, Topology, apply_failures, load_topology, parse_fail
from optcc.discover.given import Given
from optcc.discover.nic_choice import Standing, standing
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError
from optcc.plans.files import load_plan, save_plan
from optcc.values.cluster import Cluster, Nic, Server
from tests.topology_texts import HOPPER, RATE, changed, read_nccl_xml, survives

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


CALIBRATED = """optcc: 1
measured: {date: 2026-11-20, transport: verbs, alpha: 3.1us, per_chunk: 0us, spread: 0.6%}
servers:
- {count: 2, nics: [{name: a, rate: 388Gb/s, nameplate: 400Gb/s, spread: 1%}, {name: b, rate: 1Gb/s, nameplate: 2Gb/s}]}
"""
WHOLE = {"xml": XML.read_text(), "yaml": YAML.read_text(), "calibration": CALIBRATED, "matrix": HOPPER}


@pytest.mark.parametrize("kind", WHOLE)
@given(rng=st.randoms(use_true_random=False))
def test_a_broken_file_loads_or_is_refused(kind: str, rng: Random) -> None:
    data = WHOLE[kind].encode()
    for _ in range(rng.randint(1, 4)):
        data = changed(data, rng)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        survives(lambda: load_topology(file.name, nic_rate="1Gb/s"), file.name)


@given(
    st.sampled_from([read_nccl_xml, read_yaml]),
    st.binary(),
    st.sampled_from([b"", b"<system>", b"optcc: 1\nservers: "]),
)
def test_any_bytes_load_or_are_refused(
    reader: Callable[[bytes, str, Given], Topology], data: bytes, start: bytes
) -> None:
    survives(lambda: reader(start + data, "t", RATE), "t")


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
        data = yaml.safe_dump(content).encode()
        survives(lambda: read_yaml(data, "t", RATE), "t")  # noqa: B023


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


# NCCL's XML: virtual functions, slots, virtual interfaces, and Ethernet beside InfiniBand.


CX5, CX6, CX7, CX8, VF = "0x1017", "0x101b", "0x1021", "0x1023", "0x101e"
SANE, NARROW = ("32.0 GT/s PCIe", "16"), ("2.5 GT/s PCIe", "1")


def card(
    address: str,
    nets: list[tuple[str, int]],
    *,
    device: str = CX7,
    kind: str = "0x020700",
    link: tuple[str, str] = SANE,
    gpu: int | None = None,
    vendor: str = "0x15b3",
) -> str:
    """A <pci> with its NICs by name and Gb/s, numbered as NCCL numbers them; with `gpu`, behind a switch with one."""
    speed, width = link
    listed = "".join(
        f'<net name="{name}" dev="{100 + i}" speed="{1000 * gbps}" port="{i + 1}" gdr="1"/>'
        for i, (name, gbps) in enumerate(nets)
    )
    slot = f'link_speed="{speed}" link_width="{width}"'
    pci = f'<pci busid="{address}" class="{kind}" vendor="{vendor}" device="{device}" {slot}><nic>{listed}</nic></pci>'
    if gpu is None:
        return pci
    one = f'<pci busid="0000:f{gpu}:00.0" class="0x030200" {slot if link == NARROW else ""}>'
    return (
        f'<pci busid="0000:e{gpu}:00.0" class="0x060400">{one}<gpu dev="{gpu}" sm="90" rank="{gpu}"/></pci>{pci}</pci>'
    )


def read_cards(*parts: str, nics: str | None = None) -> Topology:
    text = f'<system version="1"><cpu numaid="0">{"".join(parts)}</cpu></system>'
    return read_nccl_xml(text.encode(), "t.xml", Given.parse(nics=nics))


def rates(found: Topology) -> dict[str, Fraction]:
    return {nic.name: nic.out_rate / GBPS for nic in found.cluster.servers[0].nics}


def notes(found: Topology) -> str:
    return "\n".join(found.notes)


# Virtual functions


def test_more_nics_than_a_card_has_ports_are_virtual_functions() -> None:
    nets = [(f"mlx5_{i}", 100) for i in range(9)]
    body = card("0000:10:00.0", nets, device=CX5, kind="0x020000", link=("8.0 GT/s PCIe", "16"), gpu=0)
    assert rates(read_cards(body)) == {"mlx5_0": 100}
    assert "mlx5_0 counts, skipped mlx5_1, mlx5_2," in notes(read_cards(body))
    assert rates(read_cards(body, nics="mlx5_4")) == {"mlx5_4": 100}
    assert rates(read_cards(body, nics="^mlx5_0")) == {"mlx5_1": 100}


@pytest.mark.parametrize(
    ("device", "gbps", "ports", "left"),
    [
        (CX7, 400, 2, [400]),  # a card of 400 Gb/s in all: a port and a function
        (CX7, 200, 2, [200, 200]),
        (CX7, 200, 3, [200]),
        (CX8, 400, 2, [Fraction("252.05")] * 2),
        (CX6, 200, 2, [200, 200]),
        (CX5, 100, 2, [100, 100]),
        ("0xffff", 400, 2, [Fraction("252.05")] * 2),  # an unknown card may have both
        ("0xffff", 25, 4, [25] * 4),
        ("0xffff", 25, 5, [25]),
    ],
)
def test_ports_of_a_card_are_as_many_as_it_has(device: str, gbps: int, ports: int, left: list[int]) -> None:
    found = read_cards(card("0000:10:00.0", [(f"mlx5_{i}", gbps) for i in range(ports)], device=device, gpu=0))
    assert list(rates(found).values()) == left


def test_a_virtual_function_with_an_address_of_its_own_is_told_by_its_device() -> None:
    own = card("0000:10:00.0", [("mlx5_0", 200)], gpu=0)
    function = card("0000:10:00.2", [("mlx5_1", 200)], device=VF)
    assert rates(read_cards(own, function)) == {"mlx5_0": 200}
    assert "mlx5_1" in notes(read_cards(own, function))
    assert set(rates(read_cards(own, function, nics="mlx5_1"))) == {"mlx5_1"}


def test_functions_alone_are_the_nics_of_a_virtual_machine() -> None:
    machine = [card(f"010{i}:00:00.0", [(f"mlx5_{i}", 400)], device=VF, link=("", "0")) for i in range(8)]
    assert rates(read_cards(*machine)) == {f"mlx5_{i}": 400 for i in range(8)}
    one_bus = [card(f"0000:00:0{i}.0", [(f"mlx5_{i}", 400)], device=VF, link=("", "0")) for i in range(8)]
    emulated = card("0000:00:09.0", [("eth0", 1)], device="0x10d3", vendor="0x8086", kind="0x020000")
    assert set(rates(read_cards(*one_bus, emulated))) == {f"mlx5_{i}" for i in range(8)}
    nets = [(f"mlx5_{i}", 400) for i in range(8)]
    assert len(rates(read_cards(card("0000:01:00.0", nets, device=VF, link=("", ""))))) == 8
    merged = card("0000:00:00.0", nets, kind="0x060000", device="0x29c0", link=("", ""))
    assert len(rates(read_cards(merged))) == 8, (
        "NCCL takes functions together under an address that is another device's"
    )


# Slots


def test_a_narrow_slot_is_believed_where_others_are_sane() -> None:
    sane = [card(f"0000:2{i}:00.0", [(f"mlx5_{i}", 400)], gpu=i) for i in range(2)]
    narrow = card("0000:30:00.0", [("mlx5_2", 400)], gpu=2, link=("16.0 GT/s PCIe", "1"))
    assert rates(read_cards(*sane, narrow)) == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": Fraction("15.7")}
    assert "carries 15.7Gb/s of the 400Gb/s" in notes(read_cards(*sane, narrow))


def test_a_slot_that_all_have_is_not_believed() -> None:
    made_up = [card(f"0000:2{i}:00.0", [(f"mlx5_{i}", 400)], gpu=i, link=NARROW) for i in range(2)]
    assert rates(read_cards(*made_up)) == {"mlx5_0": 400, "mlx5_1": 400}
    assert "not believed" in notes(read_cards(*made_up))
    sane = card("0000:30:00.0", [("mlx5_2", 400)], gpu=2)
    assert rates(read_cards(*made_up, sane)) == {"mlx5_0": 2, "mlx5_1": 2, "mlx5_2": 400}


# Management


def test_a_slow_nic_beside_its_gpu_is_never_for_management() -> None:
    fast = [card(f"0000:2{i}:00.0", [(f"mlx5_{i}", 400)], gpu=i) for i in range(2)]
    slow, apart = card("0000:30:00.0", [("mlx5_2", 10)], gpu=2), card("0000:40:00.0", [("eth0", 10)])
    found = read_cards(*fast, slow, apart)
    assert rates(found) == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 10}
    assert "<net mlx5_2>: counts, although 10Gb/s" in notes(found)
    assert "<net eth0>: skipped as a management port" in notes(found)


def test_ethernet_beside_infiniband_does_not_count_on_grace() -> None:
    """GPUs hang on their processor, not on a PCI switch, so that nearness tells nothing."""
    gpus = "".join(f'<pci busid="000{i}:01:00.0"><gpu dev="{i}" sm="100" rank="{i}"/></pci>' for i in range(4))
    fast = [card(f"001{i}:03:00.0", [(f"mlx5_{i}", 400)]) for i in range(4)]
    other = [card(f"002{i}:01:00.0", [(f"eth{i}", g)], kind="0x020000") for i, g in enumerate((400, 200, 100))]
    found = read_cards(gpus, *fast, *other)
    assert rates(found) == {f"mlx5_{i}": 400 for i in range(4)}
    assert "where training goes over InfiniBand" in notes(found)
    assert len(rates(read_cards(gpus, *other))) == 3, "the control: Ethernet alone"


# Virtual interfaces


def plain(name: str, gbps: int = 10) -> str:
    """A <net> without a card, as NCCL writes interfaces that have none."""
    return f'<nic><net name="{name}" dev="{200 + sum(map(ord, name))}" speed="{1000 * gbps}" gdr="0"/></nic>'


def socket(name: str, gbps: int, address: str = "0000:10:00.0", kind: str = "0x020000") -> str:
    return card(address, [(name, gbps)], kind=kind).replace('gdr="1"', 'gdr="0"')


VIRTUAL = ["veth1", "virbr0", "docker0", "tailscale0", "tun0", "lo", "br-12ab", "wg0"]


def test_virtual_interfaces_neither_count_nor_push_out_the_real_one() -> None:
    virtual = [plain(name, 100) for name in VIRTUAL]
    found = read_cards(socket("ens3", 10), *virtual, plain("bond0", 100))
    assert rates(found) == {"ens3": 10}
    assert all(name in notes(found) for name in [*VIRTUAL, "bond0"])
    assert rates(read_cards(*virtual, plain("eth0"))) == {"eth0": 10}, "a virtual machine's, without PCI"
    assert rates(read_cards(*virtual, plain("bond0", 50))) == {"bond0": 50}, "it stands for the cards below it"
    with pytest.raises(InputError, match="no NIC but virtual interfaces"):
        read_cards(*virtual)
    assert set(rates(read_cards(*virtual, nics="docker0"))) == {"docker0"}


def test_partitions_and_wireless_cards_do_not_count() -> None:
    nets = card("0000:10:00.0", [("ib0", 100), ("ib0.8001", 100)], kind="0x020700")
    assert rates(read_cards(nets)) == {"ib0": 100}
    assert rates(read_cards(socket("ens3", 10), socket("wlp2s0", 10, "0000:11:00.0", "0x028000"))) == {"ens3": 10}


@pytest.mark.parametrize(
    ("name", "names", "on_card", "expected"),
    [
        ("eth0", [], False, Standing.PLAIN),
        ("hsn0", [], False, Standing.PLAIN),
        ("lonic0", [], False, Standing.PLAIN),
        ("bond0", [], False, Standing.STAND_IN),
        ("bond0.100", [], False, Standing.STAND_IN),
        ("bond0.100", ["bond0"], False, Standing.VIRTUAL),
        ("veth0@if3", [], False, Standing.VIRTUAL),
        ("mlx5_bond_0", [], True, Standing.CARD),
        ("br0", [], True, Standing.CARD),
    ],
)
def test_names(name: str, names: list[str], on_card: bool, expected: Standing) -> None:
    assert standing(name, names, on_card) is expected


# The shapes that topologies have in the field, in fixtures of our own: NCCL and RCCL dumps of all ages, clouds' files.
#
# Shapes are those of public files, none of which is copied: NCCL issues 392 (empty link_speed), 507 (V100, numbers of
# links), 1505 (ports 1 and 2 of one card), 2202 (c2c, Wi-Fi and a tunnel as NICs at 10000); RCCL's models of topo_expl
# (xgmi, gcn as 910 or gfx942, numaid 3 before 1, cxi at speed 200000000, bond0 at 1000); Azure's topology/ndv*.xml and
# AWS's p4d-24xl-topo.xml (PCI devices alone).


def dump(body: str, given: Given | None = None, version: str = "1") -> Topology:
    return read_nccl_xml(f'<system version="{version}">{body}</system>'.encode(), "t.xml", given or Given())


def one(found: Topology) -> Server:
    (server,) = found.cluster.servers
    return server


def amd_gpu(dev: int, gcn: str, links: int, count: int = 1) -> str:
    xgmi = "".join(f'<xgmi target="0000:{t:02x}:00.0" count="{count}" tclass="0x120000"/>' for t in range(links))
    gpu = f'<gpu dev="{dev}" sm="304" gcn="{gcn}" rank="{dev}" gdr="1">{xgmi}</gpu>'
    return f'<pci busid="0000:{dev:02x}:00.0">{gpu}</pci>'


@pytest.mark.parametrize(
    ("gcn", "each"),
    [
        ("gfx90a:sramecc+:xnack-", 36),
        ("910", 36),
        ("gfx942", 48),
        ("942", 48),
        ("gfx950", 48),
        ("906", 24),
        ("gfx908", 24),
    ],
)
def test_xgmi_links_have_rccls_rates(gcn: str, each: int) -> None:
    found = dump(f"<cpu>{amd_gpu(0, gcn, 7)}{amd_gpu(1, gcn, 7)}{net('mlx5_0', 0)}</cpu>", version="2")
    assert one(found).nvlink_rate == 7 * each * 10**9
    assert "RCCL's topology XML, version 2" in found.read[0]
    assert any("in pairs" in note and "nvlink:" in note for note in found.notes)


def test_an_unknown_amd_gpu_has_rccls_default_and_says_so() -> None:
    found = dump(f"<cpu>{amd_gpu(0, '21943', 2)}{net('a', 0)}</cpu>")
    assert one(found).nvlink_rate == 2 * 24 * 10**9
    assert any("'21943'" in note and "24 GB/s" in note for note in found.notes)


def test_numa_nodes_in_any_order_do_not_matter() -> None:
    """RCCL numbers GPUs by the network, not by PCI: NICs still find the GPU that is beside them."""
    first = f'<cpu numaid="3"><pci>{amd_gpu(1, "942", 1)}{net("far", 1)}</pci></cpu>'
    second = f'<cpu numaid="1"><pci>{amd_gpu(0, "942", 1)}{net("near", 0)}</pci></cpu>'
    assert [(nic.name, nic.gpu) for nic in one(dump(first + second)).nics] == [("near", 0), ("far", 1)]


def test_a_virtual_machine_without_switches_deals_by_numa_node_and_says_so() -> None:
    cpu = [
        f'<cpu numaid="{n}">'
        + "".join(f'<pci busid="{i}:0"><gpu dev="{i}" sm="90" rank="{i}"/></pci>' for i in (2 * n, 2 * n + 1))
        + "".join(f'<pci busid="{i}:1">{net(f"mlx5_{i}", i)}</pci>' for i in (2 * n, 2 * n + 1))
        + "</cpu>"
        for n in (0, 1)
    ]
    found = dump("".join(cpu))
    assert [nic.gpu for nic in one(found).nics] == [0, 1, 2, 3]
    assert any("virtual machines" in note and "<cpu>" in note for note in found.notes)


def test_a_nic_on_no_card_is_dealt_out() -> None:
    gpus = "".join(f'<cpu numaid="{i}"><pci><gpu dev="{i}" rank="{i}"/></pci></cpu>' for i in range(2))
    eth = '<nic><net name="eth0" dev="0" speed="100000" port="0" guid="0x0" gdr="0"/></nic>'
    found = dump(f'{gpus}<cpu numaid="-1">{eth}</cpu>')
    assert one(found).nics[0].gpu is None
    assert any("dealt out" in note for note in found.notes)


def test_a_gpu_that_lost_xgmi_is_named() -> None:
    found = dump(f"<cpu>{amd_gpu(0, '942', 6)}{amd_gpu(1, '942', 0)}{amd_gpu(2, '942', 6)}{net('a', 0)}</cpu>")
    assert one(found).nvlink_rate == 6 * 48 * 10**9
    assert any("GPU1: has no NVLink or xGMI link" in note for note in found.notes)


@pytest.mark.parametrize(("speed", "unit"), [("200000000", "kb/s"), ("200000000000", "b/s"), ("200", "Gb/s")])
def test_a_speed_in_another_unit_is_told_by_its_value(speed: str, unit: str) -> None:
    one_net = f'<net name="cxi0" dev="0" speed="{speed}" gdr="1"/>'
    found = dump(f"<cpu><nic>{one_net}</nic></cpu>")
    assert one(found).out_rate == 200 * GBPS
    assert any(f"as {unit} it is 200Gb/s" in note and "--nic-rate" in note for note in found.notes)
    with pytest.raises(InputError, match="no usable speed"):
        dump(f"<cpu><nic>{one_net.replace(speed, '200000001')}</nic></cpu>")


@pytest.mark.parametrize("speed", ["0", "-1", "10", "", "Unknown"])
def test_a_missing_speed_is_that_of_the_same_model_or_asked_for(speed: str) -> None:
    def card(i: int, mbps: str, device: str = "0x1021") -> str:
        one_net = f'<net name="m{i}" dev="{i}" speed="{mbps}" gdr="1"/>'
        return f'<pci vendor="0x15b3" device="{device}"><nic>{one_net}</nic></pci>'

    found = dump(f"<cpu>{card(0, '400000')}{card(1, speed)}</cpu>")
    assert [nic.out_rate for nic in one(found).nics] == [400 * GBPS] * 2
    assert any("<net m1>" in note and "same model" in note for note in found.notes)
    with pytest.raises(InputError, match="--nic-rate 400Gb/s, or leave this one out with --nics"):
        dump(f"<cpu>{card(0, '400000')}{card(1, speed, '0x101b')}</cpu>")


def test_ten_gigabits_everywhere_is_doubted() -> None:
    doubted = dump(f"<cpu>{net('eth0', 0, 10000)}{net('eth1', 1, 10000)}</cpu>")
    assert any("10Gb/s everywhere" in note and "--nic-rate" in note for note in doubted.notes)
    assert not any("everywhere" in note for note in dump(f"<cpu>{net('eth0', 0, 25000)}</cpu>").notes)


def test_ports_one_and_two_of_a_card_share_its_slot() -> None:
    """A dual-port HDR card in a Gen4 x16 slot: 252 Gb/s for 400 of ports; each NIC gets half of it."""

    def card(speed: str, width: str) -> str:
        ports = "".join(f'<net name="mlx5_4" dev="{p}" speed="200000" port="{p}" gdr="1"/>' for p in (1, 2))
        return (
            f'<cpu><pci busid="0000:61:00.0" link_speed="{speed}" link_width="{width}"><nic>{ports}</nic></pci></cpu>'
        )

    found = dump(card("16.0 GT/s PCIe", "16"))
    assert [(nic.name, nic.out_rate) for nic in one(found).nics] == [("mlx5_4", 126 * GBPS), ("mlx5_4:2", 126 * GBPS)]
    assert any("252Gb/s of the 400Gb/s" in note for note in found.notes)
    assert one(dump(card("32.0 GT/s PCIe", "16"))).out_rate == 400 * GBPS
    for speed, width in (("", "0"), ("Unknown", "255"), ("16 GT/s", ""), ("0 GT/s", "16")):  # virtual machines
        assert one(dump(card(speed, width))).out_rate == 400 * GBPS
    unbelieved = dump(card("2.5 GT/s PCIe", "16"))
    assert one(unbelieved).out_rate == 400 * GBPS
    assert any("not believed" in note for note in unbelieved.notes)
    said = dump(card("16.0 GT/s PCIe", "16"), Given.parse("mlx5_4*=200Gb/s"))
    assert one(said).out_rate == 400 * GBPS


def test_functions_of_one_card_share_its_slot() -> None:
    def function(i: int) -> str:
        head = f'<pci busid="0000:61:00.{i}" link_speed="8 GT/s" link_width="16">'
        return f'{head}<nic><net name="mlx5_{i}" dev="{i}" speed="100000" gdr="1"/></nic></pci>'

    assert one(dump(f"<cpu>{function(0)}{function(1)}</cpu>")).out_rate == 126 * GBPS  # 63 each


def switch(i: int, name: str, speed: int = 400000) -> str:
    return f'<pci busid="0000:{i:02x}:00.0"><pci><gpu dev="{i}" sm="90" rank="{i}"/></pci>{net(name, i, speed)}</pci>'


def test_slower_nics_without_a_gpu_are_storage_ports() -> None:
    """100 Gb/s beside 400 is within the ratio; that no GPU is near tells the storage port from a training one."""
    training = "".join(switch(i, f"mlx5_{i}") for i in range(4))
    found = dump(f"<cpu>{training}{net('mlx5_8', 8, 100000)}</cpu>")
    assert names(one(found)) == [f"mlx5_{i}" for i in range(4)]
    assert any("<net mlx5_8>" in note and "--nics" in note for note in found.notes)
    degraded = dump(f"<cpu>{training}{switch(4, 'mlx5_4', 100000)}</cpu>")
    assert len(one(degraded).nics) == 5, "a slow NIC beside its GPU is a degraded one"


def test_as_fast_a_nic_without_a_gpu_counts_and_is_named() -> None:
    found = dump(f"<cpu>{switch(0, 'mlx5_0')}{switch(1, 'mlx5_1')}{net('mlx5_8', 8)}</cpu>")
    assert len(one(found).nics) == 3
    assert any("no GPU is beside it" in note and "--nics ^mlx5_8" in note for note in found.notes)
    fewer = dump(
        f"<cpu>{switch(0, 'mlx5_0')}{switch(1, 'mlx5_1')}{net('mlx5_8', 8)}</cpu>", Given.parse(nics="^mlx5_8")
    )
    assert names(one(fewer)) == ["mlx5_0", "mlx5_1"]
    assert fewer.notes == ()


def test_the_rule_can_be_overruled_for_a_management_nic() -> None:
    body = f"<cpu>{switch(0, 'mlx5_0')}{net('eth0', 1, 1000)}{net('nogdr', 2, rest='')}</cpu>"
    assert names(one(dump(body))) == ["mlx5_0"]
    assert names(one(dump(body, Given.parse(nics="mlx5_0,eth0,nogdr")))) == ["mlx5_0", "eth0", "nogdr"]


def test_the_same_name_twice_is_told_apart() -> None:
    found = read(net("efa", 0) + net("efa", 1) + '<nic><net dev="2" speed="400000" gdr="1"/></nic>')
    assert names(one(found)) == ["efa", "efa.1", "net2"]
    assert any("tells such NICs apart" in note for note in found.notes)


def test_c2c_and_unknown_elements_and_attributes_do_not_matter() -> None:
    gpu = '<gpu dev="0" sm="121" rank="0" gdr="1"><c2c bw="43125" count="8"/><future a="b"/></gpu>'
    nic = net("a", 0, rest='gdr="1" rail="5"')
    found = dump(f'<cpu numaid="-1" arch="arm64"><pci>{gpu}</pci>{nic}</cpu>')
    assert one(found).nvlink_rate == 0
    assert "1 <c2c>" in found.read[0]


def test_hosts_of_one_nvlink_domain_are_servers() -> None:
    hosts = "".join(f'<cpu host_hash="0x{h}">{switch(0, "mlx5_0")}{switch(1, "mlx5_1")}</cpu>' for h in "ab")
    found = dump(hosts)
    assert [(s.name, s.gpus, len(s.nics)) for s in found.cluster.servers] == [("server0", 2, 2), ("server1", 2, 2)]
    assert any("several hosts" in note for note in found.notes)


BARE = """<cpu numaid="0">
<pci busid="ffff:ff:01.0" class="0x060400"><pci busid="0001:00:00.0" class="0x030200"/>
<pci busid="0101:00:00.0" class="0x020700"/></pci>
<pci busid="ffff:ff:02.0" class="0x060400"><pci busid="0002:00:00.0" class="0x030200"/>
<pci busid="0102:00:00.0" class="0x020700"/></pci>
<pci busid="0200:00:00.0" class="0x020000"/></cpu>"""


def test_a_file_made_for_nccl_has_devices_by_class_and_asks_for_rates() -> None:
    with pytest.raises(InputError, match=r"2 NICs by their PCI class.*--nic-rate"):
        dump(BARE)
    found = dump(BARE, Given.parse("400Gb/s"))
    assert [(nic.name, nic.gpu, nic.out_rate) for nic in one(found).nics] == [
        ("0101:00:00.0", 0, 400 * GBPS),
        ("0102:00:00.0", 1, 400 * GBPS),
    ]
    assert any("Ethernet" in note for note in found.notes)
    assert one(found).gpus == 2


def test_a_file_of_addresses_alone_names_no_nic() -> None:
    with pytest.raises(InputError, match="NCCL_TOPO_DUMP_FILE"):
        dump('<cpu><pci busid="0000:00:16.0"/></cpu>', Given(400 * GBPS))


ENCODED = f'<?xml version="1.0" encoding="UTF-16"?><system><cpu>{net("mlx5_0", 0)}</cpu></system>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_with_a_mark_are_read(encoding: str) -> None:
    assert names(one(read_nccl_xml(ENCODED.encode(encoding), "t.xml", Given()))) == ["mlx5_0"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", "a web page"),
        (b"\n<!-- x --><HTML>", "a web page"),
        (b"<?xml version='1.0'?><!DOCTYPE topology SYSTEM 'hwloc2.dtd'><topology/>", "lstopo"),
        (b"<system><cpu><pci busid='0", "ends in the middle"),
        (b"<!DOCTYPE s [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><system>&b;</system>", "DOCTYPE"),
        (b"<system>" + b"<pci>" * 300 + b"</pci>" * 300 + b"</system>", "not well-formed"),
        (b"<system/>", "names no NIC"),
        ("<system>\ud800</system>".encode("utf-8", "surrogatepass"), "not well-formed"),
        (b"\xff\xfe<\x00s\x00\x00", "not well-formed"),
    ],
)
def test_what_is_no_dump_is_told(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_nccl_xml(data, "t.xml", Given())


def test_the_corrections_that_a_report_names_are_taken() -> None:
    example = "examples/h100-8x400g.nccl-topo.xml"

    path = str(EXAMPLES.parent / example)
    said = load_topology(path, nic_rate="mlx5_0=25Gb/s,mlx5_[2-3]=100Gb/s", nics="mlx5_[0-3],mlx5_8", hosts="a,b")
    assert [s.name for s in said.cluster.servers] == ["a", "b"]
    rates = {nic.name: nic.out_rate / GBPS for nic in said.cluster.servers[0].nics}
    assert rates == {"mlx5_0": 25, "mlx5_1": 400, "mlx5_2": 100, "mlx5_3": 100, "mlx5_8": 25}


def test_yaml_and_presets_take_corrections_too() -> None:
    found = load_topology("uniform:servers=2,nics=3,rate=1Gb/s", nics="^nic1", nic_rate="nic2=2Gb/s").cluster
    assert [[(n.name, n.out_rate) for n in s.nics] for s in found.servers] == [[("nic0", GBPS), ("nic2", 2 * GBPS)]] * 2


@pytest.mark.parametrize("nics", ["^mlx5_99", "mlx5_99"])
@pytest.mark.parametrize("source", ["xml", "yaml", "preset", "smi", "bare"])
def test_a_name_that_no_nic_has_is_refused(nics: str, source: str, tmp_path: Path) -> None:

    texts = {
        "xml": (EXAMPLES / "h100-8x400g.nccl-topo.xml").read_text(),
        "yaml": "optcc: 1\nservers: [{nics: [{name: nic0, rate: 1Gb/s}, {name: mlx5_8, rate: 1Gb/s}]}]",
        "smi": "\tGPU0\tmlx5_0\tmlx5_8\tCPU Affinity\nGPU0\t X \tPIX\tPIX\n"
        "mlx5_0\tPIX\t X \tPIX\nmlx5_8\tPIX\tPIX\t X \n",
        "bare": f"<system>{BARE}</system>",
    }
    path = tmp_path / ("t.yaml" if source == "yaml" else "t.xml" if source in ("xml", "bare") else "t.txt")
    path.write_text(texts.get(source, ""))
    where = "uniform:servers=2,nics=3,rate=1Gb/s" if source == "preset" else str(path)
    with pytest.raises(InputError, match=r"--nics: no NIC of this name, expected among .*, got 'mlx5_99'"):
        load_topology(where, nics=nics, nic_rate="1Gb/s")


def test_fractions_stay_small() -> None:
    """A slot's rate is rounded, so that plans have no denominators of 13 (128b/130b)."""
    from lxml import etree

    from optcc.discover.nic_choice import slot_of

    element = etree.fromstring('<pci link_speed="8 GT/s" link_width="16"/>')
    slot = slot_of(element)
    assert slot is not None
    assert slot.rate == Fraction(126) * GBPS


def test_topo_tells_what_was_read_and_assumed_and_how_to_correct_it(tmp_path: Path) -> None:
    matrix_file, written = tmp_path / "topo.txt", tmp_path / "t.yaml"
    matrix_file.write_text(HOPPER)
    arguments = ["topo", str(matrix_file), "--nic-rate", "400Gb/s", "--servers", "2", "-o", str(written)]
    text = CliRunner().invoke(main, arguments)
    assert text.exit_code == 0, text.output
    for part in ("read\n", "assumed\n", "mlx5_bond_0: skipped", "to correct it: list it in --nics"):
        assert part in text.stdout
    value = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert [len(server["nics"]) for server in value["servers"]] == [8, 8]
    assert all(a["to_correct"] for a in value["assumed"])
    assert "nvidia-smi topo -m" in value["read"][0]
    again = load_topology(str(written))
    first = load_topology(str(matrix_file), nic_rate="400Gb/s", servers=2)
    assert again.cluster == first.cluster
    assert again.notes == (), "what is written down is no longer assumed"


def test_every_assumption_that_something_can_be_done_about_says_what(tmp_path: Path) -> None:
    bare = tmp_path / "t.xml"
    bare.write_text(f"<system>{BARE}</system>")
    for note in load_topology(str(bare), nic_rate="100Gb/s").assumed:
        assert note.fix, note.what


AMD = amd_gpu(0, "gfx942", 2) + amd_gpu(1, "gfx90a", 2)
PLANE = 'gdr="1" rail="3" plane="1"'
VM = f'<system version="2"><cpu numaid="3">{AMD}{net("cxi0", 0)}</cpu></system>'
XMLS = [
    VM,
    f"<system>{BARE}</system>",
    f'<system><cpu host_hash="0x1">{switch(0, "a")}</cpu><cpu>{net("b", 1)}</cpu></system>',
    "<system>"
    + "".join(
        f'<cpu host_hash="0x{h}">{switch(0, "a")}{net("b", 1, rest=PLANE)}{net("c", 2)}</cpu>' for h in ("1", "2")
    )
    + "</system>",
]
NASTY = [
    "",
    "-1",
    "0",
    "9" * 12,
    "1e3",
    "0x10",
    "nan",
    "many",
    " 1",
    "\u0661",
    "a/b",
    "a=b",
    "x" * 300,
    "16 GT/s",
    "^",
    "gfx",
]


BROKEN = given(st.sampled_from(XMLS), st.randoms(use_true_random=False))


def dialect_survives(text: str, rng: Random) -> None:
    """One to four changes: an attribute's value is another one, or the attribute is gone; or one of any file's."""
    data = text.encode()
    for _ in range(rng.randint(1, 4)):
        places = list(re.finditer(rb' [a-z_]+="([^"]*)"', data))
        if not places or rng.random() < 0.5:
            data = changed(data, rng)
            continue
        place, value = rng.choice(places), rng.choice([None, *NASTY])
        group = 0 if value is None else 1
        data = data[: place.start(group)] + (value or "").encode() + data[place.end(group) :]
    survives(lambda: read_nccl_xml(data, "t.xml", RATE))


test_broken_dialects_load_or_are_refused = BROKEN(dialect_survives)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_options_are_taken_or_refused(nic_rate: str, nics: str) -> None:
    survives(lambda: load_topology("uniform:servers=2,nics=2,rate=1Gb/s", nic_rate=nic_rate, nics=nics))


def test_the_fuzz_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with a fault that only broken files meet: an attribute taken for a number unseen."""
    from optcc.discover import nccl_xml

    def careless(element: object, key: str, path: str) -> int:
        return int(element.get(key))  # type: ignore[attr-defined]

    monkeypatch.setattr(nccl_xml, "number", careless)
    quick = settings(
        max_examples=5000, phases=[Phase.generate], database=None, report_multiple_bugs=False, derandomize=True
    )
    with pytest.raises((TypeError, ValueError)):
        quick(BROKEN(dialect_survives))()
