"""A port of 127.0.0.1 that stays free until a process that is yet to start listens there."""

from __future__ import annotations

import random
import socket
from itertools import cycle, islice

PORTS = range(20_000, 32_000)
"""Below those that Linux gives to who connects: one of these may be taken by then, even by whom it was meant for, who
keeps trying to reach it and so may get it at its own end."""

_order = cycle(random.SystemRandom().sample(PORTS, len(PORTS)))


def free_port() -> int:
    """One that nobody uses now, and that this process has not given to anybody lately."""
    for port in islice(_order, 50):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("50 ports are all in use")
