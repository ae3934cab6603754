"""Sends and receives of one rank, as formats know them that move bytes: Chakra traces and GOAL files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Node:
    """A send (`sends`) or receive of `nbytes` bytes at `offset`, to or from `peer`.

    id : its number among its rank's nodes, from 0 on; tag : joins it to the node at the other end
    reduce : whether the bytes are added where they land
    deps : ids of receives that it waits for
    order : ids of sends that it waits for: in our files those before it at the same port, which order no bytes
    port : of those that the rank sends by, for a send
    """

    id: int
    sends: bool
    peer: int
    tag: int
    nbytes: int
    offset: int
    reduce: bool
    deps: tuple[int, ...]
    order: tuple[int, ...] = ()
    port: int = 0


def chained(nodes: Sequence[Node], starts: Sequence[float], ports: Callable[[Node], tuple[int, ...]]) -> list[Node]:
    """The same, each send after the one before it at each of its ports.

    starts : tag -> when it starts in a run that keeps the plan's order; so nothing waits for what comes later
    """
    last: dict[int, int] = {}
    order: dict[int, tuple[int, ...]] = {}
    for node in sorted((node for node in nodes if node.sends), key=lambda node: (starts[node.tag], node.tag)):
        mine = ports(node)
        order[node.id] = tuple(sorted({last[port] for port in mine if port in last}))
        last |= dict.fromkeys(mine, node.id)
    return [replace(node, order=order.get(node.id, ())) for node in nodes]


def parted(nodes: Sequence[Node]) -> list[Node]:
    """The same, what each waits for parted into receives and sends, whichever of the two it was called.

    Numbers of nodes that are not there stay among `deps`.
    """
    sends = {node.id for node in nodes if node.sends}
    return [
        replace(
            node,
            deps=tuple(other for other in (*node.deps, *node.order) if other not in sends),
            order=tuple(other for other in (*node.deps, *node.order) if other in sends),
        )
        for node in nodes
    ]


def out_of_order(files: Sequence[Sequence[Node]]) -> tuple[int, int]:
    """(loose, sends): how many sends of the files come after no other at their port, beside one first at each."""
    loose = total = 0
    for nodes in files:
        sends = [node for node in nodes if node.sends]
        followed = {other for node in sends for other in node.order}
        total += len(sends)
        for port in {node.port for node in sends}:
            mine = [node for node in sends if node.port == port]
            heads = sum(not node.order for node in mine)
            tails = sum(node.id not in followed for node in mine)
            loose += max(0, max(heads, tails) - 1)
    return loose, total
