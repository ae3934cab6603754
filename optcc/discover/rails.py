"""Which rail a NIC is on: a host that lacks a NIC keeps the others on the rails that they have elsewhere.

The order of sources: the file (NCCL's ``rail``, YAML's ``rail:``), the number of the GPU beside the NIC, the rail of
this name on other hosts, the position. NICs beside one GPU are on one rail, as NVIDIA defines rails: this never makes a
lower bound too high. NICs of one rail but different planes (NCCL's ``plane``) do not meet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from optcc.discover.given import Given
from optcc.discover.topology import Assumed, Assumption, Topology, listed
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Server

FIX = "optcc topo ... -o FILE.yaml, and rail: of each NIC in that file"
MAX_RAIL = 65535

SAID, BESIDE, NAMED, PLACED = SOURCES = (
    "as the file says",
    "by the GPU beside the NIC",
    "by the NIC's name on other hosts",
    "by position",
)


@dataclass(frozen=True)
class Clue:
    """What a source tells of a NIC's place: the numbers of the GPUs nearest to it, and its `plane`, as written."""

    near: tuple[int, ...] = ()
    plane: int | None = None


Clues = Mapping[tuple[str, str], Clue]
"""By (server, NIC)."""


@dataclass
class _Host:
    """NICs of one server, in order; `rails` and `taken_from` are filled as they are found. Equal servers share one."""

    name: str
    nics: tuple[str, ...]
    near: tuple[tuple[int, ...], ...]
    gpus: int
    rails: list[int | None]
    taken_from: list[str]

    def settle(self, nic: int, rail: int, source: str) -> None:
        self.rails[nic], self.taken_from[nic] = rail, source

    def open(self) -> list[int]:
        return [nic for nic, rail in enumerate(self.rails) if rail is None]


def on_rails(read: Callable[[Given], tuple[Topology, Clues]], given: Given) -> Topology:
    """What `read` gives, with rails. NICs that --nics leaves out do not move the others to other rails."""
    topology, clues = read(given)
    whole = None
    if given.nics:
        with suppress(InputError):  # then the source cannot be used but for what --nics leaves
            whole = numbered(*read(given.of_all_nics()))
    return numbered(topology, clues) if whole is None else _as_in(whole, topology, clues)


def numbered(topology: Topology, clues: Clues) -> Topology:
    """The topology with a rail for each NIC that has none yet, and notes on where it comes from."""
    servers = topology.cluster.servers
    hosts: dict[object, _Host] = {}
    of: dict[str, _Host] = {}
    for server in servers:
        near = tuple(clues.get((server.name, nic.name), Clue()).near for nic in server.nics)
        key = (id(server.nics), near, server.gpus)
        if key not in hosts:
            names, said = tuple(nic.name for nic in server.nics), [nic.rail for nic in server.nics]
            hosts[key] = _Host(server.name, names, near, server.gpus, said, [SAID] * len(said))
        of[server.name] = hosts[key]
    distinct = list(hosts.values())
    if not clues and not any(host.open() for host in distinct):
        return topology  # by hand, or a preset: all is said
    assumed = Assumed()
    _find(distinct, assumed)
    _in_planes(distinct, clues, assumed)
    rails = {(s.name, n): r for s in servers for n, r in zip(of[s.name].nics, of[s.name].rails, strict=True)}
    if max(rail or 0 for rail in rails.values()) > MAX_RAIL:
        raise InputError("no such rail", where="rails", expected=f"0 to {MAX_RAIL}", got="more", hint=FIX)
    notes = _notes(distinct, assumed)
    cluster = _on_rails(topology.cluster, rails)
    used = {source for host in distinct for source in host.taken_from}
    read = f"rails: {', else '.join(source for source in SOURCES if source in used)}"
    return Topology(cluster, (*topology.assumed, *notes), (*topology.read, read), topology.measured)


