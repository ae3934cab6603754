"""Every kind of fault at random moments of a `Session`'s collectives: 2 to 8 ranks, 1 to 3 NICs, kept and new plans.

A strike that met nothing is not counted. Results are exact all the same; or where a rank has no way left, the run ends
with the same failure on all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

import optcc
from optcc.runtime import RankFailedError
from optcc.runtime.control.fault_injection import KINDS, LASTING
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Collective, Session
from optcc.runtime.messages import Strike
from optcc.values.cluster import Cluster
from tests.effort import cases
from tests.failover_runs import InconclusiveError

NBYTES, RATE = 1 << 18, 4_000_000
"""A collective takes a tenth of a second: long enough that most strikes hit something."""
TRIES = 5
ENDS = ("kill", "status")
"""Kinds that no other NIC makes good: all ranks say the same of the rank."""
HEALS_S = 0.4
"""Of flaps, pauses and links that are away."""
STALL_S = 20.0
"""With 8 ranks and slow NICs payloads that vanish while answers come are noticed after up to 5 s."""


@dataclass(frozen=True)
class Scene:
    """Ranks, NICs of each, and what strikes, in one collective after another. `renews` : after each whether the next
    goes by a plan for what is left, over wires made anew; else by the same plan over the same wires."""

    ranks: int
    nics: int
    strikes: Sequence[Strike]
    renews: Sequence[bool]


def strike_of(kind: str, draw: random.Random, ranks: int, nics: int, before: Sequence[Strike]) -> Strike:
    """At a NIC that nothing has struck for good, at a moment in the first seven tenths of what its rank has to do."""
    lost = gone(before)
    nic = draw.choice([i for i in range(nics) if any(f"server{r}/nic{i}" not in lost for r in range(ranks))])
    rank = draw.choice([r for r in range(ranks) if f"server{r}/nic{nic}" not in lost])
    others = [r for r in range(ranks) if r != rank and f"server{r}/nic{nic}" not in lost]
    if kind == "path" and not others:
        kind = "hole"
    far = draw.choice(others) if others else rank
    amount = {"away": HEALS_S, "flap": HEALS_S, "pause": HEALS_S, "slow": 0.3}.get(kind, 0.0)
    other = f"server{far}/nic{nic}" if kind == "path" else ""
    return Strike(kind, f"server{rank}/nic{nic}", 0.7 * draw.random(), amount, other)


def kinds_of(seed: int, first: int, count: int, among: Collection[str] = KINDS) -> list[str]:
    """Part of an endless list in which kinds come in turns, each turn shuffled."""
    draw, kinds = random.Random(seed), list[str]()
    while len(kinds) < first + count:
        kinds += draw.sample([*among], len(among))
    return kinds[first:][:count]


def scenes(seed: int, ranks: int, nics: int, kinds: Sequence[str]) -> Iterator[Scene]:
    """Strikes of these kinds; a scene ends with one after which it cannot go on, or with the fourth."""
    draw, mine = random.Random(seed), list[Strike]()
    for kind in kinds:
        mine.append(strike_of(kind, draw, ranks, nics, mine))
        if ends(mine, nics) or len(mine) == 4:
            yield Scene(ranks, nics, tuple(mine), tuple(draw.random() < 0.5 for _ in mine))
            mine.clear()
    if mine:
        yield Scene(ranks, nics, tuple(mine), tuple(draw.random() < 0.5 for _ in mine))


def gone(strikes: Sequence[Strike]) -> set[str]:
    """NICs that may do nothing for their neighbours any more."""
    lasting = [strike for strike in strikes if strike.kind in (*LASTING, "path")]
    return {strike.nic for strike in lasting} | {strike.far for strike in lasting} - {""}


def ends(strikes: Sequence[Strike], nics: int) -> bool:
    """Whether the last of these may leave a rank without a way to another."""
    last = strikes[-1]
    lost = gone(strikes) | ({last.nic} if last.kind == "away" else set())
    servers = [name.partition("/")[0] for name in lost]
    return last.kind in ENDS or any(servers.count(server) >= nics for server in servers)


def job(scene: Scene, lost: Sequence[str] = ()) -> Job:
    cluster = Cluster.uniform(servers=scene.ranks, nics=scene.nics, rate=RATE)
    for nic in lost:
        cluster = cluster.degrade(nic)
    return Job({"it": optcc.plan(cluster, NBYTES, segments=2).schedule()}, "float32", "sum", True)


def check(strike: Strike, done: Collective) -> None:
    """AssertionError for what is wrong, InconclusiveError where the strike met nothing."""
    assert all(done.exact), f"{strike}: a wrong result"
    mine = (strike.nic, strike.kind)
    struck = [note for note in done.notes if note.kind == "struck" and (note.nic, note.cause) == mine]
    if not struck:
        raise InconclusiveError(f"inconclusive: {strike} came too late")
    about = [note for note in done.notes if strike.nic in (note.nic, note.far) and note.at >= struck[0].at]
    told = {note.kind for note in about}
    match strike.kind:
        case "pause":
            assert done.seconds > strike.amount, f"{strike}: nobody was paused"
            assert "lost" not in told, f"{strike}: a rank that lives was left"
        case "slow":
            if not sum(note.nbytes for note in about if note.kind == "slowed"):
                raise InconclusiveError(f"inconclusive: {strike}: nothing left by it since")
        case "no acks":
            pass  # they come by any wire, so that nobody misses these
        case _:
            held = sum(note.held for note in about)
            if not held and not told & {"nic down", "lost", "moved"}:
                raise InconclusiveError(f"inconclusive: {strike} met nothing")


def play(scene: Scene, job_of: Callable[[Scene, Sequence[str]], Job] = job) -> int:
    """Returns how many strikes have hit. `job_of` : of a scene whose NICs of these names are lost."""
    hit, lost = 0, list[str]()
    with Session(job_of(scene, lost), stall_s=STALL_S) as ranks:
        for number, (strike, renews) in enumerate(zip(scene.strikes, scene.renews, strict=True)):
            if ends(scene.strikes[: number + 1], scene.nics):
                return hit + ended(ranks, strike)
            try:
                check(strike, ranks.run("it", [strike]))
                hit += 1
            except InconclusiveError:
                pass
            if strike.kind in LASTING:
                lost.append(strike.nic)
            if renews:
                ranks.adopt(job_of(scene, lost))
            assert all(ranks.run("it").exact), f"{strike}: wrong results after it"
    return hit


def ended(ranks: Session, strike: Strike) -> bool:
    """Whether the run has ended for this strike. Where it does, every rank that lives says the same."""
    failed: RankFailedError | None = None
    for _ in range(TRIES):
        try:
            done = ranks.run("it", [strike])
        except RankFailedError as error:
            failed = error
            break
        assert all(done.exact), f"{strike}: a wrong result"
    if failed:
        assert set(failed.seen_by.values()) == {str(failed)}, f"{strike}: {failed.seen_by}"
    return failed is not None


SHAPES = [(ranks, nics) for ranks in (2, 3, 4, 8) for nics in (1, 2, 3)]
SHORT = [(2, 1), (3, 2), (4, 3), (8, 2)]


def hits(seed: int, shape: tuple[int, int], kinds: Sequence[str]) -> int:
    """How many strikes of these kinds have hit; nothing was wrong."""
    found = 0
    for scene in scenes(seed, *shape, kinds):
        try:
            found += play(scene)
        except Exception as error:
            raise AssertionError(f"{scene}: {type(error).__name__}: {error}") from error
    return found


@pytest.mark.parametrize("shape", SHORT, ids=str)
def test_strikes_at_random_moments(shape: tuple[int, int], request: pytest.FixtureRequest) -> None:
    """Every kind, at one of these clusters or another."""
    seed = int(request.config.getoption("--hypothesis-seed"))
    assert hits(seed, shape, kinds_of(seed, 4 * SHORT.index(shape), 4)) >= 2


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_hundred_strikes_at_random_moments(shape: tuple[int, int], request: pytest.FixtureRequest) -> None:
    """17 for each cluster with --whole, else an eighth of them."""
    seed, count = int(request.config.getoption("--hypothesis-seed")), cases(17)
    assert hits(seed, shape, kinds_of(seed, count * SHAPES.index(shape), count)) >= count * 3 // 5


# --- what would show -------------------------------------------------------------------------------------------------


def test_a_result_that_is_wrong_and_a_strike_that_met_nothing_are_noticed() -> None:
    scene = Scene(2, 2, (strike := Strike("cut", "server1/nic0", 0.3),), (False,))
    with Session(job(scene), stall_s=STALL_S) as ranks:
        whole = ranks.run("it")
        with pytest.raises(InconclusiveError, match="came too late"):
            check(strike, whole)
        done = ranks.run("it", [strike])
    check(strike, done)
    with pytest.raises(AssertionError, match="a wrong result"):
        check(strike, replace(done, exact=(True, False)))
    alone = [note for note in done.notes if note.kind == "struck"]
    with pytest.raises(InconclusiveError, match="met nothing"):
        check(strike, replace(done, ran=(replace(done.ran[0], notes=alone), replace(done.ran[1], notes=[]))))
    for kind, amount, error, says in (
        ("slow", 0.5, InconclusiveError, "nothing left by it"),
        ("pause", 99.0, AssertionError, "nobody was paused"),
    ):
        only = replace(done, ran=(replace(done.ran[0], notes=[replace(alone[0], cause=kind)]),))
        with pytest.raises(error, match=says):
            check(Strike(kind, "server1/nic0", 0.3, amount), only)


def test_a_run_that_goes_on_is_no_end() -> None:
    scene = Scene(2, 2, (), ())
    with Session(job(scene), stall_s=STALL_S) as ranks:
        assert not ended(ranks, Strike("slow", "server1/nic0", 0.3, 0.9))


def test_all_kinds_and_moments_are_drawn() -> None:
    assert {*kinds_of(7, 0, 20)} == {*KINDS}
    drawn = [scene for shape in SHAPES for scene in scenes(7, *shape, kinds_of(7, 17 * SHAPES.index(shape), 17))]
    assert sum(len(scene.strikes) for scene in drawn) == 204
    assert {renews for scene in drawn for renews in scene.renews} == {True, False}
