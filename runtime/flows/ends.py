"""What a rank knows about its ends of flows: their machines, the chunks that wait, and how a chunk names itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from optcc.runtime.protocol import Receiver, Sender
from optcc.runtime.wires.contract import HEADER_BYTES
from optcc.runtime.wires.layout import Layout

CHUNK_HEADER = Struct(f"<IIIIqqq{HEADER_BYTES - 40}x")
"""Mark, epoch, operation, bytes, seq, row, offset in the buffer."""

CHUNK_MARK = 0x0C0FFEE5
"""Marks a slot that holds a chunk."""

OPERATIONS = 1 << 16
"""The operation in a chunk's header: its number modulo a limit, and above it a sign of the call. Ranks that call
different things notice by this sign. The limit is more than twice the chunks that a rank has slots for.
So a rank that is ahead is told from one that is behind."""

SIGNS = 1 << 16
"""Signs are below this: the header has 32 bits for both."""

CREDITS = 4
"""A window is given back in so many parts: less to do than slot by slot, and the sender need not wait."""


class Piece(NamedTuple):
    """A chunk to send."""

    ready: float
    operation: int
    row: int
    offset: int
    payload: memoryview


@dataclass(eq=False)
class Out:
    """An outgoing flow: its machine, chunks not yet numbered, and numbered ones that may have to be sent again."""

    number: int
    peer: int
    home: int
    sender: Sender
    queue: deque[Piece] = field(default_factory=deque)
    kept: deque[Piece] = field(default_factory=deque)
    base: int = 0  # number of the first kept chunk
    numbered: int = 0  # bytes of all numbered chunks, kept or not

    def release(self, below: int) -> None:
        """Chunks below this one need not be kept any more."""
        kept, count = self.kept, below - self.base
        if count == len(kept):
            kept.clear()
        else:
            for _ in range(count):
                kept.popleft()
        self.base += max(count, 0)

    @property
    def brought(self) -> int:
        """Bytes that need not be kept any more. Counted when somebody looks, for every chunk would pay for it."""
        return self.numbered - sum(len(piece.payload) for piece in self.kept)

    @property
    def load(self) -> int:
        """Bytes that it has still to bring over."""
        return sum(len(piece.payload) for piece in (*self.kept, *self.queue))


@dataclass(eq=False)
class In:
    """An incoming flow."""

    number: int
    peer: int
    receiver: Receiver


class Ends:
    """All of one rank, by number of the flow: `outs`, `ins`, and both `using` a wire.

    Parameters
    ----------
    sender, receiver : the machines' classes
    """

    def __init__(
        self, rank: int, layout: Layout, sender: Callable[..., Sender], receiver: Callable[..., Receiver]
    ) -> None:
        self.rank, self.layout = rank, layout
        self.outs: dict[int, Out] = {}
        self.ins: dict[int, In] = {}
        self.using: dict[int, list[Out | In]] = {}  # wire -> the flows that may use it
        for f, spec in enumerate(layout.flows):
            if spec.src == rank:
                pairs = {wire: (layout.wires[wire].out, layout.wires[wire].into) for wire in spec.wires}
                self.outs[f] = Out(f, spec.dst, spec.wires[0], sender(spec.wires, spec.window, ends=pairs))
            elif spec.dst == rank:
                part = -(-spec.window // CREDITS)
                self.ins[f] = In(f, spec.src, receiver(spec.wires, spec.window, credit_every=part))
        every: list[Out | In] = [*self.outs.values(), *self.ins.values()]
        for end in every:
            for wire in layout.flows[end.number].wires:
                self.using.setdefault(wire, []).append(end)

    def __getitem__(self, flow: int) -> Out | In:
        return self.outs.get(flow) or self.ins[flow]

    def get(self, flow: int) -> Out | In | None:
        """This rank's end of a flow, if it has one."""
        return self.outs.get(flow) or self.ins.get(flow)

    def nic(self, wire: int) -> int:
        """This rank's NIC of a wire."""
        ends = self.layout.wires[wire]
        return ends.out if ends.src == self.rank else ends.into

    def names(self, wire: int) -> tuple[str, str]:
        """The NIC of this rank, and the one at the other end."""
        ends, nics = self.layout.wires[wire], self.layout.nics
        names = (nics[ends.out].name, nics[ends.into].name)
        return names if ends.src == self.rank else (names[1], names[0])


def machine_of(end: Out | In) -> Sender | Receiver:
    """The protocol's part of an end."""
    return end.sender if isinstance(end, Out) else end.receiver
