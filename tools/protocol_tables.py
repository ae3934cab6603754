"""The protocol's tables as Markdown into docs/failover-protocol.md: the page shows what runs.

python tools/protocol_tables.py
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from optcc.runtime.protocol.receiver import Receiver
from optcc.runtime.protocol.sender import Sender
from optcc.runtime.protocol.table import Machine, Rule

PAGE = Path(__file__).resolve().parent.parent / "docs" / "failover-protocol.md"
BEGIN = "<!-- generated from the tables by tools/protocol_tables.py: begin -->"
END = "<!-- generated: end -->"


def update(page: str) -> str:
    """`page` with what stands between the two marks made anew. Raises ValueError where a mark is missing."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{document()}\n{END}{after}"


def document() -> str:
    """Both machines' tables: for each state and event the method that deals with it, and where it may lead."""
    return "\n".join(part for machine in (Sender, Receiver) for part in _section(machine))


def _section(machine: type[Machine]) -> Iterable[str]:
    yield f"## {machine.__name__}\n"
    yield from _matrix(machine)
    yield ""


def _states(machine: type[Machine]) -> list[StrEnum]:
    return list(type(next(iter(machine.TABLE))[0]))


def _matrix(machine: type[Machine]) -> Iterable[str]:
    events = list(dict.fromkeys(event for _, event in machine.TABLE))
    yield "| state | " + " | ".join(f"`{event.__name__}`" for event in events) + " |"
    yield "|---" * (len(events) + 1) + "|"
    for state in _states(machine):
        yield f"| {state} | " + " | ".join(_cell(state, machine.TABLE.get((state, event))) for event in events) + " |"


def _cell(state: StrEnum, rule: Rule | None) -> str:
    if rule is None:
        return "error"
    name = rule.does.__name__.strip("_")
    if name == "ignore":
        return "-"
    to = ", ".join("same" if other == state else str(other) for other in rule.to)
    return name if rule.to == (state,) else f"{name}: {to}"


def main() -> None:
    PAGE.write_text(update(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
