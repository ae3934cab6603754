"""The cluster as values: servers on a fabric, and its ranks. Frozen; a failure is a function to a new cluster.

Rates are exact (`Fraction`, bytes per second) so that bounds and shares are exact until they are printed. `Nic` and
`Server` are of `server`, and of this module for those who make clusters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from optcc.errors import InputError
from optcc.values.server import Nic, Server, as_named, check_count, rates_left
from optcc.values.units import Quantity, as_rate, format_rate

__all__ = [
    "MAX_NICS",
    "Cluster",
    "Fabric",
    "Nic",
    "Number",
    "Rank",
    "Server",
    "check_nic_count",
    "degrade_all",
]

Number = int | Fraction


@dataclass(frozen=True)
class Fabric:
    """What joins the NICs. The default is one non-blocking fabric.

    rails : a NIC reaches NICs of its own rail only (each rail is a non-blocking plane)
    spine : with rails, what joins them: a rail's link to the spine carries its NICs' rates over this factor; None:
        nothing
    pod_oversubscription : a pod's uplink carries its NICs' rates over this factor; None: pods do not limit anything
    """

    rails: bool = False
    spine: Fraction | None = None
    pod_oversubscription: Fraction | None = None

    def __post_init__(self) -> None:
        for name, factor in (("spine", self.spine), ("pod_oversubscription", self.pod_oversubscription)):
            if factor is not None and not 0 < factor <= 10**6:
                raise InputError("factor out of range", where=f"fabric.{name}", expected="above 0", got=str(factor))
        if self.spine is not None and not self.rails:
            raise InputError("a spine without rails", where="fabric.spine", expected="rails: true", got="rails: false")

    @property
    def flat(self) -> bool:
        """Nothing but NICs limits anything."""
        return not self.rails and self.pod_oversubscription is None


@dataclass(frozen=True)
class Rank:
    """A participant of the collective: a server, or a GPU where GPUs are ranks.

    index : its number in the cluster; server : that of its server
    nics : the NICs of its server; where GPUs are ranks, the NICs of its GPU
    """

    index: int
    name: str
    server: int
    nics: tuple[Nic, ...]

    @cached_property
    def out_rate(self) -> Fraction:
        """Sum of the rank's NIC rates out, bytes per second."""
        return sum((nic.out_rate for nic in self.nics), Fraction(0))

    @cached_property
    def in_rate(self) -> Fraction:
        """Sum of the rank's NIC rates in, bytes per second."""
        return sum((nic.in_rate for nic in self.nics), Fraction(0))


