"""One rank: its connections to the other ranks, and schedules run over them on a caller's buffer.

Operations run in the thread that calls them. Between them a thread polls at intervals: peers may still have to ask what
has landed, and the overseer whether this rank may change its plan. During one that takes long, it tells the hub what
has been called. No two ranks need begin an operation at the same time; a peer that is ahead waits, for `timeout_s` at
most.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

from optcc.errors import InputError, OptccError
from optcc.runtime.codec import Json
from optcc.runtime.control.channel import Clock, Control, late_text
from optcc.runtime.control.connecting import (
    GREETING_LIMIT,
    RETRY_S,
    SILENCE_S,
    TAMPERED,
    TIMEOUT_S,
    HubLostError,
    RefusedError,
    prepare,
)
from optcc.runtime.control.door import Door, listening
from optcc.runtime.control.judgement import (
    GRACE_S,
    HUB,
    AskHub,
    CallHub,
    JoinGroup,
    Missed,
    OpenHub,
    ShutDoor,
    go_on,
    hear,
)
from optcc.runtime.control.links import Links
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.transports import arena_for
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Op
from optcc.runtime.errors import (
    CallsDifferError,
    PeerLateError,
    PeerLostError,
    RankFailedError,
    TransportError,
    shortage,
)
from optcc.runtime.forks import own
from optcc.runtime.messages import (
    CLOSE,
    Broken,
    FromRank,
    HasCalled,
    Late,
    Left,
    LostNics,
    Note,
    Regroup,
    RunFailed,
    Shrink,
)
from optcc.runtime.native.layout import Layout
from optcc.runtime.native.lent import Arena
from optcc.runtime.native.library import NativeCall, NativeProgram

_OF_A_NIC = ("nic down", "lost", "fenced")
"""Kinds of notes that are no news of a NIC that plans do without."""


class LostNicsOf:
    """Which NICs of rank `rank` plans have to do without, by what its wires tell.

    tell : for the hub, which has all ranks plan anew

    A NIC that is back is used again where no other one is left, not before: it may go again. After all have been lost,
    those that are back are used, and what has moved to the first of them is spread again. While all are lost nothing is
    told, for no plan can do without.
    """

    def __init__(self, rank: int, tell: Callable[[LostNics], None]) -> None:
        self._rank, self._tell = rank, tell
        self._lost: set[str] = set()  # that have gone down since wires were made, and whose wires have not been since
        self._reported: set[str] = set()  # of these, those that plans are to do without
        self._alone = False  # all of them have been lost at the same time
        self._without: set[str] = set()  # NICs of all ranks that plans do without

    def renewed(self, nics: Sequence[str]) -> None:
        """From now on plans do without these, of all ranks."""
        self._without = {*nics}

    def connected(self) -> None:
        """Wires are new, and tell what they find."""
        self._lost.clear()

    def read(self, notes: Sequence[Note], layout: Layout) -> list[Note]:
        """What wires have noted; returns what is news."""
        mine = {nic.name for nic in layout.nics if nic.rank == self._rank and not nic.nvlink}
        for note in notes:
            if note.kind == "nic down":
                self._lost.add(note.nic)
            elif note.kind == "made anew":
                self._lost.discard(note.nic)
            self._alone = self._alone or self._lost >= mine
        if not self._lost >= mine:
            self._report(mine)
        return [note for note in notes if note.kind not in _OF_A_NIC or not {note.nic, note.far} & self._without]

    def _report(self, mine: set[str]) -> None:
        dead = self._lost - self._reported
        back = mine - self._lost if self._alone or self._reported | dead >= mine else set[str]()
        self._alone = False
        if dead or (back and len(mine) > 1):
            self._reported = self._reported - back | dead
            self._tell(LostNics(sorted(dead), sorted(back)))


SIGN_BYTES = 8
"""Of a call: the engine's first message has as much of its hash, so that ranks which call differently hear of it."""
REMEMBERED = 1024
"""Of calls whose signs are at hand."""


