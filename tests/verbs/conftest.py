"""What only the lab can do: cut links, lose packets. `tests/conftest.py` is not loaded there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest

VIRTUAL_TIME = os.environ.get("OPTCC_LAB") == "virtual"
"""Whether times may be asserted."""


@pytest.fixture
def network() -> Iterator[ModuleType]:
    """The lab's network; whole again after the test."""
    if "OPTCC_LAB" not in os.environ:
        pytest.skip("cuts links and loses packets, which only the lab's own network may suffer (LAB=1 make test-verbs)")
    from lab import network as lab_network

    yield lab_network
    lab_network.whole()
