"""With this folder in PYTHONPATH, Python finds a twin where the GPU's module is: see `cuda_twin.find_twins`.

The environment's TWIN_BUG names a bug of BUGS, which is planted.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.cuda_twin import SharedTwin

twin = ModuleType("optcc.runtime.devices.cuda")
twin.Gpu = lambda index: SharedTwin()  # type: ignore[attr-defined]
twin.gpu_count = lambda: 2  # type: ignore[attr-defined]
sys.modules[twin.__name__] = twin


def unlent() -> None:
    """Nobody lends what others are to read."""
    from optcc.runtime.control.member import Member

    Member.lend = lambda self, buffer: None  # type: ignore[method-assign]


def unloaded() -> None:
    """The input stays in host memory."""
    SharedTwin.put = lambda self, host, array: None  # type: ignore[method-assign]


def freed() -> None:
    """Memory is freed while the kernel runs."""
    from optcc.runtime.control.links import Links

    def launched(links: Any, *rest: Any) -> None:
        links._gpu.empty(1, sys.modules["numpy"].dtype("uint8"))

    wrap(Links, "_launch", launched, late=True)


def littered() -> None:
    """No bug: what nobody uses any more waits to be collected while the kernel runs."""
    from optcc.runtime.control.links import Links

    def launched(links: Any, *rest: Any) -> None:
        circle: list[Any] = [links._gpu.empty(1, sys.modules["numpy"].dtype("uint8"))]
        circle.append(circle)
        del circle
        links.kept = [[] for _ in range(100_000)]  # more than Python lets come without a look for garbage

    wrap(Links, "_launch", launched, late=True)


def collected() -> None:
    """The same, and it is collected."""
    from optcc.runtime.control.links import Links

    wrap(Links, "_launch", lambda *_: gc.enable(), late=True)
    littered()


def slow() -> None:
    """No bug: a rank takes its time to unmap what is the others'."""
    from optcc.runtime.devices.resident import LentGpuMemory

    wrap(LentGpuMemory, "let_go", lambda memory: time.sleep(0.5 * memory.rank))


def unsaid() -> None:
    """The same, and nobody waits for that before memory is freed."""
    from optcc.runtime.control.member import Member

    slow()
    wrap(Member, "_part", lambda member: setattr(member, "_lends", False))


def wrap(kind: type, name: str, more: Callable[..., None], late: bool = False) -> None:
    """Have `more` called first; `late` : afterwards."""
    method = getattr(kind, name)

    def wrapped(*arguments: Any) -> Any:
        if not late:
            more(*arguments)
        result = method(*arguments)
        if late:
            more(*arguments)
        return result

    setattr(kind, name, wrapped)


BUGS = {bug.__name__: bug for bug in (unlent, unloaded, freed, littered, collected, slow, unsaid)}
if name := os.environ.get("TWIN_BUG"):
    BUGS[name]()
