"""Ends of a flow with a bug planted in each. The first word of a docstring is the invariant that the bug breaks."""

from __future__ import annotations

from typing import Any

from optcc.runtime.protocol import Receiver, ReceiverState, Sender, SenderState
from optcc.runtime.protocol.events import (
    Alive,
    Answer,
    Ask,
    Credit,
    Doubt,
    Echo,
    Expired,
    Fenced,
    Folded,
    Found,
    Heard,
    Landed,
    Lost,
    Notice,
    Probe,
    Refuse,
    Return,
    Start,
    Timer,
    Write,
)
from optcc.runtime.protocol.table import Commands
from optcc.runtime.wires.contract import Cause


class ClaimsTooMuch(Receiver):
    """I1: answers for a chunk that has not landed."""

    __slots__ = ()

    def _fenced(self, event: Fenced) -> Commands:
        self.landed += 1
        return super()._fenced(event)


class ForgetsTheLast(Receiver):
    """I2: forgets the last chunk that it has delivered."""

    __slots__ = ()

    def _fenced(self, event: Fenced) -> Commands:
        self.landed = max(self.landed - 1, 0)
        return super()._fenced(event)


class ResumesByItself(Sender):
    """I3: resumes at what it knows to be acknowledged, not where the receiver is."""

    __slots__ = ()

    def _answered(self, event: Answer) -> Commands:
        return super()._answered(event._replace(landed=self.acked, folded=self.folded))


class AnswersAtOnce(Receiver):
    """I4: answers before its end of the old wire is fenced."""

    __slots__ = ()

    def _ask(self, event: Ask) -> Commands:
        commands = super()._ask(event)
        return commands + self._fenced(Fenced(self.wire)) if self.state is ReceiverState.FENCING else commands


class AsksUnfenced(Sender):
    """I4: asks before its own end of the old wire is fenced."""

    __slots__ = ()

    def _leave(self, cause: Cause) -> Commands:
        super()._leave(cause)
        return self._ask() if self.state is SenderState.FENCING else ()


class SwapsPairs(Receiver):
    """I5: delivers every other chunk before the one ahead of it."""

    __slots__ = ("held",)

    def _landed(self, event: Landed) -> Commands:
        commands = super()._landed(event)
        if event.seq % 2:
            return commands + getattr(self, "held", ())
        self.held = commands
        return ()


class TakesAnyAnswer(Sender):
    """I6: does not look at an answer's epoch."""

    __slots__ = ()

    def _answered(self, event: Answer) -> Commands:
        return super()._answered(event._replace(epoch=self.epoch))


class HeedsAnyQuestion(Receiver):
    """I6: takes every question for a new one."""

    __slots__ = ()

    def _ask(self, event: Ask) -> Commands:
        self._asked = Ask(event.epoch - 1, self.wire)
        return super()._ask(event)


class ReusesAnEpoch(Sender):
    """I3: asks for another wire in the same epoch."""

    __slots__ = ()

    def _ask_anew(self) -> Commands:
        self.epoch -= 1
        return super()._ask_anew()


class MarksWithTheFirstEpoch(Sender):
    """I4: writes again as if nothing had happened."""

    __slots__ = ()

    def _answered(self, event: Answer) -> Commands:
        commands = super()._answered(event)
        return tuple(command._replace(epoch=0) if isinstance(command, Write) else command for command in commands)


class AnswersOnce(Receiver):
    """I7: does not answer a question that is repeated."""

    __slots__ = ()

    def _ask(self, event: Ask) -> Commands:
        return () if event.epoch == self._asked.epoch else super()._ask(event)


class AsksOnce(Sender):
    """I7: relies on its messages."""

    __slots__ = ()

    def _ask_again(self, _: Expired) -> Commands:
        return ()


class GivesUpEarly(Sender):
    """I7: is severed though a wire is left."""

    __slots__ = ()

    def _refused(self, event: Refuse) -> Commands:
        return self._sever("refused")


class TrustsTheLast(Sender):
    """I8: takes the last acknowledgement for granted."""

    __slots__ = ()

    def stuck(self, waiting: bool) -> bool:
        return super().stuck(waiting) and self.outstanding != 1


class OneTooMany(Sender):
    """I9: has more chunks under way than there are slots."""

    __slots__ = ()

    def __init__(self, wires: Any, window: int, **limits: int) -> None:
        super().__init__(wires, window + 1, **limits)


class CreditsEarly(Receiver):
    """I9: returns credits for what has landed, folded or not."""

    __slots__ = ()

    def _folded(self, event: Folded) -> Commands:
        commands = super()._folded(event)
        return (Return(self.wire, self.landed),) if commands else ()


