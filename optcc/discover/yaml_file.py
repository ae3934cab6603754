"""The project's YAML: a cluster written by hand, with every server its own if need be.

.. code-block:: yaml

    optcc: 1                # version of this format
    fabric:                 # optional; one non-blocking fabric otherwise
      rails: true           # a NIC reaches NICs of its own rail
      spine: 2              # optional; joins the rails, 2 times oversubscribed
      pod_oversubscription: 3/2   # optional; a pod's uplink has 2/3 of its NICs' rates
    servers:
      - name: gpu-a         # optional; server<position> otherwise
        pod: east           # optional; which uplink it is behind
        count: 2            # optional; copies gpu-a-0, gpu-a-1 (server<position> when no name is given)
        gpus: 8             # optional; one per NIC otherwise
        nvlink: 450GB/s     # optional; one GPU's NVLink rate each way
        nics:
          - {name: mlx5_0, rate: 400Gb/s, rail: 0, gpu: 0}      # rail is optional; the position otherwise
          - {name: mlx5_1, out: 400Gb/s, in: 200Gb/s, rail: 1}
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Annotated

import msgspec

from optcc.cluster import Cluster, Fabric, Nic, Server, check_nic_count
from optcc.discover.topology import UNUSED_NIC_RATE, Topology, located
from optcc.discover.yaml_document import YamlDocument
from optcc.errors import InputError
from optcc.units import parse_factor, parse_rate

VERSION = "1"

_Count = Annotated[int, msgspec.Meta(ge=1, le=65536)]


class _Nic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rate: str | None = None
    out: str | None = None
    into: str | None = msgspec.field(name="in", default=None)
    rail: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    gpu: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None


class _Fabric(msgspec.Struct, forbid_unknown_fields=True):
    rails: bool = False
    spine: str | None = None
    pod_oversubscription: str | None = None


class _Server(msgspec.Struct, forbid_unknown_fields=True):
    nics: Annotated[list[_Nic], msgspec.Meta(min_length=1)]
    name: str | None = None
    count: _Count = 1
    gpus: _Count | None = None
    nvlink: str | None = None
    pod: str | None = None

    def names(self, position: int) -> list[str]:
        """The names of the copies, the first of which is server number `position` of the cluster."""
        if self.name is None:
            return [f"server{position + i}" for i in range(self.count)]
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    optcc: str
    servers: Annotated[list[_Server], msgspec.Meta(min_length=1)]
    fabric: _Fabric = msgspec.field(default_factory=_Fabric)


def read_yaml(data: bytes, path: str, nic_rate: Fraction | None) -> Topology:
    """The cluster of a YAML file. Raises InputError naming `path`, line and field, such as ``$.servers[0].nics[1]``."""
    document = YamlDocument(data, path, "topology")
    file = document.decode(_File, marker="optcc", version=VERSION, fields_at=_struct_at)
    check_nic_count(sum(entry.count * len(entry.nics) for entry in file.servers), path)
    notes = []
    servers: list[Server] = []
    for i, entry in enumerate(file.servers):
        at = f"$.servers[{i}]"
        nics = tuple(_nic(nic, rail, f"{at}.nics[{rail}]", document, nic_rate) for rail, nic in enumerate(entry.nics))
        nvlink = Fraction(0) if entry.nvlink is None else parse_rate(entry.nvlink, document.where(f"{at}.nvlink"))
        if entry.gpus is None:
            notes.append(f"{document.where(at)}: no gpus; one GPU per NIC is assumed.")
        names = entry.names(len(servers))
        with located(document.where(at)):
            first = Server(names[0], nics, entry.gpus or len(nics), nvlink, entry.pod)
            servers.extend(replace(first, name=name) for name in names)
    if nic_rate:
        unrated = sum(nic.rate is None and nic.out is None for entry in file.servers for nic in entry.nics)
        filled = f"{path}: the rate given with --nic-rate is taken for the NICs without one ({unrated} of them)."
        notes.append(filled if unrated else UNUSED_NIC_RATE)
    with located(path):
        return Topology(Cluster(tuple(servers), fabric=_fabric(file.fabric, document)), tuple(notes))


def _struct_at(place: str) -> type[msgspec.Struct]:
    return _Fabric if place.startswith("$.fabric") else (_File, _Server, _Nic)[min(place.count("["), 2)]


def _fabric(entry: _Fabric, document: YamlDocument) -> Fabric:
    given = {"spine": entry.spine, "pod_oversubscription": entry.pod_oversubscription}
    factors = {k: parse_factor(v, document.where(f"$.fabric.{k}")) for k, v in given.items() if v is not None}
    return Fabric(rails=entry.rails, **factors)


def _nic(entry: _Nic, position: int, at: str, document: YamlDocument, nic_rate: Fraction | None) -> Nic:
    given = {
        key: text for key, text in (("rate", entry.rate), ("out", entry.out), ("in", entry.into)) if text is not None
    }
    rates = {key: parse_rate(text, document.where(f"{at}.{key}")) for key, text in given.items()}
    if not rates and nic_rate:
        rates = {"rate": nic_rate}
    if rates.keys() not in ({"rate"}, {"out", "in"}):
        raise InputError(
            "not the rate of a NIC",
            where=document.where(at),
            expected="rate, or out and in",
            got=" and ".join(rates) or "neither",
            hint=None if rates else "Write it there, or give it for all such NICs with --nic-rate 400Gb/s.",
        )
    out, into = (rates["rate"], rates["rate"]) if "rate" in rates else (rates["out"], rates["in"])
    with located(document.where(at)):
        return Nic(entry.name, out, into, position if entry.rail is None else entry.rail, entry.gpu)