@lru_cache(REMEMBERED)
def sign_of(call: str) -> int:
    """A number for a call in words; others have others."""
    return int.from_bytes(hashlib.blake2b(call.encode(), digest_size=SIGN_BYTES).digest(), "little")


JUDGING_S = 10 * GRACE_S
"""For a hub that lives to judge, on a machine that is busy."""

HUB_GONE = "its process, which held the control channel, is gone"
HUB_LEFT = "has left, as another rank had failed, before this one had come"


def verdict(error: Exception, control: Control, links: Any, within_s: float) -> RankFailedError:
    """Who failed, as all ranks hear it: tells the overseer of `error` and waits for its word, `within_s` at most.

    A rank that has lost a peer serves its flows meanwhile. Others may be about to accuse this rank, and must hear that
    it is alive. Else its word would be the only one, when its own NICs have swallowed all.
    """
    if isinstance(error, RankFailedError):
        return error
    try:
        if not isinstance(error, HubLostError):
            if isinstance(error, CallsDifferError):  # the hub says who, once enough ranks have told what they called
                _listen(control, within_s)
            late = isinstance(error, PeerLateError | CallsDifferError)  # also for rank 0, but for what judging takes
            _accuse(error, control)
            _listen(control, JUDGING_S + (0 if late else within_s), links if isinstance(error, PeerLostError) else None)
            cause = f"its process does not answer: it has not said who failed, within {within_s:.3g} s"
            return RankFailedError(0, cause)
    except RankFailedError as said:
        return said
    except HubLostError as lost:
        error = lost
    try:
        control.check()  # what was said before it was lost counts
    except RankFailedError as said:
        return said
    except HubLostError:
        pass
    return RankFailedError(0, HUB_GONE if control.rank else f"its own control channel has ended: {error}")


def _listen(control: Control, within_s: float, links: Any = None) -> None:
    """Hear what the hub says, and serve the flows of `links`, for so long; its verdict is raised."""
    end = time.monotonic() + within_s
    while (left := end - time.monotonic()) > 0:
        try:
            if links and links.up:
                links.poll(end)
            elif select.select([control], [], [], left)[0]:
                control.check()
        except PeerLostError:
            pass  # one is enough
        except (RankFailedError, HubLostError):
            raise
        except Exception:  # these flows are of no use any more
            links = None


def _accuse(error: Exception, control: Control) -> None:
    if isinstance(error, PeerLateError):
        control.tell(Late(error.blames, error.why))
        return
    if isinstance(error, CallsDifferError):
        control.tell(Late(error.peer, str(error)))
        return
    cause = str(error) if isinstance(error, OptccError) else shortage(error)
    blames = error.blames if isinstance(error, PeerLostError) else None
    control.tell(Broken(cause or f"{type(error).__name__}: {error}", blames))


