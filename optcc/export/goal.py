"""A plan as a GOAL schedule, for LogGOPSim and ATLAHS (github.com/spcl).

A rank's sends and receives have labels, and wait for each other by `requires`. LogGOPSim serves messages of one NIC
number one after the other where they leave, and those of one processor number where they arrive. So `nic` is the number
of the sending NIC, counted over all servers, and `cpu` that of the receiving NIC; neither is ever busy for another
reason. Sends of a NIC are chained in the order in which the plan's simulation sends them. One byte is one unit of time
(G = 1): all NICs must have one rate.

LogGOPSim counts a message as arrived at its first byte, our simulator at its last; and a send that has waited starts
when its NIC was last busy, however long ago. With NICs that idle its times are below ours.

A comment in front of every operation, which others skip, says which bytes move and how they land: copied, added, or
added from beside (`LandsAs`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

from optcc.errors import InputError
from optcc.export.sends import Node, chained, parted
from optcc.plans.plan import Plan
from optcc.schedule import Schedule
from optcc.schedule.columns import Stripes
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster

NUMBERS = 255
"""Processors, and NICs: so many can be counted in eight bits."""
LANDS = ("copy", "add", "beside")
"""What comments call each `LandsAs`."""
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
    stripes = schedule.stripes
    for limit, got, what, hint in (
        (NUMBERS, len(schedule.ports), "NICs of all servers", "Export a plan of fewer servers."),
        (LONGEST, int(stripes.length.max(initial=0)), "bytes of a message", "More --segments make messages shorter."),
    ):
        if got > limit:
            raise InputError("over a limit of the format", where=what, expected=f"at most {limit}", got=got, hint=hint)
    return dump(_nodes(schedule, stripes), stripes.into.tolist())


def _nodes(schedule: Schedule, stripes: Stripes) -> list[list[Node]]:
    """A send and a receive for every stripe, whose number is their tag."""
    nodes: list[list[Node]] = [[] for _ in range(schedule.ranks)]
    landed: list[list[int]] = []  # row -> ids of its receives
    ptr, out, length = stripes.ptr.tolist(), stripes.out.tolist(), stripes.length.tolist()
    for row in range(len(schedule)):
        src, dst, reduce = int(schedule.src[row]), int(schedule.dst[row]), int(schedule.reduce[row])
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
            out.append(f"// optcc {node.offset} {LANDS[node.reduce]}")
            way = f"send {node.nbytes}b to" if node.sends else f"recv {node.nbytes}b from"
            out.append(f"l{node.id}: {way} {node.peer} tag {node.tag} cpu {arrives[node.tag]} nic {node.port}")
        out += [f"l{node.id} requires l{other}" for node in mine for other in (*node.deps, *node.order)]
        out += ["}", ""]
    return "\n".join(out)


_OPERATION = re.compile(
    r"l([0-9]{1,18}): (send|recv) ([0-9]{1,18})b (?:to|from) ([0-9]{1,9}) "
    r"tag ([0-9]{1,18}) cpu ([0-9]{1,9}) nic ([0-9]{1,9})"
)
_REQUIRES = re.compile(r"l([0-9]{1,18}) requires l([0-9]{1,18})")
_COMMENT = re.compile(rf"// optcc ([0-9]{{1,18}}) ({'|'.join(LANDS)})")


def load(text: str, where: str = "GOAL schedule") -> list[list[Node]]:
    """Read a schedule back. Raises InputError, with its line, for what is not one of ours."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    used = [(number, line) for number, line in lines if line and (not line.startswith("//") or _COMMENT.match(line))]
    first, head = used[0] if used else (1, "nothing")
    files: list[list[Node]] = []
    inside, comment = False, None
    labels: dict[str, int] = {}
    waits: list[tuple[int, str, str]] = []
    for number, line in used[1:]:
        if not inside and line == f"rank {len(files)} {{":
            inside = True
            files.append([])
        elif inside and line == "}" and comment is None:
            files[-1] = _joined(files[-1], labels, waits, where)
            inside, labels, waits = False, {}, []
        elif inside and comment is None and (found := _REQUIRES.fullmatch(line)):
            waits.append((number, found[1], found[2]))
        elif inside and comment is None and (found := _COMMENT.fullmatch(line)):
            comment = found
        elif comment and (found := _OPERATION.fullmatch(line)) and found[1] not in labels:
            labels[found[1]] = len(files[-1])
            id_, nbytes, peer, tag, _, nic = (int(found[i]) for i in (1, 3, 4, 5, 6, 7))
            files[-1].append(
                Node(id_, found[2] == "send", peer, tag, nbytes, int(comment[1]), LANDS.index(comment[2]), (), (), nic)
            )
            comment = None
        else:
            raise _not_goal(f"{where}:{number}", line)
    if head != f"num_ranks {len(files)}" or not files:
        raise _not_goal(f"{where}:{first}", head)
    if inside:
        raise _not_goal(where, f"rank {len(files) - 1} without an end")
    return files


def _joined(nodes: list[Node], labels: dict[str, int], waits: list[tuple[int, str, str]], where: str) -> list[Node]:
    """The nodes of a rank with what they wait for; `labels`: label -> place among `nodes`."""
    deps: dict[int, list[int]] = defaultdict(list)
    for number, who, other in waits:
        if who not in labels or other not in labels:
            raise _not_goal(f"{where}:{number}", f"l{who} requires l{other}")
        deps[labels[who]].append(nodes[labels[other]].id)
    return parted([replace(node, deps=tuple(deps[place])) for place, node in enumerate(nodes)])


def _not_goal(where: str, got: str) -> InputError:
    return InputError("cannot be read", where=where, expected="a GOAL schedule that optcc wrote", got=got[:80])
