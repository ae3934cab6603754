"""Inside servers: never below the bound, and as fast as the theory says."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError
from optcc.schedule.inside import Bundle, InsideServers, nvlink_load
from optcc.schedule.inside_groups import gpu_groups, shares_by_rate, view
from optcc.schedule.inside_parts import BufferPart, inside_servers
from optcc.schedule.nested_order import nested_rings
from optcc.schedule.routes import fluid_seconds
from optcc.theory.inside_split import InsideSplit, costs, inside_split, mix
from optcc.values.cluster import Cluster
from tests.effort import examples
from tests.inside_cases import GB, WHOLE, gpu_clusters, gpus, port_bytes, recipe, some_shares


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
