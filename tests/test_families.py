"""Every family computes AllReduce on random clusters that it takes, never below the bound, and travels as a file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError, InputError
from optcc.planner.search import candidate_families
from optcc.plans.plan import BASELINES, Plan
from optcc.schedule import Schedule
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import CandidateFamily, Recipe
from optcc.values.cluster import Cluster, Fabric
from tests.broken_schedules import without
from tests.conftest import clusters, degraded
from tests.effort import cases
from tests.fabrics import fabrics, pods_of

CLUSTERS = cases(300)
"""On so many clusters every family is tried."""
EXAMPLES = 3 * CLUSTERS + 200
"""At most so many are drawn for that: some clusters have no schedule at all, many come twice; of few clusters by chance
most. Once a family has its clusters drawing more costs nothing."""
FLAT = st.one_of(degraded(max_ranks=8), clusters(max_ranks=6, symmetric=False))
ANY = st.one_of(FLAT, fabrics())
Made = tuple[Plan, Schedule]


@st.composite
def with_dead_nics(draw: st.DrawFn) -> Cluster:
    """3 to 5 servers of 2 to 8 equal NICs, of which some servers, but not two of them, have lost a few."""
    servers, nics = draw(st.integers(3, 5)), draw(st.sampled_from([2, 3, 4, 4, 8]))
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=draw(st.integers(1, 40)) * 1000)
    for server in range(draw(st.integers(1, servers - 2))):
        for nic in draw(st.sets(st.integers(0, nics - 1), min_size=1, max_size=nics - 1)):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


@st.composite
def two_starving(draw: st.DrawFn) -> Cluster:
    """4 to 7 servers of 2 to 8 equal NICs, of which two have kept equally many, half or fewer; on rails or not."""
    servers, nics = draw(st.integers(4, 7)), draw(st.integers(2, 8))
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=draw(st.integers(1, 40)) * 1000)
    cluster = replace(cluster, fabric=Fabric(rails=draw(st.booleans())))
    order, left = draw(st.permutations(range(nics))), draw(st.integers(1, nics // 2))
    first, second = draw(st.permutations(range(servers)))[:2]
    kept = {first: order[:left], second: order[:left] if servers % 2 == 0 else order[left : 2 * left]}
    for server, mine in kept.items():
        for nic in set(range(nics)) - set(mine):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


@st.composite
def several_starving(draw: st.DrawFn) -> Cluster:
    """8 or 9 servers of 4 equal NICs, of which two or three have kept about half, and up to two lost one;
    on rails or not."""
    servers, nics = draw(st.integers(8, 9)), 4
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=draw(st.integers(1, 40)) * 1000)
    cluster = replace(cluster, fabric=Fabric(rails=draw(st.booleans())))
    lost = [nics // 2, *draw(st.lists(st.integers(nics // 4 + 1, nics // 2), min_size=1, max_size=2))]
    lost += [1] * draw(st.integers(0, 2))
    for server, count in zip(draw(st.permutations(range(servers))), lost, strict=False):
        for nic in draw(st.permutations(range(nics)))[:count]:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


@st.composite
def one_degraded(draw: st.DrawFn) -> Cluster:
    """3 to 8 servers of 1 to 3 equal NICs, one NIC slow."""
    servers, nics = draw(st.integers(3, 8)), draw(st.integers(1, 3))
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=draw(st.integers(1, 40)) * 1000)
    slow = f"server{draw(st.integers(0, servers - 1))}/nic{draw(st.integers(0, nics - 1))}"
    return cluster.degrade(slow, Fraction(draw(st.integers(0 if nics > 1 else 1, 15)), 16))


@st.composite
def gpus_as_ranks(draw: st.DrawFn) -> Cluster:
    """2 to 4 servers of 1 or 2 GPUs, each beside a NIC, on rails or not; up to three NICs slow or dead."""
    servers, gpus = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    made = Cluster.uniform(servers=servers, nics=gpus, gpus=gpus, rate=1000, nvlink_rate=draw(st.integers(5, 99)) * 100)
    spine = draw(st.sampled_from([None, Fraction(2)]))
    fabric = draw(st.sampled_from([Fabric(), Fabric(rails=True, spine=spine)]))
    cluster = Cluster(made.servers, fabric=fabric, gpu_ranks=True)
    names = [f"server{s}/nic{n}" for s in range(servers) for n in range(gpus)]
    for name in draw(st.sets(st.sampled_from(names), max_size=3)):
        cluster = cluster.degrade(name, Fraction(draw(st.integers(0 if gpus > 1 else 1, 2)), 2))
    return replace(cluster, pristine=None)  # else its bound solves two programs


@st.composite
def in_pods(draw: st.DrawFn) -> Cluster:
    """3 to 9 servers of 1 to 4 NICs in two to four pods, up to three NICs slow or dead; on rails or not."""
    servers, nics = draw(st.integers(3, 9)), draw(st.integers(1, 4))
    made = Cluster.uniform(servers=servers, nics=nics, rate=draw(st.integers(1, 40)) * 1000)
    pods = draw(st.lists(st.integers(0, 3), min_size=servers, max_size=servers))
    factor = Fraction(draw(st.integers(2, 8)), 2)
    fabric = Fabric(rails=draw(st.booleans()), pod_oversubscription=factor)
    cluster = Cluster(
        tuple(replace(server, pod=f"pod{pod}") for server, pod in zip(made.servers, pods, strict=True)), fabric=fabric
    )
    names = [f"{server.name}/{nic.name}" for server in cluster.servers for nic in server.nics]
    for name in draw(st.sets(st.sampled_from(names), max_size=3)):
        cluster = cluster.degrade(name, Fraction(draw(st.integers(0 if nics > 1 else 1, 3)), 4))
    return replace(cluster, pristine=None)  # else its bound solves two programs


@st.composite
def all_hubs(draw: st.DrawFn) -> Cluster:
    """3 to 9 servers of 2 to 8 NICs, two or more of which lack some, none so many that it starves; some on rails."""
    servers, nics = draw(st.integers(3, 9)), draw(st.integers(2, 8))
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=draw(st.integers(1, 40)) * 1000)
    cluster = replace(cluster, fabric=Fabric(rails=draw(st.booleans())))
    for server in draw(st.sets(st.integers(0, servers - 1), min_size=2, max_size=servers - 1)):
        for nic in draw(st.sets(st.integers(0, nics - 1), min_size=1, max_size=max(1, nics // 2))):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return replace(cluster, pristine=None)  # else its bound solves two programs


FITTING: dict[tuple[str, ...], st.SearchStrategy[Cluster]] = {
    ("nested-rings", "packed-trees", "ring", "nccl-tree"): ANY,
    ("trees", "striped-exchange", "whole-vectors", "halving"): st.one_of(FLAT, with_dead_nics()),
    ("direct-exchange",): st.one_of(with_dead_nics(), two_starving(), several_starving(), all_hubs()),
    ("grouped-exchange",): in_pods(),
    ("inside-servers",): gpus_as_ranks(),
    ("r2cc-allreduce", "optcc-published"): one_degraded(),
}
"""Families, and clusters of which each takes most."""


def offered(cluster: Cluster, nbytes: int, segments: int) -> list[Plan]:
    """A plan of every family and baseline that takes the cluster."""
    bound, found = optcc.lower_bound(cluster, nbytes), []
    for offer in candidate_families(cluster, bound):
        try:
            recipe = offer.make(segments)
            recipe.check(cluster)
            recipe.lower(cluster, nbytes)
        except InputError:  # says what it asks of a cluster; tests of the family hold it to that
            continue
        found.append(Plan(cluster, bound, recipe))
    for name in BASELINES:
        try:
            plan = found[0].baseline(name)
            plan.schedule()
        except (InputError, IndexError):
            continue
        found.append(plan)
    return found


def made(family: str, cluster: Cluster, bound: optcc.Bound, segments: int, given: list[CandidateFamily]) -> list[Made]:
    """The family's plans that the planner or a baseline makes for the cluster, and what they lower to."""
    found = []
    makers = [partial(offer.make, segments) for offer in given if offer.name == family]
    makers += [partial(make, cluster, segments) for make in BASELINES.values()]
    for make in makers:
        try:
            recipe = make()
            recipe.check(cluster)
            if recipe.family == family:
                found.append((Plan(cluster, bound, recipe), recipe.lower(cluster, bound.nbytes)))
        except InputError:  # says what it asks of a cluster; tests of the family hold it to that
            continue
    return found


