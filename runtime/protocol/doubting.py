"""The sending end of a suspected flow: nothing comes through, or a NIC that it uses is suspected. Is its wire lost?

No event says that of a black hole. The peer is asked whether it lives. If it does, the wire has the time of grace to
bring anything at all; then the peer is asked once more, for it may have been paused meanwhile. One that is paused does
not answer, and nothing happens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from optcc.runtime.protocol.events import Alive, Credit, Doubt, Expired, Heard, Probe, Spread, Start, Stop, Tell, Timer
from optcc.runtime.protocol.steady import SteadySender
from optcc.runtime.protocol.table import Commands, ProtocolError
from optcc.runtime.wires.contract import Cause


class SenderState(StrEnum):
    """Where a sender is."""

    ACTIVE = "active"  # on its wire
    PROBING = "probing"  # on its wire, but nothing moves: is the peer alive? After grace: is it still?
    GRACE = "grace"  # on its wire, but nothing moves and the peer is alive
    FENCING = "fencing"  # the wire is lost, its own end not yet drained
    ASKING = "asking"  # its own end is fenced; where to resume on another wire?
    WAITING = "waiting"  # no wire left, and its own end of the last one fenced; one may come back
    STRANDED = "stranded"  # no wire left, but nothing owed either
    SEVERED = "severed"  # given up


MUTE = (SenderState.FENCING, SenderState.ASKING, SenderState.WAITING, SenderState.SEVERED)
"""Nothing is sent in these."""

PROBES = 8
"""Probes for one doubt by the ANSWER timer; after that one for every Expired(PROGRESS)."""


class DoubtingSender(SteadySender, ABC):
    """The part of `Sender` that doubts, and what it judges by."""

    __slots__ = ("_heard", "_left", "_mark", "_nonce", "_owed", "_said", "_spreads", "epoch")
    state: SenderState
    steady = SenderState.ACTIVE

    def __init__(self) -> None:
        super().__init__(SenderState.ACTIVE)
        self.epoch = 0
        self._nonce = 0  # of the last doubt
        self._mark = -1  # `progress` when it arose
        self._spreads = False  # whether it is its own, and not that of others
        self._said: Alive | None = None  # what the peer said when grace began
        self._left = 0  # questions that may still be asked in this doubt, or in this epoch
        self._owed: frozenset[type] = frozenset()  # Credit, Heard: what is to show that an idle flow's wire works
        self._heard = 0  # how often it did

    @property
    def outstanding(self) -> int:
        """Chunks that may not have landed."""
        return self.posted - self.acked

    @property
    def progress(self) -> int:
        """Grows with whatever comes through; what the progress timer watches."""
        return self.acked + self.folded + self._heard

    def stuck(self, waiting: bool) -> bool:
        """Whether the progress timer should run; `waiting`: there are chunks to send."""
        if self.state in MUTE:
            return False
        return self.posted > self.acked or (waiting and self.posted - self.folded >= self.window) or bool(self._owed)

    def _doubt(self, event: Expired) -> Commands:
        """Without progress for a timeout: probes, and has all flows tested that share its NICs."""
        if event.timer is not Timer.PROGRESS:
            return ()
        return (Spread(self.wire), *self._probe(spread=True))

    def _suspected(self, event: Doubt) -> Commands:
        """Other flows have met a black hole: probes."""
        commands = self._probe(spread=False)
        if not self.outstanding:
            self._owed = frozenset((Credit, Heard) if event.reading else (Credit,))
        return commands

    def _probe(self, spread: bool) -> Commands:
        self._mark, self._owed, self._spreads, self._said = self.progress, frozenset(), spread, None
        return self._question_peer()

    def _question_peer(self) -> Commands:
        self._nonce += 1
        self._left = PROBES - 1
        self._go(SenderState.PROBING)
        return (Tell(self._letter()), Start(Timer.ANSWER))

    def _letter(self) -> Probe:
        return Probe(self.epoch, self._nonce, self._spreads and self._said is None)

    def _doubt_again(self, event: Expired) -> Commands:
        """No answer: probes again, with the same number as long as nothing moves."""
        if event.timer is Timer.GRACE:
            return ()
        if event.timer is Timer.PROGRESS and not self._owed:  # what is tested while it is idle needs the echo
            self._spreads = True
        if self.progress != self._mark:
            if event.timer is Timer.PROGRESS:
                return self._probe(self._spreads)
            self._trust()
            return ()
        again = Tell(self._letter())
        if event.timer is Timer.PROGRESS:
            return (again,)
        if not self._left:
            return ()
        self._left -= 1
        return (again, Start(Timer.ANSWER, PROBES - 1 - self._left))

    def _hears(self, event: Heard) -> Commands:
        """Something arrived by its wire: this may end the suspicion."""
        if event.epoch == self.epoch:
            return self._shown(Heard)
        if Heard in self._owed:
            self._said = None  # asked for before the flow moved: it is asked for again now, and has its own grace
        return ()

    def _shown(self, kind: type) -> Commands:
        """An idle flow is no longer suspected when everything owed has come."""
        if kind not in self._owed:
            return ()
        self._owed -= {kind}
        if self._owed:
            return ()
        self._heard += 1
        stop = self._stop_doubt()
        self._go(SenderState.ACTIVE)
        return stop

    def _stop_doubt(self) -> Commands:
        timer = {SenderState.PROBING: Timer.ANSWER, SenderState.GRACE: Timer.GRACE}.get(self.state)
        return (Stop(timer),) if timer else ()

    def _alive(self, event: Alive) -> Commands:
        """The peer lives: grace for the wire if it owes anything. After grace: lost, unless the peer got further."""
        if event.epoch != self.epoch or event.nonce != self._nonce:
            return ()
        if not event.folded <= event.landed <= self.posted:
            raise ProtocolError(f"{event}, {self.posted} posted")
        if self.progress != self._mark or not self._owes(event):
            self._trust()
            return (Stop(Timer.ANSWER),)
        if self._said and (event.landed == self._said.landed or self._overdue(self._said)):
            return (Stop(Timer.ANSWER), *self._leave(Cause.PROGRESS))
        self._said = event
        self._go(SenderState.GRACE)
        return (Stop(Timer.ANSWER), Start(Timer.GRACE))

    def _owes(self, said: Alive) -> bool:
        """Whether something is missing that the peer has sent by the wire or should have got."""
        return bool(self._owed) or self.posted > self.acked or said.folded > self.folded

    def _overdue(self, said: Alive) -> bool:
        """Whether something is missing that the peer had sent before it said this, whatever it did later."""
        return bool(self._owed) or said.landed > self.acked or said.folded > self.folded

    def _verdict(self, event: Expired) -> Commands:
        """At the end of grace, if nothing has come through since the suspicion arose: asks the peer once more."""
        if event.timer is not Timer.GRACE:
            return ()
        if self.progress == self._mark:
            return self._question_peer()
        self._trust()
        return ()

    def _trust(self) -> None:
        self._owed = frozenset()
        self._go(SenderState.ACTIVE)

    @abstractmethod
    def _leave(self, cause: Cause) -> Commands:
        """Move off the wire."""
