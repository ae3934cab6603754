"""What the page's tables are written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def percent(share: float) -> str:
    """0.123 as "12.3 %"; "-" for nan."""
    return "-" if share != share else f"{100 * share:.1f} %"
