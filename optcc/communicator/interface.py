"""What callers see of a communicator."""

from __future__ import annotations

import logging
import math
import operator
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from optcc.communicator.buffers import Buffer, InPlace, demand_alike, demand_elsewhere, gpu_called, lend
from optcc.communicator.clusters import (
    Given,
    MessageCosts,
    agreed,
    alike,
    dead_nics,
    message_costs,
    part_of,
    read_cluster,
)
from optcc.communicator.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    COPY,
    REDUCE_SCATTER,
    Alone,
    CallKind,
    Collectives,
    Together,
)
from optcc.communicator.handles import InOrder
from optcc.communicator.on_gpu import OnGpu, on_gpu, tuning_for
from optcc.communicator.prepared import Prepared, speaker
from optcc.errors import InputError, OptccError
from optcc.runtime.control.connecting import TIMEOUT_S
from optcc.runtime.control.door import Door
from optcc.runtime.control.fault_injection import demand_strike
from optcc.runtime.control.judgement import GRACE_S
from optcc.runtime.control.limits import available_bytes
from optcc.runtime.control.member import JOIN_S, Member, Ties
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.control.rendezvous import Membership, find
from optcc.runtime.control.transports import TRANSPORTS, check_devices
from optcc.runtime.devices.host import BFLOAT16, DTYPES, Array, name_of, reduction_of
from optcc.runtime.errors import GrowFailedError, RankFailedError, TransportError
from optcc.runtime.forks import own
from optcc.runtime.messages import Note, Strike
from optcc.runtime.native.lent import Arena
from optcc.schedule.routes import ports_of
from optcc.values.cluster import Cluster, degrade_all

# Options of a communicator, which those that come of it by shrinking, growing and splitting take over; and what
# numbers its methods take.


@dataclass(frozen=True)
class CommunicatorOptions:
    """What holds for a communicator and for those that come of it; see `Communicator`."""

    costs: MessageCosts
    timeout_s: float = TIMEOUT_S
    return_s: float | None = None
    reproducible: bool = False
    tune: bool = True
    on_event: Callable[[Note], None] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.device != "cpu" and self.costs.transport != "local":
            hint = "No NIC is given a GPU's memory; over NICs buffers are copied to host memory by themselves."
            raise InputError("not over this transport", where="device", expected="cpu", got=self.device, hint=hint)
        seconds(self.timeout_s, "timeout_s")
        if self.return_s is not None:
            number(self.return_s, "return_s", "seconds, 0 or more", lambda found: found >= 0)
        if self.on_event is not None and not callable(self.on_event):
            got = type(self.on_event).__name__
            raise InputError("cannot be called", where="on_event", expected="a function of an event", got=got)


def whole(value: Any, where: str, below: int | None = None) -> int:
    """An integer of whatever type, but no bool; InputError for anything else, and for one that is no rank `below`."""
    try:
        found = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (below is not None and not 0 <= found < below):
        expected = "a whole number" if below is None else f"0 to {below - 1}"
        what = "not a number" if below is None else "not a rank"
        raise InputError(what, where=where, expected=expected, got="None" if value is None else value)
    return found


def number(value: Any, where: str, expected: str, fits: Callable[[float], bool]) -> float:
    """A finite number that `fits`; else InputError, which says what was `expected`."""
    try:
        found = math.nan if isinstance(value, bool | np.bool_ | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found) or not fits(found):
        raise InputError("not such a number", where=where, expected=expected, got="None" if value is None else value)
    return found


def seconds(value: Any, where: str) -> float:
    """A time to wait; InputError for none."""
    return number(value, where, "seconds, more than 0", lambda found: found > 0)


@contextmanager
def as_arguments() -> Iterator[None]:
    """An InputError names what a Python caller has given by the argument, not by the command line's option."""
    try:
        yield
    except InputError as error:
        where, hint = (text and text.replace("--", "") for text in (error.where, error.hint))
        raise type(error)(error.what, where=where, expected=error.expected, got=error.got, hint=hint) from error


# Who is in a communicator that comes of another one: a part of its ranks, or new ones besides.
#
# Each function says this rank's place there, and the hub where this process has it.

Exchange = Callable[[Any], list[Any]]
"""All ranks' values, by rank."""

ALONE = Membership(0, 1, ("127.0.0.1", 0), "alone", "")
"""The place of a process of whose job nothing speaks."""


