"""Who is in a communicator that comes of another one: a part of its ranks, those that are left, or new ones besides.

Each function says this rank's place there, and the hub where this process has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from optcc.errors import InputError, OptccError
from optcc.runtime.control.member import Member
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.router import Door
from optcc.runtime.errors import GrowFailedError, RankFailedError

if TYPE_CHECKING:
    from optcc.communicator.interface import Communicator

Exchange = Callable[[Any], list[Any]]
"""All ranks' values, by rank."""

ALONE = Membership(0, 1, ("127.0.0.1", 0), "alone", "")
"""The place of a process of whose job nothing speaks."""


class Regrouped(NamedTuple):
    """A rank's place in another communicator.

    overseer : the hub, in the process of its rank 0; ranks : its ranks' numbers in the one that it comes of
    """

    place: Membership
    overseer: Overseer | None
    ranks: list[int]


def left_of(member: Member) -> Regrouped:
    """After a failure: all ranks that are left. InputError as `Member.regroup`."""
    place, ranks = member.regroup()
    return Regrouped(place, member.overseer.heir if member.overseer else None, ranks)


def part_by_color(member: Member, color: int | None, key: int) -> Regrouped | None:
    """The ranks that give the same `color`, ordered by (key, rank). None where this one gives None."""
    with member.turn("split()"):
        return _part_by_color(member, color, key)


def _part_by_color(member: Member, color: int | None, key: int) -> Regrouped | None:
    said = member.exchange([color, key])
    ranks = [r for _, r in sorted((k, r) for r, (other, k) in enumerate(said) if other == color)]
    old, name = member.membership, f"{member.membership.job}/split {color}"
    overseer = None
    if color is not None and ranks[0] == member.rank and len(ranks) > 1:
        overseer = Overseer(len(ranks), Door(name, old.secret.encode(), member.host, 0), member.timeout_s).start()
    address = member.exchange([member.host, overseer.address[1]] if overseer else None)[ranks[0]]
    if color is None:
        return None
    if len(ranks) == 1:
        return Regrouped(ALONE, None, ranks)
    return Regrouped(
        Membership(ranks.index(member.rank), len(ranks), tuple(address), name, old.secret), overseer, ranks
    )


def with_new(place: Membership, exchange: Exchange, interface: str | None, within_s: float) -> Regrouped:
    """These ranks and those that come to `place.address` within so many seconds. InputError where that cannot be."""
    world, address = place.world, list(place.address)
    said = exchange([world, address])
    other = next((each for each in said if each != said[0]), None)
    if other:
        raise InputError("ranks do not want the same", where="grow", expected=str(said[0]), got=str(other))
    overseer, why = None, None
    if place.rank == 0:
        try:
            overseer = Overseer.open(place, interface, within_s)
        except OptccError as error:
            why = str(error)
    why = exchange(why)[0]
    if why:
        raise InputError(why, where="grow", expected="an address of rank 0's machine that is free")
    return Regrouped(place, overseer, list(range(len(said))))


def all_or_none(made: Communicator | None, error: OptccError | None, place: Membership, exchange: Exchange) -> None:
    """After an attempt to grow: nothing where it has worked on all old ranks, else GrowFailedError on all of them.

    RankFailedError where one of them is lost, to the old communicator, too.
    """
    try:
        if made:
            failure = None
        elif isinstance(error, RankFailedError):
            failure = [error.rank, error.cause]
        else:
            failure = [place.rank, str(error)]
        said = exchange(failure)
        failures = [each for each in said if each]
        if failures:
            rank, cause = failures[0]
            raise GrowFailedError(rank, cause, old=len(said), new=place.world)
    except OptccError as none:
        if made:
            made.abort(f"growing has failed: {none}")
        raise none from error
