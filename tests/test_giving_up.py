"""How long it takes to give up a peer of which all NICs are black holes, in virtual time: it grows with their number.

A round is the verdict on one wire of every flow between the two ranks. The first takes PROGRESS and GRACE. What is
moved is in doubt at the next look, for nothing has come through since; so each further one takes a look and GRACE. How
many there are depends on how many flows try the pair's wires at the same time.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from optcc.runtime.errors import FlowSeveredError
from optcc.runtime.flows import timeouts
from optcc.runtime.flows.progress_watchdog import LOOKS, ProgressWatchdog
from optcc.schedule import Lane, Port, Route, Schedule
from tests.failover_runs import rings
from tests.timed_runs import MESSAGES_S, TIMEOUTS, Timed, whole

FIRST_S = TIMEOUTS.progress + TIMEOUTS.grace + MESSAGES_S
FURTHER_S = TIMEOUTS.progress / LOOKS + TIMEOUTS.grace + MESSAGES_S


def bound_s(rounds: int) -> float:
    """From the strike to the error."""
    return FIRST_S + (rounds - 1) * FURTHER_S


def given_up_s(schedule: Schedule, part: float = 0.3) -> float:
    """From when all NICs of rank 1 turn into black holes, so much of the run done, to the first error."""
    run, at = Timed(schedule), part * whole(schedule)[0]
    for port in schedule.ports:
        if port.rank == 1:
            run.strike(at, port.name, "darken")
    with pytest.raises(FlowSeveredError, match=r"no wire left of \d+; .* lost by no progress"):
        run.run()
    return run.net.now - at


def lanes(nics: int, used: int) -> Schedule:
    """Rank 0 sends to rank 1 by some of their NICs."""
    names = [f"rank{rank}/nic{nic}" for rank in range(2) for nic in range(nics)]
    ways = tuple(Lane(nic, nics + nic, Fraction(1, used)) for nic in range(used))
    return Schedule(
        ranks=2,
        nbytes=1 << 17,
        ports=tuple(Port(name, int(name[4]), 8e6, 8e6) for name in names),
        routes=(Route(0, 1, ways),),
        route=np.zeros(1, np.int32),
        offset=np.zeros(1, np.int64),
        length=np.array([1 << 17]),
        reduce=np.zeros(1, np.bool_),
        stage=np.ones(1, np.uint8),
        segment=np.zeros(1, np.int32),
        dep_ptr=np.zeros(2, np.int64),
        dep_idx=np.zeros(0, np.int64),
    )


@pytest.mark.parametrize("part", [0.1, 0.5])
@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("nics", [1, 2, 4, 8])
def test_with_flows_on_all_nics_there_are_as_many_rounds_as_nics(nics: int, servers: int, part: float) -> None:
    seconds = given_up_s(rings(servers, nics, 1 << 17, 8_000_000), part)
    assert bound_s(nics) - TIMEOUTS.progress / 4 - nics * MESSAGES_S <= seconds <= bound_s(nics)


@pytest.mark.parametrize(("nics", "used"), [(2, 1), (3, 1), (3, 2), (4, 2)])
def test_one_wire_of_the_pair_a_round_is_the_most(nics: int, used: int) -> None:
    assert bound_s(nics) < given_up_s(lanes(nics, used)) <= bound_s(nics * nics)


def test_a_single_flow_tries_them_one_by_one() -> None:
    assert given_up_s(lanes(3, 1)) == pytest.approx(bound_s(9), abs=TIMEOUTS.progress / 4 + 9 * MESSAGES_S)


def test_if_what_is_moved_had_a_whole_deadline_it_would_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    over = timeouts.Timers.stop

    def begin_anew(self: timeouts.Timers, flow: int, timer: object) -> None:
        over(self, flow, timer)  # type: ignore[arg-type]
        if timer is timeouts.Timer.ANSWER and self._watchdog._senders[flow].epoch:
            self._watchdog._watchdog.pop(flow, None)

    monkeypatch.setattr(timeouts.Timers, "stop", begin_anew)
    monkeypatch.setattr(ProgressWatchdog, "suspect", lambda self, nics: None)
    assert given_up_s(rings(2, 4, 1 << 17, 8_000_000)) > bound_s(4)
