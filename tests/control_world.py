"""The control plane of a whole job in virtual time, from a seed: `judgement.Hub` and `judgement.go_on`, between them
processes that stop, die, leave or call differently, and connections that end or fall silent.

    python -m tests.control_world SEED [SEED]   what happened and what was wrong; from a seed to another one: the latter

Ranks call operations; an operation is over once all of the group have called it. What a rank does about a verdict is
`go_on`; what it does until it has one is modelled after `member.verdict`.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from optcc.errors import InputError
from optcc.runtime.control import judgement
from optcc.runtime.control.judgement import (
    GRACE_S,
    HUB,
    AskHub,
    CallHub,
    Hub,
    JoinGroup,
    Missed,
    OpenHub,
    ShutDoor,
    has_closed,
)
from optcc.runtime.messages import (
    CLOSE,
    AskCall,
    Broken,
    Gone,
    Halt,
    Halted,
    HasCalled,
    Joined,
    Late,
    Left,
    Regroup,
    RunFailed,
    Share,
    SharedValues,
    Shrink,
)

LIMIT_S, FAREWELL_S, IDLE_S = 60.0, 3.0, 0.25
"""As `timeout_s`."""
SILENCE_S = 15.0
JUDGING_S = 10 * GRACE_S
LOOK_S, RETRY_S = 0.1, 0.01
LATENCY_S = 0.005
OPERATIONS = 8

GONE, SILENT = "gone", "does not answer"
"""What a rank says itself: the hub is, or does."""

Wait = Generator[float, None, Any]
"""Yields until when it waits for what may come."""


class Told(Exception):  # noqa: N818 - a verdict is no error of this file
    """number : as `failed` of `go_on`; rank, cause : the verdict"""

    def __init__(self, number: int, rank: int, cause: str) -> None:
        super().__init__(f"rank {rank} failed: {cause}")
        self.number, self.verdict = number, (rank, cause)


@dataclass(eq=False)
class Line:
    """A connection from a rank to a hub. Messages of a direction keep their order."""

    rank: Rank
    far: Rank
    last: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    ended: bool = False
    silent: bool = False
    served: bool = False


class Rank:
    """A process: a rank's program, and a hub where it has one."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.group = world, number, [*range(world.size)]
        self.alive, self.stopped_until, self.left = True, 0.0, False
        self.faulty, self.stopped, self.cut_off = "", False, False
        self.dies_at_message = -1
        self.shut = False
        self.hub: Hub | None = None
        self.lines: dict[int, Line] = {}  # at the hub, by number
        self.queue: list[Line] = []  # before there is a hub
        self.line: Line | None = None  # to the hub
        self.at = 0  # whose it is
        self.inbox: list[Any] = []
        self.operation, self.asked, self.turn = 0, 0, 0
        self.called: dict[int, str] = {}
        self.failed: Told | None = None
        self.verdict = RunFailed(0, GONE)  # what its hub says, where it has one in the other's place
        self.goes_on = False  # as `Control` has it
        self.made = True  # the group is
        self.odd = -1  # the operation at which it calls something else
        self.leaves = -1  # the operation before which it leaves
        self.end, self.worked = "", list[int]()
        self.program = self.run()
        self.wake = 0.0

    # --- the process ---------------------------------------------------------------------------------------------

    @property
    def listens(self) -> bool:
        """Whether one that connects is not refused."""
        return self.alive and not (self.shut and not self.hub)

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Unless it is dead by then; when it goes on, where it is stopped."""

        def then() -> None:
            if self.alive and self.world.now < self.stopped_until:
                self.world.after(self.stopped_until - self.world.now, then)
            elif self.alive:
                what()

        self.world.after(delay_s, then)

    def resume(self) -> None:
        """The program, up to its next wait."""
        if not self.end:
            try:
                self.wake = wake = next(self.program)
            except StopIteration:
                return
            if wake < float("inf"):
                self.later(max(0.0, wake - self.world.now), lambda: self.resume() if self.wake == wake else None)

    def came(self, what: Any) -> None:
        self.inbox.append(what)
        self.resume()

    def die(self) -> None:
        if not self.alive:
            return
        self.world.note(self, "dies")
        self.alive, self.faulty = False, self.faulty or "died"
        for line in self.world.lines:
            if self in (line.rank, line.far):
                self.world.end(line, by=self)

    def stop(self, duration_s: float) -> None:
        self.world.note(self, f"is stopped for {duration_s:.1f} s")
        self.stopped_until = max(self.stopped_until, self.world.now + duration_s)
        if duration_s > LIMIT_S / 2:
            self.faulty, self.stopped = self.faulty or "stopped", True

    # --- the hub -------------------------------------------------------------------------------------------------

    def serve(self, numbers: list[int], verdict: RunFailed | None) -> None:
        if self.hub or self.shut:
            return
        self.world.note(self, f"has the hub of {numbers}, which says {verdict}")
        come_by = float("inf") if verdict else LIMIT_S
        self.hub = self.world.hub_class(numbers, self.say, come_by, mine=self.number, verdict=verdict)
        for line in self.queue:
            self.let_in(line)
        self.queue.clear()
        self.tick()

    def tick(self) -> None:
        hub, now = self.hub, self.world.now
        if not hub:
            return
        hub.look(now)
        if hub.over:
            self.close_hub()
            return
        if hub.failed:
            for number in sorted(hub.awaited):
                if not self.world.ranks[number].listens:
                    hub.dead(number, now)
        if not self.world.over:
            self.later(LOOK_S, self.tick)

    def let_in(self, line: Line) -> None:
        number = line.rank.number
        if line.ended:
            return
        if number in self.lines:
            self.world.end(line, by=self)
            return
        if not self.hub:
            self.world.end(line, by=self)
            return
        line.served, self.lines[number] = True, line
        self.world.post(line, up=False, message="welcome")
        self.hub.take(number, Joined(), self.world.now)

    def hear(self, line: Line, message: Any) -> None:
        """At the hub."""
        number = line.rank.number
        if self.hub is None or self.lines.get(number) is not line:
            return
        if isinstance(message, Gone):
            del self.lines[number]
        self.hub.take(number, message, self.world.now)

    def say(self, numbers: Iterable[int], message: Any) -> None:
        for number in list(numbers):
            if number in self.lines:
                self.world.post(self.lines[number], up=False, message=message)

    # --- the rank ------------------------------------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        self.goes_on = self.goes_on or isinstance(message, Shrink)
        if self.line and not (self.goes_on and not isinstance(message, Shrink)):
            self.world.post(self.line, up=True, message=message)

    def wait(self, until: float) -> Wait:
        """The next thing that comes, or None at that time; what is answered at once is."""
        while True:
            while self.inbox:
                what = self.inbox.pop(0)
                match what:
                    case (Line() as line, message):
                        if line is not self.line:
                            continue
                        match message:
                            case Halt():
                                self.tell(Halted(self.operation))
                            case AskCall(operation):
                                self.asked = max(self.asked, operation)
                                if operation in self.called:
                                    self.tell(HasCalled(operation, self.called[operation]))
                            case _:
                                return message
                    case _:
                        return what
            if self.world.now >= until:
                return None
            yield until

    def listen(self, until: float, wanted: Callable[[Any], bool] = lambda what: False) -> Wait:
        """What is wanted, or None; a verdict is raised."""
        while True:
            what = yield from self.wait(until)
            match what:
                case RunFailed():
                    raise self.told(what)
                case Gone():
                    raise (yield from self.asks())
                case None:
                    return None
            if wanted(what):
                return what

    def judged(self, until: float, wanted: Callable[[Any], bool]) -> Wait:
        """As `member.verdict` has it."""
        what = yield from self.listen(until, lambda what: wanted(what) or isinstance(what, tuple))
        if what is not None and wanted(what):
            return what
        match what:
            case ("differs", peer):
                self.tell(HasCalled(self.operation, self.called[self.operation]))
                yield from self.listen(self.world.now + LIMIT_S)
                self.tell(Late(peer, "calls differ"))
                wait_s = JUDGING_S
            case ("lost", peer):
                self.tell(Broken("lost it", peer))
                wait_s = JUDGING_S + LIMIT_S
            case _:
                self.tell(Late(self.world.missing(self), "late"))
                wait_s = JUDGING_S
        yield from self.listen(self.world.now + wait_s)
        raise Told(self.group[0], 0, SILENT)

    def exchange(self, until: float) -> Wait:
        self.turn = turn = self.turn + 1
        self.tell(Share(turn, self.number))
        values = yield from self.judged(until, lambda what: isinstance(what, SharedValues) and what.turn == turn)
        assert values.values == self.group

    def call(self, call: str) -> Wait:
        self.operation += 1
        self.called[self.operation] = call
        if self.operation <= self.asked:
            self.tell(HasCalled(self.operation, call))
        done = self.world.called(self, call)
        yield from self.judged(self.world.now + LIMIT_S, lambda what: what == done)

    def work(self, duration_s: float) -> Wait:
        """Between calls; a verdict that comes is kept."""
        end = self.world.now + duration_s
        try:
            yield from self.listen(end)
        except Told as told:
            self.failed = told
            while self.world.now < end:
                yield end

    def told(self, said: RunFailed) -> Told:
        return Told(HUB if said.cause == GONE else self.group[said.rank], said.rank, said.cause)

    def rest(self, duration_s: float) -> Wait:
        """After a verdict; as `Ties.tend`."""
        end = self.world.now + duration_s
        while self.world.now < end:
            what = yield from self.wait(end if self.at != HUB else min(end, self.world.now + IDLE_S))
            self.at = HUB if isinstance(what, Gone) else self.at
            lower = (self.world.ranks[number] for number in self.group if number < self.number)
            if self.at == HUB and not any(rank.listens for rank in lower):
                self.serve(self.group, self.verdict)

    def run(self) -> Wait:
        while True:
            try:
                if self.failed:
                    raise self.failed
                while self.operation < OPERATIONS:
                    yield from self.work(
                        self.world.draw.random() * self.world.draw.choice((0.01, 0.01, 1.0, 1.0, LIMIT_S / 3))
                    )
                    if self.failed:
                        raise self.failed
                    if self.operation == self.leaves:
                        break
                    odd = self.operation + 1 == self.odd and len(self.group) == self.world.size
                    yield from self.call("odd" if odd else "even")
                break
            except Told as failed:
                self.verdict = RunFailed(*failed.verdict)
                self.world.told(self, failed)
                yield from self.rest(self.world.draw.random() * self.world.draw.choice((0.0, 0.1, 1.0, LIMIT_S / 6)))
                start = self.world.now
                self.stops_at = self.stopped_until
                try:
                    yield from self.shrink(failed)
                except InputError as error:
                    self.finish(str(error))
                    return
                finally:
                    self.world.shrunk(self, start)
        self.left = True
        try:
            self.operation += 1
            self.called[self.operation] = CLOSE
            self.tell(HasCalled(self.operation, CLOSE))
            if self.world.draw.random() < 0.5:  # it has wires to part from
                yield from self.exchange(self.world.now + LIMIT_S)
            self.tell(Left())
        except Told:
            pass
        self.finish("has finished")

    def finish(self, how: str) -> None:
        self.world.note(self, f"ends: {how}")
        self.end, self.shut = how, True
        if self.line:
            self.world.end(self.line, by=self)
        for line in self.queue:
            self.world.end(line, by=self)
        self.later(FAREWELL_S, self.close_hub)

    def close_hub(self) -> None:
        """As `Overseer.leave`."""
        if self.hub and not self.hub.failed and self.hub.staying:
            self.hub.fail(0, has_closed(0))
        self.hub, self.shut = None, True
        for line in self.lines.values():
            self.world.end(line, by=self)

    def shrink(self, failed: Told) -> Wait:
        end = self.world.now + self.world.limit_s
        steps = self.world.way(self.number, self.group, self.at if failed.number != HUB else HUB, failed.number)
        answer: Any = None
        while True:
            try:
                step, answer = steps.send(answer), None
            except StopIteration:
                return
            match step:
                case ShutDoor():
                    self.shut = True
                    for line in self.queue:
                        self.world.end(line, by=self)
                case OpenHub(numbers):
                    self.serve(numbers, self.verdict)
                case CallHub(number, without):
                    answer = yield from self.call_hub(number, without, end)
                case JoinGroup(numbers):
                    answer = yield from self.join(numbers, end)

    def asks(self) -> Wait:
        """As `Ties.hear`."""
        hub, self.at, end = self.at, HUB, self.world.now + LIMIT_S
        gone = RunFailed(self.group.index(hub) if hub in self.group else 0, GONE)
        if not self.made:
            return self.told(gone)
        steps, answer = self.world.hear(self.number, self.group, hub), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as heard:
                return self.told(heard.value or gone)
            if isinstance(step, AskHub):
                answer = yield from self.ask(step.number, end)
            else:
                self.serve(step.numbers, gone)

    def ask(self, number: int, end: float) -> Wait:
        self.line = self.line if self.at == number else self.world.connect(self, number)
        if not self.line:
            return Missed.GONE
        while True:
            match (yield from self.wait(end)):
                case "welcome":
                    self.at = number
                case RunFailed() as said:
                    return said
                case Gone():
                    self.at = HUB
                    yield from self.wait(self.world.now + RETRY_S)
                    return Missed.LOST if self.world.now < end else Missed.LATE
                case None:
                    self.at = HUB
                    return Missed.LATE

    def call_hub(self, number: int, without: list[int], end: float) -> Wait:
        world = self.world
        if self.at != number:
            self.at = HUB
            if self.line:
                world.end(self.line, by=self)
            self.line = world.connect(self, number)
            if self.line is None:
                return Missed.GONE
            while (what := (yield from self.wait(end))) != "welcome":
                if what is None:
                    return Missed.LATE
                if isinstance(what, Gone):
                    yield from self.wait(world.now + RETRY_S)
                    return Missed.LOST if world.now < end else Missed.LATE
            self.at = number
        left = max(GRACE_S, end - world.now)
        self.tell(Shrink(left, without))
        latest = world.now + left + GRACE_S
        while True:
            what = yield from self.wait(latest)
            match what:
                case Regroup():
                    return what
                case None:
                    return Missed.LATE
                case Gone():
                    self.at = HUB
                    yield from self.wait(world.now + RETRY_S)
                    return Missed.LOST if world.now < end else Missed.LATE

    def join(self, numbers: list[int], end: float) -> Wait:
        self.world.note(self, f"is to join {numbers}")
        self.group, self.failed, self.goes_on, self.made = [*numbers], None, False, False
        self.operation, self.asked, self.turn, self.called = 0, 0, 0, {}
        try:
            if len(numbers) > 1:
                for _ in range(2):
                    yield from self.exchange(max(end, self.world.now + GRACE_S))
        except Told as failed:
            self.verdict = RunFailed(*failed.verdict)
            return failed.number
        self.made = True
        self.world.note(self, f"has joined {numbers}")
        return None


class World:
    """A job of a seed. hub_class, hear, way, limit_s : `judgement.Hub`, `hear` and `go_on` of it, and how long a rank
    takes for the latter, or what tests have in their place"""

    def __init__(
        self, seed: int, hub_class: type[Hub] = Hub, hear: Any = None, way: Any = None, limit_s: float = LIMIT_S
    ) -> None:
        self.limit_s, self.hear = limit_s, hear or judgement.hear
        self.draw, self.now, self.over = random.Random(seed), 0.0, False
        self.hub_class, self.way = hub_class, way or judgement.go_on
        self.size = self.draw.choice((2, 3, 4, 5))
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.lines: list[Line] = []
        self.calls: dict[tuple[Any, ...], dict[int, str]] = {}
        self.verdicts: dict[tuple[int, ...], list[tuple[Rank, Told]]] = {}
        self.wrong: list[str] = []
        self.log: list[str] = []
        self.ranks = [Rank(self, number) for number in range(self.size)]
        self.ranks[0].serve([*range(self.size)], None)
        for rank in self.ranks:
            rank.line = self.connect(rank, 0)
            rank.later(0.1, rank.resume)
        self.faults()

    def faults(self) -> None:
        draw = self.draw
        start = 0.2 + 3 * draw.random()  # when ranks call; that they come together is tested elsewhere
        for _ in range(draw.choice((0, 1, 1, 2, 2, 2, 3))):
            rank = self.ranks[0] if draw.random() < 0.4 else draw.choice(self.ranks)
            at = start + draw.random() * draw.choice((0.02, 0.2, 2.0))
            match draw.choice(("die", "die", "die", "message", "message", "stop", "leave", "odd", "cut", "silent")):
                case "die":
                    self.after(at, rank.die)
                case "message":  # the nth one that it sends, from then on
                    count = draw.randrange(1, 12)
                    self.after(at, lambda rank=rank, count=count: setattr(rank, "dies_at_message", count))
                case "stop":
                    duration = LIMIT_S * draw.choice((0.01, 0.4, 2.0)) * draw.random()
                    self.after(at, lambda rank=rank, duration=duration: rank.stop(duration))
                case "leave":
                    rank.leaves = draw.randrange(OPERATIONS)
                case "odd" if self.size > 2 and all(other.odd < 0 for other in self.ranks):
                    rank.odd, rank.faulty = draw.randrange(1, OPERATIONS + 1), "odd"
                case "cut" | "silent" as how if rank.number:
                    self.after(at, lambda rank=rank, how=how: self.harm(rank, how))

    def harm(self, rank: Rank, how: str) -> None:
        line = rank.line
        if line and not line.ended and line.far is not rank and rank.alive and not rank.end:
            self.note(rank, f"its connection is {how}")
            rank.faulty, rank.cut_off = rank.faulty or how, True
            line.silent = True
            self.after(SILENCE_S if how == "silent" else 0.0, lambda: self.end(line, by=None))

    # --- time and messages ---------------------------------------------------------------------------------------

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay_s, self.count, what))

    def note(self, rank: Rank, text: str) -> None:
        self.log.append(f"{self.now:9.4f} rank {rank.number} {text}")

    def _deliver(self, line: Line, up: bool, message: Any) -> None:
        at = line.last[up] = max(line.last[up], self.now + LATENCY_S * self.draw.random())
        to = line.far if up else line.rank

        def then() -> None:
            if up:
                line.far.hear(line, message)
            elif not line.rank.end:
                line.rank.came((line, message))

        to.later(at - self.now, then)

    def post(self, line: Line, up: bool, message: Any) -> None:
        by = line.rank if up else line.far
        if by.dies_at_message == 0:
            by.die()
        by.dies_at_message -= 1
        if by.alive and not line.ended and not line.silent:
            self._deliver(line, up, message)

    def end(self, line: Line, by: Rank | None) -> None:
        """`by` : who has closed it; None: it is reset"""
        if not line.ended:
            line.ended = True
            own = line.rank is line.far  # with the hub in the same process
            if own or by is not line.far:
                self._deliver(line, True, Gone())
            if own or by is not line.rank:
                self._deliver(line, False, Gone())

    def connect(self, rank: Rank, number: int) -> Line | None:
        far = self.ranks[number]
        if not far.listens:
            return None
        line = Line(rank, far)
        self.lines.append(line)
        if far.hub:
            far.later(LATENCY_S * self.draw.random(), lambda: far.let_in(line))
        else:
            far.queue.append(line)
        return line

    # --- calls ---------------------------------------------------------------------------------------------------

    def called(self, rank: Rank, call: str) -> Any:
        """The data's way: who waits hears that all have called, that one has called something else, or is lost."""
        key = (tuple(rank.group), rank.operation)
        calls = self.calls.setdefault(key, {})
        calls[rank.number] = call
        done = ("done", key)
        if len(calls) == len(rank.group) and len(set(calls.values())) == 1:
            self.worked(rank.group)
            for number in rank.group:
                self.tell_data(self.ranks[number], done, key)
        for number, other in calls.items():
            if other != call:
                self.tell_data(self.ranks[number], ("differs", rank.group.index(rank.number)), key)
                self.tell_data(rank, ("differs", rank.group.index(number)), key)
        for number in rank.group:
            if not self.ranks[number].alive and number not in calls and self.draw.random() < 0.5:
                self.tell_data(rank, ("lost", rank.group.index(number)), key)
        return done

    def worked(self, group: list[int]) -> None:
        """A group has: no rank that works in another one may live."""
        for rank in self.ranks:
            if rank.alive and not rank.end and rank.number not in group and not {*rank.worked} & {*group}:
                self.wrong.append(f"two groups at work: {rank.worked}, {group}") if rank.worked else None
        for number in group:
            self.ranks[number].worked = group

    def missing(self, rank: Rank) -> int | None:
        """For whom it waits in a call."""
        calls = self.calls.get((tuple(rank.group), rank.operation), {})
        return next((place for place, number in enumerate(rank.group) if number not in calls), None)

    def tell_data(self, rank: Rank, what: Any, key: tuple[Any, ...]) -> None:
        def then() -> None:
            if (tuple(rank.group), rank.operation) == key and not rank.end:
                rank.came(what)

        rank.later(LATENCY_S * self.draw.random(), then)

    # --- what must hold ------------------------------------------------------------------------------------------

    def told(self, rank: Rank, failed: Told) -> None:
        self.note(rank, f"is told of {rank.group}: {failed}")
        self.verdicts.setdefault(tuple(rank.group), []).append((rank, failed))
        named = self.ranks[rank.group[failed.verdict[0]]]
        late = any(other.stopped and other.hub for other in self.ranks)  # who gives up on it hangs up
        late |= f"rank {failed.verdict[0]}: even" in failed.verdict[1]  # of two calls, which are told, one is first
        if not (named.faulty or named.left or named.end or late):
            self.wrong.append(f"healthy rank {named.number} is named to rank {rank.number}: {failed}")

    def shrunk(self, rank: Rank, start: float) -> None:
        took = self.now - max(start, rank.stopped_until if rank.stopped_until > start else start)
        stopped = any(other.stopped and other.hub for other in self.ranks)
        # An answer may be under way at the end; a hub that was stopped may go on then, and the others begin again.
        if took > LIMIT_S + (5 if stopped else 2) * GRACE_S:
            self.wrong.append(f"rank {rank.number} has waited {took:.1f} s in shrink")

    def run(self) -> list[str]:
        """Up to the end; what was wrong."""
        while self.events and not self.over:
            self.now, _, what = heapq.heappop(self.events)
            what()
            self.over = all(rank.end or not rank.alive for rank in self.ranks)
            if self.now > 100 * LIMIT_S:
                self.wrong.append(f"ranks {[r.number for r in self.ranks if r.alive and not r.end]} are stuck")
                break
        self.check()
        return list(dict.fromkeys(self.wrong))

    def check(self) -> None:
        for group, said in self.verdicts.items():
            heard = {failed.verdict for rank, failed in said if failed.verdict[1] != SILENT and not rank.cut_off}
            # Who was cut off before the hub ended cannot know what that said, and may be who tells others.
            heard -= {failed.verdict for rank, failed in said if failed.number == HUB and rank.cut_off}
            if len(heard) > 1:
                self.wrong.append(f"ranks {group} are told different things: {heard}")
        for rank in self.ranks:
            goes_on = rank.end == "has finished" or rank.faulty or rank.left or not rank.alive
            if not goes_on and not any(other.stopped for other in self.ranks):
                self.wrong.append(f"rank {rank.number} is left behind: {rank.end}")


def main(*seeds: int) -> None:
    first, last = seeds[0], seeds[-1]
    bad = 0
    for seed in range(first, last + 1):
        world = World(seed)
        wrong = world.run()
        if len(seeds) == 1:
            print("\n".join(world.log))
        if wrong:
            bad += 1
            print(f"seed {seed}:", *wrong, sep="\n    ")
    print(f"{bad} of {last + 1 - first} seeds are wrong")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
