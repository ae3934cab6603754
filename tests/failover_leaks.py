"""Row 16 of the matrix of faults: what a process holds before and after many failovers."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path

from tests.failover_rig import Open, Rig
from tests.failover_runs import MB, all_right, at, hit, rings


def many(connect: Open, failovers: int) -> str:
    """Row 16. Failover after failover in one process: what it holds stays what it was (I17)."""
    schedule = rings(2, 6, 1 << 15, 100 * MB)
    most = [Held()]

    def generation() -> int:
        with Rig({"it": schedule}, connect, slot_bytes=512) as rig:
            for nic in range(5):
                rig.struck.clear()
                name = f"server{nic % 2}/nic{nic}"
                rig.hook = at("posted", nic % 2, 5, lambda rig, _, name=name: rig.strike("cut", name))
                all_right(rig.run())
            if most == [Held()]:
                most[0] = held()
            return len(rig.notes("moved"))

    generation()
    done, before, rounds = 0, held(), 0
    while done < failovers:
        moved = generation()
        hit(moved, "no failover")
        done, rounds = done + moved, rounds + 1
    after, (during,) = held(), most
    for name in ("descriptors", "maps", "queue_pairs"):
        left = getattr(after, name) - getattr(before, name)
        assert not left, f"{left} {name.replace('_', ' ')} were left"
    assert after.objects - before.objects < OBJECTS, f"{after.objects - before.objects} objects were left"
    assert during.descriptors > before.descriptors, "no descriptors are seen while wires are open, so none would be"
    assert during.maps > before.maps, "no memory is seen while wires are open, so none would be"
    told = [f"{name} {getattr(before, name)} -> {getattr(after, name)}" for name in ("descriptors", "maps")]
    if during.queue_pairs:
        told.append(f"queue pairs {before.queue_pairs} -> {after.queue_pairs} ({during.queue_pairs} while open)")
    grown = after.objects - before.objects
    return f"{done} flows moved in {rounds} generations; {', '.join(told)}, objects {grown:+}"


OBJECTS = 20
"""Python's own caches come and go by a handful; one object left by each of 56 generations is more than this."""


@dataclass(frozen=True)
class Held:
    """What a process holds: open descriptors, mapped pieces of memory for chunks, queue pairs, objects of Python."""

    descriptors: int = 0
    maps: int = 0
    queue_pairs: int = 0
    objects: int = 0


def held() -> Held:
    """Of this process. Chunks are in memory of the project's name, or (verbs) in memory that is shared and has none."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    objects = gc.get_objects()
    return Held(
        len(os.listdir("/proc/self/fd")),
        maps.count("memfd:optcc") + maps.count("/dev/zero"),
        sum(type(it).__name__ == "QueuePair" for it in objects),
        len(objects),
    )
