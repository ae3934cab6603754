"""DDP over queue pairs: a link that goes down in a step costs no bit of the weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest

from tests.verbs.conftest import PACKAGES, needs_package
from tests.verbs.test_command import RATE

pytestmark = [pytest.mark.rdma, needs_package("torch")]

WORLD = 2
"""Sums of two are rounded the same in either order, so that Gloo's weights have the same bits."""


def test_ddp_ends_with_gloos_weights_when_a_link_goes_down(network: ModuleType) -> None:
    for nic in range(2 * WORLD):
        network.rate(nic, RATE)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.verbs.torch_training", str(rank), str(WORLD), "29710"],
            env={**os.environ, "PYTHONPATH": f"{os.getcwd()}:{PACKAGES}", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        said = [process.communicate(timeout=400) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * WORLD, said
    found = [json.loads(told) for told, _ in said]
    assert len({rank[name] for rank in found for name in ("gloo", "whole", "cut")}) == 1, "bit for bit"
    struck = [[kind for kind, nic in rank["events"] if nic == "server1/rxe2"] for rank in found]
    assert {"struck", "nic down"} <= {*struck[1]}
    assert all("renewed" in {kind for kind, _ in rank["events"]} for rank in found)
