"""What this machine lets a run have, asked before anything is made: memory and file descriptors."""

from __future__ import annotations

import os
import resource
from pathlib import Path, PurePosixPath

from optcc.errors import InputError
from optcc.runtime.errors import TransportError

# Memory that can be had on this machine, and within the limits (cgroups) that containers and batch systems set.

_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files of a memory cgroup: its limit, what is used; and in memory.stat, page cache that gives way."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """The least of what the kernel and every cgroup of this process have left; None: neither says (not Linux)."""
    left = [_of_machine(root), *(_of_cgroup(folder, names) for folder, names in _cgroups(root))]
    return min((nbytes for nbytes in left if nbytes is not None), default=None)


def _of_machine(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroups(root: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """The memory cgroup of this process and those around it (cgroups(7)), of version 2 or 1."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            top, names = (root / "sys/fs/cgroup", _V2) if number == "0" else (root / "sys/fs/cgroup/memory", _V1)
            inner = PurePosixPath(path.lstrip("/"))
            found += [(top / each, names) for each in (inner, *inner.parents)]
    return found


def _of_cgroup(folder: Path, names: tuple[str, str, str]) -> int | None:
    limit, used, cache = names
    try:
        stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
        return max(0, int(_text(folder / limit)) - int(_text(folder / used)) + int(stat.get(cache, 0)))
    except ValueError:  # "max": no limit; or no such files here
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


# File descriptors of a run: how many its connections take, asked of the system before any of them is made.

SPARE = 16
"""Beside connections: standard streams, control channel, epolls, a listener, what an import or a start opens for a
moment. A rank has 11 of them open at once, the hub 8; the rest is for what other versions of Python may open."""


def check_descriptors(attached: int) -> None:
    """Raise InputError unless this process may have what its hub needs.

    attached : ranks whose control connection ends here. The soft limit, which children inherit, is raised if necessary
    """
    count = _open_now() + attached + SPARE
    limit = raise_limit(count)
    if limit < count:
        raise InputError(
            "too few file descriptors for the process that commands the ranks",
            where="ulimit -n",
            expected=f"{count} or more",
            got=limit,
            hint="Raise the limit (ulimit -Hn is the most that can be had), or run fewer servers.",
        )


def provide(connections: int) -> None:
    """For a rank, before it opens so many connections: raises TransportError unless it may."""
    count = _open_now() + connections + SPARE
    limit = raise_limit(count)
    if limit < count:
        raise TransportError(f"too few file descriptors: {count} are needed, {limit} may be had (ulimit -n)")


def raise_limit(count: int) -> int:
    """How many descriptors this process may have open; the soft limit is raised to the hard one if `count` are more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS says unlimited and has another limit below
            return soft
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else count


def _open_now() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return SPARE
