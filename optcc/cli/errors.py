"""Errors, interrupts and closed pipes as one line on stderr and the promised exit status."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from optcc.errors import InconclusiveError, InputError, OptccError
from optcc.files.writing import CLOSED_PIPE

ADDRESS_SPACE = 768 << 20
"""Bytes that a process may map at least: numpy, scipy, numba, cvxpy and sympy, loaded, take 590 MiB with one thread."""


class Commands(click.Group):
    """Turns optcc's errors, the system's, and Ctrl-C, into a message on stderr and the promised exit status."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with _told():  # what the parser prints of a command line that is none
            return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _told():  # what --help and --version print
            _hold_descriptors()
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _told():
            if sys.stdout is None:
                hint = "`> /dev/null` does without."
                raise InputError("closed", where="standard output", expected="a place for the result", hint=hint)
            _check_address_space()
            return super().invoke(ctx)


@contextmanager
def _told() -> Iterator[None]:
    """Every error that is not a fault of ours ends the process with one line and its status."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        _end("interrupted", 130)
    except OptccError as error:
        _end(str(error), 2 if isinstance(error, InputError) else 3 if isinstance(error, InconclusiveError) else 1)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  else the interpreter complains once more on its way out
        raise SystemExit(CLOSED_PIPE) from None
    except OSError as error:  # of the system: too few descriptors or processes, a full disk under a temporary file
        file = f"{error.filename}: " if error.filename else ""
        short = "too few file descriptors (ulimit -n): " if error.errno == errno.EMFILE else ""
        _end(f"{file}{short}{error.strerror or error}", 2)
    except MemoryError:
        _end("not enough memory (ulimit -v, or the machine's)", 2)


def _end(message: str, status: int) -> NoReturn:
    with suppress(OSError):  # there may be no stderr to tell it
        click.echo(f"optcc: {message}", err=True)
    for name in ("stdout", "stderr"):  # what they could not take is tried once more at the end, with status 120
        stream = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  as long as the process
    raise SystemExit(status)


def _hold_descriptors() -> None:
    """Standard streams that were closed lead to /dev/null, lest a file that is opened later takes their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  as long as the process


def _check_address_space() -> None:
    """Raise InputError below `ADDRESS_SPACE`: OpenBLAS, under numpy and scipy, waits for ever for memory it cannot get.

    It takes memory for each of its threads, one per core unless told; with a limit, one is enough for what we do.
    """
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return
    if most < ADDRESS_SPACE:
        expected, got = f"at least {ADDRESS_SPACE >> 10} KiB", f"{most >> 10} KiB"
        raise InputError("too little memory", where="ulimit -v", expected=expected, got=got)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
