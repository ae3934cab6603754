"""What each rank's link carries, measured: pairs of ranks exchange a few megabytes both ways, all pairs at once.

A pair measures the slower of its two links. Over a few rounds with different partners a rank's best pair is about its
own link, if not all its partners are as slow.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from optcc.runtime.torch.walk import lost_with

PROBE_BYTES = 4 * 2**20
ROUNDS = 3
"""Partners. Two slow ranks can meet in one of three rounds, and with few slow ranks not in all."""
LEAST_S = 0.01
"""What takes less says more about the start than about the link."""
MOST_BYTES = 256 * 2**20
_READY, _DATA, _TIME = (2**30 + i for i in range(3))
"""Tags above those of any plan's transfers."""


def partners(ranks: int, rank: int, rounds: int = ROUNDS) -> list[int | None]:
    """Whom `rank` meets in each round of a round-robin tournament (circle method); None: it sits out."""
    even = ranks + ranks % 2
    met = []
    for turn in range(min(rounds, even - 1)):
        # The last seat stays, the others turn: seats i and j meet where i + j = turn (mod even - 1).
        seat = even - 1
        other = (
            (turn - rank) % (even - 1) if rank != seat else next(i for i in range(seat) if (2 * i - turn) % seat == 0)
        )
        if other == rank:
            other = seat
        met.append(other if other < ranks else None)
    return met


def probe(group: dist.ProcessGroup, device: torch.device, nbytes: int = PROBE_BYTES, rounds: int = ROUNDS) -> float:
    """Bytes per second of this rank's link, the slower of its two ways. Collective; seconds, as long as the bytes take.

    A pair that needs less than `LEAST_S` for `nbytes` takes four times as many, up to `MOST_BYTES`.
    0.0 for a rank that met nobody (one rank in the group). Raises PeerLostError.
    """
    best = 0.0
    peers = dist.get_process_group_ranks(group)
    for partner in partners(dist.get_world_size(group), dist.get_rank(group), rounds):
        size, took = nbytes, 0.0
        while partner is not None:
            with lost_with(partner):
                took = _seconds(size, peers[partner], group, device)
            if took >= LEAST_S or 4 * size > MOST_BYTES:  # both know the same `took`
                best = max(best, size / took)
                break
            size *= 4
    return best


def _seconds(nbytes: int, peer: int, group: dist.ProcessGroup, device: torch.device) -> float:
    """How long `nbytes` take, both ways at once, from when both ends are ready: the longer time of the two ends'."""
    out = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    into = torch.empty_like(out)
    # Gloo announces a posted receive on the connection that also carries data. If it were posted after the data in the
    # other direction had begun to flow, the two directions would take turns. NCCL wants both in one group.
    landing = dist.irecv(into, peer, group, _DATA) if device.type == "cpu" else None
    _exchange(out[:1], torch.empty_like(out[:1]), peer, group, _READY)
    start = time.perf_counter()
    if landing is None:
        _exchange(out, into, peer, group, _DATA)
    else:
        leaving = dist.isend(out, peer, group, _DATA)
        landing.wait()
        leaving.wait()
    mine = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
    theirs = torch.empty_like(mine)
    _exchange(mine, theirs, peer, group, _TIME)
    longer: float = max(mine.item(), theirs.item())
    return longer


def _exchange(out: torch.Tensor, into: torch.Tensor, peer: int, group: dist.ProcessGroup, tag: int) -> None:
    """Send and receive at once; done on return, on a GPU too."""
    ops = [dist.P2POp(dist.isend, out, peer, group, tag), dist.P2POp(dist.irecv, into, peer, group, tag)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if out.device.type == "cuda":
        torch.cuda.synchronize(out.device)
