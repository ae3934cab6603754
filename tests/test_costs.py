"""The bound that knows latency and chunks: no schedule undercuts it, some come close, and forgeries are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

import optcc
from optcc.cli import main
from optcc.errors import CertificateError, InputError
from optcc.schedule import Schedule, Stage
from optcc.schedule.assemble import TemplateRow, assemble
from optcc.schedule.routes import Routes
from optcc.theory import check_bound_with_costs, lower_bound
from optcc.theory.bound_check import check_loss, check_loss_together
from optcc.theory.bound_costs import least_loss, least_loss_together, multiple
from optcc.values.bound import BoundWithCosts, CutCosts, FluidCosts, PairCosts, TogetherCosts
from optcc.values.cluster import Cluster, Nic, Server
from tests.conftest import clusters, degraded
from tests.effort import examples
from tests.fabrics import fabrics, gpu_cluster, ring
from tests.test_starving_pair import check, lacking, recipes

US = Fraction(1, 10**6)
COSTS = [(0, 0), (0, 1), (5, 1), (50, 0), (1, 20), (1000, 300)]
"""(alpha, per_chunk) in microseconds."""
SIZES = [1, 7, 1000, 2**16, 2**22, 2**30]


def bound(cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction) -> BoundWithCosts:
    """The bound, checked."""
    found = optcc.lower_bound_with_costs(cluster, nbytes, alpha=alpha, per_chunk=per_chunk)
    check_bound_with_costs(cluster, found)
    assert found.seconds >= found.bound.seconds
    return found


# No schedule is faster

costs_us = st.tuples(st.integers(0, 100), st.integers(0, 30)) | st.sampled_from(COSTS)


def check_plans(cluster: Cluster, nbytes: int, costs: tuple[int, int]) -> None:
    """The plan for these costs, a plan without, and the rivals' schedules."""
    alpha, per_chunk = (cost * US for cost in costs)
    least = bound(cluster, nbytes, alpha, per_chunk).seconds
    check(optcc.plan(cluster, nbytes, alpha=alpha, per_chunk=per_chunk).schedule(), least, alpha, per_chunk)
    shallow = optcc.plan(cluster, nbytes, segments=2)
    check(shallow.schedule(), least, alpha, per_chunk)
    check(shallow.baseline("ring").schedule(), least, alpha, per_chunk)


@examples(60)
@given(
    cluster=clusters(min_ranks=2, symmetric=False) | degraded(min_ranks=2),
    nbytes=st.sampled_from(SIZES) | st.integers(1, 2**30),
    costs=costs_us,
)
def test_no_plan_is_faster(cluster: Cluster, nbytes: int, costs: tuple[int, int]) -> None:
    check_plans(cluster, nbytes, costs)


@examples(60)
@given(
    lost=st.sampled_from(
        [(3, 4, 3), (3, 4, 2, 0, 1), (4, 4, 3), (4, 2, 1, 1), (5, 4, 3, 1), (6, 3, 2, 0, 2), (2, 3, 2)]
    ),
    nbytes=st.sampled_from(SIZES[:-1]) | st.integers(1, 2**22),
    costs=costs_us,
    segments=st.integers(1, 24),
)
def test_no_family_is_faster(lost: tuple[int, ...], nbytes: int, costs: tuple[int, int], segments: int) -> None:
    cluster, (alpha, per_chunk) = lacking(*lost), (cost * US for cost in costs)
    least, tried = bound(cluster, nbytes, alpha, per_chunk).seconds, 0
    for recipe in recipes(cluster, nbytes, alpha, per_chunk, segments):
        check(recipe.lower(cluster, nbytes), least, alpha, per_chunk)
        tried += 1
    assert tried


@examples(60)
@given(cluster=fabrics(), nbytes=st.integers(1, 10**7), costs=costs_us, data=st.data())
def test_no_ring_is_faster_on_rails_and_pods(
    cluster: Cluster, nbytes: int, costs: tuple[int, int], data: st.DataObject
) -> None:
    """Rates there are some thousand bytes per second: costs are seconds."""
    order = data.draw(st.permutations(range(len(cluster.ranks))))
    try:
        schedule = ring(cluster, nbytes, order=order, segments=2)
    except InputError:  # a rank without rate one way, or neighbours without a common rail
        assume(False)
        raise
    alpha, per_chunk = (Fraction(cost) for cost in costs)
    check(schedule, bound(cluster, nbytes, alpha, per_chunk).seconds, alpha, per_chunk)


