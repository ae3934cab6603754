"""nvidia-smi's matrix of several driver ages, Slurm's lists of hosts, sysfs trees; and all of them broken at random.

Shapes of the matrix: public reports of drivers 367 (NIC columns by name, SOC), 470 to 535 (NIC0 and a legend), 550
(GPU NUMA ID, SYS everywhere on virtual machines). The fixtures are made here.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from optcc.cli import main
from optcc.cluster import Cluster, Nic, Server
from optcc.discover import Measured, Topology, load_topology
from optcc.discover.given import Given
from optcc.discover.hostlist import expand_hosts
from optcc.discover.nccl_xml import read_nccl_xml
from optcc.discover.smi_text import looks_like_smi, read_smi
from optcc.discover.sysfs_tree import read_sysfs
from optcc.discover.yaml_file import read_yaml
from optcc.discover.yaml_writer import write_yaml
from optcc.errors import InputError
from tests.test_discover import GBPS, Edit, edits
from tests.test_discover_dialects import BARE, amd_gpu, net, switch

RATE = Given.parse("400Gb/s")
UNDERLINED, PLAIN = "\x1b[4m", "\x1b[0m"


def matrix(gpus: int, nics: list[str], cell: Callable[[str, str], str], *, tail: str = "0-47\t0\t\tN/A") -> str:
    """As the tool prints it, with tabs, and the header underlined."""
    columns = [f"GPU{i}" for i in range(gpus)] + nics
    head = "\t" + "\t".join(columns) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    lines = [UNDERLINED + head + PLAIN]
    for row in columns:
        cells = ["X" if row == column else cell(row, column) for column in columns]
        lines.append("\t".join([row, *(f" {c} " for c in cells)]) + (f"\t{tail}" if row.startswith("GPU") else "\t\t"))
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def legend(names: list[str]) -> str:
    return "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: {name}\n" for i, name in enumerate(names))


def hopper(row: str, column: str) -> str:
    """Eight GPUs, each with a NIC of its number behind its switch; NIC8 by itself."""
    if row[:3] == column[:3]:
        return "NV18" if row.startswith("GPU") else "SYS"
    return "PIX" if row[3:] == column[3:] else "NODE" if (int(row[3:]) < 4) == (int(column[3:]) < 4) else "SYS"


HOPPER = matrix(8, [f"NIC{i}" for i in range(9)], hopper) + legend([f"mlx5_{i}" for i in range(8)] + ["mlx5_bond_0"])


def smi(text: str, given: Given = RATE) -> Topology:
    return read_smi(text, "topo.txt", given)


def test_a_matrix_with_a_legend() -> None:
    found = smi(HOPPER)
    (server,) = found.cluster.servers
    assert [(nic.name, nic.gpu, nic.rail) for nic in server.nics] == [(f"mlx5_{i}", i, i) for i in range(8)]
    assert server.gpus == 8
    assert server.nvlink_rate == 370_800_000_000  # 18 at 20.6
    assert any("mlx5_bond_0" in note and "--nics" in note for note in found.notes)
    assert any("18 NVLinks" in note and "generation" in note for note in found.notes)


def test_rates_are_asked_for() -> None:
    with pytest.raises(InputError, match=r"does not tell the rates.*--nic-rate"):
        smi(HOPPER, Given())
    found = smi(HOPPER, Given.parse("mlx5_[0-7]=200Gb/s"))
    assert found.cluster.servers[0].out_rate == 1600 * GBPS


def test_the_skipped_nic_can_be_asked_for() -> None:
    found = smi(HOPPER, Given.parse("400Gb/s", "mlx5_0,mlx5_bond_0"))
    assert [nic.name for nic in found.cluster.servers[0].nics] == ["mlx5_0", "mlx5_bond_0"]


def test_old_drivers_name_nics_in_the_columns_and_say_soc() -> None:
    text = (
        "$ nvidia-smi topo -m\n        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity\n"
        "GPU0     X      PIX     SOC     SOC     SOC     0-7\nGPU1    PIX      X      SOC     SOC     SOC     0-7\n"
        "GPU2    SOC     SOC      X      PIX     PHB     8-15\nGPU3    SOC     SOC     PIX      X      PHB     8-15\n"
        "mlx5_0  SOC     SOC     PHB     PHB      X\n"
    )
    found = smi(text)
    (server,) = found.cluster.servers
    assert [(nic.name, nic.gpu) for nic in server.nics] == [("mlx5_0", 2)]
    assert server.nvlink_rate == 0
    assert any("virtual machines" in note for note in found.notes)


def test_links_of_pairs_are_summed() -> None:
    """A V100 server without a switch: NV1 and NV2 to some GPUs; the GPU with the least counts."""
    links = {frozenset("01"): "NV1", frozenset("02"): "NV1", frozenset("03"): "NV2", frozenset("12"): "NV2"}

    def cell(row: str, column: str) -> str:
        return links.get(frozenset((row[3:], column[3:])), "SYS") if row[:3] == column[:3] == "GPU" else "PIX"

    found = smi(matrix(4, ["NIC0"], cell) + legend(["mlx5_0"]))
    assert found.cluster.servers[0].nvlink_rate == 2 * 20 * 10**9  # GPU3 has 2 links
    assert any("in pairs" in note and "GPUs differ" in note for note in found.notes)


def test_one_gpu_and_one_nic() -> None:
    found = smi("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPHB\t0-251\nNIC0\tPHB\t X \n" + legend(["mlx5_0"]))
    assert [nic.gpu for nic in found.cluster.servers[0].nics] == [0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n", "no NIC in the matrix"),
        ("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \n", "narrow terminal"),
        ("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tBAD\n", "'BAD'"),
        ("\tGPU0\tGPU1\tNIC0\tCPU\nGPU0\t X \tPHB\tPIX\n", "a row for each GPU"),
        ("\tGPU0\tGPU0\tNIC0\tCPU\n", "columns twice"),
        ("GPU0\t X \tPHB\n", "no line with the columns"),
    ],
)
def test_a_broken_matrix_is_told(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        smi(text)


def test_kind_is_found_by_content(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-16"):  # the latter is what PowerShell's > writes
        path = tmp_path / encoding
        path.write_text(HOPPER, encoding=encoding)
        assert len(load_topology(str(path), nic_rate="400Gb/s").cluster.servers[0].nics) == 8
    assert not looks_like_smi("optcc: 1\nservers:\n- name: GPU0\n  GPU0 x\n")


def test_gzip_is_unfolded_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt.gz"
    path.write_bytes(gzip.compress(HOPPER.encode()))
    assert len(load_topology(str(path), nic_rate="400Gb/s").cluster.servers[0].nics) == 8
    path.write_bytes(gzip.compress(b"x" * 10**8))
    with pytest.raises(InputError, match="too large"):
        load_topology(str(path))
    path.write_bytes(b"\x1f\x8b" + bytes(30))
    with pytest.raises(InputError, match="gzip"):
        load_topology(str(path))


# Hosts


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
    pytest.importorskip("ClusterShell")
    assert expand_hosts(text) == names
    cluster = load_topology("uniform:servers=1,rate=1Gb/s", hosts=text).cluster
    assert [server.name for server in cluster.servers] == names


@pytest.mark.parametrize(
    "text",
    ["", "a,", "@all", "a[", "a]", "a*", "a!b", "n[3-1]", "n[1-2/2]", "n[]", "a b", "n[1-70000]", "é", "x" * 70000],
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


# sysfs

BRIDGE = "devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus:02x}:02.0"


def card(root: Path, bus: int, slot: int, kind: str, vendor: str) -> Path:
    """A PCI device behind a bridge of bus `bus`, and the kernel's link to it."""
    address = f"0000:{bus + 1:02x}:{slot:02x}.0"
    path = root / BRIDGE.format(bus=bus) / address
    path.mkdir(parents=True)
    (path / "class").write_text(kind + "\n")
    (path / "vendor").write_text(vendor + "\n")
    link = root / "bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(path, link.parent))
    return path


