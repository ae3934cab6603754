"""What compiled code needs to start a GPU's kernels itself: addresses of functions, and a word in which they say how
far they are.

Every start has a ticket, one more than the one before. A stream does its work in order: so a ticket that is done means
that all before it are.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from optcc.errors import InputError
from optcc.runtime.devices.host import Array

THREADS = 256
"""Of a block. A thread works on one word."""
LINE = 128
"""Bytes of a cache line. The first words of a fold start one, at the output."""
WIDTHS = (16, 8, 0)
"""Bytes of the words that kernels are made for; 0: one element."""


@dataclass
class Tickets:
    """Those of one stream. done : shape (1,), int64, in page-locked memory: the last that is done; given : the last."""

    done: Array
    given: int = 0


@dataclass(frozen=True)
class Launches:
    """On one stream of one GPU.

    function : address of cuLaunchKernel, or of what stands for it; stream : its handle
    copies, folds : handles of kernels by width, see WIDTHS. Copies are of bytes.
    arrived : address, in the GPU's memory, of the count by which a kernel's last block knows itself
    """

    function: int
    stream: int
    copies: tuple[int, ...]
    folds: tuple[int, ...]
    arrived: int
    tickets: Tickets


@dataclass(frozen=True)
class Ticket:
    """Work that has been started with a number, as an event."""

    tickets: Tickets
    number: int

    @property
    def done(self) -> bool:
        """Whether it is, and all before it."""
        return int(self.tickets.done[0]) >= self.number


def launch_function() -> int:
    """The address of the driver's cuLaunchKernel."""
    try:
        found = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    except (OSError, AttributeError) as error:
        raise InputError("no NVIDIA driver", where="device cuda", expected="libcuda.so.1", got=str(error)) from error
    return ctypes.cast(found, ctypes.c_void_p).value or 0
