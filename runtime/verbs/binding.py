"""The one place that imports pyverbs, and hides how its versions differ.

Tried with 44 (Debian 12); written against the sources of 64, too. In version 44, work requests and scatter-gather
elements are freed by hand, later by the garbage collector as well. So close each once, and never let two share one's
memory.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

from optcc.errors import InputError

try:
    from pyverbs.addr import GID, AHAttr, GlobalRoute
    from pyverbs.cq import CQ, CompChannel
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
    from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
    from pyverbs.wr import SGE, RecvWR, SendWR

    try:
        import pyverbs.libibverbs_enums as enums  # rdma-core 56 and later
    except ImportError:
        import pyverbs.enums as enums
except ImportError as missing:
    raise InputError(
        "pyverbs cannot be loaded",
        where="transport verbs",
        expected="pyverbs and rdma-core of one version",
        got=str(missing),
        hint="On Debian and Ubuntu: apt install python3-pyverbs ibverbs-providers; elsewhere the extra `rdma`.",
    ) from missing

__all__ = [
    "CQ",
    "GID",
    "MR",
    "PD",
    "QP",
    "SGE",
    "AHAttr",
    "CompChannel",
    "Context",
    "GlobalRoute",
    "PyverbsError",
    "PyverbsRDMAError",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
    "RecvWR",
    "SendWR",
    "async_events",
    "enums",
    "error_number",
    "open_channel",
    "open_device",
    "status_name",
]


_opening = threading.Lock()
"""Held from one look at the open files to the next, so that what is new between them is what was opened."""


def open_device(name: str) -> tuple[Any, int]:
    """The device's context, and the descriptor of its asynchronous events, set not to block."""
    with _opening:
        before = _event_files()
        context = Context(name=name)
        return context, _new_event_file(before)


def open_channel(context: Any) -> tuple[Any, int]:
    """A completion channel and its descriptor, set not to block: pyverbs waits with the interpreter locked."""
    with _opening:
        before = _event_files()
        channel = CompChannel(context)
        fd = channel.fd if hasattr(channel, "fd") else _new_event_file(before)
    os.set_blocking(fd, False)
    return channel, fd


def async_events(context: Any) -> list[int]:
    """The types of all asynchronous events that are there; acknowledges them."""
    found: list[int] = []
    while True:
        try:
            event = context.get_async_event()
        except PyverbsRDMAError as error:
            if error.error_code in (errno.EAGAIN, -1):  # -1: what the call returned, in versions that do not ask errno
                return found
            raise
        found.append(event.event_type)
        event.ack()


def error_number(error: Any) -> int:
    """The errno of a PyverbsRDMAError, whichever way round it was given; 0 where there is none."""
    return abs(int(getattr(error, "error_code", 0) or 0))


def status_name(status: int) -> str:
    """`RETRY_EXC_ERR` for 12."""
    for name in dir(enums):
        if name.startswith("IBV_WC_") and name.endswith(("_ERR", "_SUCCESS")) and getattr(enums, name) == status:
            return name.removeprefix("IBV_WC_")
    return f"status {status}"


def _event_files() -> set[int]:
    """Descriptors of this process through which verbs report events; pyverbs does not tell which one it has opened."""
    found: set[int] = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{entry}"):
                found.add(int(entry))
        except OSError:  # the one by which this very folder is read
            continue
    return found


def _new_event_file(before: set[int]) -> int:
    (fd,) = _event_files() - before
    os.set_blocking(fd, False)
    return fd
