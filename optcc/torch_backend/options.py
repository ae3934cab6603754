"""What a process group of this backend is made with: its options, or the environment where they say nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch

from optcc.communicator import Communicator, read_cluster
from optcc.errors import InputError
from optcc.runtime.control.transports import TRANSPORTS
from optcc.values.cluster import Cluster

NAME = "optcc"


def devices() -> list[str]:
    """Where tensors may be: a device that is not here is none of ours, as torch asks it for memory."""
    return ["cpu", "cuda"] if torch.cuda.device_count() else ["cpu"]


@dataclass(frozen=True)
class Options:
    """``pg_options=`` of `init_process_group`: the cluster and transport as of `Communicator`.

    cluster : None: what OPTCC_TOPOLOGY names, if it is set; transport : None: OPTCC_TRANSPORT, or "local"
    reproducible : as of `Communicator`, at the price of a ring after a loss; None: OPTCC_REPRODUCIBLE, 1 or 0, or False
    """

    cluster: Cluster | str | None = None
    transport: str | None = None
    reproducible: bool | None = None

    _timeout: timedelta | None = None  # torch looks for it
    _communicator: Communicator | None = None  # of those who are left after a rank has failed

    def carrier(self) -> str:
        """The name of the transport. Raises InputError where there is none of that name."""
        where = "transport" if self.transport else "OPTCC_TRANSPORT"
        name = self.transport or os.environ.get("OPTCC_TRANSPORT") or "local"
        if name not in TRANSPORTS:
            raise InputError("no such transport", where=where, expected=" or ".join(TRANSPORTS), got=name)
        return name

    def keeps_plans(self) -> bool:
        """Whether sums are rounded as if nothing had failed. Raises InputError for a variable that says neither."""
        if self.reproducible is not None:
            return self.reproducible
        said = os.environ.get("OPTCC_REPRODUCIBLE") or "0"
        if said not in ("0", "1"):
            raise InputError("neither yes nor no", where="OPTCC_REPRODUCIBLE", expected="1 or 0", got=said)
        return said == "1"

    def cluster_of(self, ranks: Sequence[int], world: int) -> Cluster | None:
        """That of the job's ranks with these numbers; None: nothing is said of it.

        world : ranks of the job. Raises InputError for a description that does not fit.
        """
        given = self.cluster or os.environ.get("OPTCC_TOPOLOGY")
        if given is None:
            return None
        whole = read_cluster(given, world)
        if len(whole.ranks) == len(ranks):
            return whole
        if whole.gpu_ranks:
            raise InputError("not with GPUs as ranks", where="new_group", expected="a cluster of servers as ranks")
        return replace(whole, servers=tuple(whole.servers[rank] for rank in ranks), pristine=None)
