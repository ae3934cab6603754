"""The contract between the flows of a rank and what really carries their chunks: virtual, local sockets, verbs.

A *wire* goes from one NIC of a rank to one NIC of another and keeps order; it is a queue pair, or what stands for one.
All wires of a job are numbered alike on all ranks. A wire carries chunks one way; what is small goes back on it.
A chunk is written into a landing slot of its flow: ``seq % window``, at the far end, whichever wire it takes.

Whatever happens to a wire is reported by `poll`, in the order in which it happened; no call here blocks or raises
because a wire is down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class Wire:
    """From NIC `out` of rank `src` to NIC `into` of rank `dst`; NICs are indices of the schedule's ports."""

    src: int
    dst: int
    out: int
    into: int


@dataclass(frozen=True)
class FlowSpec:
    """A directed flow between two ranks, on its home wire while that lives.

    wires : wires it may use, its home wire first, then backups by preference (indices into the table of wires)
    window : landing slots; slot_bytes : the most that a chunk carries, header not counted
    """

    src: int
    dst: int
    wires: tuple[int, ...]
    window: int
    slot_bytes: int


HEADER_BYTES = 64
"""In front of every chunk in its slot: what it is, for `flows`. One cache line, so that payloads stay aligned."""


ECHOES = 2
"""So often a flow's last credit may have been said again before its sender looks. Every doubt asks for one; each end
suspects its NIC at most once in GRACE, and nothing that comes through is in flight for longer. Of questions that come
together, as after a pause of the control channel, one is answered."""


class Cause(StrEnum):
    """Why a wire or a NIC is taken to be lost."""

    PORT = "port event"  # the NIC says that its link is down
    ERROR = "completion error"  # the NIC has given up on a write: retries exceeded, or flushed
    CLOSED = "connection closed"  # the far end's socket is gone
    DEVICE = "device fatal"  # the NIC itself is gone, or refuses work
    NOTICE = "peer's notice"  # the other end has seen one of the above
    PROGRESS = "no progress"  # nothing comes through although the peer is alive: a black hole


class Completed(NamedTuple):
    """Chunk `seq`, written on this rank's outgoing wire, is in its slot at the far end (acknowledged).

    And with it what was written on this wire for this flow before it, said or not.
    """

    wire: int
    flow: int
    seq: int


class Arrived(NamedTuple):
    """A chunk is whole in slot ``seq % window`` of an incoming flow, since the time `at` of the rank's clock."""

    wire: int
    flow: int
    seq: int
    at: float


class Credited(NamedTuple):
    """The far end has folded all chunks below `folded` of an outgoing flow."""

    wire: int
    flow: int
    folded: int


class Failed(NamedTuple):
    """A wire is lost, from this end's view. `detail` is for people: status, vendor code."""

    wire: int
    cause: Cause
    detail: str


class Drained(NamedTuple):
    """After `fence`: nothing more comes out of this end of the wire, nor goes in; all before has been reported."""

    wire: int


class Record(NamedTuple):
    """The answer to `ask_record`: what the receiver of `flow` has published."""

    flow: int
    epoch: int
    landed: int
    folded: int


class PortDown(NamedTuple):
    """A NIC of this rank (index of its port) has lost its link or is gone."""

    nic: int
    cause: Cause
    detail: str


class PortUp(NamedTuple):
    """A NIC of this rank is back. Its wires stay lost until they are made anew."""

    nic: int


Happening = Completed | Arrived | Credited | Failed | Drained | Record | PortDown | PortUp


class Wires(Protocol):
    """One rank's ends of all wires that leave or enter it. A context manager; leaves nothing open.

    Raises TransportError from `poll` for what is a bug and not a lost NIC (REM_ACCESS, LOC_PROT, REM_INV_REQ, ...).
    """

    def register(self, memory: memoryview) -> None:
        """Payloads that are written from now on lie inside `memory`; replaces the one registered before."""
        ...

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        """Write HEADER_BYTES of header, then the payload, into slot ``seq % window`` at the far end.

        The payload stays unchanged until its Completed, or until the wire is drained. It could have gone since the
        time `ready`: for wires that emulate rates; real ones have no use for it.
        """
        ...

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """Tell the far end of an incoming wire that all chunks of `flow` below `folded` are folded. Cumulative.

        As long as the far end does not poll: at most `window` credits of a flow, and ECHOES of the last one.
        """
        ...

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """Set the completion record of an incoming flow, which its sender can read without this rank's processor."""
        ...

    def ask_record(self, wire: int, flow: int) -> bool:
        """Read the far end's record of an outgoing flow over `wire`; a Record follows. False: cannot be done here."""
        ...

    def fence(self, wire: int) -> None:
        """Put this end of a wire into error, so that no old write can reach or leave it. A Drained follows."""
        ...

    def slot(self, flow: int, seq: int) -> memoryview:
        """The landing slot of a chunk of an incoming flow, HEADER_BYTES + slot_bytes, in this rank's memory."""
        ...

    def free_at(self, wire: int, now: float) -> float:
        """The time from which the NIC that an outgoing wire leaves by can take another chunk: past, or `now`.

        inf: not before `poll` has returned. Emulated NICs know when they will have sent what they were given; real
        ones are kept busy with a few chunks and no more, so that which chunk goes next is decided late.
        """
        ...

    def poll(self, until: float) -> Sequence[Happening]:
        """Wait until something happens, `until` (the rank's clock, seconds; inf: for ever) or the watch speaks.

        -inf: no wait, but a look at everything; whatever had happened before is told, and the watch is heard.
        """
        ...

    def close(self) -> None:
        """Free everything, children first."""
        ...


@dataclass(frozen=True)
class Abilities:
    """What some wires can do besides what `Wires` says; None where they cannot.

    flush : of wires that collect what is written until the next poll: gives it to NICs now
    hasten : (wire, flow, seq): of wires that report only some completions. After it `poll` reports at once what has
        landed of `flow`, and `seq` as soon as it has
    landed : (wire, flow): of the same wires, how many chunks of an outgoing flow can be seen to have landed now
    payload : (flow, seq, nbytes): of wires whose payloads land elsewhere than their headers, in a GPU's memory, the
        landed bytes of a chunk. Where `Wires.write` says memoryview, they take the GPU's equivalent
    clock : of wires with a clock of their own, the time in seconds
    look_again : of wires that look at the clock once for a poll, the time by a new look: a timer that is started after
        a long fold must not be over at once
    held : (nic): of emulated wires, wire -> chunks that a fault holds back
    break_path : (nic, far): of emulated wires, breaks what goes between two NICs
    renew : (wire): makes this rank's end of a drained wire anew; a JSON value by which the far end reaches it. None:
        not now, its NIC has no link. Again before `join`: the same end, and the same value
    join : (wire, what the far end's `renew` gave): connects it. The receiver's end first, and both before anything is
        written. False: not now
    """

    flush: Callable[[], None] | None
    hasten: Callable[[int, int, int], None] | None
    landed: Callable[[int, int], int] | None
    payload: Callable[[int, int, int], Any] | None
    clock: Callable[[], float] | None
    look_again: Callable[[], float] | None
    held: Callable[[int], Mapping[int, int]] | None
    break_path: Callable[[int, int], None] | None
    renew: Callable[[int], Any] | None
    join: Callable[[int, Any], bool] | None

    @classmethod
    def of(cls, wires: Wires) -> Abilities:
        """Those of `wires`: its methods of these names."""
        return cls(**{field.name: getattr(wires, field.name, None) for field in fields(cls)})
