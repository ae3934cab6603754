"""Busy, forced idle and idle time of ports and links, and the timelines that show them."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.schedule import Lane, Port, Route, Schedule
from optcc.simulation import timeline
from optcc.simulation.faults import Fault
from optcc.simulation.simulator import Simulation, forced_idle, services, simulate, usage, usage_json
from optcc.simulation.timeline import MAX_LINKS, chrome_trace, draw_timeline, write_timeline
from optcc.values.cluster import Cluster, Fabric
from tests.effort import examples
from tests.fabrics import fabrics, ring


def relay(slow: float = 1000) -> Schedule:
    """Rank 0 sends 1000 bytes to rank 1, which then sends them to rank 2."""
    return Schedule(
        ranks=3,
        nbytes=1000,
        ports=tuple(Port(f"port{r}", r, slow if r == 0 else 1000.0, 1000.0) for r in range(3)),
        routes=tuple(Route(r, r + 1, (Lane(r, r + 1, Fraction(1)),)) for r in range(2)),
        route=np.array([0, 1], np.int32),
        offset=np.zeros(2, np.int64),
        length=np.full(2, 1000, np.int64),
        reduce=np.array([True, True]),
        stage=np.ones(2, np.uint8),
        segment=np.zeros(2, np.int32),
        dep_ptr=np.array([0, 0, 1], np.int64),
        dep_idx=np.array([0], np.int64),
    )


def by_port(simulation: Simulation) -> dict[tuple[str, str], tuple[float, float, float]]:
    return {(u.name, u.way): (u.busy_s, u.forced_idle_s, u.idle_s) for u in usage(simulation)}


def test_dependencies_force_a_sender_and_nothing_forces_a_receiver() -> None:
    found = by_port(optcc.simulate(relay()))
    assert found["port0", "out"] == pytest.approx((1, 0, 1))
    assert found["port1", "out"] == pytest.approx((1, 1, 0))  # it has something to send, and it is not there yet
    assert found["port1", "in"] == pytest.approx((1, 0, 1))
    assert found["port2", "in"] == pytest.approx((1, 0, 1))  # nothing is on its way to it at first
    assert found["port2", "out"] == pytest.approx((0, 0, 2))


def test_a_receiver_waits_for_what_is_on_its_way() -> None:
    found = by_port(optcc.simulate(relay(), alpha=3))  # 0..1, 3..4, 4..5, 7..8
    assert found["port1", "in"] == pytest.approx((1, 3, 4))
    assert found["port2", "in"] == pytest.approx((1, 3, 4))
    assert found["port1", "out"] == pytest.approx((1, 4, 3))
    found = by_port(optcc.simulate(relay(slow=100)))  # the sender takes 10 s
    assert found["port1", "in"] == pytest.approx((1, 9, 1))
    assert found["port1", "out"] == pytest.approx((1, 10, 0))


def test_a_receiver_waits_for_the_first_of_all_that_is_on_its_way() -> None:
    """Rank 3 sends to rank 2 for 10 s from the start; rank 1 for 1 s, when 5 s have passed."""
    two = relay(slow=200)
    schedule = two.replace(
        ranks=4,
        ports=(*two.ports, Port("port3", 3, 100.0, 1000.0)),
        routes=(*two.routes, Route(3, 2, (Lane(3, 2, Fraction(1)),))),
        route=np.array([0, 1, 2], np.int32),
        dep_ptr=np.array([0, 0, 1, 1], np.int64),
        **{name: getattr(two, name)[[0, 1, 1]] for name in ("offset", "length", "reduce", "stage", "segment")},
    )
    simulation = optcc.simulate(schedule)
    assert by_port(simulation)["port2", "in"] == pytest.approx((2, 8, 0))
    stretches = {resource: (begin.tolist(), end.tolist()) for resource, begin, end in forced_idle(simulation)}
    assert stretches[4 + 2] == ([0, 6], [5, 9])


def check_forced(simulation: Simulation) -> None:
    """In every stretch that a sender is forced idle it has something left to send, and none of it is ready."""
    s, stripes = simulation.schedule, simulation.stripes
    waits = np.repeat(np.arange(len(s)), np.diff(s.dep_ptr))
    ready = np.zeros(len(s))
    np.maximum.at(ready, waits, simulation.finish[s.dep_idx])
    for resource, begin, end in forced_idle(simulation):
        mine = stripes.out == resource
        for a, b in zip(begin, end, strict=True):
            left = mine & (simulation.stripe_start > a)
            if resource < len(s.ports):
                assert left.any(), "nothing left to send"
                assert (ready[stripes.row[left]] >= b).all(), "something was ready"


@examples(60)
@given(cluster=fabrics(), nbytes=st.integers(1, 10**6), alpha=st.sampled_from([0, Fraction(1, 10)]))
def test_the_three_sum_to_the_run_and_idle_is_forced(cluster: Cluster, nbytes: int, alpha: Fraction) -> None:
    try:
        schedule = ring(cluster, nbytes)
    except InputError:  # a ring cannot run here
        return
    simulation = optcc.simulate(schedule, alpha=alpha)
    check_forced(simulation)
    rows = usage(simulation)
    assert len(rows) == 2 * len(schedule.ports) + len(schedule.links)
    for row in rows:
        assert min(row.busy_s, row.forced_idle_s, row.idle_s) >= 0
        assert row.busy_s + row.forced_idle_s + row.idle_s == pytest.approx(simulation.time_s, rel=1e-9)
    moved = {port.name: 0.0 for port in schedule.ports}
    for p, nbytes in zip(simulation.stripes.out, simulation.stripes.length, strict=True):
        moved[schedule.ports[p].name] += nbytes / schedule.ports[p].out_rate
    assert {row.name: row.busy_s for row in rows if row.way == "out"} == pytest.approx(moved, rel=1e-6, abs=1e-9)


def test_the_check_of_forced_idle_can_fail() -> None:
    simulation = optcc.simulate(ring(Cluster.uniform(servers=3, rate=1000), 3000))
    check_forced(simulation)
    simulation.stripe_start[simulation.stripes.out == 0] += 1  # a lazy sender
    with pytest.raises(AssertionError, match="something was ready"):
        check_forced(simulation)


def with_everything() -> Simulation:
    """Links, forced idle time, and a death."""
    made = Cluster.uniform(servers=4, nics=2, rate=1000).servers
    racks = tuple(replace(s, pod=str(i // 2)) for i, s in enumerate(made))
    schedule = ring(Cluster(racks, fabric=Fabric(pod_oversubscription=Fraction(3))), 8000)
    faults = [Fault("server1/nic0", 2, detect_s=1)]
    return optcc.simulate(schedule, alpha=Fraction(1, 100), faults=faults, receivers="stripes")


def test_chrome_trace_names_everything() -> None:
    simulation = with_everything()
    events = json.loads(json.dumps(chrome_trace(simulation)))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in spans} <= set(names)
    assert {"forced idle", "lost", "reduce_scatter", "allgather"} == {e["name"] for e in spans}
    assert names[4, 0] == "uplink of pod 0, out"
    time: dict[tuple[str, bool], float] = {}
    for e in spans:
        track = names[e["pid"], e["tid"]], e["name"] == "forced idle"
        time[track] = time.get(track, 0) + e["dur"] / 1e6
    for row in usage(simulation):
        track = row.name if row.way == "link" else f"{row.name} {row.way}"
        assert time.get((track, False), 0) == pytest.approx(row.busy_s, abs=1e-9), track
        assert time.get((track, True), 0) == pytest.approx(row.forced_idle_s, abs=1e-9), track


def test_svg_shows_forced_idle_losses_and_few_links(tmp_path: Path) -> None:
    out = tmp_path / "all.svg"
    write_timeline(with_everything(), out, title="all", bound_s=1)
    drawn = out.read_text()
    for words in ("forced idle", "lost", "uplink of pod 0, out", "server1/nic0 out"):
        assert words in drawn
    write_timeline(optcc.simulate(relay()), out, title="relay", bound_s=1)
    assert "lost" not in out.read_text()


def test_many_links_are_left_out_of_the_picture() -> None:
    made = Cluster.uniform(servers=5, rate=1000).servers
    pods = tuple(replace(s, pod=s.name) for s in made)
    simulation = optcc.simulate(ring(Cluster(pods, fabric=Fabric(pod_oversubscription=Fraction(2))), 8000))
    assert len(set(simulation.crossings.resource)) == 10 > MAX_LINKS
    labels = [t.get_text() for t in draw_timeline(simulation, title="", bound_s=1).axes[0].get_yticklabels()]
    assert len(labels) == 10
    assert not any("uplink" in label for label in labels)


def test_usage_as_json() -> None:
    rows = json.loads(json.dumps(usage_json(optcc.simulate(relay()))))
    assert rows[2] == {"name": "port1", "way": "out", "busy_s": 1.0, "forced_idle_s": 1.0, "idle_s": 0.0}


def test_services_are_all_there() -> None:
    simulation = with_everything()
    every = services(simulation)
    count = 2 * len(simulation.stripes.row) + len(simulation.crossings.stripe) + len(simulation.lost.stripe)
    assert len(every.stripe) == len(every.resource) == len(every.begin) == len(every.end) == count
    assert len(simulation.lost.stripe)


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
