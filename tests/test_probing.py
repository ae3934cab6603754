"""Probes between operations: which pairs, what is concluded from what came through."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from optcc.runtime.messages import Note
from optcc.runtime.probing import Evidence, evidence_of, left_of, rounds_of
from optcc.schedule import Port


def ports(*counts: int, rate: float = 1e8, rails: bool = False) -> list[Port]:
    """A rank per count, with so many NICs."""
    return [
        Port(f"server{rank}/nic{nic}", rank, rate, rate, rail=nic if rails else None)
        for rank, count in enumerate(counts)
        for nic in range(count)
    ]


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (4, 4, 4), (8, 7, 8, 8), (3, 1, 2), (2, 5)])
def test_every_nic_is_probed_both_ways_and_never_twice_at_once(counts: tuple[int, ...]) -> None:
    every = ports(*counts)
    sending: set[str] = set()
    receiving: set[str] = set()
    for probes in rounds_of(every):
        outs, intos = [o.name for o, _ in probes.pairs], [i.name for _, i in probes.pairs]
        assert len(set(outs)) == len(outs)
        assert len(set(intos)) == len(intos)
        assert all(o.rank != i.rank for o, i in probes.pairs)
        sending.update(outs)
        receiving.update(intos)
    assert sending == receiving == {port.name for port in every}


def test_two_peers_for_every_nic_where_there_are_three_servers() -> None:
    peers: dict[str, set[int]] = {}
    for probes in rounds_of(ports(2, 2, 2)):
        for out, into in probes.pairs:
            peers.setdefault(out.name, set()).add(into.rank)
    assert all(len(ranks) == 2 for ranks in peers.values())


def test_rails_are_kept_and_what_cannot_send_is_left_out() -> None:
    every = [
        *ports(2, 2, 2, rails=True),
        Port("server0/dead", 0, 0.0, 0.0),
        Port("server0/gpu", 0, 1e9, 1e9, nvlink=True),
    ]
    for probes in rounds_of(every):
        assert all(out.rail == into.rail for out, into in probes.pairs)
        assert not {"server0/dead", "server0/gpu"} & {port.name for pair in probes.pairs for port in pair}


@pytest.mark.parametrize("dead", [("server0/nic3", "server1/nic5"), ("server0/nic3", "server2/nic5", "server3/nic5")])
def test_on_rails_each_nic_that_has_a_peer_is_probed_both_ways(dead: tuple[str, ...]) -> None:
    every = [port for port in ports(*[6] * (len(dead) + 1), rails=True) if port.name not in dead]
    pairs = [pair for probes in rounds_of(every) for pair in probes.pairs]
    peers = {port.name for port in every for other in every if port.rail == other.rail and port.rank != other.rank}
    assert {out.name for out, _ in pairs} == {into.name for _, into in pairs} == peers


def test_one_server_has_nobody_to_probe() -> None:
    assert rounds_of(ports(4)) == []


def test_probes_write_where_nothing_else_is() -> None:
    for probes in rounds_of(ports(3, 2, 3)):
        schedule = probes.schedule
        for rank in range(3):
            mine = np.flatnonzero(schedule.dst == rank)
            edges = sorted((int(schedule.offset[i]), int(schedule.offset[i] + schedule.length[i])) for i in mine)
            assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(edges))
            assert not edges or edges[-1][1] <= schedule.nbytes


def test_a_rate_is_bytes_over_the_time_between_two_landings() -> None:
    (probes, _) = rounds_of(ports(1, 1, 1, rate=1e8))
    landed = {row: 5.0 + (0.04 if row % 2 else 0.0) for row in range(6)}  # twice as long as at the full rate
    seen = evidence_of(probes, landed, [])
    assert [e.rate for e in seen] == [pytest.approx(5e7, rel=1e-3)] * 3


def test_over_a_lost_wire_nothing_came_through() -> None:
    (probes, _) = rounds_of(ports(1, 1, 1))
    landed = dict.fromkeys(range(6), 0.0) | {1: 1.0, 3: 1.0, 5: 1.0}
    lost = Note(0.0, "lost", "server1/nic0", "server0/nic0", "no progress")
    seen = {(e.out, e.into): e.rate for e in evidence_of(probes, landed, [lost])}
    assert seen["server0/nic0", "server1/nic0"] is None
    assert seen["server1/nic0", "server2/nic0"] is not None
    down = Note(0.0, "nic down", "server1/nic0", cause="port event")
    seen = {(e.out, e.into): e.rate for e in evidence_of(probes, landed, [down])}
    assert [pair for pair, rate in seen.items() if rate is not None] == [("server2/nic0", "server0/nic0")]


def test_the_slower_end_of_a_pair_is_told_by_the_third_server() -> None:
    every = ports(1, 1, 1, rate=100.0)
    a, b, c = (port.name for port in every)
    slow_b = [Evidence(a, b, 30.0), Evidence(b, c, 31.0), Evidence(c, a, 99.0), Evidence(a, c, 98.0)]
    assert left_of(every, slow_b) == {b: Fraction(31, 100)}
    dead_c = [Evidence(a, b, 99.0), Evidence(b, c, None), Evidence(c, a, None), Evidence(b, a, 97.0)]
    assert left_of(every, dead_c) == {c: Fraction(0)}
    assert left_of(every, [Evidence(a, b, 93.0)]) == {}, "noise"
    assert left_of(every, []) == {}, "not probed, no verdict"
