"""A rank of a communicator as a process of its own, for tests that kill some: rank, world, port.

The rank calls until others fail, and goes on with those that are left. It prints as JSON the verdicts that it was told,
and of the last group the size, a bit for each rank, and how many results were wrong.
"""

import json
import sys

import numpy as np

import optcc

rank, world, port = map(int, sys.argv[1:])
SIZES = (10, 1 << 18, 1000)
DONE = 200
"""Calls that a group makes before it is the last one."""

comm = optcc.Communicator(rendezvous=f"127.0.0.1:{port}", rank=rank, world=world, timeout_s=60.0)
comm.barrier()
print(json.dumps("ready"), flush=True)
told: list[str] = []
wrong, calls = 0, 0
everybody = world
while not (comm.world < everybody and calls == DONE):
    try:
        ones = comm.all_reduce(np.ones(SIZES[calls % len(SIZES)], np.float32))
        wrong += int((ones != comm.world).sum())
        calls += 1
    except optcc.RankFailedError as error:
        told.append(str(error))
        left = comm.shrink()
        comm.close()
        comm, calls = left, 0
total = int(comm.all_reduce(np.array([1 << rank]))[0])
print(json.dumps({"told": told, "world": comm.world, "ranks": total, "wrong": wrong}), flush=True)
comm.close()
