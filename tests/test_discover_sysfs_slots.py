"""sysfs: what the PCI slots of a server's NICs leave of their rates."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from tests.sysfs_machines import GEN1, GEN4, GEN5, ROOT, Machine, link, two_gpus, write
from tests.test_discover import GBPS


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return two_gpus(tmp_path)


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
