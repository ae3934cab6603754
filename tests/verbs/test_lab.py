"""The lab itself: what the other tests here stand on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.rdma


def test_the_core_and_the_runtime_need_numpy_alone() -> None:
    import optcc.runtime.control.links
    import optcc.schedule  # noqa: F401
