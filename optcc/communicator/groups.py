"""Who is in a communicator that comes of another one: a part of its ranks, those that are left, or new ones besides.

Each function says this rank's place there, and the hub where this process has it.
"""

from __future__ import annotations

from typing import NamedTuple

from optcc.runtime.member import JOIN_S, Member
from optcc.runtime.overseer import Overseer
from optcc.runtime.rendezvous import Membership
from optcc.runtime.switchboard import Door

ALONE = Membership(0, 1, ("127.0.0.1", 0), "alone", "")
"""The place of a process of whose job nothing speaks."""


class Group(NamedTuple):
    """A rank's place in another communicator.

    overseer : the hub, in the process of its rank 0; ranks : its ranks' numbers in the one that it comes of
    """

    place: Membership
    overseer: Overseer | None
    ranks: list[int]


def left_of(member: Member) -> Group:
    """After a failure: all ranks that are left. InputError as `Member.regroup`."""
    place, ranks = member.regroup()
    return Group(place, member.overseer.heir if member.overseer else None, ranks)


def part_by_color(member: Member, color: int | None, key: int) -> Group | None:
    """The ranks that give the same `color`, ordered by (key, rank). None where this one gives None."""
    said = member.exchange([color, key])
    ranks = [r for _, r in sorted((k, r) for r, (other, k) in enumerate(said) if other == color)]
    old, name = member.membership, f"{member.membership.job}/split {color}"
    overseer = None
    if color is not None and ranks[0] == member.rank and len(ranks) > 1:
        overseer = Overseer(len(ranks), Door(name, old.secret.encode(), member.host, 0), JOIN_S).start()
    address = member.exchange([member.host, overseer.address[1]] if overseer else None)[ranks[0]]
    if color is None:
        return None
    if len(ranks) == 1:
        return Group(ALONE, None, ranks)
    return Group(Membership(ranks.index(member.rank), len(ranks), tuple(address), name, old.secret), overseer, ranks)
