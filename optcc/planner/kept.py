"""The schedule of the fastest candidate so far."""

from __future__ import annotations

from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import Recipe


class Kept:
    """The schedule that the fastest candidate lowers to, so that nobody has to lower it again."""

    def __init__(self) -> None:
        self._fastest: tuple[float, Recipe, Schedule] | None = None

    def offer(self, time_s: float, recipe: Recipe, schedule: Schedule) -> None:
        """Keep it, if none that is kept is as fast."""
        if self._fastest is None or time_s < self._fastest[0]:
            self._fastest = time_s, recipe, schedule

    def schedule(self, recipe: Recipe) -> Schedule | None:
        """That of `recipe`, if it is kept."""
        return self._fastest[2] if self._fastest is not None and self._fastest[1] == recipe else None
