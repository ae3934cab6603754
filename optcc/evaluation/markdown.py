"""What the page's tables are written with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def sentence_a_line(text: str) -> str:
    """The text with each sentence on a line; indented as in a list item, which changes no paragraph."""
    return re.sub(r"(?<=[.!?])(\*?) (?=[A-Z*])", r"\1\n   ", text)


def percent(share: float) -> str:
    """0.123 as "12.3 %"; "-" for nan."""
    return "-" if share != share else f"{100 * share:.1f} %"


def ratio(value: float) -> str:
    """1.0123 as "1.012"; "-" for nan."""
    return "-" if value != value else f"{value:.3f}"


def cost_of(per_chunk: Fraction) -> str:
    """Seconds for a chunk in microseconds: "0.5 us", "0 us"."""
    return f"{float(per_chunk) * 1e6:g} us"


def both(shown: str, over: float) -> str:
    """A figure, and in brackets the time over the bound with costs; "-" for nan."""
    return "-" if over != over else f"{shown} ({over:.2f})"
