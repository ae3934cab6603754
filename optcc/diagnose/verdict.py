"""The verdict: which NICs explain what was measured, how sure that is, and what to measure where it cannot be told."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from optcc.diagnose.evidence import IN, NOTHING, OUT, Evidence, NicDirections, Sign, port
from optcc.diagnose.fit import (
    BEYOND,
    DEGRADED,
    EXACT,
    LEAST_NOISE,
    NOISE,
    TWO,
    Average,
    Fit,
    NicConfidence,
    Problem,
    Standard,
    Sure,
    averages,
    doubts,
    fit,
    how_sure,
    problem,
)
from optcc.values.cluster import Cluster, Nic, Server

SIZES = "-b 256M -e 4G -f 2 -g 1"
MOST_NAMED = 8
MOST_SUSPECTS = 4
MANY = 16
"""NICs that fit alike from which whole rails are measured: pairs would clear too few of them."""


@dataclass(frozen=True)
class Measure:
    """`why` : what it tells; `command` : to be run on the cluster, its output being evidence."""

    why: str
    command: str


@dataclass(frozen=True)
class Open:
    """A NIC that is named: its rivals, and whether these are as likely."""

    nic: str
    rivals: Sequence[str]
    possible: bool


def what_to_measure(
    named: Sequence[Open],
    paths: Sequence[tuple[str, Sequence[str]]],
    low: Sequence[str],
    paced: bool,
    unmeasured: Sequence[str],
    suspects: Sequence[str],
    ports: NicDirections,
) -> tuple[Measure, ...]:
    """What would settle what is open, at most `MOST_NAMED` commands.

    paths : slow measurements that no NIC explains, (where, NICs) each; low : kinds whose healthy rate is not known
    paced : whether anything was measured; unmeasured : NICs not seen at their rate; suspects : those with grave signs
    """
    if low and not named:
        return all_pairs(ports, f"of {', '.join(low)} none may be healthy: ")
    if not paced and not named:
        return each_rail(ports, "nothing was measured")
    open_ = [one for one in named if one.possible]
    many = min(len(ports.cluster.servers), MANY)
    if wide := [len(one.rivals) + 1 for one in open_ if len(one.rivals) >= many]:
        return each_rail(ports, f"{max(wide)} NICs fit alike")
    names = [one.nic for one in named]
    wanted = [measure for one in open_ for measure in apart(one.nic, one.rivals, names, ports)]
    wanted += [measure for where, nics in paths for measure in path_again(where, nics, ports)]
    wanted += [measure for nic in suspects[:MOST_SUSPECTS] for measure in apart(nic, (), names, ports)]
    if not named and unmeasured:
        more = " and others" if len(unmeasured) > 3 else ""
        wanted += all_pairs(ports, f"nothing measured {', '.join(unmeasured[:3])}{more}: ")
    return tuple(dict.fromkeys(wanted))[:MOST_NAMED]


def pair(one: str, other: str, nic: str, gpu: int, why: str) -> Measure:
    """Between two servers over the NICs of one name."""
    run = (
        f"mpirun -np 2 -H {shlex.quote(one)},{shlex.quote(other)} -x NCCL_IB_HCA=={shlex.quote(nic)} "
        f"-x CUDA_VISIBLE_DEVICES={gpu} -x NCCL_DEBUG=INFO sendrecv_perf {SIZES} > {one}-{other}-{nic}.txt"
    )
    return Measure(why, run)


def apart(name: str, rivals: Sequence[str], suspects: Sequence[str], ports: NicDirections) -> list[Measure]:
    """Tells `name` from `rivals`: it alone of them, with a server that is under no suspicion."""
    server, _, nic = name.partition("/")
    index = [n.name for n in ports.by_name[server].nics].index(nic)
    under = {other.partition("/")[0] for other in (*rivals, *suspects)} | {server}
    free = next((s.name for s in ports.cluster.servers if s.name not in under and _has(s, nic)), None)
    if free is None:
        free = next((s.name for s in ports.cluster.servers if s.name != server and _has(s, nic)), None)
    if free is None:
        return []
    told = f"tells {name} from {', '.join(rivals[:MOST_NAMED])}" if rivals else f"measures {name} alone"
    return [pair(server, free, nic, ports.by_name[server].gpu_of(index), told)]


def path_again(where: str, nics: Sequence[str], ports: NicDirections) -> list[Measure]:
    """A slow measurement of two servers once more, the other way round."""
    servers = list(dict.fromkeys(name.partition("/")[0] for name in nics))
    names = list(dict.fromkeys(name.partition("/")[2] for name in nics))
    if len(servers) != 2 or len(names) != 1:
        return []
    index = [n.name for n in ports.by_name[servers[1]].nics].index(names[0])
    gpu = ports.by_name[servers[1]].gpu_of(index)
    return [pair(servers[1], servers[0], names[0], gpu, f"{where} again: is it the path, or was it once?")]


def each_rail(ports: NicDirections, why: str) -> tuple[Measure, ...]:
    """One AllReduce for each NIC of a server, over all servers: tells which rail; pairs then tell which server."""
    servers = ports.cluster.servers
    first = servers[0]
    hosts = ",".join(server.name for server in servers) if len(servers) <= MOST_NAMED else "$HOSTS"
    nics = " ".join(shlex.quote(nic.name) for nic in first.nics)
    command = (
        f"for nic in {nics}; do mpirun -np {len(servers)} -H {hosts} -x NCCL_IB_HCA==$nic "
        f"-x NCCL_DEBUG=INFO all_reduce_perf {SIZES} > all_reduce-$nic.txt; done"
    )
    return (Measure(f"{why}: one AllReduce for each NIC tells the rail", command), *all_pairs(ports))


def all_pairs(ports: NicDirections, why: str = "") -> tuple[Measure, ...]:
    """Over each NIC every server with the next one, and with the one after that."""
    servers = ports.cluster.servers
    if len(servers) < 2:
        return ()
    nics = " ".join(shlex.quote(nic.name) for nic in servers[0].nics)
    names = " ".join(server.name for server in servers) if len(servers) <= MOST_NAMED else "${HOSTS//,/ }"
    command = (
        f"set -- {names}; for nic in {nics}; do for far in 1 2; do for i in $(seq $#); do "
        f"a=${{!i}}; j=$(( (i - 1 + far) % $# + 1 )); b=${{!j}}; "
        f"mpirun -np 2 -H $a,$b -x NCCL_IB_HCA==$nic -x NCCL_DEBUG=INFO sendrecv_perf {SIZES} "
        f"> $a-$b-$nic.txt; done; done; done"
    )
    return (Measure(f"{why}each NIC with two others tells which it is", command),)


def _has(server: Server, nic: str) -> bool:
    return any(one.name == nic for one in server.nics)


@dataclass(frozen=True)
class SlowServer:
    """A server that explains slow measurements, by one NIC or more that cannot be told from its others.

    left : what is left of the slowest of these; sure, more : as of a NIC, against explanations without this server
    nics : those that it could be
    """

    server: str
    left: float
    sure: Sure
    more: float
    nics: tuple[str, ...]


@dataclass(frozen=True)
class SlowAlike:
    """All that was measured of a kind is far below nameplate: `reached` is a part of it, the most that was seen.

    alike : enough of them reach the same to say that the cause is one for all
    """

    kind: str
    reached: float
    alike: bool


@dataclass(frozen=True)
class Beyond:
    """A kind of which one measurement, at `where`, reached more than nameplate allows: `reached` times it."""

    kind: str
    reached: float
    where: str

    @property
    def why(self) -> str:
        """What may be the reason."""
        if self.kind.endswith(TWO):
            return (
                "NCCL's Tree passes as many bytes as the buffer has, which a ring passes nearly twice; "
                "else the topology's rates are too low"
            )
        return "the topology's rates are too low, or other NICs were used than the log says"


def slow_servers(
    given: Problem, found: Fit, sure: Mapping[int, NicConfidence], ports: NicDirections
) -> tuple[SlowServer, ...]:
    """Servers with a NIC that could be another of the same server, where without the server more faults are needed."""
    open_: dict[str, set[int]] = {}
    for nic in found.nics:
        if sure[nic].sure is Sure.POSSIBLE:
            open_.setdefault(_server(nic, ports), set()).update({nic, *sure[nic].twins})
    servers = []
    for server, alike in open_.items():
        its = alike & set(ports.nics_of(server))
        more = fit(given, without=its).price - found.price
        if len(its) < 2 or (how := how_sure(more)) is Sure.POSSIBLE:
            continue
        left = min(rate.left for port, rate in found.rates.items() if port // 2 in its)
        names = tuple(ports.names[nic] for nic in sorted(its))
        servers.append(SlowServer(server, left, how, more, names))
    return tuple(sorted(servers, key=lambda one: one.left))


def _server(nic: int, ports: NicDirections) -> str:
    return ports.names[nic].partition("/")[0]


def slow_alike(standards: Sequence[Standard], explained: bool) -> tuple[SlowAlike, ...]:
    """explained : whether NICs or paths are named, so that one slow measurement is no riddle."""
    return tuple(
        SlowAlike(one.kind, one.part if one.slow_alike else one.best, one.slow_alike)
        for one in standards
        if one.slow_alike or (one.far_below and not one.low and not explained)
    )


def beyond(standards: Sequence[Standard]) -> tuple[Beyond, ...]:
    """Kinds that reached more than `BEYOND` of nameplate."""
    return tuple(Beyond(one.kind, one.best, one.where) for one in standards if one.best > BEYOND)


DIGITS = 1000
"""Rates of the suspected cluster are fractions of this: a tenth of a per cent is below any noise."""


class Outcome(StrEnum):
    """`DEGRADED` NICs are named, or a server; `HEALTHY` nothing measured is slow; `CANNOT_TELL` the evidence is too
    thin, or fits several explanations alike, or all are slow alike."""

    DEGRADED = "degraded"
    HEALTHY = "healthy"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Finding:
    """A NIC that explains slow measurements.

    out, into : what is left of its healthy rate, None where no slow measurement needs that way
    spread : one standard deviation of these, as a fraction of them; sure : how sure; more : faults that the best other
    explanation needs beyond this one; instead : NICs that it blames; twins : NICs that fit as well, each in its place
    where : the measurements that it explains, some of them; signs : what else was said of it
    """

    nic: str
    out: float | None
    into: float | None
    spread: float
    sure: Sure
    more: float
    instead: tuple[str, ...]
    twins: tuple[str, ...]
    where: tuple[str, ...]
    explains: int
    signs: tuple[Sign, ...]

    @property
    def left(self) -> float:
        """What is left in the worse way."""
        return min(rate for rate in (self.out, self.into) if rate is not None)


@dataclass(frozen=True)
class SlowPath:
    """A measurement that is slow while everything on its way is fast elsewhere: cable, switch port, or routing between.

    left : what was reached over what a healthy cluster reaches; nics : that it used, some of them
    """

    where: str
    kind: str
    left: float
    nics: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Which NICs, or what else, explain what was measured.

    measured, averaged : measurements, and how many of them differ in kind or NICs; noise : the spread of one
    misfit : root mean square of what is left over, in units of the noise: 1 where nothing is
    unmeasured : NICs that are neither named nor seen at their healthy rate: measured nowhere, or with slower ones alone
    servers : where it is a server's NICs that cannot be told apart; alike : kinds of which all are far below nameplate
    causes : what the evidence shows that slows all alike; beyond : rates that cannot be
    """

    outcome: Outcome
    findings: tuple[Finding, ...]
    paths: tuple[SlowPath, ...]
    together: tuple[str, ...]
    signs: tuple[Sign, ...]
    measured: int
    averaged: int
    noise: float
    misfit: float
    standards: tuple[Standard, ...]
    unmeasured: tuple[str, ...]
    measure: tuple[Measure, ...]
    servers: tuple[SlowServer, ...] = ()
    alike: tuple[SlowAlike, ...] = ()
    causes: tuple[str, ...] = ()
    beyond: tuple[Beyond, ...] = ()

    def suspected(self, cluster: Cluster) -> Cluster:
        """`cluster` with the rates that were found."""
        found = {finding.nic: finding for finding in self.findings}
        hurt = {nic.partition("/")[0] for nic in found}

        def now(server: Server, nic: Nic) -> Nic:
            finding = found.get(f"{server.name}/{nic.name}")
            if finding is None:
                return nic
            out, into = _fraction(finding.out), _fraction(finding.into)
            return replace(nic, out_rate=nic.out_rate * out, in_rate=nic.in_rate * into)

        servers = tuple(
            replace(server, nics=tuple(now(server, nic) for nic in server.nics)) if server.name in hurt else server
            for server in cluster.servers
        )
        return replace(cluster, servers=servers, pristine=cluster.fault_free) if found else cluster


