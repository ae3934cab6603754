"""The cluster as values: servers with NICs on a fabric, and its ranks; failures; a cluster as JSON.

Values are frozen; a failure is a function to a new cluster. Rates are exact (`Fraction`, bytes per second) so that
bounds and shares are exact until they are printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from numbers import Integral
from typing import Annotated, Any

from optcc.errors import InputError, some
from optcc.values.json_records import LAST, As, Called, Index, Least, Name, Number, Whole, read_json, write_json
from optcc.values.units import Quantity, as_rate, format_rate, parse_fraction, parse_rate

MAX_COUNT = 2**16
"""Servers of a preset, NICs and GPUs of a server."""


@dataclass(frozen=True)
class Nic:
    """One network interface, full duplex. Rates may be given as text, too, such as "400Gb/s".

    out_rate : bytes per second that it sends, 0 if it is dead; in_rate : bytes per second that it receives
    rail : the switch plane; None: its place among the server's NICs
    gpu : the GPU that it sits beside, where known
    """

    name: Name
    out_rate: Annotated[Fraction, Called("out")]
    in_rate: Annotated[Fraction, Called("in")]
    rail: Index | None = None
    gpu: Index | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "NIC")
        object.__setattr__(self, "out_rate", as_rate(self.out_rate, f"{self.name}.out_rate"))
        object.__setattr__(self, "in_rate", as_rate(self.in_rate, f"{self.name}.in_rate"))

    @property
    def alive(self) -> bool:
        """Able to carry traffic in at least one direction."""
        return self.out_rate > 0 or self.in_rate > 0


@dataclass(frozen=True)
class Server:
    """A server: its NICs, its GPU count, its pod.

    nics : in the order of their places, with unique names; gpus : how many; pod : its name, None: in no pod
    nvlink_rate : bytes per second of one GPU's NVLink port, each way, 0 if none is described; also text such as
        "450GB/s"
    """

    name: Name
    nics: Annotated[tuple[Nic, ...], LAST]
    gpus: Annotated[int, Whole(1, MAX_COUNT)] = 1
    nvlink_rate: Fraction = field(default=Fraction(0))
    pod: Name | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "server")
        object.__setattr__(self, "nvlink_rate", as_rate(self.nvlink_rate, f"{self.name}.nvlink_rate"))
        seen: set[str] = set()
        for nic in self.nics:
            if nic.name in seen:
                raise InputError("two NICs of one name", where=self.name, expected="unique NIC names", got=nic.name)
            seen.add(nic.name)
        if self.gpus < 1:
            raise InputError("no GPU", where=self.name, expected="gpus >= 1", got=self.gpus)
        if self.gpus > MAX_COUNT:
            raise InputError("too many GPUs", where=self.name, expected=f"at most {MAX_COUNT}", got=self.gpus)
        for nic in self.nics:
            if nic.gpu is not None and not 0 <= nic.gpu < self.gpus:
                expected = f"gpu 0 to {self.gpus - 1}"
                raise InputError("no such GPU", where=f"{self.name}/{nic.name}", expected=expected, got=nic.gpu)
        if self.pod is not None:
            check_name(self.pod, "pod")

    def gpu_of(self, nic: int) -> int:
        """The GPU that NIC number `nic` sits beside: as described, else dealt out evenly in order."""
        home = self.nics[nic].gpu
        return home if home is not None else nic * self.gpus // len(self.nics)

    @property
    def out_rate(self) -> Fraction:
        """Sum of live NIC rates out of the server, bytes per second."""
        return sum((nic.out_rate for nic in self.nics), Fraction(0))

    @property
    def in_rate(self) -> Fraction:
        """Sum of live NIC rates into the server, bytes per second."""
        return sum((nic.in_rate for nic in self.nics), Fraction(0))


def check_name(name: str, what: str) -> None:
    """Raise InputError for what is no name of a server, NIC or pod.

    Names are written SERVER/NIC=FRACTION on the command line and shown on terminals and in figures.
    """
    if not (isinstance(name, str) and 0 < len(name) <= 255 and name.isprintable() and not set(name) & set(" /=")):
        expected = "1 to 255 printable characters without space, '/' and '='"
        raise InputError(f"not a {what} name", where=what, expected=expected, got=str(name)[:255])


def check_count(count: int, where: str) -> None:
    """Raise InputError for a number of servers, NICs or GPUs that is none, below 1 or above `MAX_COUNT`."""
    if isinstance(count, bool) or not isinstance(count, Integral) or not 1 <= count <= MAX_COUNT:
        raise InputError("count out of range", where=where, expected=f"1 to {MAX_COUNT}", got=count)


def rates_left(where: str, nic: Nic, left: Quantity) -> tuple[Fraction, Fraction]:
    """What is left of a NIC's rates (out, in), in bytes per second; a rate that is left holds for both ways."""
    if isinstance(left, str):
        text = left
        try:
            left = parse_fraction(text, where)
        except InputError as error:
            try:
                rate = parse_rate(text)
            except InputError:
                expected = f"{error.expected}, or a rate such as 150Gb/s"
                raise InputError("not what is left", where=where, expected=expected, got=error.got) from None
            if rate > max(nic.out_rate, nic.in_rate):
                expected = f"at most {format_rate(max(nic.out_rate, nic.in_rate))}"
                raise InputError("more than the NIC's rate", where=where, expected=expected, got=text) from None
            return min(rate, nic.out_rate), min(rate, nic.in_rate)
    if not isinstance(left, int | float | Fraction) or not 0 <= left <= 1:
        raise InputError("fraction left out of range", where=where, expected="0 to 1", got=str(left))
    fraction = Fraction(str(left)) if isinstance(left, float) else Fraction(left)
    return nic.out_rate * fraction, nic.in_rate * fraction


