"""The words of the failover protocol: what happens to a flow (events) and what is to be done about it (commands).

Every value is plain data. A flow has a `Sender` at one rank and a `Receiver` at the other; ``epoch`` counts its
failovers. Words that travel between ranks (`Ask`, `Answer`, `Probe`, `Alive`, `Notice`, `Suspect`) may be lost,
doubled, late and in any order.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from optcc.runtime.wires.contract import Cause


class Timer(StrEnum):
    """The clocks an end may ask for."""

    PROGRESS = "progress"  # runs while something is outstanding, starts anew with every sign of progress
    GRACE = "grace"  # from a living peer's answer until it is asked once more, for the verdict
    ANSWER = "answer"  # from a question to its repetition
    RETURN = "return"  # for a wire to come back, where none is left


# --- between ranks -------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """Sender to receiver: fence the flow's old wire and tell where to resume on `wire`, in `epoch`."""

    epoch: int
    wire: int


class Answer(NamedTuple):
    """Receiver to sender: in `epoch`, chunks below `landed` are here for good, those below `folded` folded."""

    epoch: int
    landed: int
    folded: int


class Refuse(NamedTuple):
    """Receiver to sender: `wire` is lost at this end too, ask for another in a later epoch."""

    epoch: int
    wire: int


class Probe(NamedTuple):
    """Sender to receiver: are you alive, and what has come through? `spread`: nothing has, so have all tested that
    shares my wire's NIC at your end; else this is such a test, or asked once more after grace, and the last credit is
    to come by the wire again."""

    epoch: int
    nonce: int
    spread: bool


class Alive(NamedTuple):
    """Receiver to sender: so much has come through."""

    epoch: int
    nonce: int
    landed: int
    folded: int


class Notice(NamedTuple):
    """Receiver to sender: this wire is lost here."""

    wire: int
    cause: Cause


class Suspect(NamedTuple):
    """Receiver to sender: my NIC of the flow's wire may be a black hole. The transport makes this a Doubt."""

    epoch: int


FlowMessage = Ask | Answer | Refuse | Probe | Alive | Notice | Suspect


# --- events --------------------------------------------------------------------------------------------------------


class Send(NamedTuple):
    """To the sender: one more chunk, its number is the next. Only while `Sender.may_send`."""


class Acked(NamedTuple):
    """To the sender: chunk `seq` is in its slot at the far end, by a completion of `wire`."""

    wire: int
    seq: int


class Credit(NamedTuple):
    """To the sender: chunks below `folded` have freed their slots."""

    wire: int
    folded: int


class Lost(NamedTuple):
    """To either end: a wire is lost. Any wire of the flow, not only the current one."""

    wire: int
    cause: Cause


class Found(NamedTuple):
    """To either end: a wire that was lost can be used again."""

    wire: int


class Fenced(NamedTuple):
    """To either end: this end of the wire is fenced and drained."""

    wire: int


class Expired(NamedTuple):
    """To either end: a timer has run out."""

    timer: Timer


class Doubt(NamedTuple):
    """To the sender: a NIC of its wire may be a black hole. A flow that owes nothing is tested by its last credit, once
    more; and, if `reading`, by its record, which is being read over its wire: Heard follows if that comes through."""

    reading: bool


class Heard(NamedTuple):
    """To the sender: the receiver's record has been read over the flow's wire of this epoch."""

    epoch: int


class Landed(NamedTuple):
    """To the receiver: chunk `seq`, written in `epoch`, is whole in its slot; it came on `wire`."""

    wire: int
    epoch: int
    seq: int


class Folded(NamedTuple):
    """To the receiver: chunk `seq` has been taken out of its slot. In any order."""

    seq: int


Event = (
    Send
    | Acked
    | Credit
    | Lost
    | Found
    | Fenced
    | Expired
    | Doubt
    | Heard
    | Landed
    | Folded
    | Ask
    | Answer
    | Refuse
    | Probe
    | Alive
    | Notice
)


# --- commands ------------------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """Write chunk `seq` on `wire`, marked with `epoch`; `again`: it is a replay."""

    wire: int
    epoch: int
    seq: int
    again: bool


class Fence(NamedTuple):
    """Put this end of the wire into error and drain it; Fenced follows. For a wire already fenced, at once."""

    wire: int


class Tell(NamedTuple):
    """Send a message to the other end."""

    message: FlowMessage


class Start(NamedTuple):
    """Start a timer, anew if it runs. `nth`: how often it has been for the same thing before; ANSWER may be short at
    first, and longer every time."""

    timer: Timer
    nth: int = 0


class Stop(NamedTuple):
    """Stop a timer, if it runs."""

    timer: Timer


class Spread(NamedTuple):
    """This end's NIC of the wire may be a black hole: have all flows whose wires use it tested (Doubt, Suspect)."""

    wire: int


class Deliver(NamedTuple):
    """Hand the chunk in the slot of `seq` to the engine; Folded follows."""

    seq: int


class Return(NamedTuple):
    """Send the credit `folded` to the sender on `wire`."""

    wire: int
    folded: int


class Echo(NamedTuple):
    """Send the last credit once more on `wire`, to see whether it comes through."""

    wire: int
    folded: int


class Publish(NamedTuple):
    """Set the completion record."""

    epoch: int
    landed: int
    folded: int


class Read(NamedTuple):
    """Read the receiver's completion record over `wire`, besides asking; the result comes as an Answer."""

    wire: int


class Release(NamedTuple):
    """Chunks below `seq` are safe at the far end: their payloads may change."""

    seq: int


class Moved(NamedTuple):
    """For the record: the flow has moved to `wire`; it was lost by `cause`; `replayed` chunks are written again."""

    epoch: int
    lost: int
    wire: int
    cause: Cause
    replayed: int


class Severed(NamedTuple):
    """No wire is left, or the other end does not answer: the collective has failed. `why` is for people."""

    why: str


Command = (
    Write | Fence | Tell | Start | Stop | Spread | Deliver | Return | Echo | Publish | Read | Release | Moved | Severed
)
