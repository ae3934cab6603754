"""nvidia-smi's matrix of several driver ages.

Its shapes: public reports of drivers 367 (NIC columns by name, SOC), 470 to 535 (NIC0 and a legend), 550 (GPU NUMA ID,
SYS everywhere on virtual machines). The fixtures are made here.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.discover import Topology, load_topology
from optcc.discover.given import Given
from optcc.discover.pasted import without_colours
from optcc.discover.smi_text import looks_like_smi
from optcc.errors import InputError
from tests.one_source import read_smi
from tests.test_discover import GBPS, Edit, edits
from tests.topology_texts import HOPPER, RATE, hopper, legend, matrix, survives


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


@given(st.lists(edits(), min_size=1, max_size=4))
def test_a_broken_matrix_loads_or_is_refused(changes: list[Edit]) -> None:
    data = HOPPER.encode()
    for change in changes:
        data = change(data)
    survives(lambda: read_smi(data.decode("utf-8", "replace"), "topo.txt", RATE))


# What a terminal, a copy or cat makes of it


def wrapped(text: str, width: int) -> str:
    lines = [line.expandtabs(8) for line in without_colours(text).splitlines()]
    return "\n".join(line[i : i + width] for line in lines for i in range(0, max(len(line), 1), width)) + "\n"


@pytest.mark.parametrize("width", range(16, 170, 7))
def test_no_width_of_a_terminal_makes_nics_disappear(width: int) -> None:
    with pytest.raises(InputError, match=r"narrow terminal|no line with the columns"):
        smi(wrapped(HOPPER, width))


def test_a_terminal_that_is_wide_enough_changes_nothing() -> None:
    assert smi(wrapped(HOPPER, 200)).cluster == smi(HOPPER).cluster


OTHER = matrix(2, ["mlx5_0", "mlx5_1"], lambda row, column: "PIX" if row[-1] == column[-1] else "SYS")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HOPPER + HOPPER, "two outputs"),
        (HOPPER.rstrip() + "\n" + HOPPER, "two outputs"),
        (OTHER + OTHER, "two outputs"),
        (OTHER.split("\n\n")[0] + "\n" + OTHER, "two outputs"),
        (OTHER.split("\n\n")[0].split("\n", 1)[1] + "\n\n" + OTHER, "two outputs"),
        (HOPPER.replace("\nNIC3\t", "\nX3\t"), "not a row of the matrix"),
        ("\n".join(x for x in HOPPER.splitlines() if not x.startswith("NIC8")), r"none of NIC8"),
        ("\n".join(x for x in HOPPER.splitlines() if not x.startswith("GPU5")), r"none of GPU5"),
        ("\n".join(x for x in HOPPER.splitlines() if "NIC8:" not in x), r"only one of the two has NIC8"),
        (HOPPER + "  NIC9: mlx5_9\n", r"only one of the two has NIC9"),
        (HOPPER + "  NIC8: mlx5_9\n", "twice in the legend"),
        (HOPPER.replace("\tNIC8\t", "\t", 1), "does not fill its columns|not a row"),
        (HOPPER.replace("\t SYS \t\t\nNIC1", "\nNIC1"), "does not fill its columns"),
        (HOPPER.replace(" NV18 ", " NV6 ", 1), "do not fit each other"),
        (HOPPER.replace(" X ", " PIX ", 1), "do not fit each other"),
    ],
)
def test_header_rows_and_legend_that_disagree_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        smi(text)


def test_a_gpu_without_nvlink_does_not_take_it_from_the_others() -> None:
    def lost(row: str, column: str) -> str:
        return "NODE" if "GPU2" in (row, column) and row[:3] == column[:3] else hopper(row, column)

    found = smi(matrix(8, [f"NIC{i}" for i in range(8)], lost) + legend([f"mlx5_{i}" for i in range(8)]))
    assert found.cluster.servers[0].nvlink_rate == 370_800_000_000  # 18 at 20.6, not 6 * 18
    assert any("GPU2: has no NVLink" in note and "fault" in note for note in found.notes)
    assert not any("in pairs" in note for note in found.notes)


def test_a_pair_that_lost_its_way_does_not_multiply_links() -> None:
    """GPU2 and GPU3 do not see each other over NVLink, but the six others: through the switch, with 18 links."""

    def lost(row: str, column: str) -> str:
        return "SYS" if {row, column} == {"GPU2", "GPU3"} else hopper(row, column)

    found = smi(matrix(8, ["NIC0"], lost) + legend(["mlx5_0"]))
    assert found.cluster.servers[0].nvlink_rate == 370_800_000_000
    assert not any("no NVLink" in note for note in found.notes)


def test_four_gpus_that_share_12_links_in_pairs() -> None:
    found = smi(matrix(4, ["NIC0"], lambda r, c: "NV4" if r[:3] == c[:3] else "PIX") + legend(["mlx5_0"]))
    assert found.cluster.servers[0].nvlink_rate == 12 * 20 * 10**9
