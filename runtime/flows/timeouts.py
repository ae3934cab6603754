"""How long a flow waits for what, and its timers that run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from optcc.runtime.flows.progress_watchdog import ProgressWatchdog
from optcc.runtime.protocol.events import Start, Timer


@dataclass(frozen=True)
class Timeouts:
    """How long a flow waits, in seconds.

    progress : at most so long without progress while something is outstanding, before the peer is asked; at least
        three quarters of it. What a NIC was given before, for whichever flow, is progress when it comes through
    grace : from the peer's answer until it is asked once more, for the verdict that the wire is a black hole
    answer : at most so long for an answer to a question, before it is repeated
    first : so long before it is repeated for the first two times, about two round trips of a message; then twice as
        long every other time. A question too many costs nothing, for the same answer is given again
    back : so long for some wire to come back, where none is left; 0: that is not waited for
    """

    progress: float = 1.0
    grace: float = 0.5
    answer: float = 0.25
    first: float = 0.002
    back: float = 0.0

    @property
    def look(self) -> float:
        """At how fast flows are, so often at most: some milliseconds, when nothing else is said."""
        return self.progress / 256

    def for_chunks_of(self, seconds: float) -> Timeouts:
        """The same where a NIC may be busy with one chunk for so long: no wire is given up for that."""
        factor = max(1.0, 4 * seconds / self.progress)
        return replace(self, progress=self.progress * factor, grace=self.grace * factor)


class Timers:
    """GRACE and ANSWER of one rank's flows; PROGRESS is sampled by `progress_watchdog`. `clock` : asked only when a
    timer is started, also anew. It must give the time of that moment, not of the poll before a fold."""

    def __init__(self, timeouts: Timeouts, watchdog: ProgressWatchdog, clock: Callable[[], float]) -> None:
        self._timeouts, self._watchdog, self._clock = timeouts, watchdog, clock
        self._ends: dict[tuple[int, Timer], float] = {}

    def __bool__(self) -> bool:
        return bool(self._ends)

    def start(self, flow: int, command: Start) -> None:
        """Start one, anew if it runs."""
        seconds = min(self._timeouts.answer, self._timeouts.first * 2 ** (command.nth // 2))
        if command.timer is Timer.GRACE:
            seconds = self._timeouts.grace
            self._watchdog.grace(flow)
        elif command.timer is Timer.RETURN:
            seconds = self._timeouts.back
        self._ends[flow, command.timer] = self._clock() + seconds

    def stop(self, flow: int, timer: Timer) -> None:
        """Stop one, if it runs."""
        self._ends.pop((flow, timer), None)

    def next(self) -> float:
        """When the next one ends; inf: none runs."""
        return min(self._ends.values(), default=math.inf)

    def over(self, now: float) -> Iterator[tuple[int, Timer]]:
        """(flow, timer) of those that have run out, unless stopped by what was done about those before them."""
        for (flow, timer), at in list(self._ends.items()):
            if at <= now and self._ends.pop((flow, timer), None) is not None:
                if timer is Timer.GRACE and self._watchdog.still_moves(flow):
                    # Its chunks have not had their turn.
                    self._ends[flow, timer] = self._clock() + self._timeouts.grace
                else:
                    yield flow, timer
