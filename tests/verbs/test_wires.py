"""Wires over queue pairs: the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.verbs.ranks import Ranks
from tests.wires_contract import Job, WiresContract

pytestmark = pytest.mark.rdma


class TestVerbsWires(WiresContract):
    @pytest.fixture
    def job(self) -> Iterator[Job]:
        with Ranks() as ranks:
            yield ranks
