"""Two levels beside a starving server: right, as evenly spread as its split says, and near the bound between pods."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster
from optcc.errors import InfeasibleError, InputError
from optcc.ladders import ladders
from optcc.ladders_apart import apart_ladders
from optcc.ladders_grouped import grouped_ladders
from optcc.schedule import apart
from optcc.schedule.apart import ApartExchange
from optcc.schedule.apart_steps import Move, sums_in_steps
from optcc.schedule.columns import Schedule
from optcc.schedule.pods import pod_numbers, uplinks
from optcc.schedule.timetable_nics import live_nics, nic_rate
from optcc.schedule.timetable_rows import Kind
from optcc.simulator import simulate
from optcc.theory.apart import apart_split
from tests.effort import examples
from tests.fabrics import pods_of
from tests.test_families import starving_in_pods

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
COSTS = {"alpha": ALPHA, "per_chunk": PER_CHUNK}
RATE = 50 * 10**9


def starving(servers: int, size: int, over: int = 4, *, nics: int = 8, dead: int = 4) -> Cluster:
    """Pods of `size` servers; server1 has lost `dead` NICs."""
    cluster = pods_of(Cluster.uniform(servers=servers, nics=nics, rate=RATE), size, over)
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return cluster


def offered(cluster: Cluster, segments: int = 8) -> ApartExchange:
    (ladder,) = apart_ladders(cluster, optcc.lower_bound(cluster, 2**28), PER_CHUNK)
    recipe = ladder.make(segments)
    assert isinstance(recipe, ApartExchange)
    return recipe


def of(cluster: Cluster, segments: int, inside: bool) -> ApartExchange:
    """Also where the planner does not offer it."""
    groups, rates = pod_numbers(cluster), [len(mine) * nic_rate(cluster) for mine in live_nics(cluster)]
    apart = rates.index(min(rates))
    split = apart_split(rates, groups, uplinks(cluster, groups), apart, inside)
    return ApartExchange(segments, apart, inside, tuple(groups), split.hubs, split.finals)


@examples(60)
@given(starving_in_pods(), st.integers(1, 2**20), st.integers(1, 20), st.booleans())
def test_the_sum_is_everywhere(cluster: Cluster, nbytes: int, segments: int, inside: bool) -> None:
    """With as few bytes as possible: everybody's data is moved once, and the result once to everybody."""
    recipe = of(cluster, segments, inside)
    recipe.check(cluster)
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert recipe.read(recipe.content()) == recipe
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes


