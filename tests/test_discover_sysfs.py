"""sysfs as a directory or a tarball, whole, hostile and broken; and RDMA ports as it shows them."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import os
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optcc.cli import main
from optcc.cli.doctor import examine
from optcc.discover import Topology, load_topology
from optcc.discover.sysfs_tree import read_sysfs
from optcc.errors import InputError
from optcc.files.reading import kind_of, open_regular, read_regular
from optcc.machine.rdma import Gid, NicAddress, rdma_ports
from optcc.machine.sysfs import Folder
from tests.sysfs_trees import DOWN, GEN1, GEN4, GEN5, ROOT, Machine, link, two_gpus, write
from tests.test_discover import GBPS
from tests.topology_texts import RATE, survives

# sysfs as a directory or a tarball, whole, hostile and broken.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = Machine(tmp_path / "sys")
    for i, bus in enumerate((0x10, 0x20, 0x30)):
        made.gpu(bus)
        made.rdma(bus, f"mlx5_{i}")
    made.rdma(0x40, "mlx5_3", 25)
    made.rdma(0x50, "mlx5_4", 2.5, state=DOWN)
    made.net("ens1", made.pci(0x60, "00.0"), "1000")
    return made.root


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
    made = Machine(tmp_path)
    made.net("ens1", made.pci(0x10, "00.0"))
    made.net("ens2", made.pci(0x20, "00.0"), "-1", operstate="unknown")
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


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return two_gpus(tmp_path)


def functions(machine: Machine, bus: int, count: int, first: int, **more: str) -> Path:
    """A ConnectX-5 of 100 Gb/s with virtual functions, which have addresses up to the next device number."""
    ids = {"device": "0x1017", **more}
    card = machine.rdma(bus, f"mlx5_{first}", 100, slot="00.0", fabric="Ethernet", now=("8.0 GT/s PCIe", "16"), **ids)
    for i in range(2, 2 + count):
        slot = f"{i // 8:02x}.{i % 8}"
        function = machine.rdma(
            bus, f"mlx5_{first + i - 1}", 100, slot=slot, fabric="Ethernet", now=("Unknown", "0"), device="0x1018"
        )
        link(function / "physfn", card)
    return card


def test_virtual_functions_are_no_more_nics(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.gpu(0x12, "1f.0")
    functions(made, 0x12, 8, 0)
    assert made.rates() == {"mlx5_0": 100}
    assert "mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7, mlx5_8" in made.notes()
    assert made.rates("mlx5_3") == {"mlx5_3": 100}
    assert made.rates("^mlx5_0") == {"mlx5_1": 100}, "without the card itself, the first of its functions"


def test_functions_whose_card_is_down_or_hidden_count_once(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    card = functions(made, 0x12, 3, 0)
    (card / "infiniband/mlx5_0/ports/1/state").write_text(DOWN)
    assert made.rates() == {"mlx5_1": 100}
    (made.root / "class/infiniband/mlx5_0").unlink()
    assert made.rates() == {"mlx5_1": 100}


def test_functions_of_both_ports_of_a_bond_are_no_more_nics(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.rdma(0x12, "mlx5_bond_0", 200, slot="00.0", fabric="Ethernet", device="0x101d")
    second = made.pci(0x12, "00.1")  # whose RDMA device is in the bond
    link(made.rdma(0x12, "mlx5_1", 100, slot="01.2", fabric="Ethernet", device="0x101e") / "physfn", second)
    assert made.rates() == {"mlx5_bond_0": 200}


def test_a_virtual_machine_has_the_functions_that_it_sees(tmp_path: Path) -> None:
    """No card to be seen: each is a NIC, and its links say nothing."""
    made = Machine(tmp_path / "sys")
    for i in range(8):
        made.gpu(0x10 + 4 * i)
        made.rdma(0x12 + 4 * i, f"mlx5_{i}", slot="00.0", now=("Unknown", "0"), device="0x101e")
    assert made.rates() == {f"mlx5_{i}": 400 for i in range(8)}


def test_subfunctions_and_representors_are_no_more_nics(machine: Machine) -> None:
    card = machine.rdma(0x20, "mlx5_2", 100, slot="02.0", device="0xffff")
    below = write(card / "mlx5_core.sf.4").relative_to(machine.root)
    machine.rdma(0x20, "mlx5_4", 100, below=str(below))
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 100}
    machine.rdma(0x30, "mlx5_3", ports=5)  # a port for each representor
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 100, "mlx5_3": 400}


def test_both_ports_of_a_card_count(machine: Machine) -> None:
    machine.gpu(0x30, "02.0")
    for function in (0, 1):
        machine.rdma(0x30, f"mlx5_{2 + function}", 200, slot=f"00.{function}")
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 200, "mlx5_3": 200}
    machine.rdma(0x40, "mlx5_bond_0", 400)
    assert machine.rates()["mlx5_bond_0"] == 400


def test_a_slow_nic_beside_its_gpu_counts(machine: Machine) -> None:
    machine.gpu(0x30)
    machine.rdma(0x30, "mlx5_2", 10)
    machine.rdma(0x40, "mlx5_3", 10)
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 10}
    assert "mlx5_2: counts, although 10Gb/s is far below 400Gb/s" in machine.notes()
    assert "mlx5_3: skipped as a management port" in machine.notes()


def test_storage_ports_without_a_gpu_are_left_out(machine: Machine) -> None:
    machine.rdma(0x40, "mlx5_2", 200, slot="00.0")
    machine.rdma(0x40, "mlx5_3", 200, slot="00.1")
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400}
    assert "management or storage port, 200Gb/s" in machine.notes()


@pytest.mark.parametrize("gbps", [400, 200, 100])
def test_ethernet_beside_infiniband_is_left_out_where_nothing_tells_what_is_near(tmp_path: Path, gbps: int) -> None:
    """Grace: GPUs hang on their processor, not on a PCI switch. BlueFields serve management and storage."""
    made = Machine(tmp_path / "sys")
    for i in range(4):
        made.gpu(0x10 + 4 * i)
        made.rdma(0x50 + 4 * i, f"mlx5_{i}")
    for i in range(2):
        made.rdma(0x80 + 4 * i, f"mlx5_{4 + i}", gbps, fabric="Ethernet", device="0xa2dc")
    assert made.rates() == {f"mlx5_{i}": 400 for i in range(4)}
    assert "Ethernet and no GPU beside it, where training goes over InfiniBand" in made.notes()
    assert len(made.rates("mlx5_*")) == 6


def test_ethernet_alone_counts_and_beside_a_gpu_too(machine: Machine) -> None:
    machine.gpu(0x30)
    machine.rdma(0x30, "mlx5_2", fabric="Ethernet")
    assert len(machine.rates()) == 3


def test_efa_tells_no_fabric_and_counts(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    for i in range(4):
        made.rdma(
            0x10 + 4 * i, f"rdmap{i}s27", 100, fabric="Unspecified", vendor="0x1d0f", device="0xefa1", now=("", "")
        )
    assert set(made.rates().values()) == {100}


def test_soft_rdma_beside_cards_is_left_out(machine: Machine) -> None:
    below = write(machine.root / "devices/virtual/rxe").relative_to(machine.root)
    machine.rdma(0, "rxe0", 100, below=str(below))
    assert set(machine.rates()) == {"mlx5_0", "mlx5_1"}
    assert set(machine.rates("rxe0")) == {"rxe0"}
    for name in ("mlx5_0", "mlx5_1"):
        (machine.root / "class/infiniband" / name).unlink()
    assert machine.rates() == {"rxe0": 100}


def test_virtual_interfaces_are_no_nics(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    card = made.pci(0x10, "00.0", vendor="0x8086", device="0x1592")
    made.net("ens1f0", card)
    virtual = ("lo", "veth12ab", "virbr0", "docker0", "tailscale0", "bond0", "br0", "ens1f0.100", "tap0")
    for name in virtual:
        made.net(name, "virtual", "400000")
    made.net("wlan0", made.pci(0x20, "00.0"), uevent="DEVTYPE=wlan")
    made.net("ens1f0r1", card, phys_port_name="pf0vf1")
    made.net("enxaabb", "pci0000:00/0000:00:14.0/usb1/1-1/1-1:2.0")
    assert set(made.rates()) == {"ens1f0"}
    notes = made.notes()
    for name in ({*virtual} - {"lo"}) | {"wlan0", "ens1f0r1", "enxaabb"}:
        assert name in notes, name


def test_an_interface_that_is_asked_for_counts(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.net("ens1", made.pci(0x10, "00.0"))
    made.net("bond0", "virtual", "200000")
    (made.root / "class/net/bonding_masters").write_text("bond0\n")
    assert made.rates() == {"ens1": 100}
    assert "bonding_masters" not in made.notes()
    assert made.rates("bond0") == {"bond0": 200}


def test_a_partition_of_an_infiniband_port_is_no_nic(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    card = made.pci(0x10, "00.0")
    made.net("ib0", card, type="32")
    made.net("ib0.8001", card, type="32", parent="ib0")
    assert set(made.rates()) == {"ib0"}
    assert "partitions of others: ib0.8001" in made.notes()


def test_nics_of_a_virtual_machine_without_pci_count(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.net("eth0", "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/11-22", "50000")
    made.net("docker0", "virtual", "10000")
    assert made.rates() == {"eth0": 50}
    place = made.pci(0x10, "00.0")
    made.net("enP1s1", place, "100000")
    assert made.rates() == {"enP1s1": 100}, "what is on a card, where there is such"
    made.net("eth1", place / "virtio3", "100000")
    assert set(made.rates()) == {"enP1s1", "eth1"}


def test_virtual_interfaces_alone_are_no_nic(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.net("eth0", "virtual", "10000")  # a container's
    with pytest.raises(InputError, match=r"no NIC.*got 'eth0'"):
        made.read()


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [(GEN1, "16", 32), (GEN5, "8", 252), (GEN5, "1", "31.5"), (GEN4, "4", 63), ("8.0 GT/s PCIe", "12", "94.5")],
)
def test_a_link_that_has_trained_down_limits_its_nic(machine: Machine, speed: str, width: str, gbps: str) -> None:
    machine.rdma(0x20, "mlx5_2", slot="02.0", now=(speed, width))
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": Fraction(gbps)}
    assert "a degraded slot: 32.0 GT/s x16 is possible" in machine.notes()


def test_a_link_that_has_trained_down_and_still_suffices_is_noted(machine: Machine) -> None:
    machine.rdma(0x20, "mlx5_2", 200, slot="02.0", now=(GEN4, "16"))
    assert machine.rates()["mlx5_2"] == 200
    assert "16.0 GT/s x16, where 32.0 GT/s x16 is possible" in machine.notes()


def test_a_slot_that_is_no_better_is_not_called_degraded(machine: Machine) -> None:
    """A Gen5 card in a Gen4 slot is limited, and as good as it can be."""
    machine.rdma(0x30, "mlx5_2", now=(GEN4, "16"))
    write(machine.root / "devices" / ROOT.format(0x30), max_link_speed=GEN4, max_link_width="16")
    assert machine.rates()["mlx5_2"] == 252
    assert "degraded" not in machine.notes()


def test_the_link_of_the_bridge_above_counts(machine: Machine) -> None:
    machine.rdma(0x30, "mlx5_2")
    write(
        machine.root / "devices" / ROOT.format(0x30),
        current_link_speed=GEN1,
        current_link_width="16",
        max_link_speed=GEN5,
        max_link_width="16",
    )
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 32}
    assert "at the bridge 0000:30:01.0" in machine.notes()


def test_what_is_above_the_switch_of_nic_and_gpu_does_not_count(tmp_path: Path) -> None:
    """Traffic between the two turns back at their switch: only the links below it carry it."""
    made = Machine(tmp_path / "sys")
    top = made.root / "devices/pci0000:10/0000:10:01.0"
    write(top / "0000:11:00.0", current_link_speed=GEN1, current_link_width="16")
    for slot, address in (("00", "0000:13:00.0"), ("01", "0000:14:00.0")):
        below = top / f"0000:11:00.0/0000:12:{slot}.0"
        write(below, current_link_speed=GEN5, current_link_width="16")
        gpu = slot == "00"
        place = write(
            below / address,
            vendor="0x10de" if gpu else "0x15b3",
            **{"class": "0x030200" if gpu else "0x020700"},
            current_link_speed=GEN5,
            current_link_width="16",
        )
        link(made.root / "bus/pci/devices" / address, place)
    made.rdma(0, "mlx5_0", below="devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0")
    assert made.rates() == {"mlx5_0": 400}
    write(top / "0000:11:00.0/0000:12:01.0", current_link_width="4")
    assert made.rates() == {"mlx5_0": 126}, "the control: a link below the switch"


def test_two_ports_of_a_card_share_its_slot(machine: Machine) -> None:
    machine.gpu(0x30, "02.0")
    for function in (0, 1):
        machine.rdma(0x30, f"mlx5_{2 + function}", 200, slot=f"00.{function}", now=(GEN4, "16"))
    assert machine.rates() == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 126, "mlx5_3": 126}


def test_the_same_nonsense_everywhere_is_not_believed(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    for i, bus in enumerate((0x10, 0x20)):
        made.gpu(bus, max_link_speed=GEN1, max_link_width="1")
        made.rdma(bus, f"mlx5_{i}", now=(GEN1, "1"), max_link_speed=GEN1, max_link_width="1")
    assert made.rates() == {"mlx5_0": 400, "mlx5_1": 400}
    assert "is not believed" in made.notes()
    made.rdma(0x30, "mlx5_2")
    assert made.rates() == {"mlx5_0": 2, "mlx5_1": 2, "mlx5_2": 400}, "the control: one says something else"


@pytest.mark.parametrize("most", [GEN5, GEN1])
def test_the_same_nonsense_now_is_not_believed_whatever_is_said_to_be_possible(tmp_path: Path, most: str) -> None:
    made = Machine(tmp_path / "sys")
    for i, bus in enumerate((0x10, 0x20)):
        made.gpu(bus, current_link_speed=GEN1, current_link_width="1", max_link_speed=most)
        made.rdma(bus, f"mlx5_{i}", now=(GEN1, "1"), max_link_speed=most)
    assert made.rates() == {"mlx5_0": 400, "mlx5_1": 400}


@pytest.mark.parametrize("idle", [GEN1, GEN5])
def test_all_nics_trained_down_are_believed_beside_gpus_sane_or_idle(tmp_path: Path, idle: str) -> None:
    made = Machine(tmp_path / "sys")
    gpu = made.gpu(0x10, current_link_speed=idle)
    nic = made.rdma(0x10, "mlx5_0", now=(GEN1, "16"))
    assert made.rates() == {"mlx5_0": 32}
    for path in (gpu, nic):
        (path / "max_link_speed").unlink()
    assert made.rates() == {"mlx5_0": 32 if idle == GEN5 else 400}, "alike, and nothing says that more is possible"


@pytest.mark.parametrize(("speed", "width"), [("Unknown", "0"), ("", ""), (GEN5, "255"), ("many GT/s", "16")])
def test_a_slot_that_tells_nothing_limits_nothing(machine: Machine, speed: str, width: str) -> None:
    machine.rdma(0x30, "mlx5_2", now=(speed, width))
    write(machine.root / "devices" / ROOT.format(0x30), current_link_speed=GEN1, current_link_width="1")
    assert machine.rates()["mlx5_2"] == 400


def test_a_rate_by_name_is_above_the_slot(machine: Machine) -> None:
    machine.rdma(0x20, "mlx5_2", slot="02.0", now=(GEN1, "16"))
    (server,) = machine.read(nic_rate="mlx5_2=100Gb/s").cluster.servers
    assert server.nics[2].out_rate == 100 * GBPS


RATE_FILE = f"devices/{ROOT.format(0x10)}/0000:11:01.0/infiniband/mlx5_0/ports/1/rate"


@pytest.fixture
def tree_of_files(tmp_path: Path) -> Path:
    made = Machine(tmp_path / "sys")
    made.gpu(0x10)
    made.rdma(0x10, "mlx5_0")
    return made.root


def listening(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"400 Gb/sec" * 1000)
        file.truncate(2**33)


STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "a FIFO"),
    "socket": (listening, "a socket"),
    "folder": (os.mkdir, "folder"),
    "loop": (lambda path: path.symlink_to("rate"), "a link that leads in a circle"),
    "huge": (huge, "at most 4096 bytes"),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.timeout(60)
def test_what_is_no_attribute_is_told(tree_of_files: Path, kind: str) -> None:
    make, says = STRANGE[kind]
    (tree_of_files / RATE_FILE).unlink()
    make(tree_of_files / RATE_FILE)
    for command in (["topo", str(tree_of_files)], ["doctor", "--sysfs", str(tree_of_files.parent)]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2, done.output
        assert "mlx5_0/ports/1/rate" in done.stderr
        assert says in done.stderr


def test_a_device_is_no_attribute() -> None:
    """One that is there: only root may make one in `tree`."""
    with pytest.raises(InputError, match=r"zero: .*a character device"):
        Folder(Path("/dev")).text("zero")


def test_an_attribute_that_may_not_be_read_is_told(tree_of_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is made up: root may read everything."""

    def refuse(path: Path, most: int) -> bytes:
        if str(path).endswith("/rate"):
            raise PermissionError(13, "Permission denied", str(path))
        return read_regular(path, most)

    monkeypatch.setattr("optcc.machine.sysfs.read_regular", refuse)
    with pytest.raises(InputError, match=r"ports/1/rate: cannot be read.*Permission denied"):
        load_topology(str(tree_of_files))


