"""Receiving ports and links that serve packets: by hand, against an independent account of a queue, with faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.cli import main
from optcc.errors import InputError, SimulationError
from optcc.plans.files import save_plan
from optcc.schedule import Lane, Port, Route, Schedule
from optcc.simulation.faults import Fault
from optcc.simulation.simulator import TICKS_PER_S, Simulation, usage
from optcc.simulation.timeline import chrome_trace
from optcc.values.cluster import Cluster
from tests.conftest import GBPS
from tests.conservation import backlog, check_shared
from tests.effort import examples
from tests.fabrics import ring
from tests.test_simulator import one_transfer, two_racks

TICK = 1 / TICKS_PER_S


def run(schedule: Schedule, **how: object) -> Simulation:
    return optcc.simulate(schedule, receivers="packets", **how)  # type: ignore[arg-type]


def into_one(
    lengths: Sequence[int], rates: Sequence[float], after: Sequence[int | None] = (), into: float = 1000
) -> Schedule:
    """Rank i sends lengths[i] bytes at rates[i] to the last rank, once transfer after[i] has landed."""
    count = len(lengths)
    deps = [[] if a is None else [a] for a in after or [None] * count]
    ports = [Port(f"port{i}", i, rate, 1000.0) for i, rate in enumerate(rates)]
    return Schedule(
        ranks=count + 1,
        nbytes=max(lengths),
        ports=(*ports, Port("into", count, 1000.0, into)),
        routes=tuple(Route(i, count, (Lane(i, count, Fraction(1)),)) for i in range(count)),
        route=np.arange(count, dtype=np.int32),
        offset=np.zeros(count, np.int64),
        length=np.array(lengths, np.int64),
        reduce=np.ones(count, np.bool_),
        stage=np.ones(count, np.uint8),
        segment=np.zeros(count, np.int32),
        dep_ptr=np.cumsum([0, *map(len, deps)]).astype(np.int64),
        dep_idx=np.array([d for some in deps for d in some], np.int64),
    )


def test_senders_share_a_port() -> None:
    """Two at full rate: half of each waits when the last bytes come. Stripe by stripe one of them lands after 1 s."""
    schedule = into_one([1000, 1000], [1000, 1000])
    assert run(schedule).finish == pytest.approx([2, 2])
    assert optcc.simulate(schedule).finish == pytest.approx([1, 2])
    # One of 500 bytes: it has come after 0.5 s, when 0.5 s of work wait.
    assert run(into_one([500, 1000], [1000, 1000])).finish == pytest.approx([1, 1.5])
    # A slow one beside a fast one: 100 bytes of it come in the first second, and its own last byte waits for nobody.
    assert run(into_one([1000, 1000], [100, 1000])).finish == pytest.approx([10, 1.1])
    # Together they are as fast as the port.
    assert run(into_one([500, 500], [500, 500])).finish == pytest.approx([1, 1], abs=2 * TICK)
    check_shared(schedule, run(schedule))


def test_what_came_before_is_served_before() -> None:
    """The first two bring 2 s of work within 1 s; the third sends once both have landed, the fourth after 1 s."""
    schedule = into_one([1000, 1000, 1000], [1000, 1000, 1000], [None, None, 0])
    assert run(schedule).finish == pytest.approx([2, 2, 3])
    later = into_one([2000, 500, 500], [2000, 1000, 1000], [None, None, 1])
    # 2000 come by 1 s beside 500 by 0.5 s: then 1 s of work waits, at 1 s 1.5 s. The third comes alone, to nothing.
    assert run(later).finish == pytest.approx([2.5, 1.5, 3])


@pytest.mark.parametrize("cost", [1, 0.25])
def test_what_stripes_cost_a_port(cost: float) -> None:
    """A port works for a stripe before its first byte is there, as its sender does."""
    schedule = one_transfer(())
    assert run(schedule, per_chunk=cost).time_s == pytest.approx(1 + cost)
    assert run(schedule, per_chunk=cost, alpha=3).time_s == pytest.approx(4 + cost)
    # The port has 2 costs and 2 s of work from the first moment on, and two senders, which are through before that.
    assert run(into_one([1000, 1000], [1000, 1000]), per_chunk=cost).time_s == pytest.approx(2 + 2 * cost)


def test_a_link_is_shared() -> None:
    """Three at 1000 bytes/s over a link of 1500: all are through after 2 s. Stripe by stripe the first is after 1."""
    schedule = one_transfer((1500,), copies=3)
    simulation = run(schedule)
    assert simulation.finish == pytest.approx([2, 2, 2], abs=2 * TICK)
    assert simulation.worked[-1] == pytest.approx(2)
    check_shared(schedule, simulation)
    # Over two links, the second of which is slower: it has 1000 bytes left when the last byte comes, after 2 s.
    assert run(one_transfer((1500, 1000), copies=3)).finish == pytest.approx([3, 3, 3], abs=9 * TICK)


def test_a_link_gets_busy_under_a_stripe() -> None:
    """A stripe that is slower than the link meets one that fills it up, and leaves it later than was expected."""
    made = one_transfer((1000, 2000), copies=2)
    slow, fast = replace(made.ports[0], out_rate=500.0), replace(made.ports[1], out_rate=1000.0)
    schedule = made.replace(ports=(slow, fast, *made.ports[2:]))
    simulation = run(schedule)
    # In the first second 500 + 1000 bytes come, 500 wait; the slow one's last byte comes after 2 s, to nothing.
    assert simulation.finish == pytest.approx([2, 1.5])
    check_shared(schedule, simulation)


@examples(100)
@given(
    senders=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 4000)), min_size=1, max_size=8),
    chained=st.lists(st.booleans(), min_size=8, max_size=8),
    into=st.integers(100, 4000),
)
def test_an_independent_account_of_the_queue(senders: list[tuple[int, int]], chained: list[bool], into: int) -> None:
    """Some wait for the transfer before them. Each lands when what waits as its last byte comes has been served."""
    after = [i - 1 if i and chained[i] else None for i in range(len(senders))]
    schedule = into_one([n for n, _ in senders], [float(r) for _, r in senders], after, into)
    simulation = run(schedule)
    first, until = simulation.stripe_start, simulation.stripe_end
    for i in range(len(senders)):
        waits = backlog(first, until, schedule.length / into, until[i])
        assert simulation.land_end[i] == pytest.approx(until[i] + waits, abs=1e-9)
    check_shared(schedule, simulation)
    served = schedule.length.sum() / into
    assert simulation.worked[2 * len(senders) + 1] == pytest.approx(served, rel=1e-9, abs=len(senders) * TICK)


def test_a_queue_that_forgets_the_others_is_noticed() -> None:
    """The control of the account: it sees a port that serves each sender as if it were alone."""
    simulation = run(into_one([1000, 1000], [1000, 1000]))
    alone = [backlog(simulation.stripe_start[[i]], simulation.stripe_end[[i]], np.ones(1), 1.0) for i in (0, 1)]
    both = backlog(simulation.stripe_start, simulation.stripe_end, np.ones(2), 1.0)
    assert (alone, both) == ([0, 0], pytest.approx(1))


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("early", "sent before it was there"),
        ("fast", "served more than its rate allows"),
        ("skipped", "a transfer ends with"),
        ("ahead", "served before it was there"),
        ("lazy", "worked less than it served"),
        ("jumped", "received before it was sent"),
    ],
)
def test_the_check_can_fail(fault: str, found: str) -> None:
    schedule = ring(two_racks(), 8000) if fault != "fast" else into_one([1000, 1000], [1000, 1000])
    simulation = run(schedule)
    check_shared(schedule, simulation)
    if fault == "early":
        simulation.start[-1] = 0
    elif fault == "fast":  # both at the full rate of the port, at once
        simulation.land_end[:], simulation.finish[:] = 1, [1, 1]
        simulation = replace(simulation, time_s=1.0)
    elif fault == "skipped":
        simulation.land_end[-1] += 1e-3
    elif fault == "ahead":
        simulation.land_start[-1] -= 100
    elif fault == "lazy":
        simulation.worked[len(schedule.ports)] /= 2
    else:
        simulation.crossings.end[0] += 5
    with pytest.raises(AssertionError, match=found):
        check_shared(schedule, simulation)


def test_a_port_that_slows_down_and_one_that_dies() -> None:
    """Both bring 1 s of work within 1 s. At 1.5 s half of the port's rate goes: the rest, 0.5 s, takes twice that."""
    schedule = into_one([1000, 1000], [1000, 1000])
    slowed = run(schedule, faults=[Fault("into", Fraction(3, 2), Fraction(1, 2))])
    assert slowed.finish == pytest.approx([2.5, 2.5])
    assert slowed.worked[3 + 2] == pytest.approx(2.5)
    early = run(schedule, faults=[Fault("into", Fraction(1, 2), Fraction(1, 2))])
    # 0.5 s are done by then; 1.5 s of work are left.
    assert early.finish == pytest.approx([3.5, 3.5])
    with pytest.raises(SimulationError, match=r"no live NIC left"):
        run(schedule, faults=[Fault("into", 1)])


