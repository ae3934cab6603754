"""The time as of the last look at it: one look for every poll, and none where nobody asks."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

LOOK_EVERY_S = 0.001
"""As long as polls find completions, descriptors are looked at so often: the watch, and events of NICs. By time and not
by the number of polls, since what a rank does between two of them may take long."""


class PollClock:
    """Of one rank, by the system's monotonic clock.

    Looks at the clock may take time, as in the lab's virtual time, or be system calls. Several for every chunk would
    then cost more than the rest of its work.

    now : as of the last look, or what somebody has seen since
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.now, self._looked = clock(), True  # whether the look was in this poll
        self._look_at: float | None = None  # when to look at descriptors without a wait; None: the next look says

    def __call__(self) -> float:
        """The time, by a look if there was none in this poll."""
        if not self._looked:
            self.now, self._looked = self._clock(), True
            if self._look_at is None:
                self._look_at = self.now + LOOK_EVERY_S
        return self.now

    def turn(self) -> None:
        """Another poll has begun: the time is to be looked at anew."""
        self._looked = False

    def waited(self) -> None:
        """A wait is over, in which descriptors were looked at."""
        self._looked, self._look_at = False, None

    def is_time_to_look(self) -> bool:
        """Whether descriptors have not been looked at for a while, since polls have always found something. If so, the
        caller does it now."""
        if self._look_at is None:  # the last poll has waited, and nobody has asked for the time since
            self._look_at = -inf
            return False
        return self() >= self._look_at

    def looked(self) -> None:
        """At descriptors, now."""
        self._look_at = self.now + LOOK_EVERY_S