@pytest.mark.parametrize("gone", [Kind.RAW, Kind.SUM, Kind.PARTIAL, Kind.FINAL, Kind.TOTAL])
@pytest.mark.parametrize("inside", [False, True])
def test_whoever_does_not_wait_is_caught(gone: Kind, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what a hub has gathered, for sums, for what the one apart is sent and sends back, or for totals."""
    cluster, whole = starving(6, 3, nics=4, dead=2), apart.dependencies
    recipe = of(cluster, 8, inside)
    optcc.verify(recipe.lower(cluster, 2**16))
    monkeypatch.setattr(
        apart, "dependencies", lambda rows: [pair for pair in whole(rows) if gone not in rows.kind[pair[1]]]
    )
    with pytest.raises(optcc.VerifyError):
        optcc.verify(recipe.lower(cluster, 2**16))


@pytest.mark.parametrize("gone", [Kind.RAW, Kind.RESULT])
def test_who_is_left_out_is_caught(gone: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the one apart does not send its data, or does not get results."""
    cluster = starving(6, 3, nics=4, dead=2)
    recipe, moves = offered(cluster), ApartExchange._moves

    def fewer(self: ApartExchange, *given: Any) -> list[Move]:
        return [each for each in moves(self, *given) if each.kind != gone or self.apart not in (each.src, each.dst)]

    monkeypatch.setattr(ApartExchange, "_moves", fewer)
    with pytest.raises(optcc.VerifyError):
        optcc.verify(recipe.lower(cluster, 2**16))


# ---- who has how much to do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "size", "over", "nics", "dead", "inside"),
    [(16, 4, 4, 8, 4, True), (16, 4, 2, 8, 4, False), (24, 8, 4, 8, 5, False), (9, 3, 1, 4, 3, False)],
)
def test_the_busiest_has_as_much_to_do_as_the_split_says(
    servers: int, size: int, over: int, nics: int, dead: int, inside: bool
) -> None:
    """Of all but the server apart, and of the uplinks. Other splits, which the control has, are worse."""
    cluster, nbytes = starving(servers, size, over, nics=nics, dead=dead), 2**28
    recipe = offered(cluster, 80)
    assert recipe.inside == inside

    def others_s(recipe: ApartExchange) -> float:
        schedule = recipe.lower(cluster, nbytes)
        own = [schedule.routes[route].src == recipe.apart for route in schedule.route]
        own_back = [schedule.routes[route].dst == recipe.apart for route in schedule.route]
        moved: dict[tuple[str, int], Fraction] = defaultdict(Fraction)
        for route, length, out, back in zip(schedule.route, schedule.length.tolist(), own, own_back, strict=True):
            for lane in schedule.routes[route].lanes:
                ends = [] if out else [("out", lane.out)]
                ends += [] if back else [("in", lane.into)]
                for end in (*ends, *(("link", link) for link in lane.links)):
                    moved[end] += lane.share * length
        rates = {"link": [link.rate for link in schedule.links]}
        rates |= {way: [RATE] * len(schedule.ports) for way in ("out", "in")}
        return max(float(much) / rates[way][at] for (way, at), much in moved.items())

    groups = list(recipe.groups)
    pods = [sum(own == group for own in groups) * nics * RATE / over for group in sorted({*groups})]
    rates = [Fraction(RATE * (nics - dead * (r == 1))) for r in range(servers)]
    split = apart_split(rates, groups, [Fraction(x) for x in pods], 1)
    assert 0.99 < others_s(recipe) / (split.per_byte * nbytes) < 1.03
    lopsided = [part * (2 if rank % size == 0 else 1) for rank, part in enumerate(recipe.hubs)]
    sums = Counter[int]()
    for own, part in zip(groups, lopsided, strict=True):
        sums[own] += part  # type: ignore[assignment]
    worse = replace(recipe, hubs=tuple(part / sums[own] for own, part in zip(groups, lopsided, strict=True)))
    assert others_s(worse) > 1.05 * others_s(recipe)


def test_who_stays_inside_leaves_its_uplink_room() -> None:
    """Four servers of a pod whose uplink has as much as one of them: with any group's hubs all are busy all the time,
    and the plan takes a fifth more."""
    cluster, nbytes = starving(16, 4), 2**28
    recipe, bound_s = offered(cluster, 64), float(optcc.lower_bound(cluster, nbytes).seconds)
    links = [Fraction(8 * RATE)] * 4
    rates = [Fraction(RATE * (8 - 4 * (r == 1))) for r in range(16)]
    splits = {inside: apart_split(rates, recipe.groups, links, 1, inside) for inside in (False, True)}
    assert apart_split(rates, recipe.groups, links, 1) == splits[True]
    assert splits[False].per_byte * nbytes == pytest.approx(bound_s)
    assert splits[True].per_byte * nbytes < 0.97 * bound_s
    found = {}
    for inside, split in splits.items():
        made = replace(recipe, inside=inside, hubs=split.hubs, finals=split.finals)
        found[inside] = simulate(made.lower(cluster, nbytes), **COSTS, receivers="packets").time_s
    assert found[False] > 1.15 * found[True]
    assert not offered(starving(64, 8)).inside  # others are as busy either way


