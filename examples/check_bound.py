"""Checks a file of `optcc bound --json` in plain Python, without optcc: the steps of docs/certificates.md, in order.

    optcc bound TOPOLOGY --json > bound.json; python3 check_bound.py bound.json

It takes the program's network as the file describes it; `optcc bound --check` also makes that anew from the topology.
Exits with 1 at the first step that fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

JSON = Any

GAP = Fraction(1, 10**6)  # allowed between the rate that nothing exceeds and the rate that is reached


def require(holds: object, what: str) -> None:
    if not holds:
        sys.exit(f"wrong: {what}")


def live(servers: JSON, way: str) -> list[Fraction]:
    return [sum((Fraction(nic[way]) for nic in server["nics"]), Fraction(0)) for server in servers]


def closed_form(cert: JSON, servers: JSON, n: int) -> Fraction:
    """Seconds that the largest of the four terms needs, which must be those of the certificate."""
    ports, p = {way: live(servers, way) for way in ("out", "in")}, len(servers)
    for way, rates in ports.items():
        require(rates == [Fraction(x) for x in cert["ports"][f"{way}_exact"]], f"ports, {way}: not the topology's")
    names = [server["name"] for server in servers]
    rate = sum(ports[cert["direction"]][names.index(name)] for name in set(cert["ranks"]))
    size = {"cut": n, "traffic": 2 * (p - 1) * n, "trivial": 0}[cert["kind"]]
    require(
        len(set(cert["ranks"])) == {"cut": 1, "traffic": p, "trivial": 1}[cert["kind"]] == len(cert["ranks"]), "ranks"
    )
    require((cert["bytes"], Fraction(cert["rate_exact"])) == (size, rate), "bytes or rate of the certificate")
    terms = [Fraction(0)]
    for rates in ports.values() if p > 1 else ():
        terms += [n / min(rates), 2 * (p - 1) * n / sum(rates, Fraction(0))]
    require(max(terms) == (size / rate if size else 0), "another term is larger")
    return max(terms)


def crossing(view: JSON, inside: set[int], side: str) -> dict[int, int]:
    """Pairs of ranks, by orbit, that enter the set of nodes `inside` (broadcast), or leave it (reduce)."""
    pairs, found = view["pairs"], dict[int, int]()
    for i, j, orbit, count in zip(pairs["from"], pairs["to"], pairs["orbit"], pairs["count"], strict=True):
        if (i in inside, j in inside) == ((False, True) if side == "broadcast" else (True, False)):
            found[orbit] = found.get(orbit, 0) + count
    return found


def uses(network: JSON) -> Iterator[tuple[int, int, int]]:
    return zip(*(network["uses"][column] for column in ("resource", "way", "load")), strict=True)


def dual(cert: JSON) -> Fraction:
    """The rate that no schedule of tree pairs exceeds."""
    net, prices, unit = cert["network"], cert["resource_prices"], cert["denominator"]
    types, orbit_of = [t["count"] for t in net["rank_types"]], net["ways"]["orbit"]
    require(unit > 0 and min([*prices, *(cut["weight"] for cut in cert["cuts"])]) >= 0, "a price or weight below 0")
    left_out, cost = [Fraction(0)] * len(types), {"broadcast": dict[int, int](), "reduce": dict[int, int]()}
    for cut in cert["cuts"]:
        require(0 <= cut["seen_from"] < len(types), "a cut seen from no rank type")
        view, inside, weight = net["views"][cut["seen_from"]], set(cut["inside"]), cut["weight"]
        nodes = list(zip(view["nodes"]["rank_type"], view["nodes"]["count"], strict=True))
        require(inside and inside <= set(range(len(nodes))), "a cut around no nodes")
        for t, count in enumerate(types):
            within = sum(many for i, (kind, many) in enumerate(nodes) if kind == t and i in inside)
            left_out[t] += weight * (1 - Fraction(within, count))
        for orbit, pairs in crossing(view, inside, cut["side"]).items():
            cost[cut["side"]][orbit] = cost[cut["side"]].get(orbit, 0) + weight * pairs
    shares = roots_of(cert)
    least = sum(w * out for w, out in zip(shares, left_out, strict=True)) if shares else min(left_out)
    require(least >= unit, "the cuts that leave out some root weigh less than 1")
    paid = [0] * len(orbit_of)
    for resource, way, load in uses(net):
        paid[way] += load * prices[resource]
    for side, costs in cost.items():
        require(
            all(costs.get(orbit, 0) <= paid[way] for way, orbit in enumerate(orbit_of)),
            f"a way pays too little ({side})",
        )
    costs_in_all = (price * Fraction(r["rate_exact"]) for price, r in zip(prices, net["resources"], strict=True))
    return sum(costs_in_all, Fraction(0)) / int(unit)


def roots_of(cert: JSON) -> list[Fraction] | None:
    """The part of the data that starts (or ends) at all ranks of each type; None where that is free."""
    types = cert["network"]["rank_types"]
    if cert["collective"] == "allreduce":
        return None
    if cert["collective"] in ("allgather", "reduce-scatter", "reduce-scatter+allgather"):
        return [Fraction(t["count"], sum(t["count"] for t in types)) for t in types]
    server, _, gpu = cert["root"].partition("/gpu")
    name = f"GPU {gpu} of {server}" if gpu else server
    return [Fraction(int(t["what"] == name)) for t in types]


def primal(cert: JSON) -> Fraction:
    """The rate that is reached."""
    net, found = cert["network"], cert["primal"]
    types, unit, roots = [t["count"] for t in net["rank_types"]], Fraction(found["unit_exact"]), found["roots"]
    require(min([*found["broadcast"], *found["reduce"], *roots]) >= 0 and unit > 0, "a capacity below 0")
    load = [0] * len(net["resources"])
    for resource, way, each in uses(net):
        load[resource] += each * (found["broadcast"][way] + found["reduce"][way])
    for r, units in zip(net["resources"], load, strict=True):
        require(units * unit <= Fraction(r["rate_exact"]), f"{r['what']} carries more than its rate")
    total = sum(root * count for root, count in zip(roots, types, strict=True))
    given = roots_of(cert)
    require(
        not given or all(r * c == total * w for r, c, w in zip(roots, types, given, strict=True)),
        "the roots are elsewhere",
    )
    both, one = {"broadcast", "reduce"}, {"broadcast"}
    halves = {"allreduce": both, "reduce-scatter+allgather": both, "allgather": one, "broadcast": one}
    wanted = {(side, t) for side in halves.get(cert["collective"], {"reduce"}) for t in range(len(types))}
    require(wanted <= {(flow["side"], flow["seen_from"]) for flow in found["flows"]}, "a flow is missing")
    for flow in found["flows"]:
        view = net["views"][flow["seen_from"]]
        kinds, counts = view["nodes"]["rank_type"], view["nodes"]["count"]
        capacity, n = {(len(kinds), i): roots[kinds[i]] * counts[i] for i in range(len(kinds))}, len(kinds)
        by_orbit = dict[int, int]()
        for way, orbit in enumerate(net["ways"]["orbit"]):
            by_orbit[orbit] = by_orbit.get(orbit, 0) + found[flow["side"]][way]
        for i, j, orbit, count in zip(*(view["pairs"][name] for name in ("from", "to", "orbit", "count")), strict=True):
            place = (i, j) if flow["side"] == "broadcast" else (j, i)
            capacity[place] = capacity.get(place, 0) + count * by_orbit.get(orbit, 0)
        net_in = [0] * n
        edges = list(zip(flow["from"], flow["to"], flow["units"], strict=True))
        require(len({edge[:2] for edge in edges}) == len(edges), "an edge twice")
        for i, j, units in edges:
            require(0 <= units <= capacity.get((i, j), 0), "a flow exceeds a capacity")
            net_in[j] += units
            if i < n:
                net_in[i] -= units
        require(net_in == [total] + [0] * (n - 1), "a flow does not bring the whole rate to its rank")
    return unit * int(total)


def seconds(cert: JSON, servers: JSON, n: int) -> Fraction:
    if cert["kind"] != "program":
        proved = closed_form(cert, servers, n)
    else:
        rate, reached = dual(cert), primal(cert)
        require((str(rate), str(reached)) == (cert["rate_exact"], cert["reached_exact"]), "rate or reached")
        require(rate <= reached * (1 + GAP), "the bound is not reached")
        proved = n / rate
    require(str(proved) == cert["bound_s_exact"], "bound_s_exact")
    return proved


def check(bound: JSON) -> None:
    now, before = bound["topology"]["cluster"], bound["topology"]["pristine"]
    bound_s = seconds(bound["certificate"], now, bound["size"])
    fault_free_s = seconds(bound["fault_free"], before, bound["size"]) if before else bound_s
    require(bound["bound_s"] == float(bound_s), "bound_s")
    require(bound["fault_free_s"] == float(fault_free_s), "fault_free_s")
    require(bound["overhead"] == (float(bound_s / fault_free_s - 1) if fault_free_s else 0), "overhead")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        found = json.load(file)
    check(found)
    print(f"right: no faster than {found['bound_s']} s, {found['overhead']:.6f} over the fault-free bound")
