"""Channels: whole sections on single NICs, as collective libraries run a scheme.

A transfer striped over all NICs of two servers costs a chunk on each NIC, and more where the servers have unequally
many. In channels it costs one chunk on one NIC at either end, and the NICs work on different segments at the same time.
So k segments on c NICs fill the pipeline as k/c striped segments would.

A server deals the sections of all segments to its NICs in turn, by their rates: a channel to each, where there are as
many and all are alike. Or channel c joins the c-th fastest NICs of all servers, with a part of the data by the slowest
of them (`channel_rates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import MAX_SEGMENTS, require
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster


def channel_count(cluster: Cluster) -> int:
    """The number of channels: of NICs that work both ways at the server with most of them.

    Raises InputError for GPUs as ranks, for rails, and for a rank without a NIC that works both ways.
    """
    return max(map(len, _both_ways(cluster)))


def channel_rates(cluster: Cluster) -> list[Fraction]:
    """Of channel c the rate of the slowest of all servers' c-th fastest NICs; as many as the server with fewest NICs
    has. Raises InputError as `channel_count`."""
    ranked = [sorted((rate for _, rate in nics), reverse=True) for nics in _both_ways(cluster)]
    return [min(rates) for rates in zip(*ranked, strict=False)]


def require_channels(channels: int | None, cluster: Cluster) -> None:
    """Raise InputError unless `channels` is None, all transfers striped, or a number of channels for the cluster."""
    if channels is not None:
        whole = type(channels) is int and 1 <= channels <= MAX_SEGMENTS
        require(whole, "channels", f"1 to {MAX_SEGMENTS}, or none", channels)
        channel_count(cluster)


def in_channels(channels: int | None) -> str:
    """In channels or striped, as text for people."""
    return "striped over all NICs" if channels is None else f"on single NICs, {channels} channels"


def on_single_nics(
    schedule: Schedule, cluster: Cluster, count: int, parts: Sequence[NDArray[np.int64]], *, fastest: bool = False
) -> Schedule:
    """The schedule with every transfer on one NIC at either end.

    count : of channels, which segments take in turn
    parts : of each part of the buffer the bounds of its sections, int64, shape (segments, sections + 1); no transfer
        has bytes of two sections
    fastest : channel c goes by the c-th fastest NICs; otherwise NICs are dealt their sections in turn
    Raises InputError as `channel_count`.
    """
    turn = np.zeros(len(schedule), np.int64)
    for bounds in parts:
        here = np.flatnonzero((schedule.offset >= bounds[0, 0]) & (schedule.offset < bounds[-1, -1]))
        place = np.searchsorted(bounds[:, :-1].ravel(), schedule.offset[here], side="right") - 1
        sections = bounds.shape[1] - 1
        segment, section = np.divmod(place, sections)
        turn[here] = (segment // count * sections + section) * count + segment % count
    turns = int(turn.max(initial=0)) + 1
    routes, ranks = Routes(cluster), cluster.ranks
    dealt = cache(lambda rates: _dealt(rates, turns))  # most servers have the same rates
    ports = np.empty((len(ranks), turns), np.int64)
    for rank, nics in enumerate(_both_ways(cluster)):
        server = cluster.servers[ranks[rank].server].name
        mine = [routes.port_index[f"{server}/{name}"] for name, _ in nics]
        rates = tuple(rate for _, rate in nics)
        by_rate = sorted(range(len(rates)), key=lambda nic: -rates[nic])
        ports[rank] = np.array(mine)[np.array(by_rate)[np.arange(turns) % count] if fastest else dealt(rates)]
    ends = np.stack((schedule.src, schedule.dst, ports[schedule.src, turn], ports[schedule.dst, turn]), 1)
    used, which = np.unique(ends, axis=0, return_inverse=True)
    found = [routes.pinned(src, dst, [(out, into, Fraction(1))]) for src, dst, out, into in used.tolist()]
    route = np.array(found, np.int32)[which.ravel()] if found else schedule.route
    return schedule.replace(routes=tuple(routes.table), route=route)


def _dealt(rates: tuple[Fraction, ...], turns: int) -> NDArray[np.int64]:
    """The NIC of each turn: the one that would finish its turns first, of equal ones the first."""
    done = np.arange(1, turns + 1)[:, None] / np.array([float(rate / max(rates)) for rate in rates])
    return np.argsort(done.ravel(), kind="stable")[:turns] % len(rates)


def _both_ways(cluster: Cluster) -> list[list[tuple[str, Fraction]]]:
    """Of each rank the name and rate of its NICs that work both ways; the rate is the slower way's."""
    if cluster.gpu_ranks or not cluster.fabric.flat:
        raise InputError(
            "no channels here",
            where="cluster",
            expected="servers as ranks, and NICs that all reach each other",
            got="GPUs as ranks" if cluster.gpu_ranks else "rails or pods",
            hint="Transfers can be striped there.",
        )
    found = []
    for rank in cluster.ranks:
        found.append([(nic.name, min(nic.out_rate, nic.in_rate)) for nic in rank.nics if nic.out_rate and nic.in_rate])
        if not found[-1]:
            raise InputError("no channels here", where=rank.name, expected="a NIC that works both ways", got="none")
    return found
