"""The compiled path without what only failover needs: the package's own sources, less some lines, compiled anew.

An edit that does not fit its source exactly as often as it says is an error: who changes such a line hears of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import njit

from optcc.runtime.compiled import basics, local_loop
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.local_flows import LocalFlows
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.compiled.tables import KEPT, FlowState
from optcc.runtime.engine.transport import Landing, Take
from optcc.runtime.flows.ends import CHUNK_HEADER, CHUNK_MARK
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Credited
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.local import LocalWires


class Quiet(LocalWires):
    """Wires that need not tell the sender that a chunk has arrived."""

    acknowledges = True

    def _acknowledge(self, arrived: Sequence[Arrived]) -> None:
        if self.acknowledges:
            super()._acknowledge(arrived)

    def _tell(self, wire: int, flow: int, landed: int) -> None:
        if self.acknowledges:
            super()._tell(wire, flow, landed)


@dataclass
class Count:
    """All that a flow without failover knows."""

    wire: int
    window: int
    posted: int = 0
    folded: int = 0


class Bare(FlowTransport):
    """The same flows, unable to move: no machines, epochs, chunks kept to be sent again, or timers.

    What stays is what landing in slots needs: a window, and credits.
    """

    def __init__(self, rank: int, layout: Layout, *rest: Any) -> None:
        super().__init__(rank, layout, *rest)
        self._every = {f: flow.receiver.credit_every for f, flow in self._ins.items()}
        for f, out in self._outs.items():
            out.sender = Count(layout.flows[f].wires[0], layout.flows[f].window)  # type: ignore[assignment]
        self._send_path.pump = self._pump  # type: ignore[method-assign]
        self._busy = self._send_path.busy

    def _pump(self, out: Any) -> None:
        now, count = self._clock(), out.sender
        while (
            out.queue and count.posted - count.folded < count.window and self._wires.free_at(count.wire, now) < math.inf
        ):
            ready, operation, row, offset, payload = out.queue.popleft()
            header = CHUNK_HEADER.pack(CHUNK_MARK, 0, operation, len(payload), count.posted, row, offset)
            self._wires.write(count.wire, out.number, count.posted, header, payload, ready)
            count.posted += 1
        if not out.queue:
            self._busy.discard(out.number)

    def poll(self, until: float, take: Take) -> list[Landing]:
        landings, missing = [], self._receive_path._missing
        for happening in self._wires.poll(until):
            if type(happening) is Arrived:
                wire, flow, seq, at = happening
                slot = self._wires.slot(flow, seq)
                _, _, _, nbytes, _, row, offset = CHUNK_HEADER.unpack_from(slot)
                take(row, offset, slot[HEADER_BYTES : HEADER_BYTES + nbytes])
                missing[row] -= nbytes
                if missing[row] == 0:
                    landings.append(Landing(row, at))
                if (seq + 1) % self._every[flow] == 0:
                    self._wires.credit(wire, flow, seq + 1)
            elif type(happening) is Credited:
                self._outs[happening.flow].sender.folded = happening.folded
        if self._busy:
            for flow in sorted(self._busy, key=lambda flow: self._outs[flow].queue[0].row):
                self._pump(self._outs[flow])
        return landings

    def drain(self) -> bool:
        """By the credits; the chunks of a run are a multiple of what one gives back, so the last says all."""
        return not self._busy and all(out.sender.posted == out.sender.folded for out in self._outs.values())


_FOLDER = Path(local_loop.__file__).parent
_WATCH_PROGRESS = "if x[LOOK_AT] == np.inf:"
RECEIVING = (
    # Which chunk it is: without failover, a ring's next notification is of its flow's next chunk.
    ("    if load_u32(slot) != MARK or load_i64(slot + 16) != seq:\n        return ASIDE\n", ""),
    (" or wire != f.flows[flow].wire or seq != f.flows[flow].landed:", ":"),
    ("    if load_u32(slot + 4) != f.flows[flow].epoch or load_u32(slot + 8) != g[OPERATION]:\n", "    if False:\n"),
    # What the sender may ask for when a wire is lost.
    ("    say_landed(f, w, g, wire, flow)\n", ""),
    ("    if nbytes == CALL:\n", "    if False:\n"),
    # Credits of a wire that has been left; what need not be kept any more.
    ("    if wire != f.flows[flow].wire or number < f.flows[flow].folded", "    if number < f.flows[flow].folded"),
    ("    f.flows[flow].acked = max(f.flows[flow].acked, number)\n", ""),
)
LOCAL_PARTS = (
    # A fence at the other end.
    ("    if word(w.wires[wire].closed) != 0 or not has_room", "    if not has_room"),
    ("from optcc.runtime.compiled.sending import put_header\n", ""),
)
SENDING = (
    # Which chunk it is.
    ("    store_u32(slot, MARK)\n    store_u32(slot + 4, f.flows[flow].epoch)\n", ""),
    ("    store_u32(slot + 8, g[OPERATION])\n", ""),
    ("    store_i64(slot + 16, seq)\n", ""),
    # What may have to be sent again, and the count for the watch over slow lanes.
    ("    kept = f.flows[flow].kept_at + seq % f.flows[flow].keeps\n", ""),
    (f"    {', '.join(f'f.kept[kept].{field}' for field in KEPT.fields or ())} = place, start, nbytes, ready\n", ""),
    ("    f.flows[flow].numbered += nbytes\n", ""),
    (f"        {_WATCH_PROGRESS}\n", "        if False:\n"),
)
LOOP = (
    ("from optcc.runtime.compiled.sending import post_ready, pump_all\n", ""),
    (f"            {_WATCH_PROGRESS}\n", "            if False:\n"),
    ("        expired = now >= x[LOOK_AT] or now >= x[TIMERS]\n", "        expired = False\n"),
)
LOCAL_LOOP = (
    ("from optcc.runtime.compiled import local_parts\n", ""),
    ("from optcc.runtime.compiled.loop import advance_over\n", ""),
    ("from optcc.runtime.compiled.receiving import land_due, read_ring\n", ""),
    ("    called,\n", ""),
    ("    if g[ASKED]:\n        _see_landed(f, g)\n    wake", "    wake"),
    ("    if g[ASKED]:\n        _see_landed(f, g)\n    return", "    return"),
)


def edited(name: str, edits: tuple[tuple[str, str], ...], **given: Any) -> ModuleType:
    """A module of the package after these edits; `given` : names that it does not import any more.

    Raises ValueError for an edit whose text is not there exactly once.
    """
    source = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"{name}.py has this {source.count(old)} times, not once: {old!r}")
        source = source.replace(old, new)
    module = ModuleType(f"bare_{name}")
    vars(module).update(given)
    exec(compile(source, f"bare_{name}.py", "exec"), vars(module))
    return module


@cache
def bare_advance() -> Any:
    """`local_loop.advance` without failover; not compiled yet."""
    receiving, sending = edited("receiving", RECEIVING), edited("sending", SENDING)
    local_parts = edited("local_parts", LOCAL_PARTS, put_header=vars(sending)["put_header"])
    loop = edited("loop", LOOP, **{name: vars(sending)[name] for name in ("post_ready", "pump_all")})
    parts = {name: vars(receiving)[name] for name in ("land_due", "read_ring")}
    parts |= {"local_parts": local_parts, "advance_over": loop.advance_over}
    called = njit(nogil=True, error_model="numpy")  # as `basics.called`, but kept in no file
    return edited("local_loop", LOCAL_LOOP, called=called, **parts).advance


def compile_bare() -> None:
    """After `compile_all`; some 15 s. Processes that are forked afterwards have it."""
    for signature in local_loop.advance.signatures:
        bare_advance().compile(signature)


class BareTable(LocalFlows):
    """Flows that no machine stands behind: what compiled code has counted stays in the arrays from run to run."""

    def __init__(self, flows: FlowTransport, wires: LocalWires) -> None:
        super().__init__(flows, wires)
        for number, out in self._outs.items():
            self._put(number, FlowState(out=1, wire=out.sender.wire))
        for number, into in self._ins.items():
            self._put(number, FlowState(into=1, wire=into.receiver.wire))

    def fill(self, engine: CompiledEngine) -> bool:
        """The credits that came after the last run."""
        self.reach()
        for number, out in self._outs.items():
            self.tables.flows["folded"][number] = out.sender.folded
        return True

    def write_back(self, engine: CompiledEngine) -> None:
        """For who waits for the last credits."""
        for number, out in self._outs.items():
            state = self._state(number)
            out.sender.posted, out.sender.folded = state.posted, state.folded


class BarePath(CompiledPath):
    """The path of `bare_flows.Bare`. It ends with the run: Python could not go on in the middle."""

    def __init__(self, flows: FlowTransport, wires: LocalWires) -> None:
        super().__init__(flows, wires)
        self.flows = BareTable(flows, wires)

    def _run(self, engine: CompiledEngine) -> int:
        code: int = bare_advance()(
            *engine.tables.arrays, *self.flows.tables, *self.lines.tables, engine.numbers, engine.times
        )
        return code

    def _write_back(self, engine: CompiledEngine, code: int) -> None:
        self.flows.write_back(engine)
        self.lines.write_back(engine.numbers.tolist(), engine.times, code)
        if code != basics.DONE:
            raise SystemExit(f"without failover: compiled code has stopped in the middle of a run ({code})")