@dataclass
class Ties:
    """What a group has of the one that it comes of, and the next one of it: a rank's place in the control plane.

    first : its place in the first group, before any was lost; `first.rank` is its number
    numbers : those of the group, by rank
    doors : by number, where a rank listens, and has the hub when those before it are gone
    listener : this rank's, until a hub has it; None: the first hub, or whoever has failed
    limit_s : as `timeout_s`
    overseer : where the hub is in this process; hub : its number, or HUB: the connection with it has ended
    made : whether the group is, not only begun
    grown : whether there is a larger one: nobody listens here any more, and nobody can tell who lives
    """

    first: Membership
    numbers: list[int]
    doors: Sequence[Json]
    control: Control
    limit_s: float
    listener: socket.socket | None = None
    overseer: Overseer | None = None
    hub: int = 0
    made: bool = True
    grown: bool = False
    _silent: dict[int, float] = field(default_factory=dict)  # by number, since when its machine has said nothing
    _held: dict[int, socket.socket] = field(default_factory=dict)  # by number, a connection that tells that it lives
    _holding: threading.Lock = field(default_factory=threading.Lock)
    _left: bool = False

    def shut(self) -> None:
        """Nobody is to come here any more."""
        if self.listener:
            self.listener.close()
        self.listener = None

    def hang_up(self) -> None:
        """Say no more."""
        self.control.hang_up()
        self.control.__exit__()
        self.shut()

    def leave(self) -> None:
        """After that."""
        if self.overseer:
            self.overseer.leave()
        with self._holding:  # whoever still asks holds nothing any more
            self._left = True
            for held in self._held.values():
                held.close()
            self._held.clear()

    @staticmethod
    def blamed(error: RankFailedError, numbers: Sequence[int]) -> int:
        """Who of the group of these has failed, as of `go_on`."""
        return HUB if error.cause == HUB_GONE else numbers[error.rank]

    # --- what `go_on` has done ---------------------------------------------------------------------------------------

    def open(self, numbers: list[int], verdict: RunFailed) -> None:
        """The hub, in this process."""
        if not self.listener:
            return  # it is here, or has ended
        host, port = self.listener.getsockname()[:2]
        door = Door(self.first.job, self.first.secret.encode(), host, port, self.listener)
        self.listener = None
        how: dict[str, Any] = {"lives": self.lives, "mine": self.first.rank, "verdict": verdict}
        self.overseer = Overseer(self.first.world, door, math.inf, numbers=numbers, **how).start()

    def lives(self, number: int) -> bool:
        """Whether its process listens. That nobody does is known where the other machine says so; one that says nothing
        may be slow, for as long as any may, and so may this one, which may have no way there or no descriptor left.

        A connection tells as long as it is held, whether or not its far end is taken: one for each question would fill
        the queue of a rank in a long step.
        """
        if self.grown:
            return True
        held = self._held.pop(number, None)  # another thread that asks the same has one of its own
        try:
            if held and held.recv(GREETING_LIMIT):
                return self._hold(number, held)  # its hub greets a stranger
        except BlockingIOError:
            return self._hold(number, held)
        except TimeoutError:  # its kernel has not answered this one's
            self._silent.setdefault(number, time.monotonic() - SILENCE_S)
        except OSError:
            pass
        if held:  # its process has ended, or its hub has sent a stranger away
            held.close()
        try:
            made = own(socket.create_connection(tuple(self.doors[number]), GRACE_S))
        except ConnectionRefusedError:
            return False
        except OSError:
            return time.monotonic() < self._silent.setdefault(number, time.monotonic()) + SILENCE_S
        self._silent.pop(number, None)
        made.setblocking(False)
        with contextlib.suppress(OSError):  # it has ended since: the next question finds out
            prepare(made)
        return self._hold(number, made)

    def _hold(self, number: int, connection: socket.socket | None) -> bool:
        """Until it is asked anew; True: it lives."""
        with self._holding:
            if connection and (self._left or number in self._held):
                connection.close()
            elif connection:
                self._held[number] = connection
        return True

    def _connect(self, hub: int, within_s: float) -> None:
        control = Control.once(replace(self.first, address=tuple(self.doors[hub])), within_s, self.limit_s)
        self.control.__exit__()
        self.control, self.hub = control, hub

    def hear(self) -> RankFailedError:
        """The verdict of this rank, whose connection with the hub has ended."""
        end, hub, answer = time.monotonic() + self.limit_s, self.hub, None
        gone = RunFailed(self.numbers.index(hub) if hub in self.numbers else 0, HUB_GONE)
        self.hub = HUB
        self.control.hang_up(0.0)  # half a message may have been its end: the hub is to notice
        steps = hear(self.first.rank, self.numbers if self.doors and self.made else [], hub)
        try:
            while True:
                match steps.send(answer):
                    case AskHub(number):
                        answer = self._of_hub(number, end, partial(self._verdict, end))
                    case OpenHub(numbers):
                        with contextlib.suppress(TransportError):  # shrink says so
                            self.open(numbers, gone)
        except StopIteration as heard:
            said = heard.value or gone
        return RankFailedError(said.rank, said.cause)

    def tend(self, verdict: RankFailedError) -> None:
        """After that, until this rank goes on: the others are to hear it here, too, if the hub is gone and they have
        nobody else to ask."""
        if self.hub != HUB:
            try:
                self.control.check()
            except HubLostError:
                self.hub = HUB
        lower = self.numbers[: self.numbers.index(self.first.rank)]
        if self.hub == HUB and self.listener and self.doors and self.made and not any(map(self.lives, lower)):
            self.open(self.numbers, RunFailed(verdict.rank, verdict.cause))

    def call(self, hub: int, without: list[int], end: float) -> Regroup | Missed:
        """Of the hub of that number, which is to answer by `end`."""
        said: Regroup | Missed = self._of_hub(hub, end, partial(self._next_group, without, end))
        return said

    def _of_hub(self, hub: int, end: float, ask: Callable[[], Any]) -> Any:
        """What the hub of that number answers by `end`, connected with now or before; else `Missed`."""
        try:
            if self.hub != hub:
                self._connect(hub, max(GRACE_S, end - time.monotonic()))
            return ask() or Missed.LATE
        except BlockingIOError:
            return Missed.LATE
        except (EOFError, ConnectionResetError, BrokenPipeError, RefusedError, HubLostError):
            self.hub = HUB
            time.sleep(RETRY_S / 10)  # the hub may not have noticed yet that the last connection has ended
        except OSError as error:
            if isinstance(error, ConnectionRefusedError | TimeoutError) or error.errno == errno.EHOSTUNREACH:
                return Missed.GONE
            time.sleep(RETRY_S)  # it has not been asked: this machine has no way there, or no descriptor left
        return Missed.LOST if time.monotonic() < end else Missed.LATE

    def _verdict(self, end: float) -> RunFailed | None:
        try:
            while (left := end - time.monotonic()) > 0:
                select.select([self.control], [], [], left)
                self.control.check()
        except RankFailedError as said:
            return RunFailed(said.rank, said.cause)
        return None

    def _next_group(self, without: list[int], end: float) -> Regroup | None:
        self._heard(time.monotonic())  # the others may have gone on already
        if self.control.regrouped is None:
            left = max(GRACE_S, end - time.monotonic())
            self.control.tell(Shrink(left, without))
            self._heard(time.monotonic() + left + GRACE_S)
        said, self.control.regrouped = self.control.regrouped, None
        if said is None:
            self.hub = HUB
            self.control.hang_up(0.0)  # it is not to count on this rank any more
        return said

    def _heard(self, until: float) -> None:
        """Hear of the next group, until then; the verdict is known."""
        while self.control.regrouped is None:
            came = select.select([self.control], [], [], max(0.0, until - time.monotonic()))[0]
            if not came:
                return
            try:
                self.control.check()
            except RankFailedError as known:
                if known.cause == TAMPERED:
                    raise

    def regrouped(self, numbers: list[int]) -> Membership:
        """This rank's place among these, which are the group from now on."""
        rank = numbers.index(self.first.rank)
        self.control, self.numbers, self.made = self.control.heir(rank, len(numbers)), numbers, False
        job = f"{self.first.job}, ranks {', '.join(map(str, numbers))}"
        return Membership(rank, len(numbers), tuple(self.doors[self.hub]), job, self.first.secret)


