"""What OPTCC_DEBUG=INFO prints to stderr: the cluster, each plan, and the wires, once on every rank.

Named after NCCL_DEBUG, whose values it knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.runtime.compiled.choice import ChunkPath
from optcc.runtime.wires.layout import Layout
from optcc.values.cluster import Cluster
from optcc.values.units import format_rate, format_size

VARIABLE, LEVELS = "OPTCC_DEBUG", ("WARN", "INFO")

Say = Callable[[str], None]


def speaker(environ: Mapping[str, str], rank: int, world: int) -> Say:
    """What prints a line of rank `rank` of `world`; nothing where OPTCC_DEBUG is not INFO. InputError for no level."""
    level = environ.get(VARIABLE, "WARN").upper()
    if level not in LEVELS:
        raise InputError("no such level", where=VARIABLE, expected=" or ".join(LEVELS), got=environ[VARIABLE])
    if level != "INFO":
        return lambda text: None

    def say(text: str) -> None:
        sys.stderr.write(f"optcc INFO rank {rank} of {world}: {text}\n")  # in one piece: all ranks write to it
        sys.stderr.flush()

    return say


def cluster_text(cluster: Cluster, rank: int, transport: str) -> str:
    """This rank's NICs and how many there are in all."""
    nics = ", ".join(
        f"{nic.name} {format_rate(nic.out_rate) if nic.alive else 'dead'}" for nic in cluster.ranks[rank].nics
    )
    dead = sum(not nic.alive for server in cluster.servers for nic in server.nics)
    everything = sum(len(server.nics) for server in cluster.servers)
    return f"cluster of {everything} NICs, {dead} of them dead; here {nics}; transport {transport}"


def plans_text(plans: Sequence[Plan], nbytes: int) -> str:
    """What runs an AllReduce of up to so many bytes; more than one: each is tried."""

    def text(plan: Plan) -> str:
        depth = f"{plan.recipe.segments} segment{'s' * (plan.recipe.segments != 1)}"
        return f"{plan.recipe.family}, {depth}, plan {plan.plan_id}"

    return f"AllReduce up to {format_size(nbytes)}: {'; or '.join(text(plan) for plan in plans)}"


def wires_text(layout: Layout, rank: int, path: ChunkPath) -> str:
    """This rank's wires, the memory that they take, and what handles chunks."""
    out, into = (sum(getattr(wire, end) == rank for wire in layout.wires) for end in ("src", "dst"))
    slots = sum(flow.window * flow.slot_bytes for flow in layout.flows if flow.dst == rank)
    return f"{out} wires out, {into} in; landing slots of {format_size(slots)}; path of chunks: {path}"
