"""What the hub and the ranks say to each other. All of it travels as JSON (`codec`), nothing is ever unpickled.

Ranks command themselves. They send messages to each other and exchange values through the hub, which says who has
failed, has plans renewed, and hands on what ranks are given to do, and what they report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import get_args

from optcc.runtime.codec import Json

# --- what ranks are given to do ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strike:
    """A fault to inject: `kind` (see `fault_injection`) at NIC `nic`, when a part `at` of its rank's transfers are
    done.

    amount : what the kind needs, such as the part of the rate that is left, or seconds
    far : the NIC at the other end, for a kind that strikes a path
    """

    kind: str
    nic: str
    at: float
    amount: float = 0.0
    far: str = ""


@dataclass(frozen=True)
class RunCall:
    """Run this algorithm of the job once, and inject these faults.

    timed : report when each transfer landed, too
    """

    algorithm: str
    strikes: list[Strike]
    timed: bool = False


# --- from the hub to ranks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renew:
    """Once operation `after` is over, plan anew, without these NICs."""

    after: int
    nics: list[str]


@dataclass(frozen=True)
class RunFailed:
    """The verdict: this rank failed, so the run has."""

    rank: int
    cause: str


@dataclass(frozen=True)
class SharedValues:
    """The end of an exchange: the values of all ranks, by rank."""

    turn: int
    values: list[Json]


@dataclass(frozen=True)
class Time:
    """The hub's monotonic clock, as question `turn` came."""

    turn: int
    at: float


@dataclass(frozen=True)
class Halt:
    """Begin no operation after the one you are in, and say which; Renew follows."""


@dataclass(frozen=True)
class Regroup:
    """After a verdict: who goes on, by their numbers in the first group, before any was lost; the next message is the
    first one of the new group. Nobody: they were too few, for `missing` live."""

    numbers: list[int]
    missing: list[int]


@dataclass(frozen=True)
class AskCall:
    """What have you called as this operation? Answered once it is called."""

    operation: int


ToRank = Renew | Halt | AskCall | Regroup | RunFailed | SharedValues | Time

# --- from a rank to the hub -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """The first word of a rank that has inherited its connection."""


@dataclass(frozen=True)
class Saw:
    """The last word of a rank: the error it raised on the verdict."""

    text: str


@dataclass(frozen=True)
class RankJournal:
    """What this rank has noted of the collective under way, or the last one; it began at `start_s`, None: not yet.

    Part of a rank's last words, so that more is left of a failed run than its verdict.
    """

    start_s: float | None
    notes: list[Note]


@dataclass(frozen=True)
class Report:
    """What has become of what this rank was given to do. Dataclasses travel by `codec.plain` and `codec.typed`."""

    value: Json = None


@dataclass(frozen=True)
class Left:
    """This rank has left, in order."""


@dataclass(frozen=True)
class Broken:
    """A rank cannot go on: because of itself, or because it lost rank `blames`."""

    cause: str
    blames: int | None = None


@dataclass(frozen=True)
class Share:
    """This rank's value in the exchange number `turn`."""

    turn: int
    value: Json


@dataclass(frozen=True)
class AskTime:
    """What does the hub's clock say? Answered at once, with the same `turn`."""

    turn: int


@dataclass(frozen=True)
class Halted:
    """The last operation that this rank has begun."""

    operation: int


@dataclass(frozen=True)
class LostNics:
    """NICs that this rank takes to be dead: the plan has to do without them. `back` : those that it can use, again."""

    nics: list[str]
    back: list[str]


@dataclass(frozen=True)
class Late:
    """What this rank is in has taken too long: `cause`; it waits for rank `peer`, which may wait for another one.

    None: it cannot tell for which.
    """

    peer: int | None
    cause: str


CLOSE = "close()"
"""A call as any other: who calls something else meanwhile waits for nobody."""


@dataclass(frozen=True)
class HasCalled:
    """What this rank has called as this operation, in words that are the same where ranks call alike."""

    operation: int
    call: str


@dataclass(frozen=True)
class Shrink:
    """After the verdict: this rank goes on with those that are left, which may take so many seconds to say so, too.

    without : who has failed, by their numbers in the first group, by what this rank was told
    """

    within_s: float
    without: list[int]


Judged = Halted | LostNics | Late | HasCalled | Shrink


@dataclass(frozen=True)
class Joined:
    """Said of a rank, not by it: it has been let in."""


@dataclass(frozen=True)
class Gone:
    """Said of a rank, not by it: its connection has ended, or nothing that comes over it is believed any more."""

    cause: str = "its process has ended, or its connection was cut"


FromRank = Judged | Here | Saw | RankJournal | Report | Left | Broken | Share | AskTime

# --- inside reports -------------------------------------------------------------------------------------------------


class Cause(StrEnum):
    """Why a wire or a NIC is taken to be lost."""

    PORT = "port event"  # the NIC says that its link is down
    ERROR = "completion error"  # the NIC has given up on a write: retries exceeded, or flushed
    CLOSED = "connection closed"  # the far end's socket is gone
    DEVICE = "device fatal"  # the NIC itself is gone, or refuses work
    NOTICE = "peer's notice"  # the other end has seen one of the above
    PROGRESS = "no progress"  # nothing comes through although the peer is alive: a black hole


@dataclass(frozen=True)
class Note:
    """Something worth telling, at a time of the rank's clock; once it has left the rank, of the hub's.

    kind : "struck" (a fault was injected), "nic down", "lost" (a wire), "fenced" (this end of a lost wire is drained);
        "moved" (a flow, off a lost wire); the outcome of a fault: "healed", "held" (up to the end), "slowed"
    nic : the NIC of this rank; far : the NIC at the other end, if it is about a wire
    cause : how it was detected, or the kind of the fault; text : for people
    nbytes : bytes sent again; of a NIC that was slowed down, sent since
    held : notifications, acknowledgements and credits that the fault has kept waiting, as the wires have counted
    """

    at: float
    kind: str
    nic: str
    far: str = ""
    cause: str = ""
    text: str = ""
    nbytes: int = 0
    held: int = 0


@dataclass(frozen=True)
class Ran:
    """Times of the hub's monotonic clock, processor seconds, payload bytes sent by NIC (replays too), what happened.

    landed : received transfer -> when, if that was asked for
    clock_error_s : so far may the times be off the hub's clock; 0: the rank has the same one
    """

    start_s: float
    end_s: float
    cpu_s: float
    sent: Mapping[str, int]
    notes: list[Note]
    landed: Mapping[int, float]
    clock_error_s: float = 0.0


TO_RANK: tuple[type, ...] = get_args(ToRank)
FROM_RANK: tuple[type, ...] = get_args(FromRank)

FRAME_LIMIT = 1 << 26
"""The most bytes of one message between a hub and a rank that know each other."""
PAYLOAD_LIMIT = 1 << 30
"""The most bytes of a payload, of the hub alone: schedules of 25 million transfers, 42 bytes each."""

PARCEL = b"\0"
"""The first byte of a frame whose rest is a payload, as it is; messages start with a brace."""
