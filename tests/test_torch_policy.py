"""What torch's ranks decide from rates and errors: when to switch plans, whom to probe, who is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from optcc.errors import InputError
from optcc.plans.plan import Plan

pytestmark = pytest.mark.torch


def test_levels_are_shares_of_the_upper_median() -> None:
    from optcc.runtime.torch.policy import Policy

    assert Policy().levels([100.0, 50.0, 102.0, 300.0]) == (16, 8, 16, 16)
    assert Policy().levels([1.0, 1000.0, 1000.0, 1000.0]) == (1, 16, 16, 16)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="rank 1"):
            Policy().levels([1.0, bad, 1.0])


def test_a_switch_holds_before_it_changes_and_does_not_flap() -> None:
    from optcc.runtime.torch.policy import Policy, Switch

    switch = Switch(Policy(enter=0.8, leave=0.9, hold=2))
    fine, hurt, between = [100.0] * 4, [100.0, 50.0, 100.0, 100.0], [100.0, 85.0, 100.0, 100.0]
    assert [switch.update(r) for r in (hurt, fine, hurt, fine)] == [False] * 4  # once is not enough
    assert [switch.update(r) for r in (between, between, between)] == [False] * 3  # neither slow enough
    assert [switch.update(r) for r in (hurt, hurt)] == [False, True]
    assert switch.current == (16, 8, 16, 16)
    assert [switch.update([100.0, 47.0, 100.0, 103.0]) for _ in range(4)] == [False] * 4  # nor another plan for noise
    assert [switch.update([100.0, 85.0, 100.0, 100.0]) for _ in range(2)] == [False, True]  # nor quick enough to leave
    assert switch.current == (16, 14, 16, 16)
    assert [switch.update(r) for r in (fine, fine)] == [False, True]
    assert switch.current is None
    noisy = Switch(Policy(hold=2))  # another rank disturbed each time, and one that is slow
    assert [noisy.update(r) for r in ([70.0, 50.0, 100.0, 100.0], [100.0, 50.0, 60.0, 100.0])] == [False, True]
    assert noisy.current == (16, 8, 16, 16)
    assert [noisy.update(r) for r in ([70.0, 50.0, 100.0, 100.0], [100.0, 50.0, 60.0, 100.0])] == [False, False]
    calm = Switch(Policy(hold=2))  # disturbed, but nobody slow
    assert [calm.update(r) for r in ([70.0, 100.0, 100.0, 100.0], [100.0, 60.0, 100.0, 100.0])] == [False, False]
    hasty = Switch(Policy(enter=0.9, leave=0.9, hold=1))  # the control: this one flaps
    assert [hasty.update(r) for r in (between, fine, between)] == [True] * 3


@pytest.mark.parametrize(
    "options", [{"quanta": 1}, {"enter": 0.9, "leave": 0.8}, {"hold": 0}, {"every": 0}, {"gain": 0.5}, {"enter": 0}]
)
def test_policies_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    from optcc.runtime.torch.policy import Policy

    with pytest.raises(InputError, match="Policy"):
        Policy(**options)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
def test_partners_meet_both_ways_and_never_twice(ranks: int) -> None:
    from optcc.runtime.torch.probe import partners

    meetings = [partners(ranks, rank, 99) for rank in range(ranks)]
    for rank, met in enumerate(meetings):
        assert all(meetings[other][turn] == rank for turn, other in enumerate(met) if other is not None)
        others = [other for other in met if other is not None]
        assert sorted(others) == [r for r in range(ranks) if r != rank]


def test_the_verdict_names_who_says_nothing() -> None:
    from optcc.runtime.torch.meeting import verdict_of

    assert verdict_of({0: (3, "lost rank 3"), 1: (0, "lost rank 0"), 3: (2, "lost rank 2")}, 4, 3.0)[0] == 2
    assert verdict_of({0: (2, "a"), 1: (1, "no memory"), 2: (1, "b")}, 4, 3.0) == (1, "no memory")
    assert verdict_of({0: (None, "a"), 1: (2, "b")}, 4, 3.0)[0] == 2  # blamed before merely silent
    assert verdict_of({0: (1, "a"), 1: (0, "b")}, 2, 3.0)[0] == 1
    assert verdict_of({0: (None, "a")}, 1, 3.0) == (0, "a")


def choice(levels: tuple[int, ...], rate: float, nbytes: int) -> Plan | None:
    """What rank 0 chooses where groups of calls are exchanged."""
    from optcc.pytorch import _plan
    from optcc.runtime.torch.book import NCCL, Book
    from optcc.runtime.torch.policy import cluster_of

    none: Any = None  # no process group: nobody is told
    chosen = Book(none, cluster_of(levels, rate, 16), _plan, NCCL, 1.05)._choose(nbytes, grouped=True)
    return chosen and chosen[0]


def test_slow_links_get_deep_plans_and_fast_ones_few_rounds() -> None:
    slow, fast = choice((16, 8, 16, 16), 1.25e8, 2**26), choice((16, 8, 16, 16), 5e10, 2**26)
    assert slow is not None
    assert fast is not None
    assert (slow.segments, fast.segments) == (256, 16)


def test_two_ranks_are_left_to_the_native_ring() -> None:
    """Whatever their rates: no plan of two is faster."""
    assert choice((16, 16), 3e11, 2**28) is None
    assert choice((16, 8), 3e11, 2**28) is None
