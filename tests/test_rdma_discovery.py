"""RDMA ports as sysfs shows them, from trees made for the test; and what the doctor says about them."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from pathlib import Path

import pytest

from optcc.cli.doctor import examine
from optcc.discover import load_topology
from optcc.errors import InputError
from optcc.machine.rdma import Gid, NicAddress, rdma_ports
from optcc.machine.sysfs import Folder

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
    found = {f.part: f for f in examine(tmp_path) if f.part.startswith("RDMA")}
    seen = {part: (f.present, f.seen) for part, f in found.items()}
    assert seen == {
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
