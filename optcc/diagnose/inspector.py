"""NCCL Inspector's JSON lines: each collective of a running job, one file for each process.

Fields are those of NCCL's plugins/profiler/inspector, output format v4.0. A collective's time is the least that any of
its ranks saw: the others were waiting for the last one to come. Where a rank's record is missing, that may have been
the last one: the time is then an upper bound, which shows what ports can do at least.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optcc.diagnose.evidence import Evidence, NicDirections, Observation, Sign
from optcc.diagnose.late import late_ranks
from optcc.diagnose.loads import KINDS, RankPlace, loads, parts, use_of
from optcc.diagnose.nccl_tests import LARGE, TREES
from optcc.discover.nccl_log import Log
from optcc.discover.topology import listed
from optcc.errors import InputError

NAMES = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
         "Broadcast": "broadcast", "Reduce": "reduce", "AllToAll": "alltoall"}  # fmt: skip
MOST_OF_ONE = 200
"""Collectives of one communicator, kind and size that count: the last ones."""


@dataclass(frozen=True)
class InspectorRecord:
    """One rank's view of one collective."""

    where: str
    comm: str
    rank: int
    ranks: int
    nodes: int
    host: str
    kind: str
    number: int
    nbytes: int
    seconds: float
    algorithm: str = ""


def looks_like_inspector(text: str) -> bool:
    """Its first record, on one line or on several."""
    return '"coll_perf"' in text or '"p2p_perf"' in text


def read_inspector(files: Sequence[tuple[str, str]], ports: NicDirections) -> Evidence:
    """Of all files together, (source, text) each: ranks are spread over them."""
    records = [record for source, text in files for record in _records(source, text)]
    comms: dict[str, list[InspectorRecord]] = defaultdict(list)
    for record in records:
        comms[record.comm].append(record)
    seen, signs, unused = list[Observation](), list[Sign](), list[str]()
    for comm, of in comms.items():
        found, late, why = _of_comm(of, ports)
        seen += found
        signs += late
        unused += [f"{of[0].where}: communicator {comm[:20]}: {line}" for line in why]
    read = (
        f"NCCL Inspector: {len(records)} records of {len(comms)} communicators in {len(files)} files, {len(seen)} count"
    )
    return Evidence(tuple(seen), tuple(signs), (read,), tuple(unused))


