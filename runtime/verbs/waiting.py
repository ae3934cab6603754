"""Waiting for descriptors until a time, at as few looks at the clock as can be.

A wait with a timeout costs several looks at the clock, in Python and in the kernel; a timer that is set to an absolute
time costs none, and keeps its time however late the wait begins.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable
from typing import Any

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME, timerfd_settime(2)


class _Timer(ctypes.Structure):
    """struct itimerspec: interval, then value, each in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class Waiter:
    """Descriptors, what to do when one can be read, and a timer of the system's monotonic clock (Linux)."""

    def __init__(self) -> None:
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._does: dict[int, Callable[[], object]] = {}
        self._set = float("inf")  # what the timer is set to
        self._given = _Timer()
        self._pointer = ctypes.byref(self._given)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._epoll = select.epoll()
        self._epoll.register(self._timer, select.EPOLLIN)
        # For a look without a wait, the same with one that can always be read: a timeout of 0 looks at the clock.
        self._glance, self._always = select.epoll(), os.eventfd(1)
        self._glance.register(self._always, select.EPOLLIN)

    def add(self, fd: int, does: Callable[[], object]) -> None:
        """Do this whenever `fd` can be read."""
        self._does[fd] = does
        self._epoll.register(fd, select.EPOLLIN)
        self._glance.register(fd, select.EPOLLIN)

    def discard(self, fd: int) -> None:
        """Wait for this one no more."""
        if self._does.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            self._glance.unregister(fd)

    def wait(self, until: float) -> list[Callable[[], object]]:
        """Wait for a descriptor, or `until` (inf: for ever; -inf: not at all); what is to be done, in no order."""
        if until != self._set and until != -float("inf"):
            self._arm(until)
        ready = (self._glance if until == -float("inf") else self._epoll).poll()
        return [self._does[fd] for fd, _ in ready if fd in self._does]

    def close(self) -> None:
        """The descriptors that were added stay open."""
        if not self._epoll.closed:
            self._epoll.close()
            self._glance.close()
            os.close(self._timer)
            os.close(self._always)

    def _arm(self, until: float) -> None:
        self._set = until
        if until == float("inf"):
            self._given.at_s = self._given.at_ns = 0  # disarmed
        else:
            nanoseconds = max(1, int(until * 1e9) + 1)  # not too early; and 0 would disarm
            self._given.at_s, self._given.at_ns = divmod(nanoseconds, 1_000_000_000)
        if self._libc.timerfd_settime(self._timer, _ABSOLUTE, self._pointer, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
