"""One clock for ranks of several machines: measured, with its error; without it a fault run's times are nonsense."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from optcc.runtime.control.channel import Clock, by_the_hub, measured
from optcc.runtime.control.launch import Collective
from optcc.runtime.messages import Note, Ran, Strike
from tests.control_star import star, together
from tests.one_fault import failover_of
from tests.rank_processes import heard, started


class Network:
    """A hub whose clock is `ahead` of this one's, and ways to and fro that take what `delays` say."""

    def __init__(self, ahead: float, delays: list[tuple[float, float]]) -> None:
        self.here, self._ahead, self._delays = 5.0, ahead, iter(delays)

    def now(self) -> float:
        return self.here

    def ask(self) -> float:
        there, back = next(self._delays)
        self.here += there
        asked = self.here + self._ahead
        self.here += back
        return asked


@pytest.mark.parametrize("ahead", [-1000.0, -0.01, 0.003, 1e6])
def test_the_error_is_never_more_than_is_said(ahead: float) -> None:
    rate = random.Random(f"{ahead}")
    for _ in range(200):
        delays = [(rate.expovariate(1e4), rate.expovariate(1e3)) for _ in range(8)]
        network = Network(ahead, delays)
        clock = measured(network.ask, network.now)
        assert abs(clock.offset_s + ahead) <= clock.error_s + 1e-9
        assert clock.error_s == pytest.approx(min(map(sum, delays)) / 2, rel=1e-3, abs=1e-9), "the shortest round trip"


def test_one_way_that_takes_all_the_time_is_the_worst_case() -> None:
    """The error that is said is not too large either."""
    network = Network(-10.0, [(2e-3, 0.0)])
    clock = measured(network.ask, network.now, trips=1)
    assert clock.error_s == pytest.approx(1e-3)
    assert abs(clock.offset_s - 10.0) == pytest.approx(clock.error_s)


def test_the_clock_of_the_same_machine_is_left_as_it_is() -> None:
    network = Network(0.0, [(3e-5, 7e-5), (4e-5, 5e-5)])
    assert measured(network.ask, network.now, trips=2) == Clock()


def test_a_rank_measures_its_clock() -> None:
    with star(2) as (_, members):
        planted = time_of(1000.0)
        together(members[0].synchronize, lambda: members[1].synchronize(planted))
        assert members[0].clock == Clock(), "the hub's own"
        clock = members[1].clock
        assert 0 < clock.error_s < 1.0
        assert abs(clock.offset_s - 1000.0) <= clock.error_s
        assert clock.here(clock.hub(7.0)) == pytest.approx(7.0)
        values = together(*(lambda c=c: c.exchange(c.rank) for c in members))
        assert values == [[0, 1], [0, 1]], "ranks that have asked for the time more or less often still exchange"


def time_of(ahead: float) -> object:
    import time

    return lambda: time.monotonic() + ahead


def ran(offset: float, *notes: Note) -> Ran:
    """A rank whose machine's clock shows `offset` more than the hub's, as its own clock has it."""
    own = [replace(note, at=note.at + offset) for note in notes]
    return Ran(10.0 + offset, 11.0 + offset, 0.0, {}, own, {0: 10.3 + offset})


OFFSETS = (0.0, 1000.0)
NOTES = (
    (
        Note(10.51, "lost", "server0/nic0", "server1/nic0", "connection closed"),
        Note(10.52, "moved", "server0/nic0", "server1/nic0", "connection closed", "", 4096),
    ),
    (
        Note(10.5, "struck", "server1/nic0", cause="cut"),
        Note(10.501, "nic down", "server1/nic0", "", "port event"),
    ),
)
STRIKE = Strike("cut", "server1/nic0", 0.5)


def test_two_machines_have_one_clock() -> None:
    ranks = [by_the_hub(ran(o, *notes), Clock(o, 1e-4)) for o, notes in zip(OFFSETS, NOTES, strict=True)]
    hit = Collective(tuple(ranks), (True, True))
    assert hit.seconds == pytest.approx(1.0)
    assert hit.clock_error_s == 1e-4
    assert [note.kind for note in hit.notes] == ["struck", "nic down", "lost", "moved"]
    assert ranks[1].landed == {0: pytest.approx(10.3)}
    told = failover_of(STRIKE, hit)
    assert told.at_s == pytest.approx(0.5)
    assert (told.cause, told.replayed_bytes) == ("port event", 4096)
    assert (told.detected_s, told.resumed_s) == (pytest.approx(0.001), pytest.approx(0.02))


def test_without_correction_the_times_are_nonsense() -> None:
    """The control of the test above: it can fail."""
    hit = Collective(tuple(ran(o, *notes) for o, notes in zip(OFFSETS, NOTES, strict=True)), (True, True))
    told = failover_of(STRIKE, hit)
    assert told.at_s > 1000
    assert told.replayed_bytes == 0
    assert hit.seconds > 1000


MEMBER = """
import os, sys, time
real, offset = time.monotonic, (0.0, 1000.0, -3.0)[int(os.environ["RANK"])]
time.monotonic = lambda: real() + offset

from optcc.runtime.native import library
seconds = library.seconds
library.seconds = lambda at_ns: seconds(at_ns) + offset
if sys.argv.pop(1) == "uncorrected":
    from optcc.runtime.control import channel
    channel.measured = lambda ask, now: channel.Clock()
from optcc.cli import main
main(sys.argv[1:])
"""
"""A rank on a machine that was booted earlier or later than rank 0's."""

RUN = ["run", "uniform:servers=3,nics=2,rate=160Mb/s", "--size", "1MiB", "--repeat", "1", "--cut", "server1/nic1@0.4"]


def ran_with_faults(correction: str, *how: str) -> str:
    """What rank 0 prints of a fault run with ranks 1 and 2 on such machines."""
    ranks = started(3, "-c", MEMBER, correction, *RUN, *how, TORCHELASTIC_RUN_ID="t")
    ends = heard(ranks, 60)
    assert ranks[0].returncode in (0, 3), ends
    return ends[0][0]


@pytest.mark.long
def test_a_fault_run_over_several_machines_is_told_by_one_clock() -> None:
    value = json.loads(ran_with_faults("corrected", "--json"))
    took = value["phases"]["during"]["times_s"][0]
    (failover,) = value["failovers"]
    assert 0 < value["clock_error_s"] < 1.0
    assert value["conclusive"]
    assert 0 < failover["at_s"] < took < 10
    assert -value["clock_error_s"] <= failover["detected_s"] <= failover["resumed_s"] < took
    assert all(-1.0 < event["at_s"] < took + 1.0 for event in value["events"])
    assert "the clocks of several machines: every time is within" in ran_with_faults("corrected")


@pytest.mark.long
def test_a_fault_run_by_several_clocks_would_be_noticed() -> None:
    """The control of the test above: rank 1 acts as if its clock were the hub's."""
    value = json.loads(ran_with_faults("uncorrected", "--json"))
    assert not all(-1.0 < event["at_s"] < 100.0 for event in value["events"])
    assert value["phases"]["during"]["times_s"][0] > 900
