"""Wires on devices without extended posting: the contract again, by one gathered write for each chunk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from tests.verbs.ranks import Ranks
from tests.wires_contract import Job, WiresContract

pytestmark = pytest.mark.rdma


def kinds(job: Ranks) -> set[str]:
    """What the wires of both ranks post with."""
    return {type(end.qp).__name__ for wires in job.ranks for end in wires._ends.values()}


class TestVerbsWiresWithoutExtendedPosting(WiresContract):
    @pytest.fixture
    def job(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
        from optcc.runtime.verbs import posting
        from optcc.runtime.verbs.binding import PyverbsRDMAError

        def refuse(*_: Any) -> None:
            raise PyverbsRDMAError("Failed to create QP", errno.EOPNOTSUPP)

        monkeypatch.setattr(posting, "QPEx", refuse)
        with Ranks() as ranks:
            assert kinds(ranks) == {"QP"}
            yield ranks


def test_soft_roce_has_it(network: object) -> None:
    """So that the other tests do run with it."""
    with Ranks() as ranks:
        assert kinds(ranks) == {"QPEx"}
