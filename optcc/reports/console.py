"""How people see anything: tables, percentages, a spinner while something takes long."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

FIRST_LINE_S = 30.0
"""Seconds until what takes long is told where there is no spinner."""
NOISE, LEAST_SHOWN = 1e-7, 0.001
"""Per cent: simulated times are doubles and add up to some 1e-9 % of rounding; less than the second is no matter."""


def plain_table(title: str = "") -> Table:
    return Table(
        title=title or None, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
    )


class _Console(Console):
    """Leaves a closed pipe to `optcc.cli.options.emit`, where rich would exit with 1, which is a wrong result's."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def show(*parts: Any) -> None:
    # Names come from files: they are shown as they are, not read as rich's markup. A pipe has no width to wrap at,
    # unless COLUMNS says one, and what reads from it wants no blanks that pad a table's last column.
    terminal = Console().is_terminal
    console = _Console(highlight=False, markup=False, width=None if terminal or "COLUMNS" in os.environ else 1000)
    if terminal:
        for part in parts:
            console.print(part)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def percent(value: float | Fraction) -> str:
    """0.0667 to 6.67 %, never with an exponent: what is closer to 0 than `NOISE` is 0."""
    hundredths = 100 * float(value)
    if abs(hundredths) < NOISE:
        return "0 %"
    if 0 < hundredths < LEAST_SHOWN:
        return f"under {LEAST_SHOWN} %"
    return f"{hundredths:.3g} %" if abs(hundredths) < 1000 else f"{hundredths:.0f} %"


def over(ratio: float) -> str:
    """1.0667 to 6.67 % over the bound; below a thousandth of a per cent: at the bound."""
    return "at the bound" if abs(ratio - 1) < 1e-5 else f"{percent(ratio - 1)} over the bound"


def ratio_of(time_s: float, bound_s: float) -> float:
    """Time over bound; 1 when there is nothing to send."""
    return time_s / bound_s if bound_s else 1.0


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr, with the seconds so far; where that is no terminal, a line now and then of what takes long.

    Yields what takes the name of the step that is under way.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        with _told_in_lines(what) as tell:
            yield tell
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step: bar.update(task, description=f"{what}: {step}")


@contextmanager
def _told_in_lines(what: str) -> Iterator[Callable[[str], None]]:
    """The first line after `FIRST_LINE_S`, then each time after twice as long."""
    steps, over, started = [what], threading.Event(), time.monotonic()

    def tell() -> None:
        pause = FIRST_LINE_S
        while not over.wait(pause):
            passed = time.monotonic() - started
            with suppress(OSError, ValueError):  # nobody reads it
                print(f"note: {steps[-1]}, {passed:.0f} s so far", file=sys.stderr, flush=True)
            pause = passed

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield lambda step: steps.append(f"{what}: {step}")
    finally:
        over.set()
        thread.join(1.0)
