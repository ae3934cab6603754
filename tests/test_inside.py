"""Inside servers: correct for random groups, tasks and rails, and for any schedule between servers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError, VerifyError
from optcc.schedule import Port, Schedule
from optcc.schedule.assemble import TemplateRow, assemble
from optcc.schedule.columns import Stage
from optcc.schedule.inside import Bundle, InsideServers
from optcc.schedule.inside_groups import even_shares, gpu_groups, shares_by_rate, usable, view
from optcc.schedule.inside_parts import BufferPart, inside_servers
from optcc.schedule.nested_order import nested_rings
from optcc.schedule.recipe import Recipe
from optcc.schedule.routes import Routes
from optcc.theory.inside_split import inside_split
from optcc.values.cluster import Cluster
from tests.broken_schedules import with_rows
from tests.effort import examples
from tests.inside_cases import SIZES, WHOLE, gpu_clusters, gpus, port_bytes, recipe, some_shares


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
    assert InsideServers.read(json.loads(json.dumps(found.content()))) == found
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
