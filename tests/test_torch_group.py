"""The torch.distributed backend: calls and trainings give what they give over Gloo, also when NICs die."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.torch_world import ranks

pytestmark = [pytest.mark.torch, pytest.mark.long]

WORLD = 2
"""Sums of two are rounded the same in either order, so that Gloo's weights have the same bits."""


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    return [json.loads(output) for _, output in ranks(WORLD, "-m", "tests.torch_group_process")]


@pytest.mark.parametrize("how", ["ddp", "fsdp", "sharded"])
def test_training_has_gloos_weights_also_when_a_nic_dies(said: list[dict[str, Any]], how: str) -> None:
    assert len({rank[name][how] for rank in said for name in ("gloo", "optcc", "struck")}) == 1, "bit for bit"


def test_the_nics_died_in_the_middle(said: list[dict[str, Any]]) -> None:
    for rank, nics in ((0, {"server0/nic0"}), (1, {"server1/nic0", "server1/nic1"})):
        found = [tuple(event) for event in said[rank]["events"]]
        for kind in ("struck", "nic down"):
            assert {nic for what, nic in found if what == kind} == nics
        assert [what for what, _ in found].count("renewed") == 3
        assert "moved" in [what for what, _ in found]


def test_every_call_gives_what_it_gives_over_gloo(said: list[dict[str, Any]]) -> None:
    for rank in said:
        ours, theirs = rank["optcc calls"], rank["gloo calls"]
        assert ours.keys() == theirs.keys()
        assert ours.pop("strided") == [3.0] * 4
        del theirs["strided"]  # Gloo adds what lies in the gaps
        for name in theirs:
            assert ours[name] == theirs[name], name