@pytest.mark.parametrize("nbytes", [8, 4096, 10**6])
def test_no_schedule_is_faster_between_gpus(nbytes: int) -> None:
    """One rail half as fast on one server."""
    cluster = gpu_cluster(servers=3).degrade("server0/nic1", Fraction(1, 2))
    for costs in COSTS:
        alpha, per_chunk = (Fraction(cost, 100) for cost in costs)
        least = bound(cluster, nbytes, alpha, per_chunk).seconds
        check(optcc.plan(cluster, nbytes, segments=4).schedule(), least, alpha, per_chunk)


# What a server's port can carry


def most_carried(span: float, alpha: float, o: float, ratio: float, q: int, kinds: tuple[bool, ...]) -> float | None:
    """The most of Z + V/Q by chunks in that order, of elements passed on (True) or copied; None: too many chunks.

    A linear program in x and z, the seconds of each chunk and those of it that are passed on. ratio : r/B
    """
    m = len(kinds)
    rows, limits = [], []
    for i, passed in enumerate(kinds):
        end = np.zeros(2 * m)
        end[: i + 1] = 1
        rows.append(end.copy())
        limits.append(span + alpha + o - (i + 1) * o)
        part = np.zeros(2 * m)
        part[i], part[m + i] = -1, 1
        rows.append(part)  # z_i <= x_i
        limits.append(0)
        if passed:
            end[m + i] = ratio
            rows.append(end)
            limits.append(span - (i + 1) * o)
    bounds = [(0, None)] * m + [(0, None if passed else 0) for passed in kinds]
    weights = np.concatenate([np.full(m, 1 / q), np.full(m, 1 - 1 / q)])
    found = linprog(-weights, A_ub=np.array(rows), b_ub=limits, bounds=bounds)
    return -found.fun if found.status == 0 else None


@pytest.mark.parametrize(("alpha", "ratio", "q"), [(0, 1 / 2, 2), (3, 1 / 8, 7), (1, 1, 3), (20, 1 / 3, 2)])
@pytest.mark.parametrize("span", [1.5, 4.0, 30.0, 100.0])
def test_no_port_carries_more_whatever_its_chunks(alpha: float, ratio: float, q: int, span: float) -> None:
    """In units of o. Of all orders of up to five chunks, the best carries exactly what the proof says."""
    c, kept = 1 + 1 / Fraction(ratio).limit_denominator(8), 1 - Fraction(1, q)
    loss = least_loss(Fraction(span), Fraction(1), c, kept)
    orders = [kinds for m in range(1, 6) for kinds in product((True, False), repeat=m)]
    carried = [most for kinds in orders if (most := most_carried(span, alpha, 1, ratio, q, kinds)) is not None]
    limit = span + alpha / q - float(loss)
    assert max(carried) <= limit + 1e-6
    assert max(carried) >= limit - 1e-6 or loss > 4  # more chunks than were tried
    check_loss(loss, Fraction(span), Fraction(1), c, kept)
    with pytest.raises(CertificateError, match="chunks lose less"):
        check_loss(loss + Fraction(1, 10**9), Fraction(span), Fraction(1), c, kept)


def most_together(span: float, alpha: float, kappa: float, q: int, order: tuple[int, ...], soon: int) -> float | None:
    """The most bytes of first sends, of all bytes that NICs send in `span` + alpha + 1, in units of o and of a NIC's
    rate; None: too many chunks.

    order : the NIC of each chunk, in the order in which they end; after the first `soon` of these nothing is passed on
    kappa : the rate of all others over the server's, over q - 1
    A linear program in the times of each chunk's bytes, those of them that go first, and of its end.
    """
    m, nics = len(order), max(order) + 1
    last, limit = span + alpha + 1, np.zeros(3 * m)
    rows, limits = list[Any](), list[float]()

    def at_most(parts: Mapping[int, float], value: float) -> None:
        row = limit.copy()
        for place, factor in parts.items():
            row[place] += factor
        rows.append(row)
        limits.append(value)

    for i, nic in enumerate(order):
        before = [j for j in range(i) if order[j] == nic]
        at_most({i: 1, 2 * m + i: -1} | ({2 * m + before[-1]: 1} if before else {}), -1)  # one after the other
        at_most({m + i: 1, i: -1}, 0)
        at_most({2 * m + i: 1}, last)
        if i:
            at_most({2 * m + i - 1: 1, 2 * m + i: -1}, 0)
        # Late: chunks from i on. q times the first sends are passed on, by chunks of the server or by others.
        late = {m + j: float(q) for j in range(i, m)} | dict.fromkeys(range(i, m), -1.0)
        passed = (q - 1) * kappa * nics if i < soon else 0.0
        at_most(late | {2 * m + i: passed}, passed * span)
    first = np.concatenate([np.zeros(m), np.ones(m), np.zeros(m)])
    found = linprog(-first, A_ub=np.array(rows), b_ub=limits, bounds=[(0, None)] * (3 * m))
    return -found.fun / nics if found.status == 0 else None