def rdma(root: Path, bus: int, name: str, rate: str = "400 Gb/sec (4X NDR)", state: str = "4: ACTIVE") -> None:
    path = card(root, bus, 1, "0x020700", "0x15b3")
    port = path / "infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    for key, text in (("rate", rate), ("state", state), ("link_layer", "InfiniBand"), ("lid", "0x1")):
        (port / key).write_bytes(text.encode() + b"\n" + b"\0" * 100)  # as tar pads a copy of sysfs
    (path / "infiniband" / name / "device").symlink_to("../..")
    link = root / "class/infiniband" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(path / "infiniband" / name, link.parent))


def interface(root: Path, bus: int, name: str, speed: str, state: str = "up") -> None:
    path = card(root, bus, 2, "0x020000", "0x8086") / "net" / name
    path.mkdir(parents=True)
    (path / "speed").write_text(speed + "\n")
    (path / "operstate").write_text(state + "\n")
    (path / "device").symlink_to("../..")
    link = root / "class/net" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(path, link.parent))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    for i, bus in enumerate((0x10, 0x20, 0x30)):
        card(root, bus, 0, "0x030200", "0x10de")
        rdma(root, bus, f"mlx5_{i}")
    rdma(root, 0x40, "mlx5_3", "25 Gb/sec (1X EDR)")
    rdma(root, 0x50, "mlx5_4", "2.5 Gb/sec (1X SDR)", "1: DOWN")
    interface(root, 0x60, "ens1", "1000")
    return root


