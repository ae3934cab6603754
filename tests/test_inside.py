"""Inside servers: correct for random crews, duties and rails, never below the bound, and as fast as the theory says."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, log
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster, Fabric, Nic, Server
from optcc.errors import InfeasibleError, InputError, VerifyError
from optcc.plans import nested_rings
from optcc.schedule import Port, Schedule
from optcc.schedule.assemble import Row, assemble
from optcc.schedule.columns import Stage
from optcc.schedule.inside import Bundle, InsideServers, nvlink_load
from optcc.schedule.inside_channels import channels
from optcc.schedule.inside_crews import crews, even_shares, shares_by_rate, shares_of_slot, usable, view
from optcc.schedule.inside_parts import Part, deepest, inside_servers
from optcc.schedule.inside_spans import GROWTH, growth_steps
from optcc.schedule.recipe import Recipe
from optcc.schedule.routes import Routes, fluid_seconds
from optcc.theory.inside import InsideSplit, costs, inside_split, mix
from tests.broken_schedules import with_rows

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


@st.composite
def some_recipe(draw: st.DrawFn) -> tuple[Cluster, InsideServers]:
    """Any shares of gathering and carrying, teams and rings."""
    cluster = draw(gpu_clusters())
    bundles = []
    parts = draw(st.integers(1, 2))
    for part in range(parts):
        divisors = [t for t in range(1, 5) if all(s.gpus % t == 0 for s in cluster.servers)]
        teams = draw(st.sampled_from(divisors)) if len(cluster.servers) > 1 else 1
        own = crews(cluster, teams)
        live = [[usable(gpu) > 0 or len(own) == 1 for gpu in crew.gpus] for crew in own]
        assume(all(any(row) for row in live))
        carry = tuple(some_shares(draw, row) for row in live)
        gather = tuple(some_shares(draw, [True] * len(row)) for row in live)
        sizes = draw(st.sets(st.integers(1, len(own)), min_size=1, max_size=2))
        rings = {size: Fraction(1, len(sizes)) for size in sizes} if len(own) > 1 else {}
        inner = nested_rings(view(cluster, own, carry), rings, draw(st.integers(1, 4)))
        share = Fraction(1, 3) if part == 0 and parts == 2 else Fraction(2, 3) if parts == 2 else WHOLE
        bundles.append(Bundle(share, teams, gather, carry, inner, draw(st.booleans())))
    return cluster, InsideServers(tuple(bundles), draw(st.integers(1, 6)))


SIZES = st.one_of(st.integers(0, 300), st.integers(1, 2**22), st.just(2**40 + 12345))


@settings(max_examples=300)
@given(made=some_recipe(), nbytes=SIZES)
def test_every_recipe_is_an_allreduce(made: tuple[Cluster, InsideServers], nbytes: int) -> None:
    cluster, found = made
    found.check(cluster)
    schedule = found.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes, "no byte moves twice"
    assert InsideServers.read(json.loads(json.dumps(found.content()))) == found
    assert found.describe(cluster)


@settings(max_examples=100)
@given(cluster=gpu_clusters(min_servers=2, rails=True), nbytes=SIZES, data=st.data())
def test_guests_on_rails(cluster: Cluster, nbytes: int, data: st.DataObject) -> None:
    """On one rail some crews, with a NIC on it or without, are guests of the others by all their NICs."""
    own = crews(cluster)
    slot = data.draw(st.integers(0, len(own[0].gpus) - 1), label="slot")
    silent = {i for i, crew in enumerate(own) if not usable(crew.gpus[slot])}
    more = data.draw(st.sets(st.integers(0, len(own) - 1)), label="guests")
    guests = tuple(sorted(silent | more))
    assume(len(guests) < len(own))
    ring = data.draw(st.integers(1, len(own) - len(guests)), label="ring")
    part = Part(WHOLE, 1, {ring: WHOLE}, (slot,), guests)
    hand_on, chunks = data.draw(st.booleans(), label="hand on"), data.draw(st.integers(1, 5), label="chunks")
    try:
        found = inside_servers(cluster, [part], data.draw(st.integers(1, 4)), chunks=chunks, hand_on=hand_on)
    except InfeasibleError:
        assume(False)
    found.check(cluster)
    schedule = found.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes, "guests cost no transfer more"
    rails = [port.rail for port in schedule.ports]
    assert all(rails[lane.out] == rails[lane.into] for route in schedule.routes for lane in route.lanes)


@pytest.mark.parametrize("segments", [1, 2, 5])
@pytest.mark.parametrize("hand_on", [False, True])
def test_most_servers_may_be_guests(segments: int, hand_on: bool) -> None:
    """Two of three have lost their NIC on the same rail: the third is who they are guests of."""
    cluster = gpus(3, 4, nvlink=64, rails=True).degrade("server0/nic0").degrade("server1/nic0")
    found = inside_servers(cluster, inside_split(cluster).parts, segments, hand_on=hand_on)
    assert found.bundles[0].guests == (0, 1)
    optcc.verify(found.lower(cluster, 2**20))


@settings(max_examples=40)
@given(cluster=st.one_of(gpu_clusters(), gpu_clusters(min_servers=2, rails=True)), segments=st.integers(1, 6))
def test_never_below_the_bound(cluster: Cluster, segments: int) -> None:
    try:
        bound = optcc.lower_bound(cluster, 10**6).seconds
        found = recipe(cluster, segments)
    except InfeasibleError:
        assume(False)
    schedule = found.lower(cluster, 10**6)
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
    live_rails = [Part(WHOLE, 1, {8: WHOLE}, tuple(range(dead, 4)))]
    assert inside_servers(cluster, live_rails, 1).fluid_s(cluster, GB) > bound * Fraction(11, 10)


def test_rails_with_a_spine_are_crossed() -> None:
    cluster = gpus(4, 4, rails=True, dead=1, spine=Fraction(1))
    schedule = recipe(cluster).lower(cluster, 2**20)
    optcc.verify(schedule)
    assert schedule.links
    rails = [port.rail for port in schedule.ports]
    assert any(rails[lane.out] != rails[lane.into] for route in schedule.routes for lane in route.lanes)


@settings(max_examples=60)
@given(cluster=gpu_clusters(min_servers=2), segments=st.integers(1, 3), hand_on=st.booleans())
def test_fluid_time_in_closed_form_is_that_of_the_bytes(cluster: Cluster, segments: int, hand_on: bool) -> None:
    own = crews(cluster)
    try:
        carry = shares_by_rate(own)
    except InfeasibleError:
        assume(False)
    rates = [rank.out_rate for rank in view(cluster, own, carry).ranks]
    parts = [Part(WHOLE, 1, optcc.theory.nested_shares(rates))]
    found = inside_servers(cluster, parts, segments, chunks=64, hand_on=hand_on)
    counted = fluid_seconds(found.lower(cluster, 2**44), cluster)
    closed = found.fluid_s(cluster, 2**44)
    # Where GPUs share a channel they have a little more or less of some sections than of others.
    assert closed * (1 - Fraction(1, 10**6)) <= counted <= closed * Fraction(103, 100)


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


@settings(max_examples=60)
@given(count=st.integers(2, 5), servers=st.integers(1, 3), data=st.data())
def test_nvlink_load_does_not_depend_on_who_carries(count: int, servers: int, data: st.DataObject) -> None:
    """Proof id inside-servers: out and in, a port has 1 + (G-2) of the share that its GPU gathers."""
    cluster = gpus(servers, count)
    own = crews(cluster)
    draw = data.draw
    gather = tuple(some_shares(draw, [True] * count) for _ in own)
    carry = tuple(some_shares(draw, [True] * count) for _ in own)
    inner = nested_rings(view(cluster, own, carry), {servers: WHOLE} if servers > 1 else {}, 2)
    found = InsideServers((Bundle(WHOLE, 1, gather, carry, inner, draw(st.booleans())),), 3)
    nbytes = 2**40
    out, into = port_bytes(found.lower(cluster, nbytes), nvlink=True)
    expected = [nbytes * (1 + (count - 2) * float(share)) for row in gather for share in row]
    assert out == pytest.approx(expected, rel=1e-6)
    assert into == pytest.approx(expected, rel=1e-6)
    assert max(out) == pytest.approx(nbytes * float(max(nvlink_load(row) for row in gather)), rel=1e-6)


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


@settings(max_examples=60)
@given(data=st.data(), count=st.integers(1, 5), crews=st.integers(1, 3), hand_on=st.booleans())
def test_channels_deal_out_every_share(data: st.DataObject, count: int, crews: int, hand_on: bool) -> None:
    gather, carry = (tuple(some_shares(data.draw, [True] * count) for _ in range(crews)) for _ in range(2))
    found = channels(gather, carry, hand_on=hand_on)
    assert found[0].low == 0
    assert found[-1].high == 1
    for crew in range(crews):
        for shares, which in ((gather, 0), (carry, 1)):
            dealt = [Fraction(0)] * count
            for channel in found:
                assert sum(duty.part for duty in channel.sites[crew].duties) == 1
                for duty in channel.sites[crew].duties:
                    place = (channel.places[crew] + duty[which]) % count
                    dealt[place] += duty.part * (channel.high - channel.low)
            assert tuple(dealt) == shares[crew]


def test_teams_alternate_between_servers_and_share_the_nics() -> None:
    own = crews(gpus(3, 4).degrade("server0/nic0").degrade("server0/nic2"), 2)
    assert [crew.server for crew in own] == [0, 1, 2, 0, 1, 2]
    assert {sum(usable(gpu) > 0 for gpu in crew.gpus) for crew in own if crew.server == 0} == {1}
    assert sorted(gpu.index for crew in own for gpu in crew.gpus) == list(range(12))


@dataclass(frozen=True)
class Star(Recipe):
    """Everyone sends the first server all it has, in two sections; not what nested rings look like: the second server
    sends both at once, and results of the second section wait for sums of the first.
    """

    family: ClassVar[str] = "star"
    segments: int = 1

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        routes, template = Routes(cluster), list[Row]()
        others = range(1, len(cluster.ranks))
        for section in (0, 1):
            for rank in others:
                template.append(Row(section, routes(rank, 0), rank, True, Stage.REDUCE_SCATTER, ()))
        for section in (0, 1):
            for rank in others:
                deps = tuple(range((section + 1) * len(others)))
                template.append(Row(section, routes(0, rank), 9 + rank, False, Stage.ALLGATHER, deps))
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

    def content(self) -> dict[str, Any]:
        return {}

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        return cls()

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        return []


@pytest.mark.parametrize("hand_on", [False, True])
def test_any_schedule_between_servers_will_do(hand_on: bool) -> None:
    cluster = gpus(4, 4, dead=1)
    own = crews(cluster)
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
            optcc.verify(with_rows(schedule, [r for r in range(len(schedule)) if r != row]))


@pytest.mark.parametrize("rails", [False, True])
def test_without_one_dependency_it_is_no_allreduce(rails: bool) -> None:
    """Each is needed, except what another one on the same way implies."""
    cluster = gpus(3, 3, rails=rails, dead=1)
    schedule = recipe(cluster, 1, chunks=1).lower(cluster, 9000)
    caught = 0
    for edge in range(len(schedule.dep_idx)):
        row = int(np.searchsorted(schedule.dep_ptr, edge, "right")) - 1
        ptr = schedule.dep_ptr.copy()
        ptr[row + 1 :] -= 1
        try:
            optcc.verify(schedule.replace(dep_ptr=ptr, dep_idx=np.delete(schedule.dep_idx, edge)))
        except VerifyError:
            caught += 1
    assert caught == len(schedule.dep_idx)


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
    whole = inside_servers(crossing, [Part(WHOLE, 1, {3: WHOLE})], 1)
    with pytest.raises(InfeasibleError, match="spine"):
        whole.lower(crossing, 1000)
    # A guest can be no part of a ring: nobody could pass on what comes to it.
    ring = inside_servers(crossing, [Part(WHOLE, 1, {3: WHOLE}, (0,), (0,))], 1)
    with pytest.raises(InfeasibleError):
        ring.lower(crossing, 1000)
    with pytest.raises(InfeasibleError, match="meets all others"):
        shares_of_slot(crews(crossing), 0, ())


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
    from optcc.theory import inside

    monkeypatch.setattr(inside, "_DENOMINATOR", 3)
    _, seconds, gap = mix([(Fraction(1), Fraction(3)), (Fraction(3), Fraction(1))])
    assert seconds == Fraction(7, 3)
    assert gap > Fraction(1, 6)
    assert seconds / (1 + gap) <= 2


@settings(max_examples=20)
@given(servers=st.integers(2, 4), dead=st.integers(0, 2), spare=st.integers(0, 3))
def test_closed_form_is_what_the_program_finds(servers: int, dead: int, spare: int) -> None:
    """Where NICs are the limit no mix of teams and rings beats nested rings between whole servers."""
    from optcc.theory import inside

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


def test_lowering_is_deterministic_and_channels_of_one_shape_are_alike() -> None:
    cluster = gpus(3, 4, dead=1)
    a, b = recipe(cluster).lower(cluster, 2**20), recipe(cluster).lower(cluster, 2**20)
    for name in ("route", "offset", "length", "reduce", "stage", "segment", "dep_ptr", "dep_idx"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert a.routes == b.routes
    healthy = recipe(gpus(3, 4)).lower(gpus(3, 4), 2**20)
    channel = healthy.offset // 2**18
    assert len(set(np.bincount(channel).tolist())) == 1


def test_depth_keeps_transfers_in_bounds() -> None:
    cluster = gpus(16, dead=1)
    parts = inside_split(cluster).parts
    deep = deepest(cluster, parts)
    assert deepest(gpus(128, dead=1), inside_split(gpus(128, dead=1)).parts) < deep
    assert deepest(gpus(1), inside_split(gpus(1)).parts) > deep
    small = inside_servers(cluster, parts, 2).lower(cluster, 2**30)
    across = int((small.src // 8 != small.dst // 8).sum())
    assert across == pytest.approx(2 * 4_000_000 / deep, rel=0.1)


def test_ports_are_those_of_the_cluster() -> None:
    cluster = gpus(2, 2)
    schedule = recipe(cluster, 1).lower(cluster, 4096)
    assert all(isinstance(port, Port) for port in schedule.ports)
    assert sum(port.nvlink for port in schedule.ports) == 4


@given(least=st.integers(1, 2**45), before=st.integers(0, 2**56), steps=st.integers(0, 40))
def test_steps_of_growth_are_counted_in_whole_numbers(least: int, before: int, steps: int) -> None:
    """Just at a step and right below it, where a logarithm that is off by its last bit would say something else."""
    growth = Fraction(6, 5)
    edge = ceil(least * growth**steps)
    found = growth_steps(np.array([before, edge, edge - 1]), float(least), 2.0**62)
    for at, many in zip((before, edge, edge - 1), found.tolist(), strict=True):
        assert many == 0 or least * growth ** int(many) <= at
        assert at < least * growth ** int(many + 1)


def test_from_the_bend_on_growth_is_not_rounded() -> None:
    found = growth_steps(np.array([99, 100, 500, 10**9]), 10.0, 100.0)
    assert found[0] == 12
    assert found[1:] == pytest.approx([log(10) / log(GROWTH)] * 3, rel=1e-14)
    assert growth_steps(np.array([0, 5, 50]), 10.0, 5.0).tolist() == [0, 0, 0], "a bend below the least"