def _as_in(whole: Topology, part: Topology, clues: Clues) -> Topology:
    """`part` on the rails of `whole`; NICs that count for --nics alone are on what their clues tell."""
    rails = {(server.name, nic.name): nic.rail for server in whole.cluster.servers for nic in server.nics}
    found = replace(part, cluster=_on_rails(part.cluster, rails))
    if lone := {place: clue for place, clue in clues.items() if place not in rails}:
        found = numbered(found, lone)
    told = [a for a in whole.assumed if a.fix == FIX and a not in found.assumed]
    return replace(found, assumed=(*found.assumed, *told), read=(*part.read, whole.read[-1]))


class _Known:
    """What other hosts have shown: NIC -> rail, None where they differ; and all rails in use."""

    def __init__(self, hosts: Iterable[_Host]) -> None:
        self.names: dict[str, int | None] = {}
        self.rails: set[int] = set()
        for host in hosts:
            self.add(host)

    def add(self, host: _Host) -> None:
        for nic, rail in zip(host.nics, host.rails, strict=True):
            if rail is not None:
                self.rails.add(rail)
                for name in {nic, *nic.split("+")}:  # a fused NIC's ports, of which another host has one alone
                    self.names[name] = rail if self.names.get(name, rail) == rail else None


def _find(hosts: Sequence[_Host], assumed: Assumed) -> None:
    """A rail for every NIC."""
    number = _rails_of_gpus(hosts, assumed)
    most = max(host.gpus for host in hosts)
    for host in hosts:
        if host.gpus == most:  # what has lost a GPU numbers those behind it anew, maybe: names are surer there
            _by_gpu(host, number)
    known = _Known(host for host in hosts if not host.open())
    frequency = Counter(name for host in hosts for name in host.nics)
    # The host with the most first: there numbers and positions are right.
    for host in sorted((host for host in hosts if host.open()), key=lambda host: (-host.gpus, -len(host.nics))):
        _by_name(host, known, number)
        _dealt(host, number)
        _by_position(host, known, frequency)
        known.add(host)


def _rails_of_gpus(hosts: Sequence[_Host], assumed: Assumed) -> Callable[[int], int | None]:
    """GPU -> its rail: its number, unless the rails that the file says for some NICs are numbered in another way."""
    said: dict[int, dict[int, str]] = defaultdict(dict)
    for host in hosts:
        for name, near, rail in zip(host.nics, host.near, host.rails, strict=True):
            if rail is not None and len(near) == 1:
                said[near[0]].setdefault(rail, f"{host.name}/{name}")
    for gpu, rails in said.items():
        if len(rails) > 1:
            places = ", ".join(f"{rail} ({nic})" for rail, nic in sorted(rails.items())[:4])
            assumed.add("", f"the file puts NICs beside GPU{gpu} on rails {places}; taken as it says", FIX)
    agreed = {gpu: next(iter(rails)) for gpu, rails in said.items() if len(rails) == 1}
    by_number = all(gpu == rail for gpu, rail in agreed.items())
    return lambda gpu: agreed.get(gpu, gpu if by_number else None)


def _by_gpu(host: _Host, number: Callable[[int], int | None]) -> None:
    for nic in host.open():
        if len(host.near[nic]) == 1 and (rail := number(host.near[nic][0])) is not None:
            host.settle(nic, rail, BESIDE)


def _by_name(host: _Host, known: _Known, number: Callable[[int], int | None]) -> None:
    for nic in host.open():
        rail, near = known.names.get(host.nics[nic]), host.near[nic]
        # Of several GPUs that are as near, the name tells which; it does not move a NIC away from all of them.
        if rail is not None and (len(near) < 2 or rail in map(number, near)):
            host.settle(nic, rail, NAMED)


def _dealt(host: _Host, number: Callable[[int], int | None]) -> None:
    """NICs with several GPUs as near: each the one whose rail has the fewest NICs of this server so far."""
    load = Counter(host.rails)
    for nic in host.open():
        rails = [rail for gpu in host.near[nic] if (rail := number(gpu)) is not None]
        if rails:
            rail = min(rails, key=lambda rail: (load[rail], rail))
            host.settle(nic, rail, BESIDE)
            load[rail] += 1


