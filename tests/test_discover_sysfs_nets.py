"""sysfs: which network interfaces are NICs, where there are cards and where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcc.errors import InputError
from tests.sysfs_machines import Machine


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
