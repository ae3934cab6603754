"""Events told to the planner: they add up and cancel, whoever tells them, and what cannot be meant changes nothing."""

from __future__ import annotations

import threading
from fractions import Fraction

import pytest

import optcc
from optcc.errors import InfeasibleError, InputError
from optcc.planner.standby import Places, Planner, State
from tests.conftest import GBPS
from tests.failure_cases import COSTS, MIB, uniform


def test_events_add_up_and_cancel() -> None:
    cluster = uniform()
    with Planner(cluster, MIB, background="off") as planner:
        planner.fail("server0/nic0")
        answer = planner.rate("server4/nic1", "100Gb/s")
        assert answer.event == 2
        assert answer.cluster == cluster.degrade("server0/nic0").degrade("server4/nic1", Fraction(1, 4))
        assert planner.rate("server0/nic1", 50 * GBPS).plan.bound.seconds > answer.plan.bound.seconds
        planner.restore("server0/nic1")
        planner.restore("server0/nic0")
        assert planner.restore("server4/nic1").cluster == cluster
        assert planner.current.plan == optcc.plan(cluster, MIB)


def test_a_cut_off_server_is_an_error_from_which_a_restore_leads_back() -> None:
    cluster = uniform()
    for costs in ({}, COSTS):
        with Planner(cluster, MIB, background="off", **costs) as planner:
            planner.fail("server1/nic0")
            with pytest.raises(InfeasibleError, match="server1"):
                planner.fail("server1/nic1")
            with pytest.raises(InfeasibleError, match="server1"):
                _ = planner.current
            planner.prepare()
            assert planner.restore("server1/nic0").cluster == cluster.degrade("server1/nic1")


@pytest.mark.parametrize("nic", ["server9/nic0", "server1/nic7", "server1", "/nic0", "", 3, None, "a" * 1000])
def test_an_unknown_nic_changes_nothing(nic: object) -> None:
    with Planner(uniform(), MIB, background="off") as planner:
        before = planner.current
        for event in (planner.fail, planner.restore, lambda name: planner.rate(name, 1)):
            with pytest.raises(InputError):
                event(nic)  # type: ignore[arg-type]
        assert planner.current is before


@pytest.mark.parametrize("rate", ["fast", "-1Gb/s", "500Gb/s", -1, True, None, 1.5, 400 * GBPS + 1])
def test_rates_that_cannot_be_meant(rate: object) -> None:
    with Planner(uniform(), MIB, background="off") as planner:
        with pytest.raises(InputError, match="rate"):
            planner.rate("server1/nic0", rate)  # type: ignore[arg-type]
        assert planner.current.event == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"sizes": 0}, {"sizes": []}, {"sizes": [True]}, {"sizes": 2**61}, {"sizes": range(1, 99)}, {"lookahead": -1},
        {"lookahead": 99}, {"keep": 0}, {"lefts": [1]}, {"background": "cloud"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range(bad: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Planner(uniform(), **{"sizes": MIB, "background": "off", **bad})  # type: ignore[arg-type]


def test_threads_may_ask_and_tell_at_once() -> None:
    """Events from six threads are all counted, and what is left at the end is what the events say."""
    cluster, errors = uniform(servers=6), list[BaseException]()
    with Planner(cluster, MIB, background="off") as planner:

        def tell(server: int) -> None:
            try:
                for _ in range(10):
                    planner.fail(f"server{server}/nic0")
                    assert planner.current.plan.bound.nbytes == MIB
                    planner.restore(f"server{server}/nic0")
                planner.fail(f"server{server}/nic1")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=tell, args=(s,)) for s in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        assert planner.current.event == 6 * 21
        expected = cluster
        for s in range(6):
            expected = expected.degrade(f"server{s}/nic1")
        assert planner.current.cluster == expected


def test_states_know_what_deviates() -> None:
    cluster = uniform(3)
    places = Places.of(cluster)
    state = State(cluster).after(places["server1/nic1"], Fraction(0)).after(places["server2/nic0"], Fraction(7))
    assert state.deviations == {("server1/nic1", 0, 0), ("server2/nic0", 7, 7)}
    back = state.after(places["server1/nic1"], None).after(places["server2/nic0"], None)
    assert back.cluster is cluster
    assert back.deviations == frozenset()
    assert back.events == 4
