"""Which outgoing flows have not moved for too long: what the progress timer of the protocol watches.

A NIC sends in the order in which it is given. So a chunk that waits behind others at its NIC is not stuck. Each of
their acknowledgements, on whichever wire of that NIC, is progress of the chunk behind them. What the NIC was given
later says nothing: it might go on for ever next to a black hole. Nor does a flow that leaves it: its new NIC brings
over what this one has not.

Nothing is counted chunk by chunk: a few looks in a deadline compare what the machines of the flows know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from optcc.runtime.protocol.doubting import MUTE
from optcc.runtime.protocol.sender import Sender

LOOKS = 8
"""In a deadline. A flow that stops is suspected after `LOOKS - 2` to `LOOKS` parts of a timeout. One look may still see
its own progress, and the next one that of earlier chunks at its NIC."""
SUSPECTED = 2
"""Looks after which a flow moves to doubt at a NIC that another one has come upon."""


@dataclass
class _Stall:
    """A flow that has not moved: since when, and its own progress then.

    before : each earlier flow at its NIC -> its wire, and the number of chunks posted then
    passed : these flows, unless they leave that wire -> how many of those chunks had been acknowledged at the last look
    """

    since: float
    progress: int
    before: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    passed: Mapping[int, int] = field(default_factory=dict)


class ProgressWatchdog:
    """Those of one rank.

    Parameters
    ----------
    senders : by number of the flow
    deadline : seconds without progress
    every : seconds from look to look, while `any` flow may be stuck
    """

    def __init__(self, senders: Mapping[int, Sender], deadline: float) -> None:
        self._senders, self.every = senders, deadline / LOOKS
        self._watchdog: dict[int, _Stall] = {}
        self._suspects: set[int] = set()
        self._seen: dict[int, tuple[int, int]] = {}  # while there are suspects: flow -> its wire, what it had acked
        self._graces: dict[int, Mapping[int, int]] = {}

    @property
    def any(self) -> bool:
        """Whether some flow might be stuck, at the last look."""
        return bool(self._watchdog)

    def look(self, by: float, now: float, waiting: Callable[[int], bool]) -> list[int]:
        """The flows whose deadline is over; again at each look after that.

        by : up to when everything that had happened has been told; now : of what is seen here
        waiting : has the flow chunks to send?
        """
        self._acquit()
        over = []
        for flow, sender in self._senders.items():
            if not sender.stuck(waiting(flow)):
                self._watchdog.pop(flow, None)
            elif not self._moves(flow, now) and by - self._watchdog[flow].since >= self._allowed(flow):
                over.append(flow)
        return over

    def suspect(self, nics: Iterable[int]) -> None:
        """Nothing came through between these: one of them may be a black hole for other flows, too. They are doubted
        after `SUSPECTED` looks without progress, or a collective would wait for one deadline after the other. One of
        two is innocent, and a black hole may heal: who brings a chunk and its acknowledgement over is suspect no more.
        """
        self._suspects.update(nics)
        self._seen = {flow: (sender.wire, sender.acked) for flow, sender in self._senders.items()}

    def doubt(self, flow: int, now: float) -> None:
        """A flow is in doubt, whatever the last look has seen: what its NIC was given before counts from here."""
        self._renewed(flow, now)

    def moved(self, flow: int) -> None:
        """Another NIC has the flow: what that one was given before counts. The time goes on, as the NIC may be as dead
        as the last."""
        stall = self._watchdog.get(flow)
        if stall:
            stall.before = self._before(flow)
            stall.passed = self._passed(stall)

    def grace(self, flow: int) -> None:
        """Grace begins, for `still_moves`."""
        self.still_moves(flow)

    def still_moves(self, flow: int) -> bool:
        """Whether something before the flow at its NIC has been acknowledged since grace began, or was found so."""
        stall, before = self._watchdog.get(flow), self._graces.get(flow, {})
        self._graces[flow] = self._passed(stall) if stall else {}
        return _more(before, self._graces[flow])

    def _acquit(self) -> None:
        """What has been acknowledged over a wire since the last look has gone through both of its NICs, both ways."""
        if not self._suspects:
            return
        for flow, sender in self._senders.items():
            wire, acked = self._seen[flow]
            if sender.wire == wire and sender.acked > acked:  # on another wire, the far end has told what had landed
                self._suspects.difference_update(sender.ends[wire])
            self._seen[flow] = (sender.wire, sender.acked)

    def _moves(self, flow: int, now: float) -> bool:
        """Whether there was progress since the last look; remembers what there is now."""
        if self._renewed(flow, now):
            return True
        stall = self._watchdog[flow]
        before, stall.passed = stall.passed, self._passed(stall)
        if not _more(before, stall.passed):
            return False
        stall.since = now
        return True

    def _renewed(self, flow: int, now: float) -> bool:
        """Whether the flow had progress of its own: it is watched anew."""
        progress, old = self._senders[flow].progress, self._watchdog.get(flow)
        if old and old.progress == progress:
            return False
        self._watchdog[flow] = _Stall(now, progress)
        self.moved(flow)
        return True

    def _allowed(self, flow: int) -> float:
        sender = self._senders[flow]
        suspected = self._suspects.intersection(sender.ends[sender.wire])
        return self.every * ((SUSPECTED if suspected else LOOKS - 2) - 0.01)  # sums of floats may be early

    def _before(self, flow: int) -> dict[int, tuple[int, int]]:
        """What the NIC of a flow has been given for other flows, and has not brought over yet."""
        mine = self._senders[flow]
        nic = mine.ends[mine.wire][0]
        return {
            other: (sender.wire, sender.posted)
            for other, sender in self._senders.items()
            if other != flow and sender.outstanding and sender.ends[sender.wire][0] == nic
        }

    def _passed(self, stall: _Stall) -> dict[int, int]:
        return {
            other: min(self._senders[other].acked, posted)
            for other, (wire, posted) in stall.before.items()
            if self._senders[other].wire == wire and self._senders[other].state not in MUTE
        }


def _more(before: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """Whether one of the flows that are still there has had more chunks acknowledged."""
    return any(count > before.get(flow, 0) for flow, count in now.items())
