"""sysfs: which of a server's ports are NICs, and what their PCI slots leave of them. Machines as people have them."""

from __future__ import annotations

import os
import tarfile
from fractions import Fraction
from pathlib import Path

import pytest

from optcc.discover import Topology, load_topology
from optcc.errors import InputError
from tests.test_discover import GBPS

GEN5, GEN4, GEN1 = "32.0 GT/s PCIe", "16.0 GT/s PCIe", "2.5 GT/s PCIe"
ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
ROOT = "pci0000:{0:02x}/0000:{0:02x}:01.0"


def write(path: Path, **attributes: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in attributes.items():
        (path / name).write_text(text + "\n")
    return path


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


class Machine:
    """A sysfs in the making under `root`. A `bus` is a root port, behind which are a GPU, if any, and cards."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pci(self, bus: int, slot: str, now: tuple[str, str] | None = None, **attributes: str) -> Path:
        speed, width = now or (GEN5, "16")
        links = dict(zip(("current_link_speed", "current_link_width"), (speed, width), strict=True))
        links |= {"max_link_speed": GEN5, "max_link_width": "16"}
        address = f"0000:{bus + 1:02x}:{slot}"
        path = write(self.root / "devices" / ROOT.format(bus) / address, **(links | attributes))
        link(self.root / "bus/pci/devices" / address, path)
        return path

    def gpu(self, bus: int, slot: str = "00.0", **attributes: str) -> Path:
        return self.pci(bus, slot, **{"class": "0x030200", "vendor": "0x10de"} | attributes)

    def rdma(
        self,
        bus: int,
        name: str,
        gbps: int = 400,
        *,
        slot: str = "01.0",
        fabric: str = "InfiniBand",
        state: str = ACTIVE,
        now: tuple[str, str] | None = None,
        ports: int = 1,
        below: str = "",
        **attributes: str,
    ) -> Path:
        ids = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700"}
        card = self.pci(bus, slot, now, **(ids | attributes)) if not below else self.root / below
        device = card / "infiniband" / name
        for port in range(1, ports + 1):
            write(device / f"ports/{port}", rate=f"{gbps} Gb/sec (4X)", state=state, link_layer=fabric)
        link(device / "device", card)
        link(self.root / "class/infiniband" / name, device)
        return card

    def net(self, name: str, place: str, speed: str = "100000", **attributes: str) -> Path:
        """An interface below the device at `place`; without a device where that is devices/virtual."""
        device = self.root / "devices" / place
        path = write(device / "net" / name, speed=speed, operstate="up", **({"type": "1"} | attributes))
        if not place.startswith("virtual"):
            link(path / "device", device)
        link(self.root / "class/net" / name, path)
        return path

    def read(self, nics: str | None = None, nic_rate: str | None = None) -> Topology:
        return load_topology(str(self.root), nics=nics, nic_rate=nic_rate)

    def rates(self, nics: str | None = None) -> dict[str, Fraction]:
        """Gb/s of the NICs that count."""
        (server,) = self.read(nics).cluster.servers
        return {nic.name: nic.out_rate / GBPS for nic in server.nics}

    def notes(self) -> str:
        return "\n".join(self.read().notes)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two GPUs, each with a 400 Gb/s NIC behind its switch."""
    made = Machine(tmp_path / "sys")
    for i, bus in enumerate((0x10, 0x20)):
        made.gpu(bus)
        made.rdma(bus, f"mlx5_{i}")
    return made


# Slots


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


# Virtual functions


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


# Management and storage


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


# Network interfaces


def test_virtual_interfaces_are_no_nics(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    card = made.pci(0x10, "00.0", vendor="0x8086", device="0x1592").relative_to(made.root / "devices")
    made.net("ens1f0", str(card))
    virtual = ("lo", "veth12ab", "virbr0", "docker0", "tailscale0", "bond0", "br0", "ens1f0.100", "tap0")
    for name in virtual:
        made.net(name, "virtual", "400000")
    made.net("wlan0", str(made.pci(0x20, "00.0").relative_to(made.root / "devices")), uevent="DEVTYPE=wlan")
    made.net("ens1f0r1", str(card), phys_port_name="pf0vf1")
    made.net("enxaabb", "pci0000:00/0000:00:14.0/usb1/1-1/1-1:2.0")
    assert set(made.rates()) == {"ens1f0"}
    notes = made.notes()
    for name in ({*virtual} - {"lo"}) | {"wlan0", "ens1f0r1", "enxaabb"}:
        assert name in notes, name


def test_an_interface_that_is_asked_for_counts(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.net("ens1", str(made.pci(0x10, "00.0").relative_to(made.root / "devices")))
    made.net("bond0", "virtual", "200000")
    (made.root / "class/net/bonding_masters").write_text("bond0\n")
    assert made.rates() == {"ens1": 100}
    assert "bonding_masters" not in made.notes()
    assert made.rates("bond0") == {"bond0": 200}


def test_a_partition_of_an_infiniband_port_is_no_nic(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    card = str(made.pci(0x10, "00.0").relative_to(made.root / "devices"))
    made.net("ib0", card, type="32")
    made.net("ib0.8001", card, type="32", parent="ib0")
    assert set(made.rates()) == {"ib0"}
    assert "partitions of others: ib0.8001" in made.notes()


def test_nics_of_a_virtual_machine_without_pci_count(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.net("eth0", "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/11-22", "50000")
    made.net("docker0", "virtual", "10000")
    assert made.rates() == {"eth0": 50}
    place = str(made.pci(0x10, "00.0").relative_to(made.root / "devices"))
    made.net("enP1s1", place, "100000")
    assert made.rates() == {"enP1s1": 100}, "what is on a card, where there is such"
    made.net("eth1", f"{place}/virtio3", "100000")
    assert set(made.rates()) == {"enP1s1", "eth1"}


def test_virtual_interfaces_alone_are_no_nic(tmp_path: Path) -> None:
    made = Machine(tmp_path / "sys")
    made.net("eth0", "virtual", "10000")  # a container's
    with pytest.raises(InputError, match=r"no NIC.*got 'eth0'"):
        made.read()


def test_soft_rdma_beside_cards_is_left_out(machine: Machine) -> None:
    below = write(machine.root / "devices/virtual/rxe").relative_to(machine.root)
    machine.rdma(0, "rxe0", 100, below=str(below))
    assert set(machine.rates()) == {"mlx5_0", "mlx5_1"}
    assert set(machine.rates("rxe0")) == {"rxe0"}
    for name in ("mlx5_0", "mlx5_1"):
        (machine.root / "class/infiniband" / name).unlink()
    assert machine.rates() == {"rxe0": 100}


# Tarballs


def test_tarballs_need_no_filters_of_the_interpreter(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.2 and 3.11.3 have neither; and nothing is extracted."""
    for name in ("FilterError", "data_filter", "tar_filter", "fully_trusted_filter"):
        monkeypatch.delattr(tarfile, name, raising=False)
    for name in ("extract", "extractall"):
        monkeypatch.delattr(tarfile.TarFile, name)
    path = tmp_path / "sys.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(machine.root, "sys")
    assert load_topology(str(path)).cluster == machine.read().cluster
