"""Sends and receives of ranks, for formats that move bytes (Chakra traces, GOAL schedules), and what runs them.

The interpreter checks pairing, dependencies, deadlock, and sums. A send joins the receive of the same ranks and tag. A
node starts when all nodes that it waits for are done, sends and receives alike. A send is done once its bytes have been
read, whether anybody receives them yet or not; a receive is done after its own waits and its send. Additions into the
same bytes commute; anything else that touches the same bytes of a rank must be ordered by waits. What lands beside
(`LandsAs.BESIDE`) meets nothing: a send carries the rank's own bytes, and what landed beside them, in the order of
tags, up to the last one that it waits for; it must wait for all of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from optcc.errors import VerifyError
from optcc.schedule.columns import BESIDE

MOST_NAMED = 12
"""Operations of a circle that a message names."""


@dataclass(frozen=True)
class Node:
    """A send (`sends`) or receive of `nbytes` bytes at `offset`, to or from `peer`.

    id : its number among its rank's nodes, from 0 on; tag : joins it to the node at the other end
    reduce : whether the bytes are added where they land, and how: a `LandsAs`
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
    reduce: int
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


@dataclass(frozen=True)
class SendsRun:
    """What was executed: nodes of all ranks, and the bytes of the buffer that they name."""

    operations: int
    nbytes: int


@dataclass(frozen=True)
class _Pair:
    """A send and its receive. `read_after`, `land_after`: events that its two events wait for; `with_`: of the former
    those of receives that the send names.

    Event 2i is that pair i's bytes have been read at their source, event 2i + 1 that they have landed.
    """

    src: int
    dst: int
    send: Node
    receive: Node
    read_after: tuple[int, ...] = ()
    land_after: tuple[int, ...] = ()
    with_: tuple[int, ...] = ()


def run(files: Sequence[Sequence[Node]], label: str = "node ") -> SendsRun:
    """Raise VerifyError unless the ranks' traces compute an AllReduce in whatever order they allow.

    `label`, with a number behind it, is how messages call a node.
    """
    pairs = _pairs(files, label)
    if len(files) > 1 and not pairs:
        raise VerifyError(f"nothing is sent, among {len(files)} ranks")
    place = _places(pairs, label)
    cuts = sorted({cut for pair in pairs for cut in (pair.send.offset, pair.send.offset + pair.send.nbytes)} | {0})
    number = {cut: i for i, cut in enumerate(cuts)}
    touching: list[list[int]] = [[] for _ in cuts[1:]]
    for i, pair in enumerate(pairs):
        for piece in range(number[pair.send.offset], number[pair.send.offset + pair.send.nbytes]):
            touching[piece].append(i)
    seen: set[tuple[object, ...]] = set()
    far = partial(_far, pairs, place, {})
    for piece, mine in enumerate(touching):
        mine.sort(key=lambda i: (pairs[i].send.tag, pairs[i].src))
        local = {i: n for n, i in enumerate(mine)}
        shape = tuple(
            (pairs[i].src, pairs[i].dst, pairs[i].send.reduce, *(
                _local(events, local) for events in (pairs[i].read_after, pairs[i].land_after, pairs[i].with_))
            ) for i in mine
        )  # fmt: skip
        if shape not in seen:
            where = f"bytes {cuts[piece]}..{cuts[piece + 1] - 1}"
            if _replay(len(files), pairs, local, place, far, where):
                seen.add(shape)
    return SendsRun(sum(map(len, files)), cuts[-1])


