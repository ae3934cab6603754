"""What nccl-tests print (all_reduce_perf and the others), as text or with ``-J`` as JSON: collectives and their times.

A file may hold several tests one after the other, and NCCL's log between their lines, which then tells the NICs in use.
Only large sizes count, where rates and not latencies make the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from optcc.diagnose.evidence import NOTHING, Evidence, NicDirections, Observation, Sign
from optcc.diagnose.late import late_ranks
from optcc.diagnose.loads import KINDS, RankPlace, loads, parts, use_of
from optcc.discover.nccl_log import FLUSHED, RANK, Log, parse_log
from optcc.discover.pasted import dicts, parsed

LARGE = 32 << 20
"""Bytes from which a row counts: at 400 Gb/s 32 MiB take 0.7 ms, a hundred times a hop's latency."""
NEAR_LARGEST = 16
"""Rows count down to this part of the largest size of their table."""
MEASURE = "-b 256M -e 4G -f 2"
_STARTS = re.compile(r"# Collective test starting: (\S{1,80})|# nThread \d")
_NAMES = sorted(KINDS | {"hypercube", "alltoallv"}, key=len, reverse=True)
_NAME = re.compile(rf"(?<![a-z])({'|'.join(_NAMES)})(?![a-z])")
_JSON = re.compile(r'"(?:out_of_place|average_bus_bandwidth|devices)":')
_ALGORITHM = re.compile(
    r"NCCL_ALGO(?:=| set (?:by environment )?to )['\"]?(?:allreduce:)?(\w{1,20})(?![\w,])|"
    r"AllReduce: \d{8,15} Bytes -> Algo (\w{1,20})",
    re.I,
)
"""Set to one algorithm, or, with NCCL_DEBUG_SUBSYS=TUNING, chosen for a large size: a name, or NCCL's number."""
TREES = {"tree", "nvlstree", "0", "5"}
_LOGGED = re.compile(r"NCCL_IB_HCA| NCCL (?:INFO|WARN) |NET/IB|imeout|Process failed")
"""What a test's lines have where there is a log between them."""
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?", re.I)


@dataclass
class Test:
    """One table: `kind` empty where nothing tells it; rows are (line, bytes, seconds, root, wrong results).

    before, step : columns before the first time, and from it to the second; tree : the log says that the algorithm is
    a tree; processes : of each iteration of large sizes, process -> seconds that it saw
    """

    kind: str
    line: int
    hosts: dict[int, tuple[str, int]] = field(default_factory=dict)
    rows: list[tuple[int, int, float, int, int]] = field(default_factory=list)
    before: int | None = None
    step: int = 4
    ratio: float | None = None
    tree: bool = False
    processes: list[dict[int, float]] = field(default_factory=list)


def looks_like_tests(text: str) -> bool:
    """A list of ranks and devices as nccl-tests print it, or their JSON."""
    return _JSON.search(text) is not None or RANK.search(text) is not None


def read_tests(text: str, source: str, ports: NicDirections) -> Evidence:
    """Every large row as an observation. Raises InputError where the hosts are not the topology's."""
    found = list[Evidence]()
    if _JSON.search(text):
        for line, value in parsed(text, source, "what nccl-tests -J writes", "results", "config", "args"):
            log = Log()
            found.append(_evidence(_from_json(value, line, source, log), log, source, ports))
    for start, lines in _parts(text):
        part = "\n".join(lines)
        log = parse_log(part) if _LOGGED.search(part) else Log()
        found.append(_evidence(_from_text(lines, start, source), log, source, ports))
    return Evidence.together(found)


def _parts(text: str) -> Iterator[tuple[int, list[str]]]:
    """(number of its first line, lines) of each test: from its command or heading on, where there are several."""
    start, lines, ranks = 1, list[str](), False
    for number, line in enumerate(text.splitlines(), 1):
        heads = _STARTS.search(line) or line.startswith("# nccl-tests version") or _is_command(line)
        if ranks and heads:
            yield start, lines
            start, lines, ranks = number, [], False
        lines.append(line)
        ranks = ranks or RANK.search(line) is not None
    if ranks:
        yield start, lines


def _is_command(line: str) -> bool:
    """A shell's line that starts one of the programs, as batch jobs echo it."""
    return "_perf" in line and not line.startswith("#") and " NCCL " not in line and _kind_in(line) is not None


