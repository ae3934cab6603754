"""Checks a file of `optcc bound --json` in plain Python, without optcc: the steps of docs/certificates.md, in order.

    optcc bound TOPOLOGY --json > bound.json; python3 check_bound.py bound.json

Exits with 1 at the first step that fails. What it does not check is in `UNCHECKED`, and printed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

JSON = Any

GAP = Fraction(1, 10**6)  # allowed between the rate that nothing exceeds and the rate that is reached

UNCHECKED = (
    "words: bottleneck, prices, parts; repair_first and repair_together",
    "of a linear program: that the ranks of a type, and the pairs of an orbit, may be exchanged for each other"
    " (how many there are, their rates, rails and links are checked), and which server's NVLink rate is whose",
)
"""`optcc bound --check FILE` checks all of this, too: it makes the network and the words anew from the topology."""


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
    require(cert["collective"] in ("broadcast", "reduce"), "unknown collective")
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


def pairs_of(net: JSON, ranks: int) -> dict[int, int]:
    """How many pairs of ranks each orbit has, the same in every view; no pair of ranks is in none."""
    types, ends = [t["count"] for t in net["rank_types"]], net["orbits"]
    require(sum(types) == ranks and min(types) > 0, "the rank types are not all ranks")
    require(len(net["views"]) == len(types), "a rank type without a view")
    in_views = list[dict[int, int]]()
    for t, view in enumerate(net["views"]):
        kinds, sizes = view["nodes"]["rank_type"], view["nodes"]["count"]
        require((kinds[0], sizes[0]) == (t, 1), "node 0 of a view is one rank of its type")
        for kind, count in enumerate(types):
            members = [size for k, size in zip(kinds, sizes, strict=True) if k == kind]
            require(sum(members) == count and min(members) > 0, "the nodes of a view are not all ranks")
        orbits, nodes = dict[int, int](), dict[tuple[int, int], int]()
        for i, j, orbit, count in zip(*(view["pairs"][name] for name in ("from", "to", "orbit", "count")), strict=True):
            require((kinds[i], kinds[j]) == (ends["from"][orbit], ends["to"][orbit]), "pairs of another orbit's ranks")
            require(count > 0, "pairs that are not there")
            orbits[orbit], nodes[i, j] = orbits.get(orbit, 0) + count, nodes.get((i, j), 0) + count
        n = range(len(sizes))
        there = {(i, j): many for i in n for j in n if (many := sizes[i] * (sizes[j] - (i == j)))}
        require(nodes == there, "not all pairs of a view are in an orbit")
        in_views.append(orbits)
    require(all(one == in_views[0] for one in in_views), "views with other pairs")
    return in_views[0]


def nics_of(servers: JSON) -> dict[str, JSON]:
    """Every NIC by its name: its pod, its rail, the GPU beside it, and its rates."""
    found = {}
    for server in servers:
        for i, nic in enumerate(server["nics"]):
            rail = i if nic["rail"] is None else nic["rail"]
            gpu = i * server["gpus"] // len(server["nics"]) if nic["gpu"] is None else nic["gpu"]
            rank = (server["name"], gpu)
            found[f"{server['name']}/{nic['name']}"] = {**nic, "pod": server["pod"], "rail": rail, "rank": rank}
    return found


def links_of(topology: JSON) -> dict[tuple[str, str, str], Fraction]:
    """Rates of links to the spine, by rail, and out of pods, as built for the NICs before any failure."""
    found, fabric = dict[tuple[str, str, str], Fraction](), topology["fabric"]
    for nic in nics_of(topology["pristine"] or topology["cluster"]).values():
        for kind, factor in (("rail", fabric["spine"]), ("pod", fabric["pod_oversubscription"])):
            for way in ("out", "in") if factor is not None else ():
                key = (kind, str(nic[kind]), way)
                found[key] = found.get(key, Fraction(0)) + Fraction(nic[way]) / Fraction(factor)
    return found


def network(net: JSON, topology: JSON, servers: JSON) -> None:
    """Resources have the rates of the topology, and a way uses all that lies between its ends, for all its pairs."""
    gpus, nics, links = topology["gpu_ranks"], nics_of(servers), links_of(topology)
    pairs = pairs_of(net, sum(server["gpus"] for server in servers) if gpus else len(servers))
    behind = list[tuple[str, str, tuple[str, ...]]]()  # of each resource: kind, way, NICs or links
    for r in net["resources"]:
        name, rate, (head, _, way) = r["what"], Fraction(r["rate_exact"]), r["what"].rpartition(", ")
        if r["nics"]:
            way, each = {"sending": "out", "receiving": "in"}[way], dict[Any, Fraction]()
            require(set(r["nics"]) <= set(nics) and len(set(r["nics"])) == len(r["nics"]), f"{name}: no such NICs")
            for nic in map(nics.__getitem__, r["nics"]):
                rank = nic["rank"] if gpus else nic["rank"][0]
                each[rank] = each.get(rank, Fraction(0)) + Fraction(nic[way])
            require((len(each), set(each.values())) == (r["count"], {rate}), f"{name}: another rate than its NICs'")
            behind.append(("NIC", way, tuple(r["nics"])))
        elif name.startswith("NVLink "):
            require(rate in [Fraction(server["nvlink_rate"]) for server in servers], f"{name}: the rate of no server")
            behind.append(("NVLink", "out" if name.startswith("NVLink out of ") else "in", ()))
        else:
            kind, _, which = head.partition(" of ")[2].partition(" ")
            kind, names = kind.removesuffix("s"), which.split(", ")
            rates = [links.get((kind, one, way), Fraction(-1)) for one in names]
            alike = (r["count"] == 1 and rate == sum(rates)) or (r["count"], {rate}) == (len(rates), set(rates))
            require(alike, f"{name}: another rate than the topology's")
            behind.append((kind, way, tuple(names)))
    used: list[list[tuple[str, str, tuple[str, ...]]]] = [[] for _ in net["ways"]["orbit"]]
    for k, number, load in uses(net):
        r, many = net["resources"][k], pairs[net["ways"]["orbit"][number]]
        require(load * r["count"] == many, f"{r['what']}: a load that is not that of all pairs")
        used[number].append(behind[k])
    for orbit, found in zip(net["ways"]["orbit"], used, strict=True):
        slots = net["orbits"]["same_server"][orbit], net["orbits"]["same_slot"][orbit]
        require(sorted(found) == sorted(between(found, nics, topology["fabric"], *slots)), "a way uses too little")


def between(
    used: list[tuple[str, str, tuple[str, ...]]], nics: dict[str, JSON], fabric: JSON, same_server: int, same_slot: int
) -> list[tuple[str, str, tuple[str, ...]]]:
    """What a way must use: NVLink, or its NICs; the spine's links if their rails do not meet; the pods', if two."""
    if same_server:
        return [("NVLink", "out", ()), ("NVLink", "in", ())]
    found = [one for one in used if one[0] == "NIC"]
    require(sorted(one[1] for one in found) == ["in", "out"], "a way without a NIC at either end")
    ends = {way: [nics[name] for name in names] for _, way, names in found}
    rail, pod = ({way: sorted({nic[k] for nic in end}) for way, end in ends.items()} for k in ("rail", "pod"))
    # Several rails are equal ones: each meets itself alone, where ranks are GPUs in the same slot.
    if fabric["rails"] and not (rail["out"] == rail["in"] and (same_slot or len(rail["out"]) == 1)):
        require(fabric["spine"] is not None, "a way between rails that do not meet")
        found += [("rail", way, tuple(map(str, rails))) for way, rails in rail.items()]
    limited = fabric["pod_oversubscription"] is not None
    require(not limited or len(pod["out"]) == len(pod["in"]) == 1, "equal ranks in two pods")
    if limited and pod["out"] != pod["in"]:
        found += [("pod", way, tuple(map(str, pods))) for way, pods in pod.items()]
    return found


def seconds(cert: JSON, servers: JSON, n: int, topology: JSON) -> Fraction:
    if cert["kind"] != "program":
        require(not topology["gpu_ranks"], "a closed form for GPUs")
        fabric = topology["fabric"]
        require(not fabric["rails"] and fabric["pod_oversubscription"] is None, "a closed form for rails or pods")
        proved = closed_form(cert, servers, n)
    else:
        network(cert["network"], topology, servers)
        rate, reached = dual(cert), primal(cert)
        require((str(rate), str(reached)) == (cert["rate_exact"], cert["reached_exact"]), "rate or reached")
        require(rate <= reached * (1 + GAP), "the bound is not reached")
        proved = n / rate
    require(str(proved) == cert["bound_s_exact"], "bound_s_exact")
    return proved


def costs_s(bound: JSON, base: Fraction) -> Fraction:
    """Seconds that the certificate of the bound with costs proves, by the theorem that it names."""
    found, servers, gpus = bound["costs"], bound["topology"]["cluster"], bound["topology"]["gpu_ranks"]
    cert, a, o = found["certificate"], Fraction(found["alpha_s_exact"]), Fraction(found["per_chunk_s_exact"])
    require(min(a, o) >= 0, "a cost below 0")
    if cert["kind"] == "fluid":  # chunk-costs.md, statement 1
        return base + a + o if base else base
    require(bound["certificate"].get("collective", "allreduce") == "allreduce" and base, "no costs of an AllReduce")
    at = {server["name"]: s for s, server in enumerate(servers)}
    names = cert["servers"] if cert["kind"] == "starving-pair" else [cert["server"]]
    require(set(names) <= set(at) and len(set(names)) == len(names) < len(servers), "servers of the costs")
    n, which = int(bound["size"]), [at[name] for name in names]
    if cert["kind"] == "starving-pair":
        require(not gpus and len(names) == 2, "a pair of other servers")
        prices = [Fraction(cert["weight"]), *map(Fraction, cert["levels_s_exact"])]
        return pair_s([servers[s] for s in which], n, prices, a, o)
    way = cert["direction"]
    own, others = servers[which[0]], [server for server in servers if server["name"] != names[0]]
    if cert["kind"] == "postal":
        return postal_s(cert["arrivals"], *(live_nics([own], way), live_nics(others, way)), a, o)
    if cert["kind"] == "one-hop":
        rates = [rate for nic in own["nics"] if (rate := Fraction(nic[way]))]
        return a + one_hop_s(Fraction(cert["span_s_exact"]), rates, n, len(others), a, o)
    require(cert["kind"] in ("cut", "together"), "unknown costs")
    rates = [rate for nic in own["nics"] if (rate := Fraction(nic[way]))]
    ranks, outside = Fraction(sum(server["gpus"] for server in others) if gpus else len(others)), list[Fraction]()
    for server in others:
        each = dict[int, Fraction]() if not gpus else dict.fromkeys(range(server["gpus"]), Fraction(0))
        for nic in nics_of([server]).values():
            gpu = nic["rank"][1] if gpus else 0
            each[gpu] = each.get(gpu, Fraction(0)) + Fraction(nic[way])
        outside += [rate + (Fraction(server["nvlink_rate"]) if gpus else 0) for rate in each.values()]
    work, kept, total = n / sum(rates, Fraction(0)), 1 - 1 / ranks, sum(rates, Fraction(0))
    span = max(Fraction(0), work - a / ranks)
    if cert["kind"] == "together":
        require(len(set(rates)) == 1 and kept, "NICs of several rates, or one other rank")
        # A larger multiple proves less: rounded up to 1/1024, at least 2.
        kappa = max(Fraction(2), Fraction(math.ceil(1024 * sum(outside) / (total * (ranks - 1))), 1024))
        lost = Fraction(cert["loss_s_exact"])
        check_loss_together(lost, span, o, len(rates), kappa, kept)
    else:
        losses = [Fraction(loss) for loss in cert["losses_s_exact"]]
        require(len(losses) == len(rates), "losses of other NICs")
        for rate, loss in zip(rates, losses, strict=True):
            check_loss(loss, span, o, max(Fraction(2), 1 + max(outside) / rate), kept)
        lost = sum((rate * loss for rate, loss in zip(rates, losses, strict=True)), Fraction(0)) / total
    return a + o + min(ranks * work, work + kept * a) + lost


def live_nics(servers: JSON, way: str) -> list[int]:
    return [sum(1 for nic in server["nics"] if Fraction(nic[way])) for server in servers]


def check_loss(loss: Fraction, span: Fraction, o: Fraction, c: Fraction, kept: Fraction) -> None:
    """No number of chunks that lose less fills the span (chunk-costs.md, "How it is computed")."""
    require(loss >= 0 and (not loss or (kept and o)), "a loss without a reason")
    chunks = 0
    while o * chunks < loss:
        left = (loss - o * chunks) / kept
        for _ in range(chunks):
            left = c * left + o
        require(left <= span, "a loss that is too large")
        chunks += 1


def check_loss_together(
    loss: Fraction, span: Fraction, o: Fraction, nics: int, kappa: Fraction, kept: Fraction
) -> None:
    """No number of chunks of all NICs that lose less fills the span (chunk-costs.md, statement 3).

    The times left before chunks, the least first, are b[1..chunks], then `nics` times the span. For each i from 0 on
    b[i+1] + ... + b[i+nics] <= nics s + o i + nics kappa b[i]. Each of these is weighted so that b[1..chunks] cancel.
    """
    require(loss >= 0 and (not loss or o), "a loss without a reason")
    chunks = 0
    while o * chunks < nics * loss:
        s = (loss - o * chunks / nics) / kept
        weight, right, spans = list[Fraction](), Fraction(0), Fraction(0)
        for i in range(chunks + 1):
            weight.append(sum(weight[max(0, i - nics) :], Fraction(0)) / (nics * kappa) if i else Fraction(1))
            right += weight[i] * (nics * s + o * i)
            spans += weight[i] * sum(1 for place in range(i + 1, i + nics + 1) if place > chunks)
        require(right <= spans * span, "a loss that is too large")
        chunks += 1


def pair_s(pair: list[JSON], n: int, prices: list[Fraction], a: Fraction, o: Fraction) -> Fraction:
    """starving-pair.md: a mean of what ports need and of what waiting for whole chunks takes, at these prices."""
    rates = [{Fraction(nic[way]) for nic in s["nics"] for way in ("out", "in")} - {Fraction(0)} for s in pair]
    dead = [Fraction(nic["out"]) != Fraction(nic["in"]) for s in pair for nic in s["nics"]]
    weight, *levels = prices
    require(len(rates[0] | rates[1]) == 1 and not any(dead), "NICs of a pair differ")
    require(len(levels) == 2 and min(prices) >= 0 and weight < 1, "a weight or level out of range")
    cuts, once = [n / rate for rate in live(pair, "out")], n / sum(live(pair, "out"), Fraction(0))
    price, saved = weight / (1 - weight) * o * once, Fraction(0)
    for x, level in zip(cuts, levels, strict=True):
        require(o or not level, "a level where chunks cost nothing")
        # Chunks i = 1, 2, ... count (level - o i)^2/2 - price each, as long as that is positive.
        m = math.isqrt(math.floor(2 * price / o**2)) if level else 0  # level - o i is more than m o, or is not counted
        m = max(0, math.floor(level / o) - m) if level else 0
        while m and (level - o * m) ** 2 <= 2 * price:
            m -= 1
        squares = m * level**2 - m * (m + 1) * level * o + Fraction(m * (m + 1) * (2 * m + 1), 6) * o**2
        saved += (squares / 2 - m * price) / x
    ends = []
    for direct in (0, 1):
        waits = sum(cuts, Fraction(0)) / 2 + sum(levels, Fraction(0)) * (1 - direct) - saved + (2 - direct) * a
        ends.append(weight * (a + once * (2 + direct)) + (1 - weight) * waits)
    return min(ends)


def postal_s(arrivals: JSON, own: list[int], others: list[int], a: Fraction, o: Fraction) -> Fraction:
    """postal.md, (1): so many servers cannot be told sooner, even if those with most NICs are told first."""
    best, told, senders = sorted(others, reverse=True), 0, [(Fraction(0), own[0])]
    require(sum(one["servers"] for one in arrivals) == len(others) and o > 0, "arrivals of other servers")
    for one in arrivals:
        when, many = Fraction(one["seconds_exact"]), one["servers"]
        require(many > 0 and when >= senders[-1][0], "arrivals out of order")
        sent = sum(nics * max(0, math.ceil((when - start - a) / o) - 1) for start, nics in senders)
        require(sent <= told, "more servers can have been told by then")
        senders.append((when, sum(best[told : told + many])))
        told += many
    return senders[-1][0]


def one_hop_s(span: Fraction, rates: list[Fraction], n: int, others: int, a: Fraction, o: Fraction) -> Fraction:
    """one-hop.md: in so short a span a server's NICs cannot carry all data of the others, whatever their chunks."""
    require(0 <= span <= a + 2 * o, "a span in which there may be two hops")
    most = Fraction(0)
    for rate in rates:
        whole = math.floor(span * rate / (n + o * rate))
        most += max(whole * Fraction(n), (span - (whole + 1) * o) * rate)
    require(most < others * n, "all data can go one hop in that span")
    return span