def check_tree(found: Topology) -> None:
    (server,) = found.cluster.servers
    assert [(n.name, n.gpu, n.out_rate) for n in server.nics] == [(f"mlx5_{i}", i, 400 * GBPS) for i in range(3)]
    assert server.gpus == 3
    notes = "\n".join(found.notes)
    assert "mlx5_3: skipped as a management port" in notes
    assert "mlx5_4: skipped, its link is down" in notes
    assert "--fail server0/mlx5_4" in notes
    assert "(ens1)" in notes
    assert "NVLink counts as unknown" in notes


def test_sysfs_tree(tree: Path) -> None:
    for path in (tree, tree.parent):
        check_tree(load_topology(str(path)))


def member(kind: bytes, name: str, target: str = "", data: bytes = b"") -> tuple[tarfile.TarInfo, io.BytesIO]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, len(data)
    return made, io.BytesIO(data)


def packed(path: Path, *members: tuple[tarfile.TarInfo, io.BytesIO], tree: Path | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        if tree is not None:
            archive.add(tree, "sys")
        for made, data in members:
            archive.addfile(made, data)
    return path


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tarballs are unpacked, in folders that are gone afterwards; what else is here then has escaped."""
    made = tmp_path / "unpacked"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def test_sysfs_tarball(tree: Path, tmp_path: Path, unpacked: Path) -> None:
    path = packed(
        tmp_path / "sys.tar.gz",
        member(tarfile.SYMTYPE, "sys/class/evil", "/etc"),
        member(tarfile.SYMTYPE, "../out", "x"),
        member(tarfile.REGTYPE, "../file", data=b"x"),
        member(tarfile.REGTYPE, "sys/devices/resource0", data=bytes(2**20)),
        tree=tree,
    )
    check_tree(load_topology(str(path)))
    assert not list(unpacked.iterdir())


@pytest.mark.parametrize("lead", ["", "./", "/"])
def test_nothing_is_written_through_a_link(tree: Path, tmp_path: Path, unpacked: Path, lead: str) -> None:
    """Links to long names, so that where the last one leads is longer than the system's longest path."""
    long, steps, at = "d" * 247, "abcdefghijklmnop", ""
    chain = []
    for step in steps:
        chain += [
            member(tarfile.DIRTYPE, at + long),
            member(tarfile.SYMTYPE, lead + at + step, long),
        ]
        at += step + "/"
    chain += [
        member(tarfile.SYMTYPE, lead + at + "l" * 254, "../" * len(steps)),
        member(tarfile.SYMTYPE, lead + "escape", at + "l" * 254 + "/../victim"),
        member(tarfile.REGTYPE, "escape/file", data=b"x"),
    ]
    (unpacked / "victim").mkdir()
    check_tree(load_topology(str(packed(tmp_path / "sys.tar.gz", *chain, tree=tree))))
    assert not list((unpacked / "victim").iterdir())
    assert len(list(unpacked.iterdir())) == 1


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [b"x", b"g", b"X", b"L", b"K"])
@pytest.mark.parametrize("size", [2**12, 2**17])
def test_a_tarball_with_a_name_that_fills_the_memory_is_refused(
    tree: Path, tmp_path: Path, kind: bytes, first: bool, size: int
) -> None:
    """Whoever reads the header reads as many bytes as it says; those of a usual length do no harm."""
    record = b"%d comment=" % size
    data = bytes(b"a" * size if kind in b"LK" else record + b"a" * (size - len(record) - 1) + b"\n")
    parts = [tar_block(kind, size) + data, plain_tar(tree, tmp_path)]
    if not first:
        parts.insert(0, tar_block(tarfile.DIRTYPE))
    path = tmp_path / "sys.tar.bz2"
    path.write_bytes(bz2.compress(b"".join(parts)))
    if size == 2**12:
        check_tree(load_topology(str(path)))
    else:
        with pytest.raises(InputError, match=None if first else "a name too long"):
            load_topology(str(path))