def hold(plan: Plan, schedule: Schedule) -> None:
    """Raise unless it computes AllReduce, not below the bound, and comes back from its file."""
    optcc.verify(schedule)
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert optcc.simulate(schedule).time_s >= float(plan.bound.seconds) * (1 - 2e-6)


def held(families: tuple[str, ...], fitting: st.SearchStrategy[Cluster], *, most: int = EXAMPLES) -> dict[str, int]:
    """On how many different clusters, of `most` or up to `CLUSTERS`, schedules of each family were found to hold."""
    seen: dict[str, set[Cluster]] = {family: set() for family in families}

    class EnoughError(Exception):
        """Ends the drawing."""

    # A failure is told as it is found: it names its cluster, and to shrink it takes minutes.
    @settings(max_examples=most, phases=[Phase.generate], database=None, report_multiple_bugs=False)
    @given(cluster=fitting, nbytes=st.integers(1, 2**22), segments=st.integers(1, 3))
    def check(cluster: Cluster, nbytes: int, segments: int) -> None:
        wanted = [family for family, on in seen.items() if len(on) < CLUSTERS and cluster not in on]
        if all(len(on) >= CLUSTERS for on in seen.values()):
            raise EnoughError
        if not wanted:
            return
        try:
            bound = optcc.lower_bound(cluster, nbytes)
        except InfeasibleError:
            return
        # Chunks that cost that much: the planner's own steps and rounds are few, and are found soon.
        costs = {"alpha": Fraction(1, 10**6), "per_chunk": bound.seconds / 50}
        families_here = [*candidate_families(cluster, bound, **costs)]
        for family in wanted:
            for plan, schedule in made(family, cluster, bound, segments, families_here):
                hold(plan, schedule)
                seen[family].add(cluster)

    with suppress(EnoughError):
        check()
    return {family: len(on) for family, on in seen.items()}


