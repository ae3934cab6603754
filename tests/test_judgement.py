"""Who has failed and who goes on, decided without clock, socket or thread: whole jobs, played from seeds, in which
ranks stop, die, leave or call differently, and connections end. Where a property does not hold, that is noticed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from optcc.runtime.control.judgement import Hub, JoinGroup, Missed, go_on
from optcc.runtime.messages import Gone, Joined, Late, Regroup, RunFailed, Shrink
from tests.control_world import LIMIT_S, World
from tests.effort import cases


def play(seeds: range, **but: Any) -> str:
    """What was wrong with the first one that is; `but` : as of `World`."""
    for seed in seeds:
        if wrong := World(seed, **but).run():
            return f"seed {seed} (python -m tests.control_world {seed}): {'; '.join(wrong)}"
    return ""


def test_jobs_in_which_much_fails() -> None:
    """Always the same ones; `python -m tests.control_world FIRST LAST` plays others."""
    assert play(range(cases(10_000))) == ""


def test_a_seed_gives_the_same_again() -> None:
    logs = [World(3) for _ in range(2)]
    for world in logs:
        world.run()
    assert logs[0].log == logs[1].log
    assert logs[0].log != []


def test_what_is_played_is_not_in_vain() -> None:
    """In 150 jobs hubs die, others follow them, and groups are begun that come to nothing."""
    logs = []
    for seed in range(150):
        world = World(seed)
        world.run()
        logs.append("\n".join(world.log))
    for what, count in {"which says RunFailed": 15, "is to join": 45, "dies": 45, "is silent": 3, "is cut": 3}.items():
        assert sum(what in log for log in logs) >= count, what


@pytest.mark.parametrize(("hasty", "group"), [(3, [0, 1, 2]), (1, [0, 1])])
def test_who_was_named_does_not_hurry_the_others(hasty: int, group: list[int]) -> None:
    """Rank 3 has failed, rank 2 comes after 30 s, and the others have a minute; but one of them has 2 s."""
    said: list[Any] = []
    hub = Hub(range(4), lambda numbers, message: said.append(message), LIMIT_S)
    for number in range(4):
        hub.take(number, Joined(), 0.0)
    hub.fail(3, "it is lost")
    for number in (3, 0, 1):
        hub.take(number, Shrink(2.0 if number == hasty else 60.0, []), 1.0)
    for now in range(2, 30):
        hub.look(now)
    hub.take(2, Shrink(60.0, []), 30.0)
    assert next(message for message in said if isinstance(message, Regroup)) == Regroup(group, [])


def hub_of(world: int, **how: Any) -> tuple[Hub, list[tuple[list[int], Any]]]:
    """A hub, and what it says to whom."""
    said = list[tuple[list[int], Any]]()
    return Hub(range(world), lambda numbers, message: said.append(([*numbers], message)), LIMIT_S, **how), said


def test_a_hub_is_there_for_who_has_heard_nothing() -> None:
    """Rank 1 dies before rank 2 has come; the others leave."""
    hub, said = hub_of(3)
    for number in (0, 1):
        hub.take(number, Joined(), 0.0)
    hub.take(1, Gone(), 1.0)
    hub.take(0, Gone(), 1.0)
    assert not hub.over
    hub.take(2, Joined(), 2.0)
    assert [message for to, message in said if to == [2]] == [RunFailed(1, Gone().cause)]
    hub.take(2, Gone(), 3.0)
    assert hub.over


def test_a_hub_waits_for_nobody_who_does_not_live() -> None:
    hub, _ = hub_of(3)
    hub.take(0, Joined(), 0.0)
    hub.dead(1, 1.0)
    hub.take(0, Gone(), 1.0)
    assert not hub.over
    hub.dead(2, 2.0)
    assert hub.over


def test_a_hub_that_follows_does_not_wait_for_its_own_rank() -> None:
    """That closes, and so never comes to it."""
    hub, _ = hub_of(3, mine=1, verdict=RunFailed(0, Gone().cause))
    hub.dead(0, 1.0)
    hub.dead(2, 1.0)
    assert not hub.over
    hub.leaves(2.0)
    assert hub.over


# --- mutants: each breaks a property, which is noticed --------------------------------------------------------------


class TwoVerdicts(Hub):
    """The first one to be told hears something else."""

    def fail(self, rank: int, cause: str) -> None:
        self.say(self.numbers[-1:], RunFailed(rank, f"{cause}, so they say"))
        super().fail(rank, cause)


class TellsTheLowestLast(Hub):
    """Who does not know what the others do where it ends in the middle."""

    def fail(self, rank: int, cause: str) -> None:
        self.failed = RunFailed(rank, cause)
        self._out = {self.numbers[rank]}
        self.say(self.numbers[::-1], self.failed)


class BlamesTheNext(Hub):
    def fail(self, rank: int, cause: str) -> None:
        super().fail((rank + 1) % len(self.numbers), cause)


class BlamesTheAccuser(Hub):
    """Who says that another one is late."""

    def _heard(self, rank: int, message: Any, now: float) -> None:
        super()._heard(rank, replace(message, peer=rank) if isinstance(message, Late) else message, now)

    def _latest(self, now: float) -> tuple[int, str] | None:
        found = super()._latest(now)
        return (self._late.peer or 0, "late") if found and self._late else found


class WaitsForNobody(Hub):
    def _wants(self, number: int, message: Shrink, now: float) -> None:
        super()._wants(number, replace(message, within_s=0.0), now)


class ForgetsWhoIsAway(Hub):
    """Whoever is not connected is taken to be dead."""

    def take(self, number: int, message: Any, now: float) -> None:
        super().take(number, message, now)
        if isinstance(message, Gone):
            self.dead(number, now)


class WaitsForTheDead(Hub):
    def dead(self, number: int, now: float) -> None:
        pass


Way = Generator[Any, Any, list[int]]


def asks_nobody(me: int, numbers: Sequence[int], hub: int) -> Generator[Any, Any, None]:
    """Whose hub has ended."""
    yield from ()


def own_group(me: int, numbers: Sequence[int], hub: int, failed: int) -> Way:
    """Every rank goes on alone."""
    yield JoinGroup([me])
    return [me]


def between(change: Callable[[Any, Any], Any]) -> Callable[..., Way]:
    """A way on which answers are changed, given the step and the answer."""

    def way(me: int, numbers: Sequence[int], hub: int, failed: int) -> Way:
        steps, answer = go_on(me, numbers, hub, failed), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return list(end.value)
            answer = change(step, (yield step))

    return way


gives_up = between(lambda step, answer: Missed.LATE if answer == Missed.LOST else answer)
"""When its connection with a hub that brings the others together ends."""

does_not_begin_again = between(lambda step, answer: None if isinstance(step, JoinGroup) else answer)
"""When somebody dies while the group is made: it takes it as it is."""

MUTANTS: dict[str, tuple[dict[str, Any], str, int]] = {
    "two verdicts": ({"hub_class": TwoVerdicts}, "told different things", 0),
    "tells the lowest last": ({"hub_class": TellsTheLowestLast}, "told different things", 1200),
    "asks nobody": ({"hear": asks_nobody}, "told different things", 1200),
    "blames the next": ({"hub_class": BlamesTheNext}, "healthy rank", 0),
    "blames the accuser": ({"hub_class": BlamesTheAccuser}, "healthy rank", 100),
    "waits for nobody": ({"hub_class": WaitsForNobody}, "left behind", 0),
    "waits for the dead": ({"hub_class": WaitsForTheDead}, "left behind", 0),
    "forgets who is away": ({"hub_class": ForgetsWhoIsAway}, "two groups at work", 600),
    "a group of its own": ({"way": own_group}, "two groups at work", 0),
    "gives up": ({"way": gives_up}, "left behind", 0),
    "does not begin again": ({"way": does_not_begin_again}, "", 0),
    "has twice the time": ({"limit_s": 2 * LIMIT_S}, "in shrink", 600),
}
"""What is mutated, what that does, and a seed near one that shows it."""


@pytest.mark.parametrize(("but", "words", "first"), MUTANTS.values(), ids=MUTANTS)
def test_mutants_are_noticed(but: dict[str, Any], words: str, first: int) -> None:
    assert any(words in wrong for seed in range(first, first + 2000) for wrong in World(seed, **but).run())