@pytest.mark.parametrize(("alpha", "kappa", "q"), [(0, 2.5, 3), (3, 2, 7), (2, 4, 2)])
@pytest.mark.parametrize(("span", "nics"), [(3.0, 2), (9.0, 2), (25.0, 1)])
def test_no_nics_together_carry_more_whatever_their_chunks(
    alpha: float, kappa: float, q: int, span: float, nics: int
) -> None:
    """In units of o: of all orders of a few chunks the best carries exactly what the proof says."""
    kept, k = 1 - Fraction(1, q), Fraction(kappa)
    loss = least_loss_together(Fraction(span), Fraction(1), nics, k, kept)
    limit, best = span + alpha / q - float(loss), 0.0
    for m in range(nics, 6):
        for order in product(range(nics), repeat=m):
            if order[0] == 0 and len(set(order)) == nics:
                for soon in range(m + 1):
                    best = max(best, most_together(span, alpha, kappa, q, order, soon) or 0.0)
    assert best <= limit + 1e-6
    assert best >= limit - 1e-6 or nics * (loss + 1) > 6  # more chunks than were tried
    check_loss_together(loss, Fraction(span), Fraction(1), nics, k, kept)
    with pytest.raises(CertificateError, match="lose less"):
        check_loss_together(loss + Fraction(1, 10**9), Fraction(span), Fraction(1), nics, k, kept)


def test_losses_together_by_hand() -> None:
    """One NIC: 10 = 4 b with b = s, and one chunk more: b = s, 10 = s + 1 + 4 b, s = 9/5."""
    o, kept = Fraction(1), Fraction(1, 2)
    assert least_loss_together(Fraction(10), o, 1, Fraction(4), kept) == 1 + Fraction(9, 10)
    # Two NICs, a chunk of one of them: b + 10 = 2 s, 20 = 2 s + 1 + 8 b.
    s = (Fraction(20) + 8 * 10 - 1) / 18
    assert least_loss_together(Fraction(10), o, 2, Fraction(4), kept) <= Fraction(1, 2) + kept * s
    assert least_loss_together(Fraction(10), Fraction(0), 2, Fraction(4), kept) == 0
    assert least_loss_together(Fraction(-1), o, 2, Fraction(4), kept) == 0
    assert multiple(Fraction(4), Fraction(28), 4) == Fraction(7, 3) + Fraction(2, 3 * 1024)  # rounded up to 1/1024
    assert multiple(Fraction(4), Fraction(1), 4) == 2


def test_losses_by_hand() -> None:
    """Nine times as fast each step: 10 = 9 s needs s = 10/9 without o; with it one chunk leaves (10 - 1)/9 = 1."""
    o, kept = Fraction(1), Fraction(1, 2)
    assert least_loss(Fraction(10), o, Fraction(9), kept) == 1 + Fraction(1, 2)
    assert least_loss(Fraction(1), o, Fraction(9), kept) == Fraction(1, 2)  # copied, all of it
    assert least_loss(Fraction(90), o, Fraction(9), kept) == 2 + Fraction(90 - 10, 81) / 2
    assert least_loss(Fraction(10), Fraction(0), Fraction(9), kept) == 0
    assert least_loss(Fraction(-1), o, Fraction(9), kept) == 0


# Values, and how near


