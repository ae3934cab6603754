"""Typed errors. Everything a person can mend says what, where, expected, got, and the way out."""

from __future__ import annotations

from collections.abc import Sequence


class OptccError(Exception):
    """Base of every error that optcc raises on purpose."""


class InputError(OptccError):
    """The caller gave something unusable; the command line exits with status 2.

    Parameters
    ----------
    what : the complaint, one clause
    where : file:line, field path, or option it was found at
    expected, got : both sides of the mismatch
    hint : the way out
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        got: object = None,
        hint: str | None = None,
    ) -> None:
        self.what, self.where, self.expected, self.got, self.hint = what, where, expected, got, hint
        parts = [f"{where}: {what}" if where else what]
        if expected is not None:
            parts.append(f"expected {expected}")
        if got is not None:
            parts.append(f"got {got!r}" if isinstance(got, str) else f"got {got}")
        text = ", ".join(parts)
        super().__init__(f"{text}. {hint}" if hint else text)


class InconclusiveError(OptccError):
    """A test that proves nothing, because what it should have tested did not happen; exit status 3."""


class InfeasibleError(InputError):
    """No AllReduce exists on this cluster: some rank can send nothing or receive nothing."""


class VerifyError(OptccError):
    """A schedule does not compute AllReduce; the message names element, rank and contributor."""


class CertificateError(OptccError):
    """A bound's certificate does not hold on the cluster it is claimed for."""


class SimulationError(OptccError):
    """The simulated schedule cannot finish, or its time does not fit the clock."""


def some(names: Sequence[object], most: int = 8) -> str:
    """For a message: these, separated by commas, or so many of the first of them.

    >>> some(["nic0", "nic1", "nic2"], 2)
    'nic0, nic1, ...'
    """
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")
