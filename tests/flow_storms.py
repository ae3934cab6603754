"""Collectives in virtual time while NICs fail anyhow: a schedule, faults and lost messages, all from one seed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from optcc.runtime.devices.host import Op
from optcc.runtime.errors import FlowSeveredError
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.wires import layout
from optcc.runtime.wires.contract import Cause
from optcc.runtime.wires.virtual import VirtualNet
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster, Fabric
from tests.fabrics import gpu_cluster
from tests.test_families import offered

KINDS = (
    *("cut", "device", "sender error", "receiver error", "black hole", "data lost", "acks lost"),
    *("flap", "receiver flush", "both ends", "late port event", "slow", "pause"),
)
MOST_POLLS = 50_000
HARMLESS = ("slow", "pause")
"""Kinds that must move no flow."""


@cache
def schedules() -> list[Schedule]:
    """Of every family that takes these small clusters."""
    rails = Cluster(Cluster.uniform(servers=4, nics=3, rate=1000).servers, fabric=Fabric(rails=True))
    clusters = (
        Cluster.uniform(servers=2, nics=3, rate=1000),
        Cluster.uniform(servers=3, nics=1, rate=1000),
        Cluster.uniform(servers=3, nics=2, rate=1000).degrade("server1/nic0"),
        Cluster.uniform(servers=4, nics=2, rate=1000).degrade("server0/nic1"),
        Cluster.uniform(servers=5, nics=2, rate=1000).degrade("server0/nic1").degrade("server3/nic0"),
        rails,
        gpu_cluster(servers=2, gpus=3),
    )
    sizes = (4096, 12_000, 40, 8192, 20_000, 6144, 5000)
    made = [
        plan.schedule()
        for cluster, nbytes in zip(clusters, sizes, strict=True)
        for plan in offered(cluster, nbytes, 2)
        if not plan.schedule().beside  # flows fold in place
    ]
    return [schedule for schedule in made if len(schedule)]


class Storm(VirtualRun):
    """One run, and what an observer knows about it. Sums of random floats: another order would give other bits."""

    def __init__(
        self, schedule: Schedule, rng: random.Random, drop: float, slot_bytes: int, window: int, unit_s: float
    ) -> None:
        self._rng, self._drop, self._unit_s = rng, drop, unit_s
        self.buffers = [
            np.random.default_rng(rank).standard_normal(schedule.nbytes // 4).astype(np.float32)
            for rank in range(schedule.ranks)
        ]
        timeouts = Timeouts(20 * unit_s, 10 * unit_s, unit_s, unit_s / 8)
        with mock.patch.object(layout, "WINDOW", (1, window)):
            super().__init__(schedule, self.buffers, Op.SUM, slot_bytes=slot_bytes, timeouts=timeouts)
        self.writes: Counter[tuple[int, int]] = Counter()  # by (flow, seq)
        self.hit: set[int] = set()  # wires
        self.seen: Counter[str] = Counter()
        self.polls = 0
        for end in self.net.ends:
            self._watch(end)

    def _watch(self, end: Any) -> None:
        write, poll = end.write, end.poll

        def watched(wire: int, flow: int, seq: int, *rest: Any) -> None:
            self.writes[flow, seq] += 1
            write(wire, flow, seq, *rest)

        def polled(until: float) -> Any:
            self.polls += 1
            if self.polls > MOST_POLLS:
                hang(self.net)
            return poll(until)

        end.write, end.poll = watched, polled

    def _post_for(self, rank: int) -> Callable[[int, object], None]:
        """Messages are lost, doubled, late and out of order."""

        def post(to: int, value: object) -> None:
            told = json.loads(json.dumps(value))
            while self._rng.random() > self._drop:
                late = 3 * self._unit_s * self._rng.random() ** 4
                self.at(self.net.now + late, lambda net: self.flows[to].message(rank, told))
                if self._rng.random() > 0.2:
                    break

        return post

    # --- faults ---------------------------------------------------------------------------------------------------

    def strike(self, kind: str, nic: int, until: float) -> Callable[[VirtualNet], None]:
        """A fault of `kind` at a NIC; what passes, passes at `until`."""
        rank = self.net.layout.nics[nic].rank

        def fault(net: VirtualNet) -> None:
            end = net.ends[rank]
            self.seen[kind] += 1
            if kind not in HARMLESS:
                self.hit |= {w for w, wire in enumerate(net.layout.wires) if nic in (wire.out, wire.into)}
            match kind:
                case "cut":
                    end.cut(nic)
                case "device":
                    end.cut(nic, Cause.DEVICE, "device fatal")
                case "sender error":
                    end.fail_out(nic)
                case "receiver error":
                    end.fail_in(nic)
                case "receiver flush":
                    end.fail_in(nic, told=True)
                case "black hole" | "flap" | "late port event":
                    end.darken(nic)
                case "data lost":
                    end.darken(nic, acks=False)
                case "acks lost":
                    end.darken(nic, data=False)
                case "both ends":
                    wire = next(w for w in net.layout.wires if nic in (w.out, w.into))
                    end.cut(nic)
                    other = wire.into if nic == wire.out else wire.out
                    self.hit |= {w for w, it in enumerate(net.layout.wires) if other in (it.out, it.into)}
                    net.ends[net.layout.nics[other].rank].cut(other)
                case "slow":
                    end.slow(nic, 0.25)
                case "pause":
                    net.paused.add(rank)
                    self.at(until, lambda net: net.paused.discard(rank))
            if kind == "flap":
                self.at(until, lambda net: end.heal(nic))
            if kind == "late port event":
                self.at(until, lambda net: end.cut(nic))

        return fault

    # --- what must hold -------------------------------------------------------------------------------------------

    def check(self, expected: Sequence[bytes]) -> None:
        """I1, I2, I15: the result; I3, I8: both ends of all flows agree; I4: no ghost; I10, I11: healthy ones stay."""
        assert [buffer.tobytes() for buffer in self.buffers] == list(expected), "not the fault-free result"
        for number, spec in enumerate(self.net.layout.flows):
            sender = self.flows[spec.src]._outs[number].sender
            receiver = self.flows[spec.dst]._ins[number].receiver
            assert sender.posted == sender.acked == receiver.landed == receiver.folded, f"flow {number}"
            assert receiver.ghosts == 0, f"{receiver.ghosts} ghosts in flow {number}"
            if not self.hit & set(spec.wires):
                assert sender.epoch == 0, f"flow {number} moved, but none of its wires was hit"
            if spec.wires[0] not in self.hit:
                again = [seq for (flow, seq), times in self.writes.items() if flow == number and times > 1]
                assert not again, f"flow {number} is healthy and has sent {again} again"
        names = {self.net.layout.nics[nic].name: nic for nic in range(len(self.net.layout.nics))}
        for flows in self.flows:
            for note in flows.journal:
                self.seen[f"{note.kind}: {note.cause}"] += 1
                if note.kind in ("lost", "moved"):
                    ends = {names[note.nic], names[note.far]}
                    lost = {w for w, it in enumerate(self.net.layout.wires) if {it.out, it.into} == ends}
                    assert lost & self.hit, f"{note} but it was not hit"

    def severed(self, error: FlowSeveredError) -> None:
        """A flow may give up only when all of its wires are lost."""
        self.seen["severed"] += 1
        assert any(
            self.hit >= set(spec.wires) for spec in self.net.layout.flows if error.peer in (spec.src, spec.dst)
        ), f"{error}, but there is a wire left"


class HangError(AssertionError):
    """The run goes on and on."""


@cache
def fault_free(which: int, slot_bytes: int, window: int) -> tuple[float, tuple[bytes, ...]]:
    """(virtual seconds, the bytes of every rank) without a fault."""
    storm = Storm(schedules()[which], random.Random(0), 0.0, slot_bytes, window, 1e9)
    seconds = storm.run()
    return seconds, tuple(buffer.tobytes() for buffer in storm.buffers)


def storm(seed: int) -> Counter[str]:
    """One run; returns what was seen. Raises AssertionError or TransportError for what must not be."""
    rng = random.Random(seed)
    which = rng.randrange(len(schedules()))
    schedule = schedules()[which]
    slot_bytes = rng.choice((8, 64, 512)) if schedule.nbytes < 100 else rng.choice((256, 1000, 8192))
    window = rng.choice((1, 2, 5, 64))
    healthy_s, expected = fault_free(which, slot_bytes, window)
    run = Storm(schedule, rng, rng.choice((0.0, 0.1, 0.5)), slot_bytes, window, healthy_s)
    nics = [i for i, nic in enumerate(run.net.layout.nics) if not nic.nvlink]
    at = 0.0
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        # Often the next one comes while the last one is being dealt with.
        at = rng.choice((at + 0.05 * healthy_s * rng.random(), at + 30 * healthy_s * rng.random(), rng.random()))
        until = at + healthy_s * 80 * rng.random() ** 4
        run.at(at, run.strike(rng.choice(KINDS), rng.choice(nics), until))
    run.at(20_000 * healthy_s, hang)
    try:
        run.run()
    except FlowSeveredError as error:
        run.severed(error)
    else:
        run.check(expected)
    return run.seen


def hang(net: VirtualNet) -> None:
    """A fault that ends a run which takes too long."""
    raise HangError(f"still running after {net.now:g} s")
