"""Topologies as they are pasted or logged: in a Markdown fence, quoted, with colours, or with a prefix on every line.

What is the same on every line is taken away, with a note. What is on some lines only, or names several hosts, is
refused: which lines belong together would be a guess.
"""

from __future__ import annotations

import re

from optcc.discover.hostlist import expand_hosts
from optcc.errors import InputError

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_QUOTE = re.compile(r"\s{0,3}> ?")
_TIME = re.compile(r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9:]{4,5})?\]?:?(?: |$)")
_CLOCK = re.compile(r"\[?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?\]?:?(?: |$)")
_SYSLOG = re.compile(r"[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [\w.-]{1,64} [\w./-]{1,64}(?:\[[0-9]{1,9}\])?:(?: |$)")
_NCCL = re.compile(r"[\w.-]{1,64}:[0-9]{1,9}(?::[0-9]{1,9})? \[[0-9]{1,4}\] NCCL [A-Z]{4,8}(?: |$)")
_MPI = re.compile(r"\[[0-9]{1,9},[0-9]{1,9}\]<std(?:out|err)>: ?")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,63}):(?: |$)")  # pdsh, clush, srun --label
_RULE = re.compile(r"-{8,32}")  # above and below the hosts' names: dshbak, clush -b
_ANSIBLE = re.compile(r"([A-Za-z0-9][\w.-]{0,254}) \| (?:SUCCESS|CHANGED) \| rc=0 >>")
_COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,63}) {1,40}\| ?")

_PREFIXES = (
    ("a quote's >", _QUOTE),
    ("a time", _TIME),
    ("a time", _CLOCK),
    ("syslog's prefix", _SYSLOG),
    ("NCCL's log prefix", _NCCL),
    ("mpirun's tag", _MPI),
    ("a host's name", _HOST),
    ("a container's name", _COMPOSE),
)
_DEEPEST = 4  # such as a quoted log with times and hosts
_ONE_HOST = "Give one file for each host, such as: grep '^node1:' all.txt > node1.txt."


def unwrapped(text: str, path: str) -> tuple[str, list[str]]:
    """The text inside, and what was taken away. Raises InputError where that is not the same on all lines."""
    taken: list[str] = []
    text = without_colours(text)
    lines = text.splitlines()
    for _ in range(_DEEPEST):
        lines = _unfenced(lines, path, taken)
        if not any(line.strip() for line in lines) or _starts(lines):
            break
        for name, prefix in _PREFIXES:
            shorter = _without(lines, name, prefix, path)
            if shorter is not None:
                lines = shorter
                taken.append(name)
                break
        else:
            break
    return ("\n".join(lines) + "\n" if taken else text), taken


def by_host(text: str) -> dict[str, str] | None:
    """Host -> its lines, of a text in which several hosts speak; None where that is not so.

    As pdsh, clush and srun --label print it, each line begins with its host; dshbak and ``clush -b`` put hosts with the
    same output above it, and Ansible each host. Of one host's lines `unwrapped` takes the name away. Raises InputError
    for a list of hosts that cannot be read.
    """
    lines = without_colours(text).splitlines()
    hosts = _by_heading(lines) or _by_prefix([line for line in lines if line.strip()])
    return None if hosts is None else {host: "\n".join(own) + "\n" for host, own in hosts.items()}


def _by_prefix(lines: list[str]) -> dict[str, list[str]] | None:
    if len(lines) < 2 or _starts(lines) or not all(_HOST.match(line) for line in lines):
        return None
    hosts: dict[str, list[str]] = {}
    for line in lines:
        if match := _HOST.match(line):
            hosts.setdefault(match[1], []).append(line[match.end() :])
    return hosts if len(hosts) > 1 and 2 * len(hosts) <= len(lines) else None


def _by_heading(lines: list[str]) -> dict[str, list[str]] | None:
    """The first line that is not empty is a heading, or the text has none."""
    hosts: dict[str, list[str]] = {}
    current: list[str] = []
    i = next((i for i, line in enumerate(lines) if line.strip()), len(lines))
    while i < len(lines):
        ansible = _ANSIBLE.fullmatch(lines[i])
        ruled = i + 2 < len(lines) and _RULE.fullmatch(lines[i]) and _RULE.fullmatch(lines[i + 2])
        if ansible or ruled:
            current = []
            for host in [ansible[1]] if ansible else expand_hosts(lines[i + 1].strip()):
                hosts.setdefault(host, current)
            i += 1 if ansible else 3
            continue
        if not hosts:
            return None
        current.append(lines[i])
        i += 1
    return hosts or None


def without_colours(text: str) -> str:
    """Without a terminal's codes: nvidia-smi underlines the header of its matrix."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def _starts(lines: list[str]) -> bool:
    """Whether it is XML or YAML as it is."""
    first = next(line.strip() for line in lines if line.strip())
    return first.startswith(("<", "optcc:", "{", "#", "---", "%"))


def _unfenced(lines: list[str], path: str, taken: list[str]) -> list[str]:
    fences = [i for i, line in enumerate(lines) if _FENCE.match(line)]
    if not fences:
        return lines
    if len(fences) != 2:
        raise InputError(
            "Markdown fences around more or less than one text",
            where=f"{path}:{fences[0] + 1}",
            expected="one text between two lines of ```",
            got=f"{len(fences)} such lines",
            hint="Save the one block that is the topology.",
        )
    taken.append("a Markdown fence")
    return lines[fences[0] + 1 : fences[1]]


def _without(lines: list[str], name: str, prefix: re.Pattern[str], path: str) -> list[str] | None:
    """The lines without the prefix; None where they have none."""
    written = [(i, line) for i, line in enumerate(lines) if line.strip()]
    found = [(i, match) for i, line in written if (match := prefix.match(line))]
    hosts = sorted({match[1] for _, match in found}) if prefix.groups else []
    # Hosts are before many lines each; names in a legend or in YAML before one.
    if len(written) < 2 or 2 * len(found) < len(written) or len(found) < 2 * len(hosts):
        return None
    if len(found) < len(written):
        bare = next(i for i, line in written if not prefix.match(line))
        raise InputError(
            f"{name} before some lines, but not all",
            where=f"{path}:{bare + 1}",
            expected="all lines alike",
            got=lines[bare].strip()[:60],
            hint="Take the prefixes away, or what is not part of the topology.",
        )
    if len(hosts) > 1:
        got = ", ".join(hosts[:8])
        raise InputError("lines of several hosts", where=path, expected="one host", got=got, hint=_ONE_HOST)
    return [prefix.sub("", line, count=1) for line in lines]
