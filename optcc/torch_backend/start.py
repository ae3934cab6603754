"""How groups of this backend come to be: torch's store brings the ranks' communicator together."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed import default_pg_timeout

from optcc.communicator import Communicator
from optcc.communicator.clusters import Given
from optcc.errors import InputError
from optcc.runtime.control.member import JOIN_S
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.control.rendezvous import Membership
from optcc.torch_backend.group import OptccGroup
from optcc.torch_backend.options import NAME, Options, devices


def register_backend() -> None:
    """Make "optcc" known to torch.distributed; once."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=devices())


def create(said: Any, options: Options | None) -> OptccGroup:
    """For torch: the group of `said.group_size` ranks that find each other through `said.store`."""
    options = options or Options()
    world, transport = said.group_size, options.carrier()
    # A store may outlive a group of the same name, which has left its addresses there, Gloo's too.
    key = f"optcc {(said.store.add('optcc ranks', 1) - 1) // world}"
    communicator = options._communicator or _communicator(said, options, transport, key)
    try:
        gloo = dist.ProcessGroupGloo(dist.PrefixStore(f"{key} gloo", said.store), said.group_rank, world, said.timeout)
    except BaseException as error:
        communicator.abort(f"{type(error).__name__}: {error}")
        raise
    return OptccGroup(communicator, gloo, transport, said.timeout)


def _communicator(said: Any, options: Options, transport: str, key: str) -> Communicator:
    rank, world = said.group_rank, said.group_size
    ranks = list(said.global_ranks_in_group) or list(range(world))
    cluster = options.cluster_of(ranks, max(world, int(os.environ.get("WORLD_SIZE", world))))
    overseer = None
    if rank == 0 and world > 1:
        host, secret = _address(transport), secrets.token_hex(32)
        overseer = Overseer.open(Membership(0, world, (host, 0), "torch", secret), None, JOIN_S)
        said.store.set(key, f"{host} {overseer.address[1]} {secret}")
    place = Membership(0, 1, ("127.0.0.1", 0), "torch", "")
    if world > 1:
        host, port, secret = said.store.get(key).decode().split()
        place = Membership(rank, world, (host, int(port)), "torch", secret)
    return Communicator.of(
        place,
        overseer,
        cluster,
        transport=transport,
        timeout_s=said.timeout.total_seconds(),
        reproducible=options.keeps_plans(),
    )


def _address(transport: str) -> str:
    """This machine's address on the way to rank 0's of the job."""
    if transport == "local":
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 1))  # sends nothing
        return str(sock.getsockname()[0])


def communicator_of(group: Any = None) -> Communicator:
    """The communicator of a process group of this backend, or of the default one, for its `events` and `strike`.

    Raises InputError for a group of another backend.
    """
    return _ours(group or dist.group.WORLD).communicator


def shrink() -> None:
    """After RankFailedError: torch's default group anew, of the ranks that are left, in their order. All these call it.

    Ranks have new numbers, other groups are gone, and what holds a group has to be made again: DDP, FSDP, samplers. Any
    rank may have been lost, that of torch's store too, rank 0's: those that are left have a new one.

    Raises InputError as `Communicator.shrink` does, and for a default group of another backend.
    """
    old = _ours(dist.group.WORLD)
    _default_group(old.communicator.shrink(), old.transport, old.timeout)


def grow(world: int, rendezvous: str, *, cluster: Given | None = None, within_s: float = JOIN_S) -> None:
    """Torch's default group anew, of `world` ranks: these, with their numbers, and new ones besides, which call `join`.

    All of these call it; as after `shrink`, other groups are gone.

    rendezvous : where the new ranks come, HOST:PORT; cluster : of all ranks, None: as `Communicator` finds it;
    within_s : seconds that they have to come in

    Raises as `Communicator.grow` does: after a GrowFailedError the group goes on as it was.
    """
    old = _ours(dist.group.WORLD)
    more = old.communicator.grow(world, rendezvous, cluster=cluster, within_s=within_s)
    _default_group(more, old.transport, old.timeout)


def join(
    rendezvous: str, rank: int, world: int, options: Options | None = None, timeout: timedelta | None = None
) -> None:
    """In a new process, in place of `init_process_group`: rank `rank` of the default group that others have `grow`.

    rank : from the old group's size on; options : as of ``pg_options=``; timeout : of a call, None: torch's own

    Raises InputError and RankFailedError as `Communicator` does.
    """
    options, timeout = options or Options(), timeout or default_pg_timeout
    transport = options.carrier()
    communicator = Communicator(
        options.cluster_of(range(world), world),
        transport=transport,
        rendezvous=rendezvous,
        rank=rank,
        world=world,
        timeout_s=timeout.total_seconds(),
        reproducible=options.keeps_plans(),
    )
    _default_group(communicator, transport, timeout)


def _default_group(communicator: Communicator, transport: str, timeout: timedelta) -> None:
    """Torch's, over this communicator, in place of the one that there is."""
    try:
        store = _store_of(communicator, transport)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        communicator.abort(f"{type(error).__name__}: {error}")
        raise
    dist.init_process_group(
        NAME,
        store=store,
        rank=communicator.rank,
        world_size=communicator.world,
        timeout=timeout,
        pg_options=Options(transport=transport, _communicator=communicator),
    )


ADDRESS_BYTES = 64
"""For an IP address and a port in words."""


def _store_of(communicator: Communicator, transport: str) -> Any:
    """A store of torch's for these ranks alone, in the process of rank 0, who tells the others where."""
    where, store = np.zeros(ADDRESS_BYTES, np.uint8), None
    if communicator.rank == 0:
        host = _address(transport)
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        said = f"{host} {store.port}".encode()
        where[: len(said)] = bytearray(said)
    communicator.broadcast(where)
    host, port = where.tobytes().rstrip(b"\0").decode().split()
    return store or dist.TCPStore(host, int(port), wait_for_workers=False)


def _ours(group: Any) -> OptccGroup:
    if not isinstance(group, OptccGroup):
        raise InputError("not a group of the backend optcc", where="group", got=type(group).__name__)
    return group
