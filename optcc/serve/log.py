"""The log: lines of JSON that wait for no reader. What nobody takes away in time is dropped, counted and told later."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from typing import Any

MOST = 2**20
"""Bytes of lines that wait to be written."""
PAUSE_S = 0.05
"""Before a descriptor that does not block is tried again."""


def log_line(**values: Any) -> str:
    """One line, with the time it was made."""
    return json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **values})


class LogLines:
    """Writes lines to a descriptor from a thread of its own, so that a full pipe holds up nothing else.

    dropped : lines that found no room, or that the descriptor did not take
    """

    def __init__(self, descriptor: int, most: int = MOST) -> None:
        self.dropped = 0
        self._descriptor, self._most = descriptor, most
        self._lines: deque[bytes] = deque()
        self._held, self._told, self._ended = 0, 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="optcc-log", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Write `line` when there is room."""
        data = line.encode(errors="replace") + b"\n"
        with self._changed:
            if self._held + len(data) > self._most:
                self.dropped += 1
                return
            self._lines.append(data)
            self._held += len(data)
            self._changed.notify()

    def close(self, limit_s: float = 1.0) -> None:
        """No more lines; those that wait are written if that takes no longer than `limit_s`."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(limit_s)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._ended)
                if not self._lines:
                    return
                if self.dropped > self._told:
                    self._told = self.dropped
                    self._lines.append(log_line(dropped=self.dropped).encode() + b"\n")
                line = self._lines.popleft()
            try:
                self._all_of(line)
            except OSError:  # its reader is gone, or the disk is full
                with self._changed:
                    self.dropped += 1
            with self._changed:
                self._held = sum(map(len, self._lines))

    def _all_of(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BlockingIOError:
                time.sleep(PAUSE_S)


class JsonHandler(logging.Handler):
    """What libraries log, as lines of JSON."""

    def __init__(self, log: LogLines) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line; a traceback is part of it."""
        self._log(log_line(level=record.levelname.lower(), message=self.format(record)))
