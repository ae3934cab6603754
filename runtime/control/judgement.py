"""What the control plane decides, without clock, socket or thread: who has failed, when plans change, who goes on.

`Hub` is told what ranks say and what time it is; what it says to them leaves by `say`. `hear` is a rank's way from the
end of its hub to the verdict, `go_on` from a verdict to the next group: they yield what is to be done, and are sent
what came of it. Real processes drive both
(`overseer`, `member`), and so does the simulation in `tests/test_judgement.py`.

Ranks are known by two numbers. A message counts by places in the group that is at work. Between groups, a rank is known
by its number: its place in the first group, before any was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from optcc.errors import InputError
from optcc.runtime.codec import Json, MessageError
from optcc.runtime.messages import (
    CLOSE,
    AskCall,
    Broken,
    FromRank,
    Gone,
    Halt,
    Halted,
    HasCalled,
    Joined,
    Late,
    Left,
    LostNics,
    Regroup,
    Renew,
    Report,
    RunFailed,
    Share,
    SharedValues,
    Shrink,
    ToRank,
)

GRACE_S = 1.0
"""The peers of a rank that dies and the hub notice it in any order, milliseconds apart. So long after the first
accusation does the hub look for evidence of its own, and hear other ranks, before it takes a peer's word."""


class Accusation(NamedTuple):
    """A rank has lost another one."""

    blamed: int
    cause: str


def most_accused(accusations: Mapping[int, Accusation]) -> tuple[int, str]:
    """(the rank to blame, how it was lost) from what ranks say, at least one; by accuser, the first to speak first.

    A rank whose own NICs swallow everything loses its peers, too, and may be the first to say so. So the word of a rank
    that others accuse counts for less: to blame is whom most ranks accuse that nobody accuses; of those with as many,
    whom most ranks accuse at all; of those again, who was accused first.
    """

    def weight(rank: int) -> tuple[int, int]:
        by = [accuser for accuser, said in accusations.items() if said.blamed == rank]
        return sum(accuser not in accused for accuser in by), len(by)

    accused = {said.blamed for said in accusations.values()}
    culprit = max(dict.fromkeys(said.blamed for said in accusations.values()), key=weight)  # of equals the first
    witnesses = [accuser for accuser, said in accusations.items() if said.blamed == culprit]
    witness = min(witnesses, key=lambda accuser: accuser in accused)
    return culprit, f"rank {witness} {accusations[witness].cause}"


OPERATIONS = 1024
"""Of so many the calls are kept, to be compared: more than ranks that wait for each other can be apart."""

MOST = 7
"""Calls are told beside the one that differs, at most."""