def test_equal_ranks_have_equal_parts() -> None:
    """Also where the linear program finds another best split first; beside one that has lost a NIC they have more."""
    recipe = offered(starving(16, 4).degrade("server6/nic0"))
    parts = list(zip(recipe.groups, recipe.hubs, recipe.finals, strict=True))
    assert {part for r, part in enumerate(parts) if r in (0, 2, 3)} == {parts[0]}
    assert {part for r, part in enumerate(parts) if r in (4, 5, 7)} == {parts[4]}
    assert {part[1:] for r, part in enumerate(parts) if r >= 8} == {parts[8][1:]}
    assert parts[6][1] < parts[8][1] < parts[4][1]


def test_no_way_is_an_error() -> None:
    rates, groups = [Fraction(1), Fraction(2), Fraction(2), Fraction(2)], [0, 0, 1, 1]
    assert apart_split(rates, groups, [None, None], 0).hubs[0] == 0
    for wrong in (([Fraction(0), *rates[1:]], groups, [None, None]), (rates, groups, [Fraction(0), None])):
        with pytest.raises(InfeasibleError, match="no way"):
            apart_split(*wrong, 0)  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError, match="no other rank"):
        apart_split(rates, [0, 1, 1, 1], [None, None], 0)


# ---- who does what when ---------------------------------------------------------------------------------------------


End = TypeVar("End", int, tuple[str, int])


def most_at_a_time(moves: Sequence[Move], steps: Sequence[int], ends: Sequence[Sequence[End]]) -> Counter[End]:
    """Of each of the `ends`, of which every move has some, the most moves under way in any step."""
    under_way: Counter[tuple[End, int]] = Counter()
    for move, own in zip(moves, ends, strict=True):
        for end in own:
            for step in range(move.step, move.step + steps[move.chunk]):
                under_way[end, step] += 1
    most = Counter[End]()
    for (end, _), count in under_way.items():
        most[end] = max(most[end], count)
    return most


def crossing(recipe: ApartExchange, moves: Sequence[Move]) -> list[tuple[tuple[str, int], ...]]:
    """Of each move the borders of groups that it crosses, out of one and into another."""
    ways = [(recipe.groups[move.src], recipe.groups[move.dst]) for move in moves]
    return [(("out", a), ("in", b)) if a != b else () for a, b in ways]


@pytest.mark.parametrize("room", [3, 1000])
def test_no_nic_has_two_chunks_at_a_time(room: int) -> None:
    """And no uplink more than it has room for: the control has more room, and uses it."""
    recipe = offered(starving(12, 4), 12)
    chunks, nics = recipe._chunks(), [8 - 4 * (r == 1) for r in range(12)]
    moves = sums_in_steps(chunks, recipe._members, 1, 0, nics, [room] * 3)
    steps = [chunk.steps for chunk in chunks]
    assert {*steps} == {1, 2}
    for ends in ([(move.src,) for move in moves], [(move.dst,) for move in moves]):
        most = most_at_a_time(moves, steps, ends)
        assert all(most[r] <= nics[r] for r in range(12))
        assert sum(most[r] == nics[r] for r in range(12)) > 8
    most = most_at_a_time(moves, steps, crossing(recipe, moves))
    for way in ("out", "in"):
        assert (max(count for (side, _), count in most.items() if side == way) <= 3) == (room == 3)


def test_uplinks_have_the_room_that_the_fabric_says() -> None:
    """In both halves. Of 4 servers of 8 NICs, 8 to 1: 4 chunks at a time each way; 16 without oversubscription."""
    found = []
    for over in (8, 2):
        cluster = starving(12, 4, over)
        recipe = replace(offered(starving(12, 4), 12), segments=12)
        chunks = recipe._chunks()
        moves = recipe._moves(chunks, cluster)
        found.append(most_at_a_time(moves, [chunk.steps for chunk in chunks], crossing(recipe, moves)))
    assert max(found[0].values()) <= 4 < max(found[1].values()) <= 16


