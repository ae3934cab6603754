"""Process groups beside the model's: one more like it, and the end of one's connections."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def groups_here() -> int:
    """How many process groups this rank is in."""
    return len(dist.distributed_c10d._world.pg_names)


def group_like(group: dist.ProcessGroup, most: int, **options: Any) -> dist.ProcessGroup:
    """Another group of the ranks of `group`, of which the ranks outside know nothing.

    torch derives its name from how many groups a rank is in, and ranks with different names wait for each other in
    vain. So a rank in fewer than `most` makes up for it with groups of its own.
    """
    backend = dist.get_backend(group)
    for _ in range(most - groups_here()):
        dist.new_group([dist.get_rank()], backend=backend, use_local_synchronization=True)
    ranks = dist.get_process_group_ranks(group)
    made: dist.ProcessGroup = dist.new_group(ranks, backend=backend, use_local_synchronization=True, **options)
    return made


def all_are_here(group: dist.ProcessGroup, device: torch.device) -> None:
    """Returns when all ranks have called it."""
    dist.all_reduce(here := torch.zeros(1, device=device), group=group)
    here.item()


def hang_up(group: dist.ProcessGroup) -> None:
    """Close this rank's connections, so that peers that wait for it fail now and not when their time is up.

    Gloo has no call for that, but a wait whose time is up closes all connections of its group. With a peer whose
    connection is closed already there is no wait, so all are tried.
    """
    if "gloo" not in dist.get_backend_config(group):
        return
    for peer in dist.get_process_group_ranks(group):
        if peer != dist.get_rank():
            with suppress(RuntimeError):
                dist.irecv(torch.empty(1), peer, group, 2**30 - 1).wait(timedelta(milliseconds=1))
