"""The closed form kept up to date: what it gives after any events is what counting afresh gives."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optcc.errors import InfeasibleError, InputError
from optcc.planner.standby import limited
from optcc.schedule.nested import nested_rings, rings_in_order
from optcc.theory import lower_bound, nested_shares
from optcc.theory.ring_shares import GroupCounts, hub_split, signature
from optcc.values.cluster import Cluster, Fabric
from tests.failure_cases import MIB, uniform


@settings(deadline=None)
@given(
    servers=st.integers(2, 7),
    nics=st.integers(1, 3),
    events=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=8),
)
def test_a_tally_is_what_counting_afresh_gives(
    servers: int, nics: int, events: list[tuple[int, int, int, bool]]
) -> None:
    """Bound, certificate, words, order and shares equal those made from every NIC, exactly, after any events."""
    cluster = uniform(servers, nics)
    whole, counts = cluster, GroupCounts.of(cluster)
    for s, i, quarters, one_way in events:
        s, i = s % servers, i % nics
        nic = limited(whole.servers[s].nics[i], whole.servers[s].nics[i].out_rate * quarters / 4)
        if one_way:
            nic = type(nic)(nic.name, nic.out_rate, whole.servers[s].nics[i].in_rate, nic.rail, nic.gpu)
        changed = cluster.with_nic(s, i, nic)
        counts = counts.moved(s, cluster.servers[s], changed.servers[s])
        cluster = changed
    assert (counts.groups, counts.sum_out, counts.sum_in) == (
        GroupCounts.of(cluster).groups, GroupCounts.of(cluster).sum_out, GroupCounts.of(cluster).sum_in,
    )  # fmt: skip
    try:
        bound = lower_bound(cluster, 12345)
    except InfeasibleError as error:
        with pytest.raises(InfeasibleError, match=error.where):
            counts.bound(cluster, 12345, Fraction(1))
        return
    assert counts.bound(cluster, 12345, bound.fault_free_s) == bound
    shares = nested_shares([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks])
    rings = nested_rings(cluster, shares, 3)
    assert rings_in_order(counts.order, counts.shares(), 3) == rings
    if servers > 2:
        assert counts.hub_split() == hub_split(cluster)
    assert counts.rings_s * 12345 == rings.fluid_s(cluster, 12345)


def test_a_tally_that_is_not_moved_is_noticed() -> None:
    """Negative control: the comparison above sees a server that changed groups."""
    cluster = uniform()
    hurt = cluster.degrade("server1/nic0")
    assert GroupCounts.of(cluster).bound(hurt, MIB, Fraction(0)).seconds != lower_bound(hurt, MIB).seconds
    assert GroupCounts.of(cluster).order != GroupCounts.of(hurt).order


@pytest.mark.parametrize(
    "cluster",
    [
        uniform(servers=1),
        Cluster(uniform().servers, gpu_ranks=True),
        Cluster(uniform().servers, fabric=Fabric(rails=True)),
    ],
    ids=["alone", "gpus", "rails"],
)
def test_no_tally_without_a_closed_form(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="no closed form"):
        GroupCounts.of(cluster)


def test_signatures_forget_names_and_dead_nics() -> None:
    cluster = uniform(3)
    a, b = cluster.degrade("server0/nic0"), cluster.degrade("server1/nic1")
    assert signature(a.servers[0]) == signature(b.servers[1])
    assert GroupCounts.of(a).key == GroupCounts.of(b).key
    assert GroupCounts.of(cluster.degrade("server0/nic0", Fraction(1, 2))).key != GroupCounts.of(a).key
