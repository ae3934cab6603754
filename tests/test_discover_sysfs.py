"""sysfs as a directory or a tarball, whole, hostile and broken."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optcc.discover import Topology, load_topology
from optcc.discover.sysfs_tree import read_sysfs
from optcc.errors import InputError
from tests.test_discover import GBPS
from tests.topology_texts import RATE, survives

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


def test_a_name_that_no_nic_has_is_refused(tree: Path) -> None:
    for nics in ("^mlx5_99", "mlx5_99"):
        with pytest.raises(InputError, match=r"--nics: no NIC of this name, expected among mlx5_0, .*, got 'mlx5_99'"):
            load_topology(str(tree), nics=nics)


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
    """Where files would be, if a tarball were unpacked."""
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


def test_tarballs_need_no_filters_of_the_interpreter(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.2 and 3.11.3 have none of tarfile's filters; and nothing is extracted."""
    for name in ("FilterError", "data_filter", "tar_filter", "fully_trusted_filter"):
        monkeypatch.delattr(tarfile, name, raising=False)
    for name in ("extract", "extractall"):
        monkeypatch.delattr(tarfile.TarFile, name)
    check_tree(load_topology(str(packed(tmp_path / "sys.tar.gz", tree=tree))))


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
