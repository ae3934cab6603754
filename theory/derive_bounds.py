"""What no AllReduce can beat, derived: cut, traffic, partition, and the closed form on one non-blocking fabric.

Sources: for schedules that forward and add, traffic is the one-way gossip bound, taken per element (Harary and Schwenk,
"The communication problem on graphs and digraphs", 1974); for any protocol it is proof id coding. Equality with
partitions on symmetric capacities goes back to Tutte and to Nash-Williams (1961).
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from optcc.theory.derivation import Result, Step, prove_nonnegative
from optcc.theory.symbols import B_i, B_min, B_rest, C, P, T, c12, c13, c23, min_in, min_out, n, q, sum_in, sum_out

FLUID = "fluid limit: no latency, no cost per message"
OPERATION = (
    "sums in a finite abelian group, by any protocol, coded or not; other operations if transfers forward and combine"
)
CONTENTS = "messages inform by their contents, not by their timing; switches neither add nor copy"
ANY_PROTOCOL = (OPERATION, CONTENTS)
FULL_DUPLEX = "ports are full duplex and have fixed rates"
NON_BLOCKING = "the fabric between the ports does not block"


def least_time(demand: Any, rate: Any) -> Any:
    """Seconds after which ports of `rate` B/s in all can have passed `demand` bytes: solves rate T = demand."""
    (solution,) = sp.solve(sp.Eq(rate * T, demand), T)
    return solution


def transfers_per_element(ranks: Any) -> Any:
    """How often an element must be transferred in all: once per rank but one to be complete anywhere, and again."""
    return sp.factor((ranks - 1) + (ranks - 1))


def star_terms(least_out: Any, least_in: Any, all_out: Any, all_in: Any, ranks: Any = P) -> list[Any]:
    """The four bounds on one fabric, seconds: both cuts of the weakest rank, both traffic sums."""
    work = transfers_per_element(ranks) * n
    return [least_time(n, least_out), least_time(n, least_in), least_time(work, all_out), least_time(work, all_in)]


def cut() -> Result:
    """T >= n / B_i for every rank, out and in."""
    return Result(
        id="cut",
        statement="Every rank's contribution must leave it, and the result must enter it.",
        assumptions=("P >= 2", "contributions are independent and incompressible", FULL_DUPLEX),
        proof_id="cut",
        left=T,
        relation=">=",
        expression=least_time(n, B_i),
        steps=(
            Step("Bytes that must pass the out port of rank i, and likewise its in port", n),
            Step("Bytes the port can pass in T seconds", B_i * T),
            Step("Solve for the least T", least_time(n, B_i)),
        ),
    )


def traffic() -> Result:
    """T >= 2(P-1) n / sum of the rates, out and in."""
    work = transfers_per_element(P)
    return Result(
        id="traffic",
        statement="Every element needs 2(P-1) transfers, and no protocol sends less.",
        assumptions=("P >= 2", *ANY_PROTOCOL, FULL_DUPLEX),
        proof_id="traffic",
        left=T,
        relation=">=",
        expression=least_time(work * n, sum_out),
        steps=(
            Step("Until the first rank holds the finished element every other rank has sent at least once", P - 1),
            Step("From then on every other rank must still receive at least once", P - 1),
            Step("Transfers per element, each of which uses one out port and one in port", work),
            Step("Bytes that all out ports together must pass; coding saves nothing (proof id coding)", work * n),
            Step("Solve for the least T; the same holds for the in ports", least_time(work * n, sum_out)),
        ),
    )


def partition() -> Result:
    """T >= 2(q-1) n / C for every partition; on one fabric cut and traffic are its strongest cases."""
    bound = least_time(transfers_per_element(q) * n, C)
    blocks = prove_nonnegative(bound.subs({q: P, C: sum_out}) - bound.subs(C, sum_out), {P: (q, sp.oo), q: (2, sp.oo)})
    hub = prove_nonnegative(n / B_min - bound.subs(C, 2 * B_rest), {B_rest: ((q - 1) * B_min, sp.oo), q: (2, sp.oo)})
    return Result(
        id="partition",
        statement="Merge the ranks into q blocks: what passes between them is an AllReduce over q ranks.",
        assumptions=("2 <= q <= P", *ANY_PROTOCOL, FULL_DUPLEX),
        proof_id="partition",
        left=T,
        relation=">=",
        expression=bound,
        steps=(
            Step("Transfers per element between blocks", transfers_per_element(q)),
            Step("Solve for the least T", bound),
            Step("One rank of rate B_i each way against the rest: the cut bound", bound.subs({q: 2, C: 2 * B_i})),
            Step("All singletons on one fabric: the traffic bound", bound.subs({q: P, C: sum_out})),
            Step("On one fabric at most the sum of the rates crosses, and then singletons lead q blocks by", blocks),
            Step(
                "If the ranks outside the largest block have less, B_rest, then 2 B_rest crosses; as B_rest >= "
                "(q-1) B_min, the weakest rank's cut leads by",
                hub,
            ),
        ),
    )


def closed_form() -> Result:
    """T* on one non-blocking fabric, for any rates: the largest of two cuts and two sums."""
    terms = star_terms(min_out, min_in, sum_out, sum_in)
    symmetric = star_terms(min_out, min_out, sum_out, sum_out)
    return Result(
        id="closed-form",
        statement="No AllReduce on one non-blocking fabric is faster, and some schedule is as fast.",
        assumptions=("P >= 2", NON_BLOCKING, *ANY_PROTOCOL, FULL_DUPLEX, FLUID),
        proof_id="attained",
        left=T,
        relation=">=",
        expression=sp.Max(*terms),
        steps=(
            Step("Cut: the weakest rank's own bytes out", terms[0]),
            Step("Cut: the result into the weakest rank", terms[1]),
            Step("Traffic out of all ranks", terms[2]),
            Step("Traffic into all ranks", terms[3]),
            Step("Where each rank's rates out and in are equal, nested rings take no longer", sp.Max(*symmetric)),
        ),
    )


def three_ranks() -> Result:
    """The partition bound of three ranks with symmetric link capacities, written out."""
    links = {frozenset((1, 2)): c12, frozenset((1, 3)): c13, frozenset((2, 3)): c23}
    pairs = [2 * sum(c for pair, c in links.items() if rank in pair) for rank in (1, 2, 3)]
    bounds = [least_time(transfers_per_element(sp.Integer(2)) * n, capacity) for capacity in pairs]
    bounds.append(least_time(transfers_per_element(sp.Integer(3)) * n, 2 * sum(links.values())))
    return Result(
        id="bidirected-three",
        statement="Three ranks joined by links of equal capacity both ways: the best partition bound is the optimum.",
        assumptions=("each link carries its capacity in both directions", *ANY_PROTOCOL, FLUID),
        proof_id="bidirected",
        left=T,
        relation="=",
        expression=sp.Max(*map(sp.cancel, bounds)),
        steps=(
            *(Step(f"Partition {{{rank}}} | rest", bounds[rank - 1]) for rank in (1, 2, 3)),
            Step("Partition into three singletons", sp.cancel(bounds[3])),
        ),
    )


def results() -> list[Result]:
    """The bounds, the general one first."""
    return [cut(), traffic(), partition(), closed_form(), three_ranks()]
