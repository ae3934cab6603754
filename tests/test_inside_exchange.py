"""Direct exchange between servers, GPUs as ranks: AllReduce for any shares, loads as stated, few dependencies, fast."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError, VerifyError
from optcc.planner.search import candidate_families
from optcc.plans.plan import Plan
from optcc.schedule.candidates import Costs
from optcc.schedule.columns import GRANULE
from optcc.schedule.inside import Bundle, InsideServers
from optcc.schedule.inside_candidates import best_chunks
from optcc.schedule.inside_groups import gpu_groups, shares_by_rate, usable, view
from optcc.schedule.inside_parts import inside_exchange
from optcc.schedule.many_objects import no_collection
from optcc.schedule.routes import fluid_seconds
from optcc.schedule.striped import StripedExchange
from optcc.theory.ring_shares import hub_split
from optcc.values.cluster import Cluster
from tests.effort import examples
from tests.inside_cases import SIZES, WHOLE, gpu_clusters, gpus, port_bytes, some_shares
from tests.plan_sections import by_rows, by_rules

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)


def split(cluster: Cluster) -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
    """The hubs and who adds last, between servers."""
    own = gpu_groups(cluster)
    return hub_split(view(cluster, own, shares_by_rate(own)))


def recipe(cluster: Cluster, segments: int = 2, ways: int = 1, *, hand_on: bool = False) -> InsideServers:
    made = inside_exchange(cluster, *split(cluster), segments, ways, chunks=8)
    return replace(made, bundles=(replace(made.bundles[0], hand_on=hand_on),))


@st.composite
def some_recipe(draw: st.DrawFn) -> tuple[Cluster, InsideServers]:
    """Any shares of gathering and carrying, beside a part that goes by other parameters."""
    cluster = draw(gpu_clusters(min_servers=3))
    bundles = []
    parts = draw(st.integers(1, 2))
    for part in range(parts):
        teams = draw(st.sampled_from([t for t in (1, 2) if all(s.gpus % t == 0 for s in cluster.servers)]))
        own = gpu_groups(cluster, teams)
        live = [[usable(gpu) > 0 for gpu in group.gpus] for group in own]
        assume(all(any(row) for row in live))
        carry = tuple(some_shares(draw, row) for row in live)
        gather = tuple(some_shares(draw, [True] * len(row)) for row in live)
        if draw(st.booleans()):
            carry = shares_by_rate(own)
        inner = StripedExchange(draw(st.integers(1, 4)), *hub_split(view(cluster, own, carry)))
        share = Fraction(1, 3) if part == 0 and parts == 2 else Fraction(2, 3) if parts == 2 else WHOLE
        bundles.append(Bundle(share, teams, gather, carry, inner, draw(st.booleans())))
    return cluster, InsideServers(tuple(bundles), draw(st.integers(1, 6)))


@examples(300)
@given(made=some_recipe(), nbytes=SIZES)
def test_every_recipe_is_an_allreduce(made: tuple[Cluster, InsideServers], nbytes: int) -> None:
    cluster, found = made
    found.check(cluster)
    schedule = found.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes, "no byte moves twice"
    ends = schedule.offset + schedule.length
    assert not (schedule.offset % GRANULE).any()
    assert not (ends[ends < nbytes] % GRANULE).any()
    assert InsideServers.read(json.loads(json.dumps(found.content()))) == found
    assert found.describe(cluster)


@examples(10)
@given(cluster=gpu_clusters(min_servers=3), segments=st.integers(1, 4), hand_on=st.booleans())
def test_never_below_the_bound(cluster: Cluster, segments: int, hand_on: bool) -> None:
    try:
        bound = optcc.lower_bound(cluster, 10**6).seconds
        found = recipe(cluster, segments, hand_on=hand_on)
    except InfeasibleError:
        assume(False)
    schedule = found.lower(cluster, 10**6)
    assert optcc.simulate(schedule).time_s >= float(bound) * (1 - 1e-6)
    assert found.fluid_s(cluster, 10**6) >= bound * (1 - Fraction(1, 10**6))


@pytest.mark.parametrize("dead", range(4))
@pytest.mark.parametrize("hand_on", [False, True])
def test_loads_reach_the_bound(dead: int, hand_on: bool) -> None:
    """What `fluid_s` states is the bound, and what ports carry of the lowered bytes is that to 1 %."""
    cluster, nbytes = gpus(8, dead=dead), 2**36
    found, bound = recipe(cluster, hand_on=hand_on), optcc.lower_bound(gpus(8, dead=dead), 2**36).seconds
    assert found.fluid_s(cluster, nbytes) <= bound * (1 + Fraction(1, 10**6))
    assert fluid_seconds(found.lower(cluster, nbytes), cluster) <= bound * Fraction(101, 100)


def test_a_dead_nic_leaves_by_its_neighbours() -> None:
    cluster = gpus(8, dead=1)
    schedule = recipe(cluster).lower(cluster, 2**36)
    across = schedule.src // 8 != schedule.dst // 8
    assert 0 not in schedule.src[across]
    assert 0 not in schedule.dst[across]
    for moved in port_bytes(schedule, nvlink=False):
        assert moved[:7] == pytest.approx(moved[:7].mean(), rel=0.02)
    healthy, hurt = (port_bytes(recipe(c).lower(c, 2**36), nvlink=True)[0] for c in (gpus(8), cluster))
    assert hurt.max() <= healthy.max() * 1.001


def test_results_by_the_next_gpu_wait_for_one_transfer() -> None:
    """Without it every result of a hub waits for all that the hub gathers."""
    cluster = gpus(8, 4)
    waits = []
    for hand_on in (False, True):
        schedule = replace(recipe(cluster, 1, hand_on=hand_on), chunks=1).lower(cluster, 2**20)
        optcc.verify(schedule)
        assert optcc.simulate(schedule).time_s > 0
        results = ~schedule.reduce & (schedule.src // 4 != schedule.dst // 4)
        waits.append(np.diff(schedule.dep_ptr)[results].max())
    assert waits == [7 + 3, 1]


def test_a_nic_starts_before_all_for_its_first_hub_is_summed() -> None:
    """The first run is half as long as the others, here half of a hub's part, and the transfer to the hub is cut."""
    cluster, nbytes = gpus(8, 4), 2**30
    schedule = recipe(cluster, 1).lower(cluster, nbytes)
    across = schedule.src // 4 != schedule.dst // 4
    half = nbytes / 4 / 8 / 2
    assert optcc.simulate(schedule).start[across].min() == pytest.approx(3 * half / 450e9)
    assert schedule.length[across].min() == half
    sums = schedule.reduce & ~across & (schedule.dst == 0)
    assert sorted(set(schedule.length[sums].tolist())) == [half, 2 * half]


