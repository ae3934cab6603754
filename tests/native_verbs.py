"""The native engine over RDMA queue pairs: jobs of processes, on played NICs or on the lab's, and what befalls them.

``python -m tests.native_verbs SEED ...`` plays seeds on a fabric of its own and says what happened; ``--lid`` on one
without GIDs, ``--sanitize`` with AddressSanitizer and UndefinedBehaviorSanitizer, ``--time`` times segments.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import mmap
import os
import random
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from optcc.machine.rdma import NicAddress
from optcc.runtime.devices.host import Array, Op
from optcc.runtime.native.library import VERBS_HANDLE_BYTES as HANDLE_BYTES
from optcc.runtime.native.library import VerbsConfig, WireEnds, WireState
from optcc.runtime.native.library import VerbsNic as NicName
from optcc.schedule import Schedule
from tests import native_build
from tests import native_replay as native
from tests.native_replay import COUNTERS, OK, RESULTS, ROOT, SECOND_NS, Config, Counters, Ground

UP = 0
"""Of enum optcc_wire_is."""
PATIENCE_S = 60
"""For whatever should take a fraction of a second."""
NOTHING, READ_WRITE = 0, 3
"""Of mprotect: what may be done to memory."""


def load(library: Path) -> Any:
    """The library, with the types of what it returns and takes."""
    return native.load(library)


# --- a job and what befalls it -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strike:
    """When `at` segments have landed at `rank`, a NIC (its number among all) suffers `kind`, for so many seconds."""

    kind: str
    rank: int
    at: int
    nic: int
    lasts_s: float = 0.05
    to: int = 0  # of a broken path: the other NIC


@dataclass
class Job:
    """Collectives of processes, one after another.

    verbs : path of a libibverbs; addresses : of NICs, those of rank 0 first; missing : NICs whose device is not there
    calls : type and operation of each collective
    bytes_per_s : that NICs are said to have; 0: nothing is
    unregistered : no NIC is told of the buffers; crashes : nobody wants to know where
    returns : all wires are to be whole before the last call
    patience_s : for whatever should take a fraction of a second
    """

    ground: Ground
    addresses: Sequence[NicAddress]
    calls: Sequence[tuple[str, Op]] = (("float32", Op.SUM),)
    strikes: Sequence[Strike] = ()
    network: Any = None
    verbs: str = "libibverbs.so.1"
    segment: int = 4096
    window: int = 16384
    ahead: int = 8
    bytes_per_s: int = 0
    timeout: int = 10
    retries: int = 6
    suspect_s: float = 0.1
    missing: Sequence[int] = ()
    protects: bool = True
    returns: bool = False
    unregistered: bool = False
    patience_s: float = PATIENCE_S
    crashes: bool = False
    seed: int = 1
    wires: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.nics = [len(mine) for mine in self.ground.nics]
        self.first = [sum(self.nics[:rank]) for rank in range(len(self.nics))]
        assert len(self.addresses) >= sum(self.nics), "not enough NICs"
        self.wires = []
        for rank in range(self.ranks):
            table = []
            for peer in range(self.ranks):
                lanes = self.ground.wires.get((min(rank, peer), max(rank, peer)), []) if peer != rank else []
                for lane, ends in enumerate(lanes):
                    mine, far = ends if rank < peer else ends[::-1]
                    table.append(WireEnds(peer=peer, nic=mine, far_nic=far, lane=lane))
            self.wires.append((WireEnds * len(table))(*table))

    @property
    def ranks(self) -> int:
        return self.ground.ranks

    @property
    def schedule(self) -> Schedule:
        return self.ground.schedules[0][1]

    @property
    def segments(self) -> int:
        """That land, at all ranks, in all calls."""
        return len(self.calls) * native.segments(self.schedule, self.ground.lanes(self.schedule), self.segment)

    def peers(self, rank: int) -> list[int]:
        return sorted({wire.peer for wire in self.wires[rank]})


@dataclass
class Outcome:
    """Of a job.

    fault : what is wrong with it, empty: nothing; errors : what ranks say, by rank; counters : over all ranks
    carried : bytes acknowledged of each NIC; epochs : the highest life of a wire of each NIC
    """

    fault: str
    errors: list[str]
    counters: dict[str, int]
    carried: list[int]
    epochs: list[int]


class Spoiled:
    """The strikes of a rank: done when their time has come, and undone again."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job, self._network = job, job.network
        self._to_come = sorted((s for s in job.strikes if s.rank == rank), key=lambda s: s.at)
        self._to_heal: list[tuple[float, Strike]] = []

    @property
    def healed(self) -> bool:
        return not self._to_heal

    def look(self, landed: int) -> None:
        now = time.monotonic()
        while self._to_come and landed >= self._to_come[0].at:
            strike = self._to_come.pop(0)
            self._do(strike)
            self._to_heal.append((now + strike.lasts_s, strike))
        for when, strike in list(self._to_heal):
            if now >= when:
                self._to_heal.remove((when, strike))
                self._undo(strike)

    def _do(self, strike: Strike) -> None:
        match strike.kind:
            case "cut":
                self._network.cut(strike.nic)
            case "gone":
                fabric().down(name_of(strike.nic), gone=True)
            case "heal":
                self._network.restore(strike.nic)
            case "pause":
                time.sleep(strike.lasts_s)
            case "path":
                path(strike.nic, strike.to, lost=True)
            case "out" | "in" | "both":
                self._network.lose(strike.nic, strike.kind)
            case "acks" | "data":
                self._network.lose(strike.nic, "both", strike.kind)

    def _undo(self, strike: Strike) -> None:
        match strike.kind:
            case "cut":
                self._network.restore(strike.nic)
            case "gone" | "pause" | "heal":
                pass
            case "path":
                path(strike.nic, strike.to, lost=False)
            case _:
                self._network.heal(strike.nic)


