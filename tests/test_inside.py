"""Inside servers: correct for random groups, tasks and rails, and for any schedule between servers."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError, InputError, VerifyError
from optcc.planner.search import candidate_families
from optcc.plans.plan import Plan
from optcc.schedule import Port, Schedule
from optcc.schedule.assemble import TemplateRow, assemble
from optcc.schedule.columns import GRANULE, Stage
from optcc.schedule.inside import (
    BufferPart,
    Bundle,
    InsideServers,
    best_chunks,
    channels,
    even_shares,
    gpu_groups,
    inside_exchange,
    inside_servers,
    nvlink_load,
    shares_by_rate,
    shares_of_slot,
    usable,
    view,
)
from optcc.schedule.nested import nested_rings
from optcc.schedule.recipe import Costs, Recipe
from optcc.schedule.routes import Routes, fluid_seconds, no_collection
from optcc.schedule.striped import StripedExchange
from optcc.theory.inside_split import InsideSplit, costs, inside_split, mix
from optcc.theory.ring_shares import hub_split
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.broken_schedules import hasty, with_rows, without
from tests.effort import examples

# Servers whose GPUs are ranks, schedules inside them, and what their ports carry.


WHOLE = Fraction(1)
GB = 10**9


def gpus(
    servers: int, count: int = 8, nvlink: int = 450, rails: bool = False, dead: int = 0, spine: Fraction | None = None
) -> Cluster:
    """Servers with `count` GPUs, a 50 GB/s NIC each; the first server's first `dead` NICs are."""
    whole = Cluster.uniform(servers=servers, nics=count, rate=50 * GB, gpus=count, nvlink_rate=nvlink * GB)
    cluster = replace(whole, fabric=Fabric(rails=rails, spine=spine), gpu_ranks=True)
    for nic in range(dead):
        cluster = cluster.degrade(f"server0/nic{nic}")
    return cluster


def recipe(cluster: Cluster, segments: int = 4, **options: Any) -> InsideServers:
    return inside_servers(cluster, inside_split(cluster).parts, segments, **options)


@st.composite
def gpu_clusters(draw: st.DrawFn, min_servers: int = 1, rails: bool = False) -> Cluster:
    """Servers of 1 to 4 GPUs with 1 to 3 NICs of unequal rates, some dead; NVLink slow or fast. On rails a NIC each."""
    servers = []
    count = nics = draw(st.integers(1, 4))
    for s in range(draw(st.integers(min_servers, 5))):
        if not rails:
            count, nics = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        rates = [draw(st.sampled_from([0, 1, 2, 4, 4, 4])) * GB for _ in range(nics)]
        ports = tuple(
            Nic(f"nic{i}", Fraction(out), Fraction(draw(st.sampled_from([out, out, GB]))), rail=i)
            for i, out in enumerate(rates)
        )
        servers.append(Server(f"server{s}", ports, count, Fraction(draw(st.sampled_from([3, 9, 40])) * GB)))
    return Cluster(tuple(servers), fabric=Fabric(rails=rails), gpu_ranks=True)


def some_shares(draw: st.DrawFn, allowed: list[bool]) -> tuple[Fraction, ...]:
    weights = [draw(st.integers(0, 5)) * ok for ok in allowed]
    if not any(weights):
        weights = [int(ok) for ok in allowed]
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


SIZES = st.one_of(st.integers(0, 300), st.integers(1, 2**22), st.just(2**40 + 12345))


def port_bytes(schedule: Schedule, nvlink: bool) -> tuple[np.ndarray, np.ndarray]:
    """Bytes out and in of every port of the kind."""
    out, into = np.zeros((2, len(schedule.ports)))
    for route, moved in zip(
        schedule.routes, np.bincount(schedule.route, schedule.length, len(schedule.routes)), strict=True
    ):
        for lane in route.lanes:
            out[lane.out] += float(lane.share) * moved
            into[lane.into] += float(lane.share) * moved
    kind = np.array([port.nvlink == nvlink for port in schedule.ports])
    return out[kind], into[kind]