JOIN_S = 120.0
"""For all ranks to be started and to come, or as long as an operation may take, if that is longer."""

ASK_S, FEW = 0.1, 16
"""An operation that takes longer has all ranks tell the hub what they have called: it may be that it waits for nothing.
What is slow for another reason costs a message for each rank and operation, so more than a few ranks wait longer: the
hub of 64 that share two cores heard of a rank's end three tenths of a second later behind these."""

CALLS = 4096
"""So many calls are remembered, for ranks that ask later: more than a rank may be ahead of another."""

TICK_S, IDLE_S, SLOWER = 0.02, 0.25, 1.1
"""Seconds between two looks at the wires while no operation runs: a peer's question waits so long for its answer. Each
pause is longer by this factor, up to the second, while nobody asks anything; from the first question on it is the first
again. So a rank costs less than a thousandth of a core after two seconds in which nothing is called."""


class Turn:
    """A turn of a member, as a context; see `Member.turn`."""

    __slots__ = ("_call", "_member")

    def __init__(self, member: Member, call: str) -> None:
        self._member, self._call = member, call

    def __enter__(self) -> None:
        member = self._member
        member._lock.acquire()
        try:
            if member.failed:
                raise member.failed
            if member._control.halts or member._control.renewals:
                with member._guarded():
                    member._change_plans()
            member.operation = operation = member.operation + 1
            member._called[operation] = self._call
            member._called.pop(operation - CALLS, None)
            if operation <= member._asked:
                member._answer(operation)
        except BaseException:
            member._lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._member._failed_by(error)  # raises what all ranks hear in its place
        finally:
            self._member._lock.release()


