"""What an unfinished sweep has done, by the keys of its jobs."""

from __future__ import annotations

from pathlib import Path

from optcc.files.journal import Journal
from optcc.sweep.cells import SweepResult


def sweep_journal(output: Path) -> Journal[SweepResult]:
    """The journal of the sweep that writes `output`."""
    return Journal(output, "sweep", lambda fields: SweepResult(**fields))
