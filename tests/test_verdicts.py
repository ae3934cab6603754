"""What probes convict: a NIC, a path, or both ends of what nothing tells apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import pytest

from optcc.runtime.evidence.probing import FaultVerdict, ProbeResult, left_of, rounds_of, second_look, verdicts_of
from optcc.schedule import Port
from tests.test_probing import ports


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
