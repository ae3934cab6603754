"""The plan: small, exact, and enough for every rank to lower the same schedule by itself.

A plan is a few kilobytes of JSON whatever the size of the schedule. Its id is a hash of its content, so ranks
compare ids before the first byte moves, and an edited file is noticed.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from optcc.bound import Bound, Certificate
from optcc.cluster import Cluster, Nic, Server
from optcc.errors import InputError, OptccError
from optcc.schedule.columns import Schedule
from optcc.schedule.nested import Ordering, lower

VERSION = 1
_EXACT = re.compile(r"[0-9]{1,60}(/[0-9]{1,60})?")


@dataclass(frozen=True)
class Plan:
    """What to run on `cluster` for an AllReduce of `bound.nbytes` bytes per rank.

    Attributes
    ----------
    bound : the lower bound and its certificate
    family : "nested-rings" or "ring"
    shares : (ring size m, share of the data), shares sum to 1
    order : ranks from weakest to strongest; ring size m is the last m of them
    segments : pipeline depth; orderings : cycled over the segments
    """

    cluster: Cluster
    bound: Bound
    family: str
    shares: tuple[tuple[int, Fraction], ...]
    order: tuple[int, ...]
    segments: int
    orderings: tuple[Ordering, ...]

    @property
    def fluid_s(self) -> Fraction:
        """Seconds the schedule takes with infinitely many segments and no latency: its slowest port's work."""
        ranks = len(self.order)
        worst = Fraction(0)
        for place, r in enumerate(self.order):
            rank = self.cluster.ranks[r]
            load = sum(
                (s * (Fraction(m + ranks - 2, m) if place >= ranks - m else 1) for m, s in self.shares), Fraction(0)
            )
            worst = max(worst, load / min(rank.out_rate, rank.in_rate)) if load else worst
        return worst * self.bound.nbytes

    def schedule(self) -> Schedule:
        """Lower to transfers. Deterministic: equal plans give equal schedules, row for row."""
        return lower(
            self.cluster,
            self.bound.nbytes,
            dict(self.shares),
            order=self.order,
            segments=self.segments,
            orderings=self.orderings,
        )

    def baseline(self, algorithm: str) -> Plan:
        """The same job by another algorithm: "optcc" (this plan) or "ring" (one ring over all ranks, equal shards)."""
        if algorithm == "optcc":
            return self
        if algorithm != "ring":
            raise InputError("unknown algorithm", where="--algorithm", expected="optcc or ring", got=algorithm)
        ranks = len(self.order)
        shares = ((ranks, Fraction(1)),) if ranks > 1 else ()
        # A ring in cluster order, as libraries build it: the order of strength does not matter to it.
        return replace(self, family="ring", shares=shares, order=tuple(range(ranks)))

    def scaled(self, factor: Fraction) -> Plan:
        """The same plan on a cluster whose rates are all times `factor`: shares stay, seconds are divided by it."""
        bound = self.bound
        certificate = replace(bound.certificate, rate=bound.certificate.rate * factor)
        return replace(
            self,
            cluster=self.cluster.scaled(factor),
            bound=replace(
                bound,
                seconds=bound.seconds / factor,
                fault_free_s=bound.fault_free_s / factor,
                certificate=certificate,
            ),
        )

    @cached_property
    def plan_id(self) -> str:
        """Sixteen hex digits that name this plan's content."""
        canonical = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def _content(self) -> dict[str, Any]:
        cert = self.bound.certificate
        return {
            "version": VERSION,
            "family": self.family,
            "nbytes": self.bound.nbytes,
            "shares": [{"ring": m, "share": str(share)} for m, share in self.shares],
            "order": list(self.order),
            "segments": self.segments,
            "orderings": [str(o) for o in self.orderings],
            "bound": {
                "seconds": str(self.bound.seconds),
                "fault_free_s": str(self.bound.fault_free_s),
                "bottleneck": self.bound.bottleneck,
                "certificate": {
                    "kind": cert.kind,
                    "direction": cert.direction,
                    "ranks": list(cert.ranks),
                    "nbytes": cert.nbytes,
                    "rate": str(cert.rate),
                },
            },
            "cluster": _servers_out(self.cluster),
            "pristine": _servers_out(self.cluster.pristine) if self.cluster.pristine else None,
        }

    def to_json(self) -> str:
        """The plan as JSON text: rates in bytes per second, fractions as strings such as "3/5"."""
        return json.dumps({"plan_id": self.plan_id, **self._content()}, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> Plan:
        """Read a plan back. Raises InputError for anything that is not an intact plan of this version."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError("not JSON", where=where, expected="a plan written by optcc plan", got=str(error)) from None
        if not isinstance(raw, dict) or raw.get("version") != VERSION:
            got = raw.get("version") if isinstance(raw, dict) else type(raw).__name__
            raise InputError(
                "not a plan of this version",
                where=where,
                expected=f'"version": {VERSION}',
                got=str(got),
                hint="Make it anew with optcc plan.",
            )
        try:
            plan = cls._from_content(raw)
        except InputError as error:
            place = f"{where}: {error.where}" if error.where else where
            raise InputError(error.what, where=place, expected=error.expected, got=error.got, hint=error.hint) from None
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise InputError(
                "not an intact plan", where=where, expected="the fields of optcc plan", got=repr(error)[:200]
            ) from None
        if raw.get("plan_id") != plan.plan_id:
            raise InputError(
                "the plan was changed after it was made",
                where=where,
                expected=f"plan_id {plan.plan_id}",
                got=str(raw.get("plan_id")),
                hint="Make it anew with optcc plan.",
            )
        return plan

    @classmethod
    def _from_content(cls, raw: dict[str, Any]) -> Plan:
        cert = raw["bound"]["certificate"]
        certificate = Certificate(
            cert["kind"], cert["direction"], tuple(cert["ranks"]), cert["nbytes"], _fraction(cert["rate"])
        )
        pristine = Cluster(_servers_in(raw["pristine"])) if raw["pristine"] else None
        plan = cls(
            cluster=Cluster(_servers_in(raw["cluster"]), pristine=pristine),
            bound=Bound(
                raw["nbytes"],
                _fraction(raw["bound"]["seconds"]),
                _fraction(raw["bound"]["fault_free_s"]),
                raw["bound"]["bottleneck"],
                certificate,
            ),
            family=raw["family"],
            shares=tuple((item["ring"], _fraction(item["share"])) for item in raw["shares"]),
            order=tuple(raw["order"]),
            segments=raw["segments"],
            orderings=tuple(Ordering(o) for o in raw["orderings"]),
        )
        check_plan(plan)
        return plan


def check_plan(plan: Plan) -> None:
    """Raise InputError unless the plan's parts fit each other and its cluster."""
    ranks = len(plan.cluster.ranks)

    def demand(holds: bool, where: str, expected: str, got: object) -> None:
        if not holds:
            raise InputError("plan does not fit its cluster", where=where, expected=expected, got=str(got)[:200])

    demand(sorted(plan.order) == list(range(ranks)), "order", f"each of 0..{ranks - 1} once", plan.order)
    demand(isinstance(plan.segments, int) and 1 <= plan.segments <= MAX_SEGMENTS, "segments", SEGMENTS, plan.segments)
    demand(bool(plan.orderings), "orderings", "at least one", plan.orderings)
    demand(all(1 <= m <= ranks and s > 0 for m, s in plan.shares), "shares", f"ring 1..{ranks}, > 0", plan.shares)
    demand(len({m for m, _ in plan.shares}) == len(plan.shares), "shares", "each ring size once", plan.shares)
    demand(ranks == 1 or sum(s for _, s in plan.shares) == 1, "shares", "a sum of 1", plan.shares)


MAX_SEGMENTS = 65536
SEGMENTS = f"1 to {MAX_SEGMENTS}"
DEFAULT_SEGMENTS = 64
MIN_CHUNK = 16 * 1024
"""A section smaller than this spends more on per-message cost than a deeper pipeline saves."""


def make_plan(cluster: Cluster, bound: Bound, shares: dict[int, Fraction], *, segments: int | None = None) -> Plan:
    """Put a bound and nested-ring shares together into a Plan.

    `segments` defaults to 64 (the pipeline's fill costs about 1/64), fewer when sections would fall under 16 KiB.
    """
    ranks = cluster.ranks
    order = tuple(sorted(range(len(ranks)), key=lambda r: (min(ranks[r].out_rate, ranks[r].in_rate), r)))
    if segments is None:
        segments = max(1, min(DEFAULT_SEGMENTS, bound.nbytes // (MIN_CHUNK * len(ranks))))
    if not 1 <= segments <= MAX_SEGMENTS:
        raise InputError("segments out of range", where="--segments", expected=SEGMENTS, got=segments)
    plan = Plan(
        cluster=cluster,
        bound=bound,
        family="nested-rings" if set(shares) - {len(ranks)} else "ring",
        shares=tuple(sorted(shares.items())),
        order=order,
        segments=segments,
        orderings=_orderings(shares, len(ranks)),
    )
    check_plan(plan)
    return plan


def _orderings(shares: dict[int, Fraction], ranks: int) -> tuple[Ordering, ...]:
    """One degraded rank: alternate, so that its link is busy both ways from the start. Several: the leaves take turns
    at adding last, which the simulator shows to be smoother (docs/schedules.md)."""
    leaves = ranks - min(shares, default=ranks)
    return (Ordering.LEAF_FIRST, Ordering.VIA_LEAF) if leaves == 1 else (Ordering.VIA_LEAF,)


def load_plan(path: Path) -> Plan:
    """Read a plan file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("cannot be read", where=str(path), expected="a plan file", got=str(error)) from None
    return Plan.from_json(text, where=str(path))


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan file, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(plan.to_json() + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OptccError(f"{path}: cannot be written: {error.strerror}") from None


def _servers_out(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {
            "name": server.name,
            "gpus": server.gpus,
            "nvlink_rate": str(server.nvlink_rate),
            "nics": [
                {"name": n.name, "out": str(n.out_rate), "in": str(n.in_rate), "rail": n.rail, "gpu": n.gpu}
                for n in server.nics
            ],
        }
        for server in cluster.servers
    ]


def _servers_in(raw: list[dict[str, Any]]) -> tuple[Server, ...]:
    return tuple(
        Server(
            name=s["name"],
            nics=tuple(Nic(n["name"], _fraction(n["out"]), _fraction(n["in"]), n["rail"], n["gpu"]) for n in s["nics"]),
            gpus=s["gpus"],
            nvlink_rate=_fraction(s["nvlink_rate"]),
        )
        for s in raw
    )


def _fraction(text: object) -> Fraction:
    """An exact number as plans write it, "3/5". Exponents are not taken: one could be made to fill the memory."""
    if not isinstance(text, str) or not _EXACT.fullmatch(text):
        raise ValueError(f"not an exact number: {str(text)[:60]}")
    return Fraction(text)
