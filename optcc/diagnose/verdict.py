"""The verdict: which NICs explain what was measured, how sure that is, and what to measure where it cannot be told."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from optcc.diagnose.averages import EXACT, Average, Standard, averages
from optcc.diagnose.doubt import NicConfidence, Sure, doubts
from optcc.diagnose.evidence import NOTHING, Evidence, Sign
from optcc.diagnose.fit import DEGRADED, Fit, Problem, fit, problem
from optcc.diagnose.measure import Measure, Open, what_to_measure
from optcc.diagnose.noise import LEAST_NOISE, NOISE
from optcc.diagnose.ports import IN, OUT, NicDirections, port
from optcc.diagnose.wider import Beyond, SlowAlike, SlowServer, beyond, slow_alike, slow_servers
from optcc.values.cluster import Cluster, Nic, Server

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
    """See the module.

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
