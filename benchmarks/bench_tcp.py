"""The native engine over TCP against one plain stream of iperf3, over the same links. Writes docs/bench-tcp.md.

Two ranks, each a process in a network namespace of its own, with one pair of veth between them, at rates that tc sets.
Runs of both take turns. Exit status 1 when a result is wrong, or one transfer gets less than 0.9 of the stream's rate.
Needs root, ip, tc and iperf3.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import NamedTuple

import numpy as np
from rich.progress import track

import optcc
from benchmarks.pages import interval, made_with, parser, table, write
from optcc.machine.native import LIBRARY
from optcc.runtime.devices.host import Op
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from optcc.values.units import format_size
from tests.namespaces import Namespaces, entered, missing
from tests.native_replay import OK
from tests.tcp_ranks import Rank, load

SEGMENT, WINDOW = 128 << 10, 2 << 20
LEAST = 0.9
ROUNDS = 15
MIB = 1 << 20


class Case(NamedTuple):
    """rate : as tc writes it, empty: no limit; nbytes : of a transfer"""

    rate: str
    nbytes: int


CASES = (Case("1gbit", 32 * MIB), Case("2.5gbit", 64 * MIB), Case("5gbit", 128 * MIB), Case("", 512 * MIB))
KINDS = ("transfer", "AllReduce")


def schedule_of(kind: str, nbytes: int) -> Schedule:
    """transfer : rank 0's buffer goes to rank 1; AllReduce : both send half of theirs, twice"""
    ring = optcc.plan(Cluster.uniform(servers=2, nics=1, rate=10**9), nbytes, segments=4).schedule()
    if kind == "AllReduce":
        return ring
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