@pytest.mark.parametrize(
    ("kind", "size", "says"),
    [(b"x", 8**11 - 1, "name too long"), (b"L", -512, "name too long"), (b"S", 0, "holes"), (b"0", -512, "below 0")],
)
def test_a_tarball_with_sizes_that_cannot_be_is_refused(
    tree: Path, tmp_path: Path, kind: bytes, size: int, says: str
) -> None:
    path = tmp_path / "sys.tar"
    path.write_bytes(tar_block(tarfile.DIRTYPE) + tar_block(kind, size) + plain_tar(tree, tmp_path))
    with pytest.raises(InputError, match=says):
        load_topology(str(path))


def test_a_tarball_with_a_map_of_holes_is_refused(tree: Path, tmp_path: Path) -> None:
    """Of GNU tar's version 1.0, where a number at the start of the file says how much of it is read at once."""
    made, data = member(tarfile.REGTYPE, "sys/hole", data=b"0\n".ljust(512, b"\0"))
    made.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
    with pytest.raises(InputError, match="holes"):
        load_topology(str(packed(tmp_path / "sys.tar.gz", (made, data), tree=tree)))


def tar_block(kind: bytes, size: int = 0) -> bytes:
    made = tarfile.TarInfo("sys/a")
    made.type, made.size = kind, size
    return made.tobuf(tarfile.GNU_FORMAT)


def plain_tar(tree: Path, tmp_path: Path) -> bytes:
    return gzip.decompress(packed(tmp_path / "whole.tar.gz", tree=tree).read_bytes())


@pytest.mark.parametrize("kind", [b"x", b"L"])
def test_a_tarball_of_names_of_names_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "sys.tar"
    path.write_bytes(tar_block(kind) * 5000)
    with pytest.raises(InputError):
        load_topology(str(path))


def test_without_rdma_network_cards_count(tmp_path: Path) -> None:
    interface(tmp_path, 0x10, "ens1", "100000")
    interface(tmp_path, 0x20, "ens2", "-1", "unknown")
    (tmp_path / "class/net/lo").mkdir()
    with pytest.raises(InputError, match=r"ens2: no rate.*--nic-rate ens2=RATE"):
        load_topology(str(tmp_path))
    found = load_topology(str(tmp_path), nic_rate="ens2=25Gb/s")
    assert [(n.name, n.out_rate / GBPS) for n in found.cluster.servers[0].nics] == [("ens1", 100), ("ens2", 25)]
    assert any("no RDMA device" in note for note in found.notes)


