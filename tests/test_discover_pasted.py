"""Texts as they are pasted and logged; names of NICs as NCCL_IB_HCA has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.discover import apply_failures, load_topology
from optcc.discover.pasted import unwrapped
from optcc.errors import InputError
from optcc.values.cluster import Cluster
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
