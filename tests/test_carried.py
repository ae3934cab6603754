"""A kept plan on what is left of its NICs: the same transfers, folded in the same order, by NICs that work."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError
from optcc.plans.plan import Plan
from optcc.schedule import Schedule
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import Costs
from optcc.schedule.routes import carried_by
from optcc.schedule.simple import all_gather, one_tree
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests import effort
from tests.test_families import FITTING, made, offered

EACH = {"short": 50, "long": 2_000, "whole": 10_000}[effort.level] // len(FAMILIES)
"""So many cases of each family."""
LOSSES = 5
"""Sets of lost NICs that each plan is tried with."""


@st.composite
def unequal(draw: st.DrawFn) -> Cluster:
    """2 to 8 servers of 1 to 8 NICs of a few rates, on rails or not, GPUs as ranks or not."""
    most = draw(st.sampled_from([2, 4, 8]))
    rails, gpus = draw(st.booleans()), draw(st.sampled_from([0, 0, 1, 2]))
    servers = []
    for s in range(draw(st.integers(2, 8 if most < 8 else 5))):
        count = most if rails or gpus else draw(st.integers(1, most))
        rates = draw(st.lists(st.sampled_from([1000, 2000, 2000, 4000]), min_size=count, max_size=count))
        nics = tuple(Nic(f"nic{i}", Fraction(rate), Fraction(rate), rail=i) for i, rate in enumerate(rates))
        servers.append(Server(f"server{s}", nics, max(gpus, 1), Fraction(9000)))
    spine = draw(st.sampled_from([None, Fraction(2)])) if rails else None
    return Cluster(tuple(servers), fabric=Fabric(rails=rails, spine=spine), gpu_ranks=gpus > 0)


@st.composite
def alike(draw: st.DrawFn) -> Cluster:
    """2 to 8 servers of 1 to 8 equal NICs: what most jobs have, and what direct exchange is for."""
    cluster = Cluster.uniform(servers=draw(st.integers(2, 8)), nics=draw(st.integers(1, 8)), rate=1000)
    return replace(cluster, fabric=Fabric(rails=draw(st.booleans())))


def hurt(cluster: Cluster, chance: Random) -> Cluster:
    """Some NICs lost, some slow, and one that was lost before is back; every rank that had a NIC keeps one."""
    before, now = cluster.fault_free, cluster
    for server, old in enumerate(before.servers):
        for place, nic in enumerate(old.nics):
            if not cluster.servers[server].nics[place].alive and chance.random() < 0.3:
                now = now.with_nic(server, place, nic)
    for server, whole in enumerate(now.servers):
        for place, nic in enumerate(whole.nics):
            fate = chance.random()
            if fate < 0.3:
                left = Fraction(0) if fate < 0.2 else Fraction(37, 100)
                tried = now.with_nic(
                    server, place, replace(nic, out_rate=nic.out_rate * left, in_rate=nic.in_rate * left)
                )
                if all(
                    _ways(rank.nics) >= _ways(old.nics) for rank, old in zip(tried.ranks, cluster.ranks, strict=True)
                ):
                    now = tried
    return now


def _ways(nics: tuple[Nic, ...]) -> tuple[bool, bool]:
    return any(nic.out_rate for nic in nics), any(nic.in_rate for nic in nics)


def joined(cluster: Cluster, src: int, dst: int) -> bool:
    """Whether two ranks have a way to each other: NICs of one rail, or of any where there is a spine or no rail."""
    one, other = cluster.ranks[src], cluster.ranks[dst]
    if one.server == other.server:
        return True

    def rails(rank: int, out: bool) -> set[int | None]:
        server = cluster.servers[cluster.ranks[rank].server]
        own = {nic.name for nic in cluster.ranks[rank].nics}
        return {
            (place if nic.rail is None else nic.rail) if cluster.fabric.rails else None
            for place, nic in enumerate(server.nics)
            if nic.name in own and (nic.out_rate if out else nic.in_rate)
        }

    leaving, entering = rails(src, True), rails(dst, False)
    return bool(leaving and entering) and (cluster.fabric.spine is not None or bool(leaving & entering))


def same_sums(one: Schedule, other: Schedule) -> None:
    """The same bytes between the same ranks, in the same order, after the same others: folds go by that order."""
    for column in ("src", "dst", "offset", "length", "reduce", "dep_ptr", "dep_idx"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column


def by_living_nics(schedule: Schedule, cluster: Cluster) -> None:
    """Every lane leaves and enters by ports of its two ranks, which the fabric joins and which are not dead."""
    for number in np.unique(schedule.route).tolist():
        route = schedule.routes[number]
        assert sum(lane.share for lane in route.lanes) == 1
        assert len({(lane.out, lane.into) for lane in route.lanes}) == len(route.lanes)
        for lane in route.lanes:
            out, into = schedule.ports[lane.out], schedule.ports[lane.into]
            assert (out.rank, into.rank) == (route.src, route.dst)
            assert lane.share > 0 < min(out.out_rate, into.in_rate)
            assert out.nvlink == into.nvlink
            assert out.rail == into.rail or cluster.fabric.spine is not None


@pytest.mark.parametrize("families", FITTING)
def test_a_kept_plan_keeps_its_transfers_and_its_sums(families: tuple[str, ...]) -> None:
    seen = dict.fromkeys(families, 0)

    class EnoughError(Exception):
        """Ends the drawing."""

    @settings(max_examples=100 * EACH, phases=[Phase.generate], database=None, report_multiple_bugs=False)
    @given(cluster=st.one_of(unequal(), alike(), FITTING[families]), seed=st.integers(0, 2**32))
    def check(cluster: Cluster, seed: int) -> None:
        chance = Random(seed)
        try:
            bound = optcc.lower_bound(cluster, 4096 + 8 * chance.randrange(4096))
        except InfeasibleError:
            return
        # To make plans costs most of the time: only those of families that have not been seen enough.
        for family in [family for family, times in seen.items() if times < EACH]:
            offers = [*FAMILIES[family].candidates(cluster, bound, Costs())]
            for plan, whole in made(family, cluster, bound, chance.randint(1, 3), offers):
                for _ in range(LOSSES):
                    seen[family] += kept(plan, whole, hurt(cluster, chance))
        if min(seen.values()) >= EACH:
            raise EnoughError

    with pytest.raises(EnoughError):
        check()


def kept(plan: Plan, whole: Schedule, left: Cluster) -> bool:
    """Whether a plan can be kept on what is `left`; raises unless that is where its ranks have ways to each other, and
    then it is what it was."""
    pairs = {(whole.routes[number].src, whole.routes[number].dst) for number in np.unique(whole.route).tolist()}
    can = all(joined(left, *pair) for pair in pairs)
    if not can:
        with pytest.raises(InfeasibleError):
            carried_by(left, whole, plan.cluster)
        return False
    carried = carried_by(left, whole, plan.cluster)
    optcc.verify(carried)
    same_sums(whole, carried)
    by_living_nics(carried, left)
    return True


def test_without_a_rail_in_common_no_plan_is_kept() -> None:
    cluster = replace(Cluster.uniform(servers=3, nics=2, rate=1000), fabric=Fabric(rails=True))
    left = cluster.degrade("server0/nic0").degrade("server1/nic1")
    with pytest.raises(InfeasibleError, match="no way between two ranks"):
        carried_by(left, one_tree(cluster, 4096), cluster)


def test_with_all_nics_back_it_is_as_it_was_made() -> None:
    cluster = Cluster.uniform(servers=3, nics=4, rate=1000)
    lost = cluster.degrade("server1/nic0").degrade("server1/nic2").degrade("server0/nic1", Fraction(37, 100))
    back = replace(lost, servers=cluster.servers)
    for plan in offered(cluster, 4096, 2):
        whole = plan.schedule()
        assert carried_by(lost, whole, cluster).routes != whole.routes
        assert carried_by(back, whole, cluster) is whole


def test_what_a_nic_cannot_carry_goes_by_the_others() -> None:
    """One NIC of four at 0.37, one dead: each of the server's NICs is as busy as its rate allows."""
    cluster = Cluster.uniform(servers=2, nics=4, rate=1000)
    left = cluster.degrade("server1/nic0").degrade("server1/nic2", Fraction(37, 100))
    carried = carried_by(left, one_tree(cluster, 4096), cluster)
    (up, down) = carried.routes
    for route, end in ((up, "out"), (down, "into")):
        work: Counter[str] = Counter()
        for lane in route.lanes:
            port = carried.ports[getattr(lane, end)]
            work[port.name] += lane.share / Fraction(port.out_rate).limit_denominator()  # type: ignore[assignment]
        assert len({*work.values()}) == 1, work
    assert len(work) == 3


def test_the_checks_can_fail() -> None:
    cluster = Cluster.uniform(servers=3, nics=2, rate=1000)
    left = cluster.degrade("server1/nic0")
    whole = all_gather(cluster, 64)
    carried = carried_by(left, whole, cluster)
    by_living_nics(carried, left)
    with pytest.raises(AssertionError):
        by_living_nics(carried.replace(ports=tuple(replace(port, out_rate=0.0) for port in carried.ports)), left)
    with pytest.raises(AssertionError):
        same_sums(whole, carried.replace(offset=carried.offset[::-1]))
