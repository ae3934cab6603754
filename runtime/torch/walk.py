"""Scripts walked over torch.distributed's point-to-point calls: by Gloo message by message, by NCCL in groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from optcc.runtime.errors import PeerLostError
from optcc.runtime.torch.script import Move, Round, Script

WINDOW = 16
"""Receives posted ahead: a message whose receive is posted leaves without asking first (half a round trip saved)."""


EAGER = 3
"""Runs before a walk is recorded; DDP exchanges its buckets after the first step."""


class Walk(Protocol):
    """One rank's part of an AllReduce, sum, ready to run."""

    def run(self, buffer: torch.Tensor) -> None:
        """Sum `buffer`, shape (elements,), of all ranks in place.

        Done on return in host memory; on a GPU, in the order of the current stream. Raises PeerLostError.
        """
        ...


class MessageWalk:
    """For engines that match messages by tag and whose waits block (Gloo)."""

    def __init__(self, script: Script, group: dist.ProcessGroup) -> None:
        self._script, self._group = script, group
        self._global = dist.get_process_group_ranks(group)
        self._slots: list[torch.Tensor] = []

    def run(self, buffer: torch.Tensor) -> None:
        """See `Walk`."""
        script = self._script
        raw = buffer.view(torch.uint8)
        if script.slot_bytes and not self._slots:
            self._slots = [torch.empty(script.slot_bytes, dtype=torch.uint8) for _ in range(WINDOW)]
        posted: list[tuple[Any, torch.Tensor]] = []
        sent: list[tuple[Any, Move]] = []
        for i in range(len(script.receives) + 1):
            while len(posted) < min(i + WINDOW, len(script.receives)):
                move = script.receives[len(posted)]
                # A wait frees its slot before the receive that takes it next is posted.
                slot = self._slots[len(posted) % WINDOW][: move.length] if move.reduce else _part(raw, move)
                posted.append((self._posted(dist.irecv, slot, move), slot))
            for move in script.sends[i]:
                sent.append((self._posted(dist.isend, _part(raw, move), move), move))
            if i < len(script.receives):
                move = script.receives[i]
                work, slot = posted[i]
                with lost_with(move.peer):
                    work.wait()
                if move.reduce:
                    _part(raw, move).view(buffer.dtype).add_(slot.view(buffer.dtype))
        for work, move in sent:
            with lost_with(move.peer):
                work.wait()

    def _posted(self, call: Callable[..., Any], part: torch.Tensor, move: Move) -> Any:
        with lost_with(move.peer):
            return call(part, self._global[move.peer], self._group, int(self._script.tags[move.row]))


class GroupWalk:
    """For engines that exchange in groups and order by stream (NCCL). Nothing here blocks the host.

    Launching a group takes the host about 200 us, which is more than many rounds take. So what has run `EAGER` times,
    as for DDP's buckets, is recorded as a CUDA graph and replayed: 12 to 28 us a round (docs/pytorch.md).
    """

    def __init__(self, rounds: tuple[Round, ...], group: dist.ProcessGroup) -> None:
        self._rounds, self._group = rounds, group
        self._global = dist.get_process_group_ranks(group)
        self._slot_bytes = max((sum(m.length for m in r.receives if m.reduce) for r in rounds), default=0)
        self._slot: torch.Tensor | None = None
        self._runs = 0
        self._graph: Any = None
        self._mine: torch.Tensor | None = None

    def run(self, buffer: torch.Tensor) -> None:
        """See `Walk`. The current stream is not the default one, on which nothing can be recorded.

        NCCL wants an exchange to be recorded on all its ranks or on none. So the decision depends on how often the walk
        has run, which all ranks know alike. The recorded walk has memory of its own, as buffers may lie elsewhere each
        time.
        """
        self._runs += 1
        if self._runs <= EAGER:
            self._exchange(buffer)
            return
        if self._mine is None:
            self._mine = torch.empty_like(buffer)
            self._graph = torch.cuda.CUDAGraph()
            # Other threads go on with their own work meanwhile, NCCL's watchdog among them.
            with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
                self._exchange(self._mine)
        self._mine.copy_(buffer)
        self._graph.replay()
        buffer.copy_(self._mine)

    def _exchange(self, buffer: torch.Tensor) -> None:
        raw = buffer.view(torch.uint8)
        if self._slot is None or self._slot.device != buffer.device:
            self._slot = torch.empty(self._slot_bytes, dtype=torch.uint8, device=buffer.device)
        for turn in self._rounds:
            folds: list[tuple[Move, torch.Tensor]] = []
            ops = [dist.P2POp(dist.isend, _part(raw, m), self._global[m.peer], self._group) for m in turn.sends]
            used = 0
            for move in turn.receives:
                into = _part(raw, move)
                if move.reduce:
                    into = self._slot[used : used + move.length]
                    used += move.length
                    folds.append((move, into))
                ops.append(dist.P2POp(dist.irecv, into, self._global[move.peer], self._group))
            for work in dist.batch_isend_irecv(ops):
                work.wait()  # the stream waits, the host does not
            for move, landed in folds:
                _part(raw, move).view(buffer.dtype).add_(landed.view(buffer.dtype))


def _part(raw: torch.Tensor, move: Move) -> torch.Tensor:
    return raw[move.offset : move.offset + move.length]


@contextmanager
def lost_with(peer: int) -> Iterator[None]:
    """What torch raises here is the loss of that rank: PeerLostError."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(peer, first_line(error)) from error


def first_line(error: Exception) -> str:
    """What an error of torch says, without the place in its source and its advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\] *", "", line).partition(". ")[0][:300]


# Buckets in GPU memory go by plan on a stream of their own, one for each GPU.


def by_stream(walk: Walk, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """On a stream beside the backward's, which goes on; whoever waits for the future makes its stream wait."""
    stream = stream_of(buffer.device)
    stream.wait_stream(torch.cuda.current_stream(buffer.device))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device])
    with torch.cuda.stream(stream):
        buffer.record_stream(stream)
        walk.run(buffer)
        future.set_result(buffer)
    return future


_streams: dict[torch.device, Any] = {}


def stream_of(device: torch.device) -> Any:
    """The stream of GPU `device` on which plans run."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def done_with(done: torch.futures.Future[Any], result: torch.Tensor) -> torch.Tensor:
    """`result`, or the error of `done`."""
    done.value()
    return result
