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
          - {name: mlx5_0, rate: 400Gb/s, rail: 0, gpu: 0}      # rail is optional; see `rails`
          - {name: mlx5_1, out: 400Gb/s, in: 200Gb/s, rail: 1}
          - {name: mlx5_2, rate: 388Gb/s, nameplate: 400Gb/s, spread: 0.8%}     # as `optcc calibrate` writes it
    measured:               # optional; how such rates came about
      date: 2026-11-20
      transport: verbs      # or local: emulated NICs
      path: python          # optional; what handled chunks, python or compiled
      alpha: 3.1us          # optional; latency from NIC to NIC
      per_chunk: 0.4us      # optional; what a port spends on each chunk beside its bytes
      spread: 1.1%          # optional; between repeated measurements of a NIC, the median over NICs
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Annotated

import msgspec

from optcc.discover.given import Given
from optcc.discover.rails import Clue, numbered
from optcc.discover.topology import UNUSED_NIC_RATE, Assumed, Measured, Topology, located
from optcc.discover.yaml_document import YamlDocument
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Fabric, Nic, Server, check_nic_count
from optcc.values.units import parse_factor, parse_rate, parse_seconds

VERSION = "1"

_Count = Annotated[int, msgspec.Meta(ge=1, le=65536)]


class _Nic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rate: str | None = None
    out: str | None = None
    into: str | None = msgspec.field(name="in", default=None)
    rail: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    gpu: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    nameplate: str | None = None
    spread: str | None = None


class _Fabric(msgspec.Struct, forbid_unknown_fields=True):
    rails: bool = False
    spine: str | None = None
    pod_oversubscription: str | None = None


class _Measured(msgspec.Struct, forbid_unknown_fields=True):
    date: str
    transport: str
    path: str = ""
    alpha: str | None = None
    per_chunk: str | None = None
    spread: str | None = None


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
    measured: _Measured | None = None


def read_yaml(data: bytes, path: str, given: Given) -> Topology:
    """The cluster of a YAML file. Raises InputError naming `path`, line and field, such as ``$.servers[0].nics[1]``."""
    document = YamlDocument(data, path, "topology")
    file = document.decode(_File, marker="optcc", version=VERSION, fields_at=_struct_at)
    check_nic_count(sum(entry.count * len(entry.nics) for entry in file.servers), path)
    assumed = Assumed()
    nic_rate = given.nic_rate
    servers: list[Server] = []
    for i, entry in enumerate(file.servers):
        at = f"$.servers[{i}]"
        nics = tuple(_nic(nic, f"{at}.nics[{n}]", document, given) for n, nic in enumerate(entry.nics))
        nvlink = Fraction(0) if entry.nvlink is None else parse_rate(entry.nvlink, document.where(f"{at}.nvlink"))
        if entry.gpus is None:
            assumed.add(document.where(at), "no gpus; one GPU per NIC is assumed", "gpus: in the file")
        names = entry.names(len(servers))
        with located(document.where(at)):
            first = Server(names[0], nics, entry.gpus or len(nics), nvlink, entry.pod)
            servers.extend(replace(first, name=name) for name in names)
    if nic_rate:
        unrated = sum(nic.rate is None and nic.out is None for entry in file.servers for nic in entry.nics)
        filled = f"the rate given with --nic-rate is taken for the NICs without one ({unrated} of them)"
        assumed.add(*((path, filled) if unrated else ("", UNUSED_NIC_RATE)))
    with located(path):
        cluster = Cluster(tuple(servers), fabric=_fabric(file.fabric, document))
    nameplate = _nameplates(file, cluster, document)
    cluster = replace(cluster, pristine=_healthy(cluster, nameplate))
    topology = Topology(cluster, assumed.all(), measured=_measured(file, nameplate, document))
    beside = {(s.name, n.name): Clue((n.gpu,)) for s in servers for n in s.nics if n.rail is None and n.gpu is not None}
    found = numbered(topology, beside)
    return found if cluster.fabric.rails else replace(found, assumed=topology.assumed)  # else they do not matter


def _struct_at(place: str) -> type[msgspec.Struct]:
    if place.startswith("$.measured"):
        return _Measured
    return _Fabric if place.startswith("$.fabric") else (_File, _Server, _Nic)[min(place.count("["), 2)]


