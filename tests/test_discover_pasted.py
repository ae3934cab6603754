"""Texts as they are pasted and logged; names of NICs as NCCL_IB_HCA has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.discover import apply_failures, load_topology
from optcc.discover.pasted import unwrapped
from optcc.errors import InputError
from optcc.values.cluster import Cluster
from tests import tool_texts
from tests.host_texts import ibdev2netdev, ibstat, rdma_link
from tests.test_discover import EXAMPLES, GBPS
from tests.topology_texts import HOPPER

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
NICS = {f"mlx5_{i}": 400 for i in range(4)}
LISTS = {
    "ibstat": ibstat(NICS, ["mlx5_1"]),
    "ibstatus": tool_texts.ibstatus(NICS, ["mlx5_1"]),
    "ibv_devinfo": tool_texts.devinfo(NICS, ["mlx5_1"]),
    "rdma link": tool_texts.rdma_link([*NICS], ["mlx5_1"]),
    "rdma link -j": rdma_link([*NICS], ["mlx5_1"]) + "\n",
    "rdma link -jp": json.dumps(json.loads(rdma_link([*NICS], ["mlx5_1"])), indent=4) + "\n",
    "ibdev2netdev": ibdev2netdev([*NICS], ["mlx5_1"]),
    "iblinkinfo": tool_texts.fabric(["n1", "n2"], NICS),
    "mlxlink": tool_texts.mlxlink("400G", command="# mlxlink -d mlx5_0"),
    "smi": HOPPER,
}


@pytest.mark.parametrize("wrap", UNLISTED)
@pytest.mark.parametrize("name", LISTS)
def test_prefixes_that_are_not_listed_are_learned(name: str, wrap: str, tmp_path: Path) -> None:
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
