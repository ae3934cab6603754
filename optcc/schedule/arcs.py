"""Arcs of trees: from rank to rank, and as text, as plan files have them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from optcc.schedule.routes import Routes
from optcc.values.json_records import Text


class Arc(NamedTuple):
    """A route from rank to rank: out by the NICs of rail `out`, in by the NICs of rail `into`; None: by all NICs."""

    src: int
    dst: int
    out: int | None = None
    into: int | None = None

    def __str__(self) -> str:
        return f"{self.src}>{self.dst}" + ("" if self.out is None else f"@{self.out}:{self.into}")

    @classmethod
    def read(cls, text: str) -> Arc:
        """What `str` wrote."""
        ends, _, rails = text.partition("@")
        return cls(*map(int, ends.split(">")), *map(int, rails.split(":") if rails else ()))

    def route(self, routes: Routes) -> int:
        """Index of its route. Raises InfeasibleError where the fabric has none."""
        if self.out is None or self.into is None:
            return routes(self.src, self.dst)
        return routes.by_rail(self.src, self.dst, self.out, self.into)


Arcs = Annotated[
    tuple[Arc, ...],
    Text(
        r"([0-9]{1,9}>[0-9]{1,9}(@[0-9]{1,9}:[0-9]{1,9})?( |$))*",
        "SRC>DST or SRC>DST@RAIL:RAIL, with spaces between",
        lambda text: tuple(map(Arc.read, text.split())),
        lambda arcs: " ".join(map(str, arcs)),
    ),
]