def test_a_death_loses_all_that_had_not_landed() -> None:
    """Server 2's nic0 dies after 1.5 s, when half of what servers 0 and 1 sent to it has been served; that is known
    after 2 s. Its nic1 then takes all of it, beside nothing else."""
    made = into_one([1000, 1000], [1000, 1000])
    schedule = made.replace(ports=(*made.ports, Port("spare", 2, 1000.0, 1000.0)))
    schedule = schedule.replace(
        ports=(
            *(replace(p, name=f"server{i}/nic0") for i, p in enumerate(made.ports)),
            Port("server2/nic1", 2, 1000.0, 1000.0),
        )
    )
    simulation = run(schedule, faults=[Fault("server2/nic0", Fraction(3, 2), detect_s=Fraction(1, 2))])
    assert simulation.finish == pytest.approx([4, 4])
    assert simulation.replayed == 2000
    assert simulation.worked[4 + 2 : 4 + 4] == pytest.approx([1.5, 2])
    check_shared(schedule, simulation)


@examples(40)
@given(
    nics=st.integers(1, 3),
    nbytes=st.integers(1, 20_000),
    faults=st.lists(
        st.builds(
            Fault,
            st.sampled_from([f"server{s}/nic{n}" for s in range(4) for n in range(2)]),
            st.sampled_from([0, 0.1, 1, 3.5, 7]),
            st.sampled_from([0, Fraction(1, 2)]),
            st.sampled_from([0, 1]),
        ),
        max_size=2,
        unique_by=lambda fault: fault.port,
    ),
)
def test_faults_lose_no_bytes(nics: int, nbytes: int, faults: list[Fault]) -> None:
    cluster = Cluster.uniform(servers=4, nics=nics, rate=1000).degrade("server1/nic0", Fraction(1, 2))
    schedule = optcc.plan(cluster, nbytes, family="nested-rings", segments=2).schedule()
    names = [port.name for port in schedule.ports]
    faults = [fault for fault in faults if fault.port in names]
    try:
        simulation = run(schedule, faults=faults)
    except SimulationError:  # a server's last NIC died, which is named in test_faults
        assume(nics > 1)
        assert sum(not fault.left for fault in faults) > 1
        return
    check_shared(schedule, simulation)
    assert simulation.time_s >= float(optcc.lower_bound(cluster, nbytes).seconds) * (1 - 1e-12)
    whole = optcc.simulate(schedule, faults=faults, receivers="packets")
    assert np.array_equal(simulation.finish, whole.finish), "a run repeats to the tick"


