"""A lower bound and its certificate, as values and as JSON, and the check of a closed form's certificate.

The check knows the two facts (what crosses a cut; how many transfers an element needs) and nothing of how the bound
was found. `optcc.theory.check_bound` checks the whole of a bound; `optcc.theory.bound_file` writes what proves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from optcc.errors import CertificateError
from optcc.values.cluster import Cluster, Rank
from optcc.values.json_records import Bytes, Called, Index
from optcc.values.units import format_rate

if TYPE_CHECKING:
    from optcc.theory.sensitivity import JointRepair, Repair


Kind = Literal["cut", "traffic", "trivial"]
Direction = Literal["out", "in"]


LARGEST_GAP = Fraction(1, 10**6)
"""Between the rate that the program proves reachable and the rate it proves unbeatable; anything wider is refused."""


@dataclass(frozen=True)
class Certificate:
    """Why no AllReduce is faster: at least `nbytes` must pass ports that carry `rate` bytes per second in all.

    kind : "cut": one rank, through whose ports n bytes must pass (proof id ``cut``); "traffic": all ranks, whose ports
        must pass 2(P-1)n bytes together (proof id ``traffic``); "trivial": a single rank, nothing to send
    direction : of the ports, "out" or "in"; ranks : the indices of the ranks whose ports they are
    """

    kind: Kind
    direction: Direction
    ranks: tuple[Index, ...]
    nbytes: int
    rate: Fraction

    @property
    def seconds(self) -> Fraction:
        """The time the certificate proves necessary."""
        return self.nbytes / self.rate if self.nbytes else Fraction(0)

    def scaled(self, factor: Fraction) -> Certificate:
        """The same on a cluster whose rates are all times `factor`."""
        return replace(self, rate=self.rate * factor)


@dataclass(frozen=True)
class Price:
    """A resource that the bound pays for: `share` of the whole price, for `count` equal ones together.

    `nics` are the SERVER/NIC names behind it, if any; raising the rate of them all by 1 byte/s raises the reachable
    rate by `gain` bytes/s, to first order.
    """

    what: str
    share: Fraction
    count: int
    gain: Fraction
    nics: tuple[str, ...] = ()


@dataclass(frozen=True)
class DualCut:
    """A weighted cut of the dual: `side` broadcast or reduce, as `seen_from` rank type, around the nodes `inside`."""

    side: Literal["broadcast", "reduce"]
    seen_from: Index
    inside: tuple[int, ...]
    weight: int


@dataclass(frozen=True)
class PrimalFlow:
    """One flow of the primal: `units[i]` go from node `source[i]` to node `target[i]` of the view of rank type
    `seen_from`.

    side "broadcast": from the roots to that rank, which is node 0; "reduce": the same backwards. As a source the number
    after the last node stands for the roots.
    """

    side: Literal["broadcast", "reduce"]
    seen_from: Index
    source: Annotated[tuple[int, ...], Called("from")]
    target: Annotated[tuple[int, ...], Called("to")]
    units: tuple[int, ...]


@dataclass(frozen=True)
class ProgramPrimal:
    """How a rate is reached: whole numbers of `unit` bytes per second.

    broadcast, reduce : capacity of every pair of ranks by each way; roots : root weight of each rank, by rank type
    flows : one for each rank type and half of the collective
    """

    unit: Annotated[Fraction, Called("unit_exact")]
    broadcast: tuple[int, ...]
    reduce: tuple[int, ...]
    roots: tuple[int, ...]
    flows: tuple[PrimalFlow, ...]


@dataclass(frozen=True)
class ProgramCertificate:
    """The linear program's answer: no schedule of tree pairs moves more than `rate` bytes per second per rank, and
    `reached` is possible.

    `optcc.theory.bounds.scope_of` says whether it binds every protocol, as `Bound` says; where not, no schedule that
    forwards and adds is faster by proof id ``tree-pairs``, checked for up to 6 ranks and conjectured beyond.
    `cuts` and `resource_prices`, over `denominator`, are the dual, which proves `rate`; `prices` tells it in words,
    dearest first; `primal` proves `reached`, and is None in what a plan file carries. `optcc.theory.check_bound` checks
    them all. Proof id ``linear-program``.
    """

    rate: Fraction
    reached: Fraction
    nbytes: Bytes
    prices: tuple[Price, ...]
    cuts: tuple[DualCut, ...]
    resource_prices: tuple[int, ...]
    denominator: int
    collective: str = "allreduce"
    root: str | None = None
    kind: Literal["program"] = "program"
    primal: ProgramPrimal | None = field(default=None, repr=False, compare=False)

    @property
    def seconds(self) -> Fraction:
        """The time the certificate proves necessary."""
        return self.nbytes / self.rate

    @property
    def gap(self) -> Fraction:
        """rate / reached - 1: what rounding leaves open between the bound and what is proved possible."""
        return self.rate / self.reached - 1

    def scaled(self, factor: Fraction) -> ProgramCertificate:
        """The same on a cluster whose rates are all times `factor`."""
        primal = self.primal and replace(self.primal, unit=self.primal.unit * factor)
        return replace(self, rate=self.rate * factor, reached=self.reached * factor, primal=primal)


@dataclass(frozen=True)
class Bound:
    """The least time of an AllReduce in the fluid limit (no latency, no cost per message), and its proof.

    Holds for sums over a finite abelian group (whole numbers of a fixed width, say) by any protocol, coded or not; for
    other operations if schedules forward and combine elements. Proof ids ``cut``, ``traffic`` and ``coding``; for what
    a ProgramCertificate proves, see there.

    nbytes : bytes per rank
    seconds : no AllReduce is faster; fault_free_s : the same before any failure
    bottleneck : what limits it, in words
    certificate : proves `seconds`; a closed form's, or the linear program's
    fault_free : proves `fault_free_s` where the program gives it; None for a closed form, which is computed again, and
        in plan files
    """

    nbytes: int
    seconds: Fraction
    fault_free_s: Fraction
    bottleneck: str
    certificate: Certificate | ProgramCertificate = field(repr=False)
    fault_free: ProgramCertificate | None = field(default=None, repr=False, compare=False)

    @property
    def overhead(self) -> Fraction:
        """seconds / fault_free_s - 1: what the failures cost at best."""
        return self.seconds / self.fault_free_s - 1 if self.fault_free_s else Fraction(0)


def check_certificate(cluster: Cluster, bound: Bound) -> None:
    """Raise CertificateError unless `bound.certificate`, a closed form's, proves `bound.seconds` on `cluster`, exactly.

    It looks at no other field of the bound: `optcc.theory.check_bound` checks all of it, and both kinds of certificate.
    """
    ranks, cert = cluster.ranks, bound.certificate
    if isinstance(cert, ProgramCertificate):
        raise CertificateError("a program's certificate is checked by optcc.theory.check_bound")
    if any(not 0 <= r < len(ranks) for r in cert.ranks) or len(set(cert.ranks)) != len(cert.ranks):
        raise CertificateError(f"certificate names ranks {cert.ranks}, the cluster has 0..{len(ranks) - 1}")
    rates = [r.out_rate if cert.direction == "out" else r.in_rate for r in ranks]
    rate = sum((rates[r] for r in cert.ranks), Fraction(0))
    if cert.kind == "trivial":
        demand, scope = 0, len(ranks) == 1
    elif cert.kind == "cut":
        demand, scope = bound.nbytes, len(cert.ranks) == 1 and len(ranks) > 1
    else:
        demand, scope = 2 * (len(ranks) - 1) * bound.nbytes, len(cert.ranks) == len(ranks)
    if not scope:
        raise CertificateError(f"a {cert.kind} certificate cannot be about {len(cert.ranks)} of {len(ranks)} ranks")
    if cert.rate != rate:
        raise CertificateError(f"certificate claims {cert.rate} B/s {cert.direction}, the cluster has {rate}")
    if cert.nbytes != demand:
        raise CertificateError(f"certificate claims {cert.nbytes} bytes must pass, {cert.kind} proves {demand}")
    if demand and not rate:
        raise CertificateError("the certificate divides by a rate of zero")
    if bound.seconds != cert.seconds:
        raise CertificateError(f"bound is {bound.seconds} s, the certificate proves {cert.seconds} s")


def closed_form_s(ranks: tuple[Rank, ...], nbytes: int) -> Fraction:
    """The optimum on one non-blocking fabric, in seconds: the largest of the four terms. Proof ids cut, traffic,
    attained.

    Raises CertificateError where a rank has no rate one way.
    """
    if len(ranks) == 1:
        return Fraction(0)
    sides = [r.out_rate for r in ranks], [r.in_rate for r in ranks]
    if not all(map(all, sides)):
        raise CertificateError("a rank is cut off one way: no AllReduce is possible")
    return max(
        nbytes * max(1 / min(rates), Fraction(2 * (len(ranks) - 1)) / sum(rates, Fraction(0))) for rates in sides
    )


def in_words(cluster: Cluster, cert: Certificate) -> str:
    """What the certificate says limits `cluster`, for people."""
    if cert.kind == "trivial":
        return "nothing: a single rank has nothing to send"
    way = "send" if cert.direction == "out" else "receive"
    if cert.kind == "traffic":
        return f"the traffic of all {len(cert.ranks)} servers, whose NICs together {way} {format_rate(cert.rate)}"
    server = cluster.servers[cluster.ranks[cert.ranks[0]].server]
    live = sum(nic.alive for nic in server.nics)
    return f"{server.name}, which can {way} {format_rate(cert.rate)} on {live} of {len(server.nics)} NICs"


@dataclass(frozen=True)
class FluidCosts:
    """The bound without costs, and one chunk and one way of latency for every port."""

    kind: Literal["fluid"] = "fluid"


@dataclass(frozen=True)
class CutCosts:
    """One server, whose live NICs one way must pass all bytes, in chunks that other ranks pass on.

    server : index; losses : seconds that each NIC with a rate in this direction loses, in order. It cuts its bytes into
    chunks and waits for chunks to be passed on
    """

    server: int
    direction: Direction
    losses: tuple[Fraction, ...]
    kind: Literal["cut"] = "cut"


@dataclass(frozen=True)
class TogetherCosts:
    """One server, whose live NICs one way, all of one rate, must pass all bytes, in chunks that all others together
    pass on.

    server : index; loss : seconds that the server loses. It cuts its bytes into chunks and waits for chunks to be
    passed on
    """

    server: int
    direction: Direction
    loss: Fraction
    kind: Literal["together"] = "together"


@dataclass(frozen=True)
class PairCosts:
    """Two starving servers, by index: a mean of what their ports need and of what waiting takes.

    weight : of the former, 0 or more, less than 1; levels : seconds that a chunk of each server counts at most, 0 or
    more. Any give a bound.
    """

    servers: tuple[int, int]
    weight: Fraction
    levels: tuple[Fraction, Fraction]
    kind: Literal["starving-pair"] = "starving-pair"


@dataclass(frozen=True)
class PostalCosts:
    """How fast chunks of no bytes spread what one server has (out), or bring to it what all others have (in).

    server : index; arrivals : (seconds, how many), in order of time. No sooner can so many more servers hold something
    from the server; for "in" the same with time reversed. Proof id postal
    """

    server: int
    direction: Direction
    arrivals: tuple[tuple[Fraction, int], ...]
    kind: Literal["postal"] = "postal"


@dataclass(frozen=True)
class OneHopCosts:
    """One server that gets all data of all others (in), or gives all of them its own (out), in chunks of one hop, or
    there is time for two hops.

    server : index; span : seconds in which its NICs cannot, `alpha` aside. Proof id one-hop
    """

    server: int
    direction: Direction
    span: Fraction
    kind: Literal["one-hop"] = "one-hop"


@dataclass(frozen=True)
class Part:
    """Seconds of a bound, and in words what they are for."""

    what: str
    seconds: Fraction


@dataclass(frozen=True)
class BoundWithCosts:
    """No schedule of whole chunks takes less than `seconds`; exact. In the simulator's model a chunk takes `per_chunk`
    seconds beside its bytes at the sending and at the receiving port, `alpha` passes in between, and it is passed on
    only when it has landed whole. Proof ids chunk-costs, starving-pair, postal and one-hop.

    bound : the same without costs
    alpha : seconds from port to port; per_chunk : seconds of each chunk at each port
    parts : what `seconds` is made of, in words
    """

    seconds: Fraction
    bound: Bound
    alpha: Fraction
    per_chunk: Fraction
    certificate: FluidCosts | CutCosts | TogetherCosts | PairCosts | PostalCosts | OneHopCosts
    parts: tuple[Part, ...]

    @property
    def extra_s(self) -> Fraction:
        """Seconds above the bound without costs."""
        return self.seconds - self.bound.seconds


GBPS = 125_000_000  # bytes per second


def bound_json(bound: Bound, cluster: Cluster) -> dict[str, Any]:
    """Seconds, what limits `cluster`, and the certificate. Names that end in _exact are of exact numbers, as text."""
    return {
        "bound_s": float(bound.seconds),
        "fault_free_s": float(bound.fault_free_s),
        "overhead": float(bound.overhead),
        "bottleneck": bound.bottleneck,
        "certificate": certificate_json(bound.certificate, cluster),
        "size": bound.nbytes,
        "ranks": len(cluster.ranks),
    }


def certificate_json(cert: Certificate | ProgramCertificate, cluster: Cluster) -> dict[str, Any]:
    """The certificate, without the network and the primal of a program's; its ranks by their names in `cluster`."""
    if isinstance(cert, ProgramCertificate):
        return {
            "kind": "program",
            "collective": cert.collective,
            "root": cert.root,
            "gap": float(cert.gap),
            "rate": float(cert.rate),
            "rate_exact": str(cert.rate),
            "reached_exact": str(cert.reached),
            "prices": [
                {
                    "what": p.what,
                    "count": p.count,
                    "share": float(p.share),
                    "share_exact": str(p.share),
                    "gain_exact": str(p.gain),
                    "nics": list(p.nics),
                }
                for p in cert.prices
            ],
            "cuts": [{**asdict(cut), "inside": list(cut.inside)} for cut in cert.cuts],
            "resource_prices": list(cert.resource_prices),
            "denominator": cert.denominator,
            "bound_s_exact": str(cert.seconds),
        }
    return {
        "kind": cert.kind,
        "direction": cert.direction,
        "ranks": [cluster.ranks[r].name for r in cert.ranks],
        "bytes": cert.nbytes,
        "rate": float(cert.rate),
        "rate_exact": str(cert.rate),
        "bound_s_exact": str(cert.seconds),
    }


