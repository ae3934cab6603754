"""Direct exchange in two levels: right, near the bound with pods and many servers, and in no more than its steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.planner.search import candidate_families
from optcc.schedule import grouped
from optcc.schedule.columns import Schedule
from optcc.schedule.grouped import GroupedExchange, group_moves, links_of, nics_of
from optcc.schedule.recipe import CandidateFamily, Costs
from optcc.schedule.routes import fluid_seconds
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster, Fabric
from tests.effort import examples
from tests.fabrics import pods_of
from tests.test_families import in_pods

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
COSTS = {"alpha": ALPHA, "per_chunk": PER_CHUNK}
RATE = 50 * 10**9


def uniform(servers: int, nics: int = 8) -> Cluster:
    return Cluster.uniform(servers=servers, nics=nics, rate=RATE)


def lacking(cluster: Cluster, dead: int) -> Cluster:
    """Without so many NICs of server1."""
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return cluster


def of(cluster: Cluster) -> list[CandidateFamily]:
    return GroupedExchange.candidates(cluster, optcc.lower_bound(uniform(3), 2**24), Costs(ALPHA, PER_CHUNK))


def offered(cluster: Cluster, segments: int = 8) -> GroupedExchange:
    recipe = of(cluster)[-1].make(segments)
    assert isinstance(recipe, GroupedExchange)
    return recipe


def recipes(cluster: Cluster, segments: int) -> list[GroupedExchange]:
    """With all in groups, and beside a rank apart, whether or not it starves."""
    if not of(cluster):
        return []
    recipe = replace(offered(cluster, segments), apart=None)
    last = len(recipe.groups) - 1
    alone = recipe.groups.count(recipe.groups[last]) == 1
    return [recipe] if alone else [recipe, replace(recipe, apart=last)]


@examples(60)
@given(in_pods(), st.integers(1, 2**20), st.integers(1, 40))
def test_the_sum_is_everywhere(cluster: Cluster, nbytes: int, segments: int) -> None:
    for recipe in recipes(cluster, segments):
        recipe.check(cluster)
        schedule = recipe.lower(cluster, nbytes)
        optcc.verify(schedule)
        assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes  # the fewest there can be


@pytest.mark.parametrize("gone", ["sums", "results"])
def test_whoever_does_not_wait_is_caught(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is to be added up, or for the result that it passes on."""
    cluster, whole = pods_of(uniform(6, 2), 3), grouped.dependencies
    recipe = offered(cluster)
    optcc.verify(recipe.lower(cluster, 2**16))

    def some(moves, parents):  # type: ignore[no-untyped-def]
        waits, on = whole(moves, parents)
        kept = (moves.down[on] > 0) != (gone == "results")
        return waits[kept], on[kept]

    monkeypatch.setattr(grouped, "dependencies", some)
    with pytest.raises(optcc.VerifyError):
        optcc.verify(recipe.lower(cluster, 2**16))


def crossed(schedule: Schedule) -> Counter[str]:
    """Bytes over each link."""
    found: Counter[str] = Counter()
    for route, length in zip(schedule.route.tolist(), schedule.length.tolist(), strict=True):
        for lane in schedule.routes[route].lanes:
            for link in lane.links:
                found[schedule.links[link].name] += length
    return found


@pytest.mark.parametrize(("servers", "size"), [(8, 4), (12, 4), (12, 3)])
def test_uplinks_carry_the_data_once_and_totals(servers: int, size: int) -> None:
    """Each of G pods sends its sums, and totals of 1/G to G-1 others."""
    cluster, nbytes, pods = pods_of(uniform(servers), size), 2**24, servers // size
    found = crossed(offered(cluster, 48).lower(cluster, nbytes))
    assert len(found) == 2 * pods
    for carried in found.values():
        assert carried / nbytes == pytest.approx(1 + (pods - 2) / pods, rel=0.03)