def test_ring_is_the_same_either_way() -> None:
    """Where each receiver has one sender there is nothing to share."""
    cluster = Cluster.uniform(servers=6, nics=4, rate=50 * GBPS).degrade("server3/nic2", Fraction(1, 3))
    schedule = optcc.plan(cluster, 2**24).baseline("ring").schedule()
    how = {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}
    assert run(schedule, **how).time_s == pytest.approx(optcc.simulate(schedule, **how).time_s, rel=1e-9)


def test_busy_means_work() -> None:
    """A sender of a tenth of the port's rate keeps it busy for a tenth of the time, and the rest is forced."""
    simulation = run(into_one([1000], [100]))
    port = next(row for row in usage(simulation) if (row.name, row.way) == ("into", "in"))
    assert (port.busy_s, port.forced_idle_s, port.idle_s) == pytest.approx((1, 9, 0))


def test_unknown_receivers_are_refused() -> None:
    with pytest.raises(InputError, match="unknown kind of receivers"):
        optcc.simulate(into_one([1], [1]), receivers="frames")  # type: ignore[arg-type]


def test_spans_of_a_track_do_not_overlap() -> None:
    """What overlaps at a port that serves packets is drawn on further tracks of that port."""
    events = chrome_trace(run(into_one([1000, 1000, 500], [1000, 1000, 500])))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"into in", "into in (2)", "into in (3)"} <= set(names.values())
    spans: dict[str, list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            spans.setdefault(names[e["pid"], e["tid"]], []).append((e["ts"], e["ts"] + e["dur"]))
    for track in spans.values():
        ordered = sorted(track)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(ordered))
    apart = chrome_trace(optcc.simulate(into_one([1000, 1000], [1000, 1000])))["traceEvents"]
    assert not any("(2)" in e["args"].get("name", "") for e in apart)


def test_the_command_line_says_which_it_was(tmp_path: Path) -> None:
    plan = optcc.plan(Cluster.uniform(servers=4, rate=50 * GBPS).degrade("server0/nic0", Fraction(1, 2)), 2**20)
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    for receivers in ("stripes", "packets"):
        result = CliRunner().invoke(main, ["simulate", str(path), "--receivers", receivers, "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        expected = optcc.simulate(plan.schedule(), receivers=receivers)  # type: ignore[arg-type]
        assert (found["receivers"], found["time_s"]) == (receivers, expected.time_s)
        told = CliRunner().invoke(main, ["simulate", str(path), "--receivers", receivers]).stdout
        assert ("packets of several senders" in told) == (receivers == "packets")
    assert CliRunner().invoke(main, ["simulate", str(path), "--receivers", "frames"]).exit_code == 2