class Regrouped(NamedTuple):
    """A rank's place in another communicator.

    overseer : the hub, in the process of its rank 0; ranks : its ranks' numbers in the one that it comes of
    """

    place: Membership
    overseer: Overseer | None
    ranks: list[int]


def part_by_color(member: Member, color: int | None, key: int) -> Regrouped | None:
    """The ranks that give the same `color`, ordered by (key, rank). None where this one gives None."""
    old, name = member.membership, f"{member.membership.job}/split {color}"
    with member.turn("split()"):
        said = member.exchange([color, key])
        ranks = [r for _, r in sorted((k, r) for r, (other, k) in enumerate(said) if other == color)]
        overseer = None
        if color is not None and ranks[0] == member.rank and len(ranks) > 1:
            door = Door(name, old.secret.encode(), member.host, 0)
            lives: Callable[[int], bool] = lambda rank: member.lives(ranks[rank])  # noqa: E731
            overseer = Overseer(len(ranks), door, member.timeout_s, lives=lives).start()
        address = member.exchange([member.host, overseer.address[1]] if overseer else None)[ranks[0]]
    if color is None:
        return None
    if len(ranks) == 1:
        return Regrouped(ALONE, None, ranks)
    return Regrouped(
        Membership(ranks.index(member.rank), len(ranks), tuple(address), name, old.secret), overseer, ranks
    )


def with_new(
    place: Membership, exchange: Exchange, interface: str | None, within_s: float, lives: Callable[[int], bool]
) -> Regrouped:
    """These ranks and those that come to `place.address` within so many seconds. InputError where that cannot be.

    lives : whether the process of a rank is there, as far as is known
    """
    world, address = place.world, list(place.address)
    said = exchange([world, address])
    other = next((each for each in said if each != said[0]), None)
    if other:
        raise InputError("ranks do not want the same", where="grow", expected=str(said[0]), got=str(other))
    overseer, why = None, None
    if place.rank == 0:
        try:
            overseer = Overseer.open(place, interface, within_s, lives=lives)
        except OptccError as error:
            why = str(error)
    why = exchange(why)[0]
    if why:
        raise InputError(why, where="grow", expected="an address of rank 0's machine that is free")
    return Regrouped(place, overseer, list(range(len(said))))


def all_or_none(
    made: Communicator | None,
    error: OptccError | None,
    place: Membership,
    exchange: Exchange,
    others_have: Callable[[Member], bool],
) -> None:
    """After an attempt to grow: nothing where it has worked on all old ranks, else GrowFailedError on all of them.

    RankFailedError where one of them is lost, to the old communicator, too, and no rank knows that it has worked.
    """
    try:
        if made:
            failure = None
        elif isinstance(error, RankFailedError):
            failure = [error.rank, error.cause]
        else:
            failure = [place.rank, str(error)]
        said = exchange(failure)
        failures = [each for each in said if each]
        if failures:
            rank, cause = failures[0]
            raise GrowFailedError(rank, cause, old=len(said), new=place.world)
    except OptccError as none:
        if made and isinstance(none, RankFailedError) and others_have(made._member):
            return
        if made:
            made.abort(f"growing has failed: {none}")
        raise none from error


# Events, memory for arrays, and the communicator

log = logging.getLogger("optcc.communicator")

WARNINGS = "nic down", "nic up", "waiting", "renewed", "verdict"
"""Kinds that are logged as warnings; others as information."""

EVENTS = 1000
"""So many events are kept; older ones are forgotten."""


class Events:
    """What rank `rank` has seen happen: kept, logged, and told to whoever asked.

    tell : called with each, in whichever thread finds it; its exceptions are logged
    """

    def __init__(self, rank: int, tell: Callable[[Note], None] | None) -> None:
        self._rank, self._tell = rank, tell
        self._kept: deque[Note] = deque(maxlen=EVENTS)
        self._told = False  # of a rank that has failed: whatever is called afterwards raises the same

    def all(self) -> tuple[Note, ...]:
        """The latest EVENTS, in order."""
        return tuple(self._kept)

    @contextmanager
    def verdict(self) -> Iterator[None]:
        """The first RankFailedError that is raised here is an event, with the text that all ranks raise."""
        try:
            yield
        except RankFailedError as error:
            self.failed(error)
            raise

    def failed(self, error: RankFailedError) -> None:
        """See `verdict`, for who has caught it."""
        if not self._told:
            self._told = True
            self.note([Note(time.monotonic(), "verdict", "", text=str(error))])

    def note(self, notes: Sequence[Note]) -> None:
        """More of them."""
        self._kept.extend(notes)
        for note in notes:
            level = logging.WARNING if note.kind in WARNINGS else logging.INFO
            said = " ".join(filter(None, (note.kind, note.nic, note.far, note.cause, note.text)))
            log.log(level, "rank %d: %s", self._rank, said)
            if self._tell:
                try:
                    self._tell(note)
                except Exception:
                    log.exception("rank %d: on_event failed with %s; the job goes on", self._rank, note.kind)


