"""A port of 127.0.0.1 that stays free until a process that is yet to start listens there."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)
"""Below those that Linux gives to who connects: one of these may be taken by then, even by whom it was meant for, who
keeps trying to reach it and so may get it at its own end."""


def free_port() -> int:
    """One that nobody uses now."""
    for port in random.SystemRandom().sample(PORTS, 50):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("50 ports are all in use")
