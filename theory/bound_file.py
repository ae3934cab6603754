"""What `optcc bound --json` prints: a bound, the cluster it is for, and all that proves it; and the check of that.

The check reads the cluster and the exact claims, and checks them as `optcc.theory.check_bound_with_costs` does. Then it
writes the file anew from them: every field must come out as before. It needs no solver, but for `repair_first` and
`repair_together`, which have no certificate. docs/certificates.md explains the fields.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc.errors import CertificateError, InputError
from optcc.theory.bound_check import check_bound_with_costs
from optcc.theory.bound_costs import bound_with_costs
from optcc.theory.bounds import lower_bound
from optcc.theory.sensitivity import repair_first, repair_together
from optcc.values.bound import (
    Bound,
    BoundWithCosts,
    Certificate,
    Direction,
    DualCut,
    Kind,
    Price,
    ProgramCertificate,
    ProgramPrimal,
    bound_json,
    certificate_json,
    costs_json,
    repairs_json,
    together_json,
)
from optcc.values.cluster import Cluster, Nic, cluster_in, cluster_out
from optcc.values.json_records import Bytes, Choice, parse, read_json, write_json

if TYPE_CHECKING:
    from optcc.theory.program_network import Network, View


FORMAT, VERSION = "optcc-bound", "1"
"""The version goes up when fields or words change: a check demands both as they are written."""
HINT = "`optcc bound TOPOLOGY --json > FILE` writes one."


def bound_file(cluster: Cluster, found: BoundWithCosts) -> dict[str, Any]:
    """The JSON value of a bound of `optcc.lower_bound_with_costs`, and all that proves it."""
    bound, whole_cluster = found.bound, cluster.fault_free
    if isinstance(bound.certificate, ProgramCertificate):
        fault_free: Certificate | ProgramCertificate | None = bound.fault_free
    else:
        fault_free = lower_bound(whole_cluster, bound.nbytes).certificate
    if fault_free is None:
        raise CertificateError("nothing proves the fault-free bound of a plan file")
    return {
        "format": FORMAT,
        "version": VERSION,
        **bound_json(bound, cluster),
        "certificate": _proof(cluster, bound.certificate),
        "fault_free": _proof(whole_cluster, fault_free) if cluster.pristine else None,
        **costs_json(found, cluster),
        "topology": cluster_out(cluster),
    }


def _proof(cluster: Cluster, cert: Certificate | ProgramCertificate) -> dict[str, Any]:
    known = certificate_json(cert, cluster)
    if not isinstance(cert, ProgramCertificate):
        ports = {
            "rank": [rank.name for rank in cluster.ranks],
            "out_exact": [str(rank.out_rate) for rank in cluster.ranks],
            "in_exact": [str(rank.in_rate) for rank in cluster.ranks],
        }
        return {**known, "ports": ports}
    from optcc.theory.certificates import rooted_network, views_of
    from optcc.theory.program_network import COLLECTIVES  # with SciPy, which takes a while to load

    network, _ = rooted_network(cluster, COLLECTIVES[cert.collective], cert.root)
    if cert.primal is None:
        raise CertificateError("nothing proves the rate that is reached in a plan file")
    return {
        **known,
        "network": network_json(network, views_of(network)),
        "primal": write_json(ProgramPrimal, cert.primal),
    }


def check_bound_file(content: str, where: str = "bound") -> tuple[Cluster, BoundWithCosts]:
    """The cluster and the bound of a file of `optcc bound --json`, checked.

    where : how messages call the file
    Raises InputError if the content is no bound file, CertificateError if a field does not follow from the topology.
    """
    raw = _object(content, where)
    try:
        cluster = _cluster_in(raw["topology"])
        bound = _bound_in(raw, cluster)
        found = _with_costs(raw["costs"], cluster, bound)
        check_bound_with_costs(cluster, found)
        right = bound_file(cluster, found)
        if "repair_first" in raw:
            # Of a cluster's other bounds nothing is written that proves them: they are computed anew.
            right["repair_first"] = repairs_json(repair_first(cluster, bound.nbytes))
            right["repair_together"] = together_json(repair_together(cluster, bound.nbytes))
    except CertificateError as error:
        raise CertificateError(f"{where}: {error}") from None
    except KeyError as error:
        raise CertificateError(f"{where}: no field {str(error)[:200]}") from None
    except (InputError, TypeError, ValueError, ArithmeticError, AttributeError, IndexError) as error:
        raise CertificateError(f"{where}: {str(error)[:400]}") from None
    if wrong := _difference(raw, right, ""):
        raise CertificateError(f"{where}: {wrong}")
    return cluster, found


def _object(content: str, where: str) -> dict[str, Any]:
    expected = f'"format": "{FORMAT}", "version": "{VERSION}"'
    try:
        raw = parse(content, points=True)
    except ValueError as error:
        raise InputError("not JSON", where=where, expected=expected, got=str(error)[:200], hint=HINT) from None
    said = (raw.get("format"), raw.get("version")) if isinstance(raw, dict) else (type(raw).__name__, None)
    if not isinstance(raw, dict) or said != (FORMAT, VERSION):
        got = ", ".join(str(part)[:60] for part in said)
        raise InputError("not a bound of this version", where=where, expected=expected, got=got, hint=HINT)
    return raw


def _cluster_in(raw: Any) -> Cluster:
    """The cluster, which is its fault-free one but for NICs whose rates are lower."""
    cluster = cluster_in(raw)
    before = cluster.fault_free
    if len(cluster.servers) != len(before.servers):
        raise CertificateError("topology.pristine has other servers than topology.cluster")
    for now, then in zip(cluster.servers, before.servers, strict=True):
        same = replace(now, nics=()) == replace(then, nics=()) and len(now.nics) == len(then.nics)
        if not same or not all(map(_no_more, now.nics, then.nics)):
            raise CertificateError(
                f"{now.name} of topology.cluster is not that of topology.pristine with NICs that fail"
            )
    return cluster


def _no_more(now: Nic, then: Nic) -> bool:
    alike = replace(now, out_rate=then.out_rate, in_rate=then.in_rate) == then
    return alike and now.out_rate <= then.out_rate and now.in_rate <= then.in_rate


def _with_costs(raw: dict[str, Any], cluster: Cluster, bound: Bound) -> BoundWithCosts:
    """The bound with costs, as it follows from the one without: it has a formula on every cluster."""
    costs = read_json(Fraction, raw["alpha_s_exact"]), read_json(Fraction, raw["per_chunk_s_exact"])
    collective = getattr(bound.certificate, "collective", "allreduce")
    return bound_with_costs(cluster, bound, *costs, collective)


def _bound_in(raw: dict[str, Any], cluster: Cluster) -> Bound:
    """The claims, unchecked. Floating-point numbers, which follow from exact ones, are not read."""
    nbytes = read_json(Bytes, raw["size"])
    cert = _certificate_in(raw["certificate"], cluster, nbytes)
    before = None if cluster.pristine is None else _certificate_in(raw["fault_free"], cluster.fault_free, nbytes)
    fault_free = before or cert
    return Bound(
        nbytes=nbytes,
        seconds=read_json(Fraction, raw["certificate"]["bound_s_exact"]),
        fault_free_s=fault_free.seconds,
        bottleneck=read_json(str, raw["bottleneck"]),
        certificate=cert,
        fault_free=fault_free if isinstance(fault_free, ProgramCertificate) else None,
    )


def _certificate_in(raw: dict[str, Any], cluster: Cluster, nbytes: int) -> Certificate | ProgramCertificate:
    if raw["kind"] != "program":
        index = {rank.name: rank.index for rank in cluster.ranks}
        return Certificate(
            read_json(Kind, raw["kind"]),
            read_json(Direction, raw["direction"]),
            tuple(_index(index, name) for name in raw["ranks"]),
            read_json(int, raw["bytes"]),
            read_json(Fraction, raw["rate_exact"]),
        )
    from optcc.theory.program_network import COLLECTIVES

    return ProgramCertificate(
        rate=read_json(Fraction, raw["rate_exact"]),
        reached=read_json(Fraction, raw["reached_exact"]),
        nbytes=nbytes,
        prices=tuple(
            Price(
                read_json(str, p["what"]),
                read_json(Fraction, p["share_exact"]),
                read_json(int, p["count"]),
                read_json(Fraction, p["gain_exact"]),
                read_json(tuple[str, ...], p["nics"]),
            )
            for p in raw["prices"]
        ),
        cuts=read_json(tuple[DualCut, ...], raw["cuts"]),
        resource_prices=read_json(tuple[int, ...], raw["resource_prices"]),
        denominator=read_json(int, raw["denominator"]),
        collective=Choice(tuple(COLLECTIVES)).read(raw["collective"]),
        root=read_json(str | None, raw["root"]),
        primal=read_json(ProgramPrimal, raw["primal"]),
    )


def _index(index: dict[str, int], name: Any) -> int:
    if read_json(str, name) not in index:
        raise CertificateError(f"the certificate names {name[:60]!r}, which is no rank of the topology")
    return index[name]


def _difference(said: Any, right: Any, place: str) -> str | None:
    """The first place where a file says something else than follows from its certificates; None where there is none."""
    if isinstance(said, dict) and isinstance(right, dict):
        for name in right | said:
            if name not in said or name not in right:
                return f"{place}{name} is missing" if name in right else f"{place}{name[:60]} is no field"
            if found := _difference(said[name], right[name], f"{place}{name}."):
                return found
        return None
    if isinstance(said, list) and isinstance(right, list) and len(said) == len(right):
        parts = (_difference(a, b, f"{place}{i}.") for i, (a, b) in enumerate(zip(said, right, strict=True)))
        return next((found for found in parts if found), None)
    if type(said) is type(right) and said == right:
        return None
    return f"{place.removesuffix('.')} is {_shown(said)}, what proves the bound says {_shown(right)}"


def _shown(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)[:120]


def network_json(network: Network, views: list[View]) -> dict[str, Any]:
    """docs/certificates.md explains the fields; `views` are those of every rank type, in order."""
    use = network.use.tocoo()
    return {
        "rank_types": [
            {"what": t.name, "count": int(n)} for t, n in zip(network.rank_types, network.multiplicity, strict=True)
        ],
        "resources": [
            {"what": r.what, "rate_exact": str(r.rate), "count": r.count, "nics": list(r.nics)}
            for r in network.resources
        ],
        "orbits": {
            "from": [o.x for o in network.orbits],
            "to": [o.y for o in network.orbits],
            "same_server": [int(o.same_server) for o in network.orbits],
            "same_slot": [int(o.same_slot) for o in network.orbits],
        },
        "ways": {"orbit": network.way_orbit.tolist()},
        "uses": {"resource": use.row.tolist(), "way": use.col.tolist(), "load": use.data.tolist()},
        "views": [_view_json(view) for view in views],
    }


def _view_json(view: View) -> dict[str, Any]:
    pairs = view.pairs.tocoo()
    source, target = np.divmod(pairs.row, view.nodes)
    return {
        "nodes": {"rank_type": view.node_type.tolist(), "count": view.size.tolist()},
        "pairs": {
            "from": source.tolist(),
            "to": target.tolist(),
            "orbit": pairs.col.tolist(),
            "count": pairs.data.tolist(),
        },
    }
