"""How ranks of a rig that are threads hear from each other: each has a mailbox, and messages may be lost or late."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable


class Mailbox:
    """A rank's watch: a queue of messages and calls from other threads, which the rank's thread runs in each poll."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._todo: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._open = True

    def put(self, what: Callable[[], None]) -> None:
        """Have the rank do it."""
        self._todo.append(what)
        with self._lock:
            if self._open:
                os.write(self._write, b"!")

    def fileno(self) -> int:
        return self._read

    def check(self) -> None:
        os.read(self._read, 4096)
        while self._todo:
            self._todo.popleft()()

    def close(self) -> None:
        with self._lock:
            self._open = False
            os.close(self._read)
            os.close(self._write)


class Post:
    """Messages between ranks, each lost, doubled or late with these chances."""

    def __init__(self, drop: float = 0.0, double: float = 0.0, late: float = 0.0, seed: int = 0) -> None:
        self.drop, self.double, self.late = drop, double, late
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self.seen: Counter[str] = Counter()

    def ways(self) -> list[float]:
        """After how many seconds each copy arrives."""
        with self._lock:
            copies = 0 if self._rng.random() < self.drop else 1 + (self._rng.random() < self.double)
            delays = [0.05 * self._rng.random() if self._rng.random() < self.late else 0.0 for _ in range(copies)]
        self.seen["lost" if not copies else "doubled" if copies > 1 else "sent"] += 1
        self.seen["late"] += any(delays)
        return delays
