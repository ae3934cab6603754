"""What the doctor says of one part of this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class PartFinding:
    """One part: is it here, what was seen, what it gives, and how to get it when it is not here."""

    part: str
    present: bool
    seen: str
    gives: str
    get: str = ""

    def as_json(self) -> dict[str, object]:
        """The finding as JSON values."""
        return asdict(self)
