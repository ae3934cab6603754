"""The sending end of a flow: posts chunks within its window; when its wire is lost, asks where to resume on another.

What the transport owes this machine, besides carrying out its commands:

* Events of one rank in the order in which they happened. A timer's end comes only after everything that had happened by
  then, so a rank that was paused does not judge by what it has not looked at yet.
* `Timer.PROGRESS` is not started or stopped by commands, which every chunk would pay for. The transport samples eight
  times in a timeout. When `stuck(waiting)` has been true and `progress` the same for six looks, it says
  Expired(PROGRESS), and again at each look after that. GRACE and ANSWER are started and stopped by commands.
* Messages after everything that had happened on the wires at their arrival, at either end: so a rank has looked before
  it reports its progress or hears a report. Commands in their order: a credit is on its wire before the message that
  comes after it.
* Doubt only while `state` is ACTIVE, `reading` only if nothing is outstanding.
* No Expired(PROGRESS) and no Expired(GRACE) while what the flow's NIC was given before is still coming through.
* Lost to every flow of a wire, when it is lost and when another flow has fenced it.
* Found only for a wire whose ends are new, or will be before anything comes by it, and which no flow is moving off.
  Nothing about its former life, messages included, comes after that, nothing about its new one before. A flow may still
  be on it, if it waits there for a wire; its former end is fenced then, at either end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optcc.errors import InputError
from optcc.runtime.protocol.choice import choice
from optcc.runtime.protocol.doubting import MUTE, DoubtingSender, SenderState
from optcc.runtime.protocol.events import (
    Acked,
    Alive,
    Answer,
    Ask,
    Credit,
    Doubt,
    Expired,
    Fence,
    Fenced,
    Found,
    Heard,
    Lost,
    Moved,
    Notice,
    Read,
    Refuse,
    Release,
    Send,
    Severed,
    Start,
    Stop,
    Tell,
    Timer,
    Write,
)
from optcc.runtime.protocol.table import Commands, ProtocolError, Row, table
from optcc.runtime.wires.contract import Cause

_S = SenderState
_ON_WIRE = (_S.ACTIVE, _S.PROBING, _S.GRACE)

ASKS = 100
"""Questions without an answer before the flow is given up, unless told otherwise."""


class Sender(DoubtingSender):
    """The sending end of one flow, over `wires` (first choice first), with `window` landing slots at the far end.

    `ends` : the two NICs of each wire; of those left it takes the first that shares least with wires that are lost.
    `waits` : with no wire left it waits until one is found, as long as RETURN; else it gives up at once.

    Attributes, all counts of chunks since the flow was made, to be read only
    ----------
    state : SenderState
    wire : the wire it is on, or moving off
    epoch : of the last question; no epoch is used twice
    posted : chunks written
    acked : chunks known to be in their slots at the far end, for good
    folded : chunks known to have left them
    lost : wires out of the choice
    """

    __slots__ = ("_cause", "_target", "asks", "ends", "lost", "waits", "wires")

    def __init__(
        self,
        wires: Sequence[int],
        window: int,
        *,
        asks: int = ASKS,
        ends: Mapping[int, tuple[int, int]] | None = None,
        waits: bool = False,
    ) -> None:
        if not wires or len(set(wires)) != len(wires):
            raise InputError("a flow needs wires, each once", got=list(wires))
        if window < 1 or asks < 1:
            raise InputError("window and number of questions must be at least 1", got=(window, asks))
        super().__init__()
        self.wires, self.window, self.asks, self.ends, self.waits = tuple(wires), window, asks, ends or {}, waits
        self.wire = self.wires[0]
        self.posted = self.acked = self.folded = 0
        self.lost: set[int] = set()
        self._target: int | None = None  # the wire asked for
        self._cause = Cause.PORT  # why `wire` was lost, once it is

    @property
    def may_send(self) -> bool:
        """Whether Send is allowed now. When stranded, too: the first Send, not the idle flow, is what fails then."""
        return self.posted - self.folded < self.window and self.state not in MUTE

    @property
    def cause(self) -> Cause:
        """Why it left, or leaves, the last wire."""
        return self._cause

    # --- the flow -------------------------------------------------------------------------------------------------

    def _send(self, _: Send) -> Commands:
        """Writes the next chunk."""
        seq = self.posted
        if seq - self.folded >= self.window:
            raise ProtocolError(f"chunk {seq} sent into a full window")
        self.posted = seq + 1
        return (Write(self.wire, self.epoch, seq, False),)

    def _acked(self, event: Acked) -> Commands:
        """Releases all chunks up to this one; they land in order. Changes nothing for a wire that the flow has left."""
        wire, seq = event
        if wire != self.wire or seq < self.acked:
            return ()
        if seq >= self.posted:
            raise ProtocolError(f"chunk {seq} acknowledged, {self.posted} posted")
        self.acked = seq + 1
        return (Release(seq + 1),)

    def _credit(self, event: Credit) -> Commands:
        """Frees slots, whichever wire the credit comes by. A credit by the flow's own wire may end a suspicion."""
        folded = event.folded
        if folded > self.posted:
            raise ProtocolError(f"{folded} chunks folded, {self.posted} posted")
        if folded > self.folded:
            self.folded = folded
        return self._shown(Credit) if event.wire == self.wire else ()

    # --- failover -------------------------------------------------------------------------------------------------

    def _lost(self, event: Lost | Notice) -> Commands:
        """Its own wire: fences it, to move off, if there is another. Another wire: no candidate any more."""
        if event.wire != self.wire:
            return self._drop(event)
        return self._stop_doubt() + self._leave(Cause.NOTICE if type(event) is Notice else event.cause)

    def _leave(self, cause: Cause) -> Commands:
        self.lost.add(self.wire)
        self._cause, self._owed = cause, frozenset()
        if self._choice() is None and not self.waits:
            return self._no_wire()
        self._go(_S.FENCING)
        return (Fence(self.wire),)

    def _drop(self, event: Lost | Notice) -> Commands:
        """The wire is no candidate any more."""
        if event.wire not in self.wires:
            raise ProtocolError(f"{event}: the flow's wires are {self.wires}")
        self.lost.add(event.wire)
        return ()

    def _fenced(self, event: Fenced) -> Commands:
        """Its own end is drained: asks for the best wire left, in the next epoch."""
        return self._ask() if event.wire == self.wire else ()

    def _ask(self) -> Commands:
        self._target = self._choice()
        if self._target is None:
            return self._no_wire()
        self.epoch += 1
        self._left = self.asks - 1
        self._go(_S.ASKING)
        return self._question()

    def _question(self) -> Commands:
        assert self._target is not None
        return (
            Tell(Ask(self.epoch, self._target)),
            Read(self._target),
            Start(Timer.ANSWER, self.asks - 1 - self._left),
        )

    def _ask_again(self, event: Expired) -> Commands:
        """No answer: asks again, a limited number of times; then it gives up."""
        if event.timer is not Timer.ANSWER:
            return ()
        if not self._left:
            return self._sever(f"no answer to {self.asks} questions in epoch {self.epoch}")
        self._left -= 1
        return self._question()

    def _target_lost(self, event: Lost | Notice) -> Commands:
        """The wire asked for: asks for the next one, in the next epoch. Another wire: no candidate any more."""
        self._drop(event)
        return self._ask_anew() if event.wire == self._target else ()

    def _refused(self, event: Refuse) -> Commands:
        """The wire asked for is lost at the far end: asks for the next one, in the next epoch."""
        if event.epoch != self.epoch or event.wire != self._target:
            return ()
        self.lost.add(event.wire)
        return self._ask_anew()

    def _ask_anew(self) -> Commands:
        asked = self._ask()
        return asked if self.state is _S.ASKING else (Stop(Timer.ANSWER), *asked)

    def _answered(self, event: Answer) -> Commands:
        """In this epoch: releases what has landed, writes the rest again on the new wire."""
        epoch, landed, folded = event
        if epoch != self.epoch:
            return ()
        if not max(self.acked, self.folded, folded) <= landed <= self.posted:
            raise ProtocolError(f"{event}, but {self.posted} posted, {self.acked} acknowledged, {self.folded} folded")
        assert self._target is not None
        left, self.wire, self._target = self.wire, self._target, None
        release = (Release(landed),) if landed > self.acked else ()
        self.acked = landed
        self.folded = max(self.folded, folded)  # a credit by the new wire may be ahead of the answer
        self._go(_S.ACTIVE)
        again = tuple(Write(self.wire, epoch, seq, True) for seq in range(landed, self.posted))
        return (Stop(Timer.ANSWER), *release, Moved(epoch, left, self.wire, self._cause, len(again)), *again)

    # --- the choice -----------------------------------------------------------------------------------------------

    def _choice(self) -> int | None:
        return choice(self.wires, self.lost, self.ends)

    def _found(self, event: Found) -> Commands:
        """The wire is a candidate again, unless the flow is moving off it."""
        if event.wire != self.wire:
            self.lost.discard(event.wire)
        return ()

    def _rescued(self, event: Found) -> Commands:
        """A wire is found: fences the old one, to move off; where it has waited, that is done."""
        if self.waits:
            return self._returned(event)
        self._found(event)
        if self._choice() is None:
            return ()
        self._go(_S.FENCING)
        return (Fence(self.wire),)

    def _returned(self, event: Found) -> Commands:
        """A wire is found, maybe the one that it was on: asks for it."""
        self.lost.discard(event.wire)
        return (Stop(Timer.RETURN), *self._ask())

    def _in_vain(self, event: Expired) -> Commands:
        """No wire has come back in time: gives up what it owes."""
        if event.timer is not Timer.RETURN:
            return ()
        if self.posted > self.acked:
            return self._sever(self._why())
        self._go(_S.STRANDED)
        return ()

    def _no_wire(self) -> Commands:
        if self.waits:
            self._go(_S.WAITING)
            return (Start(Timer.RETURN),)
        # Where nothing is owed an operation may be over for this flow; a false alarm would fail it on every rank.
        if self.posted > self.acked:
            return self._sever(self._why())
        self._go(_S.STRANDED)
        return ()

    def _too_late(self, event: Send | Expired) -> Commands:
        """A chunk is to be sent and there is no wire: gives up."""
        if type(event) is Expired and event.timer is not Timer.PROGRESS:
            return ()
        return self._sever(self._why())

    def _why(self) -> str:
        waited = ", and none has come back" if self.waits else ""
        return f"no wire left of {len(self.wires)}; it was on wire {self.wire}, lost by {self._cause}{waited}"

    def _sever(self, why: str) -> Commands:
        self._go(_S.SEVERED)
        return (Severed(why),)

    def _ignore(self, _: object) -> Commands:
        """Nothing: stale, or of no interest here."""
        return ()