@dataclass(frozen=True, repr=False)
class Cluster:
    """Servers on a fabric. Raises InputError for servers that do not fit together, saying which.

    pristine : the cluster before any failure, None: this one; fabric : what joins the NICs
    gpu_ranks : whether every GPU is a rank; else every server is one

    Examples
    --------
    >>> healthy = Cluster.uniform(servers=4, nics=8, rate=Fraction(50_000_000_000))
    >>> healthy.degrade("server1/nic0").servers[1].out_rate
    Fraction(350000000000, 1)
    """

    servers: tuple[Server, ...]
    pristine: Cluster | None = None
    fabric: Fabric = Fabric()
    gpu_ranks: bool = False

    def __post_init__(self) -> None:
        if not self.servers:
            raise InputError("no server", where="cluster", expected="at least one server", got=0)
        if self.gpu_ranks and (ranks := sum(server.gpus for server in self.servers)) > MAX_NICS:
            raise InputError("too many GPUs in all", where="cluster", expected=f"at most {MAX_NICS}", got=ranks)
        seen: set[str] = set()
        for server in self.servers:
            if server.name in seen:
                raise InputError(
                    "two servers of one name", where="cluster", expected="unique server names", got=server.name
                )
            seen.add(server.name)
            if self.fabric.pod_oversubscription is not None and server.pod is None:
                raise InputError(
                    "a server without a pod",
                    where=server.name,
                    expected="pod: on every server, since pods are oversubscribed",
                    got="none",
                )

    def __repr__(self) -> str:
        kinds: dict[str, list[str]] = {}
        for server in self.servers:
            live, nics = sum(nic.alive for nic in server.nics), len(server.nics)
            count = f"{nics} NIC{'s' * (nics != 1)}" if live == nics else f"{live} of {nics} NICs"
            out, into = format_rate(server.out_rate), format_rate(server.in_rate)
            rates = out if out == into else f"{out} out and {into} in"
            kinds.setdefault(f"{count}, {rates}", []).append(server.name)
        shown = [
            f"{names[0]} with {what}" if len(names) == 1 else f"{len(names)} servers with {what} each"
            for what, names in sorted(kinds.items(), key=lambda kind: -len(kind[1]))
        ]
        left_out = sum(sorted(map(len, kinds.values()), reverse=True)[SHOWN_KINDS:])
        more = [f"{left_out} more"] if left_out else []
        return f"<Cluster: {'; '.join([*shown[:SHOWN_KINDS], *more])}>"

    @classmethod
    def uniform(
        cls, *, servers: int, nics: int = 1, rate: Quantity, gpus: int | None = None, nvlink_rate: Quantity = 0
    ) -> Cluster:
        """`servers` equal servers server0.. with NICs nic0.. of `rate` each way, one NIC a rail.

        Rates are text such as "400Gb/s", or numbers in bytes per second.
        """
        check_count(servers, "servers")
        check_count(nics, "nics")
        gpus = nics if gpus is None else gpus
        check_count(gpus, "gpus")
        rate = as_rate(rate, "rate")
        ports = tuple(Nic(f"nic{i}", rate, rate, rail=i, gpu=i * gpus // nics) for i in range(nics))
        one = Server("server0", ports, gpus, as_rate(nvlink_rate, "nvlink_rate"))
        return cls((one,)).replicate(servers)

    def replicate(self, count: int) -> Cluster:
        """A one-server cluster as `count` copies named server0, server1, ...

        Raises InputError for a cluster of several servers, and for too many NICs in all.
        """
        check_count(count, "--servers")
        if len(self.servers) != 1:
            raise InputError(
                "only a one-server topology can be replicated",
                where="--servers",
                expected="a topology of 1 server",
                got=f"{len(self.servers)} servers",
                hint="Drop --servers; the file already describes the whole cluster.",
            )
        check_nic_count(count * len(self.servers[0].nics), "--servers")
        copies = tuple(replace(self.servers[0], name=f"server{i}") for i in range(count))
        return replace(self, servers=copies, pristine=self.pristine and self.pristine.replicate(count))

    def degrade(self, nic: str, left: Quantity = 0) -> Cluster:
        """A cluster in which NIC ``"server1/mlx5_0"`` keeps `left` of its present rates.

        left : a fraction 0 to 1, as a number or written "37%", "3/8"; or the rate that is left, "150Gb/s"
        Raises InputError for an unknown server or NIC, a fraction outside [0, 1], and more than the NIC's rate.
        """
        server_name, slash, nic_name = nic.partition("/") if isinstance(nic, str) else ("", "", "")
        if not slash or not server_name or not nic_name:
            raise InputError("not a NIC", where=str(nic), expected="SERVER/NIC, such as server1/mlx5_0", got=nic)
        s = _index(server_name, [x.name for x in self.servers], "server", "the cluster")
        server = self.servers[s]
        i = _index(as_named(nic_name, server), [x.name for x in server.nics], "NIC", server_name)
        old = server.nics[i]
        out_rate, in_rate = rates_left(nic, old, left)
        return replace(self.with_nic(s, i, replace(old, out_rate=out_rate, in_rate=in_rate)), pristine=self.fault_free)

    def with_nic(self, server: int, index: int, nic: Nic) -> Cluster:
        """The cluster with NIC number `index` of server number `server` exchanged."""
        old = self.servers[server]
        new = replace(old, nics=(*old.nics[:index], nic, *old.nics[index + 1 :]))
        return replace(self, servers=(*self.servers[:server], new, *self.servers[server + 1 :]))

    @property
    def fault_free(self) -> Cluster:
        """The cluster as it was before every `degrade`."""
        return self.pristine or self

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """The participants: one rank per server, owning all its NICs, or one per GPU, owning the NICs beside it."""
        if not self.gpu_ranks:
            return tuple(Rank(i, s.name, i, s.nics) for i, s in enumerate(self.servers))
        owned = [
            (s, f"{server.name}/gpu{g}", tuple(nic for i, nic in enumerate(server.nics) if server.gpu_of(i) == g))
            for s, server in enumerate(self.servers)
            for g in range(server.gpus)
        ]
        return tuple(Rank(r, name, s, nics) for r, (s, name, nics) in enumerate(owned))

    @cached_property
    def uplinks(self) -> dict[tuple[str, object, str], Fraction]:
        """Bytes per second of ("spine", rail, "out" or "in") and of ("pod", pod, "out" or "in"), where they are limits.

        A link was built for the NICs behind it, and keeps its rate when one of them fails.
        """
        totals: dict[tuple[str, object, str], Fraction] = {}
        for server in self.fault_free.servers:
            for i, nic in enumerate(server.nics):
                for way, rate in (("out", nic.out_rate), ("in", nic.in_rate)):
                    for kind, which, factor in (
                        ("spine", nic.rail if nic.rail is not None else i, self.fabric.spine),
                        ("pod", server.pod, self.fabric.pod_oversubscription),
                    ):
                        if factor is not None:
                            key = (kind, which, way)
                            totals[key] = totals.get(key, Fraction(0)) + rate / factor
        return totals

    def scaled(self, factor: Number) -> Cluster:
        """The same cluster with every NIC and NVLink rate times `factor`. Raises InputError for one below 0."""

        def scale(cluster: Cluster) -> tuple[Server, ...]:
            return tuple(
                replace(
                    s,
                    nics=tuple(replace(n, out_rate=n.out_rate * factor, in_rate=n.in_rate * factor) for n in s.nics),
                    nvlink_rate=s.nvlink_rate * factor,
                )
                for s in cluster.servers
            )

        pristine = replace(self.pristine, servers=scale(self.pristine)) if self.pristine else None
        return replace(self, servers=scale(self), pristine=pristine)


MAX_NICS = 2**20
"""In all servers together, as many GPUs as ranks: beyond any cluster that exists, and few enough to hold in memory."""
SHOWN_KINDS = 3
"""Kinds of servers that a cluster's repr tells apart, for a line's length."""


def check_nic_count(count: int, where: str) -> None:
    """Raise InputError for more NICs in all than `MAX_NICS`."""
    if count > MAX_NICS:
        raise InputError("too many NICs in all", where=where, expected=f"at most {MAX_NICS}", got=count)


def _index(name: str, names: list[str], what: str, where: str) -> int:
    if name not in names:
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise InputError(f"no such {what} in {where}", where=name, expected=f"one of {shown}", got=name)
    return names.index(name)


def degrade_all(cluster: Cluster, failures: Iterable[tuple[str, Number | float]]) -> Cluster:
    """Apply several (NIC, fraction left) failures in order."""
    for nic, left in failures:
        cluster = cluster.degrade(nic, left)
    return cluster
