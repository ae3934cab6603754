"""DDP over queue pairs: links that go down in its steps cost no bit of the weights."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from tests.rank_processes import heard, ran
from tests.verbs.conftest import command_environment, needs_package
from tests.verbs.test_command import RATE

pytestmark = [pytest.mark.rdma, needs_package("torch")]


@pytest.mark.whole
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ddp_ends_with_the_same_weights_when_links_go_down(network: ModuleType, world: int) -> None:
    """Those of the run without a loss. With two ranks Gloo's, too: sums of two are rounded the same in either order."""
    for nic in range(2 * world):
        network.rate(nic, RATE)
    env = command_environment(GLOO_SOCKET_IFNAME="lo")
    started = [ran("-m", "tests.verbs.torch_training", rank, world, 29710, env=env) for rank in range(world)]
    said = heard(started, 400, [0] * world)
    found = [json.loads(told) for told, _ in said]
    alike = ("gloo", "whole", "cut") if world == 2 else ("whole", "cut")
    assert len({rank[name] for rank in found for name in alike}) == 1, "bit for bit"
    for rank, lost in ((1, "server1/rxe2"), (0, "server0/rxe1")):
        assert {"struck", "nic down"} <= {kind for kind, nic in found[rank]["events"] if nic == lost}
    assert all("renewed" in {kind for kind, _ in rank["events"]} for rank in found)
