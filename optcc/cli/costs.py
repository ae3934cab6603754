"""What the runtime that will run a plan takes for a message and for a chunk: measured, stated, or not known."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from optcc.cli.options import stack

if TYPE_CHECKING:
    from optcc.discover import Measured

costs_options = stack(
    click.option(
        "--alpha", metavar="TIME",
        help="Plan for this latency from NIC to NIC, by this machine's clock. Default: as measured for this transport "
        "and path of chunks (optcc calibrate), else 0.",
    ),
    click.option(
        "--per-chunk", metavar="TIME",
        help="Plan for this cost of a chunk beside its bytes, likewise.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class StatedCosts:
    """What a plan is made for, in seconds of the cluster, and where each number is from."""

    alpha: Fraction
    per_chunk: Fraction
    alpha_from: str
    per_chunk_from: str

    @property
    def known(self) -> bool:
        """Whether the plan goes by any."""
        return bool(self.alpha or self.per_chunk)

    def line(self, slowdown: Fraction) -> str:
        """For people. Emulated NICs that are `slowdown` times slower take so many times as long by the clock."""
        from optcc.values.units import format_seconds

        parts = [
            f"{name} {format_seconds(float(value * slowdown))} ({source})"
            for name, value, source in (
                ("alpha", self.alpha, self.alpha_from),
                ("per chunk", self.per_chunk, self.per_chunk_from),
            )
        ]
        return f"planned for {', '.join(parts)}"

    def as_json(self) -> dict[str, Any]:
        """Seconds of the cluster, and where they are from."""
        return {
            "alpha_s": float(self.alpha),
            "per_chunk_s": float(self.per_chunk),
            "alpha_from": self.alpha_from,
            "per_chunk_from": self.per_chunk_from,
        }


def costs_of(
    alpha: str | None, per_chunk: str | None, measured: Measured | None, transport: str, path: str, slowdown: Fraction
) -> StatedCosts:
    """What was stated, by the clock of a runtime whose NICs are `slowdown` times slower than the cluster's; else what
    the topology's file has measured over this transport and path of chunks, in the cluster's time; else 0.

    Raises InputError for what is no time.
    """
    from optcc.values.units import parse_seconds

    found: list[tuple[Fraction, str]] = []
    seen = (None, None) if measured is None else (measured.alpha_s, measured.per_chunk_s)
    for option, text, value in (("--alpha", alpha, seen[0]), ("--per-chunk", per_chunk, seen[1])):
        if text is not None:
            found.append((parse_seconds(text, where=option) / slowdown, "stated"))
        elif measured is None or value is None:
            found.append((Fraction(0), "not measured"))
        elif measured.transport != transport:
            found.append((Fraction(0), f"measured over {measured.transport} only"))
        elif not measured.of_runtime(transport, path):
            found.append((Fraction(0), f"measured with the path {measured.path} only"))
        else:
            by = f", path {measured.path}" if measured.path else ""
            found.append((value, f"measured {measured.date}{by}"))
    return StatedCosts(found[0][0], found[1][0], found[0][1], found[1][1])
