"""Lists of hosts, Slurm's ``gpu[001-004,007],big-[1-3]x[0,1]`` and mpirun's ``host1:8,host2:8``, to names in order.

A host file of mpirun has a host in each line, or a range of them, with its slots (``host1 slots=8``, ``host1:8``) or
without; a host that comes again has more slots. Slots are not needed here.

ClusterShell's NodeSet expands them. It is maintained by the CEA, reads Slurm's folded ranges of several dimensions, and
is under the LGPL (python-hostlist is under the GPL). It sorts, and its groups can run commands. So each item is
expanded by itself (brackets come out sorted, as Slurm writes them), and groups are off. The size of a range is counted
before it is expanded.
"""

from __future__ import annotations

import re
from collections import Counter

from optcc.errors import InputError

MAX_HOSTS = 65536
"""As many as --servers takes; Slurm's own largest clusters have some 10,000."""

LONGEST = 65536  # characters
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+", re.ASCII)
_SLOTS = re.compile(r":[0-9]{1,6}$|:\*$")
_FILE_LINE = re.compile(
    r"([A-Za-z0-9](?:[\w.-]|\[[0-9,-]+\]){0,254})(?::[0-9]{1,6})?"
    r"(?:\s+(?:(?:max[_-]?)?slots {0,4}= {0,4}[0-9]{1,6}|"
    r"(?!(?:max[_-]?)?slots\b)[a-z][\w-]{0,19} {0,4}= {0,4}[\w,:-]{1,80}))*",
    re.ASCII,
)
_EXAMPLE = "names such as node[001-004,007],login, host1:8,host2:8 or $SLURM_JOB_NODELIST"


def expand_hosts(text: str, where: str = "--hosts") -> list[str]:
    """The names, each once, in the list's order. Raises InputError for what is no list, or too long a one."""
    if len(text) > LONGEST:
        raise InputError(
            "too long a list of hosts", where=where, expected=f"at most {LONGEST} characters", got=len(text)
        )
    if "\n" in text.strip() or re.search(r"\s\w+ ?=", text):
        return _host_file(text, where)
    items = re.split(r",(?![^\[]*\])", text.strip())
    names: list[str] = []
    for item in items:
        _refuse_ipv6(item.strip(), where)
    for item in (_SLOTS.sub("", item.strip()) for item in items):
        if not _ITEM.fullmatch(item.strip()):
            raise InputError("not a list of hosts", where=where, expected=_EXAMPLE, got=item[:80] or text[:80])
        names += _expand(item.strip(), where)
        if len(names) > MAX_HOSTS:
            raise InputError("too many hosts", where=where, expected=f"at most {MAX_HOSTS}", got=len(names))
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InputError("a host twice", where=where, expected="each host once", got=name)
    return names


def _refuse_ipv6(item: str, where: str) -> None:
    if item.count(":") > 1 and re.fullmatch(r"\[?[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]?(?::\d+)?", item):
        hint = "Give the host's name, or its IPv4 address, as logs and tools call it."
        raise InputError("an IPv6 address in a list of hosts", where=where, expected="names", got=item[:80], hint=hint)


def _host_file(text: str, where: str) -> list[str]:
    names: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        _refuse_ipv6(said.split()[0], where)
        if (found := _FILE_LINE.fullmatch(said)) is None:
            expected = "a host in each line, as in host1 slots=8"
            raise InputError("not a list of hosts", where=f"{where}:{number}", expected=expected, got=said[:80])
        names.update(dict.fromkeys(_expand(found[1], f"{where}:{number}")))
    if not names or len(names) > MAX_HOSTS:
        got = f"{len(names)} hosts"
        raise InputError("not a list of hosts", where=where, expected=f"1 to {MAX_HOSTS} hosts", got=got)
    return list(names)


def _expand(item: str, where: str) -> list[str]:
    if "[" not in item:
        return [item]
    size = 1
    for ranges in re.findall(r"\[([0-9,-]+)\]", item):
        size *= sum(_length(part, item, where) for part in ranges.split(","))
        if size > MAX_HOSTS:
            raise InputError("too many hosts", where=where, expected=f"at most {MAX_HOSTS}", got=item[:80])
    try:
        from ClusterShell.NodeSet import NodeSet, NodeSetException
        from ClusterShell.NodeUtils import GroupResolver
    except ImportError:
        raise InputError(
            "needs ClusterShell",
            where=where,
            expected="names without ranges",
            got=item[:80],
            hint="pip install ClusterShell, or expand it: scontrol show hostnames LIST | paste -sd,.",
        ) from None
    try:
        return [str(node) for node in NodeSet(item, resolver=GroupResolver())]
    except NodeSetException as error:
        raise InputError("not a list of hosts", where=where, expected=_EXAMPLE, got=str(error)[:120]) from None


def _length(part: str, item: str, where: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise InputError(
            "not a range", where=where, expected="a number, or first-last", got=f"{part[:40]} in {item[:80]}"
        )
    return int(match[2] or match[1]) - int(match[1]) + 1
