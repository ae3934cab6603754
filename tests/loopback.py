"""NICs that are addresses of the loopback interface, for TCP on one machine, and connections of theirs that break."""

from __future__ import annotations

import os
import random
import socket
import stat
import threading
from typing import Self

from optcc.values.cluster import Cluster, Nic, Server

FIRST = 2
"""127.0.0.1 is where ranks meet: no NIC has it, so that what breaks is never the way by which they talk."""


def address(rank: int, nic: int, nics: int) -> str:
    """Of a NIC, where every rank has so many."""
    return f"127.0.0.{FIRST + rank * nics + nic}"


def cluster(ranks: int, nics: int, rate: str = "1Gb/s") -> Cluster:
    """So many servers, whose NICs are called by their addresses."""
    return Cluster(
        tuple(
            Server(f"server{rank}", tuple(Nic(address(rank, nic, nics), rate, rate) for nic in range(nics)))
            for rank in range(ranks)
        )
    )


def break_nic(where: str) -> int:
    """End every connection of a NIC in the middle of whatever it carries; how many there were.

    For ranks that are threads of this process. They may connect again at once.
    """
    broken = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = os.dup(int(name))  # whatever becomes of the number, this one stays what is looked at here
        except OSError:
            continue
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            seen = socket.socket(fileno=os.dup(fd))
            with seen:
                if seen.family == socket.AF_INET and where in (seen.getsockname()[0], seen.getpeername()[0]):
                    seen.shutdown(socket.SHUT_RDWR)
                    broken += 1
        except OSError:  # not connected any more
            continue
        finally:
            os.close(fd)
    return broken


class Breaker:
    """While `with` lasts, NICs lose their connections, one NIC after another, at moments from a seed.

    broken : how many connections have been ended
    """

    def __init__(self, addresses: list[str], seed: int, most_pause_s: float = 0.03) -> None:
        self._addresses, self._random, self._most_pause_s = addresses, random.Random(seed), most_pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="breaker")
        self.broken = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(self._random.random() * self._most_pause_s):
            self.broken += break_nic(self._random.choice(self._addresses))
