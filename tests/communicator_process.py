"""A rank of a communicator as a process of its own, for tests that kill one: rank, world, port, which one dies.

Prints what it has come to, line by line.
"""

import os
import signal
import sys

import numpy as np

import optcc

rank, world, port, dies = map(int, sys.argv[1:])


def show(*words: object) -> None:
    print(*words, flush=True)


comm = optcc.Communicator(rendezvous=f"127.0.0.1:{port}", rank=rank, world=world)
show(comm.all_reduce(np.array([rank + 1.0]))[0])
ones, total = np.ones(1 << 18), comm.empty(1 << 18, "float64")  # chunks are lent
try:
    for turn in range(1000):
        if rank == dies and turn == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(ones, out=total)
except optcc.RankFailedError as error:
    show(error.rank, error)
try:
    comm.barrier()
except optcc.RankFailedError as error:
    show(error.rank, error)
try:
    left = comm.shrink()
except optcc.InputError as error:
    show(error)
else:
    comm.close()
    with left:
        show(left.rank, left.world, left.all_reduce(np.array([rank + 1.0]))[0], left.all_reduce(ones, out=total).max())
