"""What a rank does as a process of its own, by name; tests/test_ranks_judged.py starts it and hands on what it says."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import optcc
from optcc.communicator import interface
from optcc.runtime.control import channel, fault_injection, overseer
from optcc.runtime.control.channel import Control
from optcc.runtime.messages import SharedValues
from optcc.runtime.native.wires import ShmWires
from tests import communicator_contract as contract

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LARGE, SMALL = 1_000_000, 10

HANGS_S = 120
"""For what takes a second once all is compiled; then it hangs, which a test is to tell by what has not been said."""


def say(**what: Any) -> None:
    print(json.dumps({"rank": RANK, **what}), flush=True)


def ones(count: int = LARGE, dtype: str = "float32") -> Any:
    return np.ones(count, dtype)


def outcome(call: Callable[[], Any], **more: Any) -> None:
    """Say what a call has come to, and how long that took."""
    start = time.monotonic()
    try:
        found = call()
        value = float(np.ravel(found)[0]) if isinstance(found, np.ndarray) else None
        say(value=value, seconds=time.monotonic() - start, **more)
    except optcc.OptccError as error:
        say(error=str(error), kind=type(error).__name__, seconds=time.monotonic() - start, **more)


# --- calls that differ -----------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], Any]] = {
    "all_reduce(float32, 1000000, sum)": lambda c: c.all_reduce(ones()),
    "all_reduce(float32, 1000000, avg)": lambda c: c.all_reduce(ones(), op="avg"),
    "all_reduce(int32, 1000000, sum)": lambda c: c.all_reduce(ones(dtype="int32")),
    "all_reduce(float32, 999999, sum)": lambda c: c.all_reduce(ones(LARGE - 1)),
    "all_reduce(float32, 10, sum)": lambda c: c.all_reduce(ones(SMALL)),
    "all_reduce(float32, 10, max)": lambda c: c.all_reduce(ones(SMALL), op="max"),
    "all_reduce(float32, 11, sum)": lambda c: c.all_reduce(ones(SMALL + 1)),
    "broadcast(float32, 1000000, root 0)": lambda c: c.broadcast(ones(), 0),
    "broadcast(float32, 1000000, root 1)": lambda c: c.broadcast(ones(), 1),
    "broadcast(float32, 1000000, root 2)": lambda c: c.broadcast(ones(), 2),
    "broadcast(float32, 10, root 0)": lambda c: c.broadcast(ones(SMALL), 0),
    "broadcast(float32, 10, root 2)": lambda c: c.broadcast(ones(SMALL), 2),
    "all_gather(float32, 10)": lambda c: c.all_gather(ones(SMALL), ones(SMALL * WORLD)),
    "all_gather(float32, 1000000)": lambda c: c.all_gather(ones(), ones(LARGE * WORLD)),
    "reduce_scatter(float32, 12, sum)": lambda c: c.reduce_scatter(ones(12), ones(12 // WORLD)),
    "all_to_all(float32, 12)": lambda c: c.all_to_all(ones(12), ones(12)),
    "barrier()": lambda c: c.barrier(),
    "split()": lambda c: c.split(0),
    "grow()": lambda c: c.grow(WORLD + 1, "127.0.0.1:1", within_s=60),
    "close()": lambda c: c.close(),
}


def differ(pairs: str) -> None:
    """pairs : JSON; of each how many calls are made before, the call of all ranks but one, that one, and what it
    calls. Each has a communicator of its own, from which one that nothing happens to keeps the others apart."""
    whole = optcc.Communicator()
    for warm, call, odd, other in json.loads(pairs):
        comm = whole.split(0)
        assert comm
        for _ in range(warm):
            comm.all_reduce(ones())
            comm.barrier()
        whole.barrier()
        outcome(lambda: CALLS[other if odd == RANK else call](comm))  # noqa: B023 - called here
        outcome(comm.barrier)  # one that was done already hears of it here
        whole.barrier()
        comm.close()
    whole.close()


def each(calls: str) -> None:
    """Every rank calls its own of these."""
    comm = optcc.Communicator()
    comm.barrier()
    outcome(lambda: CALLS[json.loads(calls)[RANK]](comm))
    outcome(comm.barrier)


# --- ranks that stop for a while -------------------------------------------------------------------------------------


def stop(seconds: float) -> None:
    """This whole process, as a debugger stops it."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    start = time.monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)
    say(stopped=time.monotonic() - start)


