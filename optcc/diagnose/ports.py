"""The NICs of a cluster as numbered ports, one for each way, and how logs and tools call servers and NICs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from optcc.diagnose.facts import Facts
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Server

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
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError(
                "a host that the topology does not have",
                where=where,
                expected=f"one of {shown}",
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
