"""Collectives on the caller's own buffers: an object in every process of a job, called alike by all of them.

    with optcc.Communicator() as comm:  # in processes that torchrun, mpirun or srun have started
        comm.all_reduce(gradients, op="sum")

Names and arguments follow torch.distributed; docs/communicator.md is the guide.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.cluster_json import cluster_out
from optcc.errors import InputError
from optcc.prepared import SMALL, Prepared
from optcc.runtime.carriers import TRANSPORTS, check_devices
from optcc.runtime.device import Op, Reduction, divide, name_of, reduction_of
from optcc.runtime.interop import borrow, demand_apart
from optcc.runtime.member import JOIN_S, TIMEOUT_S, Member
from optcc.runtime.messages import Note, Strike
from optcc.runtime.overseer import Overseer
from optcc.runtime.rendezvous import Membership, find
from optcc.runtime.strikes import KINDS
from optcc.schedule.routes import ports_of

log = logging.getLogger(__name__)

EVENTS = 1000
"""So many events are kept for `events`; older ones are forgotten."""

RATE = "100Gb/s"
"""Of the one NIC that a rank on the local transport has where nothing is said: what counts is that all are alike."""

ALONE = Membership(0, 1, ("127.0.0.1", 0), "alone", "")
"""The place of a process of whose job nothing speaks."""


@dataclass(frozen=True)
class _Options:
    """Of a communicator and those that come of it."""

    transport: str
    timeout_s: float
    reproducible: bool
    on_event: Callable[[Note], None] | None


class Handle:
    """An operation under way. `future` is a `concurrent.futures.Future` of its result."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    def wait(self, timeout: float | None = None) -> Any:
        """Until it is done, `timeout` seconds at most (then TimeoutError); its result. Raises what it has raised."""
        return self.future.result(timeout)

    def done(self) -> bool:
        """Whether it has ended."""
        return self.future.done()


