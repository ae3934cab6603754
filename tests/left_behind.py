"""What a run may leave behind: open descriptors, and processes that go on."""

from __future__ import annotations

import os
import time
from pathlib import Path


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def gone(pids: tuple[int, ...], within_s: float = 5.0) -> bool:
    """Whether none of the processes runs any more."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    end = time.monotonic() + within_s
    while any(map(runs, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
