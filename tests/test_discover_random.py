"""Topology files that are broken at random, and sources that are no text: read, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.discover import Topology, load_topology
from optcc.discover.given import Given
from optcc.discover.yaml_file import read_yaml
from optcc.errors import InputError
from optcc.plans.files import load_plan, save_plan
from tests.one_source import read_nccl_xml

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
XML = EXAMPLES / "h100-8x400g.nccl-topo.xml"
YAML = EXAMPLES / "two-degraded.yaml"
GBPS = Fraction(125_000_000)


Edit = Callable[[bytes], bytes]


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    """One change: cut, delete, repeat, overwrite or insert, at a random place."""
    at, length = draw(st.floats(0, 1)), draw(st.integers(0, 60))
    kind = draw(st.sampled_from(["cut", "delete", "repeat", "overwrite", "insert"]))
    tokens = [
        b'"',
        b"<",
        b"</",
        b"/>",
        b">",
        b"&a;",
        b"<!DOCTYPE",
        b"-1",
        b"99999999999",
        b"nan",
        b"{",
        b"[",
        b": ",
        b"&a ",
        b"*a",
        b"\n",
        b"\t",
    ]
    new = draw(st.sampled_from(tokens) | st.binary(max_size=8))

    def edit(data: bytes) -> bytes:
        i = int(at * len(data))
        return {
            "cut": data[:i],
            "delete": data[:i] + data[i + length :],
            "repeat": data[: i + length] + data[i:],
            "overwrite": data[:i] + new + data[i + len(new) :],
            "insert": data[:i] + new + data[i:],
        }[kind]

    return edit


def loads_or_is_refused(reader: Callable[[bytes, str, Given], Topology], data: bytes) -> None:
    try:
        found = reader(data, "t", Given(400 * GBPS))
    except InputError as error:
        refusal = str(error)
    else:
        assert found.cluster.servers
        return
    assert refusal.startswith("t")
    assert len(refusal) < 2000


@given(st.lists(edits(), min_size=1, max_size=4))
def test_broken_xml_loads_or_is_refused(changes: list[Edit]) -> None:
    data = XML.read_bytes()
    for change in changes:
        data = change(data)
    loads_or_is_refused(read_nccl_xml, data)


@given(st.lists(edits(), min_size=1, max_size=4))
def test_broken_yaml_loads_or_is_refused(changes: list[Edit]) -> None:
    data = YAML.read_bytes()
    for change in changes:
        data = change(data)
    loads_or_is_refused(read_yaml, data)


@given(
    st.sampled_from([read_nccl_xml, read_yaml]),
    st.binary(),
    st.sampled_from([b"", b"<system>", b"optcc: 1\nservers: "]),
)
def test_any_bytes_load_or_are_refused(
    reader: Callable[[bytes, str, Given], Topology], data: bytes, start: bytes
) -> None:
    loads_or_is_refused(reader, start + data)


WORDS = [
    "name",
    "count",
    "gpus",
    "nvlink",
    "nics",
    "rate",
    "out",
    "in",
    "rail",
    "1",
    "-1",
    "400Gb/s",
    "",
    "null",
    "1e999",
]
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_any_yaml_tree_loads_or_is_refused(tree: object) -> None:
    servers = [{"nics": [tree]}, tree]
    for content in (tree, {"optcc": 1, "servers": tree}, {"optcc": 1, "servers": servers}):
        loads_or_is_refused(read_yaml, yaml.safe_dump(content).encode())


def test_paths_and_strings_are_one(tmp_path: Path) -> None:
    assert load_topology(XML, servers=4).cluster == load_topology(str(XML), servers=4).cluster
    plan, place = optcc.plan(load_topology(XML, servers=4).cluster, 2**20), tmp_path / "plan.json"
    save_plan(plan, place)
    assert load_plan(str(place)) == load_plan(place) == plan


@pytest.mark.parametrize(
    ("source", "options", "where"),
    [
        (5, {}, "source"),
        (b"topology.xml", {}, "source"),
        (None, {}, "source"),
        ("uniform:servers=2,nics=1,rate=1Gb/s", {"nic_rate": 5}, "nic_rate"),
        ("uniform:servers=2,nics=1,rate=1Gb/s", {"nics": ["mlx5_0"]}, "nics"),
        ("uniform:servers=2,nics=1,rate=1Gb/s", {"hosts": 5}, "hosts"),
    ],
)
def test_what_is_not_text_is_refused(source: Any, options: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refused:
        load_topology(source, **options)
    assert refused.value.where == where
