"""What schedules inside servers are made of: channels, teams and depths; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import InfeasibleError, InputError
from optcc.schedule.inside import InsideServers
from optcc.schedule.inside_channels import channels
from optcc.schedule.inside_groups import gpu_groups, shares_of_slot, usable
from optcc.schedule.inside_parts import BufferPart, inside_servers
from optcc.theory.inside_split import inside_split
from tests.effort import examples
from tests.inside_cases import WHOLE, gpus, recipe, some_shares


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
