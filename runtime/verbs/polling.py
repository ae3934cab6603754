"""How a rank waits for its NICs: in the system, never in a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from optcc.runtime.engine.transport import Watch
from optcc.runtime.verbs.backlog import Backlog
from optcc.runtime.verbs.binding import VerbsError
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.poll_clock import PollClock
from optcc.runtime.verbs.reports import NicReports
from optcc.runtime.verbs.waiting import Waiter
from optcc.runtime.wires.contract import Happening


class Polling:
    """Of one rank's NICs. Closes nothing but the `waiter`'s own descriptors.

    Parameters
    ----------
    watch : what else may end a wait
    backlog : is told how late waits end
    """

    def __init__(
        self,
        nics: Mapping[int, VerbsNic],
        reports: NicReports,
        waiter: Waiter,
        watch: Watch,
        clock: PollClock,
        backlog: Backlog,
    ) -> None:
        self._nics, self._reports, self._waiter = nics, reports, waiter
        self._clock, self._backlog = clock, backlog
        self._heard: Callable[[], object] = watch.check
        self.watch_fd = watch.fileno()
        waiter.add(self.watch_fd, self._heard)
        for nic in nics.values():
            waiter.add(nic.completions_fd, partial(self._wake, nic))
            waiter.add(nic.events_fd, partial(reports.hear, nic))

    def poll(self, until: float) -> Sequence[Happening]:
        """See `Wires.poll`.

        Known events are reported without a wait. Descriptors are checked at intervals even so, and always when there is
        no wait anyway (-inf).
        """
        clock = self._clock
        clock.turn()
        if (until == -inf or not self._reports.happened) and self._is_quiet():
            self._wait(until)
        elif until == -inf or clock.is_time_to_look():
            clock.looked()
            for do in self._waiter.wait(-inf):
                do()
        return self._reports.take()

    def _wait(self, until: float) -> None:
        """Until there is something to tell, or the watch speaks. What an event is for may have been told already."""
        clock, reports = self._clock, self._reports
        began = clock.now
        while True:
            todo = self._waiter.wait(until)
            clock.waited()
            if not todo and until > began:
                self._backlog.waited(until, clock())
            for do in todo:
                do()
            if not todo or self._heard in todo or reports.happened or clock() >= until or not self._is_quiet():
                return

    def _is_quiet(self) -> bool:
        """Whether there is nothing to tell, even now that all NICs have been asked to end a wait.

        Events are requested only here. As long as polls find something, nobody waits for an event; requesting, waiting
        and taking are three system calls.
        """
        reports = self._reports
        for nic in self._nics.values():
            reports.collect(nic)
        if reports.happened:
            return False
        for nic in self._nics.values():
            try:
                if nic.index not in reports.gone and nic.arms():
                    reports.collect(nic)
            except VerbsError as why:
                reports.device_lost(nic, str(why))
        return not reports.happened

    def _wake(self, nic: VerbsNic) -> None:
        nic.take_event()
        self._reports.collect(nic)