@st.composite
def some_recipe(draw: st.DrawFn) -> tuple[Cluster, InsideServers]:
    """Any shares of gathering and carrying, teams and rings."""
    cluster = draw(gpu_clusters())
    bundles = []
    parts = draw(st.integers(1, 2))
    for part in range(parts):
        divisors = [t for t in range(1, 5) if all(s.gpus % t == 0 for s in cluster.servers)]
        teams = draw(st.sampled_from(divisors)) if len(cluster.servers) > 1 else 1
        own = gpu_groups(cluster, teams)
        live = [[usable(gpu) > 0 or len(own) == 1 for gpu in group.gpus] for group in own]
        assume(all(any(row) for row in live))
        carry = tuple(some_shares(draw, row) for row in live)
        gather = tuple(some_shares(draw, [True] * len(row)) for row in live)
        sizes = draw(st.sets(st.integers(1, len(own)), min_size=1, max_size=2))
        rings = {size: Fraction(1, len(sizes)) for size in sizes} if len(own) > 1 else {}
        inner = nested_rings(view(cluster, own, carry), rings, draw(st.integers(1, 4)))
        share = Fraction(1, 3) if part == 0 and parts == 2 else Fraction(2, 3) if parts == 2 else WHOLE
        bundles.append(Bundle(share, teams, gather, carry, inner))
    return cluster, InsideServers(tuple(bundles), draw(st.integers(1, 6)))


@examples(300)
@given(made=some_recipe(), nbytes=SIZES)
def test_every_recipe_is_an_allreduce(made: tuple[Cluster, InsideServers], nbytes: int) -> None:
    cluster, found = made
    found.check(cluster)
    schedule = found.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes, "no byte moves twice"
    assert found.describe(cluster)


@examples(100)
@given(cluster=gpu_clusters(min_servers=2, rails=True), nbytes=SIZES, data=st.data())
def test_guests_on_rails(cluster: Cluster, nbytes: int, data: st.DataObject) -> None:
    """On one rail some groups, with a NIC on it or without, are guests of the others by all their NICs."""
    own = gpu_groups(cluster)
    slot = data.draw(st.integers(0, len(own[0].gpus) - 1), label="slot")
    silent = {i for i, group in enumerate(own) if not usable(group.gpus[slot])}
    more = data.draw(st.sets(st.integers(0, len(own) - 1)), label="guests")
    guests = tuple(sorted(silent | more))
    assume(len(guests) < len(own))
    ring = data.draw(st.integers(1, len(own) - len(guests)), label="ring")
    part = BufferPart(WHOLE, 1, {ring: WHOLE}, (slot,), guests)
    chunks = data.draw(st.integers(1, 5), label="chunks")
    try:
        found = inside_servers(cluster, [part], data.draw(st.integers(1, 4)), chunks=chunks)
    except InfeasibleError:
        assume(False)
    found.check(cluster)
    schedule = found.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes, "guests cost no transfer more"
    rails = [port.rail for port in schedule.ports]
    assert all(rails[lane.out] == rails[lane.into] for route in schedule.routes for lane in route.lanes)


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_most_servers_may_be_guests(segments: int) -> None:
    """Two of three have lost their NIC on the same rail: the third is who they are guests of."""
    cluster = gpus(3, 4, nvlink=64, rails=True).degrade("server0/nic0").degrade("server1/nic0")
    found = inside_servers(cluster, inside_split(cluster).parts, segments)
    optcc.verify(found.lower(cluster, 2**20))


def test_rails_with_a_spine_are_crossed() -> None:
    cluster = gpus(4, 4, rails=True, dead=1, spine=Fraction(1))
    schedule = recipe(cluster).lower(cluster, 2**20)
    optcc.verify(schedule)
    assert schedule.links
    rails = [port.rail for port in schedule.ports]
    assert any(rails[lane.out] != rails[lane.into] for route in schedule.routes for lane in route.lanes)


