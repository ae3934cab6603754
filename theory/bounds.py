"""Lower bounds on AllReduce time, exact: in closed form where that is the optimum, by the program elsewhere.

On one non-blocking fabric with one rank per server the largest of four terms. Sources: cut (every contribution leaves
its server, every result enters; entropy argument), traffic (2(P-1) n are sent in all: for schedules that forward and
add the one-way gossip bound, Harary and Schwenk, "The communication problem on graphs and digraphs", 1974; for any
protocol id coding). Statements and proofs: proofs/README.md, ids cut and traffic. Reached on a non-blocking fabric for
any rates (id attained), by nested rings where rates in and out agree (id nested-rings).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from optcc.errors import InfeasibleError, InputError
from optcc.values.bound import Bound, Certificate, Direction, Price, ProgramCertificate, in_words
from optcc.values.cluster import Cluster, Rank
from optcc.values.units import MAX_BYTES


def lower_bound(cluster: Cluster, nbytes: int) -> Bound:
    """The least time of an AllReduce of `nbytes` bytes per rank on `cluster`, with its certificate.

    On a non-blocking fabric with servers as ranks, T = n max(1/min B_out, 1/min B_in, 2(P-1)/sum B_out,
    2(P-1)/sum B_in), exact. With rails, pods or GPUs as ranks, the program's optimum (over tree pairs, see
    bound_program.py), to a gap below 1e-6. Seconds; latency is ignored. Raises InfeasibleError when a rank is cut off
    one way, InputError for a size out of range.
    """
    _check_size(nbytes)
    if len(cluster.ranks) > 1 and (cluster.gpu_ranks or not cluster.fabric.flat):
        return program_bound(cluster, nbytes)
    certificate = _tightest(cluster.ranks, nbytes)
    return Bound(
        nbytes=nbytes,
        seconds=certificate.seconds,
        fault_free_s=_tightest(cluster.fault_free.ranks, nbytes).seconds,
        bottleneck=in_words(cluster, certificate),
        certificate=certificate,
    )


def _check_size(nbytes: int) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 0 <= nbytes <= MAX_BYTES:
        expected = "whole bytes, 0 to 2**60"
        raise InputError("size out of range", where="size", expected=expected, got=str(nbytes)[:60])


def program_bound(cluster: Cluster, nbytes: int, collective: str = "allreduce", root: str | None = None) -> Bound:
    """The bound by the program, whatever the fabric, for any of `optcc.theory.program_network.COLLECTIVES`.

    `nbytes` is the whole buffer in bytes: an allgather's result, a reduce-scatter's input. `root` names the rank of a
    broadcast or reduce. Raises as `lower_bound` does.
    """
    from optcc.theory.bound_program import certify
    from optcc.theory.program_network import (
        collective_named,  # SciPy and HiGHS take a while to load, and most bounds need neither
    )

    kind = collective_named(collective)
    _check_size(nbytes)
    if len(cluster.ranks) == 1:
        alone = _tightest(cluster.ranks, nbytes)
        return Bound(nbytes, Fraction(0), Fraction(0), in_words(cluster, alone), alone)
    certificate = certify(cluster, nbytes, kind, root)
    whole = cluster.fault_free
    fault_free = certificate if whole == cluster else certify(whole, nbytes, kind, root)
    return Bound(
        nbytes=nbytes,
        seconds=certificate.seconds,
        fault_free_s=fault_free.seconds,
        bottleneck=dearest(certificate.prices),
        certificate=certificate,
        fault_free=fault_free,
    )


class Scope(NamedTuple):
    """What no protocol of a kind is faster than, by a certificate. `proof_ids` are rows of proofs/README.md.

    every_protocol : coded, interactive and randomised ones, too, that sum over a finite abelian group; else schedules
        that forward and add
    """

    every_protocol: bool
    proof_ids: tuple[str, ...]

    @property
    def words(self) -> str:
        """For people."""
        who = "every protocol that sums, coded or not" if self.every_protocol else "schedules that forward and add"
        return f"{who} (proof id {', '.join(self.proof_ids)})"


def scope_of(cluster: Cluster, certificate: Certificate | ProgramCertificate) -> Scope:
    """Whom the certificate of a bound on `cluster` binds, told from its cuts alone: nothing is solved.

    Example
    -------
    >>> from fractions import Fraction
    >>> from optcc import load_topology, lower_bound
    >>> rails = load_topology("uniform:servers=4,nics=2,rate=400Gb/s,fabric=rails").cluster.degrade("server0/nic0")
    >>> scope_of(rails, lower_bound(rails, 2**20).certificate)
    Scope(every_protocol=True, proof_ids=('bidirected',))
    """
    if isinstance(certificate, Certificate):
        return Scope(True, ("cut",) if certificate.kind == "cut" else ("coding",))
    from optcc.theory.certificates import dual_in_arrays, holds_for_every_protocol, is_an_allreduces, rooted_network
    from optcc.theory.program_network import BOTH_AT_ONCE, collective_named

    kind = collective_named(certificate.collective)
    if len(kind.sides) == 1:
        return Scope(True, ("collectives",))
    network, _ = rooted_network(cluster, kind, certificate.root)
    at_once = ("both-at-once",) if kind is BOTH_AT_ONCE else ()
    if at_once and not is_an_allreduces(network, dual_in_arrays(network, certificate)):
        return Scope(False, at_once)
    if network.reverse is not None:
        return Scope(True, (*at_once, "bidirected"))
    if holds_for_every_protocol(network, certificate.cuts):
        return Scope(True, (*at_once, "half-program"))
    return Scope(False, at_once or ("linear-program", "tree-pairs"))


def dearest(prices: tuple[Price, ...]) -> str:
    """The bottleneck in words, of a bound by the program."""
    return f"{prices[0].what}: {100 * float(prices[0].share):.3g} % of the limit"


def _tightest(ranks: tuple[Rank, ...], nbytes: int) -> Certificate:
    if len(ranks) == 1:
        return Certificate("trivial", "out", (0,), 0, ranks[0].out_rate)
    sides = [r.out_rate for r in ranks], [r.in_rate for r in ranks]
    slowest = [min(zip(rates, range(len(ranks)), strict=True)) for rates in sides]
    for way, (rate, rank) in zip(("out of", "into"), slowest, strict=True):
        if not rate:
            raise InfeasibleError(
                "no AllReduce is possible",
                where=ranks[rank].name,
                expected=f"at least one live NIC {way} every server",
                got="none",
                hint="Repair a NIC of this server or leave the server out of the job.",
            )
    return largest_term(len(ranks), nbytes, slowest, [sum(rates, Fraction(0)) for rates in sides])


def largest_term(
    ranks: int, nbytes: int, slowest: Sequence[tuple[Fraction, int]], sums: Sequence[Fraction]
) -> Certificate:
    """The certificate of the largest of the four terms.

    slowest, sums : out, then in: (rate, rank) of the slowest rank, and the sum of all rates, bytes per second
    """
    found: list[Certificate] = []
    directions: tuple[Direction, ...] = ("out", "in")
    for direction, (rate, rank), total in zip(directions, slowest, sums, strict=True):
        found.append(Certificate("cut", direction, (rank,), nbytes, rate))
        found.append(Certificate("traffic", direction, tuple(range(ranks)), 2 * (ranks - 1) * nbytes, total))
    # At a tie the sum is named first: repairing one server alone would not help.
    return max(found, key=lambda c: (c.seconds, c.kind == "traffic"))
