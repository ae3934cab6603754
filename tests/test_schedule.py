"""Nested rings and the ring as transfers: correct on random clusters, and every planted fault is found."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import VerifyError
from optcc.schedule import Lane, Port, Route, Schedule, Stage
from optcc.schedule.assemble import even_cuts
from optcc.schedule.columns import GRANULE, cuts_of
from optcc.schedule.nested import NestedRings, Ordering
from optcc.values.cluster import Cluster
from tests.broken_schedules import hasty, with_rows, without
from tests.conftest import clusters, degraded
from tests.effort import examples

SIZES = st.one_of(st.integers(1, 200), st.integers(1, 2**20), st.just(2**30))


@examples(200)
@given(
    cluster=clusters(min_ranks=1),
    nbytes=SIZES,
    segments=st.integers(1, 9),
    algorithm=st.sampled_from(["optcc", "ring"]),
)
def test_every_plan_is_an_allreduce(cluster: Cluster, nbytes: int, segments: int, algorithm: str) -> None:
    schedule = optcc.plan(cluster, nbytes, segments=segments).baseline(algorithm).schedule()
    optcc.verify(schedule)
    if len(cluster.ranks) > 1:
        moved = 2 * (len(cluster.ranks) - 1) * nbytes
        assert schedule.length.sum() == moved, "no schedule needs more than 2(P-1) transfers per byte"


@pytest.mark.parametrize("orderings", [(Ordering.LEAF_FIRST,), (Ordering.VIA_LEAF,), tuple(Ordering)])
@pytest.mark.parametrize("leaves", [0, 1, 2, 4])
def test_orderings(orderings: tuple[Ordering, ...], leaves: int) -> None:
    cluster = Cluster.uniform(servers=5, rate=1000)
    schedule = NestedRings(((5 - leaves, Fraction(1)),), tuple(range(5)), 4, orderings=orderings).lower(cluster, 4000)
    optcc.verify(schedule)
    for leaf in range(leaves):
        assert schedule.length[schedule.src == leaf].sum() == 4000
        assert schedule.length[schedule.dst == leaf].sum() == 4000


def _swapped(schedule: Schedule, row: int) -> Schedule:
    """`row` takes the place of the first transfer it waits for, and the other way round."""
    other = int(schedule.deps(row)[0])
    order = np.arange(len(schedule))
    order[[row, other]] = order[[other, row]]
    columns = ("route", "offset", "length", "reduce", "stage", "segment")
    return schedule.replace(**{name: getattr(schedule, name)[order] for name in columns})


@examples(200)
@given(cluster=degraded(), nbytes=st.integers(2000, 2**20), segments=st.integers(1, 5), data=st.data())
def test_a_mutated_schedule_fails(cluster: Cluster, nbytes: int, segments: int, data: st.DataObject) -> None:
    schedule = optcc.plan(cluster, nbytes, segments=segments).schedule()
    optcc.verify(schedule)
    waiting = np.flatnonzero(np.diff(schedule.dep_ptr)).tolist()
    row = data.draw(st.sampled_from(waiting), label="row")
    faults = ["dropped", "doubled", "reordered", "hasty", "misplaced", "flipped"]
    fault = data.draw(st.sampled_from(faults), label="fault")
    if fault == "dropped":
        broken = without(schedule, row)
    elif fault == "doubled":
        # A copy done twice in a row changes nothing; only a reduction counts something twice.
        row = data.draw(st.sampled_from(np.flatnonzero(schedule.reduce).tolist()), label="reduction")
        broken = with_rows(schedule, sorted([*range(len(schedule)), row]))
    elif fault == "reordered":
        broken = _swapped(schedule, row)
    elif fault == "hasty":
        broken = hasty(schedule, row)
    elif fault == "misplaced":
        offset = schedule.offset.copy()
        offset[row] = offset[row] - GRANULE if offset[row] else offset[row] + GRANULE
        broken = schedule.replace(offset=offset)
    else:
        broken = schedule.replace(reduce=np.where(np.arange(len(schedule)) == row, ~schedule.reduce, schedule.reduce))
    with pytest.raises(VerifyError):
        optcc.verify(broken)


def test_bytes_that_are_being_sent_must_not_change() -> None:
    """Rank 2 sums and hands out; rank 0 passes its copy on to rank 1 while rank 2 writes it once more."""
    hops = [(0, 2, True, []), (1, 2, True, []), (2, 0, False, [0, 1]), (0, 1, False, [2]), (2, 0, False, [0, 1])]
    pairs = sorted({(a, b) for a, b, _, _ in hops})
    ports = tuple(Port(f"port{r}", r, 1.0, 1.0) for r in range(3))
    deps = [d for *_, d in hops]
    schedule = Schedule(
        ranks=3,
        nbytes=8,
        ports=ports,
        routes=tuple(Route(a, b, (Lane(a, b, Fraction(1)),)) for a, b in pairs),
        route=np.array([pairs.index((a, b)) for a, b, _, _ in hops], np.int32),
        offset=np.zeros(5, np.int64),
        length=np.full(5, 8, np.int64),
        reduce=np.array([adds for _, _, adds, _ in hops]),
        stage=np.ones(5, np.uint8),
        segment=np.zeros(5, np.int32),
        dep_ptr=np.concatenate(([0], np.cumsum([len(d) for d in deps]))),
        dep_idx=np.array([i for d in deps for i in d], np.int64),
    )
    optcc.verify(without(schedule, 4))
    with pytest.raises(VerifyError, match="transfer 4 changes them while transfer 3 may still be sending"):
        optcc.verify(schedule)


def test_the_message_names_bytes_rank_and_contributor() -> None:
    schedule = optcc.plan(Cluster.uniform(servers=3, rate=1000), 300, segments=1).schedule()
    copies = np.flatnonzero((schedule.dst == 2) & ~schedule.reduce)
    at = int(schedule.offset[copies[-1]])
    with pytest.raises(VerifyError, match=rf"bytes {at}\.\.\d+ of rank 2: the contribution of rank \d is missing"):
        optcc.verify(without(schedule, copies[-1]))


def test_a_dead_or_foreign_port_is_refused() -> None:
    schedule = optcc.plan(Cluster.uniform(servers=3, nics=2, rate=1000), 300).schedule()
    ports = (schedule.ports[0].__class__("server0/nic0", 0, 0.0, 1.0), *schedule.ports[1:])
    with pytest.raises(VerifyError, match="dead"):
        optcc.verify(schedule.replace(ports=ports))
    ports = (schedule.ports[0].__class__("server0/nic0", 1, 1.0, 1.0), *schedule.ports[1:])
    with pytest.raises(VerifyError, match="does not have"):
        optcc.verify(schedule.replace(ports=ports))


@given(cluster=clusters(), nbytes=st.integers(1, 2**40))
def test_lanes_share_in_proportion_to_live_rates(cluster: Cluster, nbytes: int) -> None:
    from optcc.schedule.routes import Routes

    routes = Routes(cluster)
    for src in cluster.ranks:
        route = routes.table[routes(src.index, (src.index + 1) % len(cluster.ranks))]
        assert route.cuts(nbytes)[0] == 0
        assert route.cuts(nbytes)[-1] == nbytes
        assert all(a <= b for a, b in zip(route.cuts(nbytes), route.cuts(nbytes)[1:], strict=False))
        for port, rate in ((i, p.out_rate) for i, p in enumerate(routes.ports) if p.rank == src.index):
            share = sum((lane.share for lane in route.lanes if lane.out == port), Fraction(0))
            assert share == Fraction(rate) / src.out_rate


@given(start=st.integers(0, 10**15), length=st.integers(0, 10**15), parts=st.integers(1, 300))
def test_even_cuts(start: int, length: int, parts: int) -> None:
    start -= start % GRANULE
    cuts = even_cuts(start, start + length, parts)
    assert cuts[0] == start
    assert cuts[-1] == start + length
    sizes = np.diff(cuts)
    assert sizes.min() >= 0
    assert sizes[:-1].max(initial=0) - sizes[:-1].min(initial=2**62) <= GRANULE
    assert (cuts[:-1] % GRANULE == 0).all()


def test_lowering_is_deterministic() -> None:
    cluster = Cluster.uniform(servers=6, nics=3, rate=1000).degrade("server2/nic1", Fraction(1, 3))
    a, b = optcc.plan(cluster, 10**6).schedule(), optcc.plan(cluster, 10**6).schedule()
    for name in ("route", "offset", "length", "reduce", "stage", "segment", "dep_ptr", "dep_idx"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert a.routes == b.routes


def test_four_stages_with_a_straggler_and_two_without() -> None:
    hurt = Cluster.uniform(servers=4, rate=1000).degrade("server1/nic0", Fraction(1, 2))
    assert set(optcc.plan(hurt, 10**5).schedule().stage) == set(Stage)
    whole = optcc.plan(hurt.fault_free, 10**5).schedule()
    assert set(whole.stage) == {Stage.REDUCE_SCATTER, Stage.ALLGATHER}


@pytest.mark.parametrize("most", [2**20, 2**44])
def test_many_transfers_are_cut_as_each_alone(most: int) -> None:
    """Also where products of shares and bytes need more than 64 bits."""
    random = np.random.default_rng(most)
    parts = [[Fraction(1)], [Fraction(1, 3), Fraction(2, 3)], [Fraction(int(n), 2**20 + 7) for n in (5, 2**20, 2)]]
    lanes = [tuple(Lane(place, place, share) for place, share in enumerate(shares)) for shares in parts]
    routes = [Route(0, 1 + place % 3, lanes[place % 3]) for place in range(7)]
    route, length = random.integers(0, 7, 300), random.integers(0, most, 300)
    ptr, cuts = cuts_of(routes, route, length)
    alone = [routes[r].cuts(n) for r, n in zip(route.tolist(), length.tolist(), strict=True)]
    assert [cuts[a:z].tolist() for a, z in pairwise(ptr.tolist())] == alone