def once(place: Any, name: str, what: Callable[[], object]) -> None:
    """Do that when this function is called first."""
    was = getattr(place, name)

    def first(*args: Any, **options: Any) -> Any:
        setattr(place, name, was)
        what()
        return was(*args, **options)

    setattr(place, name, first)


def stopped(place: str, seconds: str) -> None:
    """Rank 1 stops at a place for that long; whatever is called is the same on all ranks."""

    def stops() -> None:
        stop(float(seconds))

    mine = RANK == 1
    if mine and place == "greeting":
        once(channel, "introduce", stops)
    comm = optcc.Communicator()
    if mine and place == "exchange":
        once(Control, "exchange", stops)
    if mine and place == "wires":
        once(ShmWires, "__init__", stops)
    if mine and place == "first call":
        stops()
    outcome(lambda: comm.all_reduce(ones()))
    if place == "call":
        fault_injection.time.sleep = stop  # type: ignore[assignment]
        comm.strike("pause", "server1/nic0", 0.5, amount=float(seconds))
        outcome(lambda: comm.all_reduce(ones()))
    if place == "split":
        if mine:
            once(Control, "exchange", stops)
        part = comm.split(RANK % 2)
        assert part
        outcome(lambda: part.all_reduce(ones()))
    if place == "shrink":
        comm.barrier()
        if RANK == WORLD - 1:
            os._exit(1)
        outcome(lambda: comm.all_reduce(ones()))
        if mine:
            stops()
        left = comm.shrink()
        outcome(lambda: left.all_reduce(ones()))
        left.close()
    comm.close()


