"""What VerbsWires move against a plain pyverbs loop of the same writes.

`lab/run.sh --real-time --nics 2 -- python3 -m lab.plain_loop`: two processes, a NIC each, no rate. Rank 0 writes chunks
of 64 bytes of header and a payload into a window of slots at rank 1: the payload, and posted with it the header with an
immediate value. Rank 1 returns a credit for each, a write of no bytes. All ways in turns, in many short runs, over
queue pairs that stay open. `benchmarks/bench_verbs_loop.py` makes the page.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from itertools import cycle, permutations
from pathlib import Path
from statistics import median
from typing import Any

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from optcc.machine.rdma import rdma_ports
from optcc.runtime.verbs import nic
from optcc.runtime.verbs.binding import HotCalls
from optcc.runtime.verbs.layout import address_of
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.verbs.wires import VerbsWires
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Credited, FlowSpec, Wire

WINDOW = 8
BATCH = 64  # completions asked for at once
SIGNAL = 8  # of so many credits one asks for a completion, as with ours
Exchange = Callable[[Any], list[Any]]


class Silence:
    """A watch that never speaks."""

    def __init__(self) -> None:
        self._fds = os.pipe()

    def fileno(self) -> int:
        """Never to be read."""
        return self._fds[0]

    def check(self) -> None:
        """Nothing."""


class Plain:
    """What one would write by hand: every object made once, a wait for the completion channel, all that is there."""

    def __init__(self, rank: int, chunk: int, exchange: Exchange) -> None:
        self._rank, self._stride = rank, chunk + HEADER_BYTES
        slots = self._stride * WINDOW
        self._memory = memoryview(mmap.mmap(-1, slots + self._stride))
        if rank == 0:
            self._memory[slots + HEADER_BYTES :] = bytes_of(chunk)
        base = address_of(self._memory)
        address = [port.address() for port in rdma_ports()][rank]
        context = Context(name=address.device)
        pd, channel = PD(context), CompChannel(context)
        self._channel, self._cq = channel, CQ(context, 4096, None, channel, 0)
        self._cq.req_notify()
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        memory = MR(pd, slots + self._stride, access, address=base)
        self._open = [context, pd, channel, self._cq, memory]
        cap = QPCap(max_send_wr=4 * WINDOW, max_recv_wr=WINDOW, max_send_sge=2, max_recv_sge=1)
        kind = QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0)
        self._qp = qp = QP(pd, kind)
        here, mtu = (
            str(context.query_gid(address.port, address.gid_index).gid),
            context.query_port(address.port).active_mtu,
        )
        init = QPAttr(port_num=address.port)
        init.qp_access_flags = access
        qp.to_init(init)
        number, gid, self._to, self._key = exchange([qp.qp_num, here, base, memory.rkey])[1 - rank]
        route = GlobalRoute(dgid=GID(gid), sgid_index=address.gid_index, hop_limit=64)
        attr = QPAttr(port_num=address.port)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=address.port)
        attr.dest_qp_num, attr.path_mtu, attr.rq_psn, attr.sq_psn = number, mtu, 0, 0
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.min_rnr_timer, attr.rnr_retry = 18, 6, 12, 6
        qp.to_rts(attr)
        nothing = SGE(base, 0, memory.lkey)
        self._receive = RecvWR(wr_id=0, num_sge=1, sg=[nothing])
        for _ in range(WINDOW):
            qp.post_recv(self._receive)
        parts = [
            SGE(base + slots, HEADER_BYTES, memory.lkey),
            SGE(base + slots + HEADER_BYTES, chunk, memory.lkey),
        ]
        kind, told = enums.IBV_WR_RDMA_WRITE_WITH_IMM, enums.IBV_SEND_SIGNALED
        self._header = SendWR(wr_id=1, opcode=kind, num_sge=1, sg=parts[:1], send_flags=told)
        self._chunk = SendWR(
            opcode=enums.IBV_WR_RDMA_WRITE, num_sge=1, sg=parts[1:], send_flags=0, next_wr=self._header
        )
        self._both = SendWR(wr_id=1, opcode=kind, num_sge=2, sg=parts, send_flags=told)
        self._credit = SendWR(wr_id=1, opcode=kind, num_sge=1, sg=[nothing], send_flags=0)
        self._credit.set_wr_rdma(self._key, self._to)
        exchange(None)

    def run(self, chunks: int) -> None:
        """Rank 0 sends so many chunks; over when the last credit is here."""
        sent = came = 0
        while came < chunks:
            if self._rank == 0:
                while sent < min(chunks, came + WINDOW):
                    self._write(self._to + sent % WINDOW * self._stride)
                    sent += 1
            for completion in self._wait():
                assert completion.status == enums.IBV_WC_SUCCESS, completion.status
                if completion.wr_id == 0:
                    self._qp.post_recv(self._receive)
                    came += 1
                    if self._rank == 1:
                        self._credit.send_flags = 0 if came % SIGNAL else enums.IBV_SEND_SIGNALED
                        self._qp.post_send(self._credit)

    def _wait(self) -> list[Any]:
        """For an event, asked for before; then all that is there."""
        self._channel.get_cq_event(self._cq)
        self._cq.ack_events(1)
        self._cq.req_notify()
        found: list[Any] = []
        while True:
            count, some = self._cq.poll(BATCH)
            found += some
            if count < BATCH:
                return found

    def _write(self, slot: int) -> None:
        """A chunk: its two writes, posted at once."""
        self._chunk.set_wr_rdma(self._key, slot + HEADER_BYTES)
        self._header.set_wr_rdma(self._key, slot)
        self._qp.post_send(self._chunk)

    def landed(self, slot: int) -> memoryview:
        """The payload in a slot."""
        return self._memory[slot * self._stride :][HEADER_BYTES : self._stride]

    def close(self) -> None:
        """The queue pair first."""
        self._qp.close()
        while self._open:
            self._open.pop().close()


class Gathered(Plain):
    """The same, but one write of header and payload for a chunk."""

    def _write(self, slot: int) -> None:
        self._both.set_wr_rdma(self._key, slot)
        self._qp.post_send(self._both)


class Ours:
    """The same by VerbsWires."""

    def __init__(self, rank: int, chunk: int, exchange: Exchange) -> None:
        self._rank, self._seq = rank, 0
        self._payload = memoryview(mmap.mmap(-1, chunk))
        self._payload[:] = bytes_of(chunk)
        self._wires = VerbsWires(
            rank,
            [Wire(0, 1, 0, 1)],
            [FlowSpec(0, 1, (0,), WINDOW, chunk)],
            {rank: [port.address() for port in rdma_ports()][rank]},
            exchange=exchange,
            watch=Silence(),
            clock=time.monotonic,
            settings=VerbsSettings(timeout=18),
        )
        self._wires.register(self._payload)

    def run(self, chunks: int) -> None:
        """Rank 0 sends so many chunks; over when the last credit is here."""
        wires, header = self._wires, bytes(HEADER_BYTES)
        sent = came = self._seq
        self._seq = end = sent + chunks
        while came < end:
            if self._rank == 0:
                while sent < min(end, came + WINDOW):
                    wires.write(0, 0, sent, header, self._payload, 0.0)
                    sent += 1
            for happening in wires.poll(float("inf")):
                if type(happening) is Credited:
                    came = happening.folded
                elif type(happening) is Arrived:
                    came = happening.seq + 1
                    wires.credit(0, 0, came)

    def landed(self, slot: int) -> memoryview:
        """The payload in a slot."""
        return self._wires.slot(0, slot)[HEADER_BYTES:]

    def close(self) -> None:
        """All."""
        self._wires.close()


class Counts:
    """Of one rank: calls of the device's own functions, and the completions that they gave."""

    def __init__(self) -> None:
        self.posts = self.receives = self.polls = self.completions = 0

    def all(self) -> list[int]:
        """Calls that post sends, that post receives, that poll; completions."""
        return [self.posts, self.receives, self.polls, self.completions]

    def of(self, calls: HotCalls) -> HotCalls:
        """These functions, counted."""

        def post(*arguments: int) -> int:
            self.posts += 1
            return calls.post_send(*arguments)

        def receive(*arguments: int) -> int:
            self.receives += 1
            return calls.post_receive(*arguments)

        def poll(*arguments: int) -> int:
            self.polls += 1
            found = calls.poll(*arguments)
            self.completions += found
            return found

        return calls._replace(poll=poll, post_send=post, post_receive=receive)


