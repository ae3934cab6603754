"""One cluster of many sources, and of texts in which several hosts speak.

Sources are files, those of a folder or of a pattern, ``name=FILE``; the kind of each is told by its content. A new kind
is a line in `TEXTS`, a whole cluster, most often of one server, or in `PARTS`, of which several may be given for one
server. A server goes by ``name=``, else by the host that its text names, else by its file's name. NICs get rails once
all servers are there, so that a host which lacks one is seen beside the others.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from optcc.discover.given import Given
from optcc.discover.nccl_log import looks_like_nccl_log, read_nccl_log
from optcc.discover.nccl_xml import nccl_servers
from optcc.discover.pasted import begins_as_xml, by_host, plain, tool_of, unwrapped
from optcc.discover.port_lists import LISTS, PartReader, TopologyPart, rates_told, server_of
from optcc.discover.rails import Clue, Clues
from optcc.discover.smi_text import looks_like_smi, smi_server
from optcc.discover.sysfs_tree import COPY, sysfs_server
from optcc.discover.topology import Assumed, Assumption, Topology, describe, listed
from optcc.discover.yaml_file import corrected, read_yaml
from optcc.errors import InputError
from optcc.machine.rdma import natural
from optcc.values.cluster import Cluster, Server

MOST_SOURCES = 65536
"""As many as a list of hosts may have."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,254}")


@dataclass(frozen=True)
class Source:
    """A file, or a folder with a sysfs.

    name : the server's, from ``name=`` (then `given`), else the file's up to its first dot; empty where the source is
    the only one, so that nothing has to tell servers apart
    """

    path: str
    name: str = ""
    given: bool = False


def sources_of(texts: list[str]) -> list[Source]:
    """All files that `texts` stand for. Raises InputError for a folder or a pattern without any."""
    found = [one for text in texts for one in _expanded(text)]
    if len(found) > MOST_SOURCES:
        raise InputError("too many files", where=texts[0], expected=f"at most {MOST_SOURCES}", got=len(found))
    if len(found) == 1:
        return found
    return [one if one.name else Source(one.path, Path(one.path).name.partition(".")[0]) for one in found]


def _expanded(text: str) -> list[Source]:
    name, equals, path = text.partition("=")
    if equals and NAME.fullmatch(name) and not os.path.exists(text):
        return [Source(path, name, True)]
    if os.path.isdir(text) and not is_tree(text):
        paths = sorted((e.path for e in os.scandir(text) if not e.name.startswith(".")), key=natural)
        files = [path for path in paths if os.path.isfile(path) or is_tree(path)]
    elif glob.has_magic(text) and not os.path.exists(text):
        files = sorted(glob.glob(text), key=natural)
    else:
        return [Source(text)]
    if not files:
        hint = f"Or a copy of one server's sysfs. {COPY}"
        raise InputError("no file", where=text, expected="one for each host", got="none", hint=hint)
    return [Source(path) for path in files]


