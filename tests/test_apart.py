"""Two levels beside a starving server: right, as evenly spread as its split says, and near the bound between pods."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
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
from optcc.schedule.routes import fluid_seconds
from optcc.schedule.timetable_rows import Kind
from optcc.simulator import simulate
from optcc.theory.apart import apart_split
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


@settings(max_examples=60)
@given(starving_in_pods(), st.integers(1, 2**20), st.integers(1, 20), st.booleans())
def test_the_sum_is_everywhere(cluster: Cluster, nbytes: int, segments: int, inside: bool) -> None:
    """With as few bytes as possible: everybody's data is moved once, and the result once to everybody."""
    recipe = replace(offered(cluster, segments), inside=inside)
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
    recipe = replace(offered(cluster), inside=inside)
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
    """Four servers of a pod whose uplink has as much as one of them: with any group's hubs it is 9/8 of the bound."""
    cluster, nbytes = starving(16, 4), 2**28
    recipe, bound = offered(cluster, 64), optcc.lower_bound(cluster, nbytes)
    assert recipe.inside
    over = {
        inside: fluid_seconds(replace(recipe, inside=inside).lower(cluster, nbytes), cluster) / bound.seconds
        for inside in (True, False)
    }
    assert over[True] < 1.01 < 1.05 < over[False]


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
    with pytest.raises(InfeasibleError, match="without hubs"):
        apart_split(rates, [0, 1, 1, 1], [None, None], 0)


# ---- who does what when ---------------------------------------------------------------------------------------------


def most_at_a_time(moves: Sequence[Move], steps: Sequence[int], ends: Sequence[Sequence[int]]) -> Counter[int]:
    """Of each value in `ends` (one pair for each move), the most moves under way in any step."""
    under_way: Counter[tuple[int, int]] = Counter()
    for move, own in zip(moves, ends, strict=True):
        for end in own:
            for step in range(move.step, move.step + steps[move.chunk]):
                under_way[end, step] += 1
    most = Counter[int]()
    for (end, _), count in under_way.items():
        most[end] = max(most[end], count)
    return most


@pytest.mark.parametrize("room", [3, 1000])
def test_no_nic_has_two_chunks_at_a_time(room: int) -> None:
    """And no uplink more than it has room for: the control has more room, and uses it."""
    cluster = starving(12, 4)
    recipe = offered(cluster, 12)
    chunks, nics = recipe._chunks(), [8 - 4 * (r == 1) for r in range(12)]
    moves = sums_in_steps(chunks, recipe._members, 1, 0, nics, [room] * 3)
    steps = [chunk.steps for chunk in chunks]
    assert {*steps} == {1, 2}
    for ends in ([(move.src,) for move in moves], [(move.dst,) for move in moves]):
        most = most_at_a_time(moves, steps, ends)
        assert all(most[r] <= nics[r] for r in range(12))
        assert sum(most[r] == nics[r] for r in range(12)) > 8
    groups = recipe.groups
    crossing = [(groups[m.src],) if groups[m.src] != groups[m.dst] else () for m in moves]
    most = most_at_a_time(moves, steps, crossing)
    assert (max(most.values()) <= 3) == (room == 3)


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


def test_where_it_is_offered() -> None:
    def names(cluster: Cluster) -> set[str]:
        return {ladder.name for ladder in ladders(cluster, optcc.lower_bound(cluster, 2**20), **COSTS)}

    one = starving(8, 4)
    assert "apart-exchange" in names(one)
    assert "grouped-exchange" not in names(one)
    two = one
    for nic in range(4):
        two = two.degrade(f"server6/nic{nic}")
    rails = replace(one, fabric=replace(one.fabric, rails=True))
    lone = tuple(replace(server, pod="a" if server.name == "server1" else "b") for server in one.servers)
    for other in (two, rails, replace(one, servers=lone, pristine=None), starving(8, 4, dead=1), starving(8, 8)):
        assert "apart-exchange" not in names(other)


@pytest.mark.parametrize(("field", "value", "said"), [
    ("apart", 8, "0 to 7"),
    ("groups", (0,) * 8, "two or more"),
    ("groups", (0, 0, 0, 1), "8 of them"),
    ("groups", (1, 0, 1, 1, 1, 1, 1, 1), "another rank in the group"),
    ("hubs", (Fraction(1, 8),) * 8, "a hub of nothing"),
    ("hubs", (Fraction(1, 2), 0, 0, 0, *(Fraction(1, 4),) * 4), "sum 1 in every group"),
    ("finals", (Fraction(1, 2), *(Fraction(0),) * 7), "sum 1"),
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
