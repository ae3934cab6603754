"""Memory that can be had on this machine, and within the limits (cgroups) that containers and batch systems set."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

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