def test_a_dead_nic_leaves_by_its_neighbours() -> None:
    cluster = gpus(4, dead=1)
    schedule = recipe(cluster, 8).lower(cluster, 2**36)
    across = schedule.src // 8 != schedule.dst // 8
    assert 0 not in schedule.src[across]
    assert 0 not in schedule.dst[across]
    out, into = port_bytes(schedule, nvlink=False)
    assert out[:7] == pytest.approx(out[:7].mean(), rel=0.02)
    assert into[:7] == pytest.approx(into[:7].mean(), rel=0.02)
    healthy, _ = port_bytes(recipe(gpus(4), 8).lower(gpus(4), 2**36), nvlink=True)
    hurt, _ = port_bytes(schedule, nvlink=True)
    assert hurt.max() <= healthy.max() * 1.001


@dataclass(frozen=True)
class Star(Recipe):
    """Everyone sends the first server all it has, in two sections; not what nested rings look like: the second server
    sends both at once, and results of the second section wait for sums of the first.
    """

    family: ClassVar[str] = "star"
    segments: int = 1

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        routes, template = Routes(cluster), list[TemplateRow]()
        others = range(1, len(cluster.ranks))
        for section in (0, 1):
            for rank in others:
                template.append(TemplateRow(section, routes(rank, 0), rank, True, Stage.REDUCE_SCATTER, ()))
        for section in (0, 1):
            for rank in others:
                deps = tuple(range((section + 1) * len(others)))
                template.append(TemplateRow(section, routes(0, rank), 9 + rank, False, Stage.ALLGATHER, deps))
        schedule = assemble(
            cluster, nbytes, routes, [(template, np.arange(1), np.array([[0, nbytes // 16 * 8, nbytes]]))]
        )
        first, second = np.flatnonzero(schedule.reduce & (schedule.src == 1)).tolist()
        length = schedule.length.copy()
        length[first] = nbytes
        kept = [row for row in range(len(schedule)) if row != second]
        moved = np.where(schedule.dep_idx == second, first, schedule.dep_idx)
        return with_rows(schedule.replace(length=length, dep_idx=moved), kept)

    def check(self, cluster: Cluster) -> None: ...

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        return []


@pytest.mark.parametrize("hand_on", [False, True])
def test_any_schedule_between_servers_will_do(hand_on: bool) -> None:
    cluster = gpus(4, 4, dead=1)
    own = gpu_groups(cluster)
    carry = shares_by_rate(own)
    found = InsideServers((Bundle(WHOLE, 1, even_shares(own), carry, Star(), hand_on),), 3)
    schedule = found.lower(cluster, 10_000)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * 15 * 10_000


@pytest.mark.parametrize("rails", [False, True])
def test_without_one_transfer_it_is_no_allreduce(rails: bool) -> None:
    cluster = gpus(3, 3, rails=rails, dead=1)
    schedule = recipe(cluster, 2).lower(cluster, 9000)
    optcc.verify(schedule)
    inside = np.flatnonzero(schedule.src // 3 == schedule.dst // 3)
    assert len(inside)
    for row in inside.tolist():
        with pytest.raises(VerifyError):
            optcc.verify(without(schedule, row))


@pytest.mark.parametrize("rails", [False, True])
def test_without_one_dependency_it_is_no_allreduce(rails: bool) -> None:
    """Each is needed, except what another one on the same way implies."""
    cluster = gpus(3, 3, rails=rails, dead=1)
    schedule = recipe(cluster, 1, chunks=1).lower(cluster, 9000)
    caught = 0
    for edge in range(len(schedule.dep_idx)):
        row = int(np.searchsorted(schedule.dep_ptr, edge, "right")) - 1
        try:
            optcc.verify(hasty(schedule, row, edge - schedule.dep_ptr[row]))
        except VerifyError:
            caught += 1
    assert caught == len(schedule.dep_idx)


def test_lowering_is_deterministic_and_channels_of_one_shape_are_alike() -> None:
    cluster = gpus(3, 4, dead=1)
    a, b = recipe(cluster).lower(cluster, 2**20), recipe(cluster).lower(cluster, 2**20)
    for name in ("route", "offset", "length", "reduce", "stage", "segment", "dep_ptr", "dep_idx"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert a.routes == b.routes
    healthy = recipe(gpus(3, 4)).lower(gpus(3, 4), 2**20)
    channel = healthy.offset // 2**18
    assert len(set(np.bincount(channel).tolist())) == 1


def test_ports_are_those_of_the_cluster() -> None:
    cluster = gpus(2, 2)
    schedule = recipe(cluster, 1).lower(cluster, 4096)
    assert all(isinstance(port, Port) for port in schedule.ports)
    assert sum(port.nvlink for port in schedule.ports) == 4


# What schedules inside servers are made of: channels, teams and depths; and what is refused.


@examples(60)
@given(data=st.data(), count=st.integers(1, 5), groups=st.integers(1, 3))
def test_channels_deal_out_every_share(data: st.DataObject, count: int, groups: int) -> None:
    gather, carry = (tuple(some_shares(data.draw, [True] * count) for _ in range(groups)) for _ in range(2))
    found = channels(gather, carry)
    assert found[0].low == 0
    assert found[-1].high == 1
    for group in range(groups):
        for shares, which in ((gather, 0), (carry, 1)):
            dealt = [Fraction(0)] * count
            for channel in found:
                assert sum(task.part for task in channel.sites[group].tasks) == 1
                for task in channel.sites[group].tasks:
                    place = (channel.places[group] + task[which]) % count
                    dealt[place] += task.part * (channel.high - channel.low)
            assert tuple(dealt) == shares[group]


def test_teams_alternate_between_servers_and_share_the_nics() -> None:
    own = gpu_groups(gpus(3, 4).degrade("server0/nic0").degrade("server0/nic2"), 2)
    assert [group.server for group in own] == [0, 1, 2, 0, 1, 2]
    assert {sum(usable(gpu) > 0 for gpu in group.gpus) for group in own if group.server == 0} == {1}
    assert sorted(gpu.index for group in own for gpu in group.gpus) == list(range(12))


def forged(found: InsideServers, **fields: Any) -> InsideServers:
    return replace(found, bundles=(replace(found.bundles[0], **fields), *found.bundles[1:]))


def test_forged_shares_are_refused() -> None:
    cluster = gpus(3, 4, dead=1)
    found = recipe(cluster)
    found.check(cluster)
    bundle = found.bundles[0]
    quarter = (Fraction(1, 4),) * 4
    rest = bundle.carry[1:]
    for wrong in (
        forged(found, carry=(quarter, *rest)),  # GPU 0 has no NIC
        forged(found, carry=((0, WHOLE, 0, WHOLE), *rest)),
        forged(found, carry=((0, 2 * WHOLE, -WHOLE, 0), *rest)),
        forged(found, carry=rest),
        forged(found, gather=(quarter[1:], *rest)),
        forged(found, gather=((0, 0, 0, 0), *rest)),
        forged(found, share=Fraction(1, 2)),
        forged(found, share=Fraction(0)),
        forged(found, teams=3),
        forged(found, teams=0),
        forged(found, hand_on=1),
        forged(found, hand_on=True),  # rings
        forged(found, straight=None),
        forged(found, inner=replace(bundle.inner, order=(0, 1))),
        replace(found, chunks=0),
        replace(found, chunks=True),
        replace(found, bundles=()),
    ):
        with pytest.raises(InputError):
            wrong.check(cluster)
    with pytest.raises(InputError, match="cluster"):
        found.check(replace(cluster, gpu_ranks=False))
    with pytest.raises(InputError, match="nvlink"):
        found.check(gpus(3, 4, nvlink=0, dead=1))
    single = recipe(gpus(1, 4))
    with pytest.raises(InputError, match="teams"):
        forged(single, teams=2).check(gpus(1, 4))


def test_where_there_is_no_way_the_message_says_so() -> None:
    with pytest.raises(InputError, match="servers as ranks"):
        inside_split(replace(gpus(2), gpu_ranks=False))
    with pytest.raises(InputError, match="NVLink"):
        inside_split(gpus(2, nvlink=0))
    with pytest.raises(InfeasibleError, match="acked trees"):
        inside_split(gpus(2, 2, dead=2))
    apart = gpus(3, 2, rails=True).degrade("server0/nic0").degrade("server1/nic1")
    with pytest.raises(InfeasibleError, match="acked trees"):
        inside_split(apart)
    crossing = gpus(3, 2, rails=True, dead=1)
    whole = inside_servers(crossing, [BufferPart(WHOLE, 1, {3: WHOLE})], 1)
    with pytest.raises(InfeasibleError, match="spine"):
        whole.lower(crossing, 1000)
    # A guest can be no part of a ring: nobody could pass on what comes to it.
    ring = inside_servers(crossing, [BufferPart(WHOLE, 1, {3: WHOLE}, (0,), (0,))], 1)
    with pytest.raises(InfeasibleError):
        ring.lower(crossing, 1000)
    with pytest.raises(InfeasibleError, match="meets all others"):
        shares_of_slot(gpu_groups(crossing), 0, ())


# Direct exchange between servers, GPUs as ranks: AllReduce for any shares, loads as stated, few dependencies, fast.


ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)


def split(cluster: Cluster) -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
    """The hubs and who adds last, between servers."""
    own = gpu_groups(cluster)
    return hub_split(view(cluster, own, shares_by_rate(own)))


def exchange(cluster: Cluster, segments: int = 2, ways: int = 1, *, hand_on: bool = False) -> InsideServers:
    made = inside_exchange(cluster, *split(cluster), segments, ways, chunks=8)
    return replace(made, bundles=(replace(made.bundles[0], hand_on=hand_on),))


@st.composite
def some_exchange(draw: st.DrawFn) -> tuple[Cluster, InsideServers]:
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
@given(made=some_exchange(), nbytes=SIZES)
def test_every_exchange_is_an_allreduce(made: tuple[Cluster, InsideServers], nbytes: int) -> None:
    cluster, found = made
    found.check(cluster)
    schedule = found.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes, "no byte moves twice"
    ends = schedule.offset + schedule.length
    assert not (schedule.offset % GRANULE).any()
    assert not (ends[ends < nbytes] % GRANULE).any()
    assert found.describe(cluster)


@examples(10)
@given(cluster=gpu_clusters(min_servers=3), segments=st.integers(1, 4), hand_on=st.booleans())
def test_an_exchange_is_never_below_the_bound(cluster: Cluster, segments: int, hand_on: bool) -> None:
    try:
        bound = optcc.lower_bound(cluster, 10**6).seconds
        found = exchange(cluster, segments, hand_on=hand_on)
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
    found, bound = exchange(cluster, hand_on=hand_on), optcc.lower_bound(gpus(8, dead=dead), 2**36).seconds
    assert found.fluid_s(cluster, nbytes) <= bound * (1 + Fraction(1, 10**6))
    assert fluid_seconds(found.lower(cluster, nbytes), cluster) <= bound * Fraction(101, 100)


def test_in_an_exchange_a_dead_nic_leaves_by_its_neighbours() -> None:
    cluster = gpus(8, dead=1)
    schedule = exchange(cluster).lower(cluster, 2**36)
    across = schedule.src // 8 != schedule.dst // 8
    assert 0 not in schedule.src[across]
    assert 0 not in schedule.dst[across]
    for moved in port_bytes(schedule, nvlink=False):
        assert moved[:7] == pytest.approx(moved[:7].mean(), rel=0.02)
    healthy, hurt = (port_bytes(exchange(c).lower(c, 2**36), nvlink=True)[0] for c in (gpus(8), cluster))
    assert hurt.max() <= healthy.max() * 1.001


def test_results_by_the_next_gpu_wait_for_one_transfer() -> None:
    """Without it every result of a hub waits for all that the hub gathers."""
    cluster = gpus(8, 4)
    waits = []
    for hand_on in (False, True):
        schedule = replace(exchange(cluster, 1, hand_on=hand_on), chunks=1).lower(cluster, 2**20)
        optcc.verify(schedule)
        assert optcc.simulate(schedule).time_s > 0
        results = ~schedule.reduce & (schedule.src // 4 != schedule.dst // 4)
        waits.append(np.diff(schedule.dep_ptr)[results].max())
    assert waits == [7 + 3, 1]


def test_a_nic_starts_before_all_for_its_first_hub_is_summed() -> None:
    """The first run is half as long as the others, here half of a hub's part, and the transfer to the hub is cut."""
    cluster, nbytes = gpus(8, 4), 2**30
    schedule = exchange(cluster, 1).lower(cluster, nbytes)
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
    schedule = exchange(cluster, 1, ways).lower(cluster, 2**28)
    optcc.verify(schedule)
    bound = float(optcc.lower_bound(cluster, 2**28).seconds)
    assert (optcc.simulate(schedule).time_s < 1.15 * bound) == (ways > 1)


@pytest.mark.parametrize("hand_on", [False, True])
def test_without_one_dependency_an_exchange_is_no_allreduce(hand_on: bool) -> None:
    """Each is needed, except what another one on the same way implies."""
    cluster = gpus(3, 2, dead=1)
    schedule = exchange(cluster, 1, hand_on=hand_on).lower(cluster, 3000)
    for edge in range(len(schedule.dep_idx)):
        row = int(np.searchsorted(schedule.dep_ptr, edge, "right")) - 1
        with pytest.raises(VerifyError):
            optcc.verify(hasty(schedule, row, edge - schedule.dep_ptr[row]))


def test_a_changed_order_is_caught() -> None:
    cluster = gpus(3, 2, dead=1)
    schedule = exchange(cluster).lower(cluster, 2**16)
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
    assert Plan.from_bytes(made.to_bytes()) == made


def test_only_where_gpus_of_all_servers_meet() -> None:
    bound = optcc.lower_bound(gpus(4, 2, rails=True), 4096)
    assert len([*candidate_families(gpus(4, 2, rails=True), bound, alpha=ALPHA)]) == 2
    assert len([*candidate_families(gpus(2, 2), bound, alpha=ALPHA)]) == 2
    assert len([*candidate_families(gpus(4, 2), bound, alpha=ALPHA)]) == 3
    assert len([*candidate_families(gpus(65, 1), bound, alpha=ALPHA)]) == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    was, cluster = gc.isenabled(), gpus(4, 2, dead=1)
    try:
        (gc.enable if enabled else gc.disable)()
        exchange(cluster).lower(cluster, 2**20)
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
            replace(exchange(cluster), chunks=n).lower(cluster, nbytes), alpha=ALPHA, per_chunk=per_chunk
        ).time_s
        for n in (chunks // 4, chunks, 4 * chunks)
    )
    assert few > best < many
    assert best_chunks(cluster, optcc.lower_bound(cluster, nbytes), Costs()) is None


# Inside servers: never below the bound, and as fast as the theory says.


@examples(40)
@given(cluster=st.one_of(gpu_clusters(), gpu_clusters(min_servers=2, rails=True)), segments=st.integers(1, 6))
def test_never_below_the_bound(cluster: Cluster, segments: int) -> None:
    try:
        bound = optcc.lower_bound(cluster, 10**6).seconds
        found = recipe(cluster, segments)
        schedule = found.lower(cluster, 10**6)  # on rails GPUs may have none in common
    except InfeasibleError:
        assume(False)
    assert optcc.simulate(schedule).time_s >= float(bound) * (1 - 1e-6)
    assert found.fluid_s(cluster, 10**6) >= bound * (1 - Fraction(1, 10**6))


@pytest.mark.parametrize("servers", [2, 4, 8])
@pytest.mark.parametrize("dead", range(5))
def test_near_the_optimum_on_h100_servers(servers: int, dead: int) -> None:
    """The exact program over all schedules of tree pairs is at most 1.2 % faster, and from 8 servers on no faster."""
    cluster = gpus(servers, dead=dead)
    found = inside_split(cluster)
    most = Fraction(1012, 1000) if servers == 2 else Fraction(1004, 1000) if servers == 4 else 1 + Fraction(1, 10**6)
    assert found.seconds_per_byte * GB <= optcc.lower_bound(cluster, GB).seconds * most


def test_one_server_and_slow_nvlink_reach_the_optimum() -> None:
    for cluster in (gpus(1), gpus(1, dead=8), gpus(4, nvlink=64), gpus(2, nvlink=100)):
        bound = optcc.lower_bound(cluster, GB).seconds
        assert inside_split(cluster).seconds_per_byte * GB == pytest.approx(float(bound), rel=1e-6)
    assert {part.teams for part in inside_split(gpus(4, nvlink=64)).parts} == {1, 8}


@pytest.mark.parametrize("dead", [1, 2])
def test_a_dead_nic_on_rails_that_do_not_meet(dead: int) -> None:
    """Its server is a guest on its rail: as good as the optimum, where leaving the rail out costs a NIC's worth."""
    cluster = gpus(8, 4, rails=True, dead=dead)
    bound = optcc.lower_bound(cluster, GB).seconds
    found = inside_split(cluster)
    assert found.seconds_per_byte * GB <= bound * Fraction(1005, 1000)
    assert any(part.guests == (0,) for part in found.parts)
    live_rails = [BufferPart(WHOLE, 1, {8: WHOLE}, tuple(range(dead, 4)))]
    assert inside_servers(cluster, live_rails, 1).fluid_s(cluster, GB) > bound * Fraction(11, 10)


@examples(60)
@given(cluster=gpu_clusters(min_servers=2), segments=st.integers(1, 3))
def test_fluid_time_in_closed_form_is_that_of_the_bytes(cluster: Cluster, segments: int) -> None:
    own = gpu_groups(cluster)
    try:
        carry = shares_by_rate(own)
    except InfeasibleError:
        assume(False)
    rates = [rank.out_rate for rank in view(cluster, own, carry).ranks]
    parts = [BufferPart(WHOLE, 1, optcc.theory.nested_shares(rates))]
    found = inside_servers(cluster, parts, segments, chunks=64)
    counted = fluid_seconds(found.lower(cluster, 2**44), cluster)
    closed = found.fluid_s(cluster, 2**44)
    # Where GPUs share a channel they have a little more or less of some sections than of others.
    assert closed * (1 - Fraction(1, 10**6)) <= counted <= closed * Fraction(103, 100)


@examples(60)
@given(count=st.integers(2, 5), servers=st.integers(1, 3), data=st.data())
def test_nvlink_load_does_not_depend_on_who_carries(count: int, servers: int, data: st.DataObject) -> None:
    """Proof id inside-servers: out and in, a port has 1 + (G-2) of the share that its GPU gathers."""
    cluster = gpus(servers, count)
    own = gpu_groups(cluster)
    draw = data.draw
    gather = tuple(some_shares(draw, [True] * count) for _ in own)
    carry = tuple(some_shares(draw, [True] * count) for _ in own)
    inner = nested_rings(view(cluster, own, carry), {servers: WHOLE} if servers > 1 else {}, 2)
    found = InsideServers((Bundle(WHOLE, 1, gather, carry, inner),), 3)
    nbytes = 2**40
    out, into = port_bytes(found.lower(cluster, nbytes), nvlink=True)
    expected = [nbytes * (1 + (count - 2) * float(share)) for row in gather for share in row]
    assert out == pytest.approx(expected, rel=1e-6)
    assert into == pytest.approx(expected, rel=1e-6)
    assert max(out) == pytest.approx(nbytes * float(max(nvlink_load(row) for row in gather)), rel=1e-6)


@given(
    costs=st.integers(1, 5).flatmap(
        lambda width: st.lists(st.tuples(*[st.fractions(0, 3, max_denominator=20)] * width), min_size=1, max_size=6)
    )
)
def test_mix_is_certified(costs: list[tuple[Fraction, ...]]) -> None:
    """No mix of the columns beats the bound of the prices, and ours reaches it."""
    columns = list(zip(*costs, strict=True))
    assume(all(any(column) for column in columns))
    shares, seconds, gap = mix(columns)
    assert sum(shares) == 1
    assert min(shares) >= 0
    assert seconds == max(sum(c * x for c, x in zip(row, shares, strict=True)) for row in costs)
    assert 0 <= gap < Fraction(1, 10**6)
    for i in range(len(columns)):
        assert max(columns[i]) >= seconds / (1 + gap)
        for j in range(i):
            even = [(a + b) / 2 for a, b in zip(columns[i], columns[j], strict=True)]
            assert max(even) >= seconds / (1 + gap)


def test_mix_of_two() -> None:
    """Two kinds that load two ports 1:3 and 3:1 are best half and half."""
    shares, seconds, _ = mix([(Fraction(1), Fraction(3)), (Fraction(3), Fraction(1))])
    assert shares == pytest.approx((0.5, 0.5), abs=1e-8)
    assert seconds == pytest.approx(2, abs=1e-8)


def test_the_gap_of_a_mix_shows_poor_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares and prices rounded to thirds: worse than 2, which the bound must not exceed all the same."""
    from optcc.theory import inside_split as inside

    monkeypatch.setattr(inside, "_DENOMINATOR", 3)
    _, seconds, gap = mix([(Fraction(1), Fraction(3)), (Fraction(3), Fraction(1))])
    assert seconds == Fraction(7, 3)
    assert gap > Fraction(1, 6)
    assert seconds / (1 + gap) <= 2


@examples(20)
@given(servers=st.integers(2, 4), dead=st.integers(0, 2), spare=st.integers(0, 3))
def test_closed_form_is_what_the_program_finds(servers: int, dead: int, spare: int) -> None:
    """Where NICs are the limit no mix of teams and rings beats nested rings between whole servers."""
    from optcc.theory import inside_split as inside

    cluster = gpus(servers, 4, nvlink=2000 + 500 * spare, dead=dead)
    closed = inside_split(cluster)
    assert len(closed.parts) == 1
    assert closed.gap == 0
    _, seconds, _ = mix([column for _, column in inside._kinds(cluster)])
    assert seconds == pytest.approx(float(closed.seconds_per_byte), rel=1e-5)


def test_costs_count_the_bytes() -> None:
    cluster = gpus(2, 2, rails=True, spine=Fraction(2), dead=1)
    found = inside_split(cluster)
    schedule = inside_servers(cluster, found.parts, 2, chunks=32).lower(cluster, 2**40)
    assert max(costs(cluster, schedule)) * 2**40 == pytest.approx(float(fluid_seconds(schedule, cluster)), rel=1e-9)


def test_the_shares_of_the_program_are_what_the_schedule_takes() -> None:
    for cluster in (gpus(2), gpus(4, 4, nvlink=60, dead=1), gpus(4, 4, rails=True, dead=1)):
        found = inside_split(cluster)
        assert isinstance(found, InsideSplit)
        assert sum(part.share for part in found.parts) == 1
        made = inside_servers(cluster, found.parts, 2, chunks=64)
        assert made.fluid_s(cluster, 2**40) == pytest.approx(float(found.seconds_per_byte * 2**40), rel=0.01)
