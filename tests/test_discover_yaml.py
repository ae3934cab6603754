"""YAML, written and read: what was written is read back, and calibrations are checked."""

from __future__ import annotations

import re
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.discover import Measured, load_topology
from optcc.discover.given import Given
from optcc.discover.yaml_file import read_yaml, write_yaml
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server
from tests.test_discover import GBPS
from tests.test_discover_random import Edit, edits
from tests.topology_texts import survives

CALIBRATED = """optcc: 1
measured: {date: 2026-11-20, transport: verbs, alpha: 3.1us, per_chunk: 0us, spread: 0.6%}
servers:
- {count: 2, nics: [{name: a, rate: 388Gb/s, nameplate: 400Gb/s, spread: 1%}, {name: b, rate: 1Gb/s, nameplate: 2Gb/s}]}
"""


@given(st.lists(edits(), min_size=1, max_size=4))
def test_a_broken_calibration_loads_or_is_refused(changes: list[Edit]) -> None:
    data = CALIBRATED.encode()
    for change in changes:
        data = change(data)
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(data)
        file.flush()
        survives(lambda: load_topology(file.name, nic_rate="1Gb/s"))


def test_a_calibration_that_is_wrong_names_the_field() -> None:
    for right, wrong, where in (
        ("2026-11-20", "today", "$.measured.date"),
        ("verbs", "pigeons", "$.measured.transport"),
        ("transport: verbs", "transport: verbs, path: fast", "$.measured.path"),
        ("3.1us", "3.1", "$.measured.alpha"),
        ("0.6%", "0.6", "$.measured.spread"),
        ("nameplate: 400Gb/s", "nameplate: much", "$.servers[0].nics[0].nameplate"),
        ("1%", "-1%", "$.servers[0].nics[0].spread"),
    ):
        with pytest.raises(InputError, match=re.escape(where)):
            read_yaml(CALIBRATED.replace(right, wrong, 1).encode(), "t.yaml", Given())


SERVERS = [
    Server("a b".replace(" ", "-"), (Nic("yes", 400 * GBPS, 300 * GBPS, 3), Nic("12:30", GBPS / 1000, GBPS)), 2, 10**9),
    Server("{x}", (Nic("'q'", 0 * GBPS, GBPS, gpu=0),), 1, pod="n:[1]"),
]


def test_what_is_written_is_read_back() -> None:
    measured = Measured(
        "2026-11-20", "local", GBPS / GBPS / 10**6, None, GBPS / GBPS / 100, {"{x}/'q'": 2 * GBPS}, "compiled"
    )
    cluster = Cluster(tuple(SERVERS))
    text = write_yaml(cluster, comments=["one\ntwo"], measured=measured, spreads={"{x}/'q'": 0.0123})
    found = read_yaml(text.encode(), "t.yaml", Given())
    # a rail that is not given is the position in the file
    assert [s.name for s in found.cluster.servers] == ["a-b", "{x}"]
    assert [[(n.name, n.out_rate, n.in_rate, n.gpu) for n in s.nics] for s in found.cluster.servers] == [
        [(n.name, n.out_rate, n.in_rate, n.gpu) for n in s.nics] for s in SERVERS
    ]
    assert [(s.gpus, s.nvlink_rate, s.pod) for s in found.cluster.servers] == [
        (s.gpus, s.nvlink_rate, s.pod) for s in SERVERS
    ]
    assert found.measured == measured