def check(bound: JSON) -> None:
    now, before = bound["topology"]["cluster"], bound["topology"]["pristine"]
    bound_s = seconds(bound["certificate"], now, bound["size"], bound["topology"])
    fault_free_s = seconds(bound["fault_free"], before, bound["size"], bound["topology"]) if before else bound_s
    require(bound["bound_s"] == float(bound_s), "bound_s")
    require(bound["fault_free_s"] == float(fault_free_s), "fault_free_s")
    require(bound["overhead"] == (float(bound_s / fault_free_s - 1) if fault_free_s else 0), "overhead")
    costs, found = bound["costs"], costs_s(bound, bound_s)
    require(str(found) == costs["certificate"]["bound_with_costs_s_exact"], "bound_with_costs_s_exact")
    for value, said in ((found, bound["bound_with_costs_s"]), (found - bound_s, costs["extra_s"])):
        require(float(value) == said, "bound_with_costs_s or extra_s")
    for name in ("alpha_s", "per_chunk_s"):
        require(float(Fraction(costs[f"{name}_exact"])) == costs[name], name)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        found = json.load(file)
    check(found)
    print(f"right: no faster than {found['bound_s']} s, {found['overhead']:.6f} over the fault-free bound")
    for what in UNCHECKED[: 2 if found["certificate"]["kind"] == "program" else 1]:
        print(f"not checked, {what}")