class Member:
    """Rank `membership.rank` of as many as its `world`. Use `turn` around whatever concerns all ranks.

    All methods that wait raise RankFailedError, with the same text on all ranks, once a rank has failed.

    timeout_s : for an operation, from when this rank begins it: all others must have come to it and finished it
    join_s : for finding the hub; None: as for ranks that are started at the same time
    lent : an arena to share with another member of this process; None: one of its own, where the transport lends
    return_s : for a NIC to be back, where this rank has none left; None: as for an operation
    gpu : whose memory buffers are in, a `cuda.Gpu`; None: the host's
    overseer : where this process has the ranks' hub: that of a job with rank 0
    control : a connection to the hub that there is already; None: one is made, as `membership` says
    ties : of the group that this one comes of by shrinking, in place of both; they are its own from now on
    hub_lives : as `lives` of `Control.join`
    on_renew : called with the names of NICs that are dead, at the same point between operations on every rank; None:
        plans stay, whatever dies
    on_notes : called with what this rank has noted of NICs, wires and flows; from whichever thread finds it
    """

    def __init__(
        self,
        membership: Membership,
        *,
        transport: str = "local",
        timeout_s: float = TIMEOUT_S,
        join_s: float | None = None,
        return_s: float | None = None,
        on_renew: Callable[[list[str]], None] | None = None,
        on_notes: Callable[[list[Note]], None] = lambda notes: None,
        overseer: Overseer | None = None,
        control: Control | None = None,
        ties: Ties | None = None,
        hub_lives: Callable[[], bool] | None = None,
        lent: Arena | None = None,
        gpu: Any = None,
    ) -> None:
        self.rank, self.world, self.timeout_s = membership.rank, membership.world, timeout_s
        self.membership = membership
        self._on_renew, self._on_notes = on_renew, on_notes
        self._lock = threading.RLock()
        self.operation = 0
        self._called: dict[int, str] = {}  # the last CALLS operations, in words
        self._lends = False  # something to other ranks, who have it mapped
        self._asked = 0  # the hub wants to hear of operations up to this one
        self.failed: RankFailedError | None = None
        self.lent: Arena | None = None
        try:
            self.lent = lent.share() if lent else arena_for(transport)
            join_s = max(JOIN_S, timeout_s) if join_s is None else join_s
            self._control = (ties.control if ties else control) or Control.join(
                membership, join_s, timeout_s, hub_lives
            )
        except BaseException as error:
            if self.lent:
                self.lent.close()
            if ties:
                ties.hang_up()
                ties.leave()
            elif overseer:
                overseer.leave()
            if isinstance(error, HubLostError) and hub_lives and not hub_lives():
                raise RankFailedError(0, HUB_GONE) from error
            if hub_lives and isinstance(error.__cause__, ConnectionRefusedError):
                raise RankFailedError(0, HUB_LEFT) from error
            raise
        self._control.operation = lambda: self.operation
        self._control.on_ask = self._answer
        self._control.patience_s = timeout_s
        self._nics = LostNicsOf(self.rank, self._control.tell)
        if ties is None:
            listener = listening(self._control.host, 0) if self.rank and control is None else None
            ties = Ties(membership, [*range(self.world)], (), self._control, timeout_s, listener, overseer)
        self._ties: Ties | None = ties  # None: a later group has them
        self._numbers = [*ties.numbers]  # of this group; the ties' are those of a later one, should joining that fail
        back_s = timeout_s if return_s is None else return_s
        secret = membership.secret.encode()
        self.links = Links(transport, self._control, back_s, secret=secret, gpu=gpu)
        """Wires to the other ranks, and what goes over them; `connect` and `equip` make others."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tend, name=f"optcc rank {self.rank}", daemon=True)
        self._thread.start()

    # --- what all ranks do alike -------------------------------------------------------------------------------------

    def turn(self, call: str) -> Turn:
        """The next operation, and what prepares it. Plans change here, never inside. `call` : in words, on all ranks
        the same."""
        return Turn(self, call)

    def _change_plans(self) -> None:
        """Those that are due, once this rank may go on."""
        renewals = self._control.renewals
        while True:
            if self._control.halts:
                self._until(lambda: not self._control.halts, "leave to go on")
            if not renewals or renewals[0].after > self.operation:
                return
            nics = renewals.popleft().nics
            self._nics.renewed(nics)
            if self._on_renew:
                self._on_renew(nics)

    def _answer(self, operation: int) -> None:
        """Tell the hub what has been called as this operation, now or as soon as it is."""
        self._asked = max(self._asked, operation)
        call = self._called.get(operation)
        if call is not None:
            self._control.tell(HasCalled(operation, call))

    def exchange(self, value: Json, within_s: float | None = None) -> list[Json]:
        """The values that all ranks give here, by rank, while wires are served. Within a turn, or to begin or end.

        within_s : for all of them to come; None: as for an operation
        Raises RankFailedError also where ranks exchange values for different calls.
        """
        with self._lock, self._guarded():
            here = [self.operation, self._called.get(self.operation, "")]
            values = self._control.exchange([here, value], partial(self._until, within_s=within_s))
            for rank, (there, _) in enumerate(values):
                if there != here:
                    raise CallsDifferError(rank)
            return [said for _, said in values]

    def meet(self, within_s: float | None) -> None:
        """All ranks hear where each would have the hub, should rank 0's process end; called before anything else.

        within_s : as of `exchange`
        """
        ties = self._ties
        assert ties
        ties.doors = self.exchange([*ties.listener.getsockname()[:2]] if ties.listener else None, within_s)
        ties.doors[0] = self.membership.address
        if ties.overseer:
            ties.overseer.lives = ties.lives

    def lives(self, rank: int) -> bool:
        """As `Ties.lives`."""
        return self._ties is None or self._ties.lives(self._numbers[rank])

    def connect(self, layout: Layout) -> None:
        """Wires anew. All ranks do so at the same time, of the same layout, within a turn."""
        with self._lock, self._guarded():
            if self.links.up:
                self._part()
            else:
                self.exchange(None)  # all have come: the first call waits as long as any other one
            self._nics.connected()
            self.links.connect(layout, self.lent)

    def _part(self) -> None:
        """Let go of the wires when nobody needs or looks at them any more: an end that closes is a loss."""
        self.exchange(None)
        self._control.exchange(None)
        self.links.close()
        if self._lends:
            self._control.exchange(None)  # nobody has it mapped any more: it may be freed
            self._lends = False

    def lend(self, buffer: Any) -> None:
        """Before operations on it: if it is a GPU's, other ranks read it where it lies, over the wires that there are,
        and it stays until these are let go. All ranks do so at the same time, within a turn."""
        with self._lock, self._guarded():
            if isinstance(buffer, DeviceArray):
                self.links.lend(buffer)
                self._lends = True

    def call(self, program: NativeProgram, buffer: Any, op: Op, **how: Any) -> NativeCall:
        """For `run`, in this turn and later ones of the same words. how : as of NativeCall"""
        return NativeCall(program, buffer, op, sign_of(self._called[self.operation]), **how)

    def run(
        self, call: NativeCall, source: Any = None, source_at: int = 0, target_at: int = 0, start: Any = None
    ) -> float:
        """The collective itself, as `Links.run`; what it took here, seconds."""
        if self.links.run(call, self.timeout_s, source, source_at, target_at, start):
            self.tell_notes()
        return call.struct.took_ns / 1e9  # type: ignore[no-any-return]

    # --- what a command has it do ------------------------------------------------------------------------------------

    def equip(self, timeout_s: float, transport: str, **how: Any) -> None:
        """Let go of the wires, for others of another kind, to be connected. All ranks do so at the same time, within a
        turn. timeout_s : from now on; the rest : as of `Links`"""
        self.timeout_s = self._control.patience_s = timeout_s
        if self.links.up:
            self._part()
        self.links = Links(transport, self._control, 0.0, secret=self.membership.secret.encode(), **how)

    def parcel(self) -> bytes:
        """The next payload of the hub, for as long as that is there; flows are served meanwhile."""
        with self._lock, self._guarded():
            while not self._control.parcels:
                self._look(math.inf)
            return self._control.parcels.popleft()

    def tell(self, message: FromRank) -> None:
        """Send to the hub."""
        self._control.tell(message)

    def clock(self) -> Clock:
        """This machine's, held against the hub's. Another machine's drifts: it is asked anew; within a turn."""
        if self._control.clock is None or self._control.clock.offset_s:
            self._control.synchronize()
        assert self._control.clock
        return self._control.clock

    def settle(self) -> None:
        """As `Links.settle`, on all ranks, within a turn: what one leaves is in doubt at another for a moment."""
        for _ in range(2):
            self.exchange(None)
            with self._lock, self._guarded():
                self.links.settle()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever is raised here has failed this rank, and so all."""
        with self._lock, self._guarded():
            try:
                yield
            except InputError as error:
                raise TransportError(str(error)) from error

    # --- ends --------------------------------------------------------------------------------------------------------

    def close(self, cause: str | None = None) -> None:
        """Leave; orderly, after all ranks have said so, or because of `cause`, which fails the others."""
        if self._stop.is_set():
            return
        with self._lock:
            if self.failed is None and cause is None:
                with contextlib.suppress(RankFailedError), self._guarded():
                    self.operation += 1
                    self._called[self.operation] = CLOSE
                    self._answer(self.operation)
                    if self.links.up:
                        self._part()
            self._stop.set()
            ties = self._ties
            with contextlib.suppress(HubLostError, RankFailedError):
                if self.failed is None:
                    self._control.tell(Broken(f"left: {cause}") if cause else Left())
            if ties:
                ties.hang_up()
            self.links.close()
            if self.lent:
                self.lent.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if ties:
            ties.leave()

    def gone_on(self) -> None:
        """This rank is in a larger group: who looks for it here is to see that; see `others_have`."""
        if self._ties:
            self._ties.shut()
            self._ties.grown = True

    def others_have(self, larger: Member) -> bool:
        """Whether one has gone on to `larger`, which this rank has made, too, and was not told that all have, for the
        hub ended in the middle. Ranks are told in their order."""
        return any(larger.lives(rank) and not self.lives(rank) for rank in range(self.rank))

    def hand_on(self) -> None:
        """Another group has this one's ties."""
        self._ties = None

    def shrink(self, join: Callable[[Membership, list[int], Ties, float], None]) -> None:
        """After a failure: `join` a group of those that go on; again, if somebody fails meanwhile.

        join : called with this rank's place in the next group, the ranks of this group that are in it, the ties, which
            are the next group's from then on, and the end of its time, by the monotonic clock

        Raises InputError as `go_on`, and where no rank has failed.
        """
        with self._lock:
            if self.failed is None:
                raise InputError("no rank has failed", where="shrink", expected="a call after RankFailedError")
            ties, end = self._ties, time.monotonic() + self.timeout_s
            if ties is None:
                raise InputError("it has shrunk already", where="shrink", expected="a call of the one that came of it")
            failed, known = self.failed, self._numbers
            blamed = ties.blamed(failed, known)
            steps = go_on(ties.first.rank, known, ties.hub, blamed)
            answer: object = None
            with contextlib.suppress(StopIteration):
                while True:
                    step, answer = steps.send(answer), None
                    match step:
                        case ShutDoor():
                            ties.shut()
                        case OpenHub(numbers):
                            ties.open(numbers, RunFailed(failed.rank, failed.cause))
                        case CallHub(number, without):
                            answer = ties.call(number, without, end)
                        case JoinGroup(numbers):
                            place = ties.regrouped(numbers)
                            self._ties = ties if place.world == 1 else None
                            try:
                                join(place, [known.index(number) for number in numbers], ties, end)
                                ties.made = True
                            except RankFailedError as error:
                                self._ties, failed, answer = ties, error, ties.blamed(error, numbers)

    @property
    def host(self) -> str:
        """This machine's address, for other ranks."""
        return self._control.host

    # --- waits -------------------------------------------------------------------------------------------------------

    def _until(self, done: Callable[[], bool], what: str, within_s: float | None = None) -> None:
        within_s = self.timeout_s if within_s is None else within_s
        end = time.monotonic() + within_s
        while not done():
            if time.monotonic() > end:
                raise PeerLateError(None, late_text(what, within_s))
            try:
                self._look(end)
            except RankFailedError as error:
                if not done():
                    raise
                self.failed = error  # what was waited for came before that: the next wait is the one that fails
                self.links.close()
                return

    def _look(self, until: float) -> bool:
        """One wait, no longer than `until`, and what has come by then; whether peers have asked."""
        if self.links.up and not self.failed:
            return self.links.poll(until)
        left = max(0.0, until - time.monotonic())
        select.select([self._control], [], [], None if left == math.inf else left)
        self._control.check()
        return False

    def _tend(self) -> None:
        """Between operations; and what is due during one that takes long, be it planned or run."""
        seen, ask_at, pause_s = 0, math.inf, TICK_S
        while not self._stop.wait(pause_s):
            pause_s = min(SLOWER * pause_s, IDLE_S)
            if self._lock.acquire(blocking=False):
                try:
                    if self._stop.is_set():
                        pass
                    elif self.failed:
                        with contextlib.suppress(OptccError):
                            if self._ties:
                                self._ties.tend(self.failed)
                    else:
                        with contextlib.suppress(RankFailedError), self._guarded():
                            if self._look(-math.inf) or self.operation != seen:
                                pause_s = TICK_S
                            seen = self.operation
                            self.tell_notes()
                finally:
                    self._lock.release()
            elif self.failed:
                pass
            elif self.operation != seen:
                seen, ask_at, pause_s = self.operation, time.monotonic() + ASK_S * max(1, self.world / FEW), TICK_S
            elif self._on_renew and time.monotonic() > ask_at:  # who has plans that stay makes calls that cannot differ
                ask_at = math.inf
                with contextlib.suppress(HubLostError):  # the operation finds out by itself
                    self._answer(seen)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever stops this rank stops all; InputError does not, for all ranks find the same wrong with a call."""
        if self.failed:
            raise self.failed
        try:
            yield
        except BaseException as error:
            self._failed_by(error)
            raise

    def _failed_by(self, error: BaseException) -> None:
        """See `_guarded`; returns where the error is to be raised as it is."""
        if isinstance(error, InputError):
            return
        if not isinstance(error, Exception):  # Ctrl-C in the middle of something leaves the others in it
            self.failed = RankFailedError(self.rank, f"interrupted by {type(error).__name__}")
            with contextlib.suppress(HubLostError):
                self._control.tell(Broken(self.failed.cause))
            self.links.close()  # the caller has its buffer again: nothing is lent from it any more
            return
        if not self.failed:
            if isinstance(error, CallsDifferError):
                with contextlib.suppress(HubLostError):
                    self._answer(self.operation - error.behind)
            self.failed = verdict(error, self._control, self.links, self.timeout_s)
            if self.failed.cause == HUB_GONE and self._ties:
                self.failed = self._ties.hear()
            self.links.close()
        raise self.failed from (None if error is self.failed else error)

    # --- what is noted -----------------------------------------------------------------------------------------------

    def tell_notes(self) -> None:
        """Have `on_notes` called with what has been noted since."""
        notes = self.links.notes()
        if notes:
            self._on_notes(self._nics.read(notes, self.links.layout) if self._on_renew else notes)
