"""Topologies in XML that are broken at random, and any options: a cluster or an error that can be read."""

from __future__ import annotations

import re

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from optcc.discover import load_topology
from tests.one_source import read_nccl_xml
from tests.test_discover_dialects import BARE, amd_gpu, net, switch
from tests.test_discover_random import Edit, edits
from tests.topology_texts import RATE, survives

AMD = amd_gpu(0, "gfx942", 2) + amd_gpu(1, "gfx90a", 2)
PLANE = 'gdr="1" rail="3" plane="1"'
VM = f'<system version="2"><cpu numaid="3">{AMD}{net("cxi0", 0)}</cpu></system>'
XMLS = [
    VM,
    f"<system>{BARE}</system>",
    f'<system><cpu host_hash="0x1">{switch(0, "a")}</cpu><cpu>{net("b", 1)}</cpu></system>',
    "<system>"
    + "".join(
        f'<cpu host_hash="0x{h}">{switch(0, "a")}{net("b", 1, rest=PLANE)}{net("c", 2)}</cpu>' for h in ("1", "2")
    )
    + "</system>",
]
NASTY = [
    "",
    "-1",
    "0",
    "9" * 12,
    "1e3",
    "0x10",
    "nan",
    "many",
    " 1",
    "\u0661",
    "a/b",
    "a=b",
    "x" * 300,
    "16 GT/s",
    "^",
    "gfx",
]


@st.composite
def attribute_edits(draw: st.DrawFn) -> Edit:
    """One attribute's value is another one, or the attribute is gone; or what `edits` do."""
    at, value = draw(st.floats(0, 1, exclude_max=True)), draw(st.none() | st.sampled_from(NASTY))
    other = draw(st.none() | edits())

    def edit(data: bytes) -> bytes:
        places = list(re.finditer(rb' [a-z_]+="([^"]*)"', data))
        if other is not None or not places:
            return data if other is None else other(data)
        place = places[int(at * len(places))]
        if value is None:
            return data[: place.start()] + data[place.end() :]
        return data[: place.start(1)] + value.encode() + data[place.end(1) :]

    return edit


BROKEN = given(st.sampled_from(XMLS), st.lists(attribute_edits(), min_size=1, max_size=4))


def dialect_survives(text: str, changes: list[Edit]) -> None:
    data = text.encode()
    for change in changes:
        data = change(data)
    survives(lambda: read_nccl_xml(data, "t.xml", RATE))


test_broken_dialects_load_or_are_refused = BROKEN(dialect_survives)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_options_are_taken_or_refused(nic_rate: str, nics: str) -> None:
    survives(lambda: load_topology("uniform:servers=2,nics=2,rate=1Gb/s", nic_rate=nic_rate, nics=nics))


def test_the_fuzz_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader with a fault that only broken files meet: an attribute taken for a number unseen."""
    from optcc.discover import nccl_xml

    def careless(element: object, key: str, path: str) -> int:
        return int(element.get(key))  # type: ignore[attr-defined]

    monkeypatch.setattr(nccl_xml, "number", careless)
    quick = settings(
        max_examples=5000, phases=[Phase.generate], database=None, report_multiple_bugs=False, derandomize=True
    )
    with pytest.raises((TypeError, ValueError)):
        quick(BROKEN(dialect_survives))()
