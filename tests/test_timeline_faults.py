"""Pictures of simulated faults: the port that is hit is drawn, marked at its moment; who is left out is said."""

from __future__ import annotations

from typing import Any

import pytest

import optcc
from optcc.simulation import timeline
from optcc.simulation.faults import Fault
from optcc.simulation.simulator import simulate
from optcc.simulation.timeline import draw_timeline


def drawn(servers: int, nics: int, *faults: Fault) -> tuple[list[str], list[str], str]:
    """Labels of tracks, marks in the picture, the title."""
    cluster = optcc.load_topology(f"uniform:servers={servers},nics={nics},rate=400Gb/s").cluster
    plan = optcc.plan(cluster, 2**20, segments=2)
    figure: Any = draw_timeline(simulate(plan.schedule(), faults=faults), title="it", bound_s=1e-5, faults=faults)
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    return labels, [text.get_text() for text in axes.texts], axes.get_title(loc="left")


def test_the_nic_that_dies_is_drawn_and_marked() -> None:
    labels, marks, _ = drawn(4, 8, Fault("server1/nic3", 1e-7), Fault("server2/nic5", 2e-7, 0.5))
    assert any(label.startswith("server1/nic3") for label in labels)
    assert any(label.startswith("server2/nic5") for label in labels)
    assert {"dies", "slows to 50%"} <= set(marks)


def test_without_a_fault_nothing_is_marked() -> None:
    assert drawn(4, 8)[1] == ["bound 10 us"]


def test_a_fault_after_the_end_is_not_marked() -> None:
    assert "dies" not in drawn(4, 8, Fault("server1/nic3", 9.0))[1]


def test_every_server_is_drawn() -> None:
    labels, _, title = drawn(20, 2)
    assert len([label for label in labels if label.startswith("server")]) == 20
    assert title == "it"


def test_servers_that_are_left_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_RANKS", 5)
    labels, _, title = drawn(20, 2, Fault("server17/nic1", 1e-7))
    assert any(label.startswith("server17/nic1") for label in labels)
    assert title == "it; 5 of 20 ranks drawn: the first, and those with a fault"