def test_what_a_driver_refuses_is_empty(tree_of_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for unused entries of GID tables, and the speed of interfaces that are down."""

    def refuse(path: Path, most: int) -> bytes:
        raise OSError(22, "Invalid argument", str(path))

    found = Folder(tree_of_files)
    assert found.text(RATE_FILE).startswith("400")
    monkeypatch.setattr("optcc.machine.sysfs.read_regular", refuse)
    assert found.text(RATE_FILE) == ""


def test_a_link_out_of_the_copy_is_as_if_it_were_not_there(tree_of_files: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("400 Gb/sec")
    for target in (outside, Path("../" * 20) / str(outside)[1:]):
        (tree_of_files / RATE_FILE).unlink()
        (tree_of_files / RATE_FILE).symlink_to(target)
        assert Folder(tree_of_files).text(RATE_FILE) == ""
        assert (tree_of_files / RATE_FILE).read_text() == "400 Gb/sec", "the control: the system would follow it"


def test_links_that_a_copy_made_into_text_are_links(tree_of_files: Path, tmp_path: Path) -> None:
    """zip and git on Windows write the target of a link into a file."""
    copy = tmp_path / "copy"
    shutil.copytree(tree_of_files, copy / "sys", symlinks=True)
    links = [path for path in copy.rglob("*") if path.is_symlink()]
    assert len(links) > 3
    for path in links:
        target = os.readlink(path)
        path.unlink()
        path.write_text(target)
    assert load_topology(str(copy)).cluster == load_topology(str(tree_of_files)).cluster
    with tarfile.open(tmp_path / "copy.tar", "w") as archive:
        archive.add(copy / "sys", "sys")
    assert load_topology(str(tmp_path / "copy.tar")).cluster == load_topology(str(tree_of_files)).cluster


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
@pytest.mark.timeout(60)
def test_what_is_no_file_is_told_where_a_topology_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "topology"
    STRANGE[kind][0](path)
    done = CliRunner().invoke(main, ["topo", str(path)])
    assert done.exit_code == 2, done.output
    assert ("class/infiniband" if kind == "folder" else STRANGE[kind][1]) in done.stderr


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self"])
@pytest.mark.timeout(60)
def test_devices_and_other_folders_are_told_where_a_topology_is_named(path: str) -> None:
    done = CliRunner().invoke(main, ["topo", path])
    assert done.exit_code == 2, done.output
    assert "a character device" in done.stderr or "cannot be read, expected an NCCL topology XML" in done.stderr


def test_a_loop_of_links_is_told_where_a_topology_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = CliRunner().invoke(main, ["topo", str(tmp_path / "loop")])
    assert done.exit_code == 2
    assert "symbolic links" in done.stderr


def test_a_file_that_changes_under_our_hands_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular file when it is looked at, a FIFO when it is opened: neither waited for nor read."""
    regular, fifo = tmp_path / "regular", tmp_path / "fifo"
    regular.write_text("1")
    os.mkfifo(fifo)
    assert kind_of(fifo.stat().st_mode) == "a FIFO"
    before = regular.stat()
    monkeypatch.setattr("optcc.files.reading.os.stat", lambda path: before)
    with pytest.raises(OSError, match="a FIFO"):
        open_regular(fifo)


# RDMA ports as sysfs shows them, from trees made for the test; and what the doctor says about them.


NOTHING = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0207"
IPV6 = "2001:0db8:0000:0000:0000:0000:0000:0007"
V1, V2 = "IB/RoCE v1", "RoCE v2"


def make(
    root: Path,
    device: str,
    port: int = 1,
    *,
    link: str = "Ethernet",
    state: str = "4: ACTIVE",
    rate: str = "400 Gb/sec (4X NDR)",
    lid: str = "0x0",
    gids: dict[int, tuple[str, str]] | None = None,
) -> None:
    """A port under `root`/sys/class/infiniband; of unused GIDs the kernel shows zeros, and errors for attributes."""
    path = root / f"sys/class/infiniband/{device}/ports/{port}"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (path / folder).mkdir(parents=True)
    for name, text in (("state", state), ("rate", rate), ("link_layer", link), ("lid", lid)):
        (path / name).write_text(text + "\n")
    (root / f"sys/class/infiniband/{device}/device").mkdir(exist_ok=True)
    (root / f"sys/class/infiniband/{device}/device/numa_node").write_text("1\n")
    for index in range(64):
        address, kind = (gids or {}).get(index, (NOTHING, ""))
        (path / f"gids/{index}").write_text(address + "\n")
        if kind:
            (path / f"gid_attrs/types/{index}").write_text(kind + "\n")
            (path / f"gid_attrs/ndevs/{index}").write_text("ens1f0\n")


def ports(root: Path) -> list:  # type: ignore[type-arg]
    return rdma_ports(Folder(root / "sys"))


def test_a_roce_port(tmp_path: Path) -> None:
    make(tmp_path, "mlx5_0", gids={0: (LOCAL, V1), 1: (LOCAL, V2), 2: (IPV4, V1), 3: (IPV4, V2)})
    (port,) = ports(tmp_path)
    assert (port.device, port.port, port.active, port.rate) == ("mlx5_0", 1, True, Fraction(50_000_000_000))
    assert (port.interface, port.numa, port.link) == ("ens1f0", 1, "Ethernet")
    assert port.gid == Gid(3, IPV4, V2, "ens1f0")
    assert port.gid.ipv4 == "10.0.2.7"
    assert port.address() == NicAddress("mlx5_0", 1, 3)


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ({0: (LOCAL, V1), 1: (LOCAL, V2)}, 1),
        ({0: (LOCAL, V2), 5: (IPV6, V2)}, 5),
        ({0: (LOCAL, V2), 5: (IPV6, V2), 9: (IPV4, V2)}, 9),
        ({3: (IPV4, V2), 4: ("0000:0000:0000:0000:0000:ffff:0a01:0207", V2)}, 3),
        ({0: (LOCAL, V1), 2: (IPV4, V1)}, None),
        ({}, None),
    ],
)
def test_which_gid(tmp_path: Path, gids: dict[int, tuple[str, str]], index: int | None) -> None:
    make(tmp_path, "rxe0", gids=gids)
    (port,) = ports(tmp_path)
    assert (port.gid.index if port.gid else None) == index
    assert port.address() == (None if index is None else NicAddress("rxe0", 1, index))