def test_values_by_hand() -> None:
    two = bound(Cluster.uniform(servers=2, nics=2, rate=1000), 2000, Fraction(3), Fraction(2))
    assert (two.seconds, two.certificate) == (1 + 3 + 2, FluidCosts())
    alone = bound(Cluster.uniform(servers=1, nics=2, rate=1000), 2000, Fraction(3), Fraction(2))
    assert alone.seconds == alone.extra_s == 0
    # Three servers, one with one NIC of four: X = 100 s, Q = 2, c = 1 + 4. From 98 s, three chunks: s = (98 - 31)/125.
    starving = bound(lacking(3, 4, 3).scaled(Fraction(1, 10**6)), 10**5, Fraction(4), Fraction(1))
    loss = 3 + Fraction(98 - 31, 125) / 2
    assert starving.seconds == 4 + 1 + 100 + 2 + loss
    assert starving.certificate == CutCosts(0, "out", (loss,))
    # Little to send: copies to both others, not a second hop; and, where chunks cost something, in two chunks.
    little = lacking(3, 4, 3).scaled(Fraction(1, 10**6))
    copied = bound(little, 1000, Fraction(4), Fraction(0))
    assert copied.seconds == 4 + 2
    assert copied.certificate == CutCosts(0, "out", (Fraction(0),))
    assert 0 < 4 + 2 + 2 - bound(little, 1000, Fraction(4), Fraction(1)).seconds <= Fraction(1, 10**15)


def test_a_starving_pair_is_used_where_it_says_more() -> None:
    found = bound(lacking(5, 4, 2, 2), 10**9, 5 * US, US)
    assert isinstance(found.certificate, PairCosts)
    assert found.certificate.servers == (0, 1)
    assert found.seconds == optcc.theory.bound_costs.starving_pair_s(lacking(5, 4, 2, 2), 10**9, 5 * US, US)


def test_other_collectives_pay_for_one_chunk() -> None:
    cluster = lacking(4, 2, 1)
    found = optcc.lower_bound_with_costs(cluster, 2**20, alpha="5us", per_chunk="1us", collective="allgather")
    check_bound_with_costs(cluster, found)
    assert found.extra_s == 6 * US


def test_costs_are_those_of_the_simulators_clock() -> None:
    """Whole picoseconds, as it rounds them."""
    found = bound(lacking(2, 1), 1, Fraction(26, 10**13), Fraction(14, 10**13))
    assert found.extra_s == Fraction(3 + 1, 10**12)
    for alpha, per_chunk in ((-1, 0), (0, -1), (10**7, 0), (0, 10**7)):
        with pytest.raises(InputError, match=r"negative time|out of range"):
            bound(lacking(2, 1), 1, Fraction(alpha), Fraction(per_chunk))