def _from_text(lines: Sequence[str], start: int, source: str) -> Test:
    test = Test(_kind_in(PurePath(source).name) or "", start)
    for number, line in enumerate(lines, start):
        if "lgo" in line or "ALGO" in line:
            for algorithm in _ALGORITHM.finditer(line):
                test.tree = (algorithm[1] or algorithm[2]).lower() in TREES
        if starts := _STARTS.search(line):
            test.kind = _kind_in(starts[1] or "") or test.kind
        elif _is_command(line):
            test.kind = _kind_in(line) or test.kind
        elif rank := RANK.search(line):
            test.hosts[int(rank[1])] = (rank[2], int(rank[3]))
        elif line.startswith("#") and " size " in line and " time " in line:
            names = line[1:].split()
            test.before = names.index("time")
            test.step = names.index("time", test.before + 1) - test.before if names.count("time") > 1 else 4
        else:
            _row(test, number, line)
    return test


def _row(test: Test, number: int, line: str) -> None:
    words = line.split()
    if len(words) < 6 or (nbytes := _whole(words[0])) is None or _whole(words[1]) is None:
        return
    before = test.before or 5
    for start in (before, before + test.step):
        cells = words[start : start + 4]
        if len(cells) < 3 or not all(_NUMBER.fullmatch(cell) for cell in cells[:3]):
            continue
        seconds, algbw, busbw = (float(cell) for cell in cells[:3])
        wrong = int(float(cells[3])) if len(cells) > 3 and _NUMBER.fullmatch(cells[3]) else 0
        root = words[before - 1] if before > 4 else "-1"
        if seconds > 0:
            test.rows.append((number, nbytes, seconds * 1e-6, int(root) if root.isdigit() else 0, wrong))
        if algbw > 1:
            test.ratio = busbw / algbw


def _whole(text: str) -> int | None:
    """``1073741824``, ``1G`` or ``1.5GiB`` as bytes, or likewise a count; None for no such number."""
    found = re.fullmatch(r"(\d{1,15}|\d{1,6}\.\d{1,3})(?:([KMGT])i?B?|B)?", text)
    return int(float(found[1]) * 2 ** (10 * (" KMGT".index(found[2] or " ")))) if found else None


def _from_json(value: dict[str, Any], line: int, source: str, log: Log) -> Test:
    command = value.get("args")
    words = " ".join(str(word) for word in command[:200]) if isinstance(command, list) else str(command or "")
    test = Test(_kind_in(words) or _kind_in(PurePath(source).name) or "", line)
    env = value.get("env")
    if isinstance(env, dict) and isinstance(env.get("NCCL_IB_HCA"), str):
        log.hca = env["NCCL_IB_HCA"][:400]
    elif isinstance(env, list):
        given = next((e for e in env if isinstance(e, str) and e.startswith("NCCL_IB_HCA=")), None)
        log.hca = given.partition("=")[2][:400] if given else log.hca
    for device in dicts(_find(value, "devices")):
        rank, host, number = device.get("rank"), device.get("hostname"), device.get("device")
        if isinstance(rank, int) and isinstance(host, str) and isinstance(number, int):
            test.hosts[rank] = (host[:255], number)
    for row in dicts(value.get("results")):
        size = row.get("size")
        root = str(row.get("root", "")).strip()
        for place in ("out_of_place", "in_place"):
            if isinstance(size, int) and size >= LARGE:
                test.processes += _per_process(row.get(f"{place}_per_iter"))
            cell = row.get(place)
            if not isinstance(cell, dict):
                continue
            seconds = cell.get("time")
            if isinstance(size, int) and isinstance(seconds, int | float) and 0 < seconds < 1e15 and size < 10**15:
                wrong = cell.get("nwrong")
                bad = int(wrong) if isinstance(wrong, int | float) and 0 < wrong < 1e15 else 0
                test.rows.append((line, size, seconds * 1e-6, int(root) if root.isdigit() else 0, bad))
    return test


def _per_process(value: Any) -> list[dict[int, float]]:
    """Of each iteration, process -> seconds; empty where the tests were not run with the times of all processes."""
    lists = value.get("per_process_max_times_us") if isinstance(value, dict) else None
    if not isinstance(lists, list) or not all(isinstance(one, list) for one in lists):
        return []
    return [
        {process: us * 1e-6 for process, us in enumerate(times)}
        for times in zip(*lists, strict=False)
        if len(times) > 1 and all(isinstance(us, int | float) and 0 < us < 1e15 for us in times)
    ]


