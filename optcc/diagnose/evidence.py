"""What is known before anything is concluded: measurements of ports, signs that something is wrong with one, and what
files say of hosts, addresses and NICs.

A measurement is held against the healthy cluster: which ports it used, and at which part of its healthy rate it ran
each of them. No port is slower than it ran, and the slowest one, for what it had to carry, set the pace. That is all
the model there is; it holds for point-to-point transfers and for every collective whose shares are fixed, as rings and
all-to-alls of collective libraries are.

A log names a peer by its IP address or GID, a tool a port by its LID or its network interface; who that is may be said
elsewhere: in the first lines of another log, by a server's sysfs, by what ``ibstat`` or ``rdma link`` printed
(`Facts`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from optcc.discover.nccl_log import OOB, cards_in
from optcc.errors import InputError, some
from optcc.machine.rdma import rdma_ports
from optcc.machine.sysfs import Sysfs
from optcc.values.cluster import Cluster, Server

NOTHING = 1e-4
"""The part of its rate that stands for a port through which nothing came."""


@dataclass(frozen=True)
class Observation:
    """One measurement.

    kind : ``sendrecv``, ``all_reduce``, ..., ``link`` for what a driver says of a link's rate, ``calibrate``
    where : file, and line or place in it
    used : port -> the part of its healthy rate at which it ran
    spread : of the measurement itself, as a fraction; 0: that of its kind
    nbytes, time_s : of a collective: bytes as its command says them, seconds; 0 for others
    servers : names of those that took part
    least : it only shows that these ports reach as much: nothing says that one of them set the pace
    root : the server of a broadcast's, reduce's, gather's or scatter's root
    run : what it shares with others: those of one run of a program are one measurement; empty: it is a run by itself
    """

    kind: str
    where: str
    used: Mapping[int, float]
    spread: float = 0.0
    nbytes: int = 0
    time_s: float = 0.0
    servers: tuple[str, ...] = ()
    least: bool = False
    root: str | None = None
    run: str = ""

    @property
    def failed(self) -> bool:
        """Nothing came through."""
        return max(self.used.values(), default=0.0) <= NOTHING


@dataclass(frozen=True)
class Sign:
    """Something said of a NIC that is no rate: errors counted, an event, a process that does not answer.

    nic : its number; None where only the server is known
    grave : it does not happen on a NIC that is well
    rank : of a job, where `what` is the verdict on it
    """

    where: str
    what: str
    server: str
    nic: int | None = None
    grave: bool = False
    rank: int | None = None


@dataclass(frozen=True)
class Evidence:
    """All of it. `read` : a line for each file, for people; `unused` : what was read and says nothing, and why;
    `causes` : what a log shows that slows all NICs alike."""

    observations: tuple[Observation, ...] = ()
    signs: tuple[Sign, ...] = ()
    read: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    @classmethod
    def together(cls, parts: Iterable[Evidence]) -> Evidence:
        """One of several."""
        whole = list(parts)
        return cls(
            tuple(o for part in whole for o in part.observations),
            tuple(s for part in whole for s in part.signs),
            tuple(line for part in whole for line in part.read),
            tuple(line for part in whole for line in part.unused),
            tuple(dict.fromkeys(line for part in whole for line in part.causes)),
        )


Place = tuple[str, str]
"""Host and NIC."""

_SAYS = re.compile(r"OOB|: Using|Bootstrap ?: Using|localGid")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,254}):\d{1,9}(?::\d{1,9})? \[\d{1,4}\] ")
_GID_OF = re.compile(r"localGid ([0-9a-fA-F:.]{2,60}) .{0,200}\bhca ([\w.+-]{1,80})")
_CARD = re.compile(
    r"^\s*(?:CA '|hca_id:\s+|Infiniband device '|\w{5} \S{8,20} {1,9}\S{1,40}\] RDMA device: )([\w.+-]{1,80})", re.M
)
_PORT = re.compile(r"^\s*[Pp]ort:?\s{0,9}(\d{1,3}):?\s*$", re.M)
_GID = re.compile(r"(?:GID\[\s*\d{1,4}\]:|default gid:|\(GID_Index \d{1,4}\))\s*([0-9a-fA-F:.]{2,60})")
_LID = re.compile(r"\b(?:Base lid|base lid|port_lid|LID):\s*(0x[0-9a-fA-F]{1,8}|\d{1,6})\b")
_NETDEV = re.compile(r"^\s*(?:\S{1,20} )?([\w.+-]{1,80}) port (\d{1,3}) ==> (\S{1,80}) \(", re.M)
_RDMA_LINK = re.compile(r"\blink ([\w.+-]{1,80})/(\d{1,3}) state .{0,120}?netdev ([\w.@-]{1,80})")


@dataclass
class Facts:
    """addresses : IP address -> host; gids, lids : GID, as Python writes IPv6 addresses, and LID -> (host, NIC);
    interfaces : (host, network interface) -> NIC; cards : host -> the NICs that its jobs use. Two files that differ in
    one leave it unknown."""

    addresses: dict[str, str] = field(default_factory=dict)
    gids: dict[str, Place] = field(default_factory=dict)
    lids: dict[int, Place] = field(default_factory=dict)
    interfaces: dict[Place, str] = field(default_factory=dict)
    cards: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _unsure: set[object] = field(default_factory=set)

    def add_text(self, text: str, host: str | None) -> None:
        """What a text says; `host` is the server whose file it is, where that is known."""
        for line in text.splitlines() if _SAYS.search(text) else ():
            if _SAYS.search(line) and (speaker := _HOST.search(line)):
                if cards := cards_in(line):
                    self._add(self.cards, speaker[1], tuple(cards.values()))
                if oob := OOB.search(line):
                    self._add(self.addresses, oob[1], speaker[1])
                if gid := _GID_OF.search(line):
                    self._add_gid(gid[1], speaker[1], gid[2])
        if host is not None:
            self._add_ports(text, host)

    def _add_ports(self, text: str, host: str) -> None:
        for name, port, interface in (*_NETDEV.findall(text), *_RDMA_LINK.findall(text)):
            self._add(self.interfaces, (host, interface), name if port == "1" else f"{name}:{port}")
        cards = list(_CARD.finditer(text))
        for card, end in zip(cards, [*(after.start() for after in cards[1:]), len(text)], strict=False):
            body = text[card.end() : end]
            ports = list(_PORT.finditer(body))
            for begin, number in [(0, "1")] if not ports else [(port.start(), port[1]) for port in ports]:
                stop = next((port.start() for port in ports if port.start() > begin), len(body))
                name = card[1] if number == "1" else f"{card[1]}:{number}"
                for gid in _GID.findall(body[begin:stop]):
                    self._add_gid(gid, host, name)
                for lid in _LID.findall(body[begin:stop]):
                    self._add_lid(int(lid, 0), host, name)

    def add_tree(self, tree: Sysfs, host: str) -> None:
        """What a server's sysfs says."""
        for port in rdma_ports(tree):
            name = port.device if port.port == 1 else f"{port.device}:{port.port}"
            self._add_lid(port.lid, host, name)
            for gid in port.gids:
                self._add_gid(gid.address, host, name)
                if gid.interface:
                    self._add(self.interfaces, (host, gid.interface), name)

    def place_of(self, gid: str) -> Place | None:
        """The host and the NIC that speak as this GID."""
        known = _as_gid(gid)
        return None if known is None else self.gids.get(known)

    def _add_gid(self, text: str, host: str, nic: str) -> None:
        if (gid := _as_gid(text)) is None:
            return
        self._add(self.gids, gid, (host, nic))
        if (ipv4 := ipaddress.IPv6Address(gid).ipv4_mapped) is not None:
            self._add(self.addresses, str(ipv4), host)

    def _add_lid(self, lid: int, host: str, nic: str) -> None:
        if 0 < lid < 0xFFFF:  # 0 on Ethernet, 65535 without a subnet manager
            self._add(self.lids, lid, (host, nic))

    def _add(self, known: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
        if known.setdefault(key, value) != value or (id(known), key) in self._unsure:
            self._unsure.add((id(known), key))
            known.pop(key, None)


def _as_gid(text: str) -> str | None:
    """``fe:80:00:...`` in bytes, as Mooncake writes it, is one, too."""
    octets = text.split(":")
    if len(octets) == 16:
        text = ":".join(octets[i] + octets[i + 1] for i in range(0, 16, 2))
    try:
        gid = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    return None if int(gid) == 0 else str(gid)


OUT, IN = 0, 1


@dataclass(frozen=True)
class NicDirections:
    """Port 2 n + way is the way OUT or IN of NIC n; NICs are counted through all servers in order.

    cluster : at its healthy rates
    facts : what the evidence says of addresses; here : the server whose file is read, where that is known
    """

    cluster: Cluster
    facts: Facts = field(default_factory=Facts, compare=False, repr=False)
    here: str | None = field(default=None, compare=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """NIC -> ``SERVER/NIC``."""
        return tuple(f"{s.name}/{nic.name}" for s in self.cluster.servers for nic in s.nics)

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Port -> bytes per second when healthy."""
        nics = [nic for server in self.cluster.servers for nic in server.nics]
        return tuple(float(rate) for nic in nics for rate in (nic.out_rate, nic.in_rate))

    @cached_property
    def first(self) -> dict[str, int]:
        """Server -> its first NIC."""
        found, number = {}, 0
        for server in self.cluster.servers:
            found[server.name] = number
            number += len(server.nics)
        return found

    @cached_property
    def by_name(self) -> dict[str, Server]:
        """The servers by name."""
        return {server.name: server for server in self.cluster.servers}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        parts = {
            f"{name.partition('/')[0]}/{part}": number
            for number, name in enumerate(self.names)
            for part in name.partition("/")[2].split("+")
        }
        return parts | {name: number for number, name in enumerate(self.names)}

    @cached_property
    def _servers(self) -> dict[str, str]:
        """A host's name as tools write it -> the server: whole, or before the first dot where only one is meant."""
        short: dict[str, list[str]] = {}
        for server in self.cluster.servers:
            short.setdefault(server.name.partition(".")[0], []).append(server.name)
        unique = {name: servers[0] for name, servers in short.items() if len(servers) == 1}
        return unique | {server.name: server.name for server in self.cluster.servers}

    def server(self, host: str) -> str | None:
        """The server that a log calls `host`, by name or address; None where the topology has none of this name. An
        empty one is the server whose file is read."""
        if not host:
            return self.here
        known = self._servers.get(host) or self._servers.get(self.facts.addresses.get(host, ""))
        return known or self._servers.get(host.partition(".")[0])

    def need_server(self, host: str, where: str) -> str:
        """Likewise; raises InputError where there is none."""
        if (found := self.server(host)) is None:
            names = [server.name for server in self.cluster.servers]
            raise InputError(
                "a host that the topology does not have",
                where=where,
                expected=f"one of {some(names)}",
                got=host[:80],
                hint="Name the topology's servers with --hosts, in the order of the topology.",
            )
        return found

    def nics_of(self, server: str) -> range:
        """The numbers of a server's NICs."""
        first = self.first[server]
        return range(first, first + len(self.by_name[server].nics))

    def nic(self, server: str, name: str) -> int | None:
        """The NIC of `server` that goes by `name`, ``mlx5_0`` or ``mlx5_0:1``, or that is fused of it and others, as
        NCCL's ``mlx5_0+mlx5_1``; None where it has none of this name."""
        number = self._numbers.get(f"{server}/{name}")
        return self._numbers.get(f"{server}/{name.removesuffix(':1')}") if number is None else number

    def nic_of_gid(self, gid: str) -> int | None:
        """The NIC that speaks as `gid`, where some file tells; None where none does."""
        if (place := self.facts.place_of(gid)) is None:
            return None
        server = self.server(place[0])
        return None if server is None else self.nic(server, place[1])

    def parts(self, nic: int) -> int:
        """Of how many ports a NIC is fused, 1 for most."""
        return self.names[nic].partition("/")[2].count("+") + 1

    def rail(self, nic: int) -> int:
        """The rail of a NIC: as the topology has it, else its place on its server."""
        server, _, _ = self.names[nic].partition("/")
        index = nic - self.first[server]
        rail = self.by_name[server].nics[index].rail
        return index if rail is None else rail

    def beside(self, server: str, gpus: Iterable[int]) -> list[int]:
        """The NICs of `server` beside these GPUs; all of them where none is."""
        own = self._of_gpus[server]
        near = sorted(nic for gpu in set(gpus) for nic in own.get(gpu, ()))
        return near or list(self.nics_of(server))

    @cached_property
    def _of_gpus(self) -> dict[str, dict[int, list[int]]]:
        """Server -> GPU -> the NICs beside it."""
        found: dict[str, dict[int, list[int]]] = {}
        for name, server in self.by_name.items():
            own = found.setdefault(name, {})
            for i, nic in enumerate(self.nics_of(name)):
                own.setdefault(server.gpu_of(i), []).append(nic)
        return found


def port(nic: int, way: int) -> int:
    """The number of a port."""
    return 2 * nic + way
