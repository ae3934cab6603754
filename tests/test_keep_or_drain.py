"""Keep or drain: the figures by hand, and where the answer turns."""

from __future__ import annotations

from math import inf

import pytest

import optcc
from optcc.cluster import Cluster
from optcc.diagnose.keep import Costs, keep_or_drain, overheads_of
from optcc.planner import baseline
from optcc.plans import Plan
from optcc.simulator import simulate

WHOLE = Cluster.uniform(servers=5, nics=4, rate="400Gb/s")
COSTS = Costs(step_s=10, exposed=0.2, restart_s=600, repair_s=36000, stops=2)


def test_by_hand() -> None:
    found = keep_or_drain(WHOLE.degrade("server1/nic0", 0.5), {"the ring": 1.0}, COSTS)
    assert found is not None
    (ring,) = found.choices
    # 8 s and 2 s become 8 s and 4 s; on four servers of five 8 s become 10 s.
    assert ring.step_s == 12
    assert ring.lost_per_day_s == pytest.approx(86400 * 2 / 12)
    assert found.drain_per_day_s == pytest.approx(86400 * 2 / 12)
    assert found.drain_at_once_s == 1200
    assert ring.break_even_s == inf
    assert found.advice.startswith("keep server1 with the ring: draining never pays")


def test_the_answer_turns_at_break_even() -> None:
    hurt = WHOLE.degrade("server1/nic0", 0.5)
    found = keep_or_drain(hurt, {"the ring": 3.0}, COSTS)
    assert found is not None
    # 6 s of 16 are lost against 2 of 12: 0.375 - 0.1667 of the time makes up for 1200 s.
    even = 1200 / (6 / 16 - 2 / 12)
    assert found.choices[0].break_even_s == pytest.approx(even)
    for repair_s, word in ((even * 0.99, "keep"), (even * 1.01, "drain")):
        again = keep_or_drain(hurt, {"the ring": 3.0}, Costs(10, 0.2, 600, repair_s, 2))
        assert again is not None
        assert again.advice.startswith(word)


def test_the_best_scheme_comes_first_and_decides() -> None:
    found = keep_or_drain(WHOLE.degrade("server1/nic0"), {"the ring": 9.0, "optcc's plan": 0.1}, COSTS)
    assert found is not None
    assert [choice.name for choice in found.choices] == ["optcc's plan", "the ring"]
    assert found.advice.startswith("keep server1 with optcc's plan")


def test_nothing_to_drain() -> None:
    assert keep_or_drain(WHOLE, {"the ring": 0.0}, COSTS) is None
    everywhere = WHOLE
    for server in range(5):
        everywhere = everywhere.degrade(f"server{server}/nic0", 0.5)
    assert keep_or_drain(everywhere, {"the ring": 1.0}, COSTS) is None
    assert keep_or_drain(WHOLE.degrade("server1/nic0"), {}, COSTS) is None


@pytest.mark.parametrize("left", [0, 0.3])
def test_overheads_are_the_simulators(left: float) -> None:
    hurt = WHOLE.degrade("server1/nic2", left)
    found = overheads_of(hurt, 0.05)
    made: Plan = optcc.plan(hurt, 2**26, segments=16)
    for name, scheme in (("the ring", "ring"), *((("hot repair", "hot-repair"),) if not left else ())):
        time_s = simulate(baseline(made, scheme, alpha=0, per_chunk=0).schedule()).time_s
        assert time_s / float(made.bound.fault_free_s) - 1 == pytest.approx(found[name], rel=0.05)
    assert ("hot repair" in found) == (not left)
    assert found["optcc's plan"] == 0.05


def test_no_plan_no_choice() -> None:
    assert overheads_of(WHOLE.degrade("server1/nic2"), None) == {}
