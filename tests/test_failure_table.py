"""A prepared plan serves every failure of its shape under other names; what the table forgets."""

from __future__ import annotations

import pytest

import optcc
from optcc.planner.search import candidate_families
from optcc.planner.standby.table import Entry, Table, matching
from optcc.schedule.grouped import GroupedExchange
from optcc.theory import lower_bound
from optcc.theory.packing import pack_trees
from optcc.theory.ring_shares import GroupCounts
from optcc.values.cluster import Cluster
from tests.failure_cases import COSTS, MIB, uniform


def test_a_packing_is_relabelled() -> None:
    """Out and in rates that differ have no nested rings at the bound; trees that the program packed change names."""
    cluster = uniform(servers=4, nics=1)

    def slower_out(s: int) -> Cluster:
        nic = cluster.servers[s].nics[0]
        return cluster.with_nic(s, 0, type(nic)(nic.name, nic.out_rate / 3, nic.in_rate, nic.rail, nic.gpu))

    packing = pack_trees(slower_out(0))
    recipe = optcc.plan(slower_out(0), MIB, family="packed-trees", segments=2).recipe
    assert packing.trees
    moved = recipe.relabelled(
        matching(GroupCounts.of(slower_out(0)), GroupCounts.of(slower_out(2))), GroupCounts.of(slower_out(2))
    )
    assert moved is not None
    moved.check(slower_out(2))
    assert moved.fluid_s(slower_out(2), MIB) == recipe.fluid_s(slower_out(0), MIB)
    optcc.verify(moved.lower(slower_out(2), MIB))
    assert recipe.fluid_s(slower_out(2), MIB) != recipe.fluid_s(slower_out(0), MIB)  # the names do matter


@pytest.mark.parametrize("servers", [6, 20])
def test_every_family_of_the_planner_is_relabelled(servers: int) -> None:
    """Each family made for one failure fits the cluster of another, and takes as long in the fluid limit.

    To one part in 1000: where a schedule's bytes are counted, other servers have the odd ones.
    """
    cluster = uniform(servers=servers, nics=servers // 3)
    here, there = cluster.degrade("server1/nic0"), cluster.degrade("server4/nic1")
    to = matching(GroupCounts.of(here), GroupCounts.of(there))
    assert to[1] == 4
    offered = {offer.name for offer in candidate_families(here, lower_bound(here, MIB), **COSTS)}
    assert (GroupedExchange.family in offered) == (servers > 16)
    for offer in candidate_families(here, lower_bound(here, MIB), **COSTS):
        recipe = offer.make(3)
        moved = recipe.relabelled(to, GroupCounts.of(there))
        assert moved is not None, offer.name
        moved.check(there)
        optcc.verify(moved.lower(there, MIB))
        assert float(moved.fluid_s(there, MIB)) == pytest.approx(float(recipe.fluid_s(here, MIB)), rel=1e-3)
    assert optcc.plan(here, MIB).baseline("ring").recipe.relabelled(to, GroupCounts.of(there)) is None


def test_steps_with_three_slow_servers_are_relabelled() -> None:
    def hurt(*servers: int) -> Cluster:
        cluster = uniform(servers=8, nics=4)
        for server in servers:
            cluster = cluster.degrade(f"server{server}/nic0").degrade(f"server{server}/nic1")
        return cluster

    here, there = hurt(1, 2, 3), hurt(0, 4, 7)
    to = matching(GroupCounts.of(here), GroupCounts.of(there))
    offered = candidate_families(here, lower_bound(here, MIB), **COSTS)
    recipe = next(offer.make(4) for offer in offered if offer.name == "direct-exchange")
    moved = recipe.relabelled(to, GroupCounts.of(there))
    assert moved == recipe  # it names no rank
    optcc.verify(moved.lower(there, MIB))


def test_the_table_forgets_what_was_not_used_for_longest() -> None:
    table = Table(2)
    for key in "ab":
        table.put(key, Entry({}))
    table.get("a")
    table.put("c", Entry({}))
    assert ("a" in table, "b" in table, "c" in table, len(table)) == (True, False, True, 2)
