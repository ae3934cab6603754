"""A rank of a communicator as a process of its own, for tests that kill some: rank, world, port; of rank 0 also to how
many others it tells a verdict before it kills itself.

The rank calls until others fail, and goes on with those that are left, until the test says so: a line on the standard
input, to every rank. It prints as JSON the verdicts that it was told, and of the last group the size, a bit for each
rank, and how many results were wrong.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Iterable

import numpy as np

import optcc
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.messages import RunFailed, ToRank

rank, world, port, *tells = map(int, sys.argv[1:])
SIZES = (10, 1 << 18, 1000)


say = Overseer.say


def dies_telling(self: Overseer, ranks: Iterable[int], message: ToRank) -> None:
    """A hub that ends in the middle of a verdict."""
    there = [number for number in ranks if number in self._lines]
    say(self, there[: tells[0]] if isinstance(message, RunFailed) else there, message)
    if isinstance(message, RunFailed):
        os.kill(os.getpid(), signal.SIGKILL)


if tells:
    Overseer.say = dies_telling  # type: ignore[method-assign]
comm = optcc.Communicator(rendezvous=f"127.0.0.1:{port}", rank=rank, world=world, timeout_s=60.0)
print(json.dumps("ready"), flush=True)
told: list[str] = []
wrong, calls = 0, 0
while True:
    try:
        ones = comm.all_reduce(np.ones(SIZES[calls % len(SIZES)], np.float32))
        wrong += int((ones != comm.world).sum())
        calls += 1
        over = bool(select.select([sys.stdin], [], [], 0)[0])
        if comm.all_reduce(np.array([over], np.int32), op="max")[0]:
            break
    except optcc.RankFailedError as error:
        told.append(str(error))
        left = comm.shrink()
        comm.close()
        comm, calls = left, 0
total = int(comm.all_reduce(np.array([1 << rank]))[0])
print(json.dumps({"told": told, "world": comm.world, "ranks": total, "wrong": wrong}), flush=True)
comm.close()