@pytest.mark.parametrize("ways", [1, 3])
def test_rounds_by_way_of_a_slow_server(ways: int) -> None:
    """A server with half of its NICs adds last. In one round by its way it waits for a hub's whole part before it has
    anything to receive; in more rounds it waits less."""
    cluster = gpus(4, 4, dead=2)
    schedule = recipe(cluster, 1, ways).lower(cluster, 2**28)
    optcc.verify(schedule)
    bound = float(optcc.lower_bound(cluster, 2**28).seconds)
    assert (optcc.simulate(schedule).time_s < 1.15 * bound) == (ways > 1)


@pytest.mark.parametrize("hand_on", [False, True])
@pytest.mark.parametrize("segments", [1, 3])
def test_its_channels_say_what_its_transfers_say(hand_on: bool, segments: int) -> None:
    """docs/consume-from-cpp.md: hubs are trees, with a hop more where the next GPU sends results on."""
    cluster = gpus(4, 3, dead=1)
    plan = Plan(cluster, optcc.lower_bound(cluster, 4000), recipe(cluster, segments, hand_on=hand_on))
    text = plan.to_json("transfers")
    lowered = json.loads(text)["lowered"]
    assert by_rules(lowered) == by_rows(lowered)
    assert Plan.from_json(text) == plan


