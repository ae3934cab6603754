"""The communication hook for DistributedDataParallel: the native AllReduce, or a plan where links are unequal.

One `HookState` per model. All ranks make it and use it alike: what it decides is a function of what all have gathered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from optcc.cluster import Cluster, Nic, Server
from optcc.errors import InputError, OptccError
from optcc.runtime.errors import PeerLostError, RankFailedError, TransportError
from optcc.runtime.torch.book import GLOO, NCCL, Book, Costs, Planner
from optcc.runtime.torch.policy import Levels, Policy, Switch, full_rate
from optcc.runtime.torch.probe import probe
from optcc.runtime.torch.verdict import GRACE_S, Court
from optcc.runtime.torch.walk import Walk, first_line
from optcc.units import format_size

Rate = Callable[[dist.ProcessGroup, torch.device], float]
"""This rank's rate in bytes per second. Called by all ranks of the group in the same step; may be collective."""


class HookState:
    """What `allreduce_hook` needs. Made by all ranks of `group` together (it makes a process group of its own).

    Parameters
    ----------
    planner : makes plans, on rank 0
    group : DDP's process group; None: the default one
    cluster : known rates, rank r of the cluster being rank r of the group; None: `rate` tells them
    rate : this rank's rate, asked every `policy.every` steps; by default it is measured (`probe`)
    timeout_s : seconds, bounds every wait for a peer on a plan's way (the native way keeps the group's own bound)
    costs : of messages; by default those of Gloo for buckets in host memory, of NCCL for those on a GPU

    Raises InputError, on all ranks, when they were given different things.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        group: dist.ProcessGroup | None = None,
        cluster: Cluster | None = None,
        rate: Rate = probe,
        policy: Policy | None = None,
        timeout_s: float = 600.0,
        costs: Costs | None = None,
    ) -> None:
        self.native = group if group is not None else dist.group.WORLD
        if self.native is None:
            raise InputError("no process group", where="group", expected="init_process_group called before")
        world = dist.get_world_size(self.native)
        # Our messages never meet those of others, and our bound is our own. It also bounds how long the group's making
        # may wait for the last rank, whatever that did before: so all meet first, and say if they cannot go on.
        _none_refuses(self.native, _wrong(timeout_s, cluster, world))
        self.policy = policy or Policy()
        self._planner, self._rate, self._costs = planner, rate, costs
        self._group = dist.new_group(
            dist.get_process_group_ranks(self.native),
            timeout=timedelta(seconds=timeout_s),
            backend=dist.get_backend(self.native),
            use_local_synchronization=True,  # ranks outside `group` know nothing of this
        )
        _same_on_all(self._group, repr((cluster, self.policy, costs, timeout_s)))
        store = dist.distributed_c10d._get_default_store()
        self._court = Court(store, self._group.group_name, dist.get_rank(self.native), world, min(GRACE_S, timeout_s))
        self._switch = Switch(self.policy)
        self._cluster = cluster
        self._book: Book | None = None
        self._worker = ThreadPoolExecutor(1, "optcc")
        self._pending: list[tuple[torch.futures.Future[Any], bool]] = []
        self._on: torch.device | None = None
        """The GPU on which buckets of this step went by plan."""
        self._failure: RankFailedError | InputError | None = None
        self.steps = 0
        """Steps whose gradients were reduced or are being."""
        self.rates: tuple[float, ...] = ()
        """Bytes per second by rank, as last agreed on; empty before, and with a given cluster."""
        self.by_plan = 0
        """Buckets that went by a plan so far; the others went natively."""

    @property
    def levels(self) -> Levels | None:
        """Rates of which the plan in force is made, in parts of the fastest; None: native, or a given cluster."""
        return self._switch.current

    @property
    def book(self) -> Book | None:
        """The plans in force; None: native."""
        return self._book

    def describe(self) -> str:
        """For people: what is in force."""
        planned = [nbytes for nbytes, plan in self._book.plans.items() if plan] if self._book is not None else []
        if not planned:
            return "native"
        return f"by plan: buckets of {', '.join(map(format_size, planned))}"

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook: average the bucket over all ranks. Raises RankFailedError, here or at the end of the backward."""
        if self._failure is not None:
            raise self._failure
        buffer = bucket.buffer()
        try:
            if bucket.index() == 0:
                self._begin(buffer.device)
            walk = self._book.walk(buffer) if self._book is not None else None
            buffer.div_(dist.get_world_size(self.native))  # before the sum, as DDP does: a half overflows late
            if walk is None:
                future = dist.all_reduce(buffer, group=self.native, async_op=True).get_future()
                self._pending.append((future, True))
                return future.then(lambda done: done.value()[0])
            self.by_plan += 1
            if buffer.device.type == "cpu":
                future = self._by_cpu(walk, buffer)
            else:
                self._on = buffer.device
                future = _by_stream(walk, buffer)
            self._pending.append((future, False))
            return future
        except InputError:
            raise  # which all ranks have agreed on
        except Exception as error:  # of this rank alone: the others must not wait for it
            raise self._fail(error) from error

    def close(self) -> None:
        """End the worker thread, and free what holds on to the process group, which goes with torch's own end."""
        self._worker.shutdown(wait=True)
        self._book = None

    def _begin(self, device: torch.device) -> None:
        """A step: its end is watched, and now and then rates are agreed on."""
        self._pending.clear()
        self._on = None
        # Runs at the end of this backward and before DDP's own, which would make any error a RuntimeError.
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if self._cluster is not None:
            if self._book is None:
                self._book = self._new_book(self._cluster, device)
        elif self.steps % self.policy.every == 0 and dist.get_world_size(self._group) > 1:
            self._agree(device)
        self.steps += 1

    def _agree(self, device: torch.device) -> None:
        """Gather everyone's rate; a change of plan happens here, in the same step on all ranks."""
        try:
            rate = self._rate(self._group, device)
        except InputError as error:  # of this rank alone
            raise TransportError(str(error)) from error
        mine = torch.tensor([rate], dtype=torch.float64, device=device)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(all_of_them, mine, self._group)
        self.rates = tuple(rate.item() for rate in all_of_them)
        if self._switch.update(self.rates):
            levels = self._switch.current
            cluster = None if levels is None else cluster_of(levels, full_rate(self.rates), self.policy.quanta)
            self._book = None if cluster is None else self._new_book(cluster, device)

    def _new_book(self, cluster: Cluster, device: torch.device) -> Book:
        costs = self._costs or (GLOO if device.type == "cpu" else NCCL)
        return Book(self._group, cluster, self._planner, costs, self.policy.gain)

    def _by_cpu(self, walk: Walk, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """On the worker, in the order in which buckets come, which is the same on all ranks."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def work() -> None:
            try:
                if self._failure is None:
                    walk.run(buffer)
            except Exception as error:  # whatever it is, a bucket without a result would hang the backward
                self._fail(error)
            finally:
                future.set_result(buffer)

        self._worker.submit(work)
        return future

    def _finish(self) -> None:
        """At the end of the backward: wait for all buckets, and raise what any of them met."""
        for future, native in self._pending:
            try:
                future.wait()
            except RuntimeError as error:
                if not native:
                    raise
                self._fail(error, self.native)
        if self._on is not None and self._failure is None:
            # NCCL's watchdog, which bounds a wait, does not see what a recording exchanges. It sees this, behind it.
            with torch.cuda.stream(_stream_of(self._on)):
                dist.all_reduce(torch.zeros(1, device=self._on), group=self._group, async_op=True)
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: Exception, where: dist.ProcessGroup | None = None) -> RankFailedError | InputError:
        """Note the failure, on our group or another, so that nothing goes on; returns what all ranks raise for it."""
        if self._failure is None:
            if isinstance(error, InputError):
                self._failure = error
            else:
                known = error if isinstance(error, OptccError) else TransportError(first_line(error))
                self._failure = RankFailedError(self._court.rank, str(known))  # stands if judging fails
                own = not isinstance(error, (RuntimeError, PeerLostError))  # a RuntimeError is how torch tells of peers
                self._failure = self._court.judge(known, lambda: _hang_up(where or self._group), own=own)
        return self._failure


def _hang_up(group: dist.ProcessGroup) -> None:
    """Close this rank's connections, so that peers that wait for it fail now and not when their time is up.

    Gloo has no call for that, but a wait whose time is up closes all connections of its group. With a peer whose
    connection is closed already there is no wait, so all are tried.
    """
    if dist.get_backend(group) != "gloo":
        return
    for peer in dist.get_process_group_ranks(group):
        if peer != dist.get_rank():
            with suppress(RuntimeError):
                dist.irecv(torch.empty(1), peer, group, 2**30 - 1).wait(timedelta(milliseconds=1))


def _wrong(timeout_s: float, cluster: Cluster | None, world: int) -> InputError | None:
    if not 0 < timeout_s <= 86400:
        return InputError("time out of range", where="timeout_s", expected="above 0 to a day", got=timeout_s)
    if cluster is not None and len(cluster.ranks) != world:
        return InputError("another number of ranks", where="cluster", expected=str(world), got=len(cluster.ranks))
    return None


def _none_refuses(group: dist.ProcessGroup, mine: InputError | None) -> None:
    """Raise the rank's own error, or the first of the others', on all ranks of `group`."""
    said: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, None if mine is None else str(mine), group)
    if mine is not None:
        raise mine
    for rank, text in enumerate(said):
        if text is not None:
            raise InputError(text, where=f"rank {rank}")


def _same_on_all(group: dist.ProcessGroup, given: str) -> None:
    """Ranks that follow different plans wait for each other for ever: they compare what they were given, once."""
    digests: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(digests, hashlib.sha256(given.encode()).hexdigest(), group)
    odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if odd:
        ranks = ", ".join(map(str, odd[:8]))
        raise InputError(
            "the ranks were given different things", where="rates and policy", got=f"other ones at {ranks}"
        )


def cluster_of(levels: Levels, full: float, quanta: int) -> Cluster:
    """Ranks as servers of one NIC; `full` in bytes per second."""
    whole = Fraction(max(1, round(full)))
    servers = []
    for rank, level in enumerate(levels):
        rate = whole * level / quanta
        servers.append(Server(f"rank{rank}", (Nic("link", rate, rate, rail=0),)))
    return Cluster(tuple(servers))


def _by_stream(walk: Walk, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """On a stream beside the backward's, which goes on; whoever waits for the future makes its stream wait."""
    stream = _stream_of(buffer.device)
    stream.wait_stream(torch.cuda.current_stream(buffer.device))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device])
    with torch.cuda.stream(stream):
        buffer.record_stream(stream)
        walk.run(buffer)
        future.set_result(buffer)
    return future


_streams: dict[torch.device, Any] = {}


def _stream_of(device: torch.device) -> Any:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]