def test_every_family_has_its_clusters() -> None:
    assert {family for families in FITTING for family in families} == set(FAMILIES)


@pytest.mark.parametrize("families", FITTING)
def test_every_family_on_random_clusters(families: tuple[str, ...]) -> None:
    assert held(families, FITTING[families]) == dict.fromkeys(families, CLUSTERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schedule_without_its_last_transfer_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FAMILIES[family].lower

    def broken(recipe: Recipe, cluster: Cluster, nbytes: int) -> Schedule:
        schedule = whole(recipe, cluster, nbytes)
        return without(schedule, len(schedule) - 1)

    monkeypatch.setattr(FAMILIES[family], "lower", broken)
    fitting = next(clusters for families, clusters in FITTING.items() if family in families)
    with pytest.raises(optcc.VerifyError):
        held((family,), fitting, most=20)


def test_clusters_that_a_family_does_not_take_are_not_counted() -> None:
    assert held(("inside-servers",), FLAT, most=20) == {"inside-servers": 0}


def test_all_families_are_seen() -> None:
    """The random clusters are worth something only if every family takes some of them."""
    flat = Cluster.uniform(servers=6, nics=2, gpus=2, rate=1000, nvlink_rate=5000).degrade("server0/nic1")
    seen = {plan.family for plan in offered(flat, 4096, 2)}
    seen |= {plan.family for plan in offered(replace(flat, gpu_ranks=True), 4096, 2)}
    seen |= {plan.family for plan in offered(pods_of(flat, 3), 4096, 2)}
    assert seen == set(FAMILIES)


@pytest.mark.parametrize("segments", [1, 3])
def test_the_family_test_can_fail(segments: int) -> None:
    cluster = Cluster.uniform(servers=5, nics=2, rate=1000).degrade("server0/nic1", Fraction(1, 3))
    for plan in offered(cluster, 4096, segments):
        schedule = plan.schedule()
        with pytest.raises(optcc.VerifyError):
            optcc.verify(schedule.replace(reduce=schedule.reduce == 0))
