"""An interpreter of sends and receives, as Chakra traces and GOAL schedules have them.

What is checked: pairing, dependencies, deadlock, and sums.

A send joins the receive of the same ranks and tag. A node may start when the nodes it waits for are done; a receive is
done after its send, and the bytes of a send are read until then. Additions into the same bytes commute; anything else
that touches the same bytes of a rank must be ordered by waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from optcc.errors import VerifyError
from optcc.export.nodes import Node


@dataclass(frozen=True)
class ChakraRun:
    """What was executed: nodes of all ranks."""

    operations: int


@dataclass(frozen=True)
class _Transfer:
    """A pair, with its place in an order in which pairs can run, and the nodes that it waits for as pairs."""

    src: int
    dst: int
    node: Node
    after: tuple[int, ...]


def run(files: Sequence[Sequence[Node]]) -> ChakraRun:
    """Raise VerifyError unless the ranks' traces compute an AllReduce in whatever order they allow."""
    transfers = _transfers(files)
    cuts = sorted({cut for t in transfers for cut in (t.node.offset, t.node.offset + t.node.nbytes)} | {0})
    place = {cut: i for i, cut in enumerate(cuts)}
    touching: list[list[int]] = [[] for _ in cuts[1:]]
    for i, t in enumerate(transfers):
        for piece in range(place[t.node.offset], place[t.node.offset + t.node.nbytes]):
            touching[piece].append(i)
    seen: set[tuple[object, ...]] = set()
    for piece, mine in enumerate(touching):
        local = {i: n for n, i in enumerate(mine)}
        shape = tuple(
            (t.src, t.dst, t.node.reduce, *(local[d] for d in t.after if d in local))
            for t in (transfers[i] for i in mine)
        )
        if shape not in seen:
            _replay(len(files), [transfers[i] for i in mine], local, f"bytes {cuts[piece]}..{cuts[piece + 1] - 1}")
            seen.add(shape)
    return ChakraRun(sum(map(len, files)))


def _transfers(files: Sequence[Sequence[Node]]) -> list[_Transfer]:
    """Pairs in an order in which they can run. Raises VerifyError for loose ends and circles."""
    ends: dict[tuple[int, int, int], dict[bool, tuple[int, int]]] = {}
    for rank, nodes in enumerate(files):
        if [node.id for node in nodes] != list(range(len(nodes))):
            raise VerifyError(f"the nodes of rank {rank} are not numbered 0, 1, ...")
        for node in nodes:
            line = (rank, node.peer, node.tag) if node.sends else (node.peer, rank, node.tag)
            if not 0 <= node.peer < len(files) or node.peer == rank:
                raise VerifyError(f"node {node.id} of rank {rank} has rank {node.peer} as its peer")
            if node.nbytes < 1 or node.offset < 0:
                raise VerifyError(f"node {node.id} of rank {rank} moves no bytes")
            if any(not 0 <= dep < len(nodes) for dep in (*node.deps, *node.order)):
                raise VerifyError(f"node {node.id} of rank {rank} waits for a node that is not there")
            if node.sends in ends.setdefault(line, {}):
                raise VerifyError(f"tag {node.tag} from rank {line[0]} to rank {line[1]} is used twice")
            ends[line][node.sends] = (rank, node.id)
    of_node: dict[tuple[int, int], int] = {}
    pairs: list[tuple[int, int, Node, Node]] = []
    for (src, dst, tag), pair in ends.items():
        if len(pair) < 2:
            raise VerifyError(
                f"tag {tag} from rank {src} to rank {dst}: a {'receive' if True in pair else 'send'} is missing"
            )
        send, receive = files[src][pair[True][1]], files[dst][pair[False][1]]
        if (send.nbytes, send.offset, send.reduce) != (receive.nbytes, receive.offset, receive.reduce):
            raise VerifyError(f"tag {tag} from rank {src} to rank {dst}: send and receive differ")
        of_node[pair[True]] = of_node[pair[False]] = len(pairs)
        pairs.append((src, dst, send, receive))
    after = [
        # A send that is waited for counts as done when it has arrived, which is later than a simulator may say.
        {of_node[src, d] for d in send.deps} | {of_node[dst, d] for d in receive.deps}
        for src, dst, send, receive in pairs
    ]
    for src, _, send, _ in pairs:
        if any(files[src][d].sends for d in send.deps):
            raise VerifyError(f"node {send.id} of rank {src} waits for a send: that says nothing about bytes")
    # The order of sends at a port takes part in deadlocks; it orders no bytes.
    order = [{of_node[src, d] for d in send.order} for src, _, send, _ in pairs]
    return _ordered(pairs, after, order)


def _ordered(
    pairs: list[tuple[int, int, Node, Node]], after: list[set[int]], sends_before: list[set[int]]
) -> list[_Transfer]:
    waiting: list[list[int]] = [[] for _ in pairs]
    both = [deps | sends for deps, sends in zip(after, sends_before, strict=True)]
    missing = [len(deps) for deps in both]
    for i, deps in enumerate(both):
        for dep in deps:
            waiting[dep].append(i)
    ready, order = deque(i for i, count in enumerate(missing) if not count), list[int]()
    while ready:
        order.append(ready.popleft())
        for i in waiting[order[-1]]:
            missing[i] -= 1
            if not missing[i]:
                ready.append(i)
    if len(order) < len(pairs):
        stuck = next(i for i, count in enumerate(missing) if count)
        raise VerifyError(f"deadlock: tag {pairs[stuck][2].tag} from rank {pairs[stuck][0]} never starts")
    place = {i: n for n, i in enumerate(order)}
    return [_Transfer(pairs[i][0], pairs[i][1], pairs[i][2], tuple(sorted(place[d] for d in after[i]))) for i in order]


def _replay(ranks: int, mine: list[_Transfer], local: dict[int, int], where: str) -> None:
    holds = [1 << r for r in range(ranks)]
    before = [0] * len(mine)
    reads, adds, writes = [0] * ranks, [0] * ranks, [0] * ranks
    for n, t in enumerate(mine):
        for dep in t.after:
            if dep in local:
                before[n] |= before[local[dep]] | 1 << local[dep]
        loose = (
            adds[t.src] | writes[t.src] | reads[t.dst] | writes[t.dst] | (0 if t.node.reduce else adds[t.dst])
        ) & ~before[n]
        if loose:
            other = mine[loose.bit_length() - 1].node.tag
            raise VerifyError(f"race: {where}: tag {t.node.tag} may run at the same time as tag {other}")
        twice = holds[t.src] & holds[t.dst] if t.node.reduce else 0
        if twice:
            who = (twice & -twice).bit_length() - 1
            raise VerifyError(f"{where}: tag {t.node.tag} adds the contribution of rank {who} a second time")
        holds[t.dst] = holds[t.src] | (holds[t.dst] if t.node.reduce else 0)
        (adds if t.node.reduce else writes)[t.dst] |= 1 << n
        reads[t.src] |= 1 << n
    for rank in range(ranks):
        missing = ~holds[rank] & ((1 << ranks) - 1)
        if missing:
            lost = (missing & -missing).bit_length() - 1
            raise VerifyError(f"{where} of rank {rank}: the contribution of rank {lost} is missing")
