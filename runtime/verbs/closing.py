"""Closing what devices have made: all of it, whatever fails, and then what has failed is said.

A device refuses to close what something else still needs, so one failure brings others. What is left after that goes
with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from optcc.runtime.verbs.binding import VerbsError


def close_each(where: str, closing: Iterable[Callable[[], None]]) -> None:
    """Call each, in this order. Then, if some have failed, raise VerbsError with all that they said.

    where : what is closed, as the error calls it
    """
    failed: list[VerbsError] = []
    for close in closing:
        try:
            close()
        except VerbsError as why:
            failed.append(why)
    if failed:
        raise VerbsError(f"{where} not closed: {'; '.join(map(str, failed))}")


@contextmanager
def closed_if_it_fails(close: Callable[[], None]) -> Iterator[None]:
    """Where the block raises, close what it has made. If that fails too, a note of the block's error says so."""
    try:
        yield
    except BaseException as why:
        try:
            close()
        except VerbsError as also:
            why.add_note(str(also))
        raise