def as_named(nic: str, server: Server) -> str:
    """The name of a NIC as `server` has it: port 1 is NAME here, where NCCL_IB_HCA may write NAME:1."""
    names = {x.name for x in server.nics}
    return nic.removesuffix(":1") if nic not in names and nic.removesuffix(":1") in names else nic


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
        raise InputError(f"no such {what} in {where}", where=name, expected=f"one of {some(names, 12)}", got=name)
    return names.index(name)


def degrade_all(cluster: Cluster, failures: Iterable[tuple[str, Number | float]]) -> Cluster:
    """Apply several (NIC, fraction left) failures in order."""
    for nic, left in failures:
        cluster = cluster.degrade(nic, left)
    return cluster


Servers = Annotated[tuple[Server, ...], Least(1)]


@dataclass(frozen=True)
class ClusterFields:
    """A cluster as files have it.

    gpu_ranks : true: every GPU is a rank; false: every server is one
    cluster : servers as they are now. Ranks are numbered in this order
    pristine : as they were before any failure, where that is known
    """

    fabric: Fabric
    gpu_ranks: bool
    cluster: Servers
    pristine: Servers | None

    @classmethod
    def of(cls, cluster: Cluster) -> ClusterFields:
        """The fields of `cluster`."""
        before = cluster.pristine.servers if cluster.pristine else None
        return cls(cluster.fabric, cluster.gpu_ranks, cluster.servers, before)

    def value(self) -> Cluster:
        """The cluster. Raises InputError where its servers do not make one."""
        now = Cluster(self.cluster, fabric=self.fabric, gpu_ranks=self.gpu_ranks)
        if not self.pristine:
            return now
        if _places(self.pristine) != _places(self.cluster):
            raise InputError(
                "other servers than those of the cluster",
                where="pristine",
                expected="servers, pods, NICs and rails as in cluster, at their rates before any failure",
                got=f"{len(self.pristine)} servers, {self.pristine[0].name} first",
            )
        return replace(now, pristine=replace(now, servers=self.pristine))


def _places(servers: Servers) -> list[tuple[object, ...]]:
    """What a failure leaves as it was."""
    return [(server.name, server.pod, *((nic.name, nic.rail) for nic in server.nics)) for server in servers]


InFile = Annotated[Cluster, As(ClusterFields, ClusterFields.of, ClusterFields.value, flat=True)]
"""The fields stand among those of the file."""


def cluster_out(cluster: Cluster) -> dict[str, Any]:
    """Its fields `fabric`, `gpu_ranks`, `cluster` and `pristine` (docs/plan-format.md)."""
    return write_json(InFile, cluster)  # type: ignore[no-any-return]


def cluster_in(raw: Any) -> Cluster:
    """The cluster of these fields. FieldError or InputError for anything else."""
    return read_json(InFile, raw)  # type: ignore[no-any-return]
