"""What all compiled code shares: formats and constants of the reference, the clock, and how numba compiles it."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from optcc.machine.kernels import Kernels
from optcc.runtime.compiled.machine import clock_gettime
from optcc.runtime.compiled.tables import BYTES_NS, CLOCK_NS, TIMED, TIMING, WORKS

GOES_ON, DONE, ASIDE, SPOKEN, EXPIRED, LANES, WATCH, BREATH = range(8)
"""DONE: all is sent and received. For Python to do: one turn of its loop; the same, a socket or the watch has spoken;
timers that may have run out when all was told, and progress; a look at lanes; to watch the lanes of the route in LANE;
signals."""

HEADER, NOTICE, BACK = 64, 40, 24
"""Bytes of a chunk's header and of records, as `CHUNK_HEADER`, `slots.NOTICE` and `slots.BACK` have them."""
LENT = 64
"""Bytes behind a payload that say whether it is lent, as `slots.LENT` has them."""
MARK = 0x0C0FFEE5
CALL, ACK, CREDIT = 2**32 - 1, 1, 2
SEQ_BITS = 40
LOOK_S = 1e-3
"""As in `ends`, `slots`, `local_replies` and `local_waits`; a test holds them equal."""
AWAKE_S = 200e-6
"""A rank with a GPU sleeps no sooner after the last thing that happened. To be woken takes a tenth of a millisecond,
and so does a chunk of 1 MiB on a NIC of 100 Gb/s."""

_MONOTONIC, _THREAD_CPU = np.int32(1), np.int32(3)
DONTWAIT, NOSIGNAL, EAGAIN, POLLIN = 0x40, 0x4000, 11, 1
NEVER = 1e6  # seconds

KERNELS = Kernels("chunks", "what handles chunks", 30)
called = KERNELS.compiled(nogil=True, error_model="numpy")
inner = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""What Python calls; what only compiled code calls."""


@inner  # type: ignore[misc, unused-ignore]
def _clock_of(kind: Any, w: Any) -> int:
    """Nanoseconds of one of the system's clocks."""
    clock_gettime(kind, w.scratch.ctypes.data)
    return w.scratch[0] * 1_000_000_000 + w.scratch[1]


@inner  # type: ignore[misc, unused-ignore]
def clock_ns(w: Any) -> int:
    """Of this thread's processor time: a call of the kernel."""
    return _clock_of(_THREAD_CPU, w)


@inner  # type: ignore[misc, unused-ignore]
def is_timed(g: Any) -> bool:
    """Whether the copy or fold that begins is one of those that are timed."""
    if g[TIMING] == 0:
        return False
    g[WORKS] += 1
    return g[WORKS] % g[TIMING] == 0


@inner  # type: ignore[misc, unused-ignore]
def count_timed(w: Any, g: Any, began: int) -> None:
    """One that began at a time is over. What the clock takes is measured beside it."""
    ended = clock_ns(w)
    clock = clock_ns(w) - ended
    g[TIMED] += 1
    g[BYTES_NS] += ended - began - clock
    g[CLOCK_NS] += 3 * clock


@inner  # type: ignore[misc, unused-ignore]
def seconds_now(w: Any) -> float:
    """As time.monotonic()."""
    return _clock_of(_MONOTONIC, w) / 1e9
