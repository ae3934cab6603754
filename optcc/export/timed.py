"""A clock for executors: threads that run steps in order, counters that they wait for, and rates that they share.

Every executor's file becomes the same few things. A *thread* is a threadblock, or a proxy that sends for one. A *step*
waits until a counter is high enough, takes a lock (first come, first served), and pauses. It moves bytes no faster than
its own cap and its fair share of up to two resources. Then it releases the lock and increments a counter, at once or a
delay later. Resources are links, ports and memories; they are shared max-min fairly by those who move at the moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from optcc.errors import SimulationError

NONE = -1


@dataclass(frozen=True)
class TimedStep:
    """One step, in this order: wait, lock, pause, move, unlock, post. Seconds, bytes, bytes per second; NONE: without.

    wait, need : a counter, and what it must have come to; post, delay : a counter, and how much later it is counted up
    one, two : resources that the bytes pass
    """

    wait: int = NONE
    need: int = 0
    lock: int = NONE
    pause: float = 0.0
    nbytes: float = 0.0
    cap: float = np.inf
    one: int = NONE
    two: int = NONE
    post: int = NONE
    delay: float = 0.0


class TimedThreads:
    """Threads in the making. Counters, locks and resources are numbers that these methods give out."""

    def __init__(self) -> None:
        self._threads: list[list[TimedStep]] = []
        self._counters: list[int] = []
        self._rates: list[float] = []
        self._locks = 0

    def thread(self) -> list[TimedStep]:
        """A new thread: its steps, to be added to."""
        self._threads.append([])
        return self._threads[-1]

    def counter(self, start: int = 0) -> int:
        self._counters.append(start)
        return len(self._counters) - 1

    def lock(self) -> int:
        self._locks += 1
        return self._locks - 1

    def resource(self, rate: float) -> int:
        """Something that passes `rate` bytes per second in all. Raises SimulationError for one without a rate."""
        if not rate > 0:
            raise SimulationError("a link without a rate: nothing ever passes it")
        self._rates.append(float(rate))
        return len(self._rates) - 1

    def seconds(self) -> float:
        """When the last thread is done. Raises SimulationError when some wait for ever."""
        from optcc.export._timed_loop import run

        steps = [step for thread in self._threads for step in thread]
        ptr = np.cumsum([0, *map(len, self._threads)], dtype=np.int64)

        def column(values: Iterable[float], kind: type) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
            return np.fromiter(values, kind, len(steps))

        time = run(
            ptr,
            column((s.wait for s in steps), np.int64),
            column((s.need for s in steps), np.int64),
            column((s.lock for s in steps), np.int64),
            column((s.pause for s in steps), np.float64),
            column((s.nbytes for s in steps), np.float64),
            column((s.cap for s in steps), np.float64),
            column((s.one for s in steps), np.int64),
            column((s.two for s in steps), np.int64),
            column((s.post for s in steps), np.int64),
            column((s.delay for s in steps), np.float64),
            np.array(self._rates, np.float64),
            np.array(self._counters, np.int64),
            self._locks,
        )
        if time < 0:
            raise SimulationError("threads wait for ever")
        return float(time)