def _find(value: dict[str, Any], key: str) -> Any:
    config = value.get("config")
    return value.get(key) or (config.get(key) if isinstance(config, dict) else None)


def _kind_in(text: str) -> str | None:
    found = _NAME.search(text.replace("-", "_").lower().replace("all_to_all", "alltoall"))
    return found[1] if found else None


def _evidence(test: Test, log: Log, source: str, ports: NicDirections) -> Evidence:
    where = f"{source}:{test.line}"
    if not test.hosts:
        return Evidence(unused=(f"{where}: a test without its list of ranks",))
    members = [RankPlace(ports.need_server(host, where), gpu) for _, (host, gpu) in sorted(test.hosts.items())]
    servers = tuple(dict.fromkeys(member.server for member in members))
    kind = test.kind or _by_ratio(test, len(members))
    who = f"{len(members)} ranks on {len(servers)} servers"
    if len(servers) < 2:
        return Evidence(unused=(f"{source}: {kind or 'a test'} of one server: it uses no NIC",))
    if kind not in KINDS:
        what = f"{kind}, which is not modelled" if kind else "a table that does not say its collective"
        return Evidence(unused=(f"{where}: {what}; nccl-tests 2.17 names it, or give the file its name",))
    use = use_of(members, log, ports)
    nics = len({nic for ways in use.nics.values() for way in ways for nic in way})
    signs = tuple(
        Sign(f"{source}:{line}", f"{kind} gave {wrong} wrong results", servers[0], None, True)
        for line, _, _, _, wrong in test.rows if wrong
    )[:8]  # fmt: skip
    signs += _late(test, members, where)
    if not test.rows:
        return _without_rows(test, kind, log, source, ports, members)
    largest = max(nbytes for _, nbytes, _, _, _ in test.rows)
    kept = [row for row in test.rows if row[1] >= max(LARGE, largest / NEAR_LARGEST)]
    if not kept:
        what = f"{source}: {kind} of {largest} bytes at most, where latency counts: measure with {MEASURE}"
        return Evidence(signs=signs, unused=(what,))
    seen = []
    for line, nbytes, seconds, root, _ in kept:
        used = parts(loads(kind, nbytes, members, use, ports, root, test.tree), seconds, ports)
        if used:
            seen.append(
                Observation(kind, f"{source}:{line}", used, nbytes=nbytes, time_s=seconds, servers=servers,
                            root=members[root % len(members)].server, run=where)
            )  # fmt: skip
    read = f"{source}: {kind}, {who} over {nics} NICs, {len(seen)} measurements"
    return Evidence(tuple(seen), signs, (read,))


def _late(test: Test, members: Sequence[RankPlace], where: str) -> tuple[Sign, ...]:
    """Processes that come late; each has as many ranks as the others, one after the other."""
    processes = max((len(each) for each in test.processes), default=0)
    if not processes or len(members) % processes:
        return ()
    each = len(members) // processes
    found = late_ranks([one for one in test.processes if len(one) == processes])
    return tuple(Sign(where, str(replace(one, rank=one.rank * each)), members[one.rank * each].server) for one in found)


def _by_ratio(test: Test, ranks: int) -> str:
    """AllReduce is the one whose bus bandwidth is nearly twice the other."""
    doubled = 2 * (ranks - 1) / ranks
    return "all_reduce" if ranks > 2 and test.ratio and abs(test.ratio / doubled - 1) < 0.02 else ""


def _without_rows(
    test: Test, kind: str, log: Log, source: str, ports: NicDirections, members: Sequence[RankPlace]
) -> Evidence:
    """A test that did not finish: it failed on one of its ports, where the log names no NIC."""
    named = [f for f in log.failures if f.status != FLUSHED and f.nic]
    if named:
        return Evidence(read=(f"{source}: {kind} failed; the log's errors tell where",))
    if not (log.failures or log.timeouts):
        return Evidence(unused=(f"{source}: {kind} without a row of results, and without an error",))
    use = use_of(members, log, ports)
    used = dict.fromkeys(loads(kind, 1, members, use, ports), NOTHING)
    seen = Observation(kind, f"{source}:{test.line}", used, servers=tuple(dict.fromkeys(m.server for m in members)))
    return Evidence((seen,), (), (f"{source}: {kind} failed on one of {len(used)} ports",))
