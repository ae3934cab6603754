"""Presets: a cluster in one argument, ``uniform:servers=8,nics=8,rate=400Gb/s,gpus=8,nvlink=450GB/s``.

servers and rate are needed; nics is 1, gpus one per NIC and nvlink 0 otherwise. The fabric does not block unless an
option says so. fabric=rails: a NIC reaches its own rail; spine=F: rails joined, F times oversubscribed; pods=N with
pod_oversubscription=F: equal blocks of servers, each behind an uplink.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from optcc.discover.topology import UNUSED_NIC_RATE, Assumption, Topology, located
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Fabric
from optcc.values.units import parse_factor, parse_rate

PREFIX = "uniform:"
_KEYS = ("servers", "nics", "rate", "gpus", "nvlink", "fabric", "spine", "pods", "pod_oversubscription")


def read_preset(text: str, nic_rate: Fraction | None) -> Topology:
    """The uniform cluster of `text`. Raises InputError naming the key that is wrong, missing or given twice."""
    values = _items(text)
    rate = parse_rate(values["rate"], f"{PREFIX}rate") if "rate" in values else nic_rate
    if rate is None or "servers" not in values:
        hint = f"For example {PREFIX}servers=8,nics=8,rate=400Gb/s."
        raise InputError("key missing", where=text[:200], expected="servers= and rate=", hint=hint)
    with located(PREFIX.rstrip(":")):
        cluster = Cluster.uniform(
            servers=_count(values["servers"], "servers"),
            nics=_count(values.get("nics", "1"), "nics"),
            rate=rate,
            gpus=_count(values["gpus"], "gpus") if "gpus" in values else None,
            nvlink_rate=parse_rate(values["nvlink"], "nvlink") if "nvlink" in values else 0,
        )
        cluster = replace(_in_pods(cluster, values), fabric=_fabric(values))
    return Topology(cluster, (Assumption("", UNUSED_NIC_RATE),) if nic_rate and "rate" in values else ())


def _fabric(values: dict[str, str]) -> Fabric:
    kind = values.get("fabric", "flat")
    if kind not in ("flat", "rails"):
        raise InputError("unknown fabric", where="fabric", expected="flat or rails", got=kind[:40])
    factors = {key: parse_factor(values[key], key) for key in ("spine", "pod_oversubscription") if key in values}
    return Fabric(rails=kind == "rails", **factors)


def _in_pods(cluster: Cluster, values: dict[str, str]) -> Cluster:
    if ("pods" in values) != ("pod_oversubscription" in values):
        raise InputError(
            "half a description of pods", where="pods", expected="pods= and pod_oversubscription= together"
        )
    if "pods" not in values:
        return cluster
    pods, servers = _count(values["pods"], "pods"), len(cluster.servers)
    if not 1 <= pods <= servers or servers % pods:
        raise InputError("servers do not fill the pods", where="pods", expected=f"a divisor of {servers}", got=pods)
    dealt = (replace(s, pod=str(i * pods // servers)) for i, s in enumerate(cluster.servers))
    return replace(cluster, servers=tuple(dealt))


def _items(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in text.removeprefix(PREFIX).split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in _KEYS:
            expected = f"KEY=VALUE with a key of {', '.join(_KEYS)}"
            raise InputError("not a preset's item", where=text[:200], expected=expected, got=item[:40])
        if key in values:
            raise InputError("key given twice", where=text[:200], expected=f"one {key}=", got=item[:40])
        values[key] = value
    return values


def _count(text: str, key: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise InputError("not a number", where=key, expected="a whole number from 1", got=text[:40])
    return int(text)
