"""How long an MSCCL executor takes for an algorithm, told from the file.

A threadblock runs its steps in order, one slice of all chunks after the other. It sends, receives and adds at its own
rate, into a connection that holds a few messages. Each message has two parts: the receiver works on the first while the
second is sent. Inside a server connections share the NVLink port fairly. Between servers a proxy per connection hands
parts to the network. There a NIC sends, and the far NIC receives, one part after another in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

from optcc.export.msccl_file import RECEIVES, SENDS, MscclProgram
from optcc.export.targets import MSCCL, Msccl, wires
from optcc.export.timed import TimedStep, TimedThreads
from optcc.values.cluster import Cluster

PARTS = 2
"""Parts of a message: MSCCL_CHUNKSTEPS over MSCCL_SLICESTEPS."""
SLICES = 6
"""Slices that are run; what more would take is told from how long the second half of them took."""


def seconds(program: MscclProgram, cluster: Cluster, nbytes: int, target: Msccl = MSCCL) -> float:
    """Seconds for one launch of `program` on buffers of `nbytes`, on `cluster`.

    Raises SimulationError where a rank has to send or receive and has no live NIC.
    """
    chunk = nbytes / program.chunks
    size = min(chunk, target.message_bytes)
    slices = max(1, -(-int(chunk) // target.message_bytes))
    if slices <= SLICES:
        return _run(program, cluster, chunk / slices, slices, target)
    few, many = (_run(program, cluster, size, n, target) for n in (SLICES // 2, SLICES))
    return many + (chunk / size - SLICES) * (many - few) / (SLICES - SLICES // 2)


@dataclass
class _Connection:
    """A connection. room, taken : counters of places that are free at the sender and, on the network, at the receiver;
    sent, there : of parts written, and arrived; proxies : threads at both NICs, and the counter between them"""

    room: int
    sent: int
    there: int
    taken: int
    wires: tuple[int, int]
    proxies: tuple[list[TimedStep], list[TimedStep], int] | None = None
    out: int = 0
    into: int = 0


def _run(program: MscclProgram, cluster: Cluster, size: float, slices: int, target: Msccl) -> float:
    machine = TimedThreads()
    links = wires(machine, cluster, target.nvlink_payload, target.network_payload)
    done = [[machine.counter() for _ in blocks] for blocks in program.gpus]
    lines: dict[tuple[int, int, int], _Connection] = {}
    nics: dict[int, int] = {}

    def line(src: int, dst: int, channel: int) -> _Connection:
        key = (src, dst, channel)
        if key not in lines:
            room, sent, there = machine.counter(PARTS * target.depth), machine.counter(), machine.counter()
            if cluster.ranks[src].server == cluster.ranks[dst].server:
                lines[key] = _Connection(room, sent, there, room, links(src, dst))
            else:
                proxies = machine.thread(), machine.thread(), machine.counter()
                lines[key] = _Connection(
                    room, sent, there, machine.counter(PARTS * target.depth), links(src, dst), proxies
                )
        return lines[key]

    def send(steps: list[TimedStep], line: _Connection, nbytes: float) -> None:
        line.out += 1
        steps.append(TimedStep(line.room, line.out))
        if line.proxies is None:
            one, two = line.wires
            steps.append(TimedStep(nbytes=nbytes, cap=target.block_rate, one=one, two=two, post=line.there))
            return
        steps.append(TimedStep(nbytes=nbytes, cap=target.block_rate, post=line.sent))
        leaves, lands, between = line.proxies
        out, into = (nics.setdefault(wire, machine.lock()) for wire in line.wires)
        leaves.append(TimedStep(line.sent, line.out))
        leaves.append(TimedStep(line.taken, line.out, out, nbytes=nbytes, one=line.wires[0], post=line.room))
        leaves.append(TimedStep(post=between, delay=target.network_s))
        lands.append(TimedStep(between, line.out, into, nbytes=nbytes, one=line.wires[1], post=line.there))

    per_message = max(1, int(target.message_bytes // size))
    for g, blocks in enumerate(program.gpus):
        for t, block in enumerate(blocks):
            steps = machine.thread()
            steps.append(TimedStep(pause=target.launch_s))
            for turn in range(slices):
                for step in block.steps:
                    if step.depid >= 0:
                        need = turn * len(blocks[step.depid].steps) + step.deps + 1
                        steps.append(TimedStep(wait=done[g][step.depid], need=need))
                    left = step.cnt
                    while left > 0:
                        moved = min(left, per_message) * size
                        left -= per_message
                        if step.type in RECEIVES + SENDS:
                            steps.append(TimedStep(pause=target.operation_s))
                        for _ in range(PARTS):
                            if step.type in RECEIVES:
                                coming = line(block.recv, g, block.chan)
                                coming.into += 1
                                steps.append(TimedStep(coming.there, coming.into))
                            if step.type in SENDS:
                                send(steps, line(g, block.send, block.chan), moved / PARTS)
                            elif step.type in RECEIVES:
                                steps.append(TimedStep(nbytes=moved / PARTS, cap=target.block_rate))
                            if step.type in RECEIVES:
                                steps.append(TimedStep(post=coming.taken))
                        if step.type in ("re", "cpy"):
                            steps.append(TimedStep(pause=target.operation_s, nbytes=moved, cap=target.block_rate))
                    steps.append(TimedStep(post=done[g][t]))
    return machine.seconds()