HINT = "Drop arrays that are not needed any more; a communicator takes any other memory (numpy.empty), too."


def _empty_in(arena: Arena | None, shape: int | Sequence[int], dtype: Any) -> Array:
    """See `Communicator.empty`. None: in memory of this process alone."""
    elements, sizes = _element_type(dtype), _sizes(shape)
    count = math.prod(sizes)
    left = available_bytes()
    if left is not None and count * elements.itemsize > left:
        expected, got = f"up to {left} bytes, which can be had", f"{count * elements.itemsize} bytes"
        raise InputError("too little memory", where="empty", expected=expected, got=got, hint=HINT)
    try:
        array: Array = arena.empty(count, elements) if arena else np.empty(count, elements)
    except (TransportError, MemoryError) as error:
        raise InputError(str(error), where="empty", hint=HINT) from error
    return array.reshape(sizes)


def _element_type(dtype: Any) -> np.dtype[Any]:
    try:
        elements: np.dtype[Any] = BFLOAT16 if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)
        name_of(elements)
    except (TypeError, InputError) as error:
        expected = f"one of {', '.join(DTYPES)}"
        raise InputError("no such element type", where="dtype", expected=expected, got=str(dtype)) from error
    return elements


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise InputError("no such shape", where="shape", expected="whole numbers from 0 on", got=str(shape))
    return sizes