@pytest.mark.parametrize("cluster", [starving(64, 8), starving(16, 4), starving(24, 8).degrade("server9/nic0")])
def test_at_any_time_all_have_had_their_part(cluster: Cluster) -> None:
    """Of being hubs, of adding last, and so has each group: some NICs would have far too much at a time."""
    recipe = offered(cluster, 32)
    parts = {"hub": recipe.hubs, "last": recipe.finals, "group": [Fraction(0)] * (1 + max(recipe.groups))}
    for group, part in zip(recipe.groups, recipe.finals, strict=True):
        parts["group"][group] += part  # type: ignore[index]
    had, done, off = Counter[tuple[str, int]](), 0, Counter[str]()
    for chunk in recipe._chunks():
        done += chunk.steps
        had.update({("hub", hub): chunk.steps for hub in chunk.hubs})
        had["last", chunk.hubs[chunk.final]] += chunk.steps
        had["group", chunk.final] += chunk.steps
        for what, each in parts.items():
            off[what] = max(off[what], *(abs(had[what, i] - float(part) * done) for i, part in enumerate(each)))
    assert off["hub"] <= 4
    assert off["last"] <= 4
    assert off["group"] <= 8


@pytest.mark.parametrize("inside", [False, True])
def test_the_one_apart_adds_last_to_one_half(inside: bool) -> None:
    recipe = replace(offered(starving(16, 4)), inside=inside, segments=64)
    chunks = recipe._chunks()
    last = sum(chunk.steps for chunk in chunks if chunk.last)
    assert last == sum(chunk.steps for chunk in chunks) - last
    own = {chunk.partner for chunk in chunks if not chunk.last}
    assert ({recipe.groups[rank] for rank in own} == {0}) == inside
    assert {recipe.groups[chunk.partner] for chunk in chunks if chunk.last} > {1, 2, 3}


def test_its_nics_have_equally_much_to_do() -> None:
    cluster = starving(16, 4)
    schedule = offered(cluster, 64).lower(cluster, 2**28)
    moved: Counter[tuple[str, int]] = Counter()
    for route, length in zip(schedule.route.tolist(), schedule.length.tolist(), strict=True):
        for lane in schedule.routes[route].lanes:
            moved["out", lane.out] += length
            moved["in", lane.into] += length
    for rank in range(16):
        for way in ("out", "in"):
            own = [moved[way, i] for i, port in enumerate(schedule.ports) if port.rank == rank]
            assert max(own) - min(own) <= schedule.length.max()


def idle(schedule: Schedule, rank: int) -> float:
    """The part of the time that the rank's receiving NICs have nothing to do, without costs."""
    run = simulate(schedule, alpha=0, per_chunk=0, receivers="packets")
    own = [port.in_rate for port in schedule.ports if port.rank == rank]
    landed = sum(
        length
        for route, length in zip(schedule.route.tolist(), schedule.length.tolist(), strict=True)
        if schedule.routes[route].dst == rank
    )
    return 1 - landed / sum(own) / run.time_s


def test_the_one_apart_is_busy_all_the_time() -> None:
    """But for what it waits for first, which is less the more windows there are."""
    cluster = starving(16, 4)
    found = [idle(offered(cluster, windows).lower(cluster, 2**28), 1) for windows in (32, 64, 128)]
    assert found[0] > found[1] > found[2]
    assert found[2] < 0.045


# ---- how near -------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("servers", "size", "over", "least", "before"),
    [(16, 4, 4, 1.14, 1.27), (24, 8, 4, 1.13, 1.24), (8, 4, 4, 1.14, 1.2)],
)
def test_it_is_near_the_bound_between_pods(servers: int, size: int, over: int, least: float, before: float) -> None:
    """256 MiB, 5 us and 1 us; in two levels with that server in a group it is over `before`."""
    cluster, nbytes = starving(servers, size, over), 2**28
    bound = optcc.lower_bound(cluster, nbytes)
    plan = optcc.plan(cluster, nbytes, **COSTS)
    assert plan.recipe.family == ApartExchange.family
    assert simulate(plan.schedule(), **COSTS, receivers="packets").time_s < least * float(bound.seconds)
    in_groups = [
        simulate(ladder.make(k).lower(cluster, nbytes), **COSTS, receivers="packets").time_s
        for ladder in grouped_ladders(cluster, bound, PER_CHUNK)
        for k in (16, 32)
    ]
    assert min(in_groups) > before * float(bound.seconds)


