"""sysfs: which RDMA devices count: functions of cards, management and storage ports. Machines as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sysfs_machines import DOWN, Machine, link, two_gpus, write


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
