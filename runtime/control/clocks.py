"""One clock for a job: what a rank's monotonic clock says when the hub's says something else.

Machines' monotonic clocks begin when they boot. A rank asks the hub for the time and takes the answer to be that of the
middle of the round trip; of a few the shortest counts. The answer was made between the two ends of the round trip. So
the offset is wrong by at most half of it, however unlike the two directions are (F. Cristian, "Probabilistic clock
synchronization", Distributed Computing 3, 1989). Clocks drift apart later, by some 1e-5 of the time that passes: a rank
asks again before every collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from optcc.runtime.messages import Ran

TRIPS = 8
"""Round trips, of which the shortest counts."""


@dataclass(frozen=True)
class Clock:
    """A rank's clock shows `offset_s` more than the hub's, give or take `error_s`.

    Both 0 where a measurement cannot tell the clocks apart: the processes of one machine share theirs.
    """

    offset_s: float = 0.0
    error_s: float = 0.0

    def here(self, hub_s: float) -> float:
        """A time of the hub's clock, by this one."""
        return hub_s + self.offset_s

    def hub(self, here_s: float) -> float:
        """A time of this clock, by the hub's."""
        return here_s - self.offset_s


def measured(ask: Callable[[], float], now: Callable[[], float], trips: int = TRIPS) -> Clock:
    """The clock `now`, held against the one that `ask` brings the time of, after whatever that takes."""
    shortest, offset = float("inf"), 0.0
    for _ in range(trips):
        sent = now()
        theirs = ask()
        back = now()
        if back - sent < shortest:
            shortest, offset = back - sent, (sent + back) / 2 - theirs
    return Clock(offset, shortest / 2) if abs(offset) > shortest / 2 else Clock()


def by_the_hub(ran: Ran, clock: Clock) -> Ran:
    """The same run, its times by the hub's clock."""
    return replace(
        ran,
        start_s=clock.hub(ran.start_s),
        end_s=clock.hub(ran.end_s),
        notes=[replace(note, at=clock.hub(note.at)) for note in ran.notes],
        landed={row: clock.hub(at) for row, at in ran.landed.items()},
        clock_error_s=clock.error_s,
    )
