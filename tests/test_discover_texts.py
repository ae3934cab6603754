"""Topologies from texts: nvidia-smi's matrix, what is pasted and logged, operators' tools, many hosts."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cli import main
from optcc.discover import Topology, apply_failures, load_topology
from optcc.discover.given import Given, expand_hosts
from optcc.discover.pasted import unwrapped, without_colours
from optcc.discover.rails import FIX
from optcc.discover.smi_text import looks_like_smi
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError
from optcc.values.cluster import Cluster
from tests import tool_texts
from tests.effort import cases
from tests.sysfs_trees import ACTIVE, DOWN, Machine, bonded, write
from tests.test_discover import EXAMPLES, GBPS
from tests.tool_texts import ibdev2netdev, ibstat
from tests.tool_texts import rdma_link_json as rdma_link
from tests.topology_texts import HOPPER, RATE, hopper, legend, matrix, mutated, read_nccl_xml, read_smi, survives

# nvidia-smi's matrix of several driver ages.
#
# Its shapes: public reports of drivers 367 (NIC columns by name, SOC), 470 to 535 (NIC0 and a legend), 550 (GPU NUMA
# ID, SYS everywhere on virtual machines). The fixtures are made here.


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


# Texts as they are pasted and logged; names of NICs as NCCL_IB_HCA has them.


XML = (EXAMPLES / "h100-8x400g.nccl-topo.xml").read_text()
YAML = (EXAMPLES / "two-degraded.yaml").read_text()


def before(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines())


def timed(text: str) -> str:
    return "".join(f"2026-11-20T10:00:{i % 60:02}.123456Z {line}\n" for i, line in enumerate(text.splitlines()))


WRAPS = {
    "pdsh": (before("node1: "), "a host's name"),
    "srun": (before("0: "), "a host's name"),
    "quoted": (before("> "), "a quote's >"),
    "nccl": (before("node1:1234:1250 [0] NCCL INFO "), "NCCL's log prefix"),
    "mpirun": (before("[1,0]<stdout>:"), "mpirun's tag"),
    "syslog": (before("Nov 20 10:00:00 node1 job[17]: "), "syslog's prefix"),
    "compose": (before("worker-1  | "), "a container's name"),
    "times": (timed, "a time"),
    "times of a host": (lambda text: timed(before("node1: ")(text)), "a time, a host's name"),
    "fenced": (lambda text: f"It prints\n\n```text\n{text}\n```\nthanks\n", "a Markdown fence"),
    "kubectl": (before("[pod/job-x7k2p/main] "), "a pod's name"),
    "containerd": (before("2026-11-20T10:00:00.123456789Z stdout F "), "a time, a container's stream"),
    "mpirun with times": (before("Fri Nov 20 10:00:00 2026[1,0]<stdout>:"), "mpirun's tag"),
    "srun, wide": (before("  0: "), "a host's name"),
    "banner and host": (lambda text: "Welcome to node1\n\n" + before("node1: ")(text), "a banner, a host's name"),
    "quoted fence": (lambda text: before("> ")(f"```\n{text}\n```"), "a quote's >, a Markdown fence"),
}


@pytest.mark.parametrize("text", [XML, YAML, HOPPER], ids=["xml", "yaml", "smi"])
@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_on_every_line_is_taken_away_and_told(text: str, wrap: str, tmp_path: Path) -> None:
    plain, pasted = tmp_path / "plain", tmp_path / "pasted"
    plain.write_text(text)
    pasted.write_text(WRAPS[wrap][0](text))
    rate = "400Gb/s" if text is HOPPER else None
    found = load_topology(pasted, nic_rate=rate)
    assert found.cluster == load_topology(plain, nic_rate=rate).cluster
    assert any(f"before it was read: {WRAPS[wrap][1]}." in note for note in found.notes)


SURROUNDED = {
    "a banner": lambda text: f"NCCL version 2.28.9+cuda13.0\nLast login: today\n{text}",
    "a comment": lambda text: f"<!-- Licence -->\n{text}" if "<system" in text else f"# Licence\n{text}",
    "a declaration": lambda text: f'\n<?xml version="1.0" encoding="UTF-8"?>\n{text}' if "<system" in text else text,
    "a banner and a declaration": lambda text: f'hello\n<?xml version="1.0"?>\n{text}' if "<system" in text else text,
    "a prompt": lambda text: f"$ cat topo\n{text}\n[root@n01 ~]# \n" if "<system" in text else f"$ cat topo\n{text}",
    "Windows": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", [XML, YAML, HOPPER], ids=["xml", "yaml", "smi"])
@pytest.mark.parametrize("kind", SURROUNDED)
def test_the_kind_is_told_by_content(text: str, kind: str, tmp_path: Path) -> None:
    plain, pasted = tmp_path / "plain", tmp_path / "pasted"
    plain.write_text(text)
    pasted.write_bytes(SURROUNDED[kind](text).encode())
    rate = "400Gb/s" if text is HOPPER else None
    assert load_topology(pasted, nic_rate=rate).cluster == load_topology(plain, nic_rate=rate).cluster


def numbered(form: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{form.format(i, i % 60)}{line}\n" for i, line in enumerate(text.splitlines()))


UNLISTED = {
    "RFC 5424": before("<14>1 2026-11-28T10:00:00.123456Z node1 app 1234 ID47 - "),
    "RFC 5424 with data": before('<14>1 2026-11-28T10:00:00Z node1 app - - [x@32473 iut="3" source="A b"] '),
    "RFC 3164": before("<13>Nov 20 10:00:00 node1 job[17]: "),
    "a shell's": before("node7 >> "),
    "glog": numbered("I1128 10:00:{1:02}.123456 12345 main.cc:{0}] "),
    "keys": before("host=node7 pid=44 | "),
    "brackets": numbered("[2026-11-28 10:00:{1:02},123][INFO][node7] "),
    "fabric": before("[node7.example.org:22] out: "),
    "a kernel's": before("Nov 28 10:00:00 node7 kernel: [ 12.345678] "),
    "another date": before("28/11/2026 10:00:00 node7: "),
    "Airflow": before("[2026-11-28T10:00:00.123+0000] {subprocess.py:93} INFO - "),
    "lines' numbers": numbered("{0:6d}\t"),
    "GitHub": before("job\tRun tests\t2026-11-20T10:00:00.1234567Z "),
    "an indent": before("    "),
    "Slack": lambda text: f"Ann 10:02\n```{text}```\n",
}
FOUR = {f"mlx5_{i}": 400 for i in range(4)}
LISTS = {
    "ibstat": ibstat(FOUR, ["mlx5_1"]),
    "ibstatus": tool_texts.ibstatus(FOUR, ["mlx5_1"]),
    "ibv_devinfo": tool_texts.devinfo(FOUR, ["mlx5_1"]),
    "rdma link": tool_texts.rdma_link([*FOUR], ["mlx5_1"]),
    "rdma link -j": rdma_link([*FOUR], ["mlx5_1"]) + "\n",
    "rdma link -jp": json.dumps(json.loads(rdma_link([*FOUR], ["mlx5_1"])), indent=4) + "\n",
    "ibdev2netdev": ibdev2netdev([*FOUR], ["mlx5_1"]),
    "iblinkinfo": tool_texts.fabric(["n1", "n2"], FOUR),
    "mlxlink": tool_texts.mlxlink("400G", command="# mlxlink -d mlx5_0"),
    "smi": HOPPER,
}


@pytest.mark.parametrize(
    ("wrap", "name"), [(wrap, name) for i, wrap in enumerate(UNLISTED) for name in [*LISTS][i % 5 :: 5]]
)
def test_prefixes_that_are_not_listed_are_learned(wrap: str, name: str, tmp_path: Path) -> None:
    plain, pasted = tmp_path / "plain", tmp_path / "pasted"
    plain.write_text(LISTS[name])
    pasted.write_text(UNLISTED[wrap](LISTS[name]))
    assert load_topology(pasted, nic_rate="400Gb/s").cluster == load_topology(plain, nic_rate="400Gb/s").cluster


@pytest.mark.parametrize("form", ["<14>1 2026-11-28T10:00:00Z n{} app 7 - - ", "Nov 20 10:00:00 n{} app[17]: "])
def test_syslog_of_several_hosts_is_of_several_servers(form: str, tmp_path: Path) -> None:
    (tmp_path / "all").write_text("".join(before(form.format(host))(LISTS["ibstat"]) for host in (1, 2)))
    assert [server.name for server in load_topology(tmp_path / "all").cluster.servers] == ["n1", "n2"]


def test_several_hosts_behind_a_prefix_that_is_not_listed_are_refused(tmp_path: Path) -> None:
    one, other = ibstat({"mlx5_0": 400}), ibstat({"mlx5_1": 400})
    (tmp_path / "all").write_text(before("n1 >> ")(one) + before("n2 >> ")(other))
    with pytest.raises(InputError, match=r"lines of several hosts.*n1 >>, n2 >>"):
        load_topology(tmp_path / "all")


def test_lines_of_other_processes_between_those_of_json(tmp_path: Path) -> None:
    lines = LISTS["rdma link -jp"].splitlines()
    (tmp_path / "all").write_text("".join(f"{line}\nn2: step {i}, loss [3.1]\n" for i, line in enumerate(lines)))
    servers = load_topology(tmp_path / "all", nic_rate="400Gb/s").cluster.servers
    assert [nic.name for nic in servers[0].nics] == ["mlx5_0", "mlx5_2", "mlx5_3"]


def test_keys_before_the_version_are_no_banner(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("servers:\n  - {name: a, nics: [{name: n0, rate: 1Gb/s}]}\noptcc: 1\n")
    assert [server.name for server in load_topology(path).cluster.servers] == ["a"]


@pytest.mark.parametrize("text", [XML, YAML, HOPPER.replace("\x1b[4m", "").replace("\x1b[0m", "")])
def test_what_is_not_pasted_stays_as_it_is(text: str) -> None:
    assert unwrapped(text, "t") == (text, [])


def test_colours_are_not_seen() -> None:
    assert unwrapped("\x1b[1;31moptcc: 1\x1b[0m\n", "t") == ("optcc: 1\n", [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (before("node1: ")(HOPPER) + before("node2: ")(HOPPER), r"lines of several hosts.*node1, node2.*grep"),
        (before("node1: ")(HOPPER) + "some other line\n", r"t:\d+: a host's name before some lines"),
        (before("n1:7:8 [0] NCCL INFO ")(HOPPER) + "bye\n", "NCCL's log prefix before some lines"),
        (f"```\n{HOPPER}\n```\n```\n{HOPPER}\n```\n", "4 such lines"),
        (f"```\n{HOPPER}\n", "1 such lines"),
    ],
)
def test_what_is_ambiguous_is_refused_with_the_way_out(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        unwrapped(text, "t")


@given(st.text(alphabet="ab1: >|`[]<\n\x1b-T", max_size=80))
def test_any_text_is_unwrapped_or_refused(text: str) -> None:
    try:
        found, taken = unwrapped(text, "t")
    except InputError:
        return
    assert taken or found.splitlines() == unwrapped(found, "t")[0].splitlines()


# NCCL_IB_HCA

PRESET = "uniform:servers=2,nics=4,rate=1Gb/s"


@pytest.mark.parametrize(
    ("nics", "left"),
    [
        ("=nic0,nic2", [0, 2]),
        ("nic0:1,nic2:1", [0, 2]),
        ("^nic3", [0, 1, 2]),
        ("^=nic3,nic0", [1, 2]),
        ("^nic3:1", [0, 1, 2]),
        ("nic[0-1]:1", [0, 1]),
    ],
)
def test_lists_of_nccl_ib_hca_are_taken(nics: str, left: list[int]) -> None:
    servers = load_topology(PRESET, nics=nics).cluster.servers
    assert [nic.name for nic in servers[1].nics] == [f"nic{i}" for i in left]
    assert [nic.rail for nic in servers[1].nics] == left


@pytest.mark.parametrize(
    ("nics", "says"),
    [
        ("nic", r"a name is whole: nic\* are all"),
        ("nic0:2", "goes by nic0, whatever its port"),
        ("nic0:1:3", "a rail or plane beside a NIC's name.*rail: in YAML"),
        ("NCCL_IB_HCA=nic0", "As in NCCL_IB_HCA"),
        ("nic0,^nic1", "As in NCCL_IB_HCA"),
    ],
)
def test_what_means_something_else_in_nccl_ib_hca_is_told(nics: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_topology(PRESET, nics=nics)


def test_ports_in_failures_and_rates() -> None:
    healthy = Cluster.uniform(servers=2, nics=2, rate=GBPS)
    assert apply_failures(healthy, ["server0/nic0:1=1/2"]) == apply_failures(healthy, ["server0/nic0=1/2"])
    with pytest.raises(InputError, match="the same NIC twice"):
        apply_failures(healthy, ["server0/nic0", "server0/nic0:1"])
    with pytest.raises(InputError, match="no such NIC"):
        apply_failures(healthy, ["server0/nic0:2"])
    rated = load_topology(PRESET, nic_rate="nic1:1=2Gb/s").cluster
    assert [nic.out_rate for nic in rated.servers[0].nics] == [GBPS, 2 * GBPS, GBPS, GBPS]


# Topologies from operators' tools: lists of ports, one port that shows as two functions, links that trained slowly,
# NCCL's log of a job with several communicators.


EIGHT = {f"mlx5_{i}": 400 for i in range(8)}


def read(tmp_path: Path, nic_rate: str | None = None, nics: str | None = None, **files: str) -> Topology:
    sources = []
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text)
        sources.append(f"{name.partition('__')[0]}={tmp_path / name}.txt")
    return load_topology(sources, nic_rate=nic_rate, nics=nics)


def rates(found: Topology) -> dict[str, dict[str, float]]:
    return {s.name: {n.name: float(n.out_rate / GBPS) for n in s.nics} for s in found.cluster.servers}


SIX = {name: rate for name, rate in EIGHT.items() if name not in ("mlx5_1", "mlx5_3")}


@pytest.mark.parametrize(
    ("text", "rated"),
    [
        (tool_texts.ibstatus({**EIGHT, "mlx5_5": 100}, ["mlx5_1", "mlx5_3"]), True),
        (tool_texts.ibstatus({**EIGHT, "mlx5_5": 100}, ["mlx5_1", "mlx5_3"]).replace("\n", "\r\n"), True),
        (tool_texts.devinfo({**EIGHT, "mlx5_5": 100}, ["mlx5_1", "mlx5_3"]), True),
        (tool_texts.devinfo(EIGHT, ["mlx5_1", "mlx5_3"], verbose=False), False),
        (tool_texts.rdma_link([*EIGHT], ["mlx5_1", "mlx5_3"]), False),
        (tool_texts.rdma_link([*EIGHT], ["mlx5_1", "mlx5_3"], old=True), False),
        (tool_texts.rdma_link_json([*EIGHT], ["mlx5_1", "mlx5_3"]), False),
        ("$ rdma link -j\n" + tool_texts.rdma_link_json([*EIGHT], ["mlx5_1", "mlx5_3"]) + "\n$ \n", False),
    ],
    ids=[
        "ibstatus",
        "ibstatus on Windows",
        "ibv_devinfo -v",
        "ibv_devinfo",
        "rdma link",
        "rdma link, old",
        "rdma link -j",
        "with its command",
    ],
)
def test_lists_of_ports(text: str, rated: bool, tmp_path: Path) -> None:
    if not rated:
        with pytest.raises(InputError, match="--nic-rate"):
            read(tmp_path, a=text)
    found = read(tmp_path, None if rated else "400Gb/s", a=text)
    assert rates(found) == {"a": {**SIX, "mlx5_5": 100} if rated else SIX}
    assert ("mlx5_5: slow: it counts, at 100Gb/s, where 400Gb/s is usual" in "".join(found.notes)) == rated


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("n{}: ", ["n0", "n1", "n2"]),
        ("  {}: ", ["0", "1", "2"]),
        ("[1,{}]<stdout>:", ["rank0", "rank1", "rank2"]),
        ("[pod/w-{}/main] ", ["w-0", "w-1", "w-2"]),
    ],
)
def test_lists_of_several_hosts_in_one_text(prefix: str, names: list[str], tmp_path: Path) -> None:
    text = tool_texts.ibstatus(EIGHT)
    lines = [prefix.format(host) + line for line in text.splitlines() for host in range(3)]
    (tmp_path / "all.txt").write_text("\n".join(lines) + "\n")
    assert rates(load_topology(str(tmp_path / "all.txt"))) == dict.fromkeys(names, EIGHT)


@pytest.mark.parametrize("one_line", [False, True])
def test_a_fabric_has_all_its_hosts(one_line: bool, tmp_path: Path) -> None:
    path = tmp_path / "fabric.txt"
    hosts = ["n1", "n2", "n3"]
    path.write_text(tool_texts.fabric(hosts, EIGHT, {"n2 mlx5_3": 0, "n3 mlx5_0": 10}, one_line))
    found = rates(load_topology(str(path)))
    assert found["n1"] == EIGHT
    assert found["n2"] == {name: rate for name, rate in EIGHT.items() if name != "mlx5_3"}
    assert found["n3"] == {**EIGHT, "mlx5_0": 10}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (tool_texts.perfquery(), "perfquery's counters, which tells no topology.*ibstat"),
        (tool_texts.ethtool_s(), "ethtool -S's counters.*ibstat"),
        (tool_texts.metrics("n1", 0, 9.0), "NCCL Inspector's output.*optcc diagnose"),
        ("#  Rank  0 Pid  1 on  n1 device  0 [0x10] A100\n", "nccl-tests' output.*NCCL_TOPO_DUMP_FILE"),
        ("n1:1:2 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.1<0>\n", "NCCL's log without its NICs.*INIT,NET"),
        ("0000:1a:00.0 Infiniband controller: Mellanox MT2910\n", "lspci's list.*ibstat"),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n", "NVIDIA's list of GPUs.*topo -m"),
    ],
)
def test_other_tools_are_named_with_the_way_out(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"(?s){says}"):
        read(tmp_path, a=text)


# One port that shows as two functions

SPARK = [f"roce{pci}p1s0f{f}" for pci in ("P2", "") for f in (0, 1)]
SPARK_GUIDS = {name: (0x1000, 0x1000 + 4 * ("P2" in name) + int(name[-1])) for name in SPARK}


def spark(down: list[str], names: dict[str, str] | None = None) -> str:
    named = names or {name: name for name in SPARK}
    guids = {named[name]: guid for name, guid in SPARK_GUIDS.items()}
    return tool_texts.ibstat(dict.fromkeys(named.values(), 200), [named[n] for n in down], link="Ethernet", guids=guids)


@pytest.mark.parametrize(
    ("down", "ports"),
    [
        ([name for name in SPARK if name.endswith("f1")], {"rocep1s0f0": 200}),
        ([], {"rocep1s0f0": 200, "rocep1s0f1": 200}),
        (["rocep1s0f0"], {"roceP2p1s0f0": 200, "rocep1s0f1": 200}),
    ],
)
def test_one_port_that_shows_as_two_functions(down: list[str], ports: dict[str, int], tmp_path: Path) -> None:
    found = read(tmp_path, a=spark(down))
    assert rates(found) == {"a": ports}
    assert "one port of 200Gb/s that shows as 2 functions" in "".join(found.notes)
    assert rates(read(tmp_path, nics="rocep1s0f0,roceP2p1s0f0", a=spark([]))) == {
        "a": {"roceP2p1s0f0": 200, "rocep1s0f0": 200}
    }, "those that are asked for all count"


LINKS = "".join(f"link {name}/1 state ACTIVE physical_state LINK_UP netdev en{name[4:]}\n" for name in SPARK)
DEVICES = [(name, f"fc4c:0003:0000:000{4 * ('P2' in name) + int(name[-1])}", "fc4c:0003:0000:0000") for name in SPARK]
DEV = "".join(
    f"{i}: {name}: node_type ca fw 28.45.4028 node_guid {node} sys_image_guid {image} \n"
    for i, (name, node, image) in enumerate(DEVICES)
)
DEV_JSON = json.dumps([{"ifname": name, "node_guid": node, "sys_image_guid": image} for name, node, image in DEVICES])


@pytest.mark.parametrize("dev", [DEV, DEV_JSON])
def test_rdma_dev_tells_which_links_are_one_port(dev: str, tmp_path: Path) -> None:
    both = {"rocep1s0f0": 200, "rocep1s0f1": 200}
    for texts in ({"a": LINKS, "a__2": dev}, {"a": dev, "a__2": LINKS}, {"a": LINKS + dev}):
        assert rates(read(tmp_path, nic_rate="200Gb/s", **texts)) == {"a": both}


def test_links_by_names_alone_tell_a_card_that_shows_each_port_twice(tmp_path: Path) -> None:
    """As on DGX Spark; names of more cards, or of other forms, join nothing."""
    found = read(tmp_path, nic_rate="200Gb/s", a=LINKS)
    assert rates(found) == {"a": {"rocep1s0f0": 200, "rocep1s0f1": 200}}
    assert "by their names two functions of each port" in "".join(found.notes)
    one_cable = LINKS.replace("f1/1 state ACTIVE physical_state LINK_UP", "f1/1 state DOWN physical_state DISABLED")
    assert rates(read(tmp_path, nic_rate="200Gb/s", b=one_cable)) == {"b": {"rocep1s0f0": 200}}
    for others in (LINKS.replace("P2", "P3") + LINKS, LINKS.replace("f1/1 state ACTIVE", "f1/1 state DOWN", 1)):
        kept = "".join(dict.fromkeys(line + "\n" for line in others.splitlines()))
        assert len(rates(read(tmp_path, nic_rate="200Gb/s", c=kept))["c"]) == kept.count("ACTIVE")


@pytest.mark.parametrize("physical", [("mlx5_0",), ("mlx5_0", "mlx5_4"), ()])
def test_virtual_functions_count_where_their_card_does_not(physical: tuple[str, ...], tmp_path: Path) -> None:
    """Two cards, each with its own device and three virtual functions, whose GUIDs are made up."""
    here = {n: f"mlx5_{n}" for n in range(8) if n % 4 or f"mlx5_{n}" in physical}
    images = {n: 0x100 * (n // 4 + 1) for n in here}
    guids = {name: (images[n], 0xBAD00 + n if n % 4 else images[n]) for n, name in here.items()}
    models = {name: "MT4126" if n % 4 else "MT4129" for n, name in here.items()}
    text = tool_texts.ibstat(dict.fromkeys(here.values(), 400), models=models, guids=guids)
    kept = [name for n, name in here.items() if name in physical or f"mlx5_{n // 4 * 4}" not in physical]
    assert list(rates(read(tmp_path, a=text))["a"]) == kept
    assert list(rates(read(tmp_path, nics="mlx5_1,mlx5_5", a=text))["a"]) == ["mlx5_1", "mlx5_5"]


def test_functions_by_other_names_are_told_by_their_guids(tmp_path: Path) -> None:
    names = dict(zip(sorted(SPARK, key=str.lower), ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"), strict=True))
    assert rates(read(tmp_path, a=spark([], names))) == {"a": {"mlx5_0": 200, "mlx5_1": 200}}


@pytest.mark.parametrize("names", [("mlx5_0", "mlx5_1"), ("rocep65s0f0", "rocep65s0f1")])
def test_two_ports_of_a_card_are_two(names: tuple[str, str], tmp_path: Path) -> None:
    guids = {names[0]: (0x70, 0x70), names[1]: (0x70, 0x71)}
    assert rates(read(tmp_path, a=tool_texts.ibstat(dict.fromkeys(names, 200), guids=guids)))["a"] == {
        names[0]: 200,
        names[1]: 200,
    }


def test_guids_that_tell_nothing_join_nothing(tmp_path: Path) -> None:
    guids = dict.fromkeys(EIGHT, (0, 0))
    assert rates(read(tmp_path, a=tool_texts.ibstat(EIGHT, guids=guids))) == {"a": EIGHT}
    same = dict.fromkeys(("mlx5_0", "mlx5_1"), (0, 0))
    assert len(rates(read(tmp_path, b=tool_texts.ibstat(dict.fromkeys(same, 100), guids=same)))["b"]) == 2


@pytest.mark.parametrize("told", ["phys_port_id", "phys_port_name", "guid"])
@pytest.mark.parametrize(("second", "ports"), [(DOWN, {"mlx5_0": 200}), (ACTIVE, {"mlx5_0": 126, "mlx5_1": 126})])
def test_two_functions_in_sysfs(told: str, second: str, ports: dict[str, int], tmp_path: Path) -> None:
    """Two slots of four lanes, 126 Gb/s each: together they carry one port, but not two."""
    made = Machine(tmp_path / "sys")
    for i, (bus, port) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)]):
        name, state = f"mlx5_{i}", second if port else ACTIVE
        lanes = ("32.0 GT/s PCIe", "4")
        card = made.rdma(bus, name, 200, slot=f"00.{port}", fabric="Ethernet", state=state, now=lanes)
        device = card / "infiniband" / name
        write(device / "ports/1/gids", **{"0": f"fe80::{i + 1}"})
        write(device / "ports/1/gid_attrs/ndevs", **{"0": f"eth{i}"})
        more = {"phys_port_id": {"phys_port_id": f"a0{port}"},
                "phys_port_name": {"phys_port_name": f"p{port}", "phys_switch_id": "a0"}}.get(told, {})  # fmt: skip
        made.net(f"eth{i}", card, **more)
        if told == "guid":
            node = f"0000:0000:0000:{0x10 + port + 4 * (i // 2):04x}"
            write(device, sys_image_guid="0000:0000:0000:0010", node_guid=node)
    assert made.rates() == ports
    assert "one port of 200Gb/s that shows as 2 functions: mlx5_0 counts, skipped mlx5_2" in made.notes()


def test_two_functions_in_nccl_s_xml(tmp_path: Path) -> None:
    """NCCL writes the system image GUID, and counts functions as ports."""
    nets = "".join(
        f'<pci busid="000{2 * domain}:01:00.{f}" class="0x020000"><nic><net name="{name}" dev="{2 * domain + f}" '
        f'speed="200000" port="{f + 1}" guid="0x1000" gdr="0"/></nic></pci>'
        for domain in (0, 1)
        for f, name in enumerate(SPARK[2 - 2 * domain : 4 - 2 * domain])
    )
    path = tmp_path / "t.xml"
    path.write_text(f'<system version="1"><cpu numaid="0">{nets}</cpu></system>')
    assert rates(load_topology(str(path))) == {"server0": {"rocep1s0f0": 200, "rocep1s0f1": 200}}


# Links that trained slowly


@pytest.mark.parametrize("rate", [10, 40, 100, 200])
@pytest.mark.parametrize("link", ["InfiniBand", "Ethernet"])
def test_a_link_that_trained_slowly_counts_and_is_said_to_be_slow(rate: int, link: str, tmp_path: Path) -> None:
    found = read(tmp_path, a=tool_texts.ibstat({**FOUR, "mlx5_2": rate}, link=link))
    assert rates(found) == {"a": {**FOUR, "mlx5_2": rate}}
    assert f"mlx5_2: slow: it counts, at {rate}Gb/s, where 400Gb/s is usual" in "".join(found.notes)


@pytest.mark.parametrize("models", [{"mlx5_4": "MT4117"}, {"mlx5_4": "MT4127"}])
def test_another_card_is_a_management_port(models: dict[str, str], tmp_path: Path) -> None:
    found = read(tmp_path, a=tool_texts.ibstat({**FOUR, "mlx5_4": 25}, models=models))
    assert rates(found) == {"a": FOUR}
    assert "management port" in "".join(found.notes)


def test_infiniband_of_an_unknown_model_is_for_training(tmp_path: Path) -> None:
    found = read(tmp_path, a=tool_texts.ibstatus({**FOUR, "mlx5_1": 10}))
    assert rates(found) == {"a": {**FOUR, "mlx5_1": 10}}
    other = read(tmp_path, b=tool_texts.ibstatus({**FOUR, "mlx5_1": 10}, link="Ethernet"))
    assert rates(other) == {"b": {name: rate for name, rate in FOUR.items() if name != "mlx5_1"}}


def test_what_counts_on_most_servers_is_no_management_port_on_one(tmp_path: Path) -> None:
    """ethtool tells no model: the others do. A management port that all have stays one."""
    whole = {"b0": 100, **FOUR}

    def text(speeds: dict[str, int]) -> str:
        return "".join(
            f"Settings for {name}:\n\tSpeed: {gbps * 1000}Mb/s\n\tLink detected: yes\n"
            for name, gbps in {**speeds, "eno1": 10}.items()
        )

    found = read(tmp_path, a=text({**whole, "mlx5_3": 10}), b=text(whole), c=text(whole))
    assert rates(found) == {"a": {**whole, "mlx5_3": 10}, "b": whole, "c": whole}
    assert "mlx5_3: slow: it counts, at 10Gb/s, where 400Gb/s is usual on other servers" in "".join(found.notes)
    assert sum("eno1" in note and "management" in note for note in found.notes) == 1


# NCCL's log

USING = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB [RO]; OOB eth0:192.0.2."


def job(old: bool = False, nvml: bool = False, pxn: bool = False) -> str:
    """Three hosts of four GPUs; first all ranks, then for each GPU a communicator of the three hosts' ranks, each
    numbered from 0; then one in each host. GPU g uses mlx5_g. old : NCCL tells a communicator after its channels, and
    without an id; nvml : each process sees one GPU."""
    lines, hosts = [], range(3)
    for h in hosts:
        for g in range(4):
            lines.append(f"h{h}:{100 + g}:{200 + g} [{0 if nvml else g}] NCCL INFO {USING}{h + 1}<0>")

    def comm(members: list[tuple[int, int]], number: int, channels: list[tuple[int, int]]) -> None:
        """`channels` : (from, to) by rank."""
        for end in ("START", "COMPLETE"):
            if end == "COMPLETE":
                for one, other in channels:
                    for rank, way in ((one, "send"), (other, "receive")):
                        h, g = members[rank]
                        nic = f"{g}({(rank + 1) % len(members)})" if pxn and way == "send" else f"{g}"
                        lines.append(
                            f"h{h}:{100 + g}:{200 + g} [{0 if nvml else g}] NCCL INFO Channel 00/0 : "
                            f"{one}[{members[one][1]}] -> {other}[{members[other][1]}] [{way}] via NET/IB/{nic}/GDRDMA"
                        )
            for rank, (h, g) in enumerate(members):
                device = f"cudaDev {0 if nvml else g}" + ("" if old else f" nvmlDev {g}")
                ident = "" if old else f" commId 0x{number:x}"
                if not (old and end == "START"):
                    lines.append(
                        f"h{h}:{100 + g}:{200 + g} [{0 if nvml else g}] NCCL INFO comm 0x{number * 4096 + rank:x} rank "
                        f"{rank} nranks {len(members)} {device} busId {g}b000{ident} - Init {end}"
                    )

    world = [(h, g) for h in hosts for g in range(4)]
    comm(world, 1, [(3, 4), (7, 8), (11, 0)])
    for g in range(4):
        for again in range(2):
            comm([(h, g) for h in hosts], 16 * g + again + 2, [(0, 1), (1, 2), (2, 0)])
    for h in hosts:
        comm([(h, g) for g in range(4)], 100, [])
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("wrap", ["", "0: ", "[1,0]<stdout>:"])
@pytest.mark.parametrize("how", [{}, {"old": True}, {"nvml": True}])
def test_ranks_of_several_communicators_are_different_numbers(how: dict[str, bool], wrap: str, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(f"{wrap}{line}\n" for line in job(**how).splitlines()))
    servers = load_topology(str(path), nic_rate="400Gb/s").cluster.servers
    assert [server.name for server in servers] == ["h0", "h1", "h2"]
    for server in servers:
        assert server.gpus == 4
        assert [(nic.name, nic.gpu, nic.rail) for nic in server.nics] == [(f"mlx5_{g}", g, g) for g in range(4)]


def test_a_nic_of_another_rank_s_gpu_tells_nothing_of_the_sender_s(tmp_path: Path) -> None:
    """With PXN a rank sends over the NIC of another GPU of its host, whose rank is in brackets."""
    path = tmp_path / "job.log"
    lines = job(pxn=True).replace("NET/IB/0(", "NET/IB/3(").splitlines()
    path.write_text(
        "".join(f"{line}\n" * (9 if "[0] NCCL INFO" in line and "NET/IB/3(" in line else 1) for line in lines)
    )
    found = load_topology(str(path), nic_rate="400Gb/s").cluster.servers[0]
    assert [(nic.name, nic.gpu) for nic in found.nics] == [(f"mlx5_{g}", g) for g in range(4)]


# One cluster of many hosts, and of tools that tell NICs alone or GPUs alone.


def gpu(dev: int) -> str:
    return f'<pci><gpu dev="{dev}" sm="90" rank="{dev}"/></pci>'


def net(name: str, dev: int, rest: str = "", rail: int | str | None = None) -> str:
    rest += "" if rail is None else f' rail="{rail}"'
    return f'<pci><nic><net name="{name}" dev="{dev}" speed="400000" gdr="1" {rest}/></nic></pci>'


def beside(*nics: str, rail: int | None = None) -> str:
    """A host of four GPUs, each behind a switch of its own, with the NIC mlx5_N beside GPU N where it is listed."""
    mine = [f"mlx5_{g}" for g in range(4)]
    each = [net(name, nics.index(name), rail=rail) if name in nics else "" for name in mine]
    return "".join(f"<pci>{gpu(g)}{nic}</pci>" for g, nic in enumerate(each))


def alone(*nics: str) -> str:
    """A host without GPUs."""
    return "".join(net(name, dev) for dev, name in enumerate(nics))


def hosts(*bodies: str) -> str:
    cpus = "".join(f'<cpu host_hash="0x{i + 1:x}">{body}</cpu>' for i, body in enumerate(bodies))
    return f"<system>{cpus}</system>"


def read_several(text: str, nics: str | None = None) -> Topology:
    return read_nccl_xml(text.encode(), "t.xml", Given.parse(nics=nics))


def rails(found: Topology | Cluster) -> list[dict[str, int | None]]:
    cluster = found if isinstance(found, Cluster) else found.cluster
    return [{nic.name: nic.rail for nic in server.nics} for server in cluster.servers]


def notes(found: Topology) -> list[str]:
    return [str(a) for a in found.assumed if a.fix == FIX]


FULL = tuple(FOUR)
PLANES = 'plane="7"', 'plane="9"'
LATER = {"mlx5_2": 2, "mlx5_3": 3}


def test_the_gpu_beside_a_nic_tells_its_rail() -> None:
    found = read_several(hosts(beside(*FULL), beside("mlx5_2", "mlx5_3"), beside("mlx5_0", "mlx5_1")))
    assert rails(found) == [{**LATER, "mlx5_0": 0, "mlx5_1": 1}, LATER, {"mlx5_0": 0, "mlx5_1": 1}]
    (note,) = notes(found)
    assert "server1: rails are numbered by the GPU beside the NIC, not by position: mlx5_2 on rail 2" in note
    assert "rails: by the GPU beside the NIC" in found.read


def test_one_host_that_lacks_a_nic_in_the_middle() -> None:
    assert rails(read_several(hosts(beside("mlx5_0", "mlx5_2", "mlx5_3")))) == [{"mlx5_0": 0, **LATER}]


def test_what_the_file_says_comes_before_the_gpu() -> None:
    def said(*numbers: int) -> str:
        return "".join(f"<pci>{gpu(i)}{net(f'mlx5_{i}', i, rail=n)}</pci>" for i, n in enumerate(numbers))

    found = read_several(hosts(said(5, 6), said(5, 7)))
    assert rails(found) == [{"mlx5_0": 5, "mlx5_1": 6}, {"mlx5_0": 5, "mlx5_1": 7}]
    assert any("beside GPU1 on rails 6 (server0/mlx5_1), 7 (server1/mlx5_1)" in note for note in notes(found))
    assert "rails: as the file says" in found.read


def test_rails_that_the_file_says_for_some_nics_number_the_others_too() -> None:
    """Rails count from 1 here: the NICs beside GPUs 1 and 2 are on rails 2 and 3."""
    first = "".join(f"<pci>{gpu(i)}{net(f'mlx5_{i}', i, rail=i + 1)}</pci>" for i in range(4))
    found = read_several(hosts(first, beside("mlx5_1", "mlx5_2")))
    assert rails(found)[1] == {"mlx5_1": 2, "mlx5_2": 3}
    assert "rails: as the file says, else by the GPU beside the NIC" in found.read
    short = read_several(hosts(first.partition(f"<pci>{gpu(2)}")[0], beside("mlx5_1", "mlx5_3")))
    assert rails(short)[1] == {"mlx5_1": 2, "mlx5_3": 4}, "3 would be a rail of the file's, and another one maybe"


@pytest.mark.parametrize("value", ["x", "-2", "99999", ""])
def test_a_rail_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"t.xml:1: <net mlx5_0>.*rail 0 to 32767"):
        read_several(hosts(net("mlx5_0", 0, rail=value)))


def test_an_undefined_rail_is_none() -> None:
    assert rails(read_several(hosts(beside("mlx5_1", rail=-1)))) == [{"mlx5_1": 1}]


def test_nics_of_one_rail_and_different_planes_do_not_meet() -> None:
    both = "".join(
        f"<pci>{gpu(i)}{net(f'p{i}a', 2 * i, PLANES[0], i)}{net(f'p{i}b', 2 * i + 1, PLANES[1], i)}</pci>"
        for i in range(2)
    )
    found = read_several(hosts(both))
    assert rails(found) == [{"p0a": 0, "p0b": 1, "p1a": 2, "p1b": 3}]
    (note,) = notes(found)
    assert "2 planes" in note


def test_nics_beside_one_gpu_are_on_one_rail_and_said_to_be() -> None:
    found = read_several(hosts(f"<pci>{gpu(0)}{net('a', 0)}{net('b', 1)}</pci><pci>{gpu(1)}{net('c', 2)}</pci>"))
    assert rails(found) == [{"a": 0, "b": 0, "c": 1}]
    assert any("reach each other: 2 on rail 0" in note for note in notes(found))


def test_names_tell_rails_where_no_gpu_does() -> None:
    found = read_several(hosts(alone(*FULL), alone("mlx5_2", "mlx5_3")))
    assert rails(found)[1] == LATER
    assert any("by the NIC's name on other hosts" in note for note in notes(found))
    none_has_all = read_several(hosts(alone("a", "b"), alone("b", "c"), alone("c", "a")))
    assert rails(none_has_all) == [{"a": 0, "b": 1}, {"b": 1, "c": 2}, {"c": 2, "a": 0}]


def test_names_tell_which_of_two_gpus_behind_one_switch() -> None:
    """Two GPUs and two NICs behind each switch: the NIC that is left is beside both."""

    def pairs(*names: str) -> str:
        both = ((gpu(0) + gpu(1), ("a", "b")), (gpu(2) + gpu(3), ("c", "d")))
        nics = [("".join(net(n, names.index(n)) for n in mine if n in names), gpus) for gpus, mine in both]
        return "".join(f"<pci>{gpus}{here}</pci>" for here, gpus in nics)

    found = read_several(hosts(pairs("a", "b", "c", "d"), pairs("b", "c"), pairs("d", "a", "b")))
    assert rails(found)[1:] == [{"b": 1, "c": 2}, {"a": 0, "b": 1, "d": 3}]


def test_position_is_what_is_left_and_said_where_hosts_differ() -> None:
    same = read_several(hosts(alone("a", "b"), alone("x", "y")))
    assert rails(same) == [{"a": 0, "b": 1}, {"x": 0, "y": 1}]
    assert notes(same) == []
    assert "rails: by position" in same.read
    fewer = read_several(hosts(alone("a", "b"), alone("x")))
    assert rails(fewer)[1] == {"x": 0}
    assert any("nothing but position" in note for note in notes(fewer))
    renamed = read_several(hosts(alone("a", "b", "c"), alone("a", "new", "c")))
    assert rails(renamed)[1] == {"a": 0, "new": 1, "c": 2}


def test_a_host_that_lost_a_gpu_keeps_rails_by_name() -> None:
    """The driver numbers the GPUs behind the lost one anew; the NICs keep their names."""
    lost = "".join(f"<pci>{gpu(dev)}{net(f'mlx5_{dev + 1}', dev)}</pci>" for dev in range(3))
    assert rails(read_several(hosts(beside(*FULL), lost)))[1] == {"mlx5_1": 1, **LATER}


def test_nics_left_out_do_not_move_others() -> None:
    for nics in ("^mlx5_1", "mlx5_0,mlx5_[2-3]"):
        assert rails(read_several(hosts(beside(*FULL)), nics)) == [{"mlx5_0": 0, **LATER}]
        assert rails(read_several(hosts(alone(*FULL)), nics)) == [{"mlx5_0": 0, **LATER}]
    pair = hosts(f"<pci>{gpu(0)}{gpu(1)}{net('a', 0)}{net('b', 1)}</pci>")
    assert rails(read_several(pair, "^a")) == [{"b": 1}]
    broken = hosts(beside(*FULL).replace('name="mlx5_1" dev="1" speed="400000"', 'name="mlx5_1" dev="1" speed="-1"'))
    assert rails(read_several(broken, "^mlx5_1")) == [{"mlx5_0": 0, **LATER}]


def test_a_false_lower_bound_was_here(tmp_path: Path) -> None:
    """Server0 is the hub on four rails, of 400 Gb/s each; with rails by position the bound was a third too high."""
    source, written = tmp_path / "t.xml", tmp_path / "t.yaml"
    source.write_text(hosts(beside(*FULL), beside("mlx5_2", "mlx5_3"), beside("mlx5_0", "mlx5_1")))
    done = CliRunner().invoke(main, ["topo", str(source), "-o", str(written)])
    assert done.exit_code == 0, done.output
    written.write_text(written.read_text() + "fabric: {rails: true}\n")
    cluster = load_topology(written).cluster
    assert rails(cluster)[1] == LATER
    assert float(optcc.lower_bound(cluster, 2**30).seconds) == pytest.approx(2**30 / 100e9, rel=1e-5)
    plan = optcc.plan(cluster, 2**22)
    optcc.verify(plan.schedule())
    ports = plan.schedule().ports
    used = {(ports[out].rail, ports[into].rail) for out, into in _lanes(plan.schedule())}
    assert used
    assert all(out == into for out, into in used)


def _lanes(schedule: optcc.Schedule) -> Sequence[tuple[int, int]]:
    return [(lane.out, lane.into) for route in schedule.routes for lane in route.lanes]


SEVERAL_YAML = """optcc: 1
fabric: {rails: true}
servers:
- {name: a, nics: [{name: mlx5_0, rate: 1Gb/s}, {name: mlx5_1, rate: 1Gb/s}, {name: mlx5_2, rate: 1Gb/s}]}
- {name: b, count: 2, nics: [{name: mlx5_2, rate: 1Gb/s}]}
- {name: c, gpus: 4, nics: [{name: x, rate: 1Gb/s, gpu: 2}, {name: y, rate: 1Gb/s, rail: 0}]}
"""


def test_yaml_without_rails_is_read_alike() -> None:
    found = read_yaml(SEVERAL_YAML.encode(), "t.yaml", Given())
    assert rails(found)[1:] == [{"mlx5_2": 2}, {"mlx5_2": 2}, {"x": 2, "y": 0}]
    assert found.cluster.servers[1].nics is found.cluster.servers[2].nics, "equal servers share their NICs"
    assert any("b-0: rails are numbered by the NIC's name" in note for note in notes(found))
    again = read_yaml(write_yaml(found.cluster).encode(), "t.yaml", Given())
    assert again.cluster == found.cluster
    assert again.notes == ()
    assert notes(read_yaml(SEVERAL_YAML.replace("rails: true", "rails: false").encode(), "t.yaml", Given())) == []


def test_nvidia_smi_and_sysfs_tell_by_the_gpu(tmp_path: Path) -> None:
    def cell(row: str, column: str) -> str:
        nic, other = sorted((row, column), reverse=True)
        return "PIX" if nic.startswith("NIC") and other == f"GPU{(0, 2, 3)[int(nic[3:])]}" else "SYS"

    text = tmp_path / "topo.txt"
    names = ["mlx5_0", "mlx5_2", "mlx5_3"]
    text.write_text(matrix(4, ["NIC0", "NIC1", "NIC2"], cell) + legend(names))
    assert rails(load_topology(text, nic_rate="400Gb/s")) == [{"mlx5_0": 0, **LATER}]
    assert rails(load_topology(text, nic_rate="400Gb/s", nics="mlx5_2")) == [{"mlx5_2": 2}]
    made = Machine(tmp_path / "sys")
    for i in range(4):
        made.gpu(0x10 * (i + 1))
        if i != 1:
            made.rdma(0x10 * (i + 1), f"mlx5_{i}")
    assert rails(made.read()) == [{"mlx5_0": 0, **LATER}]
    assert rails(made.read("^mlx5_2")) == [{"mlx5_0": 0, "mlx5_3": 3}]


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
    assert expand_hosts(text) == names
    cluster = load_topology("uniform:servers=1,rate=1Gb/s", hosts=text).cluster
    assert [server.name for server in cluster.servers] == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("host1:8,host2:8", ["host1", "host2"]),
        ("h1.example.org:4,h2:16,h3", ["h1.example.org", "h2", "h3"]),
        ("host1 slots=8 max_slots=16\nhost2 slots=8\n", ["host1", "host2"]),
        ("# by hand\n\nb:8\na:8 # spare\nc\n", ["b", "a", "c"]),
        ("n1\nn1\nn2\nn2\n", ["n1", "n2"]),
        ("host1 slots = 8", ["host1"]),
        ("node[1-2] slots=8\nnode[4-5]:8\n", ["node1", "node2", "node4", "node5"]),
    ],
)
def test_mpirun_s_lists_and_host_files(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


def test_a_host_file_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("host1 slots=8\nhost2 slots=8\nhost3 slots=8\n")
    args = ["topo", "uniform:servers=3,nics=2,rate=400Gb/s", "--hosts", str(path), "--json"]
    found = json.loads(CliRunner().invoke(main, args).stdout)
    assert [server["name"] for server in found["servers"]] == ["host1", "host2", "host3"]


@pytest.mark.parametrize(
    "text",
    [
        "host1:8:9",
        "host1 slots=abc\nhost2 slots=8",
        "rank 0=host1 slot=0\nrank 1=host2 slot=0",
        "[fd00::1]:8,[fd00::2]:8",
        "host1:",
        "a slots=8, b slots=8",
        "a\n-b\n",
        "\n#\n ",
        "",
        "a,",
        "@all",
        "a[",
        "a]",
        "a*",
        "a!b",
        "n[3-1]",
        "n[1-2/2]",
        "n[]",
        "a b",
        "n[1-70000]",
        "é",
        "x" * 70000,
    ],
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


@pytest.mark.parametrize("text", ["fd77::10", "[fd77::10]:8,host2", "fe80::1%eth0", "fd77::10 slots=8\nhost2 slots=8"])
def test_ipv6_addresses_are_named(text: str) -> None:
    with pytest.raises(InputError, match="an IPv6 address in a list of hosts"):
        expand_hosts(text)


SMI = matrix(8, [f"NIC{i}" for i in range(8)], hopper) + legend([f"mlx5_{i}" for i in range(8)])


def dump(*nics: str) -> str:
    return f"<system><cpu>{beside(*nics)}</cpu></system>"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def names(found: Topology) -> list[str]:
    return [server.name for server in found.cluster.servers]


def nics(found: Topology) -> list[dict[str, int]]:
    """Of each server: NIC -> Gb/s."""
    return [{nic.name: int(nic.out_rate / GBPS) for nic in server.nics} for server in found.cluster.servers]


def said(found: Topology, *parts: str) -> bool:
    return any(all(part in note for part in parts) for note in found.notes)


# Many files


@pytest.mark.parametrize("way", ["folder", "pattern", "files", "named"])
def test_a_server_of_each_file(way: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "dumps", {f"node{i}.site.xml": dump(*FULL) for i in (2, 1, 3)})
    paths = [str(path) for path in sorted(folder.iterdir())]
    sources = {
        "folder": [str(folder)],
        "pattern": [str(folder / "node*.xml")],
        "files": paths,
        "named": [f"node{i}={path}" for i, path in enumerate(paths, 1)],
    }[way]
    found = load_topology(sources)
    assert names(found) == ["node1", "node2", "node3"]
    assert nics(found) == [FOUR] * 3


def test_unlike_hosts_keep_their_rails_and_what_one_lacks_is_said(tmp_path: Path) -> None:
    bare = "".join(net(name, dev) for dev, name in enumerate(("mlx5_0", "mlx5_3")))  # no GPU near: by name
    said_rails = "".join(f"<pci>{gpu(g)}{net(FULL[g], g, rail=g)}</pci>" for g in range(4))
    folder = written(
        tmp_path / "d",
        {
            "a.xml": dump(*FULL),
            "b.xml": dump("mlx5_1", "mlx5_3"),  # by the GPU beside
            "c.xml": f"<system><cpu>{bare}</cpu></system>",
            "d.xml": f"<system><cpu>{said_rails}</cpu></system>",
        },
    )
    found = load_topology(str(folder))
    whole = {name: rail for rail, name in enumerate(FULL)}
    assert rails(found) == [whole, {"mlx5_1": 1, "mlx5_3": 3}, {"mlx5_0": 0, "mlx5_3": 3}, whole]
    assert [server.gpus for server in found.cluster.servers] == [4, 4, 2, 4]
    assert said(found, "b: lacks mlx5_0, which most servers have")
    assert not said(found, "a: lacks")
    assert found.read[-1].startswith("rails: as the file says, else by the GPU beside")


def test_several_hosts_in_a_dump_beside_another_file(tmp_path: Path) -> None:
    two = hosts(beside(*FULL), beside(*FULL))
    folder = written(tmp_path / "d", {"domain.xml": two, "node9.xml": dump(*FULL)})
    assert names(load_topology(str(folder))) == ["domain-0", "domain-1", "node9"]


def test_trees_of_several_hosts(tmp_path: Path) -> None:
    for host, gbps in (("node1", 400), ("node2", 200)):
        Machine(tmp_path / "dumps" / host / "sys").rdma(0x10, "mlx5_0", gbps)
        (tmp_path / "dumps" / host / "sys/class/net").mkdir(parents=True)
    found = load_topology(str(tmp_path / "dumps"))
    assert (names(found), nics(found)) == (["node1", "node2"], [{"mlx5_0": 400}, {"mlx5_0": 200}])
    assert names(load_topology(str(tmp_path / "dumps/node1"))) == ["server0"]


def test_many_hosts_are_told_in_few_lines(tmp_path: Path) -> None:
    folder = written(tmp_path / "d", {f"n{i:03}.txt": tool_texts.ibstat(FOUR) for i in range(40)})
    found = load_topology(str(folder))
    assert len(found.cluster.servers) == 40
    assert len(found.read) < 15
    assert "n000 to n039 (40): 4 GPUs, 4 NICs of 400Gb/s" in found.read
    assert len(found.notes) < 6


def test_topo_takes_many_and_writes_one(tmp_path: Path) -> None:
    written(tmp_path / "d", {"a.xml": dump(*FULL), "b.xml": dump(*FULL[:3])})
    words = ["topo", str(tmp_path / "d/a.xml"), f"second={tmp_path / 'd/b.xml'}", "-o", str(tmp_path / "t.yaml")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    again = load_topology(str(tmp_path / "t.yaml"))
    assert names(again) == ["a", "second"]
    assert again.cluster == load_topology(words[1:3]).cluster
    bound = CliRunner().invoke(main, ["bound", str(tmp_path / "d"), "--size", "1GiB"])
    assert bound.exit_code == 0, bound.output


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (["{d}/a.xml", "{d}/a.xml"], "two servers of one name"),
        (["{d}/none*.xml"], "no file"),
        (["{d}/empty"], "no file"),
        (["{d}/a.xml", "uniform:servers=2,nics=1,rate=1Gb/s"], "a preset among several sources"),
        (["{d}/a.xml", "{d}/rails.yaml"], "a whole cluster among several sources"),
        (["a/b={d}/a.xml"], "cannot be read"),
        (["n={d}/ibstat.txt", "n={d}/other.txt"], "two texts of one kind for one server"),
        (["n={d}/a.xml", "n={d}/ibstat.txt"], "a server told whole, and a part of it"),
        (["n={d}/rocm.txt"], "GPUs without NICs"),
        (["n={d}/links.json"], "the rates of NICs are not told"),
        (["n={d}/down.txt"], "no NIC with a link"),
        (["n={d}/cut.txt", "n={d}/ibstat.txt"], "a table of links that is not whole"),
        (["n={d}/twice.txt"], "a port twice"),
    ],
)
def test_what_cannot_be_one_cluster_is_refused(sources: list[str], says: str, tmp_path: Path) -> None:
    ibstat = tool_texts.ibstat({"mlx5_0": 400})
    folder = written(
        tmp_path / "d",
        {
            "a.xml": dump(*FULL),
            "ibstat.txt": ibstat,
            "other.txt": tool_texts.ibstat({"mlx5_1": 400}),
            "twice.txt": ibstat + ibstat,
            "down.txt": tool_texts.ibstat({"mlx5_0": 400}, down=["mlx5_0"]),
            "rocm.txt": tool_texts.rocm_smi(4),
            "cut.txt": "\n".join(line for line in tool_texts.rocm_smi(4).splitlines() if not line.startswith("GPU3")),
            "links.json": tool_texts.rdma_link_json(FULL),
            "rails.yaml": "optcc: 1\nfabric: {rails: true}\nservers:\n- {name: x, nics: [{name: n, rate: 1Gb/s}]}\n",
        },
    )
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=says):
        load_topology([source.format(d=folder) for source in sources])


# Texts in which several hosts speak


@pytest.mark.parametrize("way", ["pdsh", "dshbak", "ansible"])
def test_hosts_of_one_text(way: str, tmp_path: Path) -> None:
    whole, less = tool_texts.ibstat(FOUR), tool_texts.ibstat({"mlx5_0": 400, "mlx5_2": 100})
    rule = "-" * 16
    text = {
        "pdsh": before("n1: ")(whole) + before("n2: ")(whole) + before("n3: ")(less),
        "dshbak": f"{rule}\nn1,n2\n{rule}\n{whole}{rule}\nn3\n{rule}\n{less}",
        "ansible": f"n1 | CHANGED | rc=0 >>\n{whole}n2 | CHANGED | rc=0 >>\n{whole}n3 | SUCCESS | rc=0 >>\n{less}",
    }[way]
    (tmp_path / "all.txt").write_text(text)
    found = load_topology(str(tmp_path / "all.txt"))
    assert names(found) == ["n1", "n2", "n3"]
    assert nics(found)[2] == {"mlx5_0": 400, "mlx5_2": 100}
    assert rails(found)[2] == {"mlx5_0": 0, "mlx5_2": 2}


def test_hosts_of_one_text_are_added_to_by_another(tmp_path: Path) -> None:
    (tmp_path / "nics.txt").write_text(
        "".join(before(f"n{i}: ")(tool_texts.ibstat(dict.fromkeys(FULL, 200))) for i in (1, 2))
    )
    (tmp_path / "gpus.txt").write_text("".join(before(f"n{i}: ")(tool_texts.rocm_smi(8)) for i in (1, 2)))
    found = load_topology([str(tmp_path / "nics.txt"), str(tmp_path / "gpus.txt")])
    assert [(s.name, s.gpus, len(s.nics)) for s in found.cluster.servers] == [("n1", 8, 4), ("n2", 8, 4)]


# Tools that tell a part of a host


def test_ibstat(tmp_path: Path) -> None:
    path = tmp_path / "ibstat.txt"
    path.write_text(tool_texts.ibstat({**FOUR, "mlx5_4": 25}, ["mlx5_1"], models={"mlx5_4": "MT4117"}))
    found = load_topology(str(path))
    assert nics(found) == [{"mlx5_0": 400, "mlx5_2": 400, "mlx5_3": 400}]
    assert said(found, "mlx5_1: skipped, its link is down", "--fail server0/mlx5_1")
    assert said(found, "mlx5_4: skipped as a management port")
    assert said(found, "no GPU is told of")
    with_it = load_topology(str(path), nics="mlx5_[0-3]")
    assert list(nics(with_it)[0]) == [*FULL]


def test_two_ports_of_a_card(tmp_path: Path) -> None:
    one = tool_texts.ibstat({"mlx5_0": 200})
    two = one[one.index("\tPort 1") :].replace("Port 1", "Port 2").replace("Rate: 200", "Rate: 100")
    (tmp_path / "t").write_text(one + two)
    assert nics(load_topology(str(tmp_path / "t"))) == [{"mlx5_0": 200, "mlx5_0:2": 100}]


@pytest.mark.parametrize(
    "text", [tool_texts.ibdev2netdev(FULL, ["mlx5_2"]), tool_texts.rdma_link_json(FULL, ["mlx5_2"])]
)
def test_lists_of_links_have_no_rates(text: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    found = load_topology(str(tmp_path / "t"), nic_rate="200Gb/s,mlx5_3=100Gb/s")
    assert nics(found) == [{"mlx5_0": 200, "mlx5_1": 200, "mlx5_3": 100}]


@pytest.mark.parametrize("text", [tool_texts.rocm_smi(8), tool_texts.amd_smi(8)])
def test_amd_gpus_beside_nics(text: str, tmp_path: Path) -> None:
    written(tmp_path, {"gpus.txt": text, "nics.txt": tool_texts.ibstat(FOUR)})
    found = load_topology([f"n={tmp_path}/gpus.txt", f"n={tmp_path}/nics.txt"])
    (server,) = found.cluster.servers
    assert (server.name, server.gpus, len(server.nics)) == ("n", 8, 4)
    assert any("8 GPUs, joined by xGMI" in line for line in found.read)


def test_nvidia_smi_with_the_rates_of_ibstat(tmp_path: Path) -> None:
    eight = {f"mlx5_{i}": 400 if i else 200 for i in range(8)}
    written(tmp_path, {"topo.txt": SMI, "ibstat.txt": tool_texts.ibstat(eight, down=["mlx5_5"])})
    sources = [f"n={tmp_path}/topo.txt", f"n={tmp_path}/ibstat.txt"]
    found = load_topology(sources)
    del eight["mlx5_5"]
    assert nics(found) == [eight]
    assert rails(found)[0]["mlx5_6"] == 6
    assert said(found, "mlx5_5: skipped, its link is down", "--fail n/mlx5_5")
    assert nics(load_topology(sources, nic_rate="mlx5_1=100Gb/s", nics="mlx5_[15]")) == [{"mlx5_1": 100, "mlx5_5": 400}]


def test_nccl_log(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(tool_texts.nccl_log(["n1", "n2"], FULL, gpus=4))
    found = load_topology(str(path))
    assert (names(found), nics(found)) == (["n1", "n2"], [FOUR] * 2)
    assert [nic.gpu for nic in found.cluster.servers[1].nics] == [0, 1, 2, 3]
    assert found.read[-1] == "rails: by the GPU beside the NIC"


def test_logs_of_a_jobs_processes_add_to_each_other(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        for g in range(4):
            text = tool_texts.nccl_log(["n1", "n2"], FULL, gpus=4, of=f"{host}:{100 + g}:")
            (tmp_path / f"nccl.{host}.{g}.log").write_text(text)
    found = load_topology(str(tmp_path))
    assert [(s.name, s.gpus, [nic.gpu for nic in s.nics]) for s in found.cluster.servers] == [
        (host, 4, [0, 1, 2, 3]) for host in ("n1", "n2")
    ]


def test_a_log_may_be_long_and_nothing_else(tmp_path: Path) -> None:
    log, rest = (
        tool_texts.nccl_log(["n1", "n2"], FULL, gpus=4),
        "n1:100:200 [0] NCCL INFO more of the same\n" * 60_000,
    )
    (tmp_path / "job.log").write_text(log + rest)
    assert names(load_topology(str(tmp_path / "job.log"))) == ["n1", "n2"]
    with pytest.raises(InputError, match="too large for a topology"):
        load_topology(str(tmp_path / "job.log"), documents_only=True)
    (tmp_path / "t.yaml").write_text("# more of the same\n" * 150_000)
    with pytest.raises(InputError, match="too large for a topology"):
        load_topology(str(tmp_path / "t.yaml"))


# Ports of a NIC: fused ones, and bonds


def test_a_fused_nic_counts_once_and_a_host_that_has_one_of_its_ports_is_told(tmp_path: Path) -> None:
    fused = tool_texts.nccl_log(["n1", "n2"], ["mlx5_0", "mlx5_1"], 200_000, gpus=1, fused="mlx5_0+mlx5_1")
    alone = tool_texts.nccl_log(["n3"], ["mlx5_1"], 200_000, gpus=1)
    written(tmp_path / "d", {"ab.log": fused, "c.log": alone})
    found = load_topology(str(tmp_path / "d"))
    assert nics(found) == [{"mlx5_0+mlx5_1": 400}, {"mlx5_0+mlx5_1": 400}, {"mlx5_1": 200}]
    assert said(found, "n3: mlx5_1 alone, where most servers have mlx5_0+mlx5_1")
    assert [list(server.values()) for server in rails(found)] == [[0], [0], [0]]


def test_a_bond_is_as_fast_as_its_ports_with_a_link(tmp_path: Path) -> None:
    whole = load_topology(str(bonded(tmp_path / "a", {"e0": "200000", "e1": "200000"})))
    assert nics(whole) == [{"mlx5_bond_0": 400}]
    assert said(whole, "mlx5_bond_0: a bond of 2 ports, 400Gb/s together")
    half = load_topology(str(bonded(tmp_path / "b", {"e0": "200000", "e1": "-1"})))
    assert nics(half) == [{"mlx5_bond_0": 200}]
    assert said(half, "degraded, a bond with e1 of its 2 ports without a link: 200Gb/s of 400Gb/s", "mlx5_bond_0=0.5")
    backup = load_topology(str(bonded(tmp_path / "c", {"e0": "200000", "e1": "200000"}, "active-backup 1")))
    assert nics(backup) == [{"mlx5_bond_0": 200}]


def test_a_bond_of_which_its_ports_are_not_told_is_doubted(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(tool_texts.ibstat({"mlx5_bond_0": 200, "mlx5_bond_1": 200}))
    found = load_topology(str(tmp_path / "t"))
    assert said(found, "mlx5_bond_0 and 1 more: a bond by its name") or said(found, "mlx5_bond_0: a bond by its name")
    assert not said(load_topology(str(tmp_path / "t"), nic_rate="mlx5_bond_*=400Gb/s"), "a bond by its name")


# Broken texts

SAMPLES = {
    "ibstat": tool_texts.ibstat(FOUR, down=["mlx5_3"]),
    "ibdev2netdev": tool_texts.ibdev2netdev(FULL),
    "rdma-link": tool_texts.rdma_link_json(FULL),
    "rocm-smi": tool_texts.rocm_smi(2),
    "amd-smi": tool_texts.amd_smi(2),
    "nccl-log": tool_texts.nccl_log(["n1", "n2"], FULL[:2], gpus=2, fused="mlx5_0+mlx5_1"),
    "smi": SMI,
    "pdsh": before("n1: ")(tool_texts.ibstat({"mlx5_0": 400})) + before("n2: ")(tool_texts.ibstat({"mlx5_0": 400})),
    "dshbak": "\n".join(["-" * 16, "n1,n2", "-" * 16, tool_texts.ibstat({"mlx5_0": 400})]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_broken_texts_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Beside a whole one, as a part of its server or as another."""
    path, other = tmp_path / "x.txt", tmp_path / "y.txt"
    other.write_text(tool_texts.ibstat(dict.fromkeys(FULL[:2], 400)))
    for seed in range(cases(300)):
        rng = random.Random(seed)
        path.write_text(mutated(SAMPLES[name], rng))
        sources = rng.choice([[str(path)], [f"n={path}", f"n={other}"], [f"m={path}", str(other)]])
        survives(lambda: load_topology(sources, nic_rate="400Gb/s"))  # noqa: B023


def test_every_sample_is_read_whole(tmp_path: Path) -> None:
    other = tmp_path / "y.txt"
    other.write_text(tool_texts.ibdev2netdev(FULL[:2]))
    for name, text in SAMPLES.items():
        (tmp_path / name).write_text(text)
        gpus = name in ("rocm-smi", "amd-smi")
        found = load_topology([f"n={tmp_path / name}", *([f"n={other}"] if gpus else [])], nic_rate="*=400Gb/s")
        assert all(nic.out_rate == Fraction(400 * GBPS) for s in found.cluster.servers for nic in s.nics), name