def rank_of(number: int, place: str, address: str, to: Connection) -> None:
    """A rank in a process: runs (kind, bytes) as they come, and answers (seconds, whether the result is right)."""
    schedules: dict[tuple[str, int], Schedule] = {}
    with entered(place):
        rank = Rank(load(LIBRARY), number, [address], ranks=2, segment=SEGMENT)
        to.send(rank.handle)
        assert rank.join(1 - number, to.recv()) == OK
        assert rank.ready() == OK
        rank.start(window=WINDOW, suspect_ns=5 * 10**9)
        while True:
            while not to.poll(0.001):
                rank.progress()  # the other one may ask for the last acknowledgement
            task = to.recv()
            if task is None:
                break
            schedule = schedules.setdefault(task, schedule_of(*task))
            buffer = np.full(schedule.nbytes // 4, 1 + number, np.int32)
            to.send("ready")
            to.recv()
            begun = time.perf_counter()
            result = rank.call(schedule, "int32", Op.SUM, buffer, np.zeros(len(schedule.routes), np.uint64))
            seconds = time.perf_counter() - begun
            to.send((seconds, result == OK and bool((buffer == (3 if task[0] == "AllReduce" else 1)).all())))
        rank.close()


class Ranks:
    """Both, running."""

    def __init__(self, places: Namespaces) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.ends, self.processes = [], []
        for number, name in enumerate(places.names):
            mine, theirs = spawn.Pipe()
            given = (number, name, places.address(number, 0), theirs)
            self.ends.append(mine)
            self.processes.append(spawn.Process(target=rank_of, args=given, daemon=True))
            self.processes[-1].start()
        handles = [end.recv() for end in self.ends]
        for end, handle in zip(self.ends, handles[::-1], strict=True):
            end.send(handle)

    def run(self, kind: str, nbytes: int) -> tuple[float, bool]:
        """Seconds until the last one has ended; whether all is right."""
        for end in self.ends:
            end.send((kind, nbytes))
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


@contextmanager
def listener(places: Namespaces) -> Iterator[None]:
    """iperf3's receiver."""
    command = ["ip", "netns", "exec", places.names[1], "iperf3", "-s"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def stream(places: Namespaces, nbytes: int) -> float:
    """Bytes per second that one stream of iperf3 gets, as its receiver counts them."""
    command = ["ip", "netns", "exec", places.names[0], "iperf3", "-c", places.address(1, 0), "-n", str(nbytes), "-J"]
    for _ in range(50):  # it may not listen yet, or be at the end of the last one
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if not done.returncode:
            return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8
        time.sleep(0.1)
    raise RuntimeError(done.stdout)


def measure(places: Namespaces, case: Case, ranks: Ranks) -> tuple[list[float], dict[str, list[float]], bool]:
    """Rates of streams, and by kind of ours, in turns; whether all results are right."""
    streams, ours, right = [], {kind: list[float]() for kind in KINDS}, True
    places.set_rate(0, case.rate)
    for kind in KINDS:  # once for what is done once
        ranks.run(kind, case.nbytes)
    for turn in track(range(ROUNDS), description=case.rate or "no limit"):
        if turn % 2:
            streams.append(stream(places, case.nbytes))
        for kind in KINDS:
            seconds, good = ranks.run(kind, case.nbytes)
            ours[kind].append(case.nbytes / seconds)
            right &= good
        if not turn % 2:
            streams.append(stream(places, case.nbytes))
    return streams, ours, right


HEAD = (
    "link",
    "buffer",
    "one stream of iperf3",
    *(f"{kind}, {what}" for kind in KINDS for what in ("rate", "of the stream's")),
)


def main() -> int:
    given = parser(__doc__, "bench-tcp").parse_args()
    if lacks := missing() or ("" if shutil.which("iperf3") else "needs iperf3: apt install iperf3"):
        print(f"benchmarks.bench_tcp {lacks}", file=sys.stderr)
        return 2
    rows, least, right = [], 1.0, True
    with Namespaces(1) as places, listener(places):
        ranks = Ranks(places)
        for case in CASES:
            streams, ours, good = measure(places, case, ranks)
            right &= good
            cells = [case.rate or "no limit", format_size(case.nbytes), f"{median(streams) / 1e6:.0f} MB/s"]
            for kind in KINDS:
                middle, told = interval([one / stream for one, stream in zip(ours[kind], streams, strict=True)])
                cells += [f"{median(ours[kind]) / 1e6:.0f} MB/s", told]
                least = min(least, middle) if kind == "transfer" else least
            rows.append(cells)
        ranks.stop()
    write(given.output, [*PAGE.splitlines(), "", *table(HEAD, rows), "", *END.splitlines(), "", made_with(version())])
    if not right:
        print("a result is wrong", file=sys.stderr)
    if least < LEAST:
        print(f"a transfer gets {least:.2f} of the stream's rate, less than {LEAST}", file=sys.stderr)
    return int(not right or least < LEAST)


def version() -> str:
    """Of iperf3."""
    done = subprocess.run(["iperf3", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition(" (")[0].strip()


PAGE = f"""# Wires over TCP

Made by `make bench-tcp`: two ranks of [the native engine](native-engine.md), each a process in a network namespace of
its own, and one pair of veth between them, at the rate that tc sets at both ends.
One TCP connection, segments of {format_size(SEGMENT)}, at most {format_size(WINDOW)} unacknowledged.
Beside it one stream of iperf3, a connection of its own each time, with as many bytes over the same link, in turns,
{ROUNDS} times.
A transfer puts rank 0's buffer into rank 1's, and is over when both know; of an AllReduce (int32, sums) each rank sends
and takes in as many bytes as the buffer has, at the same time.
Medians of the rates, and of the pairs' ratios the median +- its 95 % interval (quartiles)."""
END = f"""Expected of a transfer: at least {LEAST} of the stream's rate.
Without a limit it is the processor that is measured: iperf3 throws away what it reads, a rank puts it into its buffer,
and in an AllReduce both ranks send, take in and add, with two cores between them."""


if __name__ == "__main__":
    sys.exit(main())
