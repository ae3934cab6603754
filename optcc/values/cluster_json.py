"""A cluster as JSON values, as plans and bounds carry it: rates in bytes per second, as exact text."""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

from optcc.values.cluster import Cluster, Fabric, Nic, Server
from optcc.values.json_fields import exact, flag, index_or_none, whole


def cluster_out(cluster: Cluster) -> dict[str, Any]:
    """Its fields `fabric`, `gpu_ranks`, `cluster` and `pristine` (docs/plan-format.md)."""
    return {
        "fabric": plain(asdict(cluster.fabric)),
        "gpu_ranks": cluster.gpu_ranks,
        "cluster": _servers_out(cluster),
        "pristine": _servers_out(cluster.pristine) if cluster.pristine else None,
    }


def cluster_in(raw: dict[str, Any]) -> Cluster:
    """The cluster of these fields. InputError, KeyError, TypeError, ValueError and their like for anything else."""
    fabric = Fabric(
        flag(raw["fabric"]["rails"]),
        *(None if raw["fabric"][k] is None else exact(raw["fabric"][k]) for k in ("spine", "pod_oversubscription")),
    )
    now = Cluster(_servers_in(raw["cluster"]), fabric=fabric, gpu_ranks=flag(raw["gpu_ranks"]))
    pristine = replace(now, servers=_servers_in(raw["pristine"])) if raw["pristine"] else None
    return replace(now, pristine=pristine)


def plain(value: Any) -> Any:
    """Dataclass fields as JSON values: exact numbers become strings."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Fraction) else value


def _servers_out(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {
            "name": server.name,
            "gpus": server.gpus,
            "nvlink_rate": str(server.nvlink_rate),
            "pod": server.pod,
            "nics": [
                {"name": n.name, "out": str(n.out_rate), "in": str(n.in_rate), "rail": n.rail, "gpu": n.gpu}
                for n in server.nics
            ],
        }
        for server in cluster.servers
    ]


def _servers_in(raw: list[dict[str, Any]]) -> tuple[Server, ...]:
    return tuple(
        Server(
            name=s["name"],
            nics=tuple(map(_nic_in, s["nics"])),
            gpus=whole(s["gpus"]),
            nvlink_rate=exact(s["nvlink_rate"]),
            pod=s["pod"],
        )
        for s in raw
    )


def _nic_in(raw: dict[str, Any]) -> Nic:
    rail, gpu = index_or_none(raw["rail"]), index_or_none(raw["gpu"])
    return Nic(raw["name"], exact(raw["out"]), exact(raw["in"]), rail, gpu)
