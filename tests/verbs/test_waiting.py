"""Waiting for descriptors and for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from optcc.runtime.verbs.waiting import Waiter


@pytest.fixture
def waiter() -> Iterator[Waiter]:
    made = Waiter()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_the_timer_ends_a_wait_and_not_before(waiter: Waiter) -> None:
    for _ in range(3):
        at = time.monotonic() + 0.01
        assert waiter.wait(at) == []
        assert time.monotonic() >= at


def test_a_time_that_has_passed_is_no_wait(waiter: Waiter, pipe: tuple[int, int]) -> None:
    assert waiter.wait(time.monotonic() - 1.0) == []
    assert waiter.wait(0.0) == []
    assert waiter.wait(-float("inf")) == []


def test_a_descriptor_ends_a_wait_as_long_as_it_can_be_read(waiter: Waiter, pipe: tuple[int, int]) -> None:
    def does() -> None: ...

    waiter.add(pipe[0], does)
    os.write(pipe[1], b"!")
    assert waiter.wait(float("inf")) == [does]
    assert waiter.wait(-float("inf")) == [does]
    os.read(pipe[0], 1)
    assert waiter.wait(-float("inf")) == []


def test_a_timer_that_was_set_does_not_end_a_later_wait(waiter: Waiter, pipe: tuple[int, int]) -> None:
    def does() -> None: ...

    waiter.add(pipe[0], does)
    waiter.wait(time.monotonic() + 0.001)
    os.write(pipe[1], b"!")
    assert waiter.wait(float("inf")) == [does], "for ever: disarmed"


def test_one_that_is_discarded_ends_no_wait(waiter: Waiter, pipe: tuple[int, int]) -> None:
    waiter.add(pipe[0], lambda: None)
    waiter.discard(pipe[0])
    waiter.discard(pipe[0])
    os.write(pipe[1], b"!")
    assert waiter.wait(time.monotonic() + 0.001) == []


def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = Waiter()
    assert len(os.listdir("/proc/self/fd")) == before + 4
    made.close()
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before