class Hub:
    """Ranks that command themselves have one in the middle: it says who failed, has plans renewed, brings together who
    is left.

    Each rank may say: a rank is lost (`Broken`), it leaves (`Left`), NICs are dead (`LostNics`), or what it has called
    (`HasCalled`), which all others are asked then. The first ends what the group does, on all ranks (`RunFailed`), and
    so do calls that differ. NICs: all ranks halt and say in which operation they are (`Halt`, `Halted`). When the last
    of these is over, they plan anew (`Renew`). So all change plans at the same point without a message in any
    operation. After a verdict those that are left say so (`Shrink`), and are a group again once all that are there have
    (`Regroup`): over the same connections, by new ranks.

    numbers : of the group, ascending
    say : to ranks, by their numbers
    come_by : when ranks that have not come are lost
    absence : says who has not come, of so many
    report : called with what ranks report, with None once all ranks are there, with the verdict
    mine : the rank in whose process this is; it makes no group without it, but ends
    verdict : on the group; given to a hub that takes the place of one that is gone: all it does at first is to tell it
        to who comes, and to bring the others together
    """

    def __init__(
        self,
        numbers: Sequence[int],
        say: Callable[[Iterable[int], ToRank], None],
        come_by: float,
        *,
        absence: Callable[[Collection[int]], str] = lambda missing: f"ranks {sorted(missing)} have not come",
        report: Callable[[tuple[int, Json] | RunFailed | None], None] = lambda news: None,
        mine: int = 0,
        verdict: RunFailed | None = None,
    ) -> None:
        self.say, self._come_by, self._mine, self._ended = say, come_by, mine, False
        self._absence, self._report = absence, report
        self.present: set[int] = set()
        """Numbers of ranks, in the group or not, that are connected."""
        self._behind: dict[int, RunFailed] = {}  # who was left out of a group -> the verdict before that
        self._begin(numbers, verdict)
        self.awaited, self._new = {*numbers}, {*numbers}

    def _begin(self, numbers: Sequence[int], verdict: RunFailed | None = None) -> None:
        """A group at work, or to be brought together."""
        self.numbers = sorted(numbers)
        """The group."""
        self.follows = verdict is not None
        """This hub has taken the place of another one, and has made no group yet."""
        self.failed = verdict
        """The verdict."""
        self.awaited = set[int]()
        """Those that have not come yet; after a verdict those whose connections have ended, though they may live."""
        self._new = set[int]()  # of these, who has never come, and so has heard nothing
        self._out = {self.numbers[verdict.rank]} & {self._mine} if verdict else set[int]()
        """Who does not go on after the verdict; one that is named has its hub say so alone."""
        self._wanting: dict[int, float] = {}  # who wants to go on -> until when it waits for the others
        # from here on by rank
        self._evidence: tuple[int, str] | None = None  # who has failed and how, by itself
        self._accusations: dict[int, Accusation] = {}  # by accuser, in the order in which they came
        self._accused_at = 0.0  # the first time
        self._left: set[int] = set()
        self._dead_nics: list[str] = []
        self._renewing = False
        self._halted: dict[int, int] = {}
        self._late: Late | None = None
        self._late_at = 0.0
        self._calls: dict[int, dict[int, str]] = {}  # operation -> rank -> what it has called
        self.differ: dict[int, dict[int, str]] = {}
        """Of these, the operations whose calls differ."""
        self._shares: dict[int, dict[int, Json]] = {}  # exchange -> rank -> its value

    @property
    def over(self) -> bool:
        """Whether nobody is there any more who needs it."""
        return self._ended or not (self.staying or (self.awaited if self.follows else self._new))

    def dead(self, number: int, now: float) -> None:
        """The process of one of `awaited` does not live."""
        if number in self.awaited and not self.failed:
            self._evidence = self._evidence or (self.numbers.index(number), Gone().cause)
        self.awaited.discard(number)
        self._new.discard(number)
        self.look(now)

    def leaves(self, now: float) -> None:
        """This process's own rank does. Where this hub has taken another one's place no connection says so."""
        if self.follows:
            self.dead(self._mine, now)

    @property
    def staying(self) -> set[int]:
        """Numbers of ranks of the group that are there and have not left."""
        return (self.present & {*self.numbers}) - {self.numbers[rank] for rank in self._left}

    @property
    def watches(self) -> bool:
        """Whether something may be due although nobody says anything."""
        return bool(self.awaited or self.failed or self._accusations or self._late)

    def take(self, number: int, message: FromRank | Joined | Gone, now: float) -> None:
        """What a rank has said, or what has become of its connection. MessageError for what it cannot have said."""
        self._new.discard(number)
        if isinstance(message, Gone):
            if number in self.staying and number != self._mine:
                self.awaited.add(number)
            self.present.discard(number)
            self._wanting.pop(number, None)
        else:
            self.present.add(number)
            if number in self.awaited:
                self.awaited.discard(number)
                if not self.awaited and not self.failed:
                    self._report(None)
        if isinstance(message, Shrink):
            self._wants(number, message, now)
        elif isinstance(message, Joined):
            if known := self.failed if number in self.numbers else self._behind.get(number):
                self.say([number], known)
        elif number in self.numbers and not self.follows:
            self._heard(self.numbers.index(number), message, now)
        self.look(now)

    def _heard(self, rank: int, message: FromRank | Joined | Gone, now: float) -> None:
        match message:
            case Broken(_, int(other)) | Late(int(other), _) if not 0 <= other < len(self.numbers):
                raise MessageError(f"of rank {other}, where there are {len(self.numbers)}")
            case Report(value):
                self._report((rank, value))
            case Gone() if rank in self._left:
                pass
            case Gone(cause) | Broken(cause, None):
                self._evidence = self._evidence or (rank, cause)
            case Broken(cause, int(blamed)):
                self._accused_at = self._accused_at if self._accusations else now
                self._accusations.setdefault(rank, Accusation(blamed, cause))
            case Left():
                self._left.add(rank)
            case LostNics(nics, back):
                news = [nic for nic in nics if nic not in self._dead_nics]
                self._dead_nics = [nic for nic in self._dead_nics if nic not in back] + news
                if (news or back) and not self._renewing:
                    self._renewing, self._halted = True, {}
                    self.say(self.numbers, Halt())
            case Share(turn, value):
                self._share(rank, turn, value)
            case Halted(operation):
                self._halted[rank] = operation
                if self._renewing and len(self._halted) == len(self.numbers):
                    self._renewing = False
                    self.say(self.numbers, Renew(max(self._halted.values()), list(self._dead_nics)))
            case Late() if self._late is None:
                self._late, self._late_at, self._halted = message, now, {}
                self.say(self.numbers, Halt())
            case HasCalled(operation, call):
                calls = self._calls.setdefault(operation, {})
                if not calls:
                    self.say(self.numbers, AskCall(operation))
                    for old in sorted(self._calls)[:-OPERATIONS]:
                        del self._calls[old]
                calls[rank] = call
                if len(set(calls.values())) > 1:
                    self.differ[operation] = calls

    def _share(self, rank: int, turn: int, value: Json) -> None:
        shares = self._shares.setdefault(turn, {})
        if rank in shares:
            raise MessageError(f"a second value in exchange {turn}")
        shares[rank] = value
        if len(shares) == len(self.numbers):
            del self._shares[turn]
            self.say(self.numbers, SharedValues(turn, [shares[each] for each in range(len(shares))]))

    def look(self, now: float) -> None:
        """What is due although nobody says anything."""
        found = None if self.failed else self._evidence or self._lost(now) or self._differing() or self._latest(now)
        if not self.failed and not found and self.awaited and now > self._come_by:
            found = self.numbers.index(min(self.awaited)), f"not there: {self._absence(self.awaited)}"
            self.awaited, self._new = set(), set()
        if found:
            self.fail(*found)
        if self.failed and self._wanting:
            self._regroup(now)

    # --- who has failed ----------------------------------------------------------------------------------------------

    def fail(self, rank: int, cause: str) -> None:
        """The verdict. Where this hub ends in the middle, who has not heard it is told by the lowest rank that lives
        (`hear`). So ranks hear it in their order, this process's own, which may end at that, last."""
        self.failed = RunFailed(rank, cause)
        self._out = {self.numbers[rank]}
        self._report(self.failed)
        self.say(sorted(self.numbers, key=lambda number: (number == self._mine, number)), self.failed)

    def _lost(self, now: float) -> tuple[int, str] | None:
        """By what others say, once all that notice it have had the time to say so."""
        return most_accused(self._accusations) if self._accusations and now >= self._accused_at + GRACE_S else None

    def _differing(self) -> tuple[int, str] | None:
        """Of ranks that called different things, who is to blame: who closed; else who called what the fewest did.

        That is known once most have called the same, or all have called. A rank in a long step is awaited until then,
        as in any call, so until the first of the others has waited too long.
        """
        if not self.differ:
            return None
        calls = self.differ[min(self.differ)]
        closed = [rank for rank, call in calls.items() if call == CLOSE]
        if closed:
            return min(closed), has_closed(min(closed))
        first = {call: rank for rank, call in sorted(calls.items(), reverse=True)}
        alike = Counter(calls.values())
        known = len(calls) == len(self.numbers) or 2 * max(alike.values()) > len(self.numbers)
        if not known and self._late is None:
            return None
        blamed, *others = sorted(first, key=lambda call: (alike[call], -first[call]))
        said = "; ".join(f"rank {first[call]}: {call}" for call in (blamed, *others[-MOST:]))
        return first[blamed], f"called something else than the others: {said}"

    def _latest(self, now: float) -> tuple[int, str] | None:
        """Of ranks that waited too long, who is to blame: one that says nothing, or is in an earlier operation."""
        if self._late is None or now < self._late_at + GRACE_S:
            return None
        silent = [rank for rank in range(len(self.numbers)) if rank not in self._halted]
        first = max(self._halted.values(), default=0)
        behind = [rank for rank, operation in self._halted.items() if operation < first]
        if silent:
            return silent[0], f"no sign of life; elsewhere: {self._late.cause}"
        if behind:
            return min(behind), f"has not come to operation {first}; elsewhere: {self._late.cause}"
        owing = {rank for shares in self._shares.values() for rank in range(len(self.numbers)) if rank not in shares}
        return min(owing, default=0) if self._late.peer is None else self._late.peer, self._late.cause

    # --- who goes on -------------------------------------------------------------------------------------------------

    def _wants(self, number: int, message: Shrink, now: float) -> None:
        if number in self.numbers:
            self._wanting[number] = now + message.within_s
            self._out |= {*message.without} if self.failed else set()
        elif not self.failed:  # too late
            self.say([number], Regroup(self.numbers, []))

    def _regroup(self, now: float) -> None:
        """Those that want to go on are a group, once all that live have said so, or long enough.

        Who lives and is not connected may be in a group with others: where these may be as many, nobody goes on here.
        (A hub that was stopped for longer than the limit finds all gone.)
        """
        there = (self.staying | self.awaited) - self._out
        self._ended = self._mine not in there
        going = sorted(self._wanting.keys() - self._out)
        few = len(self.awaited) >= len(going)
        until = min(self._wanting[number] for number in going or self._wanting)  # who is out hurries nobody
        if self._ended or ((few or not there <= self._wanting.keys()) and now < until):
            return
        told = self.present | {*self.numbers}
        if few:
            self._wanting.clear()
            self.say(told, Regroup([], sorted(self.awaited)))
            return
        self._ended = self._mine not in going  # it lives, and has not come in time
        if self._ended:
            return
        if self.failed:
            self._behind.update({number: self.failed for number in self.numbers if number not in going})
        self._begin(going)
        self.say(told, Regroup(going, []))


