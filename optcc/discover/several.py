"""One cluster of many sources: a file for each host, a folder, a pattern, ``name=FILE``; and texts of many hosts.

Servers go by ``name=``, else by the host that a text names, else by the file's name up to its first dot. NICs get rails
once all servers are there, so that a host which lacks one is seen beside the others.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optcc.cluster import Cluster, Server
from optcc.discover.given import Given
from optcc.discover.parts import Part
from optcc.discover.pasted import by_host, unwrapped
from optcc.discover.rails import Clues
from optcc.discover.readers import Raw, of_parts, part_reader, text_reader
from optcc.discover.sysfs_tree import COPY, sysfs_server
from optcc.discover.topology import Assumption, Topology
from optcc.errors import InputError

MOST_SOURCES = 65536
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,254}")


@dataclass(frozen=True)
class Source:
    """A file, or a folder with a sysfs. `name` : the server's, where it was given or comes from a folder or pattern."""

    path: str
    name: str = ""
    given: bool = False


def expanded(source: str) -> list[Source]:
    """The files that `source` stands for: itself, those of a folder without a sysfs in it, those of a pattern.

    Raises InputError for a folder or a pattern without any.
    """
    name, equals, path = source.partition("=")
    if equals and _NAME.fullmatch(name) and not os.path.exists(source):
        return [Source(path, name, True)]
    if os.path.isdir(source) and not is_tree(source):
        found = sorted(str(path) for path in Path(source).iterdir() if not path.name.startswith("."))
        files = [path for path in found if os.path.isfile(path) or is_tree(path)]
    elif glob.has_magic(source) and not os.path.exists(source):
        files = sorted(glob.glob(source))
    else:
        return [Source(source)]
    if not files or len(files) > MOST_SOURCES:
        raise InputError(
            "no files, or too many",
            where=source,
            expected=f"1 to {MOST_SOURCES} files, one for each host",
            got=len(files),
            hint=f"Or a copy of one server's sysfs. {COPY}",
        )
    return [Source(path, _stem(path)) for path in files]


def is_tree(path: str) -> bool:
    """Whether a folder has a sysfs: class/net or class/infiniband, at its top or in sys/."""
    return any(os.path.isdir(os.path.join(path, sub, "class")) for sub in ("", "sys", *_subfolders(path)))


def _subfolders(path: str) -> list[str]:
    try:
        return [f"{entry.name}/sys" for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        return []


def _stem(path: str) -> str:
    return os.path.basename(path.rstrip("/")).partition(".")[0]


class Sources:
    """Texts and trees of a cluster's hosts, as they are added; `raw` joins them."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}
        self._raws: list[tuple[str, bool, Raw]] = []
        self._taken: list[Assumption] = []
        self._several = False

    def add(self, source: Source, data: bytes | None, documents_only: bool = False) -> None:
        """One more. data : the file's, None for a tree."""
        name = source.name
        self._several |= bool(name)
        if data is None:
            path = source.path
            self._raws.append((name, source.given, lambda given: sysfs_server(path, given)))
            return
        text = data.decode("utf-8", "replace")
        hosts = None if documents_only else by_host(text)
        if hosts is not None:
            self._several = True
            for host, lines in hosts.items():
                self._text(lines, lines.encode(), f"{source.path}: {host}", host, False)
            return
        self._text(text, data, source.path, name, documents_only, source.given)

    def _text(self, text: str, data: bytes, path: str, name: str, documents_only: bool, given: bool = False) -> None:
        reader = None if documents_only else part_reader(text)
        taken: list[str] = []
        if reader is None:
            text, taken = unwrapped(text, path)
            data = text.encode() if taken else data
            reader = None if documents_only else part_reader(text)
        if taken:
            self._taken.append(Assumption(path, f"taken away before it was read: {', '.join(taken)}"))
        if reader is not None:
            for host, part in reader.read(text, path).items():
                self._parts.setdefault(name if given and name else host or name or "server0", []).append(part)
            return
        kind = text_reader(text, path, documents_only)
        self._raws.append((name, given, lambda options: kind.read(text, data, path, options)))

    def raw(self, given: Given) -> tuple[Topology, Clues]:
        """All of them as one cluster. Raises InputError for two servers of one name."""
        read = [(name, said, raw(given)) for name, said, raw in self._raws]
        if self._parts:
            read.append(("", False, of_parts(self._parts, given)))
        if len(read) == 1 and not read[0][0]:
            topology, clues = read[0][2]
            return replace(topology, assumed=(*topology.assumed, *self._taken)), clues
        named = [_named(topology, clues, name) for name, _, (topology, clues) in read]
        servers = [server for topology, _ in named for server in topology.cluster.servers]
        name, count = Counter(server.name for server in servers).most_common(1)[0]
        if count > 1:
            raise InputError(
                "two servers of one name",
                where="the sources",
                expected="each server once",
                got=name,
                hint="Give names: node1=FILE node2=FILE.",
            )
        clusters = [topology.cluster for topology, _ in named]
        if any(cluster.pristine is not None or not cluster.fabric.flat for cluster in clusters):
            expected = "servers on one fabric, without failures"
            raise InputError("a whole cluster among several sources", where="the sources", expected=expected)
        assumed = (a for topology, _ in named for a in topology.assumed)
        lines = (line for topology, _ in named for line in topology.read)
        all_clues = {place: clue for _, clues in named for place, clue in clues.items()}
        whole = Topology(Cluster(tuple(servers)), (*assumed, *self._taken), tuple(lines))
        return whole, all_clues


def _named(topology: Topology, clues: Clues, name: str) -> tuple[Topology, Clues]:
    """The servers by `name`, numbered where there are several; as they are where it is empty."""
    servers = topology.cluster.servers
    if not name:
        return topology, clues
    if not _NAME.fullmatch(name):
        raise InputError("not a server's name", where=name[:80], expected="letters, digits, - and .", got=name[:80])
    new = {server.name: name if len(servers) == 1 else f"{name}-{i}" for i, server in enumerate(servers)}
    renamed: Sequence[Server] = [replace(server, name=new[server.name]) for server in servers]
    moved: Mapping[tuple[str, str], object] = {(new[s], nic): clue for (s, nic), clue in clues.items()}
    cluster = replace(topology.cluster, servers=tuple(renamed))
    own = "server0:"
    lines = tuple(f"{name}:{line[len(own) :]}" if line.startswith(own) else line for line in topology.read)
    return replace(topology, cluster=cluster, read=lines), moved  # type: ignore[return-value]