def fabric() -> Any:
    """The played fabric that the environment names."""
    from optcc.fabric.played import PlayedFabric
    from optcc.machine.rdma import PLAYED_FABRIC

    return PlayedFabric(os.environ[PLAYED_FABRIC])


def name_of(nic: int) -> str:
    return f"host0/{fabric().names[nic]}"


def path(nic: int, to: int, *, lost: bool) -> None:
    """What goes from one played NIC of this host to another is lost, or no more."""
    fabric().path(name_of(nic), name_of(to), lost=lost)


class Meeting:
    """What the ranks of a job share, made before they are forked."""

    def __init__(self, job: Job) -> None:
        self.ranks = job.ranks
        handles, pages = job.ranks * job.ranks * HANDLE_BYTES, job.ranks * 4096
        self.memory = mmap.mmap(-1, handles + 2 * pages)
        self.words = np.frombuffer(self.memory, np.uint64)[handles // 8 : (handles + pages) // 8]
        self.texts = memoryview(self.memory)[handles + pages :]
        self.barrier = get_context("fork").Barrier(job.ranks)

    def meet(self) -> None:
        self.barrier.wait(PATIENCE_S)

    def handle(self, rank: int, peer: int) -> Any:
        at = (rank * self.ranks + peer) * HANDLE_BYTES
        return ctypes.c_char.from_buffer(self.memory, at)

    def report(self, rank: int) -> Any:
        """512 numbers that a rank tells."""
        return self.words[rank * 512 : rank * 512 + 512]

    def say(self, rank: int, text: str) -> None:
        """What is wrong at a rank; the end of it, if it is long."""
        told = text.encode()[-4000:]
        self.texts[rank * 4096 : rank * 4096 + len(told)] = told

    def said(self, rank: int) -> str:
        return bytes(self.texts[rank * 4096 : rank * 4096 + 4096]).rstrip(b"\0").decode(errors="replace")


class Buffers:
    """Two of them, in turn. What a collective has given back may not be read until its turn comes again."""

    def __init__(self, nbytes: int, protects: bool) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._protects = protects
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._maps = [mmap.mmap(-1, self.nbytes) for _ in range(2)]
        self.at = [ctypes.addressof(ctypes.c_char.from_buffer(one)) for one in self._maps]

    def take(self, call: int, given: Array) -> Array:
        which = call % 2
        self._allow(which, READ_WRITE)
        buffer = np.frombuffer(self._maps[which], np.uint8)[: given.nbytes].view(given.dtype)
        buffer[:] = given
        return buffer

    def give_back(self, call: int) -> None:
        self._allow(call % 2, NOTHING)

    def free(self) -> None:
        for which in range(2):
            self._allow(which, READ_WRITE)

    def _allow(self, which: int, what: int) -> None:
        if self._protects:
            assert self._libc.mprotect(c_void_p(self.at[which]), ctypes.c_size_t(self.nbytes), what) == 0


def checked(lib: Any, result: int) -> None:
    if result != OK:
        raise AssertionError(f"{RESULTS[result]}: {lib.optcc_verbs_why().decode()}")


def open_wires(lib: Any, job: Job, rank: int) -> c_void_p:
    """A rank's wires. Raises AssertionError with what the library says."""
    mine = range(job.first[rank], job.first[rank] + job.nics[rank])
    names = (NicName * len(mine))()
    for i, nic in enumerate(mine):
        address = job.addresses[nic]
        device = "missing" if nic in job.missing else address.device
        gid = -1 if address.gid_index is None else address.gid_index
        names[i] = NicName(device.encode(), address.port, gid, job.bytes_per_s)
    wires = job.wires[rank]
    config = VerbsConfig(
        rank=rank,
        ranks=job.ranks,
        nics=len(mine),
        wires=len(wires),
        nic=ctypes.addressof(names),
        wire=ctypes.addressof(wires),
        library=job.verbs.encode(),
        segment_bytes=job.segment,
        window_bytes=job.window,
        ahead=job.ahead,
        timeout=job.timeout,
        retries=job.retries,
    )
    verbs = c_void_p()
    checked(lib, lib.optcc_verbs_open(byref(config), byref(verbs)))
    return verbs


def open_engine(lib: Any, job: Job, verbs: c_void_p) -> c_void_p:
    suspect_ns = round(job.suspect_s * 1e9)
    config = Config(
        segment_bytes=job.segment,
        window_bytes=job.window,
        job=job.seed,
        suspect_ns=suspect_ns,
        grace_ns=suspect_ns // 2,
        knock_ns=suspect_ns // 4,
        return_ns=PATIENCE_S * SECOND_NS,
    )
    engine = c_void_p()
    checked(lib, lib.optcc_verbs_engine(verbs, byref(config), byref(engine)))
    return engine


def meet(lib: Any, job: Job, rank: int, verbs: c_void_p, meeting: Meeting) -> None:
    """Exchange handles with all peers, and join them."""
    lengths = {}
    for peer in job.peers(rank):
        length = c_uint64(HANDLE_BYTES)
        checked(lib, lib.optcc_verbs_handle(verbs, peer, byref(meeting.handle(rank, peer)), byref(length)))
        lengths[peer] = length.value
    meeting.meet()
    for peer, nbytes in lengths.items():
        checked(lib, lib.optcc_verbs_join(verbs, peer, byref(meeting.handle(peer, rank)), nbytes))
    meeting.meet()


class Driver:
    """Makes an engine go on, and sleeps when there is nothing to do."""

    def __init__(self, lib: Any, verbs: c_void_p, engine: c_void_p, spoiled: Spoiled, patience_s: float) -> None:
        self._lib, self._verbs, self._engine, self._spoiled = lib, verbs, engine, spoiled
        self._patience_s = patience_s
        self._sleep = select.poll()
        self._sleep.register(lib.optcc_verbs_fd(verbs), select.POLLIN)
        self._counters = Counters()

    def until(self, done: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + self._patience_s
        while not done():
            wakes_ns = self._lib.optcc_progress(self._engine)
            self._spoiled.look(self.counters().landed_segments)
            fault = self._lib.optcc_verbs_fault(self._verbs)
            assert not fault, fault.decode()
            if self._lib.optcc_verbs_arm(self._verbs) == OK:
                left_ns = min(wakes_ns - time.monotonic_ns(), 5_000_000)
                if left_ns > 0:
                    self._sleep.poll(left_ns / 1e6)
            assert time.monotonic() < limit, f"{what} takes too long: {self.state()}"

    def counters(self) -> Any:
        self._lib.optcc_count(self._engine, byref(self._counters))
        return self._counters

    def state(self) -> str:
        counted = self.counters()
        return str({name: getattr(counted, name) for name in COUNTERS} | {"wires": self.wires()})

    def well(self) -> bool:
        return all(state == UP for state, *_ in self.wires())

    def wires(self) -> list[tuple[int, int, int, int]]:
        """State, life, bytes carried and bytes under way of each wire."""
        found: list[tuple[int, int, int, int]] = []
        look = WireState()
        while self._lib.optcc_wire_look(self._engine, len(found), byref(look)) == OK:
            found.append((look.state, look.epoch, look.acked_bytes, look.flying))
        return found


def run_rank(library: Path, job: Job, rank: int, meeting: Meeting, makes: type[Driver] = Driver) -> None:
    """One rank, from opening to closing. Raises AssertionError for what is wrong."""
    lib = load(library)
    verbs = open_wires(lib, job, rank)
    buffers = Buffers(job.schedule.nbytes, job.protects)
    for at in () if job.unregistered else buffers.at:
        checked(lib, lib.optcc_verbs_register(verbs, at, buffers.nbytes))
    meet(lib, job, rank, verbs, meeting)
    engine = open_engine(lib, job, verbs)
    driver = makes(lib, verbs, engine, spoiled := Spoiled(job, rank), job.patience_s)
    report, programs = meeting.report(rank), []
    others = [meeting.report(peer) for peer in range(job.ranks)]
    for call, (dtype, op) in enumerate(job.calls):
        if job.returns and call == len(job.calls) - 1:
            driver.until(lambda: spoiled.healed and driver.well(), f"what was lost has not returned to rank {rank}")
            report[0] = HEALED
            driver.until(lambda: all(told[0] for told in others), f"rank {rank} waits for all to be whole")
        if not programs:
            programs.append(native.program(lib, job.schedule, rank, job.segment, job.ground.lanes(job.schedule)))
        given, right = native.RIGHT.of(job.schedule, dtype, op)
        buffer = buffers.take(call, given[rank])
        assert lib.optcc_begin(engine, programs[0], native.call(buffer, dtype, op)) == OK
        driver.until(lambda: lib.optcc_test(engine, None) != native.AGAIN, f"call {call} at rank {rank}")
        assert lib.optcc_test(engine, None) == OK, "a rank was given up"
        assert buffer.tobytes() == right[rank].tobytes(), f"call {call}, rank {rank}: the result is wrong"
        buffers.give_back(call)
    report[0] = ENDED
    # The last acknowledgement may have to be said again.
    driver.until(lambda: spoiled.healed and all(told[0] == ENDED for told in others), f"the end at rank {rank}")
    meeting.meet()
    tell(job, rank, report, driver)
    lib.optcc_close(engine)
    for program in programs:
        lib.optcc_program_close(program)
    for at in buffers.at:
        checked(lib, lib.optcc_verbs_unregister(verbs, at))
    buffers.free()
    lib.optcc_verbs_close(verbs)


HEALED, ENDED = 1, 2
FIRST_OF_NICS = 16
"""Place of what NICs have carried in a report, and of their lives behind it."""


def tell(job: Job, rank: int, report: Any, driver: Driver) -> None:
    counted = driver.counters()
    for i, name in enumerate(COUNTERS):
        report[1 + i] = getattr(counted, name)
    for wire, (_, epoch, carried, _) in zip(job.wires[rank], driver.wires(), strict=True):
        report[FIRST_OF_NICS + wire.nic] += np.uint64(carried)
        place = FIRST_OF_NICS + 16 + wire.nic
        report[place] = max(int(report[place]), epoch)


def run(library: Path, job: Job) -> Outcome:
    """A process for each rank; what came of it."""
    for dtype, op in job.calls:
        native.RIGHT.of(job.schedule, dtype, op)  # once, and not in each rank
    meeting = Meeting(job)

    def rank_of(rank: int) -> None:
        if job.crashes:
            faulthandler.disable()
        try:
            run_rank(library, job, rank, meeting)
        except BaseException:
            meeting.say(rank, traceback.format_exc())
            meeting.barrier.abort()
            os._exit(1)
        os._exit(0)

    ranks = [get_context("fork").Process(target=rank_of, args=(rank,)) for rank in range(job.ranks)]
    for process in ranks:
        process.start()
    limit = time.monotonic() + 3 * PATIENCE_S
    while any(process.exitcode is None for process in ranks):
        time.sleep(0.005)
        if time.monotonic() > limit or any(process.exitcode for process in ranks):
            time.sleep(0.2)  # others may have something to say, too
            for process in ranks:
                process.kill()
            break
    codes = []
    for process in ranks:
        process.join()
        codes.append(process.exitcode)
    fault = "" if not any(codes) else f"exit codes {codes}"
    told = [meeting.report(rank) for rank in range(job.ranks)]
    counters = {name: int(sum(int(one[1 + i]) for one in told)) for i, name in enumerate(COUNTERS)}
    if not fault and counters["landed_segments"] != job.segments:
        fault = f"{counters['landed_segments']} segments landed of {job.segments}"
    if not fault and counters["refused"]:
        fault = f"{counters['refused']} frames refused"
    places = [(rank, nic) for rank, count in enumerate(job.nics) for nic in range(count)]
    carried = [int(told[rank][FIRST_OF_NICS + nic]) for rank, nic in places]
    epochs = [int(told[rank][FIRST_OF_NICS + 16 + nic]) for rank, nic in places]
    return Outcome(fault, [meeting.said(rank) for rank in range(job.ranks)], counters, carried, epochs)


# --- seeds ---------------------------------------------------------------------------------------------------------


@cache
def rings(ranks: int, nics: int, nbytes: int = 1 << 17) -> Ground:
    """Rings over all ranks: no more than numpy is needed."""
    from tests.failover_runs import rings as made

    return Ground(f"rings of {ranks} x {nics}", [("rings", made(ranks, nics, nbytes))])


@cache
def mixed() -> Ground:
    """Eight ranks, every other one with two NICs and the others with one."""
    from fractions import Fraction

    import optcc
    from optcc.values.cluster import Cluster, Nic, Server

    rate = Fraction(native.RATE_OF_A_NIC)
    servers = tuple(
        Server(f"server{i}", tuple(Nic(f"nic{nic}", rate, rate) for nic in range(1 + i % 2))) for i in range(8)
    )
    plan = optcc.plan(Cluster(servers), 1 << 17, segments=2)
    return Ground("8 ranks, 12 NICs", [(plan.recipe.family, plan.schedule())])


@cache
def planned(ranks: int, nics: int, nbytes: int = 1 << 17) -> list[Ground]:
    """What the planner has for a cluster, each family a ground of its own."""
    from optcc.values.cluster import Cluster

    cluster = Cluster.uniform(servers=ranks, nics=nics, rate=native.RATE_OF_A_NIC)
    return [
        Ground(f"{plan.recipe.family} of {ranks} x {nics}", [(plan.recipe.family, plan.schedule())])
        for plan in native.plans(cluster, nbytes, 2)
        if not plan.schedule().beside  # NICs read callers' memory, and no receive buffers
    ]


SIZES = ((2, 1), (3, 1), (2, 2), (2, 4), (3, 2), (3, 4), (4, 2), (4, 3), (8, 1))
SLOW_BITS = 400e6
"""Of a NIC: a collective takes some milliseconds, so that faults hit it."""
KINDS = ("cut", "cut", "both", "out", "in", "acks", "path")


def drawn(seed: int, addresses: Sequence[NicAddress], network: Any, verbs: str, kinds: Sequence[str] = KINDS) -> Job:
    """Two to four collectives, of which all but the last are struck, one to three times; before the last one all wires
    are to be back."""
    draw = random.Random(seed)
    ranks, nics = draw.choice(SIZES)
    ground = rings(ranks, nics)
    calls = [draw.choice(native.CALLS) for _ in range(draw.choice((2, 3, 4)))]
    job = Job(ground, addresses, calls, network=network, verbs=verbs, seed=seed, timeout=draw.choice((8, 10, 14)))
    job.returns = True
    struck, strikes = job.segments // ranks * (len(calls) - 1) // len(calls), []
    for _ in range(draw.choice((1, 1, 2, 3))):
        nic, kind = draw.randrange(ranks * nics), draw.choice(kinds)
        others = [other for other in range(ranks * nics) if other // nics != nic // nics and other % nics == nic % nics]
        strikes.append(
            Strike(
                kind,
                rank=nic // nics,
                at=draw.randrange(struck),
                nic=nic,
                lasts_s=draw.choice((0.0, 0.001, 0.02, 0.15, 0.5)),
                to=draw.choice(others),
            )
        )
    job.strikes = strikes
    return job


def played(job: Job, library: Path) -> Outcome:
    """Run it with slow NICs, which are whole again afterwards."""
    nics = range(sum(job.nics))
    for nic in nics:
        job.network.rate(nic, SLOW_BITS)
    try:
        return run(library, job)
    finally:
        for strike in job.strikes:
            if strike.kind == "gone":
                fabric().up(name_of(strike.nic))
        job.network.whole(nics)
        for strike in job.strikes:
            if strike.kind == "path":
                path(strike.nic, strike.to, lost=False)


# --- the command line ----------------------------------------------------------------------------------------------


def own_fabric(stack: ExitStack, *, nics: int = 12, lid: bool = False) -> tuple[list[NicAddress], Any]:
    """A fabric of one host for this process and its children, until the stack is closed; its NICs and network."""
    from optcc.fabric.played import PlayedFabric, PlayedNetwork

    folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    made = PlayedFabric.make(Path(folder) / "fabric", hosts=1, nics=nics, roce=not lid, name="rxe")
    os.environ |= made.env(0)
    return [NicAddress(name, 1, None if lid else 1) for name in made.names], PlayedNetwork()


def verbs_library(stack: ExitStack, sanitize: bool) -> str:
    """The played libibverbs."""
    from optcc.fabric.played import NAME, build, library

    if not sanitize:
        return str(library() / NAME)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return str(build(folder, native.SANITIZERS) / NAME)


TIMED_SEGMENT = 65536


def times(library: Path, addresses: Sequence[NicAddress], verbs: str) -> str:
    """How long a segment takes, of an AllReduce of two ranks over one NIC each that is as fast as the machine, beside
    how long it takes to copy its bytes once. The least of a few, since the machine may do other things."""
    ground = rings(2, 1, 1 << 24)
    begun = []
    calls = [("float32", Op.SUM)] * 5

    class Timed(Driver):
        def until(self, done: Callable[[], bool], what: str) -> None:
            start = time.perf_counter()
            while not done():
                self._lib.optcc_progress(self._engine)
            begun.append(time.perf_counter() - start)

    job = Job(ground, addresses, calls, verbs=verbs, segment=TIMED_SEGMENT, window=4 * TIMED_SEGMENT, protects=False)
    job.suspect_s = 1.0
    meeting = Meeting(job)
    other = get_context("fork").Process(target=run_rank, args=(library, job, 1, meeting, Timed))
    native.RIGHT.of(job.schedule, "float32", Op.SUM)
    other.start()
    run_rank(library, job, 0, meeting, Timed)
    other.join()
    segments = job.segments / len(calls) / 2  # that one rank sends, while as many come
    source, target = np.ones((2, 64, TIMED_SEGMENT), np.uint8)
    copied = []
    for _ in range(20):
        start = time.perf_counter()
        for i in range(64):
            target[i] = source[i]
        copied.append((time.perf_counter() - start) / 64)
    took = min(begun[: len(calls)]) / segments
    return f"a segment of {TIMED_SEGMENT} bytes: {took * 1e6:.1f} us; copying it once: {min(copied) * 1e6:.1f} us"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--lid", action="store_true", help="NICs go by LID, as on InfiniBand")
    parser.add_argument("--sanitize", action="store_true", help="compile with sanitizers (needs libasan)")
    parser.add_argument("--time", action="store_true", help="how long a segment takes")
    parser.add_argument("--library", type=Path, help="a library that is compiled already")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        library = given.library or native_build.build(folder, flags=native.SANITIZERS if given.sanitize else ("-O2",))
        if given.sanitize and "libasan" not in os.environ.get("LD_PRELOAD", ""):
            command = [sys.executable, "-m", "tests.native_verbs", "--sanitize", "--library", str(library)]
            command += [*["--lid"] * given.lid, *map(str, given.seeds)]
            return subprocess.run(command, cwd=ROOT, env=native.sanitized(), check=False).returncode
        addresses, network = own_fabric(stack, lid=given.lid)
        verbs = verbs_library(stack, given.sanitize)
        bad = 0
        for seed in given.seeds:
            job = drawn(seed, addresses, network, verbs)
            outcome = played(job, library)
            print(f"seed {seed}: {job.ground.name}; {[f'{dtype} {op}' for dtype, op in job.calls]}")
            for strike in job.strikes:
                print(f"  {strike}")
            print("".join(outcome.errors), end="")
            print(f"  {outcome.fault or 'right'}; {outcome.counters}; lives {outcome.epochs}", flush=True)
            bad += outcome.fault != ""
        if given.time:
            print(times(library, addresses, verbs))
        return bad != 0


if __name__ == "__main__":
    sys.exit(main())