def has_closed(rank: int) -> str:
    """The cause."""
    return f"rank {rank} has closed its communicator"


# A rank's way to the next group


class Missed(Enum):
    """Why a call to a hub has come to nothing: nobody listens there, the connection has ended, no time is left."""

    GONE, LOST, LATE = range(3)


class ShutDoor(NamedTuple):
    """Do not listen any more: who comes here is to go elsewhere."""


class OpenHub(NamedTuple):
    """Have the hub where this rank listens, for `numbers`, unless it is there already."""

    numbers: list[int]


class AskHub(NamedTuple):
    """Have the hub of `number` say the verdict; sent `RunFailed`, or `Missed`."""

    number: int


class CallHub(NamedTuple):
    """Tell the hub of `number`, connected with now or before, that this rank goes on; sent `Regroup`, or `Missed`."""

    number: int
    without: list[int]


class JoinGroup(NamedTuple):
    """Do what makes a group of `numbers`. Sent None, or whose failure has prevented that, as `failed` of `go_on`."""

    numbers: list[int]


Step = ShutDoor | OpenHub | AskHub | CallHub | JoinGroup
HUB = -1


def hear(me: int, numbers: Sequence[int], hub: int) -> Generator[Step, object, RunFailed | None]:
    """From the end of the connection with the hub to the verdict on the group of `numbers`; None: that the hub is gone.

    hub : where it was

    The hub itself says it, if it lives; else the lowest rank that does, which has the hub then. It has been told before
    the others were, so where it knows nothing, nobody does.
    """
    for number in sorted(numbers, key=lambda number: (number != hub, number)):
        if number == me:
            yield OpenHub([*numbers])
            return None
        said: object = Missed.LOST
        while said == Missed.LOST:  # it has not noticed yet, or ends itself
            said = yield AskHub(number)
        if said != Missed.GONE:
            return said if isinstance(said, RunFailed) else None
    return None


