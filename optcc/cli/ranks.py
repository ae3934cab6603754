"""`optcc ranks`: what an operator of stock NCCL can do about slow servers: their places, variables, NICs to leave out.

NCCL's ring sends and receives 2 (P-1)/P of the data at every server, so the slowest one says how long it takes. Its
Tree is two binary trees with half of the data each (src/graph/trees.cc of NCCL 2.30.7): inside them a server has twice
the data to carry, but who is the root of one and a leaf of the other only once. So slow servers go to such places.

Data goes over NICs in equal shares, so a server is as fast as the NICs that NCCL uses times the slowest of them. Of 8
NICs it does not use all that are left: `USED_OF_8` follows from docs/bench-nccl-played.md (2.28.9 and 2.30.7, nodes of
one GPU). For other numbers nothing has been measured, and all count.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import click

from optcc.cli.options import cluster_options, emit, json_option, read_cluster
from optcc.errors import InputError
from optcc.schedule.nccl_tree import best_order, tree_loads
from optcc.values.cluster import Cluster, Server

USED_OF_8 = {8: 8, 7: 4, 6: 4, 5: 2, 4: 4}
"""NICs that live, of 8 -> NICs that stock NCCL uses, by the times that it takes."""
KEPT_OF_GAIN = Fraction(85, 100)
"""Of the gain by these formulas at least so much was measured: 1.32 to 1.44 times as fast where they say 1.5, one of
four nodes at half rate, over sockets and over played InfiniBand. Less than that is not promised."""


@dataclass(frozen=True)
class Stock:
    """A server as stock NCCL uses it. rate : bytes per second each way; left_out : NICs that it is better without"""

    server: Server
    rate: Fraction
    left_out: tuple[str, ...] = ()


def used(nics: int, live: int) -> int:
    return USED_OF_8.get(live, live) if nics == 8 else live


def as_stock(server: Server, leave: bool) -> Stock:
    """leave : without the NICs that cost more than they carry. Raises InputError for a server without a live NIC."""
    live = sorted((min(nic.out_rate, nic.in_rate), nic.name) for nic in server.nics if nic.alive)
    if not live:
        raise InputError("no NIC alive", where=server.name, expected="one at least", got="none")
    options = [
        Stock(server, used(len(server.nics), len(live) - out) * live[out][0], tuple(name for _, name in live[:out]))
        for out in range(len(live) if leave else 1)
    ]
    return max(options, key=lambda one: (one.rate, -len(one.left_out)))


def advise(cluster: Cluster) -> dict[str, Any]:
    """What to do, and what it is worth; times in units of the data over the rate of the fastest server without
    failures. Raises InputError for clusters that these formulas do not know."""
    from optcc.api import lower_bound

    if cluster.gpu_ranks or not cluster.fabric.flat:
        raise InputError(
            "not a cluster that NICs alone limit", where="TOPOLOGY", got="GPUs as ranks, or shared links",
            expected="servers as ranks on a fabric that does not block",
        )  # fmt: skip
    count = len(cluster.servers)
    if count < 2:
        raise InputError("one server", where="TOPOLOGY", expected="two or more", got=count, hint="--servers N")
    unit = max(min(server.out_rate, server.in_rate) for server in cluster.fault_free.servers)
    now = [as_stock(server, leave=False) for server in cluster.servers]
    then = [as_stock(server, leave=True) for server in cluster.servers]
    ring = Fraction(2 * (count - 1), count) * unit
    rates = [one.rate for one in then]
    order = best_order(rates)
    ring_now, ring_then = (ring / min(one.rate for one in servers) for servers in (now, then))
    tree = max(load * unit / rates[server] for load, server in zip(tree_loads(count), order, strict=True))
    gain = ring_then / tree
    size = 1 << 28
    return {
        "servers": [
            {"server": one.server.name, "rate": float(one.rate / unit), "leave_out": list(one.left_out)} for one in then
        ],
        "ring_now": float(ring_now),
        "ring": float(ring_then),
        "tree": float(tree),
        "bound": float(lower_bound(cluster, size).seconds * unit / size),
        "tree_pays": gain * KEPT_OF_GAIN > 1,
        "gain": [float(gain * KEPT_OF_GAIN), float(gain)],
        "order": [cluster.servers[server].name for server in order],
        "env": {"NCCL_ALGO": "allreduce:tree"},
    }


@click.command()
@click.argument("topology")
@cluster_options
@json_option
def ranks(
    topology: str, servers: int | None, fail: tuple[str, ...], nic_rate: str | None, ranks: str | None, as_json: bool
) -> None:
    """What stock NCCL, without the plugin, should be told of a degraded cluster.

    The order of hosts, the variables, and the gain over NCCL's ring that may be expected; or that its Tree would not
    pay. And NICs that it is faster without. Takes effect when the job starts again.
    """
    found = advise(read_cluster(topology, servers, fail, nic_rate, ranks))
    emit(as_json, found, lambda: _tell(found))


def _tell(found: dict[str, Any]) -> None:
    for one in found["servers"]:
        if one["leave_out"]:
            click.echo(f"{one['server']}: leave out {', '.join(one['leave_out'])} (NCCL_IB_HCA=^..., or the link down)")
    if found["ring_now"] > found["ring"]:
        click.echo(f"  so NCCL's ring takes {found['ring'] / found['ring_now']:.2f} of its time")
    low, high = found["gain"]
    if not found["tree_pays"]:
        click.echo(
            f"Keep NCCL's ring: it takes {found['ring']:.2f} times the data over a healthy server's rate, Tree "
            f"{found['tree']:.2f} and up to {1 / float(KEPT_OF_GAIN):.2f} times that as measured; the bound is "
            f"{found['bound']:.2f}."
        )
        return
    click.echo(f"Start the job with hosts in this order: {' '.join(found['order'])}")
    for name, value in found["env"].items():
        click.echo(f"export {name}={value}  # before NCCL 2.24: Tree")
    click.echo(
        f"AllReduce of large data should be {low:.2f} to {high:.2f} times as fast as by NCCL's ring; by data over a "
        f"healthy server's rate: ring {found['ring']:.2f}, Tree {found['tree']:.2f}, bound {found['bound']:.2f}."
    )