class Communicator:
    """The ranks of a job. A context manager; made by all of its processes at the same time, and called alike by all.

    cluster : the ranks' NICs, as a `Cluster` or what `optcc.load_topology` reads; its ranks are the job's, in order.
        None: over the local transport one NIC for each rank, over verbs the RDMA devices of each rank's machine; tcp
        needs one, whose NICs are called as interfaces or by address
    transport : "local", processes of one machine over shared memory; "tcp", network interfaces; "verbs", RDMA devices
    rendezvous, rank, world, interface : as of `optcc run`: given by torchrun, mpirun, srun, or here. Where nothing
        speaks of other ranks, this is the only one
    timeout_s : seconds for an operation, all ranks' coming included; then a rank has failed
    return_s : seconds that a rank waits for a NIC to be back when its last one is lost; None: as many as `timeout_s`
    reproducible : sums are rounded the same in every run, whatever NICs fail. Nothing is tuned, and plans are kept,
        although they are no longer the best
    device : "cpu": what ranks send each other is in host memory, to which a GPU's buffers are copied and back. "cuda":
        it is in the memory of the calling thread's current GPU, "cuda:1": of GPU 1. That GPU folds; buffers in host
        memory are copied there and back. Over the local transport; on all ranks "cpu", or on all a GPU
    tune : the first calls of each size class measure a few plans, of which the fastest is kept
    on_event : called with each event (see `events`), in whichever thread finds it; it must not call this object

    Raises InputError for what cannot be, on all ranks where they were given different clusters, and RankFailedError
    when ranks do not come.
    """

    def __init__(
        self,
        cluster: Given | None = None,
        *,
        transport: str = "local",
        rendezvous: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        interface: str | None = None,
        timeout_s: float = TIMEOUT_S,
        return_s: float | None = None,
        reproducible: bool = False,
        tune: bool = True,
        on_event: Callable[[Note], None] | None = None,
        device: str = "cpu",
    ) -> None:
        if transport not in TRANSPORTS:
            raise InputError("no such transport", where="transport", expected=" or ".join(TRANSPORTS), got=transport)
        costs = message_costs(cluster, transport)
        self._options = CommunicatorOptions(costs, timeout_s, return_s, reproducible, tune, on_event, device)
        overseer = None
        with as_arguments():
            rank = None if rank is None else whole(rank, "rank")
            world = None if world is None else whole(world, "world")
            membership = find(os.environ, rendezvous=rendezvous, rank=rank, world=world) or ALONE
            if membership.rank == 0 and membership.world > 1:
                overseer = Overseer.open(membership, interface, max(JOIN_S, timeout_s))
        self._join(membership, overseer, cluster)

    @classmethod
    def of(
        cls, membership: Membership, overseer: Overseer | None, cluster: Given | None = None, **options: Any
    ) -> Communicator:
        """For whoever has found the ranks in another way.

        overseer : in rank 0's process, their hub; options : `transport`, and by name those of `CommunicatorOptions`
        """
        made = CommunicatorOptions(message_costs(cluster, options.pop("transport", "local")), **options)
        return cls._with(made, membership, overseer, cluster)

    @classmethod
    def _with(
        cls,
        options: CommunicatorOptions,
        membership: Membership,
        overseer: Overseer | None,
        cluster: Given | None,
        **how: Any,
    ) -> Communicator:
        """`how` : as of `_join`"""
        comm = object.__new__(cls)
        comm._options = options
        comm._join(membership, overseer, cluster, **how)
        return comm

    def _join(
        self,
        membership: Membership,
        overseer: Overseer | None,
        cluster: Given | None,
        within_s: float | None = None,
        dead: Sequence[str] = (),
        lent: Arena | None = None,
        ties: Ties | None = None,
        hub_lives: Callable[[], bool] | None = None,
    ) -> None:
        """within_s : for all ranks to come, None: as for those that are started at the same time

        dead : NICs of this rank that are known not to work; lent, ties, hub_lives : see `Member`
        """
        options, self._given = self._options, cluster is not None
        within_s = max(JOIN_S, options.timeout_s) if within_s is None else within_s
        self.rank, self.world = membership.rank, membership.world
        self._events = Events(self.rank, options.on_event)
        self._in_order = InOrder(f"optcc calls of rank {self.rank}", options.timeout_s)
        self._closed = self._inherited = False
        own(self, Communicator._inherit)
        gpu = gpu_called(options.device)
        if gpu:  # communicators that come of this one are on the same, whichever thread makes them
            self._options = options = replace(options, device=f"cuda:{gpu.index}")
        self._gpu = gpu if self.world > 1 else None
        if self.world == 1:
            self.cluster = alike(1) if cluster is None else read_cluster(cluster, 1)
            self._collectives: Collectives = Alone()
            self._arena = None
            return
        self._member = Member(
            membership,
            transport=options.costs.transport,
            timeout_s=options.timeout_s,
            return_s=options.return_s,
            join_s=within_s,
            overseer=overseer,
            on_renew=self._renew,
            on_notes=self._events.note,
            ties=ties,
            hub_lives=hub_lives,
            lent=lent,
            gpu=gpu,
        )
        self._arena = self._member.lent
        try:
            if not ties:
                self._member.meet(within_s)  # first: what is wrong on one rank below, all ranks hear
            say = speaker(os.environ, self.rank, self.world)
            given = None if cluster is None else read_cluster(cluster, self.world)
            self.cluster = agreed(
                given,
                self.world,
                partial(self._member.exchange, within_s=within_s),
                transport=options.costs.transport,
                dead=dead,
            )
            check_devices(options.costs.transport, [port for port in ports_of(self.cluster) if port.rank == self.rank])
            tune = options.tune and not options.reproducible
            self._prepared = Prepared(self._member, self.cluster, options.costs, say, tune)
            if options.costs.transport == "local":
                gpus = self._member.exchange(gpu.place if gpu else None)
                if len({each is None for each in gpus}) > 1:
                    got = ", ".join(f"rank {rank} {'a GPU' if each else 'cpu'}" for rank, each in enumerate(gpus))
                    raise InputError("not the same on all ranks", where="device", expected="cpu, or a GPU", got=got)
            if gpu:
                self._member.links.gpu_tuning = tuning_for(gpus)
                self._collectives = OnGpu(self._member, self._prepared, gpu, self._events.note)
            else:
                self._collectives = Together(self._member, self._prepared, self._events.note)
        except BaseException as error:
            if ties and isinstance(error, RankFailedError):
                self._member.hand_on()  # those that are left begin again
            self._member.close(f"{type(error).__name__}: {error}")
            raise

    # --- collectives -------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """The elementwise sum (prod, min, max, avg) of all ranks' `x`, in place or into `out`; the same on every rank.

        x, out : arrays of the same number of elements and type (numpy, torch, cupy, jax, anything with DLPack or the
            CUDA array interface), contiguous; of any size, 0 included, and the same on all ranks. Those in a GPU's
            memory are copied to pinned host memory and back
        async_op : return a Handle at once; leave `x` and `out` alone until it is done. Operations keep their order

        Returns `out`, or `x`. Raises InputError for such a buffer, RankFailedError when a rank has failed. After that
        `x` is as it was if it has up to `prepared.SMALL` bytes or the result goes to `out`; else it is spoilt.
        """
        reduction = reduction_of(op, "op")
        source = lend(x, "x", write=out is None)
        target = source if out is None else lend(out, "out")
        demand_alike(source, target, len(source.memory))
        return self._do(ALL_REDUCE, source, target, x if out is None else out, async_op, reduction)

    def broadcast(self, x: Any, root: int = 0, *, async_op: bool = False) -> Any:
        """Rank `root`'s `x` into everybody's. Buffers, returns and errors as of `all_reduce`."""
        root = whole(root, "root", self.world)
        buffer = lend(x, "x", write=self.rank != root)
        return self._do(BROADCAST, buffer, buffer, x, async_op, COPY, root)

    def all_gather(self, x: Any, out: Any, *, async_op: bool = False) -> Any:
        """All ranks' `x`, of the same size, one after the other in `out`, which has `world` times as many elements."""
        source, target = lend(x, "x", write=False), lend(out, "out")
        demand_alike(source, target, len(source.memory) * self.world)
        return self._do(ALL_GATHER, source, target, out, async_op)

    def reduce_scatter(self, x: Any, out: Any, op: str = "sum", *, async_op: bool = False) -> Any:
        """Of `x`, `world` parts as large as `out`, the reduction of all ranks' part number `rank` into `out`."""
        reduction = reduction_of(op, "op")
        source, target = lend(x, "x", write=False), lend(out, "out")
        demand_alike(target, source, len(target.memory) * self.world, "x")
        return self._do(REDUCE_SCATTER, source, target, out, async_op, reduction)

    def all_to_all(self, x: Any, out: Any, *, async_op: bool = False) -> Any:
        """Of `x`, `world` equal parts, number r to rank r; into `out` the part of each rank for this one, by rank."""
        source, target = lend(x, "x", write=False), lend(out, "out")
        if len(source.memory) % self.world:
            expected = f"a number of elements that {self.world} divides"
            raise InputError("no equal parts", where="x", expected=expected, got=len(source.memory))
        demand_alike(source, target, len(source.memory))
        demand_elsewhere(source, target)
        return self._do(ALL_TO_ALL, source, target, out, async_op)

    def barrier(self, *, async_op: bool = False) -> Any:
        """Returns when all ranks have called it."""
        nothing = InPlace(np.zeros(0, np.uint8))
        return self._do(BARRIER, nothing, nothing, None, async_op)

    def empty(self, shape: int | Sequence[int], dtype: Any) -> Array:
        """An uninitialised numpy array whose bytes the other ranks of this machine can read where they are.

        That saves a copy of what this rank sends, over the local transport, above `prepared.SMALL` bytes: where the
        array, or a contiguous part of it, is the result of `all_reduce`, `broadcast` or `all_gather`, or the input of
        `all_to_all` or `reduce_scatter`, and where the system does not let ranks read each other's memory anyway.
        Everywhere else it is an array like any other.

        It is called as numpy's `empty`, and takes the place of ncclMemAlloc and ncclCommWindowRegister, or of
        nvshmem_malloc. Unlike the latter two it is not collective: each rank may have as many arrays as it likes, or
        none, and ranks may differ in which arrays they pass. The arrays also work in communicators that come of this
        one by splitting, shrinking and growing, and remain after `close`. The memory of one is given back when the
        array and all views of it are gone. A process that is forked from this one shares them.

        shape : as of `numpy.empty`; dtype : one of the runtime's element types, or its name

        Raises InputError for another shape or type, and where there is too little memory, at once and not at first
        use: all arrays of a rank take at most half of the machine's memory.
        """
        self._demand_open()
        return _empty_in(self._arena, shape, dtype)

    def _do(self, kind: CallKind, source: Buffer, target: Buffer, result: Any, async_op: bool, *how: Any) -> Any:
        """A call with the elements of both in host memory, or this communicator's GPU's.

        result : the caller's target; how : reduction and root, as of `Collectives.do`
        """
        if self._closed or self._inherited:
            self._demand_open()
        if self._gpu:
            same = target is source
            source = on_gpu(source, self._gpu)
            target = source if same else on_gpu(target, self._gpu)
        return self._in_order.run(partial(self._call, kind, source, target, result, *how), async_op)

    def _call(self, kind: CallKind, source: Buffer, target: Buffer, result: Any, *how: Any) -> Any:
        """See `_do`, once it is this call's turn."""
        read: Any = source.read() if source.staged else source
        write: Any = read if target is source else target.room() if target.staged else target
        self._collectives.wrote = False
        try:
            self._collectives.do(kind, read, write, *how)
        except RankFailedError as error:
            self._events.failed(error)
            spoilt = self._collectives.wrote and not target.staged
            raise error.of_call(RankFailedError.NONE if spoilt else RankFailedError.OLD) from error.__cause__
        if target.staged:
            target.take(write)
        return result

    def _inherit(self) -> None:
        """In a forked child: its descriptors were closed (`runtime.forks`), all else is its parent's."""
        self._inherited = True

    def _demand_own(self) -> None:
        if self._inherited:
            hint = "A forked child makes one of its own, if it needs any."
            raise InputError("a communicator belongs to the process that made it", where="Communicator", hint=hint)

    def _demand_open(self) -> None:
        self._demand_own()
        if self._closed:
            raise InputError("it is closed", where="Communicator", expected="calls before close()")

    # --- failures ----------------------------------------------------------------------------------------------------

    def events(self) -> tuple[Note, ...]:
        """What this rank has noted, the latest 1000. Times are of this process's monotonic clock.

        Kinds: "nic down", "nic up", "lost" (a wire), "fenced" (this end of it), "moved" (to other wires: what it
        carried). Also "waiting" (no NIC leads to a rank any more), "made anew" (a wire), "renewed" (the plan, without
        the NICs in `text`). And "late" (a rank that mostly comes last to calls, in `text`), and "verdict" (a rank has
        failed: `text` is what all ranks' calls raise). Of faults on purpose: "struck", and what became of it, "healed",
        "held", "slowed".
        """
        self._demand_own()
        return self._events.all()

    def shrink(self) -> Communicator:
        """After RankFailedError: a communicator of the ranks that are left, in their order; all of them call this.

        Close this one afterwards. Where rank 0's process has ended, which had the control channel, the lowest rank that
        is left has it from then on. Who dies while the group is made is left out. Raises InputError where there is no
        such group: no rank has failed, or this one has, or a rank that lives does not call this within `timeout_s`.
        """
        self._demand_open()
        if self.world == 1:
            raise InputError("no rank has failed", where="shrink", expected="a call after RankFailedError")
        made: list[Communicator] = []

        def join(place: Membership, ranks: list[int], ties: Ties, end: float) -> None:
            within_s = max(GRACE_S, end - time.monotonic())
            made.append(self._sub(Regrouped(place, None, ranks), ties=ties, within_s=within_s))

        self._member.shrink(join)
        return made[0]

    def grow(
        self,
        world: int,
        rendezvous: str,
        *,
        cluster: Given | None = None,
        interface: str | None = None,
        within_s: float = JOIN_S,
    ) -> Communicator:
        """A communicator of `world` ranks: these, with their numbers, and new ones besides; all of these call this.

        Each new process makes a Communicator with the same `rendezvous`, `world` and `cluster`, and a `rank` from this
        one's `world` on. Close this one afterwards: without rank 0 it cannot shrink any more.

        rendezvous : HOST:PORT on the machine of rank 0, a port that is free; job and secret as of `Communicator`
        cluster : of all `world` ranks; needed where this communicator was given one. NICs that have died stay out
        within_s : seconds for the new ranks to come

        Raises GrowFailedError on all ranks when a new one does not come, or dies while it joins: this communicator
        goes on as it was. InputError likewise for what cannot be, RankFailedError when one of these ranks fails.
        """
        self._demand_open()
        world, within_s = whole(world, "world"), seconds(within_s, "within_s")
        if world <= self.world:
            raise InputError("not larger", where="world", expected=f"more than {self.world}", got=world)
        if cluster is None and self._given:
            expected = f"the cluster of all {world} ranks, as this communicator was given one"
            raise InputError("none", where="cluster", expected=expected)
        given = None if cluster is None else read_cluster(cluster, world)
        with as_arguments():
            place = find(os.environ, rendezvous=rendezvous, rank=self.rank, world=world)
        assert place
        with self._events.verdict():
            return self._in_order.run(lambda: self._grow(place, given, interface, within_s), async_op=False)  # type: ignore[no-any-return]

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The ranks that give the same `color`, as a communicator of their own, ordered by (key, rank). All call this.

        None for a rank that gives None.
        """
        self._demand_open()
        color = int(color) if isinstance(color, bool | np.bool_) else color  # `rank < 2` says which half
        color, key = None if color is None else whole(color, "color"), whole(key, "key")
        if self.world == 1:
            return None if color is None else self._sub(Regrouped(ALONE, None, [0]))
        with self._events.verdict():
            group = self._in_order.run(lambda: part_by_color(self._member, color, key), async_op=False)
        if not group:
            return None
        return self._sub(group, hub_lives=lambda: self._member.lives(group.ranks[0]), within_s=self._options.timeout_s)

    def strike(self, kind: str, nic: str, part: float = 0.5, amount: float = 0.0, far: str = "") -> None:
        """Inject a fault of `kind` (see `optcc.runtime.control.fault_injection`; "cut" is a link that goes down) at
        `nic`, such as "server1/nic0". It strikes in the next operation, when the part `part` of its rank's transfers is
        done. All ranks may call.

        amount : seconds of a "flap", an "away" or a "pause"; the part of its rate that a "slow" NIC keeps
        far : the NIC at the other end of a "path"

        Raises InputError for no such kind or NIC, for what is missing, and for what this transport cannot be done to.
        """
        self._demand_open()
        part = number(part, "part", "0 to 1", lambda found: 0 <= found <= 1)
        amount = number(amount, "amount", "0 or more", lambda found: found >= 0)
        strike = Strike(kind, nic, part, amount, far)
        nics = {port.name: port.rank for port in ports_of(self.cluster)}
        demand_strike(strike, nics, self._options.costs.transport)
        if self.world > 1 and nics[nic] == self.rank:
            self._member.links.strike(strike)

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
        if self._inherited:
            return
        if cause is None:
            self._in_order.settle()
        if self.world > 1:
            self._member.close(cause)
        self._in_order.settle()

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _renew(self, nics: list[str]) -> None:
        """The cluster without these NICs; plans and wires follow with the next call."""
        cluster = degrade_all(self.cluster, [(nic, 0) for nic in nics])  # all that have died so far
        self._prepared.renew(cluster, self._options.reproducible)
        self._events.note([Note(time.monotonic(), "renewed", "", text=", ".join(nics) or "all are back")])

    def _grow(self, place: Membership, given: Cluster | None, interface: str | None, within_s: float) -> Communicator:
        exchange: Exchange = lambda value: [value]  # noqa: E731
        if self.world > 1:
            exchange = self._member.exchange
            with self._member.turn("grow()"):
                pass

        def lives(rank: int) -> bool:
            """Of new ranks nothing is known."""
            return rank >= self.world or self.world == 1 or self._member.lives(rank)

        group = with_new(place, exchange, interface, within_s, lives)
        dead = dead_nics(self._prepared.cluster if self.world > 1 else self.cluster, self.rank)
        made, failed = None, None
        try:
            how: dict[str, Any] = {"within_s": within_s + JOIN_S, "dead": dead, "lent": self._arena}
            made = self._with(self._options, place, group.overseer, given, hub_lives=lambda: lives(0), **how)
        except OptccError as error:
            failed = error
        others_have = self._member.others_have if self.world > 1 else lambda larger: False
        all_or_none(made, failed, place, exchange, others_have)
        assert made
        if self.world > 1:
            self._member.gone_on()
        return made

    def _sub(self, group: Regrouped, **how: Any) -> Communicator:
        """A communicator of some of these ranks. `how` : as of `_join`"""
        if group.place.world == 1:
            return self._with(self._options, group.place, None, None)
        cluster = part_of(self._prepared.cluster, group.ranks)
        made = self._with(self._options, group.place, group.overseer, cluster, lent=self._arena, **how)
        made._given = self._given
        return made