@pytest.mark.parametrize("hand_on", [False, True])
def test_without_one_dependency_it_is_no_allreduce(hand_on: bool) -> None:
    """Each is needed, except what another one on the same way implies."""
    cluster = gpus(3, 2, dead=1)
    schedule = recipe(cluster, 1, hand_on=hand_on).lower(cluster, 3000)
    for edge in range(len(schedule.dep_idx)):
        row = int(np.searchsorted(schedule.dep_ptr, edge, "right")) - 1
        ptr = schedule.dep_ptr.copy()
        ptr[row + 1 :] -= 1
        with pytest.raises(VerifyError):
            optcc.verify(schedule.replace(dep_ptr=ptr, dep_idx=np.delete(schedule.dep_idx, edge)))


def test_a_changed_order_is_caught() -> None:
    cluster = gpus(3, 2, dead=1)
    schedule = recipe(cluster).lower(cluster, 2**16)
    optcc.verify(schedule)
    with pytest.raises(VerifyError):
        optcc.verify(schedule.replace(dep_ptr=np.zeros_like(schedule.dep_ptr), dep_idx=schedule.dep_idx[:0]))


@pytest.mark.long
@pytest.mark.parametrize(("servers", "most"), [(8, 1.10), (16, 1.10)])
def test_the_planner_takes_it_where_it_is_faster(servers: int, most: float) -> None:
    cluster, nbytes = gpus(servers, dead=1), 2**30
    made = optcc.plan(cluster, nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
    assert isinstance(made.recipe, InsideServers)
    assert isinstance(made.recipe.bundles[0].inner, StripedExchange)
    assert optcc.simulate(made.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK).time_s <= most * float(made.bound.seconds)
    assert Plan.from_json(made.to_json()) == made


def test_only_where_gpus_of_all_servers_meet() -> None:
    bound = optcc.lower_bound(gpus(4, 2, rails=True), 4096)
    assert len(candidate_families(gpus(4, 2, rails=True), bound, alpha=ALPHA)) == 2
    assert len(candidate_families(gpus(2, 2), bound, alpha=ALPHA)) == 2
    assert len(candidate_families(gpus(4, 2), bound, alpha=ALPHA)) == 3
    assert len(candidate_families(gpus(65, 1), bound, alpha=ALPHA)) == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    was, cluster = gc.isenabled(), gpus(4, 2, dead=1)
    try:
        (gc.enable if enabled else gc.disable)()
        recipe(cluster).lower(cluster, 2**20)
        assert gc.isenabled() == enabled
        with pytest.raises(ZeroDivisionError), no_collection():
            divmod(1, int(gc.isenabled()))  # nothing, since it is off
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("per_chunk", [Fraction(1, 10**6), Fraction(5, 10**6)])
def test_fewer_runs_are_taken_where_they_cost_more(per_chunk: Fraction) -> None:
    """A quarter of the runs, and four times as many, take longer than the number that the planner takes."""
    cluster, nbytes = gpus(4, dead=1), 2**30
    chunks = best_chunks(cluster, optcc.lower_bound(cluster, nbytes), Costs(ALPHA, per_chunk))
    assert chunks is not None
    few, best, many = (
        optcc.simulate(
            replace(recipe(cluster), chunks=n).lower(cluster, nbytes), alpha=ALPHA, per_chunk=per_chunk
        ).time_s
        for n in (chunks // 4, chunks, 4 * chunks)
    )
    assert few > best < many
    assert best_chunks(cluster, optcc.lower_bound(cluster, nbytes), Costs()) is None