class LeavesAnyway(Sender):
    """I10: moves off its wire when another one is lost."""

    __slots__ = ()

    def _drop(self, event: Lost | Notice) -> Commands:
        super()._drop(event)
        return self._leave(Cause.PORT) if self.state is SenderState.ACTIVE else ()


class WantsCreditsByItsWire(Sender):
    """I11: drops the credit by the new wire that overtakes the answer, and blames the wire."""

    __slots__ = ()

    def _credit(self, event: Credit) -> Commands:
        return super()._credit(event) if event.wire == self.wire else ()


class CondemnsAnyway(Sender):
    """I11: does not look at what has come through in the time of grace."""

    __slots__ = ()

    def _verdict(self, event: Expired) -> Commands:
        return self._leave(Cause.PROGRESS) if event.timer is Timer.GRACE else ()


class Impatient(Sender):
    """I11: takes a deadline without progress for proof, without asking whether the peer is alive."""

    __slots__ = ()

    def _doubt(self, event: Expired) -> Commands:
        return self._leave(Cause.PROGRESS)


class TakesDoubtForProof(Sender):
    """I10: moves off a wire because others have come upon a black hole."""

    __slots__ = ()

    def _suspected(self, event: Doubt) -> Commands:
        return self._leave(Cause.PROGRESS)


class DoesNotHear(Sender):
    """I10: pays no attention to a record that has come over the wire in doubt."""

    __slots__ = ()

    def _hears(self, event: Heard) -> Commands:
        return ()


class DoesNotEcho(Receiver):
    """I10: sends no credit again, which the test of an idle flow waits for."""

    __slots__ = ()

    def _probed(self, event: Probe) -> Commands:
        return tuple(command for command in super()._probed(event) if not isinstance(command, Echo))


class EchoesEveryProbe(Receiver):
    """I18: sends the last credit once more for every probe, also where messages are doubled or repeated."""

    __slots__ = ()

    def _probed(self, event: Probe) -> Commands:
        commands = super()._probed(event)
        said = any(isinstance(command, Echo) for command in commands)
        return commands if said or not commands or event.spread else (*commands, Echo(self.wire, self._returned))


class EchoesAfterwards(Receiver):
    """I11: says that it is alive before the credit is on its wire again, and is paused between."""

    __slots__ = ()

    def _probed(self, event: Probe) -> Commands:
        return tuple(sorted(super()._probed(event), key=lambda command: isinstance(command, Echo)))


class DoesNotAskAgain(Sender):
    """I11: takes a peer that was alive when grace began to be so at its end."""

    __slots__ = ()

    def _verdict(self, event: Expired) -> Commands:
        commands = super()._verdict(event)
        return self._leave(Cause.PROGRESS) if self.state is SenderState.PROBING else commands


class TakesLifeForProof(Sender):
    """I11: asks again, but not how far the peer has got since."""

    __slots__ = ()

    def _overdue(self, said: Alive) -> bool:
        return True


class AsksWithTheSameNumber(Sender):
    """I6: after grace takes the first answer, doubled, for the second."""

    __slots__ = ()

    def _verdict(self, event: Expired) -> Commands:
        self._nonce -= 1
        return super()._verdict(event)


class NeverJudges(Sender):
    """I8: gives the wire its grace for ever."""

    __slots__ = ()

    def _verdict(self, event: Expired) -> Commands:
        return (Start(Timer.GRACE),) if event.timer is Timer.GRACE else ()


class BlamesTheWire(Sender):
    """I11: gives a living peer's wire its grace, whether or not the wire owes anything."""

    __slots__ = ()

    def _owes(self, said: Alive) -> bool:
        return True


class ComesBackByItself(Sender):
    """I13: goes back to a wire that is found again without a question to anybody."""

    __slots__ = ()

    def _found(self, event: Found) -> Commands:
        super()._found(event)
        if self.state is SenderState.ACTIVE:
            self.wire = event.wire
        return ()


class AsksForNewWiresOnly(Sender):
    """I13: goes on, on a wire that was found again, where it believes to be; the receiver is not waited for."""

    __slots__ = ("again",)

    def __init__(self, *args: Any, **limits: int) -> None:
        super().__init__(*args, **limits)
        self.again: set[int] = set()

    def _found(self, event: Found) -> Commands:
        self.again.add(event.wire)
        return super()._found(event)

    def _fenced(self, event: Fenced) -> Commands:
        commands = super()._fenced(event)
        if self.state is SenderState.ASKING and self._target in self.again:
            return commands + self._answered(Answer(self.epoch, self.acked, self.folded))
        return commands


FAILBACK_MUTANTS = (ComesBackByItself, AsksForNewWiresOnly)
"""They do harm only when a wire is found again, and then to I1 to I5."""
MUTANTS = tuple(
    kind
    for kind in vars().copy().values()
    if isinstance(kind, type) and kind.__module__ == __name__ and kind not in FAILBACK_MUTANTS
)
