"""The native engine over TCP against one plain stream of iperf3, over the same links. Writes docs/bench-tcp.md.

Two ranks, each a process in a network namespace of its own, with one pair of veth between them, at rates that tc sets.
Runs of both take turns. Exit status 1 when a result is wrong, or one transfer gets less than 0.9 of the stream's rate.
Needs root, ip, tc and iperf3.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

import optcc
from benchmarks.pages import interval, made_with, parser, table, write
from optcc.machine.native import LIBRARY
from optcc.runtime.devices.host import Op
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests.namespaces import Namespaces, entered
from tests.native_replay import AGAIN, LOST, OK
from tests.tcp_ranks import Rank, load

SEGMENT, WINDOW = 128 << 10, 2 << 20
LEAST = 0.9
ROUNDS = 15
MIB = 1 << 20


class Case(NamedTuple):
    """rate : as tc writes it, empty: no limit; nbytes : of a transfer, about half a second's"""

    rate: str
    nbytes: int


CASES = (Case("1gbit", 64 * MIB), Case("5gbit", 256 * MIB), Case("10gbit", 512 * MIB), Case("", 1024 * MIB))


def one_way(nbytes: int) -> Schedule:
    """All of rank 0's buffer goes to rank 1."""
    ring = pair(nbytes)
    (route,) = (number for number, route in enumerate(ring.routes) if (route.src, route.dst) == (0, 1))
    return ring.replace(
        route=np.array([route], np.int32),
        offset=np.array([0]),
        length=np.array([nbytes]),
        reduce=np.array([False]),
        stage=ring.stage[:1],
        segment=ring.segment[:1],
        dep_ptr=np.array([0, 0]),
        dep_idx=np.array([], np.int64),
    )


def pair(nbytes: int) -> Schedule:
    """AllReduce of two ranks with a NIC each: both send half of the buffer, twice."""
    return optcc.plan(Cluster.uniform(servers=2, nics=1, rate=10**9), nbytes, segments=4).schedule()


def rank_of(number: int, place: str, address: str, far: int, to: Connection) -> None:
    """A rank in a process: runs (schedule, operation) as they come, and answers (seconds, whether it was right)."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number % os.cpu_count()]})
    with entered(place):
        lib = load(LIBRARY)
        rank = Rank(lib, number, [address], ranks=2, segment=SEGMENT)
        to.send(rank.handle)
        assert rank.join(1 - number, to.recv()) == OK
        assert rank.ready() == OK
        rank.start(window=WINDOW, suspect_ns=5 * 10**9)
        while True:
            if not to.poll(0):
                rank.progress()  # the other may ask for the last acknowledgement
                continue
            task = to.recv()
            if task is None:
                break
            schedule, reduces = task
            buffer = np.full(schedule.nbytes // 4, 1 + number, np.int32)
            to.send("begun")
            to.recv()
            begun = time.perf_counter()
            result = rank.call(schedule, "int32", Op.SUM, buffer, np.zeros(len(schedule.routes), np.uint64))
            seconds = time.perf_counter() - begun
            right = 3 if reduces else 1
            to.send((seconds, result == OK and bool((buffer == right).all())))
        rank.close()


class Ranks:
    """Both, running."""

    def __init__(self, places: Namespaces) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.ends, self.processes = [], []
        for number, name in enumerate(places.names):
            mine, theirs = spawn.Pipe()
            given = (number, name, places.address(number, 0), 1 - number, theirs)
            self.ends.append(mine)
            self.processes.append(spawn.Process(target=rank_of, args=given, daemon=True))
            self.processes[-1].start()
        handles = [end.recv() for end in self.ends]
        for end, handle in zip(self.ends, handles[::-1], strict=True):
            end.send(handle)

    def run(self, schedule: Schedule, reduces: bool) -> tuple[float, bool]:
        """Seconds until the last one has ended; whether all is right."""
        for end in self.ends:
            end.send((schedule, reduces))
        for end in self.ends:
            end.recv()
        for end in self.ends:
            end.send("go")
        answers = [end.recv() for end in self.ends]
        return max(seconds for seconds, _ in answers), all(right for _, right in answers)

    def stop(self) -> None:
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join(20)


def stream(places: Namespaces, nbytes: int) -> float:
    """Bytes per second that iperf3 gets by one stream, as its receiver counts them."""
    client = ["iperf3", "-c", places.address(1, 0), "-n", str(nbytes), "-J"]
    done = subprocess.run(
        ["ip", "netns", "exec", places.names[0], *client], capture_output=True, text=True, check=True, timeout=120
    )
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8