def costs_json(found: BoundWithCosts, cluster: Cluster) -> dict[str, Any]:
    """What `optcc bound --alpha --per-chunk` adds to its JSON value. Times in seconds; exact ones are fractions."""
    cert = found.certificate
    certificate: dict[str, Any] = {"kind": cert.kind}
    if isinstance(cert, CutCosts):
        certificate["server"] = cluster.servers[cert.server].name
        certificate["direction"] = cert.direction
        certificate["losses_s_exact"] = [str(loss) for loss in cert.losses]
    elif isinstance(cert, TogetherCosts):
        certificate["server"] = cluster.servers[cert.server].name
        certificate["direction"] = cert.direction
        certificate["loss_s_exact"] = str(cert.loss)
    elif isinstance(cert, PairCosts):
        certificate["servers"] = [cluster.servers[s].name for s in cert.servers]
        certificate["weight"] = str(cert.weight)
        certificate["levels_s_exact"] = [str(level) for level in cert.levels]
    elif isinstance(cert, PostalCosts):
        certificate["server"] = cluster.servers[cert.server].name
        certificate["direction"] = cert.direction
        certificate["arrivals"] = [{"seconds_exact": str(when), "servers": many} for when, many in cert.arrivals]
    elif isinstance(cert, OneHopCosts):
        certificate["server"] = cluster.servers[cert.server].name
        certificate["direction"] = cert.direction
        certificate["span_s_exact"] = str(cert.span)
    return {
        "bound_with_costs_s": float(found.seconds),
        "costs": {
            "alpha_s": float(found.alpha),
            "alpha_s_exact": str(found.alpha),
            "per_chunk_s": float(found.per_chunk),
            "per_chunk_s_exact": str(found.per_chunk),
            "extra_s": float(found.extra_s),
            "parts": [{"what": part.what, "seconds": float(part.seconds)} for part in found.parts],
            "certificate": {**certificate, "bound_with_costs_s_exact": str(found.seconds)},
        },
    }


def repairs_json(repairs: Sequence[Repair]) -> list[dict[str, Any]]:
    """The JSON value of `optcc bound --repair-first`: seconds, and seconds saved per Gb/s restored."""
    return [
        {
            "nic": r.nic,
            "repaired_s": float(r.repaired_s),
            "saved_s": float(r.saved_s),
            "saved_s_per_gbps": float(r.gain_s_per_rate * GBPS),
        }
        for r in repairs
    ]


def together_json(steps: Sequence[JointRepair]) -> list[dict[str, Any]]:
    """The JSON value of joint repairs, one step after the other; times in seconds."""
    return [
        {"nics": list(step.nics), "repaired_s": float(step.repaired_s), "saved_s": float(step.saved_s)}
        for step in steps
    ]
