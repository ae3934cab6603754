"""Making very many small objects at once, such as the routes between a thousand GPUs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Among hundreds of thousands of new objects, none of them in a cycle, looking for cycles takes longer than making
    them. The collector is as it was afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
