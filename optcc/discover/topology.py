"""What every reader returns, and what the readers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from optcc.cluster import Cluster
from optcc.errors import InputError

UNUSED_NIC_RATE = "--nic-rate was not used: the topology gives the rate of every NIC."


@dataclass(frozen=True)
class Topology:
    """A cluster as read; `notes` say what was skipped or assumed, a sentence each."""

    cluster: Cluster
    notes: tuple[str, ...] = ()


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put `where` before the place that an InputError of the body names."""
    try:
        yield
    except InputError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise InputError(error.what, where=place, expected=error.expected, got=error.got, hint=error.hint) from None