def is_tree(path: str) -> bool:
    """Whether a folder has one server's sysfs: ``class`` at its top, in sys/, or in the sys/ of its only folder."""
    if any(os.path.isdir(os.path.join(path, below, "class")) for below in ("", "sys")):
        return True
    try:
        folders = [entry.path for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        return False
    return len(folders) == 1 and os.path.isdir(os.path.join(folders[0], "sys/class"))


Raw = Callable[[Given], tuple[Topology, Clues]]
"""What a source gives before NICs without a rail get one, which takes all servers of a cluster."""


@dataclass(frozen=True)
class TextReader:
    """`fits` : whether a text, of a file of this name, is of this kind; `read` : (text, its bytes, path, given);
    `rates` : whether it tells the rates of NICs."""

    name: str
    fits: Callable[[str, str], bool]
    read: Callable[[str, bytes, str, Given], tuple[Topology, Clues]]
    rates: bool = True


def _yaml(text: str, data: bytes, path: str, given: Given) -> tuple[Topology, Clues]:
    return corrected(read_yaml(data, path, given), path, given), {}


PARTS = (*LISTS, PartReader("NCCL's log", looks_like_nccl_log, read_nccl_log))
TEXTS = (
    TextReader(
        "NCCL's XML",
        lambda text, path: (
            text.lstrip()[:1] == "<" or (Path(path).suffix.lower() == ".xml" and "\noptcc:" not in f"\n{text}")
        ),
        lambda text, data, path, given: nccl_servers(data, path, given),
    ),
    TextReader(
        "nvidia-smi topo -m",
        lambda text, path: looks_like_smi(text),
        lambda text, data, path, given: smi_server(text, path, given),
        rates=False,
    ),
)
"""What fits none of either is YAML, whose reader has the message for anything else."""


def part_reader(text: str) -> PartReader | None:
    """The one that a text is for, where it is a part."""
    return next((reader for reader in PARTS if reader.fits(text)), None)


def text_reader(text: str, path: str, documents_only: bool) -> TextReader:
    """The one for a text that is no part. documents_only : XML and YAML alone."""
    known = TEXTS[:1] if documents_only else TEXTS
    return next((reader for reader in known if reader.fits(text, path)), TextReader("YAML", lambda *_: True, _yaml))


def of_parts(name: str, parts: Sequence[TopologyPart], given: Given) -> tuple[Topology, Clues]:
    """The one server of this name with its parts."""
    assumed = Assumed()
    server, clues = server_of(parts, name, given, assumed)
    cluster = Cluster((server,))
    read = [f"{part.where}: {part.read}" for part in parts]
    return Topology(cluster, assumed.all(), (*read, *describe(cluster))), clues


MOST_LINES = 8
"""Sources that the report lists, and NICs that a server lacks."""


@dataclass(frozen=True)
class _Whole:
    """A source that has a server, or several. `partial` : it tells no rates, so that parts may."""

    name: str
    given: bool
    raw: Raw
    partial: bool = False


class Sources:
    """Texts and trees of a cluster's hosts, as they are added; `raw` joins them."""

    def __init__(self) -> None:
        self._parts: dict[str, list[TopologyPart]] = defaultdict(list)
        self._wholes: list[_Whole] = []
        self._taken: list[Assumption] = []

    def add_tree(self, source: Source) -> None:
        """A server's sysfs."""
        self._wholes.append(_Whole(source.name, source.given, lambda given: sysfs_server(source.path, given)))

    def add_text(self, source: Source, data: bytes) -> None:
        """A text of one host, or of several whose lines each begin with theirs."""
        text, data = _plain(data)
        if begins_as_xml(text):
            self._add_whole(source, *self._unwrapped(source.path, text, data))
            return
        hosts = None if looks_like_nccl_log(text) else by_host(text)  # a log's lines have their host themselves
        if hosts is None:
            self._add(source, text, data)
            return
        for host, lines in hosts.items():
            self._add(Source(f"{source.path}: {host}", host, True), lines, lines.encode())

    def add_document(self, source: Source, data: bytes) -> None:
        """XML or YAML from somebody else: nothing else is tried."""
        text, data = self._unwrapped(source.path, *_plain(data))
        self._add_whole(source, text, data, documents_only=True)

    def _add(self, source: Source, text: str, data: bytes) -> None:
        reader = part_reader(text)
        if not looks_like_nccl_log(text):  # whose readers know its own prefix, and find it behind others
            try:
                inside, own = self._unwrapped(source.path, text, data)
            except InputError:
                if reader is None:  # else it finds its lines among others
                    raise
            else:
                found = part_reader(inside)
                if found is not None or reader is None:
                    reader, text, data = found, inside, own
        if reader is None:
            self._add_whole(source, text, data)
            return
        for host, part in reader.read(text, source.path).items():
            name = source.name if source.given or not host else host
            _check_once(self._parts[name], part)
            self._parts[name].append(part)

    def _unwrapped(self, path: str, text: str, data: bytes) -> tuple[str, bytes]:
        text, taken = unwrapped(text, path)
        if not taken:
            return text, data
        self._taken.append(Assumption(path, f"taken away before it was read: {', '.join(taken)}"))
        return text, text.encode()

    def _add_whole(self, source: Source, text: str, data: bytes, documents_only: bool = False) -> None:
        kind = text_reader(text, source.path, documents_only)
        if kind.name == "YAML" and not documents_only and (tool := tool_of(text)) is not None:
            what = f"{tool.name}, which tells no topology"
            expected = "NCCL's XML or log, sysfs, ibstat, a YAML file or a preset"
            raise InputError(what, where=source.path, expected=expected, hint=tool.topology)
        raw: Raw = lambda given: kind.read(text, data, source.path, given)  # noqa: E731
        self._wholes.append(_Whole(source.name, source.given, raw, not kind.rates))

    def _raws(self) -> list[Raw]:
        """What reads each server, or the servers of each source."""
        parts = dict(self._parts)
        raws: list[Raw] = []
        for whole in self._wholes:
            told = parts.pop(whole.name, [])
            if told and not whole.partial:
                raise InputError(
                    "a server told whole, and a part of it",
                    where=told[0].where,
                    expected=f"{whole.name} by its XML, sysfs or YAML alone",
                    got=f"{told[0].kind} as well",
                )
            raws.append(partial(_of_whole, whole, told))
        return raws + [partial(of_parts, name or "server0", each) for name, each in parts.items()]

    def raw(self, given: Given) -> tuple[Topology, Clues]:
        """All of them as one cluster. Raises InputError for two servers of one name."""
        raws = self._raws()
        read = [raw(given) for raw in raws]
        if usual := _usual([topology.cluster for topology, _ in read]):
            # What is slow here may count on the others: then it is no management port.
            known = replace(given, elsewhere=usual)
            read = [one if usual <= _names(one[0].cluster) else raw(known) for raw, one in zip(raws, read, strict=True)]
        topology, clues = read[0] if len(read) == 1 else _joined(read)
        return replace(topology, assumed=(*topology.assumed, *self._taken)), clues


def _plain(data: bytes) -> tuple[str, bytes]:
    """The text, and the bytes of it, as they are where nothing is taken away."""
    text = data.decode("utf-8", "replace")
    return (text, data) if (found := plain(text)) == text else (found, found.encode())


def _of_whole(whole: _Whole, told: Sequence[TopologyPart], given: Given) -> tuple[Topology, Clues]:
    assumed = Assumed()
    topology, clues = whole.raw(rates_told(told, whole.name, given, assumed) if told else given)
    lines = tuple(f"{part.where}: {part.read}, for their rates" for part in told)
    topology = replace(topology, read=(*lines, *topology.read), assumed=(*topology.assumed, *assumed.all()))
    return _named(topology, clues, whole) if whole.name else (topology, clues)


def _names(cluster: Cluster) -> frozenset[str]:
    return frozenset(nic.name for nic in cluster.servers[0].nics)


def _usual(clusters: Sequence[Cluster]) -> frozenset[str]:
    """The NICs that most servers of several have."""
    servers = [server for cluster in clusters for server in cluster.servers]
    counts = Counter(nic.name for server in servers for nic in server.nics)
    return frozenset(name for name, count in counts.items() if 2 * count >= len(servers) > 1)


def _check_once(parts: Sequence[TopologyPart], new: TopologyPart) -> None:
    """Logs of a job's processes add to each other; of everything else one text says all."""
    if not new.adds and (old := next((part for part in parts if part.kind == new.kind), None)):
        raise InputError(
            "two texts of one kind for one server",
            where=new.where,
            expected=f"{new.kind} once for each server",
            got=f"{old.where} as well",
            hint="Give names: node1=FILE node2=FILE.",
        )


def _joined(read: Sequence[tuple[Topology, Clues]]) -> tuple[Topology, Clues]:
    clusters = [topology.cluster for topology, _ in read]
    servers = tuple(server for cluster in clusters for server in cluster.servers)
    name, count = Counter(server.name for server in servers).most_common(1)[0]
    if count > 1:
        raise InputError(
            "two servers of one name",
            where="the sources",
            expected="each server once",
            got=name,
            hint="Give names: node1=FILE node2=FILE.",
        )
    if any(cluster.pristine is not None or not cluster.fabric.flat for cluster in clusters):
        expected = "servers on one fabric, without failures"
        raise InputError("a whole cluster among several sources", where="the sources", expected=expected)
    assumed = Assumed()
    for one in (a for topology, _ in read for a in topology.assumed):
        assumed.add(one.where, one.what, one.fix)
    _note_missing(servers, assumed)
    cluster = Cluster(servers)
    lines = [line for topology, _ in read for line in topology.read if line not in describe(topology.cluster)]
    more = (f"and {len(lines) - MOST_LINES} more",) if len(lines) > MOST_LINES else ()
    clues = {place: clue for _, each in read for place, clue in each.items()}
    return Topology(cluster, assumed.all(), (*lines[:MOST_LINES], *more, *describe(cluster))), clues


def _note_missing(servers: Sequence[Server], assumed: Assumed) -> None:
    """NICs that most servers have and one has not, or has but a port of: a fault, maybe, that its own file hides."""
    counts = Counter(nic.name for server in servers for nic in server.nics)
    usual = [name for name, count in counts.items() if 2 * count > len(servers)]
    for server in servers:
        has = {nic.name for nic in server.nics}
        for fused in (name for name in usual if name not in has):
            if port := next((port for port in fused.split("+") if port in has), None):
                what = f"{port} alone, where most servers have {fused}; it counts at its own rate"
                assumed.add(server.name, what, f"--fail {server.name}/{fused} where a file has all of its ports")
                has.add(fused)
        if missing := [name for name in usual if name not in has]:
            what = f"lacks {listed(missing, MOST_LINES)}, which most servers have; it counts as a server without"
            assumed.add(server.name, what, "--fail, with a file of this server from when it was whole")


def _named(topology: Topology, clues: Clues, whole: _Whole) -> tuple[Topology, Clues]:
    """The servers by its name, numbered where there are several; by their own where its text names them."""
    name, servers = whole.name, topology.cluster.servers
    if not NAME.fullmatch(name):
        raise InputError("not a server's name", where=name[:80], expected="letters, digits, - and .", got=name[:80])
    if not whole.given and any(server.name != f"server{i}" for i, server in enumerate(servers)):
        return topology, clues
    new = {server.name: name if len(servers) == 1 else f"{name}-{i}" for i, server in enumerate(servers)}
    moved: dict[tuple[str, str], Clue] = {(new[server], nic): clue for (server, nic), clue in clues.items()}
    cluster = replace(topology.cluster, servers=tuple(replace(server, name=new[server.name]) for server in servers))
    if len(servers) == 1:
        old = f"{servers[0].name}/"  # in what to pass: --fail server0/mlx5_0
        assumed = tuple(replace(a, fix=a.fix.replace(old, f"{name}/")) for a in topology.assumed)
        topology = replace(topology, assumed=assumed)
    told = describe(topology.cluster)
    lines = tuple(line for line in topology.read if line not in told)
    return replace(topology, cluster=cluster, read=(*lines, *describe(cluster))), moved