def _fabric(entry: _Fabric, document: YamlDocument) -> Fabric:
    given = {"spine": entry.spine, "pod_oversubscription": entry.pod_oversubscription}
    factors = {k: parse_factor(v, document.where(f"$.fabric.{k}")) for k, v in given.items() if v is not None}
    return Fabric(rails=entry.rails, **factors)


def _nameplates(file: _File, cluster: Cluster, document: YamlDocument) -> dict[str, Fraction]:
    """By SERVER/NIC, bytes per second, of the NICs that have a nameplate beside their rate."""
    servers = iter(cluster.servers)
    found: dict[str, Fraction] = {}
    for i, entry in enumerate(file.servers):
        for server in (next(servers) for _ in range(entry.count)):
            for n, nic in enumerate(entry.nics):
                place = f"$.servers[{i}].nics[{n}]"
                if nic.spread is not None:
                    _percent(nic.spread, document.where(f"{place}.spread"))
                if nic.nameplate is not None:
                    rate = parse_rate(nic.nameplate, document.where(f"{place}.nameplate"))
                    found[f"{server.name}/{nic.name}"] = rate
    return found


def _healthy(cluster: Cluster, nameplate: dict[str, Fraction]) -> Cluster | None:
    """The cluster with every NIC as fast as the fastest of the same nameplate; None where it is so anyway.

    What a nameplate promises nobody gets, for headers and flow control; what another NIC of its kind gets, can be had.
    """
    best: dict[Fraction, Fraction] = {}
    for server in cluster.servers:
        for nic in server.nics:
            if plate := nameplate.get(f"{server.name}/{nic.name}"):
                best[plate] = max(best.get(plate, Fraction(0)), nic.out_rate, nic.in_rate)
    servers = []
    for server in cluster.servers:
        nics = []
        for nic in server.nics:
            rate = best.get(nameplate.get(f"{server.name}/{nic.name}", Fraction(0)))
            nics.append(nic if rate is None else replace(nic, out_rate=rate, in_rate=rate))
        servers.append(replace(server, nics=tuple(nics)))
    healthy = replace(cluster, servers=tuple(servers))
    return None if healthy == cluster else healthy


def _measured(file: _File, nameplate: dict[str, Fraction], document: YamlDocument) -> Measured | None:
    """How the rates were measured, if they were."""
    at = "$.measured"
    how = file.measured
    if how is None:
        return None
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", how.date):
        raise InputError("not a date", where=document.where(f"{at}.date"), expected="YYYY-MM-DD", got=how.date[:40])
    if how.transport not in ("local", "verbs"):
        where = document.where(f"{at}.transport")
        raise InputError("not a transport", where=where, expected="local or verbs", got=how.transport[:40])
    if how.path not in ("", "python", "compiled"):
        where = document.where(f"{at}.path")
        raise InputError("not a path of chunks", where=where, expected="python or compiled", got=how.path[:40])
    times = {"alpha": how.alpha, "per_chunk": how.per_chunk}
    seconds = {k: None if v is None else parse_seconds(v, document.where(f"{at}.{k}")) for k, v in times.items()}
    spread = Fraction(0) if how.spread is None else _percent(how.spread, document.where(f"{at}.spread"))
    return Measured(how.date, how.transport, seconds["alpha"], seconds["per_chunk"], spread, nameplate, how.path)


def _percent(text: str, where: str) -> Fraction:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?%", text):
        raise InputError("not a percentage", where=where, expected="such as 0.8%", got=text[:40])
    return Fraction(text[:-1]) / 100


def _nic(entry: _Nic, at: str, document: YamlDocument, asked: Given) -> Nic:
    given = {
        key: text for key, text in (("rate", entry.rate), ("out", entry.out), ("in", entry.into)) if text is not None
    }
    rates = {key: parse_rate(text, document.where(f"{at}.{key}")) for key, text in given.items()}
    if not rates and (filled := asked.rate_of(entry.name) or asked.nic_rate):
        rates = {"rate": filled}
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
        return Nic(entry.name, out, into, entry.rail, entry.gpu)