def counted(rank: int, chunk: int, chunks: int, exchange: Exchange) -> list[list[float]]:
    """By rank, for each chunk over our wires: calls that post sends, that post receives, that poll; completions."""
    counts, made = Counts(), nic.hot_calls
    nic.hot_calls = lambda context: counts.of(made(context))
    try:
        ours = Ours(rank, chunk, exchange)
    finally:
        nic.hot_calls = made
    ours.run(chunks)
    exchange(None)
    before = counts.all()
    ours.run(chunks)
    mine = [after - before for before, after in zip(before, counts.all(), strict=True)]
    told: list[list[float]] = [[count / chunks for count in each] for each in exchange(mine)]
    ours.close()
    return told


def bytes_of(chunk: int) -> bytes:
    """What a chunk carries."""
    return (b"losslessly" * (chunk // 10 + 1))[:chunk]


WAYS: dict[str, type[Plain] | type[Ours]] = {"plain": Plain, "ours": Ours, "gathered": Gathered}


def rank_main(rank: int, options: argparse.Namespace, exchange: Exchange) -> list[dict[str, float]]:
    """Seconds of each way, turn by turn, the first turn left out: whole rounds, in which every order of the ways comes
    once.

    Rank 0 says when time is up.
    """
    ways = {name: way(rank, options.chunk, exchange) for name, way in WAYS.items()}
    orders = list(permutations(ways))
    turns: list[dict[str, float]] = []
    end = time.monotonic() + options.seconds
    for order in cycle(orders):
        seconds = {}
        for name in order:
            exchange(None)
            start = time.monotonic()
            ways[name].run(options.chunks)
            seconds[name] = time.monotonic() - start
        turns.append(seconds)
        rounds, rest = divmod(len(turns) - 1, len(orders))
        if rounds and not rest and exchange(time.monotonic() >= end)[0]:
            break
    for name, way in ways.items():
        if rank == 1 and any(way.landed(slot) != bytes_of(options.chunk) for slot in range(WINDOW)):
            raise SystemExit(f"{name} has not brought its bytes")
        exchange(None)
        way.close()
    return turns[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunk", type=int, default=1 << 17, help="bytes of payload")
    parser.add_argument("--chunks", type=int, default=16, help="of a run")
    parser.add_argument("--seconds", type=float, default=20.0, help="to go on for")
    parser.add_argument("-o", "--output", type=Path, help="seconds of each turn, and counts of calls, JSON")
    options = parser.parse_args()
    ends = socket.socketpair()
    pid = os.fork()
    rank = 1 if pid == 0 else 0
    ends[1 - rank].close()
    lines = ends[rank].makefile()

    def exchange(value: Any) -> list[Any]:
        ends[rank].sendall((json.dumps(value) + "\n").encode())
        other = json.loads(lines.readline())
        return [value, other] if rank == 0 else [other, value]

    if rank == 0:  # else it would wait for ever for one that is gone
        signal.signal(signal.SIGCHLD, lambda *_: sys.exit("rank 1 has failed"))
    try:
        turns = rank_main(rank, options, exchange)
        counts = counted(rank, options.chunk, 32 * options.chunks, exchange)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        exchange(None)
    except BaseException as why:
        traceback.print_exception(why)
        if rank == 0:
            os.kill(pid, signal.SIGKILL)
        os._exit(1)
    if rank:
        os._exit(0)
    failed = os.waitpid(pid, 0)[1]
    if options.output:
        options.output.write_text(json.dumps({"turns": turns, "counts": counts}), encoding="utf-8")
    for name in WAYS:
        ratio = median(turn["plain"] / turn[name] for turn in turns)
        rate = options.chunks * options.chunk / median(turn[name] for turn in turns)
        print(f"{name}: {rate / 1e6:.1f} MB/s, {ratio:.3f} of plain in {len(turns)} turns")
    for who, (posts, receives, polls, completions) in zip(("sender", "receiver"), counts, strict=True):
        print(f"{who}, of a chunk: {posts:.2f} posts, {receives:.2f} of receives, {polls:.2f} polls")
        print(f"    for {completions:.2f} completions")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
