"""What a communicator has seen happen: kept, logged, and told to whoever asked.

Kinds: "nic down", "nic up", "lost" (a wire), "fenced" (this end of it), "moved" (a flow, to another wire). Also
"waiting" (no NIC leads to a rank any more), "made anew" (a wire), "renewed" (the plan, without the NICs in `text`).
And "late" (a rank that mostly comes last to calls, in `text`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from optcc.runtime.messages import Note

log = logging.getLogger("optcc.communicator")

WARNINGS = "nic down", "nic up", "waiting", "renewed"
"""Kinds that are logged as warnings; others as information."""

EVENTS = 1000
"""So many events are kept; older ones are forgotten."""


class Events:
    """Those of rank `rank`. `tell` : called with each, in whichever thread finds it; its exceptions are logged."""

    def __init__(self, rank: int, tell: Callable[[Note], None] | None) -> None:
        self._rank, self._tell = rank, tell
        self._kept: deque[Note] = deque(maxlen=EVENTS)

    def all(self) -> tuple[Note, ...]:
        """The latest EVENTS, in order."""
        return tuple(self._kept)

    def note(self, notes: Sequence[Note]) -> None:
        """More of them."""
        self._kept.extend(notes)
        for note in notes:
            level = logging.WARNING if note.kind in WARNINGS else logging.INFO
            log.log(level, "rank %d: %s %s %s %s %s", self._rank, note.kind, note.nic, note.far, note.cause, note.text)
            if self._tell:
                try:
                    self._tell(note)
                except Exception:
                    log.exception("rank %d: on_event failed with %s; the job goes on", self._rank, note.kind)
