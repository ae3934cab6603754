"""A rank that calls until another is lost, and goes on with those that are left, over optcc or over MPI with ULFM: for
bench_rank_lost. Arguments: optcc or mpi, a scene of its, and for optcc HOST:PORT, rank, world, and for TCP the cluster.

It prints as JSON when what happened, by the machine's monotonic clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

CALLS = 50
"""Before the scene begins."""
STOPPED_S = 20
IDLE_S, SETTLED_S = 60, 3
"""For so long nothing is called, once what was has been over for so long."""
COUNT = 1 << 16


class OverOptcc:
    """By optcc's communicator."""

    def __init__(self, comm: Any) -> None:
        import optcc

        self.comm, self.lost = comm, optcc.RankFailedError
        self.rank, self.world = comm.rank, comm.world

    def sum(self) -> float:
        return float(self.comm.all_reduce(np.ones(COUNT, np.float32))[0])

    def broadcast(self) -> None:
        self.comm.broadcast(np.ones(COUNT, np.float32))

    def fewer(self) -> OverOptcc:
        return OverOptcc(self.comm.shrink())

    def leave(self) -> None:
        """Once all have what they were sent."""
        self.comm.close()


class OverMpi:
    """By mpi4py over an MPI with ULFM."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self.comm, self.lost = comm, MPI.Exception
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.world = comm.rank, comm.size

    def sum(self) -> float:
        total = np.empty(COUNT, np.float32)
        self.comm.Allreduce(np.ones(COUNT, np.float32), total)
        return float(total[0])

    def broadcast(self) -> None:
        self.comm.Bcast(np.ones(COUNT, np.float32))

    def fewer(self) -> OverMpi:
        self.comm.Revoke()  # others may not have met the failure yet
        return OverMpi(self.comm.Shrink())

    def leave(self) -> None:
        time.sleep(1)  # others read what this one has sent


def main() -> None:
    over, scene, *where = sys.argv[1:]
    group: Any
    if over == "optcc":
        import optcc

        over_tcp: dict[str, Any] = {"cluster": where[3], "transport": "tcp"} if where[3:] else {}
        made = optcc.Communicator(rendezvous=where[0], rank=int(where[1]), world=int(where[2]), **over_tcp)
        group = OverOptcc(made)
    else:
        from mpi4py import MPI

        group = OverMpi(MPI.COMM_WORLD)
    said: dict[str, Any] = {"rank": group.rank, "lost": 0}

    def say(**more: Any) -> None:
        print(json.dumps(said | more) + "\n", end="", flush=True)

    def die(when: str) -> None:
        if said["rank"] in {rank % group.world for rank in DEATHS.get((scene, when), ())}:
            say(died=time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(CALLS):
        group.sum()
    if scene == "idle":
        time.sleep(SETTLED_S)
        start, before = time.monotonic(), time.process_time()
        time.sleep(IDLE_S)
        say(idle=(time.process_time() - before) / (time.monotonic() - start))
        group.sum()
        group.leave()
        return
    die("call")
    if scene == "stopped" and group.rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep {STOPPED_S}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        if scene == "calls differ":
            group.broadcast() if group.rank == 1 else group.sum()
        total = [group.sum() for _ in range(CALLS if scene == "stopped" else CALLS**3)][-1]
    except group.lost as error:
        said["failed"], said["text"] = time.monotonic(), str(error)
        die("shrink")
        while True:
            said["lost"] += 1
            try:
                group = group.fewer()
                said["shrunk"] = time.monotonic()
                total = group.sum()
                break
            except group.lost:
                continue
            except Exception as error:  # it is not among those that are left
                say(out=str(error))
                os._exit(0)
    say(world=group.world, sum=total)
    group.leave()
    os._exit(0)


DEATHS = {
    ("the last rank is killed", "call"): (-1,),
    ("rank 0 is killed", "call"): (0,),
    ("two are killed at once", "call"): (1, 2),
    ("a second is killed in shrink", "call"): (-1,),
    ("a second is killed in shrink", "shrink"): (1,),
}
"""By scene and when: the ranks, -1 the last one."""

if __name__ == "__main__":
    main()