_ENDS = (_S.STRANDED, _S.SEVERED)
_EVENTS = (Send, Acked, Credit, Lost, Found, Fenced, Expired, Doubt, Heard, Answer, Refuse, Alive, Notice)
Sender.learn(
    table(
        (
            Row(_ON_WIRE, (Send,), Sender._send),
            Row((_S.STRANDED,), (Send,), Sender._too_late, (_S.SEVERED,)),
            Row((*_ON_WIRE, _S.FENCING), (Acked,), Sender._acked),
            Row((_S.ASKING, _S.WAITING, _S.STRANDED), (Acked,), Sender._ignore),
            Row((_S.ACTIVE, _S.FENCING, _S.ASKING, _S.WAITING, _S.STRANDED), (Credit,), Sender._credit),
            Row((_S.PROBING,), (Credit,), Sender._credit, (_S.PROBING, _S.ACTIVE)),
            Row((_S.GRACE,), (Credit,), Sender._credit, (_S.GRACE, _S.ACTIVE)),
            Row((_S.ACTIVE,), (Expired,), Sender._doubt, (_S.ACTIVE, _S.PROBING)),
            Row((_S.PROBING,), (Expired,), Sender._doubt_again, (_S.PROBING, _S.ACTIVE)),
            Row((_S.ACTIVE,), (Doubt,), Sender._suspected, (_S.PROBING,)),
            Row((_S.PROBING,), (Heard,), Sender._hears, (_S.PROBING, _S.ACTIVE)),
            Row((_S.GRACE,), (Heard,), Sender._hears, (_S.GRACE, _S.ACTIVE)),
            Row((_S.PROBING,), (Alive,), Sender._alive, (_S.PROBING, _S.ACTIVE, _S.GRACE, _S.FENCING, *_ENDS)),
            Row((_S.GRACE,), (Expired,), Sender._verdict, (_S.GRACE, _S.ACTIVE, _S.PROBING)),
            Row((_S.ACTIVE,), (Lost, Notice), Sender._lost, (_S.ACTIVE, _S.FENCING, *_ENDS)),
            Row((_S.PROBING,), (Lost, Notice), Sender._lost, (_S.PROBING, _S.FENCING, *_ENDS)),
            Row((_S.GRACE,), (Lost, Notice), Sender._lost, (_S.GRACE, _S.FENCING, *_ENDS)),
            Row((_S.FENCING, _S.WAITING, _S.STRANDED), (Lost, Notice), Sender._drop),
            Row((_S.FENCING,), (Fenced,), Sender._fenced, (_S.FENCING, _S.ASKING, _S.WAITING, *_ENDS)),
            Row((_S.ASKING,), (Answer,), Sender._answered, (_S.ASKING, _S.ACTIVE)),
            Row((_S.ASKING,), (Refuse,), Sender._refused, (_S.ASKING, _S.WAITING, *_ENDS)),
            Row((_S.ASKING,), (Lost, Notice), Sender._target_lost, (_S.ASKING, _S.WAITING, *_ENDS)),
            Row((_S.ASKING,), (Expired,), Sender._ask_again, (_S.ASKING, _S.SEVERED)),
            Row((*_ON_WIRE, _S.FENCING, _S.ASKING), (Found,), Sender._found),
            Row((_S.WAITING,), (Found,), Sender._returned, (_S.ASKING,)),
            Row((_S.WAITING,), (Expired,), Sender._in_vain, (_S.WAITING, *_ENDS)),
            Row((_S.STRANDED,), (Found,), Sender._rescued, (_S.STRANDED, _S.FENCING, _S.ASKING)),
            Row((_S.STRANDED,), (Expired,), Sender._too_late, (_S.STRANDED, _S.SEVERED)),
            Row((*_ON_WIRE, _S.ASKING, _S.WAITING, _S.STRANDED), (Fenced,), Sender._ignore),
            Row((_S.FENCING,), (Expired,), Sender._ignore),
            Row((_S.PROBING, _S.GRACE, _S.FENCING, _S.ASKING, _S.WAITING, _S.STRANDED), (Doubt,), Sender._ignore),
            Row((_S.ACTIVE, _S.FENCING, _S.ASKING, _S.WAITING, _S.STRANDED), (Heard,), Sender._ignore),
            Row((*_ON_WIRE, _S.FENCING, _S.WAITING, _S.STRANDED), (Answer, Refuse), Sender._ignore),
            Row((_S.ACTIVE, _S.GRACE, _S.FENCING, _S.ASKING, _S.WAITING, _S.STRANDED), (Alive,), Sender._ignore),
            Row((_S.SEVERED,), _EVENTS, Sender._ignore),
        )
    )
)
