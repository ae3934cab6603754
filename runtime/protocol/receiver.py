"""The receiving end of a flow: the only authority on what has landed.

What the transport owes this machine: see `sender`. The loop that polls the wires hands it messages after a poll. So a
peer which says that it is alive has also looked at its slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from optcc.errors import InputError
from optcc.runtime.protocol.events import (
    Alive,
    Answer,
    Ask,
    Deliver,
    Echo,
    Expired,
    Fence,
    Fenced,
    Folded,
    Found,
    Landed,
    Lost,
    Notice,
    Probe,
    Publish,
    Refuse,
    Return,
    Spread,
    Start,
    Tell,
    Timer,
)
from optcc.runtime.protocol.steady import SteadyReceiver
from optcc.runtime.protocol.table import Commands, ProtocolError, Row, table


class ReceiverState(StrEnum):
    """Where a receiver is."""

    OPEN = "open"  # on its wire
    CUT = "cut"  # its wire is lost at this end; waits to be asked for another
    FENCING = "fencing"  # asked; its end of the old wire not yet drained


_R = ReceiverState

NOTICES = 8
"""How often it is said that the wire is lost, unasked; after that, to probes."""


class Receiver(SteadyReceiver):
    """The receiving end of one flow over `wires` (as at the sender), with `window` landing slots.

    Credits are returned for every `credit_every` chunks, which saves messages; at most the window.

    Attributes, all counts of chunks since the flow was made, to be read only
    ----------
    state : ReceiverState
    wire, epoch : where chunks are taken from; anything else is a ghost
    landed : chunks here for good, the next one expected
    folded : chunks below this have left their slots
    ghosts : chunks of former epochs, ignored
    lost : wires that this end takes to be lost
    """

    __slots__ = (
        *("ghosts", "lost", "window", "wires"),
        *("_asked", "_early", "_echoed", "_left", "_notice"),
    )
    state: ReceiverState
    steady = ReceiverState.OPEN

    def __init__(self, wires: Sequence[int], window: int, *, credit_every: int = 1) -> None:
        if not wires or len(set(wires)) != len(wires):
            raise InputError("a flow needs wires, each once", got=list(wires))
        if not 1 <= credit_every <= window:
            raise InputError("credits must come at least once in a window", got=(credit_every, window))
        super().__init__(ReceiverState.OPEN)
        self.wires, self.window, self.credit_every = tuple(wires), window, credit_every
        self.wire, self.epoch = self.wires[0], 0
        self.landed = self.folded = self.ghosts = 0
        self.lost: set[int] = set()
        self._early: set[int] = set()  # folded before an earlier one
        self._returned = 0  # the last credit
        self._asked = Ask(0, self.wire)  # the latest question; refused if its epoch is not ours and we do not fence
        self._notice: Notice | None = None  # what was said about the wire we are on
        self._echoed = 0  # the last doubt for which the credit was sent once more
        self._left = 0  # how often it may still be said unasked

    # --- the flow -------------------------------------------------------------------------------------------------

    def _landed(self, event: Landed) -> Commands:
        """Delivers the next chunk; ignores ghosts, which are of a former epoch or on a wire it has left."""
        wire, epoch, seq = event
        if epoch != self.epoch or wire != self.wire:
            if epoch > self.epoch:
                raise ProtocolError(f"{event} in epoch {self.epoch}: nobody was told to write it")
            self.ghosts += 1
            return ()
        if seq != self.landed:
            raise ProtocolError(f"{event}, but the next chunk is {self.landed}")
        if seq - self.folded >= self.window:
            raise ProtocolError(f"{event} in a slot not yet free: {self.folded} folded, window {self.window}")
        self.landed = seq + 1
        return (Deliver(seq),)

    def _folded(self, event: Folded) -> Commands:
        """Returns the credit for all chunks folded without a gap."""
        self._fold(event)
        if self.folded - self._returned < self.credit_every:
            return ()
        self._returned = self.folded
        return (Return(self.wire, self.folded),)

    def _fold(self, event: Folded) -> Commands:
        """Counts the chunk; the answer will include it."""
        seq = event.seq
        if not self.folded <= seq < self.landed or seq in self._early:
            raise ProtocolError(f"{event}, but {self.landed} landed and {self.folded} folded before")
        if seq != self.folded:
            self._early.add(seq)
            return ()
        self.folded += 1
        while self.folded in self._early:
            self._early.remove(self.folded)
            self.folded += 1
        return ()

    def _probed(self, event: Probe) -> Commands:
        """Reports what has come through, in this epoch only. Repeats that its wire is lost, if so, and helps to
        test."""
        if event.epoch != self.epoch:
            return ()
        alive = Tell(Alive(self.epoch, event.nonce, self.landed, self._returned))
        notice = (Tell(self._notice),) if self._notice else ()
        if event.spread:
            return (alive, *notice, Spread(self.wire))
        if event.nonce <= self._echoed or event.epoch < self._asked.epoch:
            return (alive, *notice)
        self._echoed = event.nonce
        return (Echo(self.wire, self._returned), alive, *notice)  # if paused between, it has not said what is not so

    # --- failover -------------------------------------------------------------------------------------------------

    def _lost(self, event: Lost) -> Commands:
        """Tells the sender, which decides."""
        if event.wire not in self.wires:
            raise ProtocolError(f"{event}: the flow's wires are {self.wires}")
        if event.wire in self.lost:
            return ()
        self.lost.add(event.wire)
        notice = Notice(event.wire, event.cause)
        if event.wire == self.wire:
            self._notice = notice
            if self.state is _R.OPEN:
                self._left = NOTICES - 1
                self._go(_R.CUT)
                return (Tell(notice), Start(Timer.ANSWER))
        return (Tell(notice),)

    def _tell_again(self, event: Expired) -> Commands:
        """Nobody has asked for another wire: says again that its own is lost, a limited number of times."""
        if event.timer is not Timer.ANSWER or not self._left:
            return ()
        assert self._notice is not None
        self._left -= 1
        return (Tell(self._notice), Start(Timer.ANSWER, NOTICES - 1 - self._left))

    def _found(self, event: Found) -> Commands:
        """The wire may be asked for again, unless the flow is moving off it. If it is the flow's own, nothing can come
        by its former life any more, and there is no more to say about that."""
        if event.wire != self.wire:
            self.lost.discard(event.wire)
        elif self.state is _R.CUT:
            self.lost.discard(event.wire)
            self._notice, self._left = None, 0
        return ()

    def _ask(self, event: Ask) -> Commands:
        """A new epoch: fences the wire it is on, or refuses. The last epoch: the same answer again. Older: nothing."""
        if event.wire not in self.wires:
            raise ProtocolError(f"{event}: the flow's wires are {self.wires}")
        if event.epoch < self._asked.epoch:
            return ()
        if event.epoch == self._asked.epoch:
            return self._answer() if event.epoch == self.epoch else (Tell(Refuse(*event)),)
        self._asked, self._left = event, 0  # whoever asks has heard
        if event.wire in self.lost:
            return (Tell(Refuse(*event)),)
        if self.state is _R.CUT and self.wire not in self.lost:
            return self._move()  # its wire was lost, and has been found: so it was fenced
        if event.wire == self.wire:
            return (Tell(Refuse(*event)),)
        self._go(_R.FENCING)
        return (Fence(self.wire),)

    def _ask_other(self, event: Ask) -> Commands:
        """A later epoch replaces the question that it is fencing for. Anything else changes nothing."""
        if event.wire not in self.wires:
            raise ProtocolError(f"{event}: the flow's wires are {self.wires}")
        if event.epoch > self._asked.epoch:
            self._asked = event
        return ()

    def _fenced(self, event: Fenced) -> Commands:
        """Nothing more can land by the old wire: moves and answers, or refuses if the new wire is lost meanwhile."""
        if event.wire != self.wire:
            return ()
        self.lost.add(self.wire)
        epoch, wire = self._asked
        if wire in self.lost:
            self._go(_R.CUT)
            return (Tell(Refuse(epoch, wire)),)
        return self._move()

    def _move(self) -> Commands:
        self.epoch, self.wire = self._asked
        self._notice = None
        self._returned = self.folded
        self._go(_R.OPEN)
        return (Publish(self.epoch, self.landed, self.folded), *self._answer())

    def _answer(self) -> Commands:
        return (Tell(Answer(self.epoch, self.landed, self.folded)),)

    def _ignore(self, _: object) -> Commands:
        """Nothing: of no interest here."""
        return ()


_ALL = (_R.OPEN, _R.CUT, _R.FENCING)
Receiver.learn(
    table(
        (
            Row(_ALL, (Landed,), Receiver._landed),
            Row((_R.OPEN, _R.CUT), (Folded,), Receiver._folded),
            Row((_R.FENCING,), (Folded,), Receiver._fold),
            Row(_ALL, (Probe,), Receiver._probed),
            Row((_R.OPEN,), (Lost,), Receiver._lost, (_R.OPEN, _R.CUT)),
            Row((_R.CUT, _R.FENCING), (Lost,), Receiver._lost),
            Row((_R.CUT,), (Expired,), Receiver._tell_again),
            Row((_R.OPEN, _R.FENCING), (Expired,), Receiver._ignore),
            Row(_ALL, (Found,), Receiver._found),
            Row((_R.OPEN,), (Ask,), Receiver._ask, (_R.OPEN, _R.FENCING)),
            Row((_R.CUT,), (Ask,), Receiver._ask, (_R.CUT, _R.FENCING, _R.OPEN)),
            Row((_R.FENCING,), (Ask,), Receiver._ask_other),
            Row((_R.FENCING,), (Fenced,), Receiver._fenced, (_R.FENCING, _R.OPEN, _R.CUT)),
            Row((_R.OPEN, _R.CUT), (Fenced,), Receiver._ignore),
        )
    )
)
