"""When NICs are given their next chunk, over queue pairs; numbers worked out by hand."""

import pytest

from optcc.runtime.verbs.backlog import ACKS_BYTES, CHUNK_BYTES, PAYLOAD, POST_S, Backlog
from optcc.runtime.wires.pacing import Rates

RATE = 1e9 / PAYLOAD  # a byte of payload in a nanosecond
NBYTES = 100_000 - CHUNK_BYTES  # 0.1 ms
EARLY_S = 50e-6


def backlog(*into: float) -> Backlog:
    """Ports that send at one rate, and receive at these parts of it."""
    return Backlog(len(into), [Rates(RATE, RATE * part) for part in into], EARLY_S)


def sent_at(given: Backlog, out: int) -> float:
    """When `out` will have sent what it was given, where waits are punctual; nothing here is for port 0."""
    return given.next_at(out, 0) + POST_S


def test_a_nic_is_given_its_next_chunk_just_before_it_is_idle() -> None:
    given = backlog(1, 1)
    given.give(0, 1, NBYTES, now=1.0)
    given.give(0, 1, NBYTES, now=1.0)
    assert sent_at(given, 0) == pytest.approx(1.0002, abs=1e-9)
    assert given.next_at(0, 1) == pytest.approx(1.0002 - POST_S, abs=1e-9)


def test_what_the_other_end_cannot_take_yet_is_not_sent_yet() -> None:
    given = backlog(1, 1, 1, 1)
    given.give(0, 2, NBYTES, now=1.0)
    given.give(1, 2, NBYTES, now=1.0)
    assert sent_at(given, 0) == pytest.approx(1.0001, abs=1e-9)
    assert given.next_at(0, 2) == pytest.approx(1.0002 - POST_S, abs=1e-9)  # from two NICs to one
    assert given.next_at(0, 3) == pytest.approx(1.0001 - POST_S, abs=1e-9)  # for another it is free
    slow = backlog(1, 0.5)
    slow.give(0, 1, NBYTES, now=1.0)
    assert slow.next_at(0, 1) == pytest.approx(1.0002 - POST_S, abs=1e-9)


def test_acknowledgements_delay_what_is_being_sent_and_nothing_else() -> None:
    given = backlog(1, 1)
    given.arrived(0, now=1.0)
    assert sent_at(given, 0) == pytest.approx(0, abs=1e-9)
    given.give(0, 1, NBYTES, now=1.0)
    given.arrived(0, now=1.00005)
    assert sent_at(given, 0) == pytest.approx(1.0001 + ACKS_BYTES * 1e-9, abs=1e-9)


def test_work_is_given_earlier_where_waits_end_late_and_never_earlier_than_set() -> None:
    given = backlog(1, 1)
    given.give(0, 1, NBYTES, now=1.0)
    end = sent_at(given, 0)
    for late, early in ((1e-6, POST_S), (20e-6, 20e-6), (1.0, EARLY_S)):
        given.waited(1.0, 1.0 + late)
        assert end - given.next_at(0, 1) == pytest.approx(early, abs=1e-9)
    for _ in range(2000):  # punctual again
        given.waited(1.0, 1.0)
    assert end - given.next_at(0, 1) == pytest.approx(POST_S, abs=1e-9)


def test_without_rates_every_nic_is_free() -> None:
    given = Backlog(2, None, EARLY_S)
    given.give(0, 1, NBYTES, now=1.0)
    given.arrived(0, now=0.5)
    assert sent_at(given, 0) == pytest.approx(1.0, abs=1e-9)
    assert given.next_at(0, 1) <= 1.0


def test_a_rate_of_zero_tells_nothing_and_delays_nothing() -> None:
    given = Backlog(3, [Rates(RATE, RATE), Rates(0, RATE), Rates(RATE, 0)], EARLY_S)
    given.give(0, 2, NBYTES, now=1.0)
    assert given.next_at(0, 2) == pytest.approx(1.0001 - POST_S, abs=1e-9)
    given.give(1, 2, NBYTES, now=1.0)
    given.arrived(1, now=0.5)
    assert sent_at(given, 1) == pytest.approx(1.0, abs=1e-9)


def test_how_late_a_wait_ends_counts_only_while_something_is_under_way() -> None:
    given = backlog(1, 1)
    given.waited(1.0, 2.0)  # for the common start
    given.give(0, 1, NBYTES, now=2.0)
    assert given.next_at(0, 1) == pytest.approx(2.0001 - POST_S, abs=1e-9)
    given.waited(2.0, 3.0)
    assert given.next_at(0, 1) == pytest.approx(2.0001 - EARLY_S, abs=1e-9)
