"""What a test marked `gpu` may need beside one GPU: more of them, or another library that uses them.

It is skipped where that is missing; docs/hardware.md has the runs where nothing was.
"""

from __future__ import annotations

from typing import Any

import pytest


def need_gpus(count: int) -> None:
    """Skips the test where this machine has fewer GPUs."""
    import cupy

    here = cupy.cuda.runtime.getDeviceCount()
    if here < count:
        pytest.skip(f"needs {count} GPUs of one host, and here is {here}; docs/hardware.md has the runs on {count}")


def with_gpus(library: str) -> Any:
    """torch, jax or numba.cuda; skips the test where it is not installed, or not for GPUs."""
    found = pytest.importorskip(library)
    can = {
        "torch": lambda: found.cuda.is_available(),
        "jax": lambda: found.default_backend() == "gpu",
        "numba.cuda": lambda: found.is_available(),
    }
    if not can[library]():
        pytest.skip(f"{library} is installed without support of GPUs; its build for CUDA has it")
    return found