def _fraction(left: float | None) -> Fraction:
    """None: nothing slow needs this way."""
    if left is None:
        return Fraction(1)
    return Fraction(0) if left <= 2 * NOTHING else Fraction(max(1, round(left * DIGITS)), DIGITS)


def judge(evidence: Evidence, ports: NicDirections, noise: float | None = None, degraded: float = DEGRADED) -> Verdict:
    """What `evidence` says of the NICs.

    noise : the spread between runs, as a fraction; None: as the runs show it
    degraded : the part of its healthy rate that a NIC lacks at least where it is called so
    """
    averaged, standards, spread = averages(evidence.observations, noise)
    given = problem(averaged, degraded)
    found = fit(given)
    sure = doubts(given, found)
    findings = tuple(_finding(nic, given, found, sure[nic], evidence.signs, ports) for nic in found.nics)
    paths = tuple(_path(averaged[i], ports) for i in found.paths)
    named = {finding.nic for finding in findings}
    unmeasured = tuple(name for name in _not_shown_well(averaged, found, ports) if name not in named)
    others = tuple(s for s in evidence.signs if s.nic is None or ports.names[s.nic] not in named)
    paced = [average for average in averaged if not average.least and average.kind not in EXACT]
    low = [standard.kind for standard in standards if standard.low]
    servers = slow_servers(given, found, sure, ports)
    alike = slow_alike(standards, bool(findings or paths))
    measure = what_to_measure(
        [Open(f.nic, f.twins or f.instead, f.sure is Sure.POSSIBLE) for f in findings],
        [(path.where, path.nics) for path in paths],
        low,
        bool(paced),
        unmeasured,
        [ports.names[s.nic] for s in others if s.grave and s.nic is not None],
        ports,
    )
    return Verdict(
        outcome=_outcome(findings, servers, bool(averaged) and not paths and not low and not alike),
        findings=tuple(sorted(findings, key=lambda f: (f.left, f.nic))),
        paths=paths,
        together=tuple(_together(named, unmeasured, ports)),
        signs=others,
        measured=len(evidence.observations),
        averaged=len(averaged),
        noise=spread,
        misfit=found.misfit,
        standards=tuple(standards),
        unmeasured=unmeasured,
        measure=measure,
        servers=servers,
        alike=alike,
        causes=evidence.causes,
        beyond=beyond(standards),
    )