def in_each_step(cluster: Cluster, recipe: GroupedExchange) -> tuple[Counter[tuple[object, ...]], int]:
    """How often each NIC, and each uplink, is used in a step, each way; steps."""
    links = links_of(cluster, recipe.groups)
    parents = [tree.parents for tree in recipe.trees(cluster)]
    moves = group_moves(parents, recipe.groups, nics_of(cluster), links, recipe.apart)
    found: Counter[tuple[object, ...]] = Counter()
    for step, src, dst, rail in np.column_stack(moves[:4]).tolist():
        found.update([("nic", step, src, rail, "out"), ("nic", step, dst, rail, "in")])
        one, other = recipe.groups[src], recipe.groups[dst]
        if one != other:
            found.update([("link", step, one, "out"), ("link", step, other, "in")])
    return found, int(moves.step[-1]) + 1


@pytest.mark.parametrize("rails", [False, True])
def test_in_a_step_each_nic_has_one_chunk_and_uplinks_have_room(rails: bool) -> None:
    cluster = pods_of(uniform(16), 4, factor=4)
    cluster = lacking(replace(cluster, fabric=replace(cluster.fabric, rails=rails)), 3)
    recipe = offered(cluster, 40)
    found, _ = in_each_step(cluster, recipe)
    room = links_of(cluster, recipe.groups)[0]
    assert room == 8
    assert {count for what, count in found.items() if what[0] == "nic"} == {1}
    assert max(count for what, count in found.items() if what[0] == "link") == room