@pytest.mark.long
@pytest.mark.parametrize(("servers", "size", "over", "dead", "nbytes"), [(16, 4, 16, 4, 2**24), (16, 4, 8, 7, 2**22)])
def test_groups_remain_where_they_are_faster(servers: int, size: int, over: int, dead: int, nbytes: int) -> None:
    """Where an uplink sets the bound, and for small messages."""
    cluster = starving(servers, size, over, dead=dead)
    plan = optcc.plan(cluster, nbytes, **COSTS)
    assert plan.recipe.family == "grouped-exchange"


def test_who_is_hub_of_nothing_adds_last_to_nothing() -> None:
    cluster = starving(8, 4)
    recipe = offered(cluster)
    none = replace(recipe, hubs=(Fraction(0), Fraction(0), *(Fraction(1, 2),) * 2, *recipe.hubs[4:]))
    with pytest.raises(InputError, match="hubs of nothing"):
        none.check(cluster)


def test_where_it_is_offered() -> None:
    def names(cluster: Cluster) -> set[str]:
        return {ladder.name for ladder in ladders(cluster, optcc.lower_bound(cluster, 2**20), **COSTS)}

    one = starving(8, 4)
    assert "apart-exchange" in names(one)
    assert "grouped-exchange" in names(one)  # which is faster for small messages
    two = one
    for nic in range(4):
        two = two.degrade(f"server6/nic{nic}")
    rails = replace(one, fabric=replace(one.fabric, rails=True))
    lone = tuple(replace(server, pod="a" if server.name == "server1" else "b") for server in one.servers)
    for other in (
        two,
        rails,
        replace(one, servers=lone, pristine=None),
        starving(8, 4, dead=1),
        starving(8, 8),
        starving(16, 4, 16),
    ):
        assert "apart-exchange" not in names(other)


@pytest.mark.parametrize(("field", "value", "said"), [
    ("apart", 8, "0 to 7"),
    ("groups", (0,) * 8, "two or more"),
    ("groups", (0, 0, 0, 1), "8 of them"),
    ("groups", (1, 0, 1, 1, 1, 1, 1, 1), "another rank in the group"),
    ("hubs", (Fraction(1, 8),) * 8, "a hub of nothing"),
    ("hubs", (Fraction(1, 2), 0, 0, 0, *(Fraction(1, 4),) * 4), "sum 1 in every group"),
    ("hubs", (Fraction(3, 2), 0, Fraction(-1, 2), 0, *(Fraction(1, 4),) * 4), "sum 1 in every group"),
    ("finals", (Fraction(1, 2), *(Fraction(0),) * 7), "sum 1"),
    ("finals", (Fraction(3, 2), 0, Fraction(-1, 2), *(Fraction(0),) * 5), "sum 1"),
    ("inside", 1, "true or false"),
    ("segments", 0, "1 to"),
])  # fmt: skip
def test_parameters_that_do_not_fit_are_refused(field: str, value: object, said: str) -> None:
    cluster = starving(8, 4)
    recipe = offered(cluster)
    recipe.check(cluster)
    with pytest.raises(InputError, match=said):
        replace(recipe, **{field: value}).check(cluster)


def test_rails_are_refused() -> None:
    cluster = starving(8, 4)
    with pytest.raises(InputError, match="all reach each other"):
        offered(cluster).check(replace(cluster, fabric=replace(cluster.fabric, rails=True)))
