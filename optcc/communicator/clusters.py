"""Which cluster a communicator runs on: what its callers give, what is found, and that all ranks have the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from optcc.errors import InputError
from optcc.runtime.control.transports import demand_one_machine, this_machine
from optcc.values.cluster import Cluster, cluster_in, cluster_out

if TYPE_CHECKING:
    from optcc.discover import Topology

RATE = "100Gb/s"
"""Of the one NIC that a rank on the local transport has where nothing is said: what counts is that all are alike."""

PER_CHUNK = Fraction(3, 10**6)
"""Seconds for a chunk beside its bytes, where the caller's file has none: shared memory takes less than one
(docs/bench-chunk.md). Over NICs it has not been measured, nor what half of it does: `optcc calibrate` measures."""

Given = Cluster | str | os.PathLike[str]


class MessageCosts(NamedTuple):
    """What plans are made for: over this transport, seconds from NIC to NIC, and of a chunk beside its bytes."""

    transport: str
    alpha: Fraction
    per_chunk: Fraction


def read_cluster(given: Given, world: int) -> Cluster:
    """The cluster that was given or is described; a single server is copied for every rank. InputError for one of
    another number of ranks."""
    if not isinstance(given, Cluster):
        given = _topology(given).cluster
        if len(given.servers) == 1 and len(given.ranks) != world:
            given = given.replicate(world)
    if len(given.ranks) != world:
        raise InputError(
            "another number of ranks than processes", where="cluster", expected=f"{world} ranks", got=len(given.ranks)
        )
    return given


def message_costs(given: Given | None, transport: str) -> MessageCosts:
    """What the file that was given has measured over this transport; else PER_CHUNK."""
    alpha, per_chunk = Fraction(0), PER_CHUNK
    if given is not None and not isinstance(given, Cluster):
        measured = _topology(given).measured
        if measured and measured.of_runtime(transport):
            alpha = alpha if measured.alpha_s is None else measured.alpha_s
            per_chunk = per_chunk if measured.per_chunk_s is None else measured.per_chunk_s
    return MessageCosts(transport, alpha, per_chunk)


def _topology(given: str | os.PathLike[str]) -> Topology:
    from optcc.discover import load_topology

    return load_topology(given if isinstance(given, str) else Path(given))


def alike(world: int) -> Cluster:
    """One NIC for each rank."""
    return Cluster.uniform(servers=world, nics=1, rate=RATE)


def agreed(
    given: Cluster | None,
    world: int,
    exchange: Callable[[Any], list[Any]],
    *,
    transport: str,
    dead: Sequence[str] = (),
) -> Cluster:
    """What all ranks were given, or else what they are; InputError on all of them where that is not the same.

    exchange : all ranks' values, by rank
    dead : NICs of this rank's server that are known not to work: the cluster is without those of them that it has
    """
    if given is None and transport == "verbs":
        given = _here(exchange)
    cluster = given or alike(world)
    digest = hashlib.blake2b(json.dumps(cluster_out(cluster)).encode(), digest_size=16).hexdigest()
    said = exchange([digest, list(dead), this_machine()])  # of 64 ranks the clusters themselves are a megabyte to each
    demand_one_machine(transport, [machine for *_, machine in said], "transport")
    other = next((rank for rank, (theirs, *_) in enumerate(said) if theirs != said[0][0]), None)
    if other is not None:
        raise InputError(
            f"rank {other} was given another one than rank 0", where="cluster", expected="the same on all ranks"
        )
    for rank, (_, nics, _) in enumerate(said):
        here = cluster.ranks[rank]
        for nic in {nic.name for nic in here.nics} & {*nics}:
            cluster = cluster.degrade(f"{cluster.servers[here.server].name}/{nic}")
    return cluster


def dead_nics(cluster: Cluster, rank: int) -> list[str]:
    """Of a rank's own, those that have died."""
    now, before = cluster.ranks[rank].nics, cluster.fault_free.ranks[rank].nics
    return [nic.name for nic, old in zip(now, before, strict=True) if old.alive and not nic.alive]


def part_of(cluster: Cluster, ranks: Sequence[int]) -> Cluster:
    """The servers of some ranks. InputError with GPUs as ranks."""
    if cluster.gpu_ranks:
        raise InputError("not with GPUs as ranks", where="communicator", expected="a cluster of servers as ranks")
    servers = tuple(cluster.servers[rank] for rank in ranks)
    pristine = cluster.pristine and replace(
        cluster.pristine, servers=tuple(cluster.pristine.servers[rank] for rank in ranks)
    )
    return replace(cluster, servers=servers, pristine=pristine)


def _here(exchange: Callable[[Any], list[Any]]) -> Cluster:
    """One server for each rank: the RDMA devices of its machine, as sysfs tells."""
    from optcc.discover import load_topology

    said = exchange(cluster_out(load_topology("/sys").cluster))
    servers = [cluster_in(each).servers[0] for each in said]
    return Cluster(tuple(replace(server, name=f"server{place}") for place, server in enumerate(servers)))
