"""NCCL's XML: virtual functions, slots, virtual interfaces, and Ethernet beside InfiniBand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from optcc.discover import Topology
from optcc.discover.given import Given
from optcc.discover.nic_choice import Standing, standing
from optcc.errors import InputError
from tests.one_source import read_nccl_xml
from tests.test_discover import GBPS

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


def read(*parts: str, nics: str | None = None) -> Topology:
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
    assert rates(read(body)) == {"mlx5_0": 100}
    assert "mlx5_0 counts, skipped mlx5_1, mlx5_2," in notes(read(body))
    assert rates(read(body, nics="mlx5_4")) == {"mlx5_4": 100}
    assert rates(read(body, nics="^mlx5_0")) == {"mlx5_1": 100}


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
    found = read(card("0000:10:00.0", [(f"mlx5_{i}", gbps) for i in range(ports)], device=device, gpu=0))
    assert list(rates(found).values()) == left


def test_a_virtual_function_with_an_address_of_its_own_is_told_by_its_device() -> None:
    own = card("0000:10:00.0", [("mlx5_0", 200)], gpu=0)
    function = card("0000:10:00.2", [("mlx5_1", 200)], device=VF)
    assert rates(read(own, function)) == {"mlx5_0": 200}
    assert "mlx5_1" in notes(read(own, function))
    assert set(rates(read(own, function, nics="mlx5_1"))) == {"mlx5_1"}


def test_functions_alone_are_the_nics_of_a_virtual_machine() -> None:
    machine = [card(f"010{i}:00:00.0", [(f"mlx5_{i}", 400)], device=VF, link=("", "0")) for i in range(8)]
    assert rates(read(*machine)) == {f"mlx5_{i}": 400 for i in range(8)}
    one_bus = [card(f"0000:00:0{i}.0", [(f"mlx5_{i}", 400)], device=VF, link=("", "0")) for i in range(8)]
    emulated = card("0000:00:09.0", [("eth0", 1)], device="0x10d3", vendor="0x8086", kind="0x020000")
    assert set(rates(read(*one_bus, emulated))) == {f"mlx5_{i}" for i in range(8)}
    nets = [(f"mlx5_{i}", 400) for i in range(8)]
    assert len(rates(read(card("0000:01:00.0", nets, device=VF, link=("", ""))))) == 8
    merged = card("0000:00:00.0", nets, kind="0x060000", device="0x29c0", link=("", ""))
    assert len(rates(read(merged))) == 8, "NCCL takes functions together under an address that is another device's"


# Slots


def test_a_narrow_slot_is_believed_where_others_are_sane() -> None:
    sane = [card(f"0000:2{i}:00.0", [(f"mlx5_{i}", 400)], gpu=i) for i in range(2)]
    narrow = card("0000:30:00.0", [("mlx5_2", 400)], gpu=2, link=("16.0 GT/s PCIe", "1"))
    assert rates(read(*sane, narrow)) == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": Fraction("15.7")}
    assert "carries 15.7Gb/s of the 400Gb/s" in notes(read(*sane, narrow))


def test_a_slot_that_all_have_is_not_believed() -> None:
    made_up = [card(f"0000:2{i}:00.0", [(f"mlx5_{i}", 400)], gpu=i, link=NARROW) for i in range(2)]
    assert rates(read(*made_up)) == {"mlx5_0": 400, "mlx5_1": 400}
    assert "not believed" in notes(read(*made_up))
    sane = card("0000:30:00.0", [("mlx5_2", 400)], gpu=2)
    assert rates(read(*made_up, sane)) == {"mlx5_0": 2, "mlx5_1": 2, "mlx5_2": 400}


# Management


def test_a_slow_nic_beside_its_gpu_is_never_for_management() -> None:
    fast = [card(f"0000:2{i}:00.0", [(f"mlx5_{i}", 400)], gpu=i) for i in range(2)]
    slow, apart = card("0000:30:00.0", [("mlx5_2", 10)], gpu=2), card("0000:40:00.0", [("eth0", 10)])
    found = read(*fast, slow, apart)
    assert rates(found) == {"mlx5_0": 400, "mlx5_1": 400, "mlx5_2": 10}
    assert "<net mlx5_2>: counts, although 10Gb/s" in notes(found)
    assert "<net eth0>: skipped as a management port" in notes(found)


def test_ethernet_beside_infiniband_does_not_count_on_grace() -> None:
    """GPUs hang on their processor, not on a PCI switch, so that nearness tells nothing."""
    gpus = "".join(f'<pci busid="000{i}:01:00.0"><gpu dev="{i}" sm="100" rank="{i}"/></pci>' for i in range(4))
    fast = [card(f"001{i}:03:00.0", [(f"mlx5_{i}", 400)]) for i in range(4)]
    other = [card(f"002{i}:01:00.0", [(f"eth{i}", g)], kind="0x020000") for i, g in enumerate((400, 200, 100))]
    found = read(gpus, *fast, *other)
    assert rates(found) == {f"mlx5_{i}": 400 for i in range(4)}
    assert "where training goes over InfiniBand" in notes(found)
    assert len(rates(read(gpus, *other))) == 3, "the control: Ethernet alone"


# Virtual interfaces


def plain(name: str, gbps: int = 10) -> str:
    """A <net> without a card, as NCCL writes interfaces that have none."""
    return f'<nic><net name="{name}" dev="{200 + sum(map(ord, name))}" speed="{1000 * gbps}" gdr="0"/></nic>'


def socket(name: str, gbps: int, address: str = "0000:10:00.0", kind: str = "0x020000") -> str:
    return card(address, [(name, gbps)], kind=kind).replace('gdr="1"', 'gdr="0"')


VIRTUAL = ["veth1", "virbr0", "docker0", "tailscale0", "tun0", "lo", "br-12ab", "wg0"]


def test_virtual_interfaces_neither_count_nor_push_out_the_real_one() -> None:
    virtual = [plain(name, 100) for name in VIRTUAL]
    found = read(socket("ens3", 10), *virtual, plain("bond0", 100))
    assert rates(found) == {"ens3": 10}
    assert all(name in notes(found) for name in [*VIRTUAL, "bond0"])
    assert rates(read(*virtual, plain("eth0"))) == {"eth0": 10}, "a virtual machine's, without PCI"
    assert rates(read(*virtual, plain("bond0", 50))) == {"bond0": 50}, "it stands for the cards below it"
    with pytest.raises(InputError, match="no NIC but virtual interfaces"):
        read(*virtual)
    assert set(rates(read(*virtual, nics="docker0"))) == {"docker0"}


def test_partitions_and_wireless_cards_do_not_count() -> None:
    nets = card("0000:10:00.0", [("ib0", 100), ("ib0.8001", 100)], kind="0x020700")
    assert rates(read(nets)) == {"ib0": 100}
    assert rates(read(socket("ens3", 10), socket("wlp2s0", 10, "0000:11:00.0", "0x028000"))) == {"ens3": 10}


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
