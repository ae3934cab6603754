"""What callers see of a communicator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from optcc.communicator.calls import Calls
from optcc.communicator.clusters import (
    Given,
    agreed,
    alike,
    dead_nics,
    message_costs,
    part_of,
    read_cluster,
)
from optcc.communicator.collectives import Alone, Collectives, Together
from optcc.communicator.debug import speaker
from optcc.communicator.events import Events
from optcc.communicator.groups import ALONE, Exchange, Regrouped, all_or_none, left_of, part_by_color, with_new
from optcc.communicator.handles import InOrder
from optcc.communicator.options import CommunicatorOptions, as_arguments, number, seconds, whole
from optcc.communicator.prepared import Prepared
from optcc.errors import InputError, OptccError
from optcc.runtime.compiled.choice import path_asked, path_of, warm
from optcc.runtime.control.connecting import TIMEOUT_S
from optcc.runtime.control.fault_injection import demand_strike
from optcc.runtime.control.member import JOIN_S, Member
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.control.rendezvous import Membership, find
from optcc.runtime.control.transports import TRANSPORTS, check_devices
from optcc.runtime.messages import Note, Strike
from optcc.runtime.wires.lent import Arena
from optcc.schedule.routes import ports_of
from optcc.values.cluster import Cluster


class Communicator(Calls):
    """The ranks of a job. A context manager; made by all of its processes at the same time, and called alike by all.

    cluster : the ranks' NICs, as a `Cluster` or what `optcc.load_topology` reads; its ranks are the job's, in order.
        None: over the local transport one NIC for each rank, over verbs the RDMA devices of each rank's machine
    transport : "local", processes of one machine over shared memory; "verbs", RDMA devices
    rendezvous, rank, world, interface : as of `optcc run`: given by torchrun, mpirun, srun, or here. Where nothing
        speaks of other ranks, this is the only one
    timeout_s : seconds for an operation, all ranks' coming included; then a rank has failed
    return_s : seconds that a rank waits for a NIC to be back when its last one is lost; None: as many as `timeout_s`
    reproducible : sums are rounded the same in every run, whatever NICs fail. Nothing is tuned, and plans are kept,
        although they are no longer the best
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
    ) -> None:
        if transport not in TRANSPORTS:
            raise InputError("no such transport", where="transport", expected=" or ".join(TRANSPORTS), got=transport)
        costs = message_costs(cluster, transport)
        self._options = CommunicatorOptions(costs, timeout_s, return_s, reproducible, tune, on_event)
        overseer = None
        with as_arguments():
            rank = None if rank is None else whole(rank, "rank")
            world = None if world is None else whole(world, "world")
            membership = find(os.environ, rendezvous=rendezvous, rank=rank, world=world) or ALONE
            if membership.world > 1:
                warm(path_of(path_asked(os.environ), transport, "cpu"))  # before the time to meet begins
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
        within_s: float | None = None,
        dead: Sequence[str] = (),
        lent: Arena | None = None,
    ) -> Communicator:
        comm = object.__new__(cls)
        comm._options = options
        comm._join(membership, overseer, cluster, within_s, dead, lent)
        return comm

    def _join(
        self,
        membership: Membership,
        overseer: Overseer | None,
        cluster: Given | None,
        within_s: float | None = None,
        dead: Sequence[str] = (),
        lent: Arena | None = None,
    ) -> None:
        """within_s : for all ranks to come, None: as for those that are started at the same time

        dead : NICs of this rank that are known not to work; lent : see `Member`
        """
        options, self._given, self._process = self._options, cluster is not None, os.getpid()
        within_s = max(JOIN_S, options.timeout_s) if within_s is None else within_s
        self.rank, self.world = membership.rank, membership.world
        self._events = Events(self.rank, options.on_event)
        self._in_order = InOrder(f"optcc calls of rank {self.rank}", options.timeout_s)
        self._closed = False
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
            lent=lent,
        )
        self._arena = self._member.lent
        try:
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
            self._collectives = Together(self._member, self._prepared, self._events.note)
        except BaseException as error:
            self._member.close(f"{type(error).__name__}: {error}")
            raise

    # --- failures ----------------------------------------------------------------------------------------------------

    def events(self) -> tuple[Note, ...]:
        """What this rank has noted, the latest 1000, of the kinds in `optcc.communicator.events`. Times are of this
        process's monotonic clock."""
        self._demand_own()
        return self._events.all()

    def shrink(self) -> Communicator:
        """After RankFailedError: a communicator of the ranks that are left, in their order; all of them call this.

        Close this one afterwards. Raises InputError where there is none: no rank has failed, or this one has, or the
        one whose process had the control channel (rank 0).
        """
        self._demand_open()
        if self.world == 1:
            raise InputError("no rank has failed", where="shrink", expected="a call after RankFailedError")
        return self._sub(left_of(self._member))

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
        one's `world` on. Close this one afterwards.

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
        group = self._in_order.run(lambda: part_by_color(self._member, color, key), async_op=False)
        return self._sub(group) if group else None

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
            self._member.strike(strike)

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
        if os.getpid() != self._process:
            return  # this child's descriptors were closed as it was forked (`runtime.forks`); all else is its parent's
        if cause is None:
            self._in_order.settle()
        if self.world > 1:
            self._member.close(cause)
        self._in_order.settle()

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _renew(self, nics: list[str]) -> None:
        """The cluster without these NICs; plans and wires follow with the next call."""
        cluster = self.cluster
        for nic in nics:  # all that have died so far
            cluster = cluster.degrade(nic)
        self._prepared.renew(cluster, self._options.reproducible)
        self._events.note([Note(time.monotonic(), "renewed", "", text=", ".join(nics) or "all are back")])

    def _grow(self, place: Membership, given: Cluster | None, interface: str | None, within_s: float) -> Communicator:
        exchange: Exchange = lambda value: [value]  # noqa: E731
        if self.world > 1:
            exchange = self._member.exchange
            with self._member.turn("grow()"):
                pass
        group = with_new(place, exchange, interface, within_s)
        dead = dead_nics(self._prepared.cluster if self.world > 1 else self.cluster, self.rank)
        made, failed = None, None
        try:
            made = self._with(self._options, place, group.overseer, given, within_s + JOIN_S, dead, self._arena)
        except OptccError as error:
            failed = error
        all_or_none(made, failed, place, exchange)
        assert made
        return made

    def _sub(self, group: Regrouped) -> Communicator:
        """A communicator of some of these ranks."""
        if group.place.world == 1:
            return self._with(self._options, group.place, None, None)
        cluster = part_of(self._prepared.cluster, group.ranks)
        timeout_s = self._options.timeout_s  # for all that live, as in any call
        made = self._with(self._options, group.place, group.overseer, cluster, timeout_s, lent=self._arena)
        made._given = self._given
        return made