def go_on(me: int, numbers: Sequence[int], hub: int, failed: int) -> Generator[Step, object, list[int]]:
    """From a verdict on a group of `numbers` to the next one, whose numbers are returned.

    hub : where it is; failed : who has, or HUB: the connection to the hub has ended

    The hub that there is brings them together; where it is gone, the lowest rank that lives does. Whoever dies
    meanwhile, it begins again. A group is made when all its ranks have done what makes it, so who has not heard that a
    group is to be made may begin anew without those that have: these cannot have it.

    Whom a hub has named does not go on, but where that hub is gone: then not all may have been told, and whom it has
    named may be whom they go to. Who has been named itself sends everybody away.
    Raises InputError where this rank is in no group.
    """
    known, out, silent = [*numbers], set[int](), set[int]()
    while True:
        if failed == HUB:
            hub = HUB
        else:
            (silent if failed == hub else out).add(failed)
        gone, regroup = set[int](), None
        while regroup is None:
            if me in out:
                yield ShutDoor()
            if hub == HUB:
                out &= {me}
            number = next((each for each in numbers if each not in out | silent | gone), None)
            if number is None:
                raise InputError("no other rank lives that could say who goes on", where="shrink", hint=AGAIN)
            if number == me and hub != me:
                yield OpenHub([*numbers])
            said = yield CallHub(number, sorted(out | silent))
            match said:
                case Regroup():
                    hub, regroup = number, said
                case Missed.LATE:
                    raise _late(known.index(number))
                case Missed.GONE:
                    gone.add(number)
                case Missed.LOST:
                    hub = HUB if number == hub else hub
        if me not in regroup.numbers:
            raise _alone(known.index(me), regroup, known)
        numbers = regroup.numbers
        answer = yield JoinGroup([*numbers])
        if answer is None:
            return [*numbers]
        assert isinstance(answer, int)
        failed = answer


AGAIN = "Start the job again."


def _late(rank: int) -> InputError:
    what = f"rank {rank}, which lives, has not brought the others together in time"
    return InputError(what, where="shrink", hint=AGAIN)


def _alone(rank: int, regroup: Regroup, known: Sequence[int]) -> InputError:
    others = ", ".join(str(known.index(number)) for number in regroup.numbers or regroup.missing)
    if not regroup.numbers:
        return InputError(f"ranks {others} live, and have not called it in time", where="shrink", hint=AGAIN)
    what = f"rank {rank} is not among those that go on: ranks {others} have gone on without it"
    hint = f"{AGAIN[:-1]}, or have them call grow and come in as a new rank."
    return InputError(what, where="shrink", hint=hint)