def _local(events: tuple[int, ...], local: dict[int, int]) -> tuple[int, ...]:
    """Those of pairs that are numbered in `local`, by that number."""
    return tuple(2 * local[event // 2] + event % 2 for event in events if event // 2 in local)


def _pairs(files: Sequence[Sequence[Node]], label: str) -> list[_Pair]:
    """All pairs, in the order of the files. Raises VerifyError for loose ends."""
    ends: dict[tuple[int, int, int], dict[bool, Node]] = {}
    for rank, nodes in enumerate(files):
        if [node.id for node in nodes] != list(range(len(nodes))):
            raise VerifyError(f"the nodes of rank {rank} are not numbered 0, 1, ...")
        for node in nodes:
            line = (rank, node.peer, node.tag) if node.sends else (node.peer, rank, node.tag)
            name = f"{label}{node.id} of rank {rank}"
            if not 0 <= node.peer < len(files) or node.peer == rank:
                raise VerifyError(f"{name} has rank {node.peer} as its peer")
            if node.nbytes < 1 or node.offset < 0:
                raise VerifyError(f"{name} moves no bytes")
            if any(not 0 <= other < len(nodes) for other in (*node.deps, *node.order)):
                raise VerifyError(f"{name} waits for a node that is not there")
            if node.sends in ends.setdefault(line, {}):
                raise VerifyError(f"tag {node.tag} from rank {line[0]} to rank {line[1]} is used twice")
            ends[line][node.sends] = node
    event: dict[tuple[int, int], int] = {}
    pairs = []
    for i, ((src, dst, tag), pair) in enumerate(ends.items()):
        if len(pair) < 2:
            missing = "receive" if True in pair else "send"
            raise VerifyError(f"tag {tag} from rank {src} to rank {dst}: a {missing} is missing")
        send, receive = pair[True], pair[False]
        if (send.nbytes, send.offset, send.reduce) != (receive.nbytes, receive.offset, receive.reduce):
            raise VerifyError(f"tag {tag} from rank {src} to rank {dst}: send and receive differ")
        event[src, send.id], event[dst, receive.id] = 2 * i, 2 * i + 1
        pairs.append((src, dst, send, receive))
    return [
        _Pair(
            src, dst, send, receive, tuple(event[src, other] for other in (*send.deps, *send.order)),
            (2 * i, *(event[dst, other] for other in (*receive.deps, *receive.order))),
            tuple(event[src, other] for other in send.deps if event[src, other] % 2),
        )
        for i, (src, dst, send, receive) in enumerate(pairs)
    ]  # fmt: skip


def _after(pairs: list[_Pair], event: int) -> tuple[int, ...]:
    return pairs[event // 2].land_after if event % 2 else pairs[event // 2].read_after


def _places(pairs: list[_Pair], label: str) -> list[int]:
    """Of each event its place in an order in which all can happen. Raises VerifyError for a circle, naming it."""
    waiting: list[list[int]] = [[] for _ in range(2 * len(pairs))]
    missing = [0] * len(waiting)
    for event in range(len(waiting)):
        before = set(_after(pairs, event))
        missing[event] = len(before)
        for other in before:
            waiting[other].append(event)
    ready = deque(event for event, count in enumerate(missing) if not count)
    place, done = [-1] * len(waiting), 0
    while ready:
        event = ready.popleft()
        place[event], done = done, done + 1
        for other in waiting[event]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if done < len(waiting):
        circle = _circle(pairs, place)
        names = [_name(pairs, event, label) for event in circle[:MOST_NAMED]]
        more = [f"{len(circle) - MOST_NAMED} more"] * (len(circle) > MOST_NAMED)
        raise VerifyError(
            f"deadlock: a circle, each waits for the next, the last for the first: {', '.join(names + more)}"
        )
    return place


def _circle(pairs: list[_Pair], place: list[int]) -> list[int]:
    """Events that never happen, each of which waits for the next one, and the last for the first."""
    path, at = list[int](), dict[int, int]()
    event = place.index(-1)
    while event not in at:
        at[event] = len(path)
        path.append(event)
        event = next(other for other in _after(pairs, event) if place[other] < 0)
    return path[at[event] :]


def _name(pairs: list[_Pair], event: int, label: str) -> str:
    pair = pairs[event // 2]
    if event % 2:
        return f"receive {label}{pair.receive.id} of rank {pair.dst}"
    return f"send {label}{pair.send.id} of rank {pair.src}"


def _far(pairs: list[_Pair], place: list[int], known: dict[int, set[int]], before: int, after: int) -> bool:
    """Whether waits lead from event `after` to `before`, over whatever bytes. `known` keeps the last `after`."""
    if after not in known:
        known.clear()
        known[after], todo = set(), [after]
        while todo:
            more = set(_after(pairs, todo.pop())) - known[after]
            known[after] |= more
            todo += more
    return before in known[after]


def _replay(
    ranks: int, pairs: list[_Pair], local: dict[int, int], place: list[int], far: Callable[[int, int], bool], where: str
) -> bool:
    """Run the pairs of one piece. Raises VerifyError for a race, or a sum that is wrong.

    False: waits of other pieces were needed, so what holds here need not hold for a piece that looks the same.
    """
    mine, alone = list(local), True
    holds, read = [1 << r for r in range(ranks)], [0] * len(mine)
    known = [0] * (2 * len(mine))  # of each event what comes before it, bits of events
    reads, adds, writes = [0] * ranks, [0] * ranks, [0] * ranks
    beside = [0] * ranks  # events of what lands beside there
    for n, i in enumerate(mine):
        if pairs[i].send.reduce == BESIDE:
            beside[pairs[i].dst] |= 1 << 2 * n + 1

    def demand_after(others: int, event: int, message: Callable[[int], str]) -> None:
        """Raise VerifyError with the message about the last of these events that need not come before `event`."""
        nonlocal alone
        loose = others & ~known[2 * local[event // 2] + event % 2]
        while loose:
            last = loose.bit_length() - 1
            if not far(2 * mine[last // 2] + last % 2, event):
                raise VerifyError(message(pairs[mine[last // 2]].send.tag))
            alone, loose = False, loose ^ 1 << last

    for event in sorted((2 * i + lands for i in mine for lands in (0, 1)), key=place.__getitem__):
        n, lands, pair = local[event // 2], event % 2, pairs[event // 2]
        tag, how = pair.send.tag, pair.send.reduce
        for other in _local(_after(pairs, event), local):
            known[2 * n + lands] |= known[other] | 1 << other
        race = f"race: {where}: tag {tag} may run at the same time as tag {{}}".format
        if not lands:
            rank = pair.src
            demand_after(adds[rank] | writes[rank], event, race)
            with_ = sum(1 << other for other in set(_local(pair.with_, local))) & beside[rank]
            carried = beside[rank] & ((1 << with_.bit_length()) - 1)
            without = f"race: {where}: tag {tag} is sent with what lands after tag {{}}, and may be sent without that"
            demand_after(carried, event, without.format)
            read[n] = 1 << rank if beside[rank] else holds[rank]
            while carried:
                last = carried.bit_length() - 1
                read[n] |= read[last // 2]
                carried ^= 1 << last
            reads[rank] |= 1 << 2 * n
            continue
        rank = pair.dst
        if beside[rank] and how != BESIDE:
            raise VerifyError(f"{where} of rank {rank}: tag {tag} changes in place what others land beside")
        if how != BESIDE:
            demand_after(reads[rank] | writes[rank] | (0 if how else adds[rank]), event, race)
        twice = read[n] & holds[rank] if how else 0
        if twice:
            who = (twice & -twice).bit_length() - 1
            raise VerifyError(f"{where}: tag {tag} adds the contribution of rank {who} a second time")
        holds[rank] = read[n] | (holds[rank] if how else 0)
        if how != BESIDE:
            (adds if how else writes)[rank] |= 1 << 2 * n + 1
    for rank in range(ranks):
        missing = ~holds[rank] & ((1 << ranks) - 1)
        if missing:
            lost = (missing & -missing).bit_length() - 1
            raise VerifyError(f"{where} of rank {rank}: the contribution of rank {lost} is missing")
    return alone
