"""Verdicts that are wider than a NIC: a server whose NICs cannot be told apart, all slow alike, more than can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optcc.diagnose.averages import BEYOND, TWO, Standard
from optcc.diagnose.doubt import NicConfidence, Sure, how_sure
from optcc.diagnose.fit import Fit, Problem, fit
from optcc.diagnose.ports import NicDirections


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
