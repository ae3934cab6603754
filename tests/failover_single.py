"""Rows of the matrix of faults in which one NIC, wire or rank fails, at the worst moment: 1 to 3, 7 to 9, 13 and 14."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.wires.contract import Cause
from tests.failover_rig import TIMEOUTS, Moment, Open, Rig
from tests.failover_runs import MB, all_right, at, hit, home, ms, of, rings, same_error


def lost_acknowledgement(connect: Open, position: int, window: int = 4) -> str:
    """Row 1. The acknowledgements are lost from one chunk on, wherever in the window it is."""
    asked: list[tuple[int, int]] = []
    with Rig({"it": rings()}, connect, window=window) as rig:
        flow = rig.flow_of(0, 1)
        out = rig.flows[0]._outs[flow]
        nic = home(rig, flow)[0]
        rig.hook = at("posted", 0, 2 * window + position, lambda rig, _: rig.strike("darken", nic, data=False), flow)

        def message(sender: int, to: int, value: Any) -> None:
            if value[:2] == [flow, "Ask"]:
                asked.append((out.sender.acked, out.sender.posted))

        rig.on_message = message
        all_right(rig.run())
        hit(rig.struck and asked, "no failover")
        answer = next(value for _, _, value in rig.messages if value[:2] == [flow, "Answer"])
        hit(asked[0][0] < answer[3], "nothing had landed without its acknowledgement")
        assert not {seq for (f, seq), times in rig.writes.items() if f == flow and times > 1 and seq < answer[3]}
        return f"{answer[3] - asked[0][0]} chunks had landed unacknowledged; none of them sent again"


def last_acknowledgement(connect: Open, another: bool, window: int = 4) -> str:
    """Row 2. The last acknowledgement of an operation is lost; the peer is done."""
    with Rig({"it": rings()}, connect, window=window) as rig:
        flow = rig.flow_of(0, 1)
        all_right(rig.run())
        last = 2 * rig.flows[0]._outs[flow].sender.posted - 1
        nic = home(rig, flow)[0]
        rig.hook = at("posted", 0, last, lambda rig, _: rig.strike("darken", nic, data=False), flow)
        all_right(rig.run())
        moved = [note for note in of(rig, nic, Cause.PROGRESS) if note.nic == nic]
        hit(rig.struck and moved, "no failover")
        hit(rig.finished[1] < moved[0].at, "the peer was not done")
        assert not rig.again().get(flow), "a delivered chunk was sent again"
        waited = moved[0].at - rig.finished[1]
        if another:
            all_right(rig.run())
        return f"the receiver had been done for {ms(waited)} when the sender moved"


def flap(connect: Open, heals: float, retry_s: float = 0.12) -> str:
    """Row 3. A flap with the window full, which heals before or after the NIC's retries are over."""
    window = 4
    with Rig({"it": rings()}, connect, window=window, timeouts=replace(TIMEOUTS, progress=5.0)) as rig:
        flow = rig.flow_of(0, 1)
        sender, (ours, theirs) = rig.flows[0]._outs[flow].sender, home(rig, flow)
        begun: list[float] = []
        full: list[float] = []

        def hook(rig: Rig, moment: Moment) -> None:
            if moment.kind != "posted" or moment.flow != flow:
                return
            if moment.seq >= 12 and not begun:
                begun.append(time.monotonic())
                rig.later("darken", theirs)
                rig.later("heal", theirs, heals * retry_s)
                if heals > 1:
                    rig.later("fail_out", ours, retry_s)
            if rig.struck and sender.posted - sender.folded == window:
                full.append(time.monotonic())

        rig.hook = hook
        all_right(rig.run())
        hit(full and rig.struck, "the window was never full")
        struck = rig.struck[0][0]
        rig.idle(struck + (heals + 0.3) * retry_s)
        hit(any(what.startswith("heal") for _, what in rig.struck), "it has not healed")
        all_right(rig.run())  # with whatever came late
        if heals < 1:
            assert rig.notes("moved") == [], "a flap within the retries moves nothing"
            times = [struck, *(t for t in rig.acked.get(flow, []) if t > struck)]
            silent = max((b - a for a, b in pairwise(times)), default=0.0)
            hit(silent >= 0.8 * heals * retry_s, "the flap held nothing back")
            return f"window full, nothing came through for {ms(silent)}"
        moved = of(rig, ours, Cause.ERROR)
        hit(moved, "no failover")
        return f"window full; moved {ms(moved[0].at - struck)} after the flap; no ghost after it healed"