def _of_comm(of: Sequence[InspectorRecord], ports: NicDirections) -> tuple[list[Observation], list[Sign], list[str]]:
    """Its collectives, ranks that come late, and why something does not count."""
    hosts = {record.rank: record.host for record in of}
    ranks, nodes = of[0].ranks, of[0].nodes
    times: dict[tuple[str, int], dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in of:
        if record.nbytes >= LARGE and record.kind in KINDS:
            times[record.kind, record.nbytes][record.number][record.rank] = record.seconds
    signs = _late(times, hosts, of[0].where, ports)
    if nodes < 2:
        return [], signs, ["one server: it uses no NIC"]
    if missing := [rank for rank in range(ranks) if rank not in hosts]:
        shown = listed([str(rank) for rank in missing], 16)
        absent = [f"no records of {len(missing)} of its {ranks} ranks, {shown}: any of them may have come last"]
    else:
        absent = []
    if len(set(hosts.values())) < nodes:
        servers = f"records of {len(set(hosts.values()))} of its {nodes} servers: give those of all"
        return [], signs, [servers, *absent]
    members = _members(hosts, ranks, nodes, of[0].where, ports)
    if members is None:
        unknown = f"{ranks} ranks on {nodes} servers: which GPU is whose is not in the records"
        return [], signs, [unknown, *absent]
    if not times:
        return [], signs, [f"no collective of {LARGE >> 20} MiB or more", *absent]
    servers_of = tuple(dict.fromkeys(member.server for member in members))
    use = use_of(members, Log(), ports)
    tree = all(record.algorithm.replace("_", "").lower() in TREES for record in of)
    seen, partly = list[Observation](), 0
    for (kind, nbytes), each in times.items():
        carried = loads(kind, nbytes, members, use, ports, tree=tree)
        if not carried:
            return [], signs, ["all of its servers are one by the topology's names"]
        for number in sorted(each)[-MOST_OF_ONE:]:
            time_s, least = min(each[number].values()), len(each[number]) < ranks
            partly += least
            used = parts(carried, time_s, ports)
            where = f"{of[0].where}: {kind} number {number}"
            seen.append(Observation(kind, where, used, nbytes=nbytes, time_s=time_s, servers=servers_of, least=least,
                                    root=servers_of[0], run=f"communicator {of[0].comm}"))  # fmt: skip
    if partly and not missing:
        absent = [f"{partly} collectives without the records of all ranks: the missing one may have come last"]
    return seen, signs, absent


def _late(
    times: Mapping[tuple[str, int], Mapping[int, Mapping[int, float]]],
    hosts: Mapping[int, str],
    where: str,
    ports: NicDirections,
) -> list[Sign]:
    """Ranks that come last; nothing is told of collectives of which only one rank's record is there."""
    each = [seconds for numbers in times.values() for seconds in numbers.values() if len(seconds) > 1]
    late = [(one, ports.server(hosts[one.rank])) for one in late_ranks(each)]
    return [Sign(where, str(one), server, None) for one, server in late if server is not None]


def _members(hosts: dict[int, str], ranks: int, nodes: int, where: str, ports: NicDirections) -> list[RankPlace] | None:
    """Ranks by server, where every GPU of every server is one; ranks of a server follow each other, as launchers do."""
    each = ranks // nodes
    known = {rank // each: host for rank, host in sorted(hosts.items())} if each else {}
    if each * nodes != ranks or len(known) < nodes:
        return None
    members = []
    gpus = {server.name: server.gpus for server in ports.cluster.servers}
    for node in range(nodes):
        server = ports.need_server(known[node], where)
        if gpus[server] != each:
            return None
        members += [RankPlace(server, gpu) for gpu in range(each)]
    return members


def _records(source: str, text: str) -> Iterator[InspectorRecord]:
    for where, value in _objects(source, text):
        head, meta, perf = value.get("header"), value.get("metadata"), value.get("coll_perf")
        if not (isinstance(head, dict) and isinstance(meta, dict) and isinstance(perf, dict)):
            continue
        try:
            record = InspectorRecord(
                where,
                str(head["id"])[:80],
                _whole(head["rank"]),
                _whole(head["n_ranks"]),
                _whole(head["nnodes"]),
                str(meta["hostname"])[:255],
                NAMES.get(str(perf["coll"]), ""),
                _whole(perf["coll_sn"]),
                _whole(perf["coll_msg_size_bytes"]),
                _whole(perf["coll_exec_time_us"]) * 1e-6,
                str(perf.get("coll_algo", ""))[:40],
            )
        except (KeyError, ValueError) as error:
            raise InputError(
                "not a record of NCCL Inspector's", where=where, expected="its format v4.0", got=str(error)[:80]
            ) from None
        if record.seconds > 0 and record.rank < record.ranks <= 10**6:
            yield record


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]} for a whole number")
    return value


def _objects(source: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """JSON objects one after the other, a line each or spread over lines."""
    decoder = json.JSONDecoder()
    place, line = 0, 1
    while True:
        start = len(text) - len(text[place:].lstrip()) if place == 0 else _next(text, place)
        if start >= len(text):
            return
        line += text.count("\n", place, start)
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            cut = text.find("\n", start) in (-1, len(text) - 1)
            if cut and start > 0:
                return  # the last record is being written, maybe
            raise InputError("not JSON", where=f"{source}:{line}", expected="a record", got=str(error)[:80]) from None
        if isinstance(value, dict):
            yield f"{source}:{line}", value
        line += text.count("\n", start, end)
        place = end


def _next(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,[]":
        place += 1
    return place


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