def star(nbytes: int, chunks: int, copied: int = 0) -> tuple[Cluster, Schedule]:
    """A server that sends slowly sends all to the second, which sends both others the sum, by a NIC for each. An eighth
    of what was left is left after each chunk, so that the second is through with a chunk when the next one comes.

    Of the last `copied` bytes the slow one gets the others' sum in the beginning, and sends its own to both at the end.
    """
    slow = Nic("nic0", Fraction(1000), Fraction(8000))
    fast = [Nic(f"nic{i}", Fraction(8000), Fraction(8000)) for i in range(2)]
    cluster = Cluster((Server("slow", (slow,)), Server("hub", tuple(fast)), Server("other", (fast[0],))))
    way = Routes(cluster)

    rank = {server.name: s for s, server in enumerate(cluster.servers)}

    def lane(src: str, dst: str) -> int:
        ends = (way.port_index[src], way.port_index[dst], Fraction(1))
        return way.pinned(rank[src.split("/")[0]], rank[dst.split("/")[0]], [ends])

    rows = [
        TemplateRow(0, lane("other/nic0", "hub/nic1"), 0, True, Stage.REDUCE_SCATTER, ()),
        TemplateRow(0, lane("slow/nic0", "hub/nic0"), 0, True, Stage.REDUCE_SCATTER, ()),
        TemplateRow(0, lane("hub/nic0", "other/nic0"), 1, False, Stage.ALLGATHER, (0, 1)),
        TemplateRow(0, lane("hub/nic1", "slow/nic0"), 1, False, Stage.ALLGATHER, (0, 1)),
    ]
    copies = [
        TemplateRow(0, lane("other/nic0", "hub/nic1"), 0, True, Stage.REDUCE_SCATTER, ()),
        TemplateRow(0, lane("hub/nic1", "slow/nic0"), 1, True, Stage.REDUCE_SCATTER, (0,)),
        TemplateRow(0, lane("slow/nic0", "hub/nic0"), 2, False, Stage.ALLGATHER, (1,)),
        TemplateRow(0, lane("slow/nic0", "other/nic0"), 2, False, Stage.ALLGATHER, (1,)),
    ]
    rest = nbytes - copied
    cuts = np.array([rest - rest // 8**i // 8 * 8 for i in range(chunks)] + [rest, nbytes], np.int64)
    bounds, number = np.stack([cuts[:-1], cuts[1:]], axis=1), np.arange(chunks + 1)
    blocks = [(rows, number[:-1], bounds[:-1]), (copies, number[-1:], bounds[-1:])]
    schedule = assemble(cluster, nbytes, way, blocks)
    optcc.verify(schedule)
    return cluster, schedule


@pytest.mark.parametrize(
    ("chunks", "alpha", "per_chunk", "near"),
    [(5, 0, 1, Fraction(130, 100)), (3, 0, 100, Fraction(135, 100)), (5, 100, 1, Fraction(135, 100))],
)
def test_a_star_comes_close(chunks: int, alpha: int, per_chunk: int, near: Fraction) -> None:
    """What the star loses is at most `near` times what the bound adds to the one without costs."""
    cluster, schedule = star(10**7, chunks)
    costs = Fraction(alpha), Fraction(per_chunk)
    found = bound(cluster, 10**7, *costs)
    assert isinstance(found.certificate, CutCosts)
    check(schedule, found.seconds, *costs)
    time_s = optcc.simulate(schedule, alpha=costs[0], per_chunk=costs[1]).time_s
    assert time_s <= found.bound.seconds + near * found.extra_s
    with pytest.raises(AssertionError):  # a bound that adds so much more is noticed
        check(schedule, found.bound.seconds + near * found.extra_s, *costs)


@pytest.mark.parametrize(("chunks", "near"), [(1, 1.125), (2, 1.0156), (3, 1.0020), (5, 1.00003)])
def test_k_chunks_cost_a_power(chunks: int, near: float) -> None:
    """Of the cut, without costs: 1 + 8^-k by chunks that shrink, where the server sends at an eighth of the hub's rate.

    Three servers; the hub has two NICs, so that it sends 16 times as fast: c = 17.
    """
    cluster, schedule = star(8**8, chunks)
    cut = lower_bound(cluster, 8**8).seconds
    ratio = optcc.simulate(schedule).time_s / float(cut)
    assert ratio == pytest.approx(1 + 8.0**-chunks, abs=1e-12)
    assert ratio == pytest.approx(near, abs=5e-5)
    assert 1 / (1 - 17.0**-chunks) <= ratio
    assert ratio < 1 + 1 / chunks  # what equal segments in that order cost at least is no bound on others


@pytest.mark.parametrize(("ratio", "q"), [(1 / 2, 2), (1 / 8, 7), (1, 3), (1 / 3, 2)])
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_k_chunks_carry_no_more(ratio: float, q: int, chunks: int) -> None:
    """In time 1, without costs: the best of all orders of so many chunks carries what is proved; one more, more."""
    c = 1 + 1 / ratio

    def most(count: int) -> float:
        orders = product((True, False), repeat=count)
        return max(carried for kinds in orders if (carried := most_carried(1, 0, 0, ratio, q, kinds)) is not None)

    assert most(chunks) == pytest.approx(1 - c**-chunks, abs=1e-9)
    assert most(chunks + 1) > 1 - c**-chunks + 1e-9


def test_copies_of_the_last_bytes_save_half_of_alpha_among_three() -> None:
    """A second hop of every byte would take two alpha; the bound knows better, and is less than what this takes."""
    alpha, per_chunk = Fraction(400), Fraction(1)
    cluster, schedule = star(10**7, 5, copied=200_000)
    least = bound(cluster, 10**7, alpha, per_chunk)
    check(schedule, least.seconds, alpha, per_chunk)
    time_s = optcc.simulate(schedule, alpha=alpha, per_chunk=per_chunk).time_s
    assert least.bound.seconds == 10**4
    assert least.extra_s > Fraction(3, 2) * alpha
    assert time_s < 10**4 + Fraction(8, 5) * alpha


# Forgeries


def forgeries(found: BoundWithCosts) -> list[BoundWithCosts]:
    """Each claims more, or something else, than is proved."""
    more = Fraction(1, 10**12)
    parts = (replace(found.parts[0], seconds=found.parts[0].seconds + more), *found.parts[1:])
    claims = [
        replace(found, seconds=found.seconds + more),
        replace(found, seconds=found.seconds + more, parts=parts),
        replace(found, parts=parts),
        replace(found, alpha=found.alpha / 2),
        replace(found, alpha=-found.alpha),
        replace(found, per_chunk=found.per_chunk / 2),
        replace(found, bound=replace(found.bound, seconds=found.bound.seconds * 2)),
    ]
    cert: Any = found.certificate
    forged: list[Any] = []
    if isinstance(cert, CutCosts):
        forged = [
            replace(cert, losses=(cert.losses[0] + more, *cert.losses[1:])),
            replace(cert, losses=(-cert.losses[0], *cert.losses[1:])),
            replace(cert, losses=cert.losses * 2),
            replace(cert, losses=()),
            replace(cert, server=1),
            replace(cert, server=-1),
            replace(cert, server=9),
            FluidCosts(),
        ]
    elif isinstance(cert, TogetherCosts):
        forged = [replace(cert, loss=loss) for loss in (cert.loss + more, cert.loss / 2, -cert.loss)]
        forged += [replace(cert, server=server) for server in (1, -1, 9)]
        forged += [CutCosts(0, "out", (cert.loss,) * 4), FluidCosts()]
    elif isinstance(cert, PairCosts):
        forged = [replace(cert, servers=servers) for servers in ((0, 0), (0, 2), (0, 9), (-1, 0))]
        forged += [replace(cert, weight=weight) for weight in (Fraction(-1), Fraction(1), Fraction(2), cert.weight / 2)]
        forged += [replace(cert, levels=(level, cert.levels[1])) for level in (-cert.levels[0], 2 * cert.levels[0])]
    else:
        forged = [CutCosts(0, "out", (Fraction(0),)), PairCosts((0, 1), Fraction(1, 2), (Fraction(0), Fraction(0)))]
    return claims + [replace(found, certificate=one) for one in forged]


@pytest.mark.parametrize(
    "cluster",
    [lacking(4, 2), lacking(4, 4, 3), lacking(4, 8, 4), lacking(5, 4, 2, 2)],
    ids=["fluid", "cut", "together", "pair"],
)
def test_forged_certificates_are_refused(cluster: Cluster) -> None:
    found = bound(cluster, 10**9, 5 * US, US)
    for forged in forgeries(found):
        with pytest.raises(CertificateError):
            check_bound_with_costs(cluster, forged)


def test_a_cut_or_pair_is_no_certificate_for_an_allgather() -> None:
    cluster = lacking(4, 4, 3)
    found = bound(cluster, 10**9, 5 * US, US)
    half = optcc.lower_bound(cluster, 10**9, "allgather")
    with pytest.raises(CertificateError, match="AllReduce alone"):
        check_bound_with_costs(cluster, replace(found, bound=half))


# The command


def run(*args: str) -> Any:
    return CliRunner().invoke(main, ["bound", "uniform:servers=8,nics=8,rate=400Gb/s", *args])


def test_the_command_says_what_costs_add() -> None:
    costs = "--size", "1GiB", "--alpha", "5us", "--per-chunk", "1us"
    value = json.loads(run("--fail", "server1/nic0", *costs, "--json").output)
    assert value["bound_with_costs_s"] == pytest.approx(value["bound_s"] + 6e-6, rel=1e-12)
    assert sum(part["seconds"] for part in value["costs"]["parts"]) == pytest.approx(value["bound_with_costs_s"])
    text = run("--fail", "server1/nic[0-3]", *costs).output
    assert "5 us a hop, 1 us a chunk and port" in text
    assert "until its last chunk has gone two hops" in text
    assert "a hop" not in run("--size", "1GiB").output
    refused = run("--symbolic", "text", "--alpha", "5us")
    assert refused.exit_code == 2
    assert "not both" in refused.output