@pytest.mark.parametrize("made", ["", "class/net/lo", "class/infiniband"])
def test_a_directory_without_nics_is_refused(tmp_path: Path, made: str) -> None:
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    with pytest.raises(InputError, match="cp -r"):
        load_topology(str(tmp_path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(data=st.data())
def test_broken_sysfs_loads_or_is_refused(tree: Path, data: st.DataObject) -> None:
    files = sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink())
    path = data.draw(st.sampled_from(files))
    before = path.read_bytes()
    path.write_bytes(
        data.draw(st.binary(max_size=12) | st.sampled_from([b"-1", b"9" * 30, b"0x", b"4: ", b"\xff Gb/sec"]))
    )
    try:
        survives(lambda: read_sysfs(str(tree), RATE))
    finally:
        path.write_bytes(before)


@given(st.binary(max_size=600) | st.just(b"\x1f\x8b" + bytes(40)), st.integers(0, 3))
def test_a_broken_tarball_is_refused(noise: bytes, part: int) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz" if part % 2 else "w") as archive:
        archive.addfile(tarfile.TarInfo("sys/class/net/a"))
    whole = stream.getvalue()
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(whole[: len(whole) * part // 4] + noise)
        file.flush()
        survives(lambda: load_topology(file.name, nic_rate="1Gb/s"))


# Broken at random

AMD = amd_gpu(0, "gfx942", 2) + amd_gpu(1, "gfx90a", 2)
VM = f'<system version="2"><cpu numaid="3">{AMD}{net("cxi0", 0)}</cpu></system>'
XMLS = [
    VM,
    f"<system>{BARE}</system>",
    f'<system><cpu host_hash="0x1">{switch(0, "a")}</cpu><cpu>{net("b", 1)}</cpu></system>',
]


def survives(read: Callable[[], Topology]) -> None:
    """Only a cluster or an InputError that can be read; anything else is a traceback that a person would see."""
    try:
        found = read()
    except InputError as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 2000
    if message:
        return
    assert found.cluster.servers
    assert found.read
    assert all(len(note) < 2000 for note in found.notes)
    read_yaml(write_yaml(found.cluster, comments=found.notes).encode(), "again", Given())


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


@st.composite
def attribute_edits(draw: st.DrawFn) -> Edit:
    """One attribute's value is another one, or the attribute is gone; or what `edits` do."""
    at, value = draw(st.floats(0, 1, exclude_max=True)), draw(st.none() | st.sampled_from(NASTY))
    other = draw(st.none() | edits())

    def edit(data: bytes) -> bytes:
        places = list(re.finditer(rb' [a-z_]+="([^"]*)"', data))
        if other is not None or not places:
            return data if other is None else other(data)
        place = places[int(at * len(places))]
        if value is None:
            return data[: place.start()] + data[place.end() :]
        return data[: place.start(1)] + value.encode() + data[place.end(1) :]

    return edit


BROKEN = given(st.sampled_from(XMLS), st.lists(attribute_edits(), min_size=1, max_size=4))


def dialect_survives(text: str, changes: list[Edit]) -> None:
    data = text.encode()
    for change in changes:
        data = change(data)
    survives(lambda: read_nccl_xml(data, "t.xml", RATE))


test_broken_dialects_load_or_are_refused = BROKEN(dialect_survives)


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
        ("3.1us", "3.1", "$.measured.alpha"),
        ("0.6%", "0.6", "$.measured.spread"),
        ("nameplate: 400Gb/s", "nameplate: much", "$.servers[0].nics[0].nameplate"),
        ("1%", "-1%", "$.servers[0].nics[0].spread"),
    ):
        with pytest.raises(InputError, match=re.escape(where)):
            read_yaml(CALIBRATED.replace(right, wrong, 1).encode(), "t.yaml", Given())


@given(st.lists(edits(), min_size=1, max_size=4))
def test_a_broken_matrix_loads_or_is_refused(changes: list[Edit]) -> None:
    data = HOPPER.encode()
    for change in changes:
        data = change(data)
    survives(lambda: read_smi(data.decode("utf-8", "replace"), "topo.txt", RATE))


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_options_are_taken_or_refused(nic_rate: str, nics: str) -> None:
    survives(lambda: load_topology("uniform:servers=2,nics=2,rate=1Gb/s", nic_rate=nic_rate, nics=nics))


def test_the_fuzz_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with a fault that only broken files meet: an attribute taken for a number unseen."""
    from optcc.discover import nccl_gpus

    def careless(element: object, key: str, path: str) -> int:
        return int(element.get(key))  # type: ignore[attr-defined]

    monkeypatch.setattr(nccl_gpus, "number", careless)
    quick = settings(
        max_examples=5000, phases=[Phase.generate], database=None, report_multiple_bugs=False, derandomize=True
    )
    with pytest.raises((TypeError, ValueError)):
        quick(BROKEN(dialect_survives))()


# YAML, written and read

SERVERS = [
    Server("a b".replace(" ", "-"), (Nic("yes", 400 * GBPS, 300 * GBPS, 3), Nic("12:30", GBPS / 1000, GBPS)), 2, 10**9),
    Server("{x}", (Nic("'q'", 0 * GBPS, GBPS, gpu=0),), 1, pod="n:[1]"),
]


def test_what_is_written_is_read_back() -> None:
    measured = Measured("2026-11-20", "local", GBPS / GBPS / 10**6, None, GBPS / GBPS / 100, {"{x}/'q'": 2 * GBPS})
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


# optcc topo


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