def black_hole(connect: Open, wait_s: float, at_receiver: bool = False) -> str:
    """Row 7. A black hole, before a chunk is on the wire and in the middle of one; the NIC would retry for 30 s."""
    with Rig({"it": rings(rate=2 * MB)}, connect) as rig:
        flow = rig.flow_of(0, 1)
        ours, theirs = home(rig, flow)
        nic = theirs if at_receiver else ours

        def strike(rig: Rig, _: Moment) -> None:
            if wait_s or at_receiver:
                rig.later("darken", nic, wait_s)
            else:
                rig.strike("darken", nic)

        rig.hook = at("posted", 0, 10, strike, flow)
        all_right(rig.run())
        moved = of(rig, nic, Cause.PROGRESS)
        hit(rig.struck and moved, "no failover")
        took = moved[0].at - rig.struck[0][0]
        assert took >= TIMEOUTS.progress, "sooner than the deadline"
        return f"moved by the progress timer {ms(took)} after the strike, {moved[0].nbytes} bytes sent again"


def pause(connect: Open, rank: int, timeouts: Timeouts = Timeouts(0.4, 0.3, 0.05)) -> str:  # noqa: B008 - frozen
    """Row 8. A rank is paused for more than twice the deadline, and is healthy."""
    with Rig({"it": rings()}, connect, timeouts=timeouts) as rig:

        def strike(rig: Rig, _: Moment) -> None:
            rig.struck.append((time.monotonic(), "pause"))
            time.sleep(2 * (timeouts.progress + timeouts.grace))

        rig.hook = at("landed", rank, 20, strike)
        all_right(rig.run())
        probes = sum(value[1] == "Probe" for _, _, value in rig.messages)
        assert rig.notes("moved") == rig.notes("lost") == [], "a paused peer is not a lost NIC"
        hit(rig.struck and probes, "nobody has missed the rank")
        return f"{probes} probes sent, no failover"


def slow_fold(connect: Open, number: int) -> str:
    """Row 9. The NIC dies while a chunk that came by it is being folded."""
    with Rig({"it": rings()}, connect) as rig:
        flow = rig.flow_of(0, 1)
        nic = home(rig, flow)[1]
        rig.delay_s = 0.003
        rig.hook = at("taking", 1, number, lambda rig, _: rig.strike("cut", nic))
        all_right(rig.run())
        moved = of(rig, nic)
        hit(rig.struck and moved, "no failover")
        return f"cut within a fold, {sum(note.nbytes for note in moved)} bytes sent again, each folded once"


def device(connect: Open, what: str) -> str:
    """Row 13, what wires can do: a fatal device, a post that fails, a status that no lost NIC explains."""
    with Rig({"it": rings()}, connect) as rig:

        def strike(rig: Rig, _: Moment) -> None:
            if what == "fatal":
                rig.strike("cut", "server1/nic0", cause=Cause.DEVICE, detail="device fatal")
            elif what == "post":
                rig.strike("fail_out", "server1/nic0", cause=Cause.DEVICE, detail="post failed")
            else:
                rig.struck.append((time.monotonic(), "status"))
                rig.ends[1].fail_nic("wire 3: REM_ACCESS_ERR")

        rig.hook = at("posted", 1, 10, strike)
        ended = rig.run()
        hit(rig.struck, "not struck")
        if what == "status":
            assert same_error(ended) == "RankFailedError: rank 1 failed: wire 3: REM_ACCESS_ERR"
            assert rig.notes("moved") == [], "a bug is not repaired"
            return "the same error on every rank, no failover"
        all_right(ended)
        moved = of(rig, "server1/nic0", Cause.DEVICE)
        hit(moved, "no failover")
        return f"moved {ms(moved[0].at - rig.struck[0][0])} after it: {moved[0].cause}"


def idle(connect: Open, noticed: bool) -> str:
    """Row 14. A NIC is lost while nothing runs; then operations of one element, of about a slot, and large ones."""
    slot = 2048
    sizes = {"it": 1 << 16, "one": 4, "below": 4 * (slot - 4), "above": 4 * (slot + 4)}
    with Rig({name: rings(2, 2, size) for name, size in sizes.items()}, connect, slot_bytes=slot) as rig:
        all_right(rig.run())
        rig.strike("cut", "server0/nic1")
        if noticed:
            rig.idle(time.monotonic() + 0.05)
            hit(rig.notes("lost"), "nobody has noticed")
            assert rig.again() == {}
        for name in ("one", "below", "it", "above", "one", "it"):
            all_right(rig.run(name))
        moved = of(rig, "server0/nic1")
        assert all(note.nbytes == 0 for note in moved) or not noticed
        hit(moved, "no failover")
        return f"lost between operations, {len(moved)} flows moved, {sum(n.nbytes for n in moved)} bytes sent again"
