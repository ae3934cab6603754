"""Lists of hosts as Slurm writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from optcc.cli import main
from optcc.discover import load_topology
from optcc.discover.given import expand_hosts
from optcc.errors import InputError


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
