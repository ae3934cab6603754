"""How long the MSCCL++ executor takes for a plan, told from the file.

A threadblock runs its operations in order. It stores into a peer's memory (`put` on a memory channel) and adds (`re`)
at its own rate; the blocks of a rank share its NVLink port and its memory. A put on a port channel goes to the rank's
proxy, which serves one after the other and spends some time on each; the block goes on at once.
"""

from __future__ import annotations

from optcc.cluster import Cluster
from optcc.export.mscclpp_file import Op, Program
from optcc.export.targets import MSCCLPP, Mscclpp, one_nic, wires
from optcc.export.timed import Machine, Step

Lane = tuple[int, str, int]
"""A channel: rank, type, number."""


def seconds(program: Program, cluster: Cluster, nbytes: int, target: Mscclpp = MSCCLPP) -> float:
    """Seconds for one launch of `program` on buffers of `nbytes`, on `cluster`.

    Raises SimulationError where a NIC that the executor would take has no rate.
    """
    machine = Machine()
    links = wires(machine, cluster, target.nvlink_payload, target.network_payload, nic=one_nic)
    lanes = _lanes(program)
    arrived = {lane: machine.counter() for lane in lanes}
    sent = {lane: machine.counter() for lane in lanes}
    proxy = [machine.lock() for _ in program.gpus]
    memory = [machine.resource(target.memory_rate / 3) for _ in program.gpus]  # two reads and a write for a sum
    chunk = nbytes / program.chunks
    for r, gpu in enumerate(program.gpus):
        for block in gpu.threadblocks:
            steps = machine.thread()
            steps.append(Step(pause=target.launch_s))
            waits: dict[Lane, int] = {}
            puts: dict[Lane, int] = {}
            proxies: dict[Lane, tuple[int, list[Step]]] = {}

            def lane(op: Op, c: int, r: int = r, ids: dict[str, tuple[int, ...]] = block.channels) -> Lane:
                return r, op.channel_type or "", ids[op.channel_type or ""][c]

            for op in block.ops:
                if op.name == "wait":
                    for c in op.channels:
                        here = lane(op, c)
                        waits[here] = waits.get(here, 0) + 1
                        steps.append(Step(wait=arrived[here], need=waits[here], pause=target.operation_s))
                elif op.name == "nop":
                    steps.append(Step(pause=target.operation_s))
                elif op.name == "re":
                    size = op.dst[0].count * chunk
                    steps.append(Step(pause=target.operation_s, nbytes=size, cap=target.add_rate, one=memory[r]))
                elif op.name == "copy":
                    steps.append(Step(pause=target.operation_s, nbytes=op.dst[0].count * chunk, cap=target.put_rate))
                elif op.name == "signal":
                    far = lanes.get(lane(op, op.channels[0]))
                    post = arrived[far] if far else -1
                    steps.append(Step(pause=target.operation_s, post=post, delay=target.signal_s))
                elif op.name in ("put", "pws"):
                    here = lane(op, op.channels[0])
                    peer = gpu.channels[here[1]][here[2]]
                    one, two = links(r, peer)
                    size = op.dst[0].count * chunk
                    if here[1] == "memory":
                        steps.append(Step(pause=target.operation_s, nbytes=size, cap=target.put_rate, one=one, two=two))
                        continue
                    if here not in proxies:
                        proxies[here] = (machine.counter(), machine.thread())
                    asked, served = proxies[here]
                    puts[here] = puts.get(here, 0) + 1
                    steps.append(Step(pause=target.operation_s, post=asked))
                    served.append(
                        Step(
                            asked, puts[here], proxy[r], target.port_message_s, size, one=one, two=two, post=sent[here]
                        )
                    )
                    far = lanes.get(here)
                    if op.name == "pws" and far:
                        served.append(Step(post=arrived[far], delay=target.port_s))
                elif op.name == "flush":
                    for c in op.channels[: len(op.dst)]:
                        here = lane(op, c)
                        steps.append(Step(wait=sent[here], need=puts.get(here, 0)))
    return machine.seconds()


def _lanes(program: Program) -> dict[Lane, Lane]:
    """Channel -> the channel at its other end: the k-th of a type from A to B and the k-th from B to A."""
    ends: dict[tuple[int, int, str], list[int]] = {}
    for r, gpu in enumerate(program.gpus):
        for kind, peers in gpu.channels.items():
            for c, peer in enumerate(peers):
                ends.setdefault((r, peer, kind), []).append(c)
    return {
        (r, kind, c): (peer, kind, other)
        for (r, peer, kind), mine in ends.items()
        for c, other in zip(mine, ends.get((peer, r, kind), ()), strict=False)
    }
