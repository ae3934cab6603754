"""A lower bound that knows latency and the cost of a chunk, and its certificate, as values.

The model is the simulator's. A chunk takes `per_chunk` seconds beside its bytes at the sending and at the receiving
port, and `alpha` passes in between. It is passed on only when it has landed whole. `optcc.theory.bound_costs` finds the
bound, `optcc.theory.bound_check` checks it. Proof ids chunk-costs and starving-pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from optcc.values.bound import Bound, Direction


@dataclass(frozen=True)
class FluidCosts:
    """The bound without costs, and one chunk and one way of latency for every port."""

    kind: Literal["fluid"] = "fluid"


@dataclass(frozen=True)
class CutCosts:
    """One server, whose live NICs one way must pass all bytes, in chunks that other ranks pass on.

    server : index; losses : seconds that each NIC with a rate in this direction loses, in order. It cuts its bytes into
    chunks and waits for chunks to be passed on
    """

    server: int
    direction: Direction
    losses: tuple[Fraction, ...]
    kind: Literal["cut"] = "cut"


@dataclass(frozen=True)
class PairCosts:
    """Two starving servers, by index; `direct` is the part of the elements sent straight between them, 0 to 1."""

    servers: tuple[int, int]
    direct: Fraction
    kind: Literal["starving-pair"] = "starving-pair"


@dataclass(frozen=True)
class Part:
    """Seconds of a bound, and in words what they are for."""

    what: str
    seconds: Fraction


@dataclass(frozen=True)
class BoundWithCosts:
    """No schedule of whole chunks takes less than `seconds`; exact.

    bound : the same without costs
    alpha : seconds from port to port; per_chunk : seconds of each chunk at each port
    parts : what `seconds` is made of, in words
    """

    seconds: Fraction
    bound: Bound
    alpha: Fraction
    per_chunk: Fraction
    certificate: FluidCosts | CutCosts | PairCosts
    parts: tuple[Part, ...]

    @property
    def extra_s(self) -> Fraction:
        """Seconds above the bound without costs."""
        return self.seconds - self.bound.seconds