def _by_position(host: _Host, known: _Known, frequency: Mapping[str, int]) -> None:
    """What is left: its position, where names tell nothing; else, if the NICs share no names with other hosts, have no
    GPU, and are as many as the rails that this host lacks: these rails, in order; else a new one."""
    left, taken = host.open(), {rail for rail in host.rails if rail is not None}
    shares = any(name in known.names for name in host.nics)
    few = len(known.rails) <= len(taken) + len(left)
    spare = sorted(known.rails - taken) if few else []
    renamed = (
        shares
        and len(spare) == len(left)
        and all(frequency[host.nics[nic]] == 1 and not host.near[nic] for nic in left)
    )
    fill = dict(zip(left, spare, strict=True)) if renamed else {}
    for nic in left:
        new = max(host.gpus, *(rail + 1 for rail in taken), 0, max(known.rails, default=-1) + 1)
        rail = fill.get(nic, new if shares or nic in taken else nic)
        taken.add(rail)
        host.settle(nic, rail, PLACED)


def _in_planes(hosts: Sequence[_Host], clues: Clues, assumed: Assumed) -> None:
    """A number for each rail of each plane, where the file has planes: NICs of different ones do not meet."""
    planes = sorted({clue.plane for clue in clues.values() if clue.plane is not None})
    if len(planes) < 2:
        return
    assumed.add("", f"{len(planes)} planes, which do not meet: rails are numbered {len(planes)} rail + plane", FIX)
    for host in hosts:
        for nic, (name, rail) in enumerate(zip(host.nics, host.rails, strict=True)):
            plane = clues.get((host.name, name), Clue()).plane
            if rail is not None:
                host.rails[nic] = rail * len(planes) + (0 if plane is None else planes.index(plane))


def _notes(hosts: Sequence[_Host], assumed: Assumed) -> tuple[Assumption, ...]:
    """What a person may want to correct: rails that are not positions, what is guessed, what shares a rail."""
    for host in hosts:
        for source in SOURCES[1:]:
            nics = [nic for nic in range(len(host.nics)) if host.taken_from[nic] == source]
            if any(host.rails[nic] != nic for nic in nics):
                how = "by nothing that the source tells" if source == PLACED else f"{source}, not by position"
                moved = listed([f"{host.nics[nic]} on rail {host.rails[nic]}" for nic in nics])
                assumed.add(host.name, f"rails are numbered {how}: {moved}", FIX)
        together = Counter(host.rails)
        if shared := sorted(rail for rail, count in together.items() if rail is not None and count > 1):
            several = listed([f"{together[rail]} on rail {rail}" for rail in shared])
            assumed.add(host.name, f"NICs beside one GPU, or of one rail in the file, reach each other: {several}", FIX)
    if (guessed := [host.name for host in hosts if PLACED in host.taken_from]) and len(
        {len(host.nics) for host in hosts}
    ) > 1:
        assumed.add(listed(guessed), "servers differ in NICs, and nothing but position tells the rails of some", FIX)
    if differ := [name for name, rail in _Known(hosts).names.items() if rail is None]:
        assumed.add("", f"NICs of one name are on different rails of different servers: {listed(differ)}", FIX)
    return assumed.all()


def _on_rails(cluster: Cluster, rails: Mapping[tuple[str, str], int | None]) -> Cluster:
    """The cluster, and what it was before failures, on these rails. Servers that shared their NICs still do."""
    shared: dict[object, tuple[object, ...]] = {}

    def moved(server: Server) -> Server:
        mine = tuple(rails.get((server.name, nic.name), nic.rail) for nic in server.nics)
        if all(rail == nic.rail for rail, nic in zip(mine, server.nics, strict=True)):
            return server
        key = (id(server.nics), mine)
        if key not in shared:
            shared[key] = tuple(replace(nic, rail=rail) for nic, rail in zip(server.nics, mine, strict=True))
        return replace(server, nics=shared[key])  # type: ignore[arg-type]

    pristine = None if cluster.pristine is None else _on_rails(cluster.pristine, rails)
    return replace(cluster, servers=tuple(moved(server) for server in cluster.servers), pristine=pristine)
