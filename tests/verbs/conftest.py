"""What only the lab can do: cut links, lose packets. `tests/conftest.py` is not loaded there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

VIRTUAL_TIME = os.environ.get("OPTCC_LAB") == "virtual"
"""Whether times may be asserted."""
PACKAGES = Path("/packages")
"""Where `lab/run.sh --packages` puts what the command line needs and the guest lacks."""

needs_virtual_time = pytest.mark.skipif(
    not VIRTUAL_TIME, reason="asserts times, which only the lab's virtual clock makes exact (LAB=1 make test-verbs)"
)


def needs_package(name: str) -> pytest.MarkDecorator:
    """For tests that run, in the lab, what needs packages of the project's environment."""
    return pytest.mark.skipif(
        not (PACKAGES / name).exists(),
        reason=f"runs in the lab, with {name} of .venv (make setup torch; LAB=1 make test-verbs)",
    )


@pytest.fixture(scope="session")
def compiled() -> None:
    """Compiled code is ready, before ranks are forked."""
    pytest.importorskip("numba", reason="numba of .venv (make setup; LAB=1 make test-verbs)")
    from optcc.runtime.compiled.choice import ChunkPath, warm

    warm(ChunkPath("compiled", over="verbs"))


@pytest.fixture
def network() -> Iterator[ModuleType]:
    """The lab's network; whole again after the test."""
    if "OPTCC_LAB" not in os.environ:
        pytest.skip("cuts links and loses packets, which only the lab's own network may suffer (LAB=1 make test-verbs)")
    from lab import network as lab_network

    yield lab_network
    lab_network.whole()
