"""Training that loses rank 0, goes on with three, takes a new rank in, and ends with the weights of a run without loss.

    python examples/survive_rank.py

It starts four processes of itself, as a scheduler would. Rank 0 is killed in the middle of a step; the others go on as
three; a new process comes in its place. In the end every rank compares its weights with those of a process that does
all steps alone: they are equal, bit for bit. Two rules make them so:

* A step's data are SHARES parts, whoever computes them: rank r of w takes the parts r, r + w, r + 2 w, ...
* Gradients are rounded to whole multiples of UNIT before they are added: sums of integers do not depend on their order.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np

import optcc

WORLD, SHARES, BATCH, WIDTH = 4, 12, 8, 64
LOST_AT, ALONE_FOR, STEPS = 12, 6, 30
"""In the middle of which step rank 0 is killed; how many more steps the others make before they take a new rank in."""
UNIT = 2.0**-30
RATE = 0.05


def start() -> np.ndarray:
    """Weights of two layers, flat; the same on all ranks."""
    return np.random.default_rng(0).normal(0, 0.1, WIDTH * 16 + WIDTH)


def gradient(weights: np.ndarray, step: int, share: int) -> np.ndarray:
    """Of the mean squared error on this part of the step's data, as whole multiples of UNIT."""
    x = np.random.default_rng((step, share)).normal(size=(BATCH, 16))
    first, second = weights[: WIDTH * 16].reshape(16, WIDTH), weights[WIDTH * 16 :]
    hidden = np.tanh(x @ first)
    error = 2 / BATCH * (hidden @ second - np.sin(x).sum(1))
    back = error[:, None] * second * (1 - hidden**2)
    return np.rint(np.concatenate([(x.T @ back).ravel(), error @ hidden]) / UNIT).astype(np.int64)


def own_part(weights: np.ndarray, step: int, rank: int, world: int) -> np.ndarray:
    """The sum over this rank's parts."""
    total = np.zeros(len(weights), np.int64)
    for share in range(rank, SHARES, world):
        total += gradient(weights, step, share)
    return total


def descend(weights: np.ndarray, total: np.ndarray) -> np.ndarray:
    return weights - RATE * (total * (UNIT / SHARES))


def caught_up(comm: optcc.Communicator, weights: np.ndarray, step: int) -> tuple[np.ndarray, int]:
    """Everybody has the weights and the step of the rank that has come furthest: some may have had the sum of the step
    in which a rank was lost, and a new one has nothing."""
    steps = comm.all_gather(np.array([step]), np.empty(comm.world, np.int64))
    weights = weights.copy()
    comm.broadcast(weights, root=int(np.argmax(steps)))
    return weights, int(steps.max())


def train(comm: optcc.Communicator, step: int, rejoin: str) -> bool:
    """Whether it ends with the right weights. rejoin : where a new rank is taken in"""
    weights, grow_at = start(), STEPS
    if step < 0:
        weights, step = caught_up(comm, weights, step)
    while step < STEPS:
        if step == grow_at and comm.world < WORLD:
            more = comm.grow(WORLD, rejoin)
            comm.close()
            comm = more
            weights, step = caught_up(comm, weights, step)
        try:
            part = own_part(weights, step, comm.rank, comm.world)
            if step == LOST_AT and comm.world == WORLD and comm.rank == 0:
                comm.all_reduce(part, async_op=True)
                os.kill(os.getpid(), signal.SIGKILL)
            total = comm.all_reduce(part, out=np.empty_like(part))
        except optcc.RankFailedError as error:  # the same on all that are left
            print(f"rank {comm.rank} of {comm.world} goes on in step {step}: {error}", flush=True)
            left = comm.shrink()
            comm.close()
            comm = left
            weights, step = caught_up(comm, weights, step)
            grow_at = step + ALONE_FOR
            continue
        weights, step = descend(weights, total), step + 1

    alone = start()
    for each in range(STEPS):
        alone = descend(alone, own_part(alone, each, 0, 1))
    same = np.array_equal(weights, alone)
    found = "the weights of a run without loss, bit for bit" if same else "other weights than without loss"
    print(f"rank {comm.rank} of {comm.world}: {STEPS} steps, {found}", flush=True)
    comm.close()
    return same


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def launch() -> int:
    """What a scheduler does: starts four ranks, and a new process when rank 0 was killed. Returns the exit status."""
    first, rejoin = free_address(), free_address()
    command = [sys.executable, __file__, "--rejoin", rejoin]
    ranks = [subprocess.Popen([*command, "--rank", str(rank), "--rendezvous", first]) for rank in range(WORLD)]
    new = False
    try:
        while any(rank.poll() is None for rank in ranks):
            if not new and ranks[0].poll() == -signal.SIGKILL:
                print("rank 0 was killed; a new process comes in its place", flush=True)
                new = True
                ranks.append(subprocess.Popen([*command, "--rank", str(WORLD - 1), "--rendezvous", rejoin, "--new"]))
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
    return 0 if new and all(rank.wait() == 0 for rank in ranks[1:]) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, help="be this rank; without it, start all of them")
    parser.add_argument("--rendezvous", help="where the ranks meet")
    parser.add_argument("--rejoin", help="where those that are left take a new rank in")
    parser.add_argument("--new", action="store_true", help="come to ranks that have trained for a while")
    given = parser.parse_args()
    if given.rank is None:
        return launch()
    comm = optcc.Communicator(rendezvous=given.rendezvous, rank=given.rank, world=WORLD)
    return 0 if train(comm, -1 if given.new else 0, given.rejoin) else 1


if __name__ == "__main__":
    sys.exit(main())
