"""A cluster as JSON values, as plans and bounds carry it: rates in bytes per second, as exact text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from optcc.errors import InputError
from optcc.values.cluster import Cluster, Fabric, Server
from optcc.values.json_records import As, Least, read_json, write_json

Servers = Annotated[tuple[Server, ...], Least(1)]


@dataclass(frozen=True)
class ClusterFields:
    """A cluster as files have it.

    gpu_ranks : true: every GPU is a rank; false: every server is one
    cluster : servers as they are now. Ranks are numbered in this order
    pristine : as they were before any failure, where that is known
    """

    fabric: Fabric
    gpu_ranks: bool
    cluster: Servers
    pristine: Servers | None

    @classmethod
    def of(cls, cluster: Cluster) -> ClusterFields:
        """The fields of `cluster`."""
        before = cluster.pristine.servers if cluster.pristine else None
        return cls(cluster.fabric, cluster.gpu_ranks, cluster.servers, before)

    def value(self) -> Cluster:
        """The cluster. Raises InputError where its servers do not make one."""
        now = Cluster(self.cluster, fabric=self.fabric, gpu_ranks=self.gpu_ranks)
        if not self.pristine:
            return now
        if _places(self.pristine) != _places(self.cluster):
            raise InputError(
                "other servers than those of the cluster",
                where="pristine",
                expected="servers, pods, NICs and rails as in cluster, at their rates before any failure",
                got=f"{len(self.pristine)} servers, {self.pristine[0].name} first",
            )
        return replace(now, pristine=replace(now, servers=self.pristine))


def _places(servers: Servers) -> list[tuple[object, ...]]:
    """What a failure leaves as it was."""
    return [(server.name, server.pod, *((nic.name, nic.rail) for nic in server.nics)) for server in servers]


InFile = Annotated[Cluster, As(ClusterFields, ClusterFields.of, ClusterFields.value, flat=True)]
"""The fields stand among those of the file."""


def cluster_out(cluster: Cluster) -> dict[str, Any]:
    """Its fields `fabric`, `gpu_ranks`, `cluster` and `pristine` (docs/plan-format.md)."""
    return write_json(InFile, cluster)  # type: ignore[no-any-return]


def cluster_in(raw: Any) -> Cluster:
    """The cluster of these fields. FieldError or InputError for anything else."""
    return read_json(InFile, raw)  # type: ignore[no-any-return]