def dies_joining(call: str, who: str, where: str) -> None:
    """Ranks, before they come to the half that is theirs, or a larger group to which no new one comes."""
    comm = optcc.Communicator()
    comm.barrier()
    if str(RANK) in who.split(","):
        comm._with = lambda *_, **__: os._exit(1)  # type: ignore[method-assign, assignment]
    made: list[Any] = []
    if call == "split":
        outcome(lambda: made.append(comm.split(RANK // 2)))
    else:
        outcome(lambda: made.append(comm.grow(WORLD + 1, where, within_s=2 * HANGS_S)))
    outcome(comm.barrier)
    for each in made:  # else the hub's process might end before another rank has made it
        each.close()


def comes_late(call: str, when: str, where: str) -> None:
    """To a part, or a larger group, of three: rank 1. Rank 2 has died by then, as its first word had been said.

    when : rank 0 waits for it; or has left
    """
    join, tell = Control.join.__func__, Control.tell  # type: ignore[attr-defined]

    def joins(kind: type[Control], place: Any, *how: Any) -> Control:
        time.sleep(1.0)
        with contextlib.suppress(ConnectionRefusedError):
            while when == "left":
                socket.create_connection(place.address).close()
                time.sleep(0.1)
        return join(kind, place, *how)  # type: ignore[no-any-return]

    def dies(control: Control, message: Any) -> None:
        tell(control, message)
        os._exit(1)

    if call == "grow" and RANK == 2:
        Control.tell = dies  # type: ignore[method-assign]
        optcc.Communicator(rendezvous=where, rank=2, world=3)
    comm = optcc.Communicator(world=2, rank=RANK) if call == "grow" else optcc.Communicator()
    comm.barrier()
    if RANK == 1:
        Control.join = classmethod(joins)  # type: ignore[method-assign, assignment]
    elif RANK == 2:
        Control.join = classmethod(lambda *how: setattr(Control, "tell", dies) or join(*how))  # type: ignore
    elif when == "waits":
        overseer.FAREWELL_S = HANGS_S
    if call == "split":
        outcome(lambda: comm.split(RANK // 3))
        outcome(comm.barrier)
    else:
        outcome(lambda: comm.grow(3, where))
        outcome(lambda: comm.all_reduce(ones(SMALL)))


def half_grown(told: str, where: str) -> None:
    """Rank 0 dies when it has told so many others that all have made the larger group."""
    if RANK == 3:
        comm = optcc.Communicator(rendezvous=where, rank=3, world=4)
    else:
        whether, say_to, decided = interface.all_or_none, overseer.Overseer.say, list[bool]()

        def dies_telling(hub: Any, ranks: Any, message: Any) -> None:
            dies = RANK == 0 and bool(decided) and isinstance(message, SharedValues)
            say_to(hub, [1, 2][: int(told)] if dies else ranks, message)
            os.kill(os.getpid(), signal.SIGKILL) if dies else None

        def decides(*of: Any) -> None:
            decided.append(True)
            whether(*of)

        overseer.Overseer.say, interface.all_or_none = dies_telling, decides  # type: ignore[method-assign]
        comm = optcc.Communicator(world=3, rank=RANK)
        with contextlib.suppress(optcc.RankFailedError):
            old, comm = comm, comm.grow(4, where)
            old.close()
    outcome(comm.barrier)
    comm = comm.shrink()
    outcome(lambda: comm.all_reduce(ones(SMALL)), world=comm.world)
    comm.close()


def beyond(who: str, within_s: str) -> None:
    """A rank stops for longer than any may take."""
    comm = optcc.Communicator()
    comm.all_reduce(ones())
    outcome(comm.barrier)
    comm._member.timeout_s = float(within_s)  # from now on: planning takes its time on a busy machine
    if int(who) == RANK:
        subprocess.Popen(["sh", "-c", f"sleep {10 * float(within_s)}; kill -KILL {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    outcome(lambda: comm.all_reduce(ones()))


def steps(limit_s: str) -> None:
    """Barriers until one fails. Rank 1 takes its time before each, so that the hub asks what it has called."""
    comm = optcc.Communicator(timeout_s=float(limit_s))
    comm.barrier()
    say(ready=True)

    def calls() -> None:
        while True:
            time.sleep(0.3 if RANK == 1 else 0)
            comm.barrier()

    outcome(calls)


def busy(half: str) -> None:
    """So many calls of all kinds; then the last rank ends, and the others make as many again."""
    comm, wrong, lost, calls = optcc.Communicator(), 0, 0, 0

    def sums(kind: int) -> tuple[float, float]:
        """(the sum over ranks of 1, what it should be)"""
        if kind == 5:
            with comm.split(comm.rank % 2) or comm as part:
                return float(part.all_reduce(ones(SMALL))[0]), (comm.world + 1 - comm.rank % 2) // 2
        return float(comm.all_reduce(ones((SMALL, LARGE)[kind % 2]))[0]), comm.world

    while lost == 0 or calls < int(half):
        if calls == int(half) and RANK == WORLD - 1:
            os._exit(0)
        try:
            found, expected = sums(calls % 8)
            wrong += found != expected
            calls += 1
            time.sleep(0.01)
        except optcc.RankFailedError as error:
            lost += 1
            say(told=str(error))
            left = comm.shrink()
            comm.close()
            comm, calls = left, 0
    comm.close()
    say(world=comm.world, wrong=wrong, lost=lost)


# --- random jobs -----------------------------------------------------------------------------------------------------

STEPS, MOST = 25, 4
"""Of a job; calls of one, at most, which are under way at the same time."""
LARGEST = 1 << 19
STRUCK = ("cut", "hole", "no data", "no acks", "receiver", "post", "retries", "flap", "away", "pause")


def fate_of(seed: int) -> dict[int, list[tuple[Any, ...]]]:
    """By step, what happens in it: (what, a rank's number, more). A server's second NIC may be struck, once; its first
    one never. Two ranks are never killed."""
    draw, fate = random.Random(seed), dict[int, list[tuple[Any, ...]]]()
    numbers = draw.sample(range(WORLD), WORLD)

    def happens(*what: Any) -> None:
        fate.setdefault(draw.randrange(STEPS), []).append(what)

    for number in numbers[: draw.randrange(4)]:
        happens("strike", number, draw.choice(STRUCK), draw.random())
    for _ in range(draw.randrange(3)):
        happens("split", -1)
    for number in draw.sample(numbers, draw.choice((0, 0, 1, 2))):
        happens("stop", number, 0.2 * draw.random(), draw.choice((0.3, 2.0)))
    victims = [0] if seed % 4 == 0 else numbers
    for number in [*dict.fromkeys((*victims, *numbers))][: draw.choice((0, 1, 1, min(2, WORLD - 2)))]:
        happens(draw.choice(("kill", "kill", "kill in shrink")), number, 0.2 * draw.random())
    return fate


def chance(text: str) -> None:
    """A job of random calls of this seed, and what befalls it. Says what was wrong, what it was told, and its last
    group."""
    seed = int(text)
    comm = optcc.Communicator(f"uniform:servers={WORLD},nics=2,rate=100Gb/s", timeout_s=60.0)
    fate, in_shrink = fate_of(seed), list[float]()
    timers: list[threading.Timer] = []

    def soon(delay_s: float, what: Callable[[], object]) -> None:
        timers.append(threading.Timer(delay_s, what))
        timers[-1].daemon = True
        timers[-1].start()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def befalls(what: str, number: int, *more: Any) -> None:
        match what, number == RANK:
            case "strike", _ if number in numbers:
                kind, part = more
                comm.strike(kind, f"server{number}/nic1", part, 0.3)
                say(happened="faults on NICs") if number == RANK else None
            case "stop", True:
                soon(more[0], lambda: stop(more[1]))
            case "kill", True:
                soon(more[0], die)
            case "kill in shrink", True:
                in_shrink.append(more[0])

    def calls(group: Any, step: int) -> None:
        """Some, under way together."""
        count = random.Random(seed * STEPS + step).randrange(1, MOST + 1)
        under_way = deque(
            contract.begin(group, call) for call in contract.calls_of(seed * STEPS + step, count, group.world, LARGEST)
        )
        while under_way:
            for wrong in under_way.popleft()():
                say(wrong=wrong)
        say(calls=count)

    def parts(step: int) -> None:
        color = random.Random(seed * STEPS + step).choice((0, 1))
        there = [number for number in numbers if number % 2 == color or comm.world < 4]
        mine = there if RANK in there else [number for number in numbers if number not in there]
        told_of, sub = numbers, comm._sub

        def parted(*of: Any, **how: Any) -> Any:  # from here on it is the part that fails, not the whole
            nonlocal told_of
            told_of = mine
            return sub(*of, **how)

        comm._sub = parted  # type: ignore[method-assign]
        try:
            part = comm.split(0 if RANK in there else 1)
            assert part
            with part:
                calls(part, step)
            say(happened="splits")
        except optcc.RankFailedError as error:  # the whole group hears of it, too, in its next call
            say(told=str(error), of=told_of)
        finally:
            comm._sub = sub  # type: ignore[method-assign]

    step, numbers = 0, [*range(WORLD)]
    while True:
        try:
            ranks = int(comm.all_reduce(np.array([1 << RANK]))[0])
            numbers = [number for number in range(WORLD) if ranks >> number & 1]
            step = int(comm.all_reduce(np.array([step]), op="max")[0])  # some had the result of a call, others not
            while step < STEPS:
                split = False
                for what in fate.pop(step, ()):
                    split |= what[0] == "split"
                    befalls(*what)
                if split:
                    parts(step)
                calls(comm, step)
                step += 1
            for timer in timers:
                timer.cancel()
            ranks = int(comm.all_reduce(np.array([1 << RANK]))[0])
            break
        except optcc.RankFailedError as error:
            say(told=str(error), of=numbers)
            if in_shrink:
                soon(in_shrink.pop(), die)
            left = comm.shrink()
            say(happened="shrinks")
            comm.close()
            comm, numbers = left, []
    say(ranks=ranks)
    comm.close()


# --- ranks that leave ------------------------------------------------------------------------------------------------


def left(how: str, warm: str, call: str) -> None:
    """Rank 1 leaves, the others call; for that they come, early or late."""
    comm = optcc.Communicator()
    if warm == "warm":
        comm.all_reduce(ones())
        outcome(comm.barrier)  # who is still in it when another one is told may be told here
    if RANK != 1:
        outcome(lambda: CALLS[call](comm))
        comm.close()
    elif how == "close":
        comm.close()
        sys.stdin.read()  # it lives on
    elif how == "exit":
        sys.exit(3)
    else:
        with comm:
            sys.exit("enough") if how == "with, exit" else _raises()


def _raises() -> None:
    raise ValueError("boom")


def late_to_shrink(within_s: str) -> None:
    """Rank 2 comes to shrink when the others have not waited any longer."""
    comm = optcc.Communicator()
    outcome(lambda: comm.all_reduce(ones()))  # who leaves may have been faster than this rank
    comm._member.timeout_s = float(within_s)
    if RANK == WORLD - 1:
        os._exit(1)
    if RANK == 2:
        time.sleep(4 * float(within_s))
    outcome(comm.barrier)
    try:
        comm = comm.shrink()
        outcome(lambda: comm.all_reduce(ones()), world=comm.world)
        sys.stdin.read()
    except optcc.InputError as error:
        say(error=str(error), kind="InputError")


# --- forked children -------------------------------------------------------------------------------------------------


def _end_if_it_hangs() -> None:
    """By a signal: faulthandler's own timer has a thread and a lock, which a forked child waits for at its end."""
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(HANGS_S)


def child(work: Callable[[], object]) -> None:
    """In a process that is forked from this one; waits for it."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(HANGS_S // 2)
        work()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        say(child_ended=status)


def _every_use(comm: Any) -> None:
    """By a child. Says which uses were refused."""
    uses = {
        **{name: call for name, call in CALLS.items() if name != "close()"},
        "shrink": lambda c: c.shrink(),
        "strike": lambda c: c.strike("cut", "server1/nic0"),
        "events": lambda c: c.events(),
        "empty": lambda c: c.empty(10, "float32"),
    }
    refused = []
    for name, use in uses.items():
        try:
            use(comm)
        except optcc.InputError as error:
            if "belongs to the process that made it" in str(error):
                refused.append(name)
    say(child=refused == list(uses))


def forked(*kinds: str) -> None:
    """A child of every rank does something; then all ranks go on."""
    comm = optcc.Communicator("uniform:servers=3,nics=2,rate=100Gb/s")
    arrays = comm.empty(LARGE, "float32")
    comm.all_reduce(arrays)
    _end_if_it_hangs()

    def pool() -> None:
        with multiprocessing.get_context("fork").Pool(2) as workers:
            assert workers.map(abs, [-1, 2]) == [1, 2]
            arrays[:] = 1
            comm.all_reduce(arrays)

    def drop() -> None:
        for each in list(vars(comm)):
            delattr(comm, each)
        gc.collect()

    children = {
        "use": lambda: _every_use(comm),
        "close": comm.close,
        "with": lambda: comm.__exit__(None, None, None),
        "abort": lambda: comm.abort("in a child"),
        "exit": sys.exit,  # with all that Python does at the end of a process
        "collect": drop,
    }
    for what in kinds:
        pool() if what == "pool" else child(children[what])
        arrays[:] = 1
        outcome(lambda: comm.all_reduce(arrays))
        outcome(lambda: comm.all_reduce(ones(SMALL)))
    comm.close()
    say(closed=True)


def outlived(mourned: str) -> None:
    """A rank is killed whose child lives on."""
    comm = optcc.Communicator()
    comm.all_reduce(ones())
    comm.barrier()
    _end_if_it_hangs()
    if int(mourned) == RANK:
        if os.fork() == 0:
            os.close(1)
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    outcome(comm.barrier)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
