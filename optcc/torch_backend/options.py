"""What a process group of this backend is made with: its options, or the environment where they say nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from optcc.communicator import Communicator, read_cluster
from optcc.errors import InputError
from optcc.values.cluster import Cluster

NAME = "optcc"


@dataclass(frozen=True)
class Options:
    """``pg_options=`` of `init_process_group`: the cluster and transport as of `Communicator`.

    cluster : None: what OPTCC_TOPOLOGY names, if it is set; transport : None: OPTCC_TRANSPORT, or "local"
    reproducible : as of `Communicator`; by default sums are rounded as if nothing had failed
    """

    cluster: Cluster | str | None = None
    transport: str | None = None
    reproducible: bool = True

    _timeout: timedelta | None = None  # torch looks for it
    _communicator: Communicator | None = None  # of those who are left after a rank has failed

    def carrier(self) -> str:
        """The name of the transport."""
        return self.transport or os.environ.get("OPTCC_TRANSPORT", "local")

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