def test_infiniband_goes_by_lid(tmp_path: Path) -> None:
    make(tmp_path, "mlx5_0", link="InfiniBand", lid="0x1a", gids={0: (LOCAL, V1)})
    (port,) = ports(tmp_path)
    assert (port.lid, port.gid, port.address()) == (26, None, NicAddress("mlx5_0", 1, None))


def test_order_is_that_of_numbers(tmp_path: Path) -> None:
    for device in ("mlx5_10", "mlx5_2", "bnxt_re1"):
        make(tmp_path, device)
    make(tmp_path, "mlx5_2", 2)
    assert [(p.device, p.port) for p in ports(tmp_path)] == [
        ("bnxt_re1", 1),
        ("mlx5_2", 1),
        ("mlx5_2", 2),
        ("mlx5_10", 1),
    ]


def test_nothing_there(tmp_path: Path) -> None:
    assert ports(tmp_path) == []
    (tmp_path / "sys/class/infiniband/odd0/ports/1").mkdir(parents=True)
    (port,) = ports(tmp_path)
    assert (port.state, port.rate, port.lid, port.numa, port.gids, port.address()) == ("", None, 0, -1, (), None)


def test_the_doctor(tmp_path: Path) -> None:
    make(tmp_path, "mlx5_0", gids={3: (IPV4, V2)})
    make(tmp_path, "mlx5_1", state="1: DOWN", rate="2.5 Gb/sec (1X SDR)")
    make(tmp_path, "mlx5_2", link="InfiniBand", lid="0x1a")
    make(tmp_path, "mlx5_3", gids={0: (LOCAL, V1)})
    write(tmp_path / "proc/driver/nvidia/gpus/0000:0f:00.0", information="Model: \t\t NVIDIA H200\nIRQ: 1")
    found = {f.part: f for f in examine(tmp_path) if f.part == "GPUs" or f.part.startswith("RDMA")}
    seen = {part: (f.present, f.seen) for part, f in found.items()}
    assert seen == {
        "GPUs": (True, "1: NVIDIA H200"),
        "RDMA mlx5_0 port 1": (True, "ACTIVE, 400Gb/s, Ethernet, ens1f0, GID 3 (10.0.2.7), NUMA node 1"),
        "RDMA mlx5_1 port 1": (False, "DOWN, 2.5Gb/s, Ethernet, no RoCE v2 GID, NUMA node 1"),
        "RDMA mlx5_2 port 1": (True, "ACTIVE, 400Gb/s, InfiniBand, LID 26, NUMA node 1"),
        "RDMA mlx5_3 port 1": (False, "ACTIVE, 400Gb/s, Ethernet, ens1f0, no RoCE v2 GID, NUMA node 1"),
    }
    assert all(bool(f.get) != f.present for f in found.values())


def test_the_doctor_tells_the_topology(tmp_path: Path) -> None:
    make(tmp_path, "mlx5_0")
    make(tmp_path, "mlx5_1", state="1: DOWN")
    (found,) = [f for f in examine(tmp_path) if f.part == "topology of sysfs"]
    assert found.present
    assert "server0: 1 GPU, 1 NIC of 400Gb/s" in found.seen
    assert "mlx5_1: skipped, its link is down" in found.seen
    (none,) = [f for f in examine(tmp_path / "sys") if f.part == "topology of sysfs"]
    assert not none.present
    assert "cp -r" in none.get


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"x" * 4000, b"0x", b"-", b"4: ", b"1e9 Gb/sec", b"\0" * 9])
@pytest.mark.parametrize("file", ["state", "rate", "lid", "link_layer", "gids/0", "../../device/numa_node"])
def test_what_a_driver_should_not_write_is_no_traceback(tmp_path: Path, file: str, content: bytes) -> None:
    make(tmp_path, "mlx5_0", gids={0: (IPV4, V2)})
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1" / file).write_bytes(content)
    assert len(ports(tmp_path)) == 1
    with contextlib.suppress(InputError):
        assert load_topology(str(tmp_path / "sys"), nic_rate="1Gb/s").cluster
