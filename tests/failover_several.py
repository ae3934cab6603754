"""Rows of the matrix of faults in which several things fail, or several flows or jobs are hit: 4 to 6, 10 and 11."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from optcc.runtime.wires.contract import Cause
from tests.failover_mail import Post
from tests.failover_rig import TIMEOUTS, Moment, Open, Rig
from tests.failover_runs import MB, all_right, at, hit, home, leaves, ms, of, rings, same_error


def both_ends(connect: Open, drop: float, seed: int = 0) -> str:
    """Row 4. Both ends of a wire lose their NICs at once while messages are lost."""
    post = Post(drop, double=0.2, late=0.2, seed=seed) if drop < 1 else Post(drop)
    with Rig({"it": rings(nics=3)}, connect, post=post, timeouts=replace(TIMEOUTS, answer=0.02)) as rig:
        flow = rig.flow_of(0, 1)
        ours, theirs = home(rig, flow)

        def strike(rig: Rig, _: Moment) -> None:
            rig.later("cut", theirs)
            rig.strike("cut", ours)

        rig.hook = at("posted", 0, 10, strike, flow)
        ended = rig.run()
        down = [note.nic for note in rig.notes("nic down")]
        hit({ours, theirs} <= set(down), "one end only")
        hit(not drop or rig.post.seen["lost"], "no message was lost")
        apart = abs(rig.struck[1][0] - rig.struck[0][0])
        if drop == 1:
            return f"all messages lost, ends struck {ms(apart)} apart: {same_error(ended)[:60]}... on every rank"
        all_right(ended)
        moved = of(rig, ours)
        hit(moved, "no failover")
        return f"ends struck {ms(apart)} apart, {rig.post.seen['lost']} messages lost, {len(moved)} flows moved"


def two_flows(connect: Open) -> str:
    """Row 5. Two flows leave by a NIC; that it is lost is noticed for one of them 50 ms after the other."""
    with Rig({"it": leaves()}, connect, timeouts=replace(TIMEOUTS, progress=3.0)) as rig:
        by_nic: dict[int, list[int]] = {}
        for number, spec in enumerate(rig.layout.flows):
            if spec.src != 0:  # the weak server, which has no other NIC
                by_nic.setdefault(rig.layout.wires[spec.wires[0]].out, []).append(number)
        nic, (first, second, *_) = next((nic, flows) for nic, flows in by_nic.items() if len(flows) > 1)
        rank = rig.layout.nics[nic].rank
        wires = [rig.layout.flows[flow].wires[0] for flow in (first, second)]
        rig.delay_s = 0.001

        def strike(rig: Rig, _: Moment) -> None:
            rig.struck.append((time.monotonic(), "two wires"))
            for wire, wait in zip(wires, (0.0, 0.05), strict=True):
                rig.after(wait, rank, lambda wire=wire: rig.ends[rank].fail(wire, Cause.ERROR, "flushed"))

        rig.hook = at("posted", rank, 4, strike, first)
        all_right(rig.run())
        lost = [note for note in rig.journals[rank] if note.kind == "lost" and note.text == "flushed"]
        hit(len(lost) == 2, "the operation was over before the second notice")
        moved = [note for note in rig.journals[rank] if note.kind == "moved"]
        hit({note.far for note in moved} >= {note.far for note in lost[:1]}, "no failover")
        apart = lost[1].at - lost[0].at
        hit(apart > 0.04, "noticed together")
        return f"noticed {ms(apart)} apart, {len(moved)} flows moved"


def two_jobs(connect: Open) -> str:
    """Row 6. A rank sends and receives on the NIC that dies, and another job is open in the same processes."""
    told: list[str] = []
    failed: list[BaseException] = []
    with Rig({"it": rings(2, 3)}, connect) as one, Rig({"it": rings(2, 3)}, connect) as other:

        def quiet() -> None:
            try:
                for _ in range(4):
                    all_right(other.run())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=quiet)
        one.hook = at("posted", 0, 20, lambda rig, _: rig.strike("cut", "server0/nic0"))
        thread.start()
        for _ in range(2):
            all_right(one.run())
        thread.join()
        if failed:
            raise failed[0]
        out = [note for note in of(one, "server0/nic0") if note.nic == "server0/nic0"]
        into = [note for note in of(one, "server0/nic0") if note.far == "server0/nic0"]
        hit(out and into, "the NIC did not carry both ways")
        assert other.journals == [[], []], "the other job has heard of it"
        assert other.again() == {}, "the other job has sent something again"
        healthy = [f for f, spec in enumerate(one.layout.flows) if spec.wires[0] not in _of(one, "server0/nic0")]
        assert not set(healthy) & set(one.again()), "a healthy flow has sent something again"
        assert all(epoch(one, flow) == 0 for flow in healthy), "a healthy flow has moved"
        told.append(f"{len(out)} flow out and {len(into)} in moved; the other job moved none")
    return told[0]


def epoch(rig: Rig, flow: int) -> int:
    """How often a flow has tried to move."""
    return rig.flows[rig.layout.flows[flow].src]._outs[flow].sender.epoch


def _of(rig: Rig, nic: str) -> set[int]:
    number = rig.nics[nic]
    return {w for w, wire in enumerate(rig.layout.wires) if number in (wire.out, wire.into)}


def second_failure(connect: Open, then_all: bool) -> str:
    """Row 10. The backup fails during the failover; then all NICs of the server do."""
    with Rig({"it": rings(3, 3)}, connect) as rig:
        flow = rig.flow_of(0, 1)
        nic = home(rig, flow)[0]
        second: list[str] = []

        def message(sender: int, to: int, value: Any) -> None:
            if value[:2] == [flow, "Ask"] and not second:
                second.append(rig.layout.nics[rig.layout.wires[value[3]].out].name)
                rig.strike("cut", second[0])
                if then_all:
                    for name in [n.name for n in rig.layout.nics if n.rank == 0 and n.name not in (nic, *second)]:
                        rig.strike("cut", name)

        rig.on_message = message
        rig.hook = at("posted", 0, 10, lambda rig, _: rig.strike("cut", nic), flow)
        began = time.monotonic()
        ended = rig.run()
        hit(second, "nobody has asked")
        if then_all:
            text = same_error(ended)
            assert "no wire left" in text
            return f"all ranks raise the same {ms(time.monotonic() - began)} after the start: {text[:70]}"
        all_right(ended)
        assert rig.flows[0]._outs[flow].sender.epoch >= 2
        return f"{second[0]} cut while the flow was asking for it; it took the third NIC"


def two_servers(connect: Open, stage: int) -> str:
    """Row 11. Two servers lose different NICs at once, in each stage."""
    schedule = leaves(rate=8 * MB)
    with Rig({"it": schedule}, connect) as rig:

        def hook(rig: Rig, moment: Moment) -> None:
            if moment.kind == "posted" and not rig.struck and schedule.stage[moment.row] == stage:
                with lock:
                    if rig.struck:
                        return
                    mine = next(n.name for n in rig.layout.nics if n.rank == moment.rank and n.name.endswith("nic1"))
                    other = next(n for n in rig.layout.nics if n.rank not in (0, moment.rank) and "nic0" in n.name)
                    rig.strike("cut", mine)
                rig.later("cut", other.name)

        lock = threading.Lock()
        rig.hook = hook
        ended = rig.run()
        hit(rig.struck, f"no chunk of stage {stage}")
        if any(ended):  # the weak server has one NIC only
            text = same_error(ended)
            assert "no wire left" in text
            return f"stage {stage}: the weak server lost its last NIC, the same error on every rank"
        down = rig.notes("nic down")
        hit(len(down) == 2, "one of them came after the end")
        return f"stage {stage}: {down[0].nic} and {down[1].nic} {ms(down[1].at - down[0].at)} apart"
