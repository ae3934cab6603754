"""The torch.distributed backend: callbacks may call and wait; what the environment says of a group."""

from __future__ import annotations

import json
from typing import Any

import pytest

from optcc.errors import InputError
from tests.torch_world import ranks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", params=[2, 3])
def said(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    world = request.param
    done = ranks(world, "-m", "tests.torch_nested_process", OPTCC_REPRODUCIBLE=str(world % 2))
    return [json.loads(output) for _, output in done]


@pytest.mark.long
def test_collectives_in_callbacks_give_what_they_give_over_gloo(said: list[dict[str, Any]]) -> None:
    world = len(said)
    for rank in said:
        for name in ("gathered", "nested"):
            assert rank["optcc"][name] == rank["gloo"][name], name
        total = world * (world - 1) / 2
        for depth, found in enumerate(rank["busy"], 1):
            value = total
            for _ in range(depth):
                value = (value + 1) * world
            assert found == [value, *(total + number * world for number in range(3))]
        assert rank["later"] == [3.0 * world]


@pytest.mark.long
def test_torchs_powersgd_hook_trains(said: list[dict[str, Any]]) -> None:
    for found in ("powersgd", "many buckets"):
        weights = [(rank["optcc"] if found == "powersgd" else rank)[found] for rank in said]
        assert len({digest for digest, _ in weights}) == 1, "all ranks have the same weights"
    for rank in said:
        assert rank["optcc"]["powersgd"][1] == pytest.approx(rank["gloo"]["powersgd"][1], rel=1e-4)


@pytest.mark.long
def test_the_environment_says_whether_plans_are_kept(said: list[dict[str, Any]]) -> None:
    assert [rank["kept"] for rank in said] == [len(said) == 3] * len(said)


@pytest.mark.parametrize(("text", "kept"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_plans_are_made_anew_unless_it_is_said(monkeypatch: pytest.MonkeyPatch, text: str | None, kept: bool) -> None:
    from optcc.pytorch import Options

    monkeypatch.delenv("OPTCC_REPRODUCIBLE", raising=False)
    if text is not None:
        monkeypatch.setenv("OPTCC_REPRODUCIBLE", text)
    assert Options().keeps_plans() is kept
    assert (Options(reproducible=True).keeps_plans(), Options(reproducible=False).keeps_plans()) == (True, False)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("OPTCC_TRANSPORT", "ib", "OPTCC_TRANSPORT: no such transport, expected local or tcp or verbs, got 'ib'"),
        ("OPTCC_TRANSPORT", "VERBS", "OPTCC_TRANSPORT: no such transport, expected local or tcp or verbs, got 'VERBS'"),
        ("OPTCC_REPRODUCIBLE", "yes", "OPTCC_REPRODUCIBLE: neither yes nor no, expected 1 or 0, got 'yes'"),
    ],
)
def test_a_variable_that_says_nothing_of_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, said: str
) -> None:
    import torch.distributed as dist

    import optcc.pytorch

    monkeypatch.setenv(variable, text)
    with pytest.raises(InputError) as refused:
        dist.init_process_group("optcc", store=dist.HashStore(), rank=0, world_size=1)
    assert str(refused.value) == said
    with pytest.raises(InputError, match="transport: no such transport, expected local or tcp or verbs, got 'ib'"):
        optcc.pytorch.Options(transport="ib").carrier()


@pytest.mark.parametrize("cards", [0, 2])
def test_a_device_that_is_not_here_is_not_claimed(monkeypatch: pytest.MonkeyPatch, cards: int) -> None:
    import torch

    from optcc.torch_backend.options import devices

    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    assert devices() == (["cpu", "cuda"] if cards else ["cpu"])
