"""On rails the transfers of a timetable stay on theirs, whatever the order in which servers list their NICs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from optcc.cluster import Cluster, Fabric
from optcc.schedule.timetable_nics import applies
from tests.timetables import check_allreduce, four_of_eight, hurt, off_rails, timetable


@given(hurt(), st.sampled_from([0, 1, 1024]), st.booleans(), st.data())
def test_rails_are_those_that_nics_name(cluster: Cluster, matched: int, sparse: bool, data: st.DataObject) -> None:
    """And with a spine, by which a transfer could leave them."""
    servers = []
    for server in cluster.servers:
        nics = [replace(nic, rail=rail) for rail, nic in enumerate(server.nics)]
        servers.append(replace(server, nics=tuple(data.draw(st.permutations(nics)))))
    spine = data.draw(st.sampled_from([None, Fraction(2)]))
    mixed = replace(cluster, servers=tuple(servers), fabric=Fabric(rails=True, spine=spine), pristine=None)
    assume(applies(mixed))  # on one fabric without a common place, too
    check_allreduce(mixed, timetable(mixed, 2, matched=matched, sparse=sparse and matched > 0), 2**16)


def test_a_transfer_that_leaves_its_rail_is_noticed() -> None:
    cluster = four_of_eight()
    schedule = timetable(cluster).lower(cluster, 2**16)
    assert not off_rails(schedule)
    (lane,) = schedule.routes[-1].lanes
    out = schedule.ports[lane.out]
    wrong = next(i for i, port in enumerate(schedule.ports) if port.rank == out.rank and port.rail != out.rail)
    astray = replace(schedule.routes[-1], lanes=(replace(lane, out=wrong),))
    broken = schedule.replace(routes=(*schedule.routes[:-1], astray))
    assert off_rails(broken) == [(schedule.ports[wrong].name, schedule.ports[lane.into].name)]
