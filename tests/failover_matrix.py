"""The sixteen rows of docs/failover.md: every fault at the moment that hurts most, each run with proof that it hit.

A row is a function of how wires are opened and of what varies in it; it returns what proves that the fault hit at its
moment. It raises InconclusiveError when it did not hit, and AssertionError when anything was lost, doubled or hung.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.wires.contract import Cause
from tests.failover_leaks import many
from tests.failover_mail import Post
from tests.failover_rig import TIMEOUTS, Moment, Open, Rig
from tests.failover_runs import MB, all_right, at, hit, home, leaves, ms, of, rings, same_error

# Rows of the matrix of faults in which one NIC, wire or rank fails, at the worst moment: 1 to 3, 7 to 9, 13 and 14.


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


# Rows of the matrix of faults in which several things fail, or several flows or jobs are hit: 4 to 6, 10 and 11.


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


# The sixteen rows of docs/failover.md: every fault at the moment that hurts most, each run with proof that it hit.
#
# A row is a function of how wires are opened and of what varies in it; it returns what proves that the fault hit at its
# moment. It raises InconclusiveError when it did not hit, and AssertionError when anything was lost, doubled or hung.


@dataclass(frozen=True)
class Row:
    """A row of the matrix. variants : what is tried, as arguments of `run`; needed, what hits, in words for people."""

    fault: str
    catches: str
    run: Callable[..., str]
    variants: tuple[Mapping[str, Any], ...] = field(default=({},))


def variants(**each: tuple[Any, ...]) -> tuple[Mapping[str, Any], ...]:
    ((name, values),) = each.items()
    return tuple({name: value} for value in values)


ROWS: Mapping[int, Row] = {
    1: Row(
        "acknowledgements lost, at each window position",
        "resend of a delivered chunk",
        lost_acknowledgement,
        variants(position=(0, 1, 2, 3)),
    ),
    2: Row(
        "the last acknowledgement lost",
        "hang at the end",
        last_acknowledgement,
        ({"another": False}, {"another": True}, {"another": True, "window": 1}),
    ),
    3: Row("flap with the window full, against the retry time", "ghost writes", flap, variants(heals=(0.5, 0.9, 1.1))),
    4: Row(
        "both ends' NICs cut at once, messages lost",
        "diverging resume points, deadlock",
        both_ends,
        variants(drop=(0.0, 0.5, 1.0)),
    ),
    5: Row("two flows on the NIC, noticed 50 ms apart", "starvation after the first notice", two_flows),
    6: Row("sends and receives on the NIC, two jobs open", "stolen messages", two_jobs),
    7: Row(
        "black hole, before and in the middle of a chunk",
        "detection by progress",
        black_hole,
        ({"wait_s": 0.0}, {"wait_s": 0.0006}, {"wait_s": 0.0006, "at_receiver": True}),
    ),
    8: Row("a peer paused for twice the deadline", "false failover", pause, variants(rank=(0, 1))),
    9: Row("NIC cut during a slow fold", "lost flush, double fold", slow_fold, variants(number=(3, 30))),
    10: Row(
        "the backup fails during failover, then all NICs",
        "second failure",
        second_failure,
        variants(then_all=(False, True)),
    ),
    11: Row(
        "two servers lose NICs at once, in every stage", "plan agreement", two_servers, variants(stage=(1, 2, 3, 4))
    ),
    13: Row(
        "device fatal, failing post, ineligible status",
        "clean typed errors, no hang",
        device,
        variants(what=("fatal", "post", "status")),
    ),
    14: Row(
        "NIC lost when idle, then small and large operations", "stale state", idle, variants(noticed=(False, True))
    ),
    16: Row("1000 failovers in one process", "leaks", many, variants(failovers=(1000,))),
}
"""12 is the pure machines' own (tests/test_protocol.py); 15 and parts of 8, 11 and 13 need processes."""


MANY = 1000
"""Failovers that take long."""


def cases(which: Iterable[tuple[int, Mapping[str, Any]]], slow: pytest.MarkDecorator) -> list[Any]:
    """Row and variant as parameters ``number, how`` of a test; `slow` : the mark of the one with most failovers."""
    return [
        pytest.param(
            number,
            how,
            id="-".join((f"row{number:02}", *(f"{name}={value}" for name, value in how.items()))),
            marks=slow if how.get("failovers", 0) >= MANY else (),
        )
        for number, how in which
    ]


def every(rows: Mapping[int, Sequence[Mapping[str, Any]]] | None = None) -> list[tuple[int, Mapping[str, Any]]]:
    """Each variant of each row; of ROWS, if no others are given."""
    rows = {number: row.variants for number, row in ROWS.items()} if rows is None else rows
    return [(number, how) for number, variants in rows.items() for how in variants]
