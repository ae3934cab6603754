"""A plan as a GOAL schedule, for LogGOPSim and ATLAHS (github.com/spcl).

A rank's sends and receives have labels, and wait for each other by `requires`. LogGOPSim serves messages of one NIC
number one after the other where they leave, and those of one processor number where they arrive. So `nic` is the number
of the sending NIC, counted over all servers, and `cpu` that of the receiving NIC; neither is ever busy for another
reason. Sends of a NIC are chained in the order in which the plan's simulation sends them. One byte is one unit of time
(G = 1): all NICs must have one rate.

LogGOPSim counts a message as arrived at its first byte, our simulator at its last; and a send that has waited starts
when its NIC was last busy, however long ago. With NICs that idle its times are below ours.

A comment in front of every operation, which others skip, says which bytes move and whether they are added.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

from optcc.errors import InputError
from optcc.export.limits import refuse_above
from optcc.export.nodes import Node, chained
from optcc.plans.plan import Plan
from optcc.schedule import Schedule
from optcc.schedule.stripes import Stripes, stripes_of
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster

NUMBERS = 255
"""Processors, and NICs: so many can be counted in eight bits."""
LONGEST = 2**31 - 1
"""Bytes of a message: above that, LogGOPSim would wait for the receiver first (its -S is a 32-bit number)."""


def rate(cluster: Cluster) -> Fraction:
    """The one rate of all live NICs, in bytes per second. Raises InputError where there are several."""
    live = {r: nic.name for s in cluster.servers for nic in s.nics for r in (nic.out_rate, nic.in_rate) if r}
    if len(live) != 1 or cluster.gpu_ranks or cluster.uplinks:
        got = "GPUs with NVLink ports" if cluster.gpu_ranks else "shared uplinks" if cluster.uplinks else (
            f"{len(live)} rates")  # fmt: skip
        raise InputError(
            "GOAL knows one rate", where="plan", got=got,
            expected="servers as ranks whose live NICs all have the same rate",
            hint="A NIC may be dead, but not slower than others; --format chakra knows no rates.",
        )  # fmt: skip
    return next(iter(live))


def export(plan: Plan) -> str:
    """The text of `plan`. Raises InputError where NICs have several rates, or a number is over a limit."""
    rate(plan.cluster)
    schedule = plan.schedule()
    refuse_above(NUMBERS, len(schedule.ports), "NICs of all servers", hint="Export a plan of fewer servers.")
    stripes = stripes_of(schedule)
    refuse_above(
        LONGEST, int(stripes.length.max(initial=0)), "bytes of a message", hint="More --segments make messages shorter."
    )
    return dump(_nodes(schedule, stripes), stripes.into.tolist())


def _nodes(schedule: Schedule, stripes: Stripes) -> list[list[Node]]:
    """A send and a receive for every stripe, whose number is their tag."""
    nodes: list[list[Node]] = [[] for _ in range(schedule.ranks)]
    landed: list[list[int]] = []  # row -> ids of its receives
    ptr, out, length = stripes.ptr.tolist(), stripes.out.tolist(), stripes.length.tolist()
    for row in range(len(schedule)):
        src, dst, reduce = int(schedule.src[row]), int(schedule.dst[row]), bool(schedule.reduce[row])
        deps = tuple(one for dep in schedule.deps(row).tolist() for one in landed[dep])
        landed.append([])
        offset = int(schedule.offset[row])
        for tag in range(ptr[row], ptr[row + 1]):
            nodes[src].append(Node(len(nodes[src]), True, dst, tag, length[tag], offset, reduce, deps, (), out[tag]))
            landed[row].append(len(nodes[dst]))
            nodes[dst].append(Node(len(nodes[dst]), False, src, tag, length[tag], offset, reduce, (), (), out[tag]))
            offset += length[tag]
    starts = simulate(schedule).stripe_start.tolist()
    return [chained(mine, starts, lambda node: (node.port,)) for mine in nodes]


def dump(nodes: list[list[Node]], arrives: list[int]) -> str:
    """The text; `arrives`: tag -> the NIC that it arrives at."""
    out = [f"num_ranks {len(nodes)}", ""]
    for rank, mine in enumerate(nodes):
        out.append(f"rank {rank} {{")
        for node in mine:
            out.append(f"// optcc {node.offset} {'add' if node.reduce else 'copy'}")
            way = f"send {node.nbytes}b to" if node.sends else f"recv {node.nbytes}b from"
            out.append(f"l{node.id}: {way} {node.peer} tag {node.tag} cpu {arrives[node.tag]} nic {node.port}")
        out += [f"l{node.id} requires l{other}" for node in mine for other in (*node.deps, *node.order)]
        out += ["}", ""]
    return "\n".join(out)


_OPERATION = re.compile(r"l(\d+): (send|recv) (\d+)b (?:to|from) (\d+) tag (\d+) cpu (\d+) nic (\d+)")
_REQUIRES = re.compile(r"l(\d+) requires l(\d+)")
_COMMENT = re.compile(r"// optcc (\d+) (add|copy)")


def load(text: str, where: str = "GOAL schedule") -> list[list[Node]]:
    """Read a schedule back. Raises InputError for what is not one of ours."""
    lines = [line.strip() for line in text.splitlines()]
    files: list[list[Node]] = []
    waits: list[dict[int, list[int]]] = []
    comment: re.Match[str] | None = None
    for number, line in enumerate(lines, 1):
        if number == 1 and re.fullmatch(r"num_ranks \d+", line):
            continue
        if line in ("", "}"):
            continue
        if line == f"rank {len(files)} {{":
            files.append([])
            waits.append(defaultdict(list))
        elif found := _COMMENT.fullmatch(line):
            comment = found
        elif files and comment and (found := _OPERATION.fullmatch(line)):
            id_, nbytes, peer, tag, _, nic = (int(found[i]) for i in (1, 3, 4, 5, 6, 7))
            files[-1].append(
                Node(id_, found[2] == "send", peer, tag, nbytes, int(comment[1]), comment[2] == "add", (), (), nic)
            )
            comment = None
        elif files and (found := _REQUIRES.fullmatch(line)):
            waits[-1][int(found[1])].append(int(found[2]))
        else:
            raise _not_goal(f"{where}:{number}", line)
    if not lines or lines[0] != f"num_ranks {len(files)}" or not files:
        raise _not_goal(f"{where}:1", lines[0] if lines else "nothing")
    return [
        [_joined(node, wait.get(node.id, []), nodes, where) for node in nodes]
        for nodes, wait in zip(files, waits, strict=True)
    ]


def _joined(node: Node, wait: list[int], nodes: list[Node], where: str) -> Node:
    if any(other >= len(nodes) for other in wait):
        raise _not_goal(where, f"l{node.id} requires l{max(wait)}")
    sends = tuple(other for other in wait if nodes[other].sends)
    return replace(node, deps=tuple(other for other in wait if not nodes[other].sends), order=sends)


def _not_goal(where: str, got: str) -> InputError:
    return InputError("cannot be read", where=where, expected="a GOAL schedule that optcc wrote", got=got[:80])