def _not_shown_well(averaged: Sequence[Average], found: Fit, ports: NicDirections) -> list[str]:
    """NICs that no measurement shows at their healthy rate, both ways."""
    well = {
        number
        for average in averaged
        for number, log in average.logs.items()
        if log >= -found.limit * min(NOISE, max(average.spread, LEAST_NOISE))  # what is but assumed shows little
    }
    return [name for nic, name in enumerate(ports.names) if not {port(nic, OUT), port(nic, IN)} <= well]


def _outcome(findings: Sequence[Finding], servers: Sequence[SlowServer], well: bool) -> Outcome:
    if findings:
        told = servers or any(finding.sure is not Sure.POSSIBLE for finding in findings)
        return Outcome.DEGRADED if told else Outcome.CANNOT_TELL
    return Outcome.HEALTHY if well else Outcome.CANNOT_TELL


def _finding(
    nic: int, given: Problem, found: Fit, doubt: NicConfidence, signs: Sequence[Sign], ports: NicDirections
) -> Finding:
    rates = [found.rates.get(port(nic, way)) for way in (OUT, IN)]
    which = sorted({i for rate in rates if rate for i in rate.explains}, key=lambda i: given.averages[i].pace)
    left = [None if rate is None else (0.0 if rate.left <= 2 * NOTHING else rate.left) for rate in rates]
    return Finding(
        nic=ports.names[nic],
        out=left[OUT],
        into=left[IN],
        spread=max((rate.spread for rate in rates if rate), default=0.0),
        sure=doubt.sure,
        more=doubt.more,
        instead=tuple(ports.names[n] for n in doubt.instead),
        twins=tuple(ports.names[n] for n in doubt.twins),
        where=tuple(dict.fromkeys(given.averages[i].where for i in which))[:4],
        explains=len(which),
        signs=tuple(sign for sign in signs if sign.nic == nic)[:8],
    )


def _path(average: Average, ports: NicDirections) -> SlowPath:
    nics = tuple(dict.fromkeys(ports.names[number // 2] for number in average.logs))
    return SlowPath(average.where, average.kind, math.exp(average.pace), nics[:8])


def _together(named: Collection[str], unseen: Collection[str], ports: NicDirections) -> list[str]:
    """Servers and rails of which most NICs are named and no other was seen at its full rate: a shared cause is likelier
    than separate ones."""
    groups: dict[str, set[str]] = defaultdict(set)
    for nic, name in enumerate(ports.names):
        groups[f"{name.partition('/')[0]}: look for what they share, such as its PCIe tree, firmware or power"].add(
            name
        )
        groups[f"rail {ports.rail(nic)}: look for what they share, such as its switch"].add(name)
    said = []
    for what, names in groups.items():
        slow = names & set(named)
        if len(slow) > 1 and 2 * len(slow) > len(names) and names <= {*named, *unseen}:
            count = f"all {len(names)}" if slow == names else f"{len(slow)} and maybe all {len(names)}"
            said.append(f"{count} NICs of {what}")
    return said
