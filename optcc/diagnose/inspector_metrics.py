"""NCCL Inspector's metrics for Prometheus (``nccl_inspector_metrics_*.prom``, a file for each GPU), or what Prometheus
keeps of them: the mean bus bandwidth of each GPU's collectives by communicator, kind and range of sizes.

Labels are those of NCCL's plugins/profiler/inspector, formats v4 and v5. Of a collective's GPUs the fastest counts: the
others were waiting for the last one to come.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from optcc.diagnose.evidence import Evidence, Observation
from optcc.diagnose.inspector import NAMES
from optcc.diagnose.loads import RankPlace, loads, parts
from optcc.diagnose.nccl_tests import LARGE
from optcc.diagnose.nccl_use import use_of
from optcc.diagnose.ports import NicDirections
from optcc.discover.nccl_log import Log

_LINE = re.compile(r"^\s*nccl_bus_bandwidth_gbs\{([^}\n]{1,2000})\}\s+([0-9.eE+-]{1,30})", re.M)
_LABEL = re.compile(r'(\w{1,40})="([^"\n]{0,255})"')
_SIZE = re.compile(r"(\d{1,4})-\d{1,4}([KMGT]?)B")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_CARRIED = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1}
"""Kinds whose bus bandwidth is this many times (n - 1) / n of their bytes per second; of others it is the rate."""


def looks_like_metrics(text: str) -> bool:
    """Its first metric."""
    return _LINE.search(text) is not None


def read_metrics(files: Sequence[tuple[str, str]], ports: NicDirections) -> Evidence:
    """Of all files together, (source, text) each: GPUs are spread over them."""
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    where: dict[tuple[str, ...], str] = {}
    for source, text in files:
        for match in _LINE.finditer(text):
            labels = dict(_LABEL.findall(match[1]))
            key = tuple(labels.get(name, "") for name in ("comm_name", "n_nodes", "nranks", "collective",
                                                          "message_size", "algo_proto"))  # fmt: skip
            node = labels.get("node") or labels.get("hostname") or labels.get("instance", "").partition(":")[0]
            try:
                rate = float(match[2]) * 1e9
            except ValueError:
                continue
            if 0 < rate < 1e15:
                where.setdefault(key, f"{source}:{text.count(chr(10), 0, match.start()) + 1}")
                found[key][node] = max(rate, found[key].get(node, 0.0))
    seen, unused = list[Observation](), list[str]()
    for key, nodes in found.items():
        one = _observed(key, nodes, where[key], ports)
        if isinstance(one, Observation):
            seen.append(one)
        else:
            unused.append(f"{where[key]}: {key[3]} of {key[4]}: {one}")
    read = f"NCCL Inspector's metrics: {len(found)} collectives in {len(files)} files, {len(seen)} count"
    return Evidence(tuple(seen), (), (read,), tuple(unused[:8]))


def _observed(key: tuple[str, ...], nodes: dict[str, float], where: str, ports: NicDirections) -> Observation | str:
    """The measurement, or why it is none."""
    _, n_nodes, n_ranks, collective, size, _ = key
    kind, bytes_of = NAMES.get(collective, ""), _SIZE.fullmatch(size)
    if not (n_nodes.isdecimal() and n_ranks.isdecimal() and kind and bytes_of):
        return "not modelled"
    ranks, nbytes = int(n_ranks), int(bytes_of[1]) * _UNITS[bytes_of[2]]
    if int(n_nodes) < 2:
        return "one server: it uses no NIC"
    if nbytes < LARGE:
        return f"less than {LARGE >> 20} MiB"
    if len(nodes) != int(n_nodes):
        return f"metrics of {len(nodes)} servers, and {n_nodes} take part: give those of all, of one communicator"
    servers = [ports.need_server(node, where) for node in nodes]
    order = [server.name for server in ports.cluster.servers if server.name in servers]
    each, left = divmod(ranks, len(order))
    if left or any(ports.by_name[server].gpus != each for server in order):
        return f"{ranks} ranks on {len(order)} servers: which GPU is whose is not told"
    members = [RankPlace(server, gpu) for server in order for gpu in range(each)]
    factor = _CARRIED[kind] * (ranks - 1) / ranks if kind in _CARRIED else 1.0
    seconds = nbytes * factor / max(nodes.values())
    used = parts(loads(kind, nbytes, members, use_of(members, Log(), ports), ports), seconds, ports)
    if not used:
        return "it uses no NIC"
    return Observation(kind, where, used, nbytes=nbytes, time_s=seconds, servers=tuple(order), root=order[0])