class Communicator:
    """The ranks of a job. A context manager; made by all of its processes at the same time, and called alike by all.

    cluster : the ranks' NICs, as a `Cluster` or what `optcc.load_topology` reads; its ranks are the job's, in order.
        None: over the local transport one NIC for each rank, over verbs the RDMA devices of each rank's machine
    transport : "local", processes of one machine over shared memory; "verbs", RDMA devices
    rendezvous, rank, world, interface : as of `optcc run`: given by torchrun, mpirun, srun, or here. Where nothing
        speaks of other ranks, this is the only one
    timeout_s : seconds for an operation, all ranks' coming included; then a rank has failed
    reproducible : sums are rounded the same whatever NICs fail: plans are kept then, and are no longer the best ones
    on_event : called with each event (see `events`), in whichever thread finds it; it must not call this object

    Raises InputError for what cannot be, on all ranks where they were given different clusters, and RankFailedError
    when ranks do not come.
    """

    def __init__(
        self,
        cluster: Cluster | str | os.PathLike[str] | None = None,
        *,
        transport: str = "local",
        rendezvous: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        interface: str | None = None,
        timeout_s: float = TIMEOUT_S,
        reproducible: bool = False,
        on_event: Callable[[Note], None] | None = None,
    ) -> None:
        if transport not in TRANSPORTS:
            raise InputError("no such transport", where="transport", expected=" or ".join(TRANSPORTS), got=transport)
        found = find(os.environ, rendezvous=rendezvous, rank=rank, world=world)
        membership = found or ALONE
        overseer = None
        if membership.rank == 0 and membership.world > 1:
            overseer = Overseer.open(membership, interface, JOIN_S)
        self._options = _Options(transport, timeout_s, reproducible, on_event)
        self._join(membership, overseer, cluster)

    @classmethod
    def of(
        cls,
        membership: Membership,
        overseer: Overseer | None,
        cluster: Cluster | str | os.PathLike[str] | None = None,
        *,
        transport: str = "local",
        timeout_s: float = TIMEOUT_S,
        reproducible: bool = False,
        on_event: Callable[[Note], None] | None = None,
    ) -> Communicator:
        """For whoever has found the ranks in another way; `overseer` : in rank 0's process, their hub."""
        return cls._with(_Options(transport, timeout_s, reproducible, on_event), membership, overseer, cluster)

    @classmethod
    def _with(
        cls,
        options: _Options,
        membership: Membership,
        overseer: Overseer | None,
        cluster: Cluster | str | os.PathLike[str] | None,
    ) -> Communicator:
        comm = object.__new__(cls)
        comm._options = options
        comm._join(membership, overseer, cluster)
        return comm

    def _join(
        self,
        membership: Membership,
        overseer: Overseer | None,
        cluster: Cluster | str | os.PathLike[str] | None,
    ) -> None:
        options = self._options
        self.rank, self.world = membership.rank, membership.world
        self._events: deque[Note] = deque(maxlen=EVENTS)
        self._worker: ThreadPoolExecutor | None = None
        self._pending: Future[Any] | None = None
        self._closed = False
        if self.world == 1:
            self.cluster = _alike(1) if cluster is None else read_cluster(cluster, 1)
            return
        self._member = Member(
            membership,
            transport=options.transport,
            timeout_s=options.timeout_s,
            overseer=overseer,
            on_renew=self._renew,
            on_notes=self._note,
        )
        try:
            self.cluster = self._agreed(None if cluster is None else read_cluster(cluster, self.world))
            check_devices(options.transport, [port for port in ports_of(self.cluster) if port.rank == self.rank])
            self._prepared = Prepared(self._member, self.cluster)
        except BaseException as error:
            self._member.close(f"{type(error).__name__}: {error}")
            raise

    # --- collectives -------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """The elementwise sum (prod, min, max, avg) of all ranks' `x`, in place or into `out`; the same on every rank.

        x, out : arrays of the same number of elements and type in host memory (numpy, torch, jax, anything with DLPack
            or the array interface), contiguous; of any size, 0 included, and the same on all ranks
        async_op : return a Handle at once; leave `x` and `out` alone until it is done. Operations keep their order

        Returns `out`, or `x`. Raises InputError for such a buffer, RankFailedError when a rank has failed. After that
        `x` is as it was if it has up to `prepared.SMALL` bytes or the result goes to `out`; else it is spoilt.
        """
        reduction = reduction_of(op)
        source = _host(x, "x", write=out is None)
        target = source if out is None else _host(out, "out")
        _demand_alike(source, target, source.size)
        return self._do(lambda: self._all_reduce(source, target, reduction), x if out is None else out, async_op)

    def broadcast(self, x: Any, root: int = 0, *, async_op: bool = False) -> Any:
        """Rank `root`'s `x` into everybody's. Buffers, returns and errors as of `all_reduce`."""
        if not 0 <= root < self.world:
            raise InputError("not a rank", where="root", expected=f"0 to {self.world - 1}", got=root)
        buffer = _host(x, "x", write=self.rank != root)
        return self._do(lambda: self._broadcast(buffer, root), x, async_op)

    def all_gather(self, x: Any, out: Any, *, async_op: bool = False) -> Any:
        """All ranks' `x`, of the same size, one after the other in `out`, which has `world` times as many elements."""
        source, target = _host(x, "x", write=False), _host(out, "out")
        _demand_alike(source, target, source.size * self.world)
        return self._do(lambda: self._all_gather(source, target), out, async_op)

    def reduce_scatter(self, x: Any, out: Any, op: str = "sum", *, async_op: bool = False) -> Any:
        """Of `x`, `world` parts as large as `out`, the reduction of all ranks' part number `rank` into `out`."""
        reduction = reduction_of(op)
        source, target = _host(x, "x", write=False), _host(out, "out")
        _demand_alike(target, source, target.size * self.world, "x")
        return self._do(lambda: self._reduce_scatter(source, target, reduction), out, async_op)

    def barrier(self, *, async_op: bool = False) -> Any:
        """Returns when all ranks have called it."""
        nothing = np.zeros(0, np.uint8)
        return self._do(lambda: self._all_reduce(nothing, nothing, Reduction(Op.MAX), "barrier"), None, async_op)

    # --- failures ----------------------------------------------------------------------------------------------------

    def events(self) -> tuple[Note, ...]:
        """What this rank has noted, the latest EVENTS: kinds "nic down", "lost" (a wire), "fenced", "moved" (a flow),
        "renewed" (the plan, without the NICs in `text`). Times are of this process's monotonic clock."""
        return tuple(self._events)

    def shrink(self) -> Communicator:
        """After RankFailedError: a communicator of the ranks that are left, in their order; all of them call this.

        Close this one afterwards. Raises InputError where there is none: no rank has failed, or this one has, or the
        one whose process had the control channel (rank 0).
        """
        self._demand_open()
        if self.world == 1:
            raise InputError("no rank has failed", where="shrink", expected="a call after RankFailedError")
        membership, ranks = self._member.regroup()
        heir = self._member.overseer.heir if self._member.overseer else None
        return self._sub(membership, heir, ranks)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The ranks that give the same `color`, as a communicator of their own, ordered by (key, rank). All call this.

        None for a rank that gives None.
        """
        self._demand_open()
        if self.world == 1:
            return None if color is None else self._alone()
        said = self._member.exchange([color, key])
        groups = {
            c: sorted((k, r) for r, (other, k) in enumerate(said) if other == c) for c, _ in said if c is not None
        }
        ranks = [r for _, r in groups.get(color, [])]
        first = bool(ranks) and ranks[0] == self.rank and len(ranks) > 1
        overseer = self._member.open_for(len(ranks), f"split {color}") if first else None
        address = self._member.exchange([self._member.host, overseer.address[1]] if overseer else None)
        if color is None:
            return None
        if len(ranks) == 1:
            return self._alone()
        host, port = address[ranks[0]]
        membership = self._member.place(ranks.index(self.rank), len(ranks), (host, port), f"split {color}")
        return self._sub(membership, overseer, ranks)

    def strike(self, kind: str, nic: str, part: float = 0.5) -> None:
        """A drill: a fault of `kind` (see `optcc.runtime.strikes`; "cut" is a link that goes down) at `nic`, such as
        "server1/nic0", in the next operation, when a part `part` of its rank's transfers are done. All ranks may call.
        Raises InputError for no such kind or NIC.
        """
        nics = {port.name: port.rank for port in ports_of(self.cluster)}
        if kind not in KINDS or nic not in nics:
            expected = f"{', '.join(KINDS)} at one of {', '.join([*nics][:8])}"
            raise InputError("no such fault", where="strike", expected=expected, got=f"{kind} at {nic}")
        if self.world > 1 and nics[nic] == self.rank:
            self._member.strike(Strike(kind, nic, part))

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for operations that are under way and for all ranks to close, then disconnect. Twice does nothing."""
        self._end(None)

    def abort(self, cause: str) -> None:
        """Leave at once, because of `cause`; calls of the other ranks end with RankFailedError."""
        self._end(cause)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(None if error is None else f"{type(error).__name__}: {error}")

    def _end(self, cause: str | None) -> None:
        if self._closed:
            return
        self._closed = True
        if self._worker:
            self._worker.shutdown(wait=cause is None)
        if self.world > 1:
            self._member.close(cause)
        if self._worker:
            self._worker.shutdown()

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[], None], result: Any, async_op: bool) -> Any:
        """In the order of calls: at once where nothing is under way, else after that, in a thread."""
        self._demand_open()
        if not async_op and (self._pending is None or self._pending.done()):
            work()
            return result
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, f"optcc calls of rank {self.rank}")

        def call() -> Any:
            work()
            return result

        self._pending = self._worker.submit(call)
        return Handle(self._pending) if async_op else self._pending.result()

    def _demand_open(self) -> None:
        if self._closed:
            raise InputError("it is closed", where="Communicator", expected="calls before close()")

    def _all_reduce(
        self, source: np.ndarray, target: np.ndarray, reduction: Reduction, call: str = "all_reduce"
    ) -> None:
        nbytes = source.nbytes
        if self.world == 1:
            _fill(target, source)
            return
        sign = _sign(call, source, reduction)
        with self._member.turn():
            if nbytes <= SMALL:  # in memory of its own, so that few schedules do for all sizes
                room = _room(nbytes)
                buffer = np.zeros(room // source.itemsize, source.dtype)
                buffer[: source.size] = source
                self._member.run(*self._prepared.call("all_reduce", room), buffer, reduction.fold, sign, linger=False)
                if reduction.mean:
                    divide(buffer, self.world)
                target[:] = buffer[: source.size]
                return
            prepared = self._prepared.call("all_reduce", nbytes)
            _fill(target, source)
            self._member.run(*prepared, target, reduction.fold, sign)
            if reduction.mean:
                divide(target, self.world)

    def _broadcast(self, buffer: np.ndarray, root: int) -> None:
        if self.world == 1:
            return
        room = _room(buffer.nbytes) if buffer.nbytes <= SMALL else 0
        with self._member.turn():
            own = buffer
            if room:
                own = np.zeros(room // buffer.itemsize, buffer.dtype)
                own[: buffer.size] = buffer
            prepared = self._prepared.call("broadcast", room or buffer.nbytes, root)
            self._member.run(*prepared, own, Op.MAX, _sign("broadcast", buffer, root), linger=not room)
            if room and self.rank != root:
                buffer[:] = own[: buffer.size]

    def _all_gather(self, source: np.ndarray, target: np.ndarray) -> None:
        size = source.size
        if self.world == 1:
            _fill(target, source)
            return
        room = _room(source.nbytes) if source.nbytes <= SMALL else 0
        with self._member.turn():
            prepared = self._prepared.call("all_gather", room or source.nbytes)
            step = room // source.itemsize or size
            own = np.empty(step * self.world, source.dtype) if room else target
            _fill(own[self.rank * step :][:size], source)
            self._member.run(*prepared, own, Op.MAX, _sign("all_gather", source), linger=not room)
            if room:
                target.reshape(self.world, size)[:] = own.reshape(self.world, step)[:, :size]

    def _reduce_scatter(self, source: np.ndarray, target: np.ndarray, reduction: Reduction) -> None:
        size = target.size
        if self.world == 1:
            _fill(target, source)
            return
        room = _room(target.nbytes) if target.nbytes <= SMALL else target.nbytes
        with self._member.turn():
            prepared = self._prepared.call("reduce_scatter", room)
            step = room // source.itemsize
            own = np.zeros((self.world, step), source.dtype)
            own[:, :size] = source.reshape(self.world, size)
            self._member.run(
                *prepared, own.reshape(-1), reduction.fold, _sign("reduce_scatter", target, reduction), linger=False
            )
            target[:] = own[self.rank, :size]
            if reduction.mean:
                divide(target, self.world)

    def _agreed(self, given: Cluster | None) -> Cluster:
        """What all ranks were given; InputError on all of them where that is not the same."""
        if given is None and self._options.transport == "verbs":
            given = _here(self._member.exchange, self.rank)
        cluster = given or _alike(self.world)
        said = self._member.exchange(json.dumps(cluster_out(cluster)))
        other = next((rank for rank, text in enumerate(said) if text != said[0]), None)
        if other is not None:
            raise InputError(
                f"rank {other} was given another one than rank 0", where="cluster", expected="the same on all ranks"
            )
        return cluster

    def _renew(self, nics: list[str]) -> None:
        """The cluster without these NICs; plans and wires follow with the next call."""
        cluster = self.cluster
        for nic in nics:  # all that have died so far
            cluster = cluster.degrade(nic)
        self._prepared.renew(cluster, self._options.reproducible)
        self._note([Note(time.monotonic(), "renewed", "", text=", ".join(nics))])

    def _note(self, notes: list[Note]) -> None:
        self._events.extend(notes)
        for note in notes:
            level = logging.WARNING if note.kind in ("nic down", "renewed") else logging.INFO
            log.log(level, "rank %d: %s %s %s %s %s", self.rank, note.kind, note.nic, note.far, note.cause, note.text)
            if self._options.on_event:
                self._options.on_event(note)

    def _sub(self, membership: Membership, overseer: Overseer | None, ranks: list[int]) -> Communicator:
        """A communicator of some of these ranks."""
        cluster = self._prepared.cluster
        if cluster.gpu_ranks:
            raise InputError("not with GPUs as ranks", where="communicator", expected="a cluster of servers as ranks")
        servers = tuple(cluster.servers[rank] for rank in ranks)
        pristine = cluster.pristine and replace(
            cluster.pristine, servers=tuple(cluster.pristine.servers[rank] for rank in ranks)
        )
        return self._with(self._options, membership, overseer, replace(cluster, servers=servers, pristine=pristine))

    def _alone(self) -> Communicator:
        return self._with(replace(self._options, transport="local"), ALONE, None, None)


def read_cluster(given: Cluster | str | os.PathLike[str], world: int) -> Cluster:
    """The cluster that was given or is described; a single server is copied for every rank. InputError for one of
    another number of ranks."""
    if not isinstance(given, Cluster):
        from optcc.discover import load_topology

        given = load_topology(Path(given) if not isinstance(given, str) else given).cluster
        if len(given.servers) == 1 and len(given.ranks) != world:
            given = given.replicate(world)
    if len(given.ranks) != world:
        raise InputError(
            "another number of ranks than processes", where="cluster", expected=f"{world} ranks", got=len(given.ranks)
        )
    return given


def _alike(world: int) -> Cluster:
    return Cluster.uniform(servers=world, nics=1, rate=RATE)


def _here(exchange: Callable[[Any], list[Any]], rank: int) -> Cluster:
    """One server for each rank: the RDMA devices of its machine, as sysfs tells."""
    from optcc.cluster_json import cluster_in
    from optcc.discover import load_topology

    said = exchange(cluster_out(load_topology("/sys").cluster))
    servers = [cluster_in(each).servers[0] for each in said]
    return Cluster(tuple(replace(server, name=f"server{place}") for place, server in enumerate(servers)))


def _host(thing: Any, where: str, *, write: bool = True) -> np.ndarray:
    """Its elements as a flat array on the same memory."""
    array = borrow(thing, write=write, where=where)
    if not isinstance(array, np.ndarray):
        raise InputError(
            "memory of a GPU", where=where, expected="host memory", hint="Copy it to the host, or use optcc.pytorch."
        )
    return array


def _demand_alike(one: np.ndarray, other: np.ndarray, count: int, where: str = "out") -> None:
    """`other` has `count` elements of the type of `one`, and does not overlap it."""
    if one.dtype != other.dtype or other.size != count:
        expected, got = f"{count} elements of {name_of(one.dtype)}", f"{other.size} of {name_of(other.dtype)}"
        raise InputError(f"does not fit the other buffer, expected {expected}, got {got}", where=where)
    demand_apart(one, other, where)


def _room(nbytes: int) -> int:
    """The power of two, 8 or more, that a small buffer is rounded up to."""
    return max(8, 1 << (nbytes - 1).bit_length()) if nbytes else 8


def _fill(target: np.ndarray, source: np.ndarray) -> None:
    if target is not source and target.size and target.ctypes.data != source.ctypes.data:
        target[:] = source


def _sign(call: str, array: np.ndarray, what: object = None) -> int:
    """Twelve bits that differ, mostly, where ranks call different things."""
    return zlib.crc32(f"{call} {array.dtype.str} {array.size} {what}".encode()) & 0xFFF
