"""Probes between operations: which pairs, what is concluded from what came through."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest

from optcc.runtime.evidence.probing import (
    SUSPECTS,
    FaultVerdict,
    ProbeResult,
    ProbeRound,
    evidence_of,
    left_of,
    rounds_of,
    second_look,
    verdicts_of,
)
from optcc.runtime.messages import Note
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
    said = {(e.out, e.into): e.down for e in evidence_of(probes, landed, [down])}
    assert said["server0/nic0", "server1/nic0"] == ("server1/nic0",)
    assert said["server2/nic0", "server0/nic0"] == ()


def pairs_of(probes: list[ProbeRound]) -> list[list[tuple[str, str]]]:
    return [[(out.name, into.name) for out, into in one.pairs] for one in probes]


def test_between_two_servers_every_nic_meets_two_at_least() -> None:
    """Where the fabric lets it: that tells a NIC from its partner."""
    for every, met in ((ports(2, 2), 2), (ports(4, 4), 3), (ports(2, 2, rails=True), 1), (ports(1, 1), 1)):
        peers: dict[str, set[str]] = {}
        for one in pairs_of(rounds_of(every)):
            for out, into in one:
                peers.setdefault(out, set()).add(into)
                peers.setdefault(into, set()).add(out)
        assert {len(names) for names in peers.values()} == {met}


def came_through(*pairs: tuple[str, str]) -> list[ProbeResult]:
    return [ProbeResult(out, into, 1e8) for out, into in pairs]


def test_what_looks_broken_is_tried_again_from_both_ends() -> None:
    every = ports(1, 1, 1)
    a, b, c = (port.name for port in every)
    seen = [*came_through((b, c), (c, a)), ProbeResult(a, b, None)]
    again = second_look(every, seen, [])
    assert sorted(pair for one in pairs_of(again) for pair in one) == [(a, b), (b, a)]
    assert second_look(every, came_through((a, b), (b, c), (c, a)), []) == []
    dead = [*came_through((b, c)), ProbeResult(a, b, None), ProbeResult(c, a, None)]
    assert second_look(every, dead, [(a, b), (c, a)]) == [], "a NIC over which nothing comes needs no second look"


def test_a_wire_that_a_collective_lost_is_tried_though_the_rounds_do_not() -> None:
    every = ports(2, 2, 2)
    seen = [ProbeResult(o.name, i.name, 1e8) for one in rounds_of(every) for o, i in one.pairs]
    skew = ("server0/nic0", "server1/nic1")
    assert skew not in {(e.out, e.into) for e in seen}
    again = second_look(every, seen, [skew, skew[::-1], skew])
    assert sorted(pair for one in pairs_of(again) for pair in one) == [skew, skew[::-1]]
    both = came_through(skew, skew[::-1])
    assert second_look(every, [*seen, *both], [skew]) == [], "tried both ways already"


def test_second_looks_are_few_and_never_twice_at_once() -> None:
    """A NIC that was gone for a while has lost every wire it has."""
    every = ports(*[4] * 8)
    seen = [ProbeResult(o.name, i.name, 1e8) for one in rounds_of(every) for o, i in one.pairs]
    lost = [("server0/nic0", port.name) for port in every if port.rank > 2]
    again = pairs_of(second_look(every, seen, lost))
    assert 0 < sum(map(len, again)) <= 2 * SUSPECTS
    for one in again:
        for end in zip(*one, strict=True):
            assert len(set(end)) == len(end)


# What probes convict: a NIC, a path, or both ends of what nothing tells apart.


def probed(
    every: Sequence[Port],
    left: Mapping[str, float] | None = None,
    broken: Sequence[tuple[str, str]] = (),
    say: Callable[[str], bool] = lambda name: False,
    lost: Sequence[tuple[str, str]] = (),
) -> list[ProbeResult]:
    """What all probes would show if NICs had `left` of their rates and `broken` paths let nothing through.

    say : whether a dead NIC says so itself; lost : wires that collectives have lost before
    """
    parts = left or {}

    def show(out: Port, into: Port) -> ProbeResult:
        part = min(parts.get(out.name, 1.0), parts.get(into.name, 1.0))
        dead = part == 0 or {out.name, into.name} in [set(ends) for ends in broken]
        down = tuple(name for name in (out.name, into.name) if parts.get(name) == 0 and say(name))
        return ProbeResult(out.name, into.name, None if dead else part * min(out.out_rate, into.in_rate), down)

    found = [show(*pair) for one in rounds_of(every) for pair in one.pairs]
    return found + [show(*pair) for one in second_look(every, found, lost) for pair in one.pairs]


def whats(verdicts: Sequence[FaultVerdict]) -> list[tuple[str, tuple[str, ...]]]:
    return [(verdict.what, verdict.nics) for verdict in verdicts]


NIC = "server1/nic1"


@pytest.mark.parametrize("counts", [(2, 2), (4, 4), (2, 2, 2), (4, 4, 4, 4), (2, 3, 2)])
@pytest.mark.parametrize("part", [0.0, 0.3])
def test_one_bad_nic_is_told_from_all_others(counts: tuple[int, ...], part: float) -> None:
    every = ports(*counts)
    found = probed(every, {NIC: part})
    assert whats(verdicts_of(every, found)) == [("nic", (NIC,))]
    assert left_of(every, found) == {NIC: Fraction(int(part * 100), 100)}


@pytest.mark.parametrize("counts", [(2, 2, 2), (8, 8, 8, 8)])
def test_on_rails_a_third_server_tells(counts: tuple[int, ...]) -> None:
    every = ports(*counts, rails=True)
    assert whats(verdicts_of(every, probed(every, {NIC: 0.0}))) == [("nic", (NIC,))]


def test_with_one_pairing_only_nothing_tells_unless_a_nic_says_so() -> None:
    """Two servers on rails."""
    every = ports(2, 2, rails=True)
    silent = probed(every, {NIC: 0.0})
    (verdict,) = verdicts_of(every, silent)
    assert (verdict.what, verdict.nics) == ("path or either end", ("server0/nic1", NIC))
    assert left_of(every, silent) == {"server0/nic1": 0, NIC: 0}
    told = probed(every, {NIC: 0.0}, say=lambda name: True)
    assert whats(verdicts_of(every, told)) == [("nic", (NIC,))]
    assert left_of(every, told) == {NIC: 0}


def test_one_witness_does_not_tell_a_nic_from_its_path() -> None:
    every = ports(1, 2)
    a, b, c = (port.name for port in every)
    found = [ProbeResult(a, b, None), ProbeResult(b, a, None), ProbeResult(a, c, 99.0e6), ProbeResult(c, a, 99.0e6)]
    (verdict,) = verdicts_of(every, found)
    assert (verdict.what, verdict.nics, verdict.left) == ("nic or path", (b,), {b: 0})
    assert a in verdict.why


def test_the_slower_end_of_a_pair_is_told_by_the_third_server() -> None:
    every = ports(1, 1, 1, rate=100.0)
    a, b, c = (port.name for port in every)
    slow_b = [ProbeResult(a, b, 30.0), ProbeResult(b, c, 31.0), ProbeResult(c, a, 99.0), ProbeResult(a, c, 98.0)]
    assert left_of(every, slow_b) == {b: Fraction(31, 100)}
    dead_c = [ProbeResult(a, b, 99.0), ProbeResult(b, c, None), ProbeResult(c, a, None), ProbeResult(b, a, 97.0)]
    assert left_of(every, dead_c) == {c: Fraction(0)}
    assert left_of(every, [ProbeResult(a, b, 93.0)]) == {}, "noise"
    assert left_of(every, []) == {}, "not probed, no verdict"


def test_two_bad_nics_are_both_found() -> None:
    every = ports(3, 3, 3, 3)
    found = probed(every, {NIC: 0.0, "server2/nic1": 0.25})
    assert left_of(every, found) == {NIC: 0, "server2/nic1": Fraction(1, 4)}


@pytest.mark.parametrize("counts", [(2, 2), (2, 2, 2), (2, 2, 2, 2)])
def test_a_broken_path_is_reported_and_one_end_left_out(counts: tuple[int, ...]) -> None:
    every = ports(*counts)
    ends = ("server0/nic0", "server1/nic0")
    found = probed(every, broken=[ends])
    (verdict,) = verdicts_of(every, found)
    assert (verdict.what, verdict.nics) == ("path", ends)
    assert "nothing comes through either way, tried from both ends" in verdict.why
    assert left_of(every, found) == dict(verdict.left)
    assert list(verdict.left.values()) == [0]
    assert set(verdict.left) < set(ends), "one of the two"


def test_a_path_that_only_collectives_use_is_found_too() -> None:
    every = ports(2, 2, 2)
    skew = ("server0/nic0", "server1/nic1")
    assert verdicts_of(every, probed(every, broken=[skew])) == [], "no round takes it"
    assert whats(verdicts_of(every, probed(every, broken=[skew], lost=[skew]))) == [("path", skew)]
    assert verdicts_of(every, probed(every, lost=[skew])) == [], "it works again"


def test_one_nic_is_left_out_for_all_its_broken_paths() -> None:
    every = ports(*[1] * 5)
    found = probed(every, broken=[("server1/nic0", "server0/nic0"), ("server1/nic0", "server3/nic0")])
    assert [v.what for v in verdicts_of(every, found)] == ["path", "path"]
    assert left_of(every, found) == {"server1/nic0": 0}


def test_the_end_is_left_out_of_which_the_server_has_more() -> None:
    every = ports(2, 4, 2)
    found = probed(every, broken=[("server0/nic0", "server1/nic0")])
    assert left_of(every, found) == {"server1/nic0": 0}
    tired = probed(
        every, {"server1/nic2": 0.0, "server1/nic3": 0.0, "server1/nic1": 0.5}, [("server0/nic0", "server1/nic0")]
    )
    assert left_of(every, tired)["server0/nic0"] == 0


def test_what_came_through_when_it_was_tried_again_is_whole() -> None:
    """A NIC that is back since the first round."""
    every = ports(1, 1, 1)
    a, b, c = (port.name for port in every)
    first = [ProbeResult(a, b, None), ProbeResult(b, c, 1e8), ProbeResult(c, a, 1e8)]
    assert whats(verdicts_of(every, first)) == [("path", (a, b))]
    assert "tried from server0/nic0 only" in verdicts_of(every, first)[0].why
    assert verdicts_of(every, [*first, ProbeResult(a, b, 1e8), ProbeResult(b, a, 1e8)]) == []
    one_way = verdicts_of(every, [*first, ProbeResult(a, b, None), ProbeResult(b, a, 1e8)])
    assert "one way" in one_way[0].why


def test_healthy_nics_get_no_verdict() -> None:
    """The control: in the same worlds without a fault, nothing is convicted."""
    for every in (ports(2, 2), ports(2, 2, rails=True), ports(2, 3, 2), ports(1, 1)):
        assert verdicts_of(every, probed(every)) == []