@pytest.mark.parametrize(("servers", "size", "chunks"), [(8, 4, 107), (16, 8, 110), (32, 8, 142)])
def test_it_takes_the_steps_of_the_busiest_server(servers: int, size: int, chunks: int) -> None:
    """Not one is lost to waiting, and hardly any to chunks that are whole."""
    cluster = lacking(pods_of(uniform(servers), size, factor=size // 2), 1)
    recipe = offered(cluster, chunks)
    busiest = recipe.trees(cluster)[-1].steps
    _, steps = in_each_step(cluster, recipe)
    assert steps <= -(-busiest // 1) + 1
    nics = 8 * servers - 1
    assert busiest <= Fraction(2 * (servers - 1) * chunks, nics) + 1


def test_unequal_pods_have_one_chunk_in_a_hundred_in_one_level() -> None:
    """By two levels alone a pod of 4 with a dead NIC would need 15/31 of a chunk's time where the bound is 14/63."""
    cluster = lacking(pods_of(uniform(8), 4), 1)
    recipe = offered(cluster, 256)
    assert recipe.fluid_s(cluster, 2**28) < Fraction(101, 100) * optcc.lower_bound(cluster, 2**28).seconds
    told = dict(recipe.describe(cluster))
    assert "exchanged directly with all" in told["chunks"]


@pytest.mark.parametrize("sizes", [[7, 8], [7, 8, 8, 8], [6, 8, 8]])
def test_groups_may_be_unequal(sizes: list[int]) -> None:
    made = uniform(sum(sizes))
    pods = [str(pod) for pod, size in enumerate(sizes) for _ in range(size)]
    servers = tuple(replace(server, pod=pod) for server, pod in zip(made.servers, pods, strict=True))
    cluster, nbytes = replace(made, servers=servers, fabric=Fabric(pod_oversubscription=Fraction(4))), 2**30
    recipe = offered(cluster, 160)
    time_s = simulate(recipe.lower(cluster, nbytes), receivers="packets", **COSTS).time_s
    assert time_s < 1.06 * float(recipe.fluid_s(cluster, nbytes))


@pytest.mark.long
@pytest.mark.parametrize(("nbytes", "chunks", "most"), [(2**28, 327, 1.17), (2**30, 576, 1.09)])
def test_a_starving_server_in_pods_is_apart(nbytes: int, chunks: int, most: float) -> None:
    """1.25 and 1.13 times the bound where it is in its group. It is busy for all but the first and last few steps."""
    cluster = lacking(pods_of(uniform(64), 8, factor=4), 4)
    bound = optcc.lower_bound(cluster, nbytes)
    recipe = GroupedExchange.candidates(cluster, bound, Costs(ALPHA, PER_CHUNK))[0].make(chunks)
    assert isinstance(recipe, GroupedExchange)
    assert recipe.apart == 1
    schedule = recipe.lower(cluster, nbytes)
    assert simulate(schedule, receivers="packets", **COSTS).time_s < most * bound.seconds


def test_a_server_is_apart_where_it_alone_starves() -> None:
    def apart(cluster: Cluster) -> set[int | None]:
        bound = optcc.lower_bound(cluster, 2**24)
        return {
            offer.make(8).content()["apart"]
            for offer in GroupedExchange.candidates(cluster, bound, Costs(ALPHA, PER_CHUNK))
        }

    pods = pods_of(uniform(16, 4), 8)
    assert apart(lacking(pods, 2)) == {1}
    assert apart(lacking(pods, 1)) == {None}  # a hub
    assert apart(lacking(pods_of(uniform(64), 8, factor=4), 4)) == {1}  # though 64 chunks do not level the others
    assert apart(lacking(pods, 2).degrade("server2/nic0").degrade("server2/nic1")) == {None}  # two
    assert apart(lacking(pods_of(uniform(3, 4), 1), 2)) == {None}  # alone in its pod
    assert apart(lacking(pods_of(uniform(16, 4), 4, factor=4), 2)) == {None}  # uplinks have no room for it


def test_few_bytes_beside_a_server_apart_are_one_chunk() -> None:
    cluster = lacking(pods_of(uniform(16, 4), 8), 2)
    (offer,) = GroupedExchange.candidates(cluster, optcc.lower_bound(cluster, 64), Costs(ALPHA, PER_CHUNK))
    assert offer.shortlist is not None
    assert {recipe.segments for recipe in offer.shortlist()} == {1}


@pytest.mark.parametrize("rails", [False, True])
def test_a_nic_that_no_other_server_reaches_counts_for_nothing(rails: bool) -> None:
    """Of servers with 2, 1 and 1 NICs one NIC is alone on its rail; of 2, 2 and 1 none is."""
    two = Cluster.uniform(servers=3, nics=2, rate=1000).degrade("server1/nic1")
    for cluster, offered in ((two.degrade("server2/nic1"), 0), (two, 1)):
        pods = pods_of(replace(cluster, fabric=Fabric(rails=rails)), 2)
        bound = optcc.lower_bound(pods, 2**20)
        assert len(list(GroupedExchange.candidates(pods, bound, Costs()))) == offered
        if not offered:
            with pytest.raises(InputError, match="none alone on a rail"):
                GroupedExchange(8, (0, 0, 1)).check(pods)


@pytest.mark.parametrize("rails", [False, True])
@pytest.mark.parametrize(("servers", "size", "nics", "dead"), [
    (3, 1, 3, ("server0/nic0",)),
    (6, 3, 2, ("server0/nic0", "server1/nic1")),
    (8, 4, 4, ("server0/nic0", "server5/nic1")),
    (12, 4, 2, ("server4/nic0", "server8/nic0")),
    (12, 4, 2, ()),
    (12, 6, 8, ()),
])  # fmt: skip
def test_its_fluid_time_is_below_that_of_its_schedule(
    servers: int, size: int, nics: int, dead: tuple[str, ...], rails: bool
) -> None:
    """By whole chunks of single NICs."""
    cluster, nbytes = pods_of(Cluster.uniform(servers=servers, nics=nics, rate=1000), size, 1), 2**26
    cluster = replace(cluster, fabric=replace(cluster.fabric, rails=rails))
    for nic in dead:
        cluster = cluster.degrade(nic)
    bound = optcc.lower_bound(cluster, nbytes)
    recipes = [offer.make(96) for offer in GroupedExchange.candidates(cluster, bound, Costs(ALPHA, PER_CHUNK))]
    assert recipes or rails
    for recipe in recipes:
        told = recipe.fluid_s(cluster, nbytes)
        assert bound.seconds * Fraction(999, 1000) <= told <= fluid_seconds(recipe.lower(cluster, nbytes), cluster)


@pytest.mark.long
@pytest.mark.parametrize(("servers", "size", "factor", "dead", "most"), [
    (8, 4, 2, 1, 1.03), (16, 8, 2, 0, 1.04), (16, 8, 2, 1, 1.03), (32, 8, 4, 1, 1.05), (12, 6, 2, 1, 1.05),
])  # fmt: skip
def test_pods_are_near_the_bound(servers: int, size: int, factor: int, dead: int, most: float) -> None:
    cluster = lacking(pods_of(uniform(servers), size, factor=factor), dead)
    plan = optcc.plan(cluster, 2**28, family=GroupedExchange.family, **COSTS)
    time_s = simulate(plan.schedule(), receivers="packets", **COSTS).time_s
    assert time_s < most * plan.bound.seconds


@pytest.mark.long
@pytest.mark.parametrize(("servers", "nbytes", "dead", "most"), [
    (128, 2**26, 0, 1.2), (127, 2**28, 1, 1.08),
])  # fmt: skip
def test_many_servers_of_one_fabric_are_divided_too(servers: int, nbytes: int, dead: int, most: float) -> None:
    cluster = lacking(uniform(servers), dead)
    plan = optcc.plan(cluster, nbytes, **COSTS)
    assert plan.family == GroupedExchange.family
    time_s = simulate(plan.schedule(), receivers="packets", **COSTS).time_s
    assert time_s < most * plan.bound.seconds


def test_groups_of_one_fabric_are_equally_strong() -> None:
    cluster = uniform(32)
    for server in range(4):
        cluster = cluster.degrade(f"server{server}/nic0")
    groups = offered(cluster).groups
    assert sorted(Counter(groups).values()) == [8] * 4
    assert len({groups[server] for server in range(4)}) == 4


def test_slow_nics_are_left_alone_there_too() -> None:
    cluster = pods_of(uniform(8), 4).degrade("server1/nic0", Fraction(1, 2)).degrade("server1/nic1", Fraction(1, 2))
    recipe = offered(cluster)
    optcc.verify(recipe.lower(cluster, 2**20))
    assert ("slower NICs, not used", "server1/nic0, server1/nic1") in recipe.describe(cluster)


@pytest.mark.parametrize(("bent", "where"), [
    ({"groups": (0, 0, 0, 2, 2, 2)}, "groups"),
    ({"groups": (0,) * 6}, "groups"),
    ({"groups": (0, 0, 0, 1, 1)}, "groups"),
    ({"apart": 6}, "apart"),
    ({"apart": True}, "apart"),
    ({"apart": 0, "groups": (0, 1, 1, 1, 1, 1)}, "apart"),
    ({"segments": 0}, "segments"),
    ({"segments": 2**17}, "segments"),
])  # fmt: skip
def test_parameters_that_do_not_fit_are_named(bent: dict[str, object], where: str) -> None:
    cluster = pods_of(uniform(6, 2), 3)
    with pytest.raises(InputError) as said:
        replace(offered(cluster), **bent).check(cluster)  # type: ignore[arg-type]
    assert said.value.where == where


def test_where_it_applies() -> None:
    """Not where GPUs are ranks, not without a NIC in common, not with one pod; on one fabric with many servers only."""
    pods = pods_of(uniform(6, 2), 3)
    assert of(pods)
    assert not of(pods_of(uniform(6, 2), 6))
    assert not of(uniform(16, 2))
    assert of(uniform(17, 1))
    assert not of(replace(pods, gpu_ranks=True))
    railed = replace(pods, fabric=replace(pods.fabric, rails=True))
    assert of(railed)
    apart = railed.degrade("server0/nic0").degrade("server1/nic1")
    assert not of(apart)
    assert GroupedExchange.family not in {offer.name for offer in candidate_families(apart, optcc.lower_bound(pods, 1))}
    recipe = offered(pods)
    with pytest.raises(InputError, match="rail in common"):
        recipe.check(replace(apart, fabric=Fabric(rails=True)))


def test_it_says_what_it_does() -> None:
    cluster = lacking(pods_of(uniform(16), 8), 4)
    told = dict(replace(offered(cluster, 16), apart=1).describe(cluster))
    assert told["groups"] == "2 of 8 servers, the pods"
    assert told["apart"].startswith("server1,")
    assert told["chunks"] == "16"
