"""What the hub and the ranks say to each other. All of it travels as JSON (`codec`), nothing is ever unpickled.

One command at a time goes to all ranks, and one reply comes from each. Besides, the hub may ask at any moment for a
sign of life or tell that the run has failed, and ranks send letters to each other and exchange values through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from optcc.runtime.codec import Json

# --- commands, from the hub to every rank ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Enlist:
    """Take the job whose parcel came before, and connect to the others. Again, for another job of the same ranks.

    digests : of the job's schedules, by name
    """

    digests: Mapping[str, str]


@dataclass(frozen=True)
class Strike:
    """A fault to inject: `kind` (see `strikes`) at NIC `nic`, when a part `at` of its rank's transfers are done.

    amount : what the kind needs, such as the part of the rate that is left, or seconds
    """

    kind: str
    nic: str
    at: float
    amount: float = 0.0


@dataclass(frozen=True)
class Prepare:
    """Fill the buffer and get ready to run this algorithm, and to strike.

    timed : tell afterwards when each transfer landed
    """

    algorithm: str
    strikes: list[Strike]
    timed: bool = False


@dataclass(frozen=True)
class Go:
    """Run, starting at this time of the monotonic clock, which all processes of a machine share."""

    at: float


@dataclass(frozen=True)
class Check:
    """Compare the buffer with the reference."""


@dataclass(frozen=True)
class Quit:
    """The end."""


Command = Enlist | Prepare | Go | Check | Quit

# --- what else the hub says -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ping:
    """Are you alive?"""


@dataclass(frozen=True)
class Failed:
    """The verdict: this rank failed, so the run has."""

    rank: int
    cause: str


@dataclass(frozen=True)
class Letter:
    """What rank `origin` has sent to you."""

    origin: int
    value: Json


@dataclass(frozen=True)
class Shared:
    """The end of an exchange: the values of all ranks, by rank."""

    turn: int
    values: list[Json]


@dataclass(frozen=True)
class Parcel:
    """So many bytes follow in pieces, with this SHA-256."""

    nbytes: int
    sha256: str


ToRank = Command | Ping | Failed | Letter | Shared | Parcel

# --- from a rank to the hub -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pong:
    """Alive: a number that grows with progress, and what is waited for."""

    progress: int
    waiting_for: str


@dataclass(frozen=True)
class Saw:
    """The last word of a rank: the error it raised on the verdict."""

    text: str


@dataclass(frozen=True)
class Reply:
    """A command is done. Values that are dataclasses travel by `codec.plain` and `codec.typed`."""

    value: Json = None


@dataclass(frozen=True)
class Broken:
    """A rank cannot go on: because of itself, or because it lost rank `blames`."""

    cause: str
    blames: int | None = None


@dataclass(frozen=True)
class Post:
    """A letter to rank `to`."""

    to: int
    value: Json


@dataclass(frozen=True)
class Share:
    """This rank's value in the exchange number `turn`."""

    turn: int
    value: Json


FromRank = Pong | Saw | Reply | Broken | Post | Share

# --- inside replies -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """Something worth telling, at a time of the rank's clock.

    kind : "struck" (a fault was injected), "nic down", "lost" (a wire), "moved" (a flow, off a lost wire)
    nic : the NIC of this rank; far : the NIC at the other end, if it is about a wire
    cause : how it was detected; text : for people
    nbytes : bytes sent again
    """

    at: float
    kind: str
    nic: str
    far: str = ""
    cause: str = ""
    text: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class Ran:
    """Times of the monotonic clock, processor seconds, payload bytes sent by NIC (replays too), and what happened.

    landed : received transfer -> when, if that was asked for
    """

    start_s: float
    end_s: float
    cpu_s: float
    sent: Mapping[str, int]
    notes: list[Note]
    landed: Mapping[int, float]


TO_RANK: tuple[type, ...] = get_args(ToRank)
FROM_RANK: tuple[type, ...] = get_args(FromRank)

FRAME_LIMIT = 1 << 26
"""The most bytes of one message between a hub and a rank that know each other."""

PIECE_BYTES = 1 << 20
"""Of a parcel at a time, so that a question for a sign of life need not wait for the rest."""

PIECE = b"\0"
"""The first byte of a frame that is a piece of a parcel; messages start with a brace."""
