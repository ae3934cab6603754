"""The 32 bits that travel with every write: which of the wire's flows, and the low bits of a chunk's number.

The high bits are those that bring the number nearest to the flow's last one. This is unique, as a window of slots is
far smaller than the range of the low bits. Chunks go one way on a queue pair and credits the other, so the kind need
not be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optcc.errors import InputError
from optcc.runtime.wires.contract import FlowSpec

_NUMBER_BITS = 22
_MODULUS = 1 << _NUMBER_BITS
_FLOWS_PER_WIRE = 1 << (32 - _NUMBER_BITS)


class Immediates:
    """Packs and unpacks, for the given wires; both ends of a wire agree since both know all flows."""

    def __init__(self, wires: Iterable[int], flows: Sequence[FlowSpec]) -> None:
        self._users = {w: [f for f, flow in enumerate(flows) if w in flow.wires] for w in wires}
        self._place = {w: {f: i for i, f in enumerate(users)} for w, users in self._users.items()}
        self._latest = [0] * len(flows)
        for w, users in self._users.items():
            if len(users) > _FLOWS_PER_WIRE:
                raise InputError(
                    "too many flows", where=f"wire {w}", expected=f"at most {_FLOWS_PER_WIRE}", got=len(users)
                )

    def pack(self, wire: int, flow: int, number: int) -> int:
        """The immediate value."""
        return self._place[wire][flow] << _NUMBER_BITS | number % _MODULUS

    def unpack(self, wire: int, immediate: int) -> tuple[int, int]:
        """The flow and the number."""
        flow = self._users[wire][immediate >> _NUMBER_BITS]
        latest, half = self._latest[flow], _MODULUS // 2
        self._latest[flow] = latest + (immediate - latest + half) % _MODULUS - half
        return flow, self._latest[flow]
