"""In which part of the runtime the processor is, by samples.

A timer that runs in processor time interrupts, and the module of the innermost frame counts. Python hears of it at the
next call only, so what copies or folds bytes is followed by a call of its own.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from optcc.runtime.devices.memory import HostMemory
from optcc.runtime.wires.rings import order

SAMPLE_S = 0.001
PARTS = ("engine", "flows, protocol", "wires", "copies, folds")
OTHER = "other"
_PART_OF = {
    **dict.fromkeys(("loop", "priority", "program"), PARTS[0]),
    **dict.fromkeys(("local", "local_ends", "rings", "pacing", "virtual"), PARTS[2]),
    **dict.fromkeys(("slots", "host", "memory", "float_bits"), PARTS[3]),
    **dict.fromkeys(("flows", "send_path", "receive_path", "shares", "ends", "straggler_monitor"), PARTS[1]),
    **dict.fromkeys(("path_failover", "suspicion", "progress_watchdog", "timeouts", "symmetry_classes"), PARTS[1]),
    **dict.fromkeys(
        ("steady", "sender", "receiver", "doubting", "table", "events", "columns", "bench_steady"), PARTS[1]
    ),
}
"""By module. What lands in a slot is copied by `slots`, what leaves it by `memory` and `device`."""


class Sampler:
    """Counts in which part the processor is, while it is entered."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        signal.signal(signal.SIGPROF, self._look)

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        while frame is not None:
            code = frame.f_code
            part = PARTS[3] if code.co_name in _AFTER_BYTES else _PART_OF.get(Path(code.co_filename).stem)
            if part:
                self.seen[part] += 1
                return
            frame = frame.f_back
        self.seen[OTHER] += 1


def _tick() -> None:
    """A call, so that Python hears of the timer before it leaves the part."""


def noticed(work: Callable[..., None]) -> Callable[..., None]:
    """The same work, and a sample that was due in it counts for it."""

    def ticked(*args: Any) -> None:
        work(*args)
        _tick()

    return ticked


_AFTER_BYTES = ("_tick", "ticked", order.__name__)
"""The functions that are called when bytes have been copied or folded."""


class Noticed(HostMemory):
    """Host memory whose copies and folds are seen by the sampler."""

    fold = staticmethod(noticed(HostMemory.fold))
    copy = staticmethod(noticed(HostMemory.copy))
