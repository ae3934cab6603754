"""DDP's own options under the hook: the weights of native DDP, or a refusal before anything is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torch_ddp import CASES, equal_native, lives, odd_one, refused
from tests.torch_ranks import Ranks, good

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


def test_every_option_gives_the_weights_of_native_ddp(four: Ranks) -> None:
    """By plan sums are rounded in another order; natively (asserted on the ranks) they are equal to the last bit."""
    for found in good(four.each(equal_native)):
        assert found.keys() == CASES.keys()
        for name, (apart, by_plan) in found.items():
            assert apart < 1e-12, name
            assert by_plan > 0, name


def test_what_cannot_be_served_is_refused_before_anything_is_made(four: Ranks) -> None:
    for said in good(four.each(refused)):
        for name in ("plain", "data parallel", "sharded", "not sharded", "sharded anew", "compiled plain"):
            assert "only DistributedDataParallel is served" in said.pop(name), name
        for name in ("rates instead", "none"):
            assert "expected a torch.nn.parallel.DistributedDataParallel, got 'builtins." in said.pop(name), name
        for name in ("hooked", "hooked by name"):
            assert "has a communication hook already" in said.pop(name), name
        assert "Leave mixed_precision out" in said.pop("mixed")
        assert "optimizer runs inside the backward" in said.pop("optimized")
        assert "delay_all_reduce_named_params" in said.pop("delayed")
        assert "python reducer" in said.pop("python")
        assert "another process group than the model's" in said["group"]
        assert "0, 1, 2, 3" in said.pop("group")
        assert "expected ascending ranks, got '[3, 2, 1, 0]'" in said.pop("order")
        assert not said


def test_one_rank_that_calls_otherwise_is_the_same_error_everywhere(four: Ranks) -> None:
    told = good(four.each(odd_one))
    for name, words in (
        ("rates", "expected bytes per second above 0, got '0.0'"),
        ("words", "not rates"),
        ("number", "not a rate"),
        ("measured", "other ones at 2 than at 0"),
        ("policy", "other ones at 2 than at 0"),
        ("no policy", "expected an optcc.pytorch.Policy, got 'str'"),
        ("time", "timeout_s"),
        ("plain", "only DistributedDataParallel is served"),
    ):
        assert all(words in said[name] for said in told), name
    assert [("no call from rank 2 within 5 s" in said["absent"]) for said in told] == [True, True, False, True]


def test_a_state_from_its_making_to_its_end(four: Ranks) -> None:
    for rank, so in enumerate(good(four.each(lives))):
        assert all(so.values()), so
        assert len(so) == (9 if rank < 2 else 8)
